"""What one dispatch rounds for products with weights of a few bits: rows brought to a mean square of one, and gated products."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from onnx_fa.iree.compiler import iree_compile
from onnx_fa.iree.run import load_module
from onnx_fa.kernels.cpu.bits_dots import name_of_rounded, rounded_rows, rounded_texts
from onnx_fa.kernels.cpu.bits_gated import GatedBits
from onnx_fa.kernels.cpu.bits_rounded import RoundedNorm, RoundedRows, rows_name, rows_texts
from onnx_fa.kernels.cpu.bits_spec import BitsProduct
from onnx_fa.kernels.mlir.operand import Operand
from onnx_fa.spec.expr import SCORE, Apply, Tensor
from onnx_fa.spec.target import parse_target
from tests.kernels.test_bits_product import as_given, draw, multiply
from tests.support.check_text import check_text
from tests.support.kernel_harness import UNVERIFIED

HOST = parse_target("cpu-host")
needs_bytes = pytest.mark.skipif(not HOST.multiplies_bytes, reason="this processor has neither AVX2 nor AVX-512")
Array = np.ndarray[Any, Any]

SWIGLU = Apply("Mul", Apply("Mul", SCORE, Apply("Sigmoid", SCORE)), Tensor(0))
PLAIN = RoundedRows(1, 96, 32, 4, False)
NORMS = [
    (RoundedNorm(PLAIN, 1e-6), 1),
    (RoundedNorm(RoundedRows(None, 256, 16, 4, True), 1e-5, skip=True), 5),
    (RoundedNorm(RoundedRows(None, 128, 64, 8, False), 0.0, skip=True, shown=True), 7),
]
ONE = BitsProduct(1, 128, 96, 32, 4, "f32", rounded=True)
GATED = [
    (GatedBits(ONE, SWIGLU, RoundedRows(1, 128, 32, 4, False)), 1),
    (GatedBits(replace(ONE, rows=None), SWIGLU, RoundedRows(None, 128, 64, 4, True)), 5),
    (
        GatedBits(
            BitsProduct(None, 96, 128, 16, 4, "f16", "packed", True),
            Apply("Mul", Tensor(0), Apply("Relu", SCORE)),
            RoundedRows(None, 96, 16, 8, False),
        ),
        4,
    ),
]


def call_all(
    functions: Sequence[tuple[str, Sequence[Operand], Sequence[Operand]]], texts: dict[str, str], folder: Path
) -> Callable[[str], Callable[..., list[Array]]]:
    """A module with these functions, by name, and what calls one of them."""
    public = []
    for name, operands, outputs in functions:
        args = ", ".join(f"%a{i}: {x.type}" for i, x in enumerate(operands))
        values, types = ", ".join(f"%a{i}" for i in range(len(operands))), ", ".join(x.type for x in operands)
        made, given = ", ".join(f"%y#{i}" for i in range(len(outputs))), ", ".join(y.type for y in outputs)
        public.append(
            f"util.func public @run_{name}({args}) -> ({given}) {{\n%y:{len(outputs)} = util.call @{name}({values}) : "
            f"({types}) -> ({given})\nutil.return {made} : {given}\n}}"
        )
    path = folder / "m.vmfb"
    iree_compile("\n".join(["module {", *texts.values(), *public, "}"]), path, HOST, flags=(UNVERIFIED,), timeout_s=120)
    return lambda name: load_module(path, function=f"run_{name}")


def check_rounded(x: RoundedRows, got: Sequence[Array], want: Array) -> None:
    """Integers, scales and first sums of these numbers: half a step away from them at most, and sums of just those integers."""
    q, scale, begin = got
    whole = np.empty((len(want), x.K), np.float64)
    for place in range(x.places):
        whole[:, place :: x.places] = q[:, place]
    blocks = whole.reshape(len(want), x.blocks, x.block)
    most = np.abs(want.reshape(blocks.shape)).max(-1)
    np.testing.assert_allclose(scale, most / 127, rtol=3e-6)
    step = np.repeat(scale.astype(np.float64), x.block, -1)
    assert (np.abs(whole * step - want) <= 0.5 * step * (1 + 1e-4) + 1e-6 * np.abs(want)).all()
    assert (np.abs(blocks).max(-1) == np.where(most == 0, 0, 127)).all()
    sums = begin.reshape(len(want), x.blocks, x.sums)
    assert (sums[..., 0] == blocks.sum(-1) * (1 if x.zeros else -x.middle)).all() and not sums[..., 1:].any()


@needs_bytes
def test_norms(tmp_path: Path) -> None:
    texts = {key: text for norm, _ in NORMS for key, text in norm.texts().items()} | rows_texts(PLAIN)
    functions = [(norm.name, norm.operands, norm.outputs) for norm, _ in NORMS]
    call = call_all([*functions, (rows_name(PLAIN), [PLAIN.x], PLAIN.operands)], texts, tmp_path)
    rng = np.random.default_rng(5)
    for norm, rows in NORMS:
        x = norm.rounded
        operands = [rng.standard_normal((rows, x.K)).astype(np.float32) for _ in range(1 + norm.skip)]
        operands[0][rows // 2] *= 1e15  # squares near f32's largest
        for operand in operands:
            operand[:, : x.block] = 0
        factor = rng.standard_normal(x.K).astype(np.float32)
        got = call(norm.name)(*operands, factor)
        total = np.sum(operands, 0, dtype=np.float32).astype(np.float64)
        want = total / np.sqrt((total**2).mean(-1, keepdims=True) + norm.epsilon) * factor
        check_rounded(x, got[:3], want)
        if norm.shown:
            np.testing.assert_array_equal(got[3], total)
    x = rng.standard_normal((1, PLAIN.K)).astype(np.float32)
    check_rounded(PLAIN, call(rows_name(PLAIN))(x), x.astype(np.float64))


@needs_bytes
def test_gated(tmp_path: Path) -> None:
    """Also that products of what was rounded before are those that round themselves."""
    texts: dict[str, str] = {}
    functions = []
    for gated, _ in GATED:
        texts |= gated.texts(HOST) | rows_texts(rounded_rows(gated.product))
        texts |= rounded_texts(gated.product, HOST, given=True)
        x = rounded_rows(gated.product)
        functions += [
            (rows_name(x), [x.x], x.operands),
            (gated.name, gated.operands, gated.outputs),
            (name_of_rounded(gated.product), [*x.operands, *gated.product.weight], [gated.product.y]),
        ]
    call = call_all(list({f[0]: f for f in functions}.values()), texts, tmp_path)
    for gated, rows in GATED:
        p = gated.product
        x, *gate = draw(p, rows)
        _, *up = draw(p, rows)
        up[1] = up[1][::-1].copy()
        given = [as_given(*w) for w in (gate, up)]
        rounded = call(rows_name(rounded_rows(p)))(x)
        a, b = multiply(p, x, *gate), multiply(p, x, *up)
        (alone,) = call(name_of_rounded(p))(*rounded, *given[0])
        assert np.abs(alone - a).max() <= 1e-6 * np.abs(a).max()
        with np.errstate(over="ignore"):
            want = b * np.maximum(a, 0) if gated.made.bits == 8 else a / (1 + np.exp(-a)) * b
        check_rounded(gated.made, call(gated.name)(*rounded, *given[0], *given[1]), want)


def test_what_has_no_gated_kernel() -> None:
    """Blocks that no workgroup computes alone, other rows, and a processor without the instruction."""
    (gated, _), target = GATED[0], parse_target("cpu-avx2")
    assert gated.fits(target) and not gated.fits(parse_target("cpu-neon"))
    assert not replace(gated, made=replace(gated.made, block=128)).fits(target)
    assert not replace(gated, made=replace(gated.made, K=64)).fits(target)
    assert not replace(gated, made=replace(gated.made, rows=None)).fits(target)
    assert not replace(gated, product=replace(ONE, rounded=False)).fits(target)


def test_text() -> None:
    norm = RoundedNorm(replace(PLAIN, rows=None), 1e-6, skip=True, shown=True)
    check_text("rounded_norm.mlir", "".join(norm.texts().values()))
    target = replace(parse_target("cpu-avx512"), byte_dots=True)
    check_text("gated_bits.mlir", "".join(GATED[0][0].texts(target).values()))
