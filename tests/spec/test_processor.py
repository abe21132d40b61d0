"""What kernels for CPUs ask of a processor, for each that there are targets of, and which one this machine is read to have."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import pytest

from onnx_fa.spec import processor
from onnx_fa.spec.processor import AMX, AVX2, AVX512, NEON, Processor, host_processor
from onnx_fa.spec.target import parse_target

VNNI, BF16 = replace(AVX512, byte_dots=True), replace(AVX512, pair_dots=True)
SSE, GPU = replace(NEON, registers=16), Processor()


@pytest.mark.parametrize("name", ["cpu-amx", "cpu-avx512", "cpu-avx2", "cpu-neon", "cuda"])
def test_targets(name: str) -> None:
    """A target has the traits of its processor; one for a GPU has none."""
    target, has = parse_target(name), {"cpu-amx": AMX, "cpu-avx512": AVX512, "cpu-avx2": AVX2, "cpu-neon": NEON}
    assert {k: getattr(target, k) for k in vars(GPU)} == vars(has.get(name, GPU))


def test_vectors_and_registers() -> None:
    found = {
        name: {p for p in (AMX, VNNI, AVX512, AVX2, NEON, SSE, GPU) if getattr(p, name)}
        for name in ("has_avx512", "has_avx2", "widens", "multiplies_bytes", "has_many_registers")
    }
    assert found == {
        "has_avx512": {AMX, VNNI, AVX512},
        "has_avx2": {AMX, VNNI, AVX512, AVX2},
        "widens": {AVX2},
        "multiplies_bytes": {AMX, VNNI, AVX512, AVX2},
        "has_many_registers": {AMX, VNNI, AVX512, NEON},
    }
    assert replace(NEON, byte_dots=True).multiplies_bytes
    assert BF16.gains_by_pairs and not AMX.gains_by_pairs and not AVX512.gains_by_pairs


@pytest.mark.parametrize(
    ("dtype", "have"),
    [
        ("f32", {AMX, VNNI, BF16, AVX512, AVX2, NEON}),
        ("f16", {AMX, VNNI, BF16, AVX512, AVX2, NEON}),
        ("bf16", {AMX, BF16, AVX2}),
        ("u8", {AMX, VNNI, AVX2}),
        ("i8", {AMX, VNNI, AVX2}),
    ],
)
def test_products(dtype: Any, have: set[Processor]) -> None:
    assert {p for p in (AMX, VNNI, BF16, AVX512, AVX2, NEON) if p.has_products(dtype)} == have


def test_lanes() -> None:
    """Of the longest vectors that sizes fill, and that divide them."""
    for p, size, other in product((AMX, AVX2, NEON), range(1, 100), (3, 8, 17)):
        within = p.lanes_within(size, other)
        assert within == 4 or within <= min(size, other)
        assert within == p.lanes or 2 * within > min(size, other)
        whole = p.lanes_dividing(size)
        assert whole == max((w for w in (4, 8, 16) if w <= p.lanes and size % w == 0), default=0)
    assert GPU.lanes_dividing(64) == 0


@pytest.mark.parametrize(
    ("has", "found"),
    [
        ("avx2 avx512f avx512_bf16 avx512_vnni amx_tile amx_bf16 amx_int8", AMX),
        ("avx2 avx512f avx512_bf16 avx512_vnni amx_tile amx_int8", replace(VNNI, pair_dots=True)),
        ("avx2 avx512f avx512_vnni", VNNI),
        ("avx2 avx512f avx512_bf16", BF16),
        ("avx2 avx512f", AVX512),
        ("avx2 avx_vnni", AVX2),
        ("sse4_2", SSE),
        ("", SSE),
    ],
)
def test_of_this_machine(monkeypatch: pytest.MonkeyPatch, has: str, found: Processor) -> None:
    monkeypatch.setattr(processor, "cpu_features", lambda: frozenset(has.split()))
    monkeypatch.setattr(processor, "is_arm", lambda: False)
    assert host_processor() == found
    monkeypatch.setattr(processor, "is_arm", lambda: True)
    assert host_processor() == NEON
