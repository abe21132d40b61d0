"""The body for a few queries: cases against the reference, what it refuses, what its compiled form must hold."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from onnx_fa.errors import UnsupportedError
from onnx_fa.iree.alone import module_text
from onnx_fa.kernels.choose import emit_kernel
from onnx_fa.kernels.cpu.few import emit_few, few_config, few_queries, few_stack_bytes, tuned_few
from onnx_fa.kernels.cpu.tiles import MOST_QUERIES, FewConfig
from onnx_fa.kernels.cpu.vector import STACK_BYTES
from onnx_fa.kernels.tiles.database import database_name, read_database
from onnx_fa.spec.attention import AttentionSpec
from onnx_fa.spec.cases import alibi
from onnx_fa.spec.target import TARGET_NAMES, parse_target
from onnx_fa.spec.terms import AddMask, BoolMask, Causal, SlidingWindow, Softcap, TensorArg
from tests.support.cases import BY_NAME, FLOAT_MIN, Case, draw_operands, select
from tests.support.cpu_targets import cpu_targets
from tests.support.kernel_harness import HOST, Kernels, indices_to_run, mismatch, run_iree_compile


def _spec(**changes: Any) -> AttentionSpec:
    base: dict[str, Any] = {"dtype": "f32", "Hq": 2, "Hkv": 2, "Sq": 1, "Skv": 300, "D": 32, "Dv": 32, "scale": 0.2}
    return AttentionSpec(**base | changes)


_OWN = [
    Case("wide_heads", _spec(D=200, Dv=260)),
    Case("mqa", _spec(Hq=8, Hkv=1, D=64, Dv=64, Skv=515)),
    Case("gqa_sink", _spec(Hq=6, sink=TensorArg((6, 1, 1)))),
    Case("causal_end", _spec(Sq=5, Skv=260, masks=(Causal("end"),))),
    Case("causal_mean", _spec(Sq=4, Skv=400, masks=(Causal(-2, FLOAT_MIN),), empty_row="mean")),
    Case("window_far", _spec(Sq=2, Skv=2100, masks=(SlidingWindow(20, 3, 1300),))),
    Case("window_gqa", _spec(Hq=8, Skv=700, masks=(SlidingWindow(100, 0, "end"),), empty_row="zero")),
    Case("softcap_bias", _spec(Sq=3, mods=(Softcap(5.0),), masks=(AddMask((2, 3, 300)),))),
    Case("alibi_masked", _spec(Sq=7, Hq=2, masks=(alibi(2), BoolMask((1, 1, 300))), empty_row="guarded")),
    Case("f16", _spec(dtype="f16", Sq=3, D=20, Dv=40, masks=(BoolMask((3, 300)),))),
    Case("bf16_dynamic", _spec(dtype="bf16", batch=("b",), Skv="t"), sizes=((("b", 2), ("t", 77)),)),
]
_SHARED = (
    "one_key",
    "decode_gqa",
    "rounded_decode",
    "gathered_decode",
    "dyn_gathered_decode",
    "decode_lengths",
    "decode_sink_window",
    "few_bshd",
    "few_queries",
    "decode_gqa_mask",
    "dyn_decode_gqa",
)
_CASES = _OWN + [c for c in select() if c.name in _SHARED]


_FAR = next(i for i, c in enumerate(_CASES) if c.name == "window_far")


@pytest.fixture(scope="module")
def compiled(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Kernels:
    kernels = [emit_few(c.spec, HOST, f"fa_case{i}") for i, c in enumerate(_CASES)]
    return Kernels(kernels, tmp_path_factory.mktemp("few"), only=indices_to_run(request, [_FAR]))


@pytest.mark.parametrize("index", range(len(_CASES)), ids=[c.name for c in _CASES])
def test_case(index: int, compiled: Kernels) -> None:
    for spec in _CASES[index].bound():
        for seed in range(2):
            operands = draw_operands(spec, seed, adversarial=seed == 1)
            assert mismatch(spec, operands, compiled.run(index, operands)) is None


def test_what_is_masked_may_be_anything(compiled: Kernels) -> None:
    case = _CASES[_FAR]
    operands = draw_operands(case.spec, 0)
    for x in operands[1:3]:
        x[:, :1000], x[:, -500:] = np.nan, np.inf
    result = compiled.run(_FAR, operands)
    assert np.all(np.isfinite(result)) and mismatch(case.spec, draw_operands(case.spec, 0), result) is None


def test_windows_have_short_blocks() -> None:
    """A window begins inside a block of keys, all of which are read."""
    spec = BY_NAME["bench_decode"].spec
    plain, short, long = (
        tuned_few(dataclasses.replace(spec, masks=m), HOST)[0].BK
        for m in ((), (SlidingWindow(31, 0, "end"),), (SlidingWindow(100_000, 0, "end"), Causal("end")))
    )
    assert short <= 64 < plain and long == plain


def test_few_queries_have_a_body_of_their_own() -> None:
    assert emit_kernel(BY_NAME["bench_decode"].spec, HOST).body == "few"
    assert emit_kernel(_spec(Sq=MOST_QUERIES), HOST).body == "few"
    assert emit_kernel(_spec(Sq=MOST_QUERIES + 1), HOST).body == "vector"
    assert few_queries(_spec(Hq=8)) == 4  # those that share a head


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"Sq": MOST_QUERIES + 1}, "9 queries"),
        ({"Sq": "s"}, "s queries"),
        ({"k_layout": (0, 2, 1)}, "k has its head dim before its length"),
        ({"o_layout": (0, 2, 1), "Sq": 2}, "o has its head dim"),
        ({"D": 30000}, "stack"),
    ],
)
def test_refusals(changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(UnsupportedError, match=reason):
        emit_few(_spec(**changes), HOST, "fa")


@pytest.mark.parametrize("name", cpu_targets("cpu-host", "cpu-avx2"))
def test_every_measured_tile(name: str, tmp_path: Path) -> None:
    target = parse_target(name)
    if target.lanes > HOST.lanes:
        pytest.skip(f"this machine cannot run {name}")
    spec = _spec(Sq=3, Skv=330, D=20, Dv=24, masks=(Causal("end"),))
    tiles = [c.tiles for e in read_database(database_name(target)).entries if e.family.body == "few" for c in e.choices]
    made = [few_config(t, 3) for t in tiles]
    configs = list(
        {(c.lanes, c.tile_dims): c for c in made}.values()
    )  # of those that differ in the length of a loop alone, one
    compiled = Kernels([emit_few(spec, target, f"fa_tile{i}", c) for i, c in enumerate(configs)], tmp_path, target)
    operands = draw_operands(spec, 0)
    for i, config in enumerate(configs):
        assert mismatch(spec, operands, compiled.run(i, operands)) is None, config


def test_neon_compiles(tmp_path: Path) -> None:
    target = parse_target("cpu-neon")
    kernel = emit_few(_spec(Hq=8, masks=(BoolMask((1, 300)),)), target, "fa_neon")
    run_iree_compile(module_text(kernel), tmp_path / "neon.vmfb", kernel.flags, target)


@pytest.mark.parametrize("name", [name for name in TARGET_NAMES if parse_target(name).lanes])
def test_default_tiles_fit(name: str) -> None:
    for d in (1, 8, 33, 128, 512):
        for sq in (1, 8):
            spec = _spec(Sq=sq, D=d, Dv=d)
            assert few_stack_bytes(spec, tuned_few(spec, parse_target(name))[0]) <= STACK_BYTES


def test_tiles_that_contradict_each_other() -> None:
    for tiles in ((16, 1, 24, 16, 8, 8), (16, 1, 64, 8, 8, 8), (5, 1, 40, 5, 8, 8)):
        with pytest.raises(ValueError, match=r"BK must be|tiles must be"):
            FewConfig(*tiles)
    config = FewConfig(HOST.lanes, 2, 64, HOST.lanes, 8, 8)
    with pytest.raises(UnsupportedError, match="do not fit 1 queries"):
        emit_few(dataclasses.replace(_spec(), Sq=1), HOST, "fa", config)
