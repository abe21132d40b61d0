"""Triton kernels that read K and V as they are kept, as integers or by an index, and heads of several tiles: how integers are
widened, and what compiled programs hold. Their numbers: test_triton_kernel.py."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir
import pytest

from onnx_fa.forms.plain import plain_model
from onnx_fa.iree.compile import compile_model
from onnx_fa.kernels.choose import emit_kernel
from onnx_fa.kernels.plan.folding import fold_queries
from onnx_fa.kernels.triton import ptx
from onnx_fa.kernels.triton.columns import parts_of
from onnx_fa.kernels.triton.config import SHARED_BYTES, TritonConfig
from onnx_fa.kernels.triton.expressions import Block
from onnx_fa.kernels.triton.module import program_of
from onnx_fa.kernels.triton.overlapped import can_overlap
from onnx_fa.kernels.triton.source import AttentionSource
from onnx_fa.kernels.triton.tiles import default_config
from onnx_fa.kernels.triton.widening import TOGETHER, halves_of
from onnx_fa.spec.attention import AttentionSpec
from onnx_fa.spec.cases import case, packed
from onnx_fa.spec.dtypes import NUMPY
from onnx_fa.spec.target import parse_target
from onnx_fa.spec.terms import Gathered, IntegerType, Quantized
from tests.match.test_gathered import _PAGED, _model
from tests.support.triton_sources import triton_sources

CUDA = parse_target("cuda")
Words = npt.NDArray[np.uint32]


def bytes_of(x: Words) -> npt.NDArray[np.uint8]:
    return np.ascontiguousarray(x).view(np.uint8).reshape(-1, 4)


def permuted(a: Words, b: Words, order: Words) -> Words:
    sources = np.concatenate([bytes_of(a), bytes_of(b)], axis=1)
    picks = [(int(order) >> 4 * i) & 7 for i in range(4)]
    return np.ascontiguousarray(sources[:, picks]).view(np.uint32).reshape(-1)


def less(a: Words, b: Words) -> Words:
    return (a.view(np.float16) - b.view(np.float16)).view(np.uint32)


OPS: dict[str, Callable[..., Words]] = {
    "mov.b32": lambda a: a,
    "and.b32": np.bitwise_and,
    "xor.b32": np.bitwise_xor,
    "shr.u32": np.right_shift,
    "prmt.b32": permuted,
    "sub.f16x2": less,
}


def executed(text: str, sources: list[Words], results: int) -> list[npt.NDArray[np.float16]]:
    """The results of the PTX of an inline_asm_elementwise whose operand comes in so many registers."""
    registers = {f"${results + i}": x for i, x in enumerate(sources)}

    def value(name: str) -> Words:
        if name in registers:
            return registers[name]
        found = np.array(int(name, 16 if name.startswith("0x") else 10), np.uint32)
        return found if name.startswith("0x") and len(name) < 10 else np.broadcast_to(found, sources[0].shape).copy()

    for line in (x.strip() for x in text.strip("{} ").split(";")):
        if line and not line.startswith(".reg"):
            op, _, rest = line.partition(" ")
            result, *read = (x.strip() for x in rest.split(","))
            registers[result] = OPS[op](*map(value, read))
    return [registers[f"${i}"].view(np.float16).reshape(-1, 2) for i in range(results)]


@pytest.mark.parametrize("words", [False, True])
@pytest.mark.parametrize("dtype", ["i8", "u8", "i4", "u4"])
def test_every_integer_is_widened_exactly(dtype: IntegerType, words: bool) -> None:
    bits = int(dtype[1:])
    low = 0 if dtype[0] == "u" else -(1 << bits - 1)
    whole = np.arange(low, low + (1 << bits))
    if bits == 4:
        whole = np.stack(np.meshgrid(whole, whole), -1).reshape(-1)
    stored = packed(whole.astype(NUMPY[dtype])).view(np.uint8)
    block = Block()
    together = TOGETHER if words else 8 // bits
    halves_of(block.let, "x", dtype, "f16", together)
    text = re.search(r'"({.*?})"', "".join(block.lines))
    assert text is not None
    sources = stored.view(np.uint32)
    pairs = 1 if words else 2
    results = executed(text[1], [sources[::2], sources[1::2]] if words and bits == 8 else [sources], pairs * together)
    tiles = [np.concatenate(results[i : i + pairs], axis=1).reshape(-1) for i in range(0, len(results), pairs)]
    np.testing.assert_array_equal(np.stack(tiles, -1).reshape(-1), whole)


def test_tiles_of_a_head() -> None:
    """Every column is in one tile, whatever the width; those of bytes are in the tile of their half."""
    for width in (1, 16, 33, 256, 257, 320, 512, 576, 1024):
        for single in (False, True):
            columns = [c for part in parts_of("od", width, together=1, single=single) for c in part.columns]
            assert [c.first + i for c in columns for i in range(c.many)] == list(range(width))
            assert all(c.padded <= 256 for c in columns) and len({c.name for c in columns}) == len(columns)
    for width, together in ((2, 2), (20, 2), (256, 4), (320, 4)):
        (first, *_) = parts = parts_of("ov", width, together=together, single=False)
        found = [c.first + c.step * i for part in parts for c in part.columns for i in range(c.many)]
        assert sorted(found) == list(range(width)) and [c.step for c in first.columns] == together * [together]


def stored(**changes: Any) -> AttentionSpec:
    base = {"dtype": "f16", "batch": (1,), "Hq": 8, "Sq": 1, "Skv": 4096, "D": 128, "Dv": 128}
    return case("x", **base | changes).spec


TOKEN = (1, 2, 4096, 1)
KINDS: dict[str, dict[str, Any]] = {
    "i8": {"k_quant": Quantized("i8", TOKEN), "v_quant": Quantized("i8", TOKEN)},
    "i4": {"k_quant": Quantized("i4", (1, 2, 4096, 4)), "v_quant": Quantized("i4", TOKEN)},
    "pages": {"gathered": Gathered(8192, "i32"), "k_layout": (0, 2, 1, 3), "v_layout": (0, 2, 1, 3)},
    "wide": {"D": 320, "Dv": 512},
}


@pytest.mark.parametrize("name", KINDS)
def test_nothing_is_copied(name: str, tmp_path: Path) -> None:
    """K and V go from where they are kept into a kernel, which no other dispatch precedes, and no buffer is as large as either."""
    spec = stored(**KINDS[name], masks=())
    # What IREE does around a kernel is seen without Triton's code, of which one case has a real one.
    with nullcontext() if name == "i4" else triton_sources():
        assert emit_kernel(spec, CUDA).body == "triton"
        model = _model(_PAGED) if name == "pages" else ir.to_proto(plain_model(spec))  # pages as a graph says it
        done = compile_model(model, tmp_path / "m.vmfb", CUDA)
    (site,) = done.sites
    # The parts of other heads than those of pages are more than the last workgroup combines.
    assert not done.misses and site.fused and site.dispatches == (1 if name == "pages" else 2)
    if name != "pages":
        assert site.largest_buffer_bytes is not None and site.largest_buffer_bytes < 2 * 2 * 4096 * 128


def test_what_is_loaded() -> None:
    """Bytes, as copies to shared memory that do not wait; of an index first the index; queries again where they are few."""
    config = TritonConfig(16, 64, 4, 3, splits=4)
    text = {n: AttentionSource(fold_queries(stored(**x)), config, "f").program().text for n, x in KINDS.items()}
    assert text["i8"].count("inline_asm_elementwise") == text["i4"].count("inline_asm_elementwise") == 2
    assert text["i4"].count("tl.dot") == 6 and text["wide"].count("tl.dot") == 4
    assert text["pages"].count("tl.load(rows") == 0 and re.search(r"x\d+ = rows\b", text["pages"])
    wide = AttentionSource(stored(**KINDS["wide"], Sq=256), TritonConfig(64, 32, 8, 2), "f").program().text
    assert "zero = " not in wide  # Hopper's products read queries from shared memory
    code = ptx.compile_program(program_of(fold_queries(stored(**KINDS["i8"])), config, "f", 90), 90, 4, 3).text
    assert "prmt.b32" in code and "sub.f16x2" in code and "cvt.rn.f16.s" not in code and "cp.async" in code


def test_other_forms_decline() -> None:
    plain = stored(Sq=256)
    assert can_overlap(plain)
    for changes in KINDS.values():
        assert not can_overlap(dataclasses.replace(plain, **changes))


@pytest.mark.parametrize("dtype", ["f16", "bf16", "f32"])
@pytest.mark.parametrize("arch", [90, 80])
def test_wide_heads_have_tiles(dtype: str, arch: int) -> None:
    """The accumulators of 8 warps and the queries are within registers and shared memory."""
    for D, Dv, Sq in ((320, 320, 1), (512, 512, 1024), (576, 512, 1024), (1024, 1024, 1024)):
        spec = stored(dtype=dtype, D=D, Dv=Dv, Sq=Sq)
        config = default_config(fold_queries(spec), arch)
        assert config.BM * Dv <= 128 * 32 * config.warps
        size = 4 if dtype == "f32" else 2
        if arch == 90:  # elsewhere smaller ones may take their place
            assert size * (config.BM * D + config.BN * (D + Dv)) <= SHARED_BYTES[arch]
