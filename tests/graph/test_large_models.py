"""Models of thousands of nodes, and of more weights than fit into memory."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import onnx
import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

from bench_matching import decoder, write  # noqa: E402

from onnx_fa.forms.rewrite import explain, rewrite  # noqa: E402
from onnx_fa.spec.terms import BoolMask, Causal  # noqa: E402


def test_every_layer_of_a_deep_model_is_matched() -> None:
    model, _ = decoder(nodes=1000)
    onnx.checker.check_model(model, full_check=True)
    new, report = rewrite(model)
    layers = sum(n.op_type == "Softmax" for n in model.graph.node)
    assert len(report.sites) == layers > 10 and not report.misses
    assert not any(n.op_type == "Softmax" for n in new.graph.node)
    for site in report.sites:
        spec = site.spec
        assert (spec.batch, spec.Hq, spec.Hkv, spec.Sq, spec.Skv) == (("batch",), 16, 4, "length", "length")
        assert [type(m) for m in spec.masks] == [Causal, BoolMask]
    onnx.checker.check_model(new, full_check=True)
    assert len(explain(new).sites) == layers


@pytest.mark.whole
def test_ten_gigabytes_of_weights_stay_on_disk(tmp_path: Path) -> None:
    """The weights are a sparse file. Reading, rewriting and saving must not read them, nor write them again."""
    path = write(tmp_path, 0, 10 * 10**9)
    weights = tmp_path / "weights.bin"
    assert weights.stat().st_size >= 10 * 10**9
    if weights.stat().st_blocks * 512 > 10**8:
        pytest.skip("no sparse files here")
    command = [sys.executable, str(ROOT / "scripts" / "bench_matching.py"), "--measure", str(path), "--repeat", "1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)
    row = json.loads(done.stdout)
    assert row["sites"] > 40 and row["weights_gb"] >= 10
    assert row["peak_growth_mb"] < 500
    assert weights.stat().st_blocks * 512 < 10**8
    saved = onnx.load(tmp_path / "rewritten.onnx", load_external_data=False)
    assert (tmp_path / "rewritten.onnx").stat().st_size < 10**7
    places = {t.name: t.external_data for t in saved.graph.initializer if t.data_location == onnx.TensorProto.EXTERNAL}
    before = onnx.load(path, load_external_data=False)
    for tensor in before.graph.initializer:
        if tensor.data_location == onnx.TensorProto.EXTERNAL and tensor.dims[0] * tensor.dims[-1] > 10**4:
            told, kept = ({e.key: e.value for e in t} for t in (tensor.external_data, places[tensor.name]))
            assert {k: kept[k] for k in told} == told
