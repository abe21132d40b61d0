"""The vector body: cases against the reference, what it refuses, and what its text and its compiled form must hold."""

from __future__ import annotations

import dataclasses
import re
import subprocess
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from _pytest.mark.structures import ParameterSet

from onnx_fa.errors import UnsupportedError
from onnx_fa.iree.alone import entry_text as entry
from onnx_fa.iree.compiler import find_compiler
from onnx_fa.kernels.choose import emit_kernel
from onnx_fa.kernels.cpu.vector import STACK_BYTES, VectorConfig, default_config, emit_vector, stack_bytes, tuned
from onnx_fa.kernels.mlir.kernel import Kernel
from onnx_fa.kernels.tiles.database import database_name, read_database
from onnx_fa.spec.attention import AttentionSpec
from onnx_fa.spec.expr import SCORE, Apply, Float, Int, K, Q, ScoreExpr, Tensor
from onnx_fa.spec.reference import attention
from onnx_fa.spec.target import TARGET_NAMES, Target, parse_target
from onnx_fa.spec.terms import NEG_INF, AddMask, BoolMask, Causal, Elementwise, SlidingWindow, TensorArg
from tests.support.cases import (
    BY_NAME,
    CAUSAL,
    DISTANCE,
    FLOAT_MIN,
    T0,
    Case,
    added,
    draw_operands,
    select,
    term,
    where,
)
from tests.support.check_text import check_text
from tests.support.cpu_targets import cpu_targets
from tests.support.kernel_harness import HOST, Kernels, indices_to_run, mismatch, run_iree_compile
from tests.support.sampled import kinds_of, parameters, sampled


def _spec(**changes: Any) -> AttentionSpec:
    base: dict[str, Any] = {"dtype": "f32", "Hq": 2, "Hkv": 2, "Sq": 128, "Skv": 128, "D": 32, "Dv": 32, "scale": 0.2}
    return AttentionSpec(**base | changes)


BASE = _spec()
_CHUNK: ScoreExpr = Apply("Equal", Apply("Div", Q, Int(64)), Apply("Div", K, Int(64)))
_ZERO_OR_MASK: tuple[ScoreExpr, ScoreExpr] = Float(0.0), Float(-np.inf)


# Longer than the shared table: several blocks of keys, so that some are skipped, some whole and some on an edge.
_LONG = [
    Case("long_causal", _spec(Sq=200, Skv=200, masks=(Causal(),))),
    Case("long_causal_end", _spec(Sq=100, Skv=333, masks=(Causal("end"),))),
    Case("long_window", _spec(Sq=300, Skv=300, masks=(SlidingWindow(40, 40),))),
    Case("long_causal_window", _spec(Sq=300, Skv=300, masks=(Causal(), SlidingWindow(100, 100)))),
    Case("disjoint_masks", _spec(Sq=300, Skv=256, masks=(Causal(-150), SlidingWindow(20, None)), empty_row="zero")),
    Case("skipped_mean", _spec(Sq=130, masks=(Causal(-40, FLOAT_MIN),), empty_row="mean")),
    Case("skipped_mean_ragged", _spec(Sq=150, Skv=101, masks=(Causal(-43, FLOAT_MIN),), empty_row="mean")),
    Case("skipped_mean_window", _spec(Sq=300, Skv=200, masks=(SlidingWindow(9, 0, fill=-1e9),), empty_row="mean")),
    Case(
        "skipped_mean_disjoint",
        _spec(
            Sq=300, Skv=256, masks=(Causal(-150, FLOAT_MIN), SlidingWindow(20, None, fill=FLOAT_MIN)), empty_row="mean"
        ),
    ),
    Case(
        "skipped_mean_add",
        _spec(Sq=130, Skv=192, masks=(AddMask((130, 192)), Causal(-9, FLOAT_MIN)), empty_row="mean"),
    ),
    Case("many_keys", _spec(Hq=1, Hkv=1, Sq=16, Skv=8192)),
    Case("fill_lifted", _spec(masks=(Causal(0, -20.0), AddMask((128, 128), factor=8.0)))),
]
_QUICK = (
    "plain",
    "cross",
    "dv_wider",
    "head_dim_33",
    "head_dim_256",
    "head_dim_odd_dv",
    "prime_vit",
    "long_keys",
    "causal",
    "causal_end_empty_rows",
    "window_both",
    "window_end",
    "window_empty_zero",
    "bool_mask_0",
    "bool_mask_row",
    "add_mask_3",
    "add_mask_4",
    "add_mask_row",
    "add_mask_scalar",
    "add_mask_factor",
    "add_mask_f16",
    "bool_mask_finite",
    "bool_then_causal",
    "add_add_bool",
    "two_finite_fills",
    "softcap_window_gqa",
    "gqa_mask_per_head",
    "empty_zero_bool",
    "empty_nan_bool",
    "empty_nan_add",
    "empty_guarded_bool",
    "empty_guarded_add",
    "empty_mean_add",
    "empty_mean_causal",
    "bshd_gqa",
    "k_transposed_odd",
    "batch_5d_masks",
    "f16_mask",
    "bf16_causal_gqa",
    "dyn_all",
    "dyn_mask",
    "dyn_add_mask",
    "dyn_heads",
    "dyn_bshd",
    "dyn_odd_head_dim",
    "dyn_f16",
)


_SMALL_TILES, _SMALLEST_TILES = VectorConfig(8, 8, 16, 4, 3, 2), VectorConfig(4, 4, 4, 2, 1, 1)
"""These compile in a third of the time that users' tiles take, and have more edges. Expressions of the score, of which every vector
of a tile has its own, get the smallest."""


def _emit(cases: Sequence[Case], users: int = 24) -> Iterator[Kernel]:
    """One in so many, `users`, has the tiles that users get."""
    for i, case in enumerate(cases):
        config = None
        if i % users:
            expressions = any(isinstance(term, Elementwise) for term in (*case.spec.mods, *case.spec.masks))
            small = _SMALLEST_TILES if expressions else _SMALL_TILES
            lanes = min(small.lanes, tuned(case.spec, HOST)[0].lanes)
            config = dataclasses.replace(small, lanes=lanes, tile_dims=min(small.tile_dims, case.spec.Dv))
        yield emit_vector(case.spec, HOST, f"fa_case{i}", config)


_FIRST = _LONG + [c for c in select() if c.name in _QUICK]
_EXPRESSIONS = select("expression")
_REST = [c for c in select(without=("bench", "expression")) if c.name not in _QUICK]
_INDEX = {case.name: i for i, case in enumerate(_FIRST)}


_POISONED = ("empty_zero_bool", "empty_guarded_bool", "empty_nan_bool", "causal", "plain")


def _part(cases: Sequence[Case], *others: list[Case], always: Sequence[int] = ()) -> list[int]:
    """Places of what every run tries. Of kinds that `others` bring it needs no more."""
    known = frozenset[str]().union(*(kinds_of(case) for other in others for case in other))
    return sampled([kinds_of(case) for case in cases], None, known, always)


_BLOCKS = ("long_causal", "long_window", "disjoint_masks", "skipped_mean_ragged", "skipped_mean_disjoint", "many_keys")
"""Of the long ones those of every run."""
_FIRST_NOW = _part(_FIRST, always=[_INDEX[name] for name in (*_BLOCKS, *_POISONED)])
_REST_NOW = _part(_REST, [_FIRST[i] for i in _FIRST_NOW])
_EXPRESSIONS_NOW = _part(_EXPRESSIONS, [_FIRST[i] for i in _FIRST_NOW], [_REST[i] for i in _REST_NOW])


def _compiled(
    request: pytest.FixtureRequest, cases: Sequence[Case], folder: Path, kept: Sequence[int] | None = None
) -> Kernels:
    """`kept`: those of every run, where it is not all."""
    every = None if request.config.getoption("whole") else kept
    return Kernels(list(_emit(cases)), folder, flows=True, only=indices_to_run(request, every))


@pytest.fixture(scope="module")
def first(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Kernels:
    return _compiled(request, _FIRST, tmp_path_factory.mktemp("vector"), _FIRST_NOW)


@pytest.fixture(scope="module")
def expressions(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Kernels:
    return _compiled(request, _EXPRESSIONS, tmp_path_factory.mktemp("vector_expressions"), _EXPRESSIONS_NOW)


@pytest.fixture(scope="module")
def rest(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Kernels:
    return _compiled(request, _REST, tmp_path_factory.mktemp("vector_rest"), _REST_NOW)


def _parameters(cases: Sequence[Case], now: Sequence[int]) -> list[ParameterSet]:
    return parameters(range(len(cases)), [c.name for c in cases], now)


def _check(case: Case, compiled: Kernels, index: int, adversarial: bool) -> None:
    for seed, spec in enumerate(case.bound()):
        operands = draw_operands(spec, seed, adversarial=adversarial)
        assert mismatch(spec, operands, compiled.run(index, operands)) is None, spec


@pytest.mark.parametrize("adversarial", [False, True], ids=["plain", "adversarial"])
@pytest.mark.parametrize("index", _parameters(_FIRST, _FIRST_NOW))
def test_case(first: Kernels, index: int, adversarial: bool) -> None:
    _check(_FIRST[index], first, index, adversarial)


@pytest.mark.slow
@pytest.mark.parametrize("adversarial", [False, True], ids=["plain", "adversarial"])
@pytest.mark.parametrize("index", _parameters(_EXPRESSIONS, _EXPRESSIONS_NOW))
def test_expression(expressions: Kernels, index: int, adversarial: bool) -> None:
    _check(_EXPRESSIONS[index], expressions, index, adversarial)


@pytest.mark.slow
@pytest.mark.parametrize("adversarial", [False, True], ids=["plain", "adversarial"])
@pytest.mark.parametrize("index", _parameters(_REST, _REST_NOW))
def test_remaining_case(rest: Kernels, index: int, adversarial: bool) -> None:
    _check(_REST[index], rest, index, adversarial)


@pytest.mark.parametrize("name", _POISONED)
@pytest.mark.parametrize("operand", [0, 1, 2])
@pytest.mark.parametrize("poison", [np.nan, np.inf])
def test_nan_and_inf_come_through(first: Kernels, name: str, operand: int, poison: float) -> None:
    spec = BY_NAME[name].spec
    operands = draw_operands(spec, 3, adversarial=True)
    operands[operand][0, 0, 5, 3] = poison
    assert mismatch(spec, operands, first.run(_INDEX[name], operands)) is None


def test_scores_that_overflow_exp(first: Kernels) -> None:
    """Scores of a few thousand: the maximum must come off before the exponential."""
    spec = BY_NAME["causal"].spec
    operands = draw_operands(spec, 4)
    operands[0] *= 1000
    assert mismatch(spec, operands, first.run(_INDEX["causal"], operands)) is None


@pytest.mark.parametrize("name", cpu_targets("cpu-host", "cpu-avx2"))
def test_every_measured_tile(name: str, tmp_path: Path, pytestconfig: pytest.Config) -> None:
    """Each set of measured tiles computes the right thing on this machine (AVX2 code runs where AVX-512 does); of those that
    differ in the length of a loop alone, one does, and without --whole of those that differ in the width of vectors, of which
    then every second one is tried."""
    target = parse_target(name)
    if target.lanes > HOST.lanes:
        pytest.skip(f"this machine cannot run {name}")
    spec = _spec(Sq=100, Skv=130, D=48, Dv=40, masks=(Causal("end"),))
    entries = read_database(database_name(target)).entries
    tiles = [VectorConfig(**c.tiles) for e in entries if e.family.body == "vector" for c in e.choices]
    whole = pytestconfig.getoption("whole")
    # The widest vectors come last, and stay.
    tiles.sort(key=lambda c: c.lanes)
    configs = list({(whole and c.lanes, c.BM // c.lanes, c.tile_keys, c.tile_dims): c for c in tiles}.values())
    configs = configs if whole else configs[::2]
    kernels = [emit_vector(spec, target, f"fa_tile{i}", c) for i, c in enumerate(configs)]
    assert kernels
    compiled = Kernels(kernels, tmp_path, target)
    operands = draw_operands(spec, 0)
    for i, config in enumerate(configs):
        assert mismatch(spec, operands, compiled.run(i, operands)) is None, config


def test_neon_compiles(tmp_path: Path) -> None:
    target = parse_target("cpu-neon")
    kernel = emit_vector(_spec(masks=(Causal(), BoolMask((128, 128)))), target, "fa_neon")
    run_iree_compile(kernel.text + entry(kernel, "main"), tmp_path / "neon.vmfb", kernel.flags, target)


@pytest.mark.parametrize("name", [name for name in TARGET_NAMES if parse_target(name).lanes])
def test_default_tiles_fit(name: str) -> None:
    target = parse_target(name)
    for d in (4, 8, 16, 33, 64, 80, 128, 192, 256):
        for sq in (8, 20, 197, 1024, "n"):
            for dtype in ("f32", "f16"):
                spec = AttentionSpec(dtype, 2, 2, sq, 512, d, d, masks=(AddMask((512,)),))
                config = default_config(spec, target)
                assert stack_bytes(spec, config) <= STACK_BYTES
                assert target.lanes >= config.lanes
                assert not isinstance(sq, int) or sq + target.lanes > config.BM


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        (_spec(dtype="f64"), "f64"),
        (_spec(masks=(AddMask((128, 128), "f64"),)), "f64"),
        (_spec(D=4096, Dv=4096), "bytes of stack"),
        (_spec(masks=(Elementwise(Apply("Add", SCORE, Tensor(0)), (TensorArg((128,), "f64"),)),)), "f64"),
        (_spec(sink=TensorArg((2, 1, 1), "f64")), "f64"),
        (_spec(masks=(Causal(0, float("nan")),)), "fills with nan"),
    ],
)
def test_refusals(spec: AttentionSpec, reason: str) -> None:
    with pytest.raises(UnsupportedError, match=re.escape(reason)):
        emit_vector(spec, HOST, "fa_no")


def test_tiles_that_do_not_fit() -> None:
    with pytest.raises(UnsupportedError, match="bytes of stack"):
        emit_vector(BASE, HOST, "fa_no", VectorConfig(4, 256, 128, 4, 4, 4))
    with pytest.raises(ValueError, match="BK of tile_keys"):
        VectorConfig(8, 32, 60, 8, 8, 8)
    gpu = dataclasses.replace(HOST, name="gpu", backend="cuda")
    with pytest.raises(UnsupportedError, match="not a CPU"):
        emit_vector(BASE, gpu, "fa_no")


def test_one_dispatch_named_after_the_kernel(tmp_path: Path) -> None:
    """Also with a boolean mask and dynamic sizes: no second dispatch converts or copies anything."""
    spec = _spec(Sq="s", Skv="t", batch=("b",), masks=(BoolMask(("b", 1, "s", "t")),))
    kernel = emit_vector(spec, HOST, "fa_site")
    source = tmp_path / "k.mlir"
    source.write_text(kernel.text + entry(kernel, "main"))
    command = [str(find_compiler()), str(source), "--compile-to=flow", *HOST.flags, *kernel.flags]
    flow = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout
    assert len(re.findall(r"flow\.executable\.export public @", flow)) == 1
    assert re.findall(r"flow\.dispatch @(\w+)", flow) == ["fa_site_attention"]


@pytest.mark.slow
def test_every_case_is_one_dispatch(first: Kernels, expressions: Kernels, rest: Kernels) -> None:
    """Nothing but reshapes lies between the entry and its dispatch, so that there is no buffer between dispatches at all."""
    flows = (*first.flows, *expressions.flows, *rest.flows)
    tried = sum(len(kernels) for kernels, _ in flows)
    assert tried >= len(_FIRST_NOW) + len(_EXPRESSIONS_NOW) + len(_REST_NOW)
    for kernels, flow in flows:
        called = re.findall(r"flow\.dispatch @(\w+)", flow)  # equal executables are one
        split = sum(name.endswith("_combine") for name in called)
        called = [name for name in called if not name.endswith("_combine")]
        assert len(called) == len(kernels) and set(called) <= {f"{k.name}_attention" for k in kernels}
        functions = flow.split("util.func public @")[1:]
        # Where the keys are split there is a second one, which combines the parts.
        assert len(functions) == len(kernels) == sum(f.count("flow.dispatch @") for f in functions) - split


_MASKED = {  # (Sq, Skv, queries to look at, keys that these must not visit, mask)
    "prefix": (300, 300, slice(0, 60), slice(128, None), term(where(Apply("Or", CAUSAL, Apply("Less", K, Int(70)))))),
    "chunked": (300, 300, slice(264, None), slice(0, 256), term(where(_CHUNK))),
    "lengths": (200, 300, slice(None), slice(128, None), term(where(Apply("Less", K, T0)), TensorArg((1,), "i64"))),
    "band": (300, 300, slice(192, None), slice(0, 64), term(where(Apply("Not", Apply("Greater", DISTANCE, Int(20)))))),
    "added": (
        200,
        300,
        slice(None),
        slice(128, None),
        term(added(Apply("Where", Apply("Less", K, Int(99)), *_ZERO_OR_MASK))),
    ),
    "one_query": (1, 300, slice(None), slice(0, 192), SlidingWindow(9, 0, "end")),
}


@pytest.fixture(scope="module")
def masked(tmp_path_factory: pytest.TempPathFactory) -> Kernels:
    specs = {name: _spec(Hq=4, Sq=sq, Skv=skv, masks=(mask,)) for name, (sq, skv, *_, mask) in _MASKED.items()}
    # Blocks of a size that is known: those of the database differ by processor, and one may have keys of two chunks.
    config = dataclasses.replace(_SMALL_TILES, lanes=min(_SMALL_TILES.lanes, HOST.lanes), BK=64)
    kernels = [emit_vector(spec, HOST, f"fa_{name}", config) for name, spec in specs.items()]
    return Kernels(kernels, tmp_path_factory.mktemp("masked"))


@pytest.mark.parametrize("name", _MASKED)
def test_masked_blocks_are_not_visited(masked: Kernels, name: str) -> None:
    """NaN values of V in a block that is left out do not show, though zero times NaN would be NaN."""
    sq, skv, queries, keys, mask = _MASKED[name]
    spec = _spec(Hq=4, Sq=sq, Skv=skv, masks=(mask,))
    operands = draw_operands(spec, 0)
    operands[3:] = [np.full_like(x, 100) for x in operands[3:]]
    want = attention(spec, *operands)
    operands[2][:, keys] = np.nan
    got = masked.run(list(_MASKED).index(name), operands)[0]
    assert np.allclose(got[:, queries], want[:, queries], atol=1e-5)


@pytest.mark.parametrize(
    ("checks", "spec"),
    [
        ("vector_plain.mlir", _spec(batch=(3,), Hq=8, Skv=256)),
        ("vector_causal.mlir", _spec(masks=(Causal(),))),
        ("vector_dynamic.mlir", _spec(Sq="s", Skv="t", batch=("b",), masks=(BoolMask(("b", 1, 1, "t")),))),
    ],
)
def test_text(checks: str, spec: AttentionSpec) -> None:
    kernel = emit_vector(spec, parse_target("cpu-avx512"), "fa_site", VectorConfig(16, 32, 64, 2, 2, 1))
    check_text(checks, kernel.text)


_PAIRS = dataclasses.replace(parse_target("cpu-avx512"), pair_dots=True)


@pytest.mark.parametrize(
    "target", [parse_target("cpu-avx2"), parse_target("cpu-avx512"), _PAIRS, parse_target("cpu-amx")]
)
@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_the_compiler_is_not_shown_where_short_blocks_end(dtype: str, target: Target) -> None:
    """It would follow the bounds of every loop over such a block through arithmetic and selects, for every two accesses of a tile.
    Loops over the blocks themselves hold no such accesses of their own: they may end where they end."""
    window = SlidingWindow(left=20, right=5, offset="end", fill=NEG_INF)
    spec = AttentionSpec(dtype, 2, 2, "s", "t", 32, 32, batch=(1,), masks=(window,))
    text = emit_kernel(spec, target).text
    made = {name: (op, first) for name, op, first in re.findall(r"^(%\w+) = arith\.(\w+) ([\w%]+)", text, re.MULTILINE)}
    ends = [made[end] for end in re.findall(r"scf\.for %x\d+ = %c\d+ to (%x\d+) step", text)]
    # Pairs of keys are half as many as what hides the end, or as a constant.
    made_by = Counter(made[first][0] if op == "divui" else op for op, first in ends)
    del made_by["constant"]
    assert set(made_by) == {"addi", "andi"} and made_by["addi"] == 1 and made_by["andi"] >= 3, made_by


def test_the_longest_workgroups_begin_first() -> None:
    """The last queries of a causal mask see the most keys."""
    spec = AttentionSpec("f32", 2, 2, 300, 300, 32, 32)
    assert "workgroup.count" not in emit_kernel(spec, HOST).text
    text = emit_kernel(dataclasses.replace(spec, masks=(Causal(),)), HOST).text
    number, count = (re.search(rf"(%\w+) = flow.dispatch.workgroup.{x}\[0\]", text) for x in ("id", "count"))
    assert number and count
    last = re.search(rf"(%\w+) = arith.subi {count[1]}, %\w+ : index", text)
    assert last and f"arith.subi {last[1]}, {number[1]} : index" in text
