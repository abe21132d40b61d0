"""Real exports of small models: every exporter, every site found, the result the same; and the package's public names."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
import torch

import onnx_fa
from onnx_fa.forms.rewrite import FORMS, explain, rewrite
from onnx_fa.models import build as zoo
from onnx_fa.models.export import export_onnx
from onnx_fa.spec.terms import Causal as CausalMask
from tests.support.ort_run import assert_same, run
from tests.support.sampled import parameters

TINY = ("tiny_bert", "tiny_gpt", "tiny_llama", "tiny_vit")
EXPORTS = (
    ("dynamo", 18, "sdpa"),
    ("dynamo", 18, "eager"),
    ("dynamo", 23, "sdpa"),
    ("torchscript", 17, "sdpa"),
    ("torchscript", 17, "eager"),
)
EVERY_RUN = {
    "tiny_llama": EXPORTS,
    "tiny_bert": (EXPORTS[0], EXPORTS[3]),
    "tiny_gpt": (EXPORTS[1], EXPORTS[4]),
    "tiny_vit": (EXPORTS[2],),
}
"""Of each model the exports that every run tries: an export takes seconds, most of all by dynamo."""
CASES = [(name, *export) for export in EXPORTS for name in TINY]
KEPT = [i for i, (name, *export) in enumerate(CASES) if tuple(export) in EVERY_RUN[name]]
SAME = 1e-5
"""Relative norm error of a whole f32 model of two layers when its attentions are computed in another order."""


@pytest.mark.parametrize("case", parameters(CASES, ["-".join(map(str, case)) for case in CASES], KEPT))
def test_every_site_is_found_and_stays_the_same(case: tuple[str, str, int, str]) -> None:
    name, exporter, opset, attn = case
    model = export_onnx(name, exporter, opset, attn=attn)  # type: ignore[arg-type]
    report = explain(model)
    assert not report.misses
    assert len(report.sites) == zoo.find(name).layers
    inputs = zoo.inputs(zoo.find(name))
    want = run(model, inputs)
    for form in FORMS:
        new, done = rewrite(model, form)
        onnx.checker.check_model(new, full_check=True)
        assert_same(want, run(new, inputs), SAME)
        again, _ = rewrite(new, form)
        assert again.SerializeToString() == new.SerializeToString()
        if form != "attention":
            assert not done.misses
            left = {n.op_type for n in new.graph.node}
            assert not left & {"Softmax", "Attention"}


SYMBOLIC = ["tiny_bert", "tiny_llama", "tiny_gpt"]


@pytest.mark.parametrize("name", parameters(SYMBOLIC, SYMBOLIC, [0, 1]))
def test_symbolic_batch_and_length(name: str) -> None:
    model = export_onnx(name, "dynamo", 18, dynamic=True)
    report = explain(model)
    assert not report.misses and len(report.sites) == zoo.find(name).layers
    new, _ = rewrite(model)
    for B, S in ((1, 3), (3, 17)):
        inputs = zoo.inputs(zoo.find(name), B=B, S=S)
        assert_same(run(model, inputs), run(new, inputs), SAME)


class Causal(torch.nn.Module):
    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)


@pytest.mark.parametrize("dynamo", [True, False])
def test_export_is_torch_export_then_rewrite(dynamo: bool) -> None:
    q, k, v = (torch.randn(2, 4, 9, 8, generator=torch.Generator().manual_seed(i)) for i in range(3))
    model, report = onnx_fa.export(Causal(), (q, k, v), dynamo=dynamo, input_names=["q", "k", "v"])
    (site,) = report.sites
    assert site.spec.masks == (CausalMask(0),)
    have = run(model, {"q": q.numpy(), "k": k.numpy(), "v": v.numpy()})
    assert_same([Causal()(q, k, v).numpy()], have)


def test_public_names_do_the_job(tmp_path: Path) -> None:
    model = export_onnx("tiny_vit", "dynamo", 18)
    new, report = onnx_fa.rewrite(model)
    assert isinstance(new, onnx.ModelProto) and len(report.sites) == 2
    compiled = onnx_fa.compile(model, tmp_path / "m.vmfb")
    assert [s.fused for s in compiled.sites] == [True, True]
    checked = onnx_fa.verify(model, seeds=1)
    assert checked.ok, checked.table()
    assert np.isfinite([c.error for c in checked.checks if c.error is not None]).all()
    assert all(getattr(onnx_fa, name) for name in onnx_fa.__all__)
    with pytest.raises(AttributeError, match="nonsense"):
        _ = onnx_fa.nonsense
