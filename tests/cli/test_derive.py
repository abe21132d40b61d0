"""`onnx-fa derive` as a process."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from onnx_fa.forms.plain import plain_model
from onnx_fa.graph.io import save
from onnx_fa.spec.attention import AttentionSpec
from onnx_fa.spec.terms import Softcap
from tests.cli.test_cli import cli


def model(path: Path, **changes: object) -> Path:
    save(plain_model(AttentionSpec("f32", 2, 2, 16, 48, 16, 8, (1,), scale=0.25, **changes)), path)  # type: ignore[arg-type]
    return path


def test_the_chain_of_a_softmax(tmp_path: Path) -> None:
    done = cli("derive", model(tmp_path / "a.onnx"), "--report", "r.json", "--html", "p.html", cwd=tmp_path)
    (site,) = json.loads((tmp_path / "r.json").read_text())["sites"]
    chain = site["chain"]
    assert [s["passes"] for s in chain if s["rule"] in ("", "a division leaves a sum")] == [3, 2]
    assert chain[-1]["passes"] == 1 and chain[-1]["bytes_held"] == 4 * (2 + 8) and site["refused"] is None
    assert chain[0]["rule"] == "" and all(s["rule"] for s in chain[1:]) and 0 < site["nodes"] < 1000
    assert "m' = max(m, max°(s°ₖ))" in done.stdout and "not chosen" in done.stdout
    page = (tmp_path / "p.html").read_text()
    assert "a division leaves a sum" in page and "http" not in page.split("</style>")[1]


def test_capped_scores_lose_their_maximum(tmp_path: Path) -> None:
    text = cli("derive", model(tmp_path / "a.onnx", mods=(Softcap(20.0),)), "--site", "0", cwd=tmp_path).stdout
    assert "a common divisor cancels" in text and "m starts" not in text


@pytest.mark.parametrize(("flags", "said"), [(("--site", "nothing"), "no site 'nothing': the model's are ")])
def test_bad_input_is_one_line(tmp_path: Path, flags: tuple[str, ...], said: str) -> None:
    done = cli("derive", model(tmp_path / "a.onnx"), *flags, cwd=tmp_path, code=2)
    assert said in done.stderr and len(done.stderr.splitlines()) == 1
