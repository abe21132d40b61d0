"""The chooser, and random attentions of what it chooses against the reference (`fuzz`)."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable

import pytest

from onnx_fa.errors import UnsupportedError
from onnx_fa.kernels.choose import emit_kernel, kernel_name
from onnx_fa.kernels.cpu.few import emit_few
from onnx_fa.kernels.cpu.split import emit_split
from onnx_fa.kernels.cpu.tiled import emit_tiled
from onnx_fa.kernels.cpu.vector import emit_vector
from onnx_fa.kernels.mlir.kernel import Kernel
from onnx_fa.spec.attention import AttentionSpec
from onnx_fa.spec.target import Target, parse_target
from onnx_fa.spec.terms import GRIDS, BoolMask
from tests import fuzz
from tests.support.cases import BY_NAME, CASES, Case, select
from tests.support.kernel_harness import HOST
from tests.support.random_specs import KEEPS, draw_specs

BASE = AttentionSpec("f32", 2, 2, 64, 64, 32, 32, scale=0.2)
_EMIT: dict[str, Callable[[AttentionSpec, Target, str], Kernel]] = {
    "vector": emit_vector,
    "few": emit_few,
    "amx": emit_tiled,
    "split": emit_split,
}


@pytest.mark.parametrize("target", (HOST, parse_target("cpu-amx")), ids=lambda t: t.name)
@pytest.mark.parametrize("case", select("smoke"), ids=lambda c: c.name)
def test_chosen_kernels_are_those_of_the_bodies(case: Case, target: Target) -> None:
    """Which are compiled and run, the vector body's on every case of the table, by tests of their own."""
    kernel = emit_kernel(case.spec, target)
    assert kernel == _EMIT[kernel.body](case.spec, target, kernel.name)


def test_names() -> None:
    kernel = emit_kernel(BASE, HOST)
    assert kernel.name == kernel_name(BASE, HOST) and kernel.name.startswith("fa_") and len(kernel.name) == 13
    assert kernel == emit_kernel(BASE, HOST)
    others = {
        kernel_name(dataclasses.replace(BASE, scale=0.3), HOST),
        kernel_name(BASE, parse_target("cpu-neon")),
        kernel_name(BASE, HOST, "few"),
    }
    assert len(others | {kernel.name}) == 4


def test_prefers_the_vector_body() -> None:
    assert emit_kernel(BY_NAME["bench_s1024"].spec, parse_target("cpu-avx512")).body == "vector"
    assert emit_kernel(BY_NAME["decode_gqa"].spec, HOST).body == "few"
    assert emit_kernel(BY_NAME["decode_gqa"].spec, HOST, body="vector").body == "vector"


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_every_case_has_a_kernel(case: Case) -> None:
    assert emit_kernel(case.spec, HOST).spec == case.spec


def test_refusals_name_every_body() -> None:
    spec = dataclasses.replace(BASE, D=4096, Dv=4096, masks=(BoolMask((1, 64), -5.0),))
    with pytest.raises(UnsupportedError, match=r"few: .*64 queries.*; split: .*AMX.*; vector: .*stack"):
        emit_kernel(spec, HOST)
    narrow = dataclasses.replace(BASE, Dv=1, Skv="t", v_layout=(1, 2, 0))
    with pytest.raises(UnsupportedError, match=r"vector: .*v of dynamic shape with a head dim of 1"):
        emit_kernel(narrow, HOST)
    with pytest.raises(UnsupportedError, match="f64"):
        emit_kernel(dataclasses.replace(BASE, dtype="f64"), HOST)
    with pytest.raises(UnsupportedError, match="no kernel body 'gpu', only rows, few, amx, split, vector"):
        emit_kernel(BASE, HOST, body="gpu")
    with pytest.raises(UnsupportedError, match="no lowering for vulkan"):
        emit_kernel(BASE, dataclasses.replace(HOST, backend="vulkan"))


def test_random_specs_differ() -> None:
    """What is drawn holds every word that a spec can have."""
    drawn = draw_specs(1000)
    words = {w for d in drawn for w in d.spec.variant.split("+")}
    assert {"softcap", "causal", "slidingwindow", "boolmask", "addmask", "alibi", "sink", "lse", "max", *KEEPS} <= words
    assert {"mha", "mqa", "gqa2", "gqa8"} <= words
    assert {f"{x}:{dtype}" for x in "kv" for dtype in ("i8", "u8", "i4", "u4")} <= words
    assert {f"p:{dtype}" for dtype in GRIDS} <= words
    dims = [d.spec for d in drawn]
    assert {s.dtype for s in dims} == {"f32", "f16", "bf16"}
    assert {s.empty_row for s in dims} == {"nan", "zero", "guarded", "mean"}
    assert {t.dtype for s in dims for t in s.tensors} == {"bool", "i32", "i64", "f32", "f16", "bf16"}
    assert set(range(1, 71)) <= {s.D for s in dims} and max(s.D for s in dims) == 512
    assert set(range(1, 71)) <= {x.Sq for d in drawn for x in d.bound()} & {x.Skv for d in drawn for x in d.bound()}
    symbolic = {tuple(isinstance(x, str) for x in s.score_shape[-3:]) for s in dims}
    assert len(symbolic) == 8, "heads, Sq and Skv dynamic in every combination"
    assert {len(s.batch) for s in dims} == {0, 1, 2, 3} and any("b1" in s.batch for s in dims)


@pytest.mark.slow
def test_fuzz(pytestconfig: pytest.Config) -> None:
    """ONNX_FA_FUZZ random specs (if not set 3, and 50 with --whole; test_no_keys.py has others), in processes of their own."""
    usual = 50 if pytestconfig.getoption("whole") else 3
    count = int(os.environ.get("ONNX_FA_FUZZ", usual))
    results = list(fuzz.run(count, jobs=2))
    assert not [w for r in results for w in r["wrong"]]
    known = ("a head dim of 1", "an operand has no elements")
    assert not [why for r in results for why in r["refused"] if not any(k in why for k in known)]
    assert sum(r["specs"] for r in results) == count
