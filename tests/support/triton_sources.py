"""Triton's source in the place of what it compiles to, for tests of what becomes a site: a compilation takes seconds."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from onnx_fa.kernels.triton import (
    channel_norm,
    fused_linear,
    linear,
    norm,
    ptx,
    recurrent,
    rotate,
    sequence,
    token_sums,
    window,
)
from onnx_fa.kernels.triton.program import Program
from onnx_fa.processes import DEFAULT, Limits


def _source(program: Program, arch: int, warps: int, stages: int, limits: Limits = DEFAULT) -> ptx.Compiled:
    text = f"// {arch} {warps} {stages}\n{program.text}"
    return ptx.Compiled(program.entry, text, warps, 0, 0)


def _forget() -> None:
    """Kernels that are remembered hold what was in use when they were made."""
    products = (linear.emit_linear, linear._compiled, fused_linear.emit_fused)
    windows = (window.emit_window, sequence.emit_sequence, channel_norm.emit_channels)
    others = (rotate.emit_rotated, token_sums.emit_token_sums, recurrent.emit_steps)
    for made in (*products, *windows, norm.emit_norm, *others):
        made.cache_clear()


@contextmanager
def triton_sources() -> Iterator[None]:
    """Within it nothing is compiled: every kernel that Triton's source can be written for is there, whether Triton is installed or
    not, and fits every GPU."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ptx, "compile_program", _source)
        patch.setattr(ptx, "available", lambda: True)
        _forget()
        try:
            yield
        finally:
            _forget()
