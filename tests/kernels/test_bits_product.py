"""Products with weights of a few bits: every layout of scales and zero points, against float64."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from _pytest.mark.structures import ParameterSet

from onnx_fa.iree.compiler import iree_compile
from onnx_fa.iree.run import load_module
from onnx_fa.kernels.cpu.bits_product import can_multiply, product_texts
from onnx_fa.kernels.cpu.bits_spec import BitsProduct
from onnx_fa.spec.target import Target, foreign_cpu, parse_target
from tests.support.cpu_targets import cpu_targets, kind_of, marks_of_again
from tests.support.kernel_harness import UNVERIFIED

HOST = parse_target("cpu-host")
SHORT = replace(HOST, lanes=8, registers=16)
"""A processor with fewer and shorter registers."""
Array = np.ndarray[Any, Any]

FLOATS = [
    (BitsProduct(1, 64, 128, 32, 4, "f32"), 1),
    (BitsProduct(None, 72, 128, 16, 4, "f16", "packed"), 7),
    (BitsProduct(3, 40, 256, 32, 8, "f32", "f32"), 3),
    (BitsProduct(None, 130, 96, 32, 4, "f32"), 0),
]
SHORTER = [(BitsProduct(None, 40, 256, 64, 2, "f32", "packed"), 5)]
ROUNDED = [
    (BitsProduct(1, 64, 128, 32, 4, "f32", rounded=True), 1),
    (BitsProduct(None, 72, 256, 16, 4, "f16", "packed", rounded=True), 7),
    (BitsProduct(None, 72, 512, 256, 4, "f32", rounded=True), 9),
    (BitsProduct(2, 40, 256, 32, 8, "f32", "f32", rounded=True), 2),
    (BitsProduct(None, 64, 96, 32, 4, "f32", "packed", rounded=True), 3),
]
LARGEST = [
    (BitsProduct(3, 40, 1024, block, bits, "f32", zeros, rounded=True), 3)
    for block, bits, zeros in ((512, 4, ""), (512, 8, "f32"), (64, 4, ""), (128, 8, ""))
]
MANY = [
    (BitsProduct(None, 72, 128, 32, 4, "f16", "packed"), 130),
    (BitsProduct(20, 130, 288, 32, 4, "f32"), 20),
    (BitsProduct(70, 40, 512, 256, 4, "f32", "f32"), 70),
    (BitsProduct(9, 40, 192, 64, 2, "f32", "packed"), 9),
    (BitsProduct(33, 64, 160, 32, 8, "f32", "packed"), 33),
    (BitsProduct(5, 32, 144, 16, 4, "f32"), 5),
]
Products = list[tuple[BitsProduct, int]]


def numbers(p: BitsProduct, packed: Array) -> Array:
    """The integers of bytes (.., n) as (.., n * P)."""
    places = [(packed >> (p.bits * i)) & ((1 << p.bits) - 1) for i in range(p.places)]
    return np.stack(places, -1).reshape(*packed.shape[:-1], -1).astype(np.float64)


def multiply(p: BitsProduct, x: Array, weight: Array, scale: Array, zero: Array | None) -> Array:
    """In float64; a rounded x as the kernel's description says, its scales and inverses in f32."""
    if p.rounded:
        parts = x.reshape(len(x), p.blocks, p.block)
        most = np.abs(parts).max(-1, keepdims=True)
        inverse = np.where(most == 0, np.float32(0), np.float32(127) / np.where(most == 0, np.float32(1), most))
        columns = np.rint(parts * inverse) * (most / np.float32(127)).astype(np.float64)
    else:
        columns = x.astype(np.float64)
    zeros: Array | float = float(p.middle)
    if zero is not None:
        whole = numbers(p, zero)[:, : p.blocks] if p.zeros == "packed" else zero.astype(np.float64)
        zeros = whole[:, :, None]
    values = (numbers(p, weight).reshape(p.N, p.blocks, -1) - zeros) * scale.astype(np.float64)[:, :, None]
    return columns.reshape(len(x), p.K) @ values.reshape(p.N, p.K).T


def draw(p: BitsProduct, rows: int) -> tuple[Array, Array, Array, Array | None]:
    rng = np.random.default_rng(7)
    x = rng.standard_normal((rows, *p.x.shape[1:])).astype(np.float32)  # type: ignore[arg-type]
    if p.rounded and rows > 1:
        x[1, : p.block] = 0  # a block that has no largest number
    weight = rng.integers(0, 256, (p.N, p.K // p.places)).astype(np.uint8)
    scale = rng.standard_normal((p.N, p.blocks)).astype({"f32": np.float32, "f16": np.float16}[p.scales])
    if p.zeros == "packed":
        return x, weight, scale, rng.integers(0, 256, (p.N, -(-p.blocks // p.places))).astype(np.uint8)
    return x, weight, scale, rng.standard_normal((p.N, p.blocks)).astype(np.float32) if p.zeros else None


def as_given(*operands: Array | None) -> list[Array]:
    """The operands that there are as a module takes them: bytes have a sign there."""
    return [a.view(np.int8) if a.dtype == np.uint8 else a for a in operands if a is not None]


def build(products: Products, target: Target, folder: Path) -> Callable[[BitsProduct], Callable[..., list[Array]]]:
    """One module with a function for each product."""
    texts: dict[str, str] = {}
    public = []
    for p, _ in products:
        texts |= product_texts(p, target)
        types = [x.type for x in p.operands]
        args = ", ".join(f"%a{i}: {t}" for i, t in enumerate(types))
        values = ", ".join(f"%a{i}" for i in range(len(types)))
        call = f"%y = util.call @{p.name}({values}) : ({', '.join(types)}) -> {p.y.type}"
        head = f"util.func public @run_{p.name}({args}) -> {p.y.type} {{"
        public.append(f"{head}\n{call}\nutil.return %y : {p.y.type}\n}}")
    module = folder / "module.vmfb"
    text = "\n".join(["module {", *texts.values(), *public, "}"])
    iree_compile(text, module, target, flags=(UNVERIFIED,), timeout_s=120)
    return lambda p: load_module(module, function=f"run_{p.name}")


TRIED = {
    "floats": (FLOATS, HOST),
    "short": (SHORTER, SHORT),
    "rounded": (ROUNDED, HOST),
    "rounded_avx2": (ROUNDED, parse_target("cpu-avx2")),
    "rounded_avx512": (ROUNDED, parse_target("cpu-avx512")),
    "many": (MANY, HOST),
    "many_short": (MANY, SHORT),
}


def _tried() -> list[ParameterSet]:
    """Products again on a target that has the same kernels are left to --whole."""
    marks = marks_of_again([(products, kind_of(target)) for products, target in TRIED.values()])
    return [pytest.param(*x, id=name, marks=mark) for (name, x), mark in zip(TRIED.items(), marks, strict=True)]


@pytest.mark.parametrize(("products", "target"), _tried())
def test_products(products: Products, target: Target, tmp_path: Path) -> None:
    if why := foreign_cpu(target):
        pytest.skip(why)
    function = build(products, target, tmp_path)
    for p, rows in products:
        x, weight, scale, zero = draw(p, rows)
        got, want = function(p)(*as_given(x, weight, scale, zero))[0], multiply(p, x, weight, scale, zero)
        assert got.shape == want.shape
        assert np.abs(got - want).max(initial=0) <= 1e-6 * np.abs(want).max(initial=0), p.name


@pytest.mark.parametrize("name", cpu_targets("cpu-host", "cpu-avx2", "cpu-avx512"))
def test_sums_of_the_largest_numbers(name: str, tmp_path: Path) -> None:
    """No instruction cuts off a sum: all numbers of the weight are the largest or the least, and x's of one size."""
    target = parse_target(name)
    if why := foreign_cpu(target):
        pytest.skip(why)
    function = build(LARGEST, target, tmp_path)
    for p, rows in LARGEST:
        x = np.ones((rows, p.K), np.float32)
        x[1], x[2, ::2] = -1, -1
        weight = np.full((p.N, p.K // p.places), 255, np.uint8)
        weight[::3] = 0
        scale = np.ones((p.N, p.blocks), np.float32)
        zero = np.full((p.N, p.blocks), 3, np.float32) if p.zeros else None
        got, want = function(p)(*as_given(x, weight, scale, zero))[0], multiply(p, x, weight, scale, zero)
        assert np.abs(got - want).max() <= 1e-6 * np.abs(want).max(), p.name


def test_rows_choose(tmp_path: Path) -> None:
    """Where the rows are known at run time only both forms stand in a module, and no tile writes past the last row."""
    product = BitsProduct(None, 72, 288, 32, 4, "f16", "packed")
    assert list(product_texts(product, HOST)) == [f"{product.name}_{form}" for form in ("product", "many")] + [
        product.name
    ]
    function = build([(product, 0)], HOST, tmp_path)(product)
    for rows in [*range(18), 64, 65, 71, 129]:
        x, weight, scale, zero = draw(product, rows)
        if rows:
            x[rows // 2] = np.inf
        assert zero is not None
        got = function(x, weight.view(np.int8), scale, zero.view(np.int8))[0]
        with np.errstate(invalid="ignore"):
            want = multiply(product, x, weight, scale, zero)
        keep = np.arange(rows) != rows // 2
        assert got.shape == want.shape and not np.isfinite(got[~keep]).any()
        assert np.abs(got - want)[keep].max(initial=0) <= 1e-6 * np.abs(want[keep]).max(initial=0)


@pytest.mark.parametrize(
    ("product", "forms"),
    [
        (BitsProduct(4, 64, 128, 32, 4, "f32"), ["product"]),
        (BitsProduct(5, 64, 128, 32, 4, "f32"), ["many"]),
        (BitsProduct(None, 31, 128, 32, 4, "f32"), ["product"]),
        (BitsProduct(None, 64, 128, 8, 2, "f32"), ["product"]),
    ],
)
def test_forms(product: BitsProduct, forms: list[str]) -> None:
    """A few rows, many of them, and weights of which panels or words cannot be read."""
    found = product_texts(product, parse_target("cpu-avx512"))
    assert list(found) == [*(f"{product.name}_{form}" for form in forms), product.name]


def test_code_of_many_rows(tmp_path: Path) -> None:
    """Numbers are looked up once for all rows, and the stack is that of a panel's block and its sums."""
    product, target = BitsProduct(512, 64, 256, 32, 4, "f32"), parse_target("cpu-avx512")
    texts = product_texts(product, target)
    symbol = f"{product.name}_many"
    assert texts[symbol].count("permvar.sf.512") == 2 * 8  # two vectors, eight numbers of a word
    assert texts[symbol].count("vector.fma") == 8 * 2 * 4
    stack = re.findall(r"memref.alloca.*memref<(\d+)x(\d+)xf32>", texts[symbol])
    assert stack == [("128", "32"), ("64", "32")] and 4 * sum(int(a) * int(b) for a, b in stack) <= 32768


@pytest.mark.parametrize(
    ("product", "why"),
    [
        (BitsProduct(1, 8, 96, 48, 4, "f32"), "a block that is no power of two"),
        (BitsProduct(1, 8, 64, 8, 4, "f32", rounded=True), "blocks of 4 bytes"),
        (BitsProduct(1, 8, 64, 32, 2, "f32", rounded=True), "2 bits by bytes"),
    ],
)
def test_what_has_no_kernel(product: BitsProduct, why: str) -> None:
    assert not can_multiply(product, parse_target("cpu-avx2")), why


def test_integers_need_the_instructions() -> None:
    """Of AVX512_VNNI, or those of AVX2 and AVX-512, which take 8 bits in two steps."""
    product = BitsProduct(1, 8, 64, 32, 4, "f32", rounded=True)
    can = {
        name: can_multiply(product, parse_target(name)) for name in ("cpu-amx", "cpu-avx512", "cpu-avx2", "cpu-neon")
    }
    assert can == {"cpu-amx": True, "cpu-avx512": True, "cpu-avx2": True, "cpu-neon": False}
    for name, bits, words in (
        ("cpu-amx", 8, {"vpdpbusd.512": 1}),
        ("cpu-avx512", 4, {"pmaddubs.w.512": 2, "pmaddw.d.512": 1}),
        ("cpu-avx2", 4, {"avx2.pmadd.ub.sw": 2, "avx2.pmadd.wd": 1}),
        ("cpu-avx2", 8, {"avx2.pmadd.wd": 2 * 2}),
    ):
        text = "".join(
            product_texts(BitsProduct(1, 8, 128, 64, bits, "f32", rounded=True), parse_target(name)).values()
        )
        found = dict(Counter(re.findall(r"llvm\.x86\.(?:avx512\.)?([\w.]+)", text)))
        assert found == words, name
