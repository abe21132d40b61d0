"""For tests of other projects: that a model's attentions are found, stay fused, and stay right.

    def test_my_model(fused_attention):
        fused_attention("model.onnx", sites=12)

The fixture comes with the package (pytest finds it by itself); `assert_fused` is the same as a plain function.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from onnx_fa.graph.io import ModelLike


def assert_fused(
    model: ModelLike,
    *,
    sites: int | None = None,
    misses: int = 0,
    target: str = "cpu-host",
    right: bool = True,
    seeds: int = 1,
    dims: Mapping[str, int] | None = None,
) -> None:
    """Raises AssertionError unless `model` has `sites` attentions (None: at least one), at most `misses` softmaxes are left alone,
    every attention is compiled to one dispatch without a buffer of Sq x Skv, and (`right`) results are those of the original.

    Raises OnnxFaError for a model that cannot be read or compiled.
    """
    from onnx_fa.forms.rewrite import explain
    from onnx_fa.iree.compile import compile_model
    from onnx_fa.iree.inspect import OUTSIDE
    from onnx_fa.verifier.verifier import verify

    found = explain(model)
    left = "; ".join(f"{m.node}: {m.reason}" for m in found.misses) or "nothing was left alone"
    if sites is None:
        assert found.sites, f"no attention was found: {left}"
    else:
        assert len(found.sites) == sites, f"{len(found.sites)} attentions found, {sites} expected: {left}"
    assert len(found.misses) <= misses, f"{len(found.misses)} left alone: {left}"
    with tempfile.TemporaryDirectory(prefix="onnx_fa-") as folder:
        module = Path(folder) / "model.vmfb"
        done = compile_model(model, module, target)
        apart = [s.name for s in done.sites if s.fused is not True]
        assert not apart, f"not one fused dispatch: {', '.join(apart)}"
        kernelless = [f"{m.node}: {m.reason}" for m in done.misses if m not in found.misses]
        assert not kernelless, f"no kernel: {'; '.join(kernelless)}"
        # A softmax that is rightly left alone has its buffer.
        buffers = [str(b) for b in done.inspection.buffers if b.why != OUTSIDE or not misses]
        assert not buffers, f"buffers of Sq x Skv size: {', '.join(buffers)}"
        if right:
            report = verify(model, target, seeds=seeds, dims=dims, module=module)
            bad = [c for c in report.checks if c.ok is False]
            assert not bad, "\n".join(f"{c.what} against {c.against} on {c.inputs}: error {c.error}" for c in bad)


@pytest.fixture
def fused_attention() -> Callable[..., None]:
    """`assert_fused`."""
    return assert_fused
