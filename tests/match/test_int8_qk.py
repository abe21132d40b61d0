"""Q and K in int8 per token, where asked for: what is computed, when K loses its mean, and that it is said."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir as ir
import pytest

from onnx_fa.cli.command import main
from onnx_fa.forms.int8_qk import fits, sees_differences_only
from onnx_fa.forms.plain import input_names, plain_model
from onnx_fa.forms.rewrite import explain, rewrite
from onnx_fa.graph import io
from onnx_fa.iree.compile import compile_model
from onnx_fa.spec.reference import attention
from onnx_fa.verifier.verifier import rewrite_error
from tests.match.test_match_ops import run
from tests.support.cases import BY_NAME, draw_operands

Array = npt.NDArray[Any]


def _rounded(x: Array, axis: int) -> Array:
    scale = np.abs(x).max(axis=axis, keepdims=True) / np.float32(127)
    return np.rint(x / scale) * scale


@pytest.mark.parametrize(
    "name", ["plain", "gqa_mask_per_head", "bshd", "k_transposed_odd", "softcap", "sink", "quant_only_v"]
)
def test_what_is_computed(name: str) -> None:
    """The attention of rounded Q and of rounded K, whose mean over the keys is taken out where a softmax alone sees the scores."""
    spec = BY_NAME[name].spec
    proto = ir.to_proto(plain_model(spec))
    operands = draw_operands(spec, 0)
    q, k, *rest = operands
    keys, width = spec.k_layout.index(spec.rank - 2), spec.k_layout.index(spec.rank - 1)
    if name not in ("softcap", "sink"):
        k = k - k.mean(axis=keys, keepdims=True)
    want = attention(spec, _rounded(q, spec.q_layout.index(spec.rank - 1)), _rounded(k, width), *rest)
    feeds = dict(zip(input_names(spec), operands, strict=True))
    for form in ("decomposed", "blocked"):
        new, report = rewrite(proto, form, int8_qk=True)  # type: ignore[call-overload]
        assert [s.lossy for s in report.sites] == ["int8 QK"]
        onnx.checker.check_model(new, full_check=True)
        got = run(new, feeds, optimise=False)[0]
        # A number at a tie of its rounding may go either way: one of a row's 32 products, by a 127th.
        assert np.linalg.norm(got - want) <= 2e-4 * np.linalg.norm(want)
        (site,) = explain(new).sites
        assert site.spec.k_quant is not None and site.spec.k_quant.dtype == "i8" and site.spec.v_quant == spec.v_quant
        again, _ = rewrite(new, form, int8_qk=True)  # type: ignore[call-overload]
        assert again.SerializeToString() == new.SerializeToString()


def test_only_where_asked_for() -> None:
    new, report = rewrite(ir.to_proto(plain_model(BY_NAME["plain"].spec)))
    assert report.sites[0].lossy == "" and "Round" not in {n.op_type for n in new.graph.node}
    assert not fits(BY_NAME["quant_token"].spec)


def test_mean_of_the_keys() -> None:
    """Keys far from zero keep their differences where the mean goes, and lose them where it must stay."""
    alone = [
        sees_differences_only(BY_NAME[n].spec) for n in ("causal", "alibi", "bool_mask_0", "add_mask_0", "document")
    ]
    assert alone == [True] * 5
    absolute = [
        sees_differences_only(BY_NAME[n].spec) for n in ("softcap", "sink", "lse", "sigmoid", "bool_mask_finite")
    ]
    assert absolute == [False] * 5
    errors = []
    for name in ("plain", "sink"):
        spec = BY_NAME[name].spec
        proto, operands = ir.to_proto(plain_model(spec)), draw_operands(spec, 0)
        operands[1] = operands[1] + np.float32(30) * np.sign(operands[1][:, :, :1])
        feeds = dict(zip(input_names(spec), operands, strict=True))
        want, got = (run(m, feeds)[0] for m in (proto, rewrite(proto, int8_qk=True)[0]))
        errors.append(np.linalg.norm(got - want) / np.linalg.norm(want))
    assert errors[0] < 0.05 < errors[1]


def test_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The command says how far the result is from the original's; the kernel reads K as int8."""
    model = plain_model(BY_NAME["plain"].spec)
    io.save(model, tmp_path / "m.onnx")
    assert main(["rewrite", str(tmp_path / "m.onnx"), "-o", str(tmp_path / "n.onnx"), "--int8-qk"]) == 0
    new = io.load(tmp_path / "n.onnx")
    (error,) = rewrite_error(model, new).values()
    assert 1e-3 < error < 0.1
    assert f"int8 QK in 1 sites: output out differs by {error:.2e}" in capsys.readouterr().out
    (site,) = compile_model(tmp_path / "n.onnx", tmp_path / "n.vmfb").sites
    assert site.fused and site.spec.k_quant is not None
