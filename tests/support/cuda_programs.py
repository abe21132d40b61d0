"""What becomes of a model for CUDA, without a GPU."""

from __future__ import annotations

from pathlib import Path

import onnx

from onnx_fa.iree.compile import import_model, iree_compile
from onnx_fa.spec.target import parse_target
from tests.support.triton_sources import triton_sources

CUDA = parse_target("cuda")


def program_of(model: onnx.ModelProto, folder: Path, *, compiled: bool) -> str:
    """What a call does, as the compiler has it before it makes code; Triton's kernels are `compiled`, for all architectures, or are
    their sources."""
    if compiled:
        text = import_model(model, "cuda").text
        iree_compile(text, folder / "m.vmfb", CUDA, timeout_s=200)
        data = (folder / "m.vmfb").read_bytes()
        assert b".target sm_90a" in data and b".target sm_80" in data
    else:
        with triton_sources():
            text = import_model(model, "cuda").text
    iree_compile(text, folder / "m.stream", CUDA, phase="stream", timeout_s=200)
    return (folder / "m.stream").read_text()
