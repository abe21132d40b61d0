"""Linear sites by Triton: their numbers in Triton's interpreter, their code, and the functions that programs call (no GPU
needed)."""

from __future__ import annotations

import re
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from onnx_fa.errors import UnsupportedError
from onnx_fa.iree.compiler import iree_compile
from onnx_fa.kernels.mlir.text import element_type, tensor_type
from onnx_fa.kernels.triton import ptx
from onnx_fa.kernels.triton.few_source import FewConfig
from onnx_fa.kernels.triton.linear import _compiled, _tiles, _widest, emit_linear
from onnx_fa.kernels.triton.linear_bits import FewBitsSource, bytes_of_word, few_bits_config
from onnx_fa.kernels.triton.linear_few import few_config
from onnx_fa.kernels.triton.linear_source import LinearConfig, LinearSource
from onnx_fa.kernels.triton.linear_tiles import all_measured, measured_tiles
from onnx_fa.spec.expr import SCORE, Apply, Tensor
from onnx_fa.spec.fused_linear import FusedLinear
from onnx_fa.spec.linear import Bits, LinearSpec, biased, linear_name, multiply, unpacked, weight_of
from onnx_fa.spec.target import parse_target
from onnx_fa.spec.terms import TensorArg
from tests.support.interpreted import distances_of
from tests.support.linear_cases import CASES, FUSED, SIZES, bound, draw
from tests.support.triton_sources import triton_sources

ROOT = Path(__file__).parents[2]
CUDA = parse_target("cuda")
TOLERANCE = {"f32": 3e-7, "f16": 4e-4}
"""Of sums in f32 that are rounded once; f16 rounds weights of a few bits, too."""


def test_numbers() -> None:
    """The source, run in the interpreter, is within its rounding of float64."""
    types = {
        name: spec.dtype for name, spec in CASES.items() if "bf16" not in spec.operand_dtypes and not spec.is_of_bytes
    }
    types |= {name: spec.product.dtype for name, spec in FUSED.items()}
    found = distances_of("linear_interpreter", types)
    assert {n: d for n, d in found.items() if not d <= TOLERANCE[types[n]]} == {}


def test_meaning() -> None:
    """The reference against numbers that were computed one by one."""
    bits = Bits(4, 4, "f32", "packed")
    spec = biased(LinearSpec((1,), 8, 2, "f32", True, bits))
    packed = np.array([[0x10, 0x32, 0x54, 0x76], [0x98, 0xBA, 0xDC, 0xFE]], np.uint8)
    assert unpacked(packed, bits)[1].tolist() == [8, 9, 10, 11, 12, 13, 14, 15]
    scale, zero = np.array([[1, 2], [0.5, 1]], np.float32), np.array([[0x21], [0x43]], np.uint8)
    x, b = np.arange(8, dtype=np.float32)[None], np.array([1, -1], np.float32)
    first = sum(k * ((k - 1) * 1 if k < 4 else (k - 2) * 2) for k in range(8))
    second = sum(k * ((8 + k - 3) * 0.5 if k < 4 else (8 + k - 4) * 1) for k in range(8))
    assert multiply(spec, [x, packed, scale, zero, b]).tolist() == [[first + 1, second - 1]]
    plain = draw(CASES["odd_transposed"], (5,))
    assert np.array_equal(weight_of(CASES["odd_transposed"], plain), plain[1].T.astype(np.float64))


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"bits": Bits(3, 32, "f32"), "transposed": True}, "bits=3"),
        ({"bits": Bits(4, 48, "f32"), "transposed": True}, "block=48"),
        ({"bits": Bits(4, 32, "f32")}, "by rows"),
        ({"N": 0}, "64 x 0"),
        ({"parts": (16, 8)}, "of 32 columns"),
        ({"parts": (32,)}, "of 32 columns"),
        ({"parts": (32, 0)}, "of 32 columns"),
        ({"zero": True}, "a zero point of f32"),
        ({"dtype": "u8", "K": 62, "panel": 32}, "fours of 62"),
        ({"then": Tensor(0), "tensors": (TensorArg(()),)}, "neither"),
    ],
)
def test_what_is_no_site(changes: dict[str, object], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        LinearSpec(**{"lead": (4,), "K": 64, "N": 32, "dtype": "f32"} | changes)  # type: ignore[arg-type]


def _module(spec: LinearSpec) -> str:
    """A module whose function `site` is the site."""
    types = [tensor_type(s, element_type(d)) for s, d in zip(spec.operand_shapes, spec.operand_dtypes, strict=True)]
    results, names = [tensor_type(shape, dtype) for shape, dtype in spec.results], [f"%a{i}" for i in range(len(types))]
    result = ", ".join(results)
    arguments = ", ".join(f"{n}: {t}" for n, t in zip(names, types, strict=True))
    call = (
        f"%r:{len(results)} = util.call @{linear_name(spec)}({', '.join(names)}) : ({', '.join(types)}) -> ({result})"
    )
    return "\n".join(
        [
            *emit_linear(spec).values(),
            f"func.func @site({arguments}) -> ({result}) {{",
            call,
            f"return {', '.join(f'%r#{i}' for i in range(len(results)))} : {result}",
            "}",
        ]
    )


@pytest.mark.parametrize(
    ("name", "dispatches"),
    [
        ("one_row", 1),
        ("dynamic", 1),
        ("bits4_zeros", 1),
        ("transposed_bias", 1),
        ("parts", 1),
        ("parts_row", 1),
        ("parts_dynamic", 1),
    ],
)
def test_modules(name: str, dispatches: int, tmp_path: Path) -> None:
    """One dispatch a call, and no choice of the program, which would cut it: of rows that only a run knows the kernel has two
    forms. Nothing is copied, and a weight of a few bits is never a tensor of floats. That is seen of Triton's source too: of some
    the module has both codes."""
    spec, compiled = CASES[name], name in ("one_row", "bits4_zeros", "parts_dynamic")
    with nullcontext() if compiled else triton_sources():
        module = _module(spec)
    iree_compile(module, tmp_path / "m.stream", CUDA, phase="stream", timeout_s=120)
    text = (tmp_path / "m.stream").read_text()
    assert len(re.findall(r"stream\.cmd\.dispatch", text)) == dispatches and "stream.cmd.copy" not in text
    assert "cf.cond_br" not in text and "scf.if" not in text
    assert ("stream.resource<variable>" in text) == (spec.rows in (1, 2) and few_config(spec).splits > 1)
    assert f"{spec.N * spec.K * 2}" not in text or spec.bits is None
    if compiled:
        iree_compile(module, tmp_path / "m.vmfb", CUDA, timeout_s=120)
        data = (tmp_path / "m.vmfb").read_bytes()
        assert b".target sm_90a" in data and b".target sm_80" in data


def test_code() -> None:
    """Hopper multiplies halves by its own instructions, and f32 as six products of bf16; a row without tensor cores."""
    half, single = LinearSpec((512,), 256, 256, "f16"), LinearSpec((512,), 256, 256, "f32")
    for spec, config, products, count in (
        (half, LinearConfig(128, 128, 64, 8, 3), "", r"wgmma.mma_async.sync.aligned.m64n\d+k16.f32.f16.f16"),
        (single, LinearConfig(64, 64, 32, 4, 2), "bf16x6", r"wgmma.mma_async.sync.aligned.m64n\d+k16.f32.bf16.bf16"),
    ):
        code = ptx.compile_program(LinearSource(spec, config, "f", products).program(), 90, config.warps, config.stages)
        assert re.search(count, code.text) and "cp.async" in code.text
    row = "".join(emit_linear(LinearSpec((1, 1), 1024, 512, "f16")).values())
    codes = [bytes.fromhex(x).decode() for x in re.findall(r'dense<"0x([0-9a-f]+)"', row)]
    assert len(codes) == 2 and all("mma" not in c and "fma.rn.f32" in c for c in codes)


def test_tiles_belong_to_one_result() -> None:
    """Tiles are narrowed until they begin where results begin; results that begin within the narrowest have no kernel."""
    assert [
        _widest(LinearSpec((512,), 64, N, "f16", parts=p)) for N, p in ((96, (48, 48)), (3072, (2048, 512, 512)))
    ] == [16, 512]
    with pytest.raises(UnsupportedError, match="begin within tiles of 16"):
        emit_linear(LinearSpec((512,), 64, 96, "f16", parts=(40, 56)))


def test_measured_tiles() -> None:
    """Halves of many rows have the tiles of the nearest product that was measured; K is cut where there are few tiles, known
    rows, and on both architectures alike."""
    best = {(m.rows, m.K, m.N): m.tiles[0] for m in all_measured()}
    for (rows, K, N), tiles in best.items():
        for dtype in ("f16", "bf16"):
            assert measured_tiles(LinearSpec((rows,), K, N, dtype), rows)[0] == tiles  # type: ignore[arg-type]
    assert measured_tiles(LinearSpec((4096,), 4096, 14336, "f16"), 4096)[0] == best[2048, 4096, 4096]
    assert measured_tiles(LinearSpec((512,), 768, 768, "f32"), 512) == []
    assert measured_tiles(LinearSpec((512,), 768, 768, "f16", True, Bits(4, 32, "f16")), 512) == []
    cut, whole, free = (LinearSpec((rows,), 3072, 768, "f16") for rows in (200, 600, "s"))
    for spec, splits in ((cut, 4), (whole, 1), (free, 1)):
        assert {tiles.splits for arch in (90, 80) for tiles in _tiles(spec, arch)} == {splits}


def test_a_long_product_is_cut(tmp_path: Path) -> None:
    """One dispatch, whose parts of K are added by the last workgroup of a tile: with a counter that outlives the call."""
    spec = biased(LinearSpec((197,), 3072, 768, "f16"))
    with triton_sources():
        module = _module(spec)
    iree_compile(module, tmp_path / "m.stream", CUDA, phase="stream", timeout_s=120)
    text = (tmp_path / "m.stream").read_text()
    assert len(re.findall(r"stream\.cmd\.dispatch", text)) == 1 and "stream.resource<variable>" in text


def test_splits_fill_a_gpu() -> None:
    """Narrow weights are cut along K; no part is without a step."""
    assert few_config(LinearSpec((1,), 4096, 1024, "f32")).splits == 16
    assert few_config(LinearSpec((1,), 1024, 128_000, "f32")).splits == 1
    short = few_config(LinearSpec((1,), 200, 64, "f16"))
    assert short.splits <= -(-200 // short.BK)


def test_names() -> None:
    """Equal specs share a function, others do not."""
    assert len({linear_name(spec) for spec in CASES.values()}) == len(CASES)
    assert linear_name(CASES["plain"]) == linear_name(LinearSpec((48,), 64, 96, "f32"))
    assert all(bound(spec, SIZES[0]) for spec in CASES.values())


def test_tiles_of_few_bits() -> None:
    """A thread has a word of 8 bytes, or what lies in a block, of each of 8 columns at each step. Long rows, and
    those of many columns, have fewer threads, short ones no more than they need."""
    bits = Bits(4, 32, "f32")
    assert few_bits_config(LinearSpec((1,), 1536, 4096, "f32", True, bits)) == FewConfig(8, 2048, 1, 4)
    assert few_bits_config(LinearSpec((1,), 12800, 4096, "f32", True, bits)) == FewConfig(8, 1024, 1, 2)
    assert few_bits_config(LinearSpec((1,), 1536, 32000, "f32", True, bits)) == FewConfig(8, 512, 1, 1)
    assert few_bits_config(LinearSpec((1,), 4096, 1536, "f32", True, bits)).BN == 4
    assert few_bits_config(LinearSpec((1,), 64, 4096, "f32", True, bits)) == FewConfig(8, 64, 1, 1)
    sizes = {Bits(4, 16, "f32"): 8, Bits(4, 48, "f32"): 8, Bits(8, 128, "f32"): 8, Bits(2, 16, "f32"): 4}
    assert {b: bytes_of_word(b) for b in sizes} == sizes


def test_numbers_of_words_are_one_instruction_each() -> None:
    """PTX has an instruction for each number of a word; steps are written out while a thread's words fit its registers,
    else two of three, and the third behind the loop."""
    spec = FusedLinear(LinearSpec((1,), 1536, 64, "f32", True, Bits(4, 32, "f32")))
    for config, joined in ((FewConfig(8, 2048, 1, 4), 16), (FewConfig(8, 512, 1, 1), 16)):
        program = FewBitsSource(spec, config, "few").program()
        assert program.text.count("lop3.b32") == joined
        assert ("loop_unroll_factor=2" in program.text) == (config.BK == 512)
        text = ptx.compile_program(program, 90, config.warps, 1).text
        assert text.count("lop3.b32") == joined * config.BN * (1 if config.BK == 2048 else 3)


def test_forms_of_halves() -> None:
    """Of halves parts of K pay for a few rows alone. Tiles grow with the rows, to tall ones where but a bias follows, and
    all have as many threads."""
    residual = replace(biased(LinearSpec(("b", "s"), 3072, 768, "f16")), then=Apply("Add", Tensor(0), SCORE))
    residual = replace(residual, tensors=(TensorArg(("b", "s", 768), "f16"),))
    long, wide = (_compiled(spec)[1] for spec in (residual, biased(LinearSpec(("b", "s"), 768, 3072, "f16"))))
    few, low = (16, 16, 16, 12), [(320, 64, 32, 1), (704, 64, 64, 1)]
    assert [(most, c.BM, c.BN, c.splits) for most, c in long[0].smaller] == [few, *low]
    few, low = (16, 16, 16, 3), [(128, 64, 64, 1), (640, 64, 128, 1)]
    assert [(most, c.BM, c.BN, c.splits) for most, c in wide[0].smaller] == [few, *low]
    assert [(c.config.BM, c.config.BN) for c in (*long, *wide)] == [(64, 128), (64, 128), (128, 128), (64, 128)]
    for code in (*long, *wide):
        assert {c.warps for c in code.forms} == {4} and code.largest_part == 256
    some = _compiled(LinearSpec(("b", 197), 768, 768, "f16"))[1][0]
    assert [most for most, _ in some.smaller] == [320, 704, 2816] and some.most_splits == 1
    # Columns of three results, of which no tile of 64 is one's alone.
    parts = _compiled(LinearSpec(("b", "s"), 96, 288, "f16", parts=(96, 96, 96)))[1][0]
    assert [(c.BM, c.BN) for c in parts.forms] == [(64, 32), (16, 16)]


def test_forms_of_f32() -> None:
    """Of f32 there are three: for few rows, for those that leave multiprocessors idle in taller tiles, and for more. Rows that each
    call has take those that are for fewer away. Known ones have one form, whose K has as many parts as fill a GPU."""
    free, image, tall = (
        _compiled(LinearSpec(lead, 768, 768, "f32"))[1][0] for lead in (("b", "s"), ("b", 197), ("b", 9000))
    )
    assert [most for most, _ in free.smaller] == [16, 1200] and [most for most, _ in image.smaller] == [1200]
    assert {(c.BM, c.BK, c.stages) for _, c in free.smaller} == {(16, 32, 8), (32, 32, 4)}
    assert tall.smaller == () and tall.config.splits == 1 and image.config.splits == free.config.splits == 6
    few, low, high = (_tiles(LinearSpec((rows,), 768, 768, "f32"), 90)[0] for rows in (16, 197, 4000))
    assert [(c.BM, c.splits) for c in (few, low, high)] == [(16, 1), (32, 2), (128, 1)]
    assert _tiles(LinearSpec((256,), 640, 160, "f32"), 90)[0].BN == 32
    (vocabulary,) = {tiles.BM for tiles in _tiles(LinearSpec(("b", "s"), 768, 50257, "f32"), 90)[:1]}
    assert vocabulary == 128 and len(_compiled(LinearSpec(("b", "s"), 768, 50257, "f32"))[1][0].smaller) == 1
