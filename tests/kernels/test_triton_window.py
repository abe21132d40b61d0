"""Convolutions by Triton: their numbers in Triton's interpreter, their code, and the functions that programs call (no GPU)."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from onnx_fa.errors import UnsupportedError
from onnx_fa.iree.compile import iree_compile
from onnx_fa.kernels.cpu.window_body import operands_of
from onnx_fa.kernels.triton import ptx
from onnx_fa.kernels.triton.linear_source import LinearConfig
from onnx_fa.kernels.triton.window import _smaller, _tiles, emit_window, takes
from onnx_fa.kernels.triton.window_source import WindowSource
from onnx_fa.spec.target import parse_target
from onnx_fa.spec.windows import WindowSpec
from tests.support.interpreted import distances_of
from tests.support.triton_sources import triton_sources
from tests.support.window_cases import GPU_CASES, GPU_SOUNDS, conv

ROOT = Path(__file__).parents[2]
CUDA = parse_target("cuda")


def test_numbers() -> None:
    """The source, run in the interpreter, is within the type's rounding of float64, with K in one part and in several."""
    found = distances_of("window_interpreter")
    types = {name: spec.dtype for name, spec in GPU_CASES.items()}
    types |= {f"sound: {name}": spec.dtype for name, spec in GPU_SOUNDS.items()}
    bounds = {"f32": 3e-7, "f16": 2**-11}
    assert set(found) == set(types) and {n: d for n, d in found.items() if not d <= bounds[types[n]]} == {}


def module_of(spec: WindowSpec) -> str:
    """A module whose function `site` is the site."""
    operands = operands_of(spec)
    arguments = ", ".join(f"{x.name}: {x.type}" for x in operands)
    names, types = ", ".join(x.name for x in operands), ", ".join(x.type for x in operands)
    y = re.search(r"-> (tensor<[^>]*>) {", emit_window(spec)[spec.name])
    assert y
    return "\n".join(
        [
            *emit_window(spec).values(),
            f"func.func @site({arguments}) -> {y[1]} {{",
            f"%r = util.call @{spec.name}({names}) : ({types}) -> {y[1]}",
            f"return %r : {y[1]}",
            "}",
        ]
    )


@pytest.mark.parametrize("name", ["free images", "colours", "groups", "depthwise", "activation"])
def test_modules(name: str, tmp_path: Path) -> None:
    """One dispatch a call, and nothing is copied or padded; of few places of many taps with a counter that outlives the call."""
    spec, compiled = GPU_CASES[name], name == "free images"
    if compiled:
        module = module_of(spec)
    else:
        with triton_sources():
            module = module_of(spec)
    iree_compile(module, tmp_path / "m.stream", CUDA, phase="stream", timeout_s=120)
    text = (tmp_path / "m.stream").read_text()
    assert len(re.findall(r"stream\.cmd\.dispatch", text)) == 1 and "stream.cmd.copy" not in text
    assert "cf.cond_br" not in text and ("stream.resource<variable>" in text) == (
        not spec.depthwise and name != "colours"
    )
    if compiled:
        iree_compile(module, tmp_path / "m.vmfb", CUDA, timeout_s=120)
        data = (tmp_path / "m.vmfb").read_bytes()
        assert b".target sm_90a" in data and b".target sm_80" in data


def test_code() -> None:
    """Hopper multiplies f32 as six products of bf16; a depthwise convolution has no tensor cores."""
    spec, config = conv(64, 64, (28, 28), (3, 3), pads=(1, 1, 1, 1)), LinearConfig(64, 64, 32, 4, 2)
    code = ptx.compile_program(WindowSource(spec, config, "w", "bf16x6").program(), 90, config.warps, config.stages)
    assert "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16" in code.text and "cp.async" in code.text
    depthwise = GPU_CASES["depthwise"]
    (tiles,) = _tiles(depthwise, 90)
    code = ptx.compile_program(WindowSource(depthwise, tiles, "w", "ieee").program(), 90, tiles.warps, tiles.stages)
    assert "mma" not in code.text and "fma.rn.f32" in code.text


def test_tiles() -> None:
    """Few places have low tiles and their K cut, the same way on both architectures; many have tall ones."""
    small, large = (
        conv(512, 512, (7, 7), (3, 3), images=None, pads=(1,) * 4),
        conv(64, 128, (256, 256), (3, 3), images=8),
    )
    assert {_tiles(small, arch)[0].splits for arch in (90, 80)} == {16}
    assert {_tiles(large, arch)[0].splits for arch in (90, 80)} == {1}
    assert (_tiles(large, 90)[0].BM, _tiles(large, 80)[0].BM, _tiles(small, 90)[0].BM) == (64, 64, 64)
    assert [(t.BM, t.BN, t.warps) for t in _tiles(large, 90)] == [(64, 128, 4), (64, 128, 4), (64, 64, 4)]
    narrow = conv(64, 160, (256, 256), (3, 3), images=8)
    assert (_tiles(narrow, 90)[0].BM, _tiles(narrow, 90)[0].BN) == (128, 64)
    assert [(most, tiles.BM) for most, tiles in _smaller(small, _tiles(small, 90)[0], 90)] == [(1800, 32)]
    one = replace(small, images=1)
    assert _tiles(one, 90)[0].BM == 32 and not _smaller(one, _tiles(one, 90)[0], 90)


@pytest.mark.parametrize(
    "spec",
    [
        replace(GPU_CASES["no pads"], x_last=False),
        replace(GPU_CASES["no pads"], panel=8),
        WindowSpec(2, 1, 16, 16, (9,), (3,), (1,), (1,), 16, last=True, x_last=True),
    ],
)
def test_others(spec: WindowSpec) -> None:
    assert not takes(spec)
    with pytest.raises(UnsupportedError, match="on CUDA"):
        emit_window(spec)
