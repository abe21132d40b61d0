"""Keys and values gathered from pools: a paged cache is read where it is, and whatever is not one stays as it was."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest

from onnx_fa.forms.rewrite import explain, rewrite
from onnx_fa.iree.compile import compile_model
from onnx_fa.iree.run import load_module
from onnx_fa.spec.target import parse_target
from onnx_fa.spec.terms import Gathered
from tests.support.ort_run import assert_same, run

B, HKV, G, D, DV, P, PAGE, N = 2, 2, 3, 16, 8, 9, 4, 5
SIZES = {"B": B, "P": P, "N": N, "R": P * PAGE, "S": N * PAGE}
_PAGED = """
 kg = Gather <axis = 0> (kp, table)
 kr = Reshape (kg, k_shape)
 k4 = Transpose <perm = [0, 2, 1, 3]> (kr)
 vg = Gather <axis = 0> (vp, table)
 vr = Reshape (vg, v_shape)
 v4 = Transpose <perm = [0, 2, 1, 3]> (vr)
"""
_ROWS = """
 kr = Gather <axis = 0> (kp, table)
 k4 = Transpose <perm = [0, 2, 1, 3]> (kr)
 vr = Gather <axis = 0> (vp, table)
 v4 = Transpose <perm = [0, 2, 1, 3]> (vr)
"""
_HEADS_FIRST = """
 kg = Gather <axis = 1> (kp, table)
 kr = Reshape (kg, hk_shape)
 k4 = Transpose <perm = [1, 0, 2, 3]> (kr)
 vg = Gather <axis = 1> (vp, table)
 vr = Reshape (vg, hv_shape)
 v4 = Transpose <perm = [1, 0, 2, 3]> (vr)
"""
_PAGES_BY_HEAD = """
 kg = Gather <axis = 0> (kp, table)
 km = Transpose <perm = [0, 2, 1, 3, 4]> (kg)
 k4 = Reshape (km, hk_shape)
 vg = Gather <axis = 0> (vp, table)
 vm = Transpose <perm = [0, 2, 1, 3, 4]> (vg)
 v4 = Reshape (vm, hv_shape)
"""


def _model(
    gathers: str, *, dynamic: bool = False, integer: str = "int64", sq: int = 1, gathered_by: str = ""
) -> onnx.ModelProto:
    """`sq` queries with lengths of the batch rows; `dynamic`: batch, pool and table have symbols; `gathered_by`: other gathers."""
    heads = G * HKV
    b, p, n, r, s = "BPNRS" if dynamic else map(str, SIZES.values())
    pools = {
        _PAGED: (f"{p}, {PAGE}, {HKV}", f"{b}, {n}"),
        _ROWS: (f"{r}, {HKV}", f"{b}, {s}"),
        _HEADS_FIRST: (f"{HKV}, {p}, {PAGE}", f"{b}, {n}"),
        _PAGES_BY_HEAD: (f"{p}, {HKV}, {PAGE}", f"{b}, {n}"),
    }
    pool, table = pools[gathers]
    text = f"""<ir_version: 9, opset_import: ["": 18]>
g (float[{b}, {heads}, {sq}, {D}] q, float[{pool}, {D}] kp, float[{pool}, {DV}] vp, {integer}[{table}] table,
   {integer}[{table}] other, int64[{b}] lengths) => (float[{b}, {heads}, {sq}, {DV}] o)
<int64[4] k_shape = {{0, -1, {HKV}, {D}}}, int64[4] v_shape = {{0, -1, {HKV}, {DV}}}, int64[4] hk_shape = {{0, 0, -1, {D}}},
 int64[4] hv_shape = {{0, 0, -1, {DV}}}, int64[1] two = {{2}}, int64[3] three = {{1, 2, 3}}, int64[5] repeats = {{1, 1, {G}, 1, 1}},
 int64[4] k_full = {{0, {heads}, -1, {D}}}, int64[4] v_full = {{0, {heads}, -1, {DV}}}, int64 zero = {{0}}, int64 one = {{1}},
 int64[4] odd_shape = {{0, {HKV}, -1, {D}}}, float ninf = {{-inf}}, float scale = {{0.3}}>
{{{gathered_by or gathers}
 ku = Unsqueeze (k4, two)
 ke = Expand (ku, repeats)
 k = Reshape (ke, k_full)
 vu = Unsqueeze (v4, two)
 ve = Expand (vu, repeats)
 v = Reshape (ve, v_full)
 kt = Transpose <perm = [0, 1, 3, 2]> (k)
 qk = MatMul (q, kt)
 s = Mul (qk, scale)
 shape = Shape (s)
 three0 = Constant <value_int = 3> ()
 keys = Gather <axis = 0> (shape, three0)
 at = Range (zero, keys, one)
 ends = Unsqueeze (lengths, three)
 keep = Less (at, ends)
 masked = Where (keep, s, ninf)
 probs = Softmax <axis = -1> (masked)
 o = MatMul (probs, v)
}}"""
    return onnx.parser.parse_model(text)


def _feeds(model: onnx.ModelProto, seed: int = 0) -> dict[str, Any]:
    """Tables name pages anywhere, some from the end, some twice."""
    rng = np.random.default_rng(seed)
    result: dict[str, Any] = {}
    for i in model.graph.input:
        t = i.type.tensor_type
        shape = [d.dim_value or SIZES[d.dim_param] for d in t.shape.dim]
        if i.name in ("table", "other"):
            pages = P if "N" in str(i) or shape[-1] == N else P * PAGE
            result[i.name] = rng.integers(-pages, pages, shape).astype(
                onnx.helper.tensor_dtype_to_np_dtype(t.elem_type)
            )
        elif i.name == "lengths":
            result[i.name] = rng.integers(1, N * PAGE + 1, shape)
        else:
            result[i.name] = rng.standard_normal(shape).astype(np.float32)
    return result


def _spec(model: onnx.ModelProto) -> Any:
    report = rewrite(model, "site")[1]
    assert not report.misses, report.misses
    return report.sites[0].spec


@pytest.mark.parametrize("integer", ["int32", "int64"])
@pytest.mark.parametrize(
    "gathers", [_PAGED, _ROWS, _HEADS_FIRST, _PAGES_BY_HEAD], ids=["pages", "rows", "heads_first", "pages_by_head"]
)
@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
def test_found(gathers: str, integer: str, dynamic: bool) -> None:
    spec = _spec(_model(gathers, dynamic=dynamic, integer=integer))
    rows, size = "R" if gathers == _ROWS else f"{PAGE}*P", P * PAGE
    step = 0
    if gathers == _PAGES_BY_HEAD:
        rows, size, step = f"{PAGE * HKV}*P", P * PAGE * HKV, PAGE
    assert spec.gathered == Gathered(rows if dynamic else size, "i32" if integer == "int32" else "i64", step)
    assert (spec.Hkv, spec.group) == (HKV, G)


_CHANGES = {
    "tables differ": ("(vp, table)", "(vp, other)"),
    "rows are changed": ("kr = Reshape (kg, k_shape)", "kh = Reshape (kg, k_shape)\n kr = Relu (kh)"),
    "keys are not pages in order": ("k4 = Transpose <perm = [0, 2, 1, 3]> (kr)", "k4 = Reshape (kg, odd_shape)"),
}


@pytest.mark.parametrize("change", _CHANGES)
def test_other_gathers_stay(change: str) -> None:
    old, new = _CHANGES[change]
    assert old in _PAGED
    model = _model(_PAGED, gathered_by=_PAGED.replace(old, new))
    spec = _spec(model)
    assert spec.gathered is None
    new_model, _ = rewrite(model, "site")
    assert [n.op_type for n in new_model.graph.node].count("Gather") == [n.op_type for n in model.graph.node].count(
        "Gather"
    )


def test_written_models_keep_their_gathers() -> None:
    """The pools are for kernels: standard ops would only gather row by row what the model gathers page by page."""
    model = _model(_PAGED)
    assert explain(model).sites[0].spec.gathered is None
    new, _ = rewrite(model)
    assert "Mod" not in {n.op_type for n in new.graph.node}
    feeds = _feeds(model)
    assert_same(run(model, feeds), run(new, feeds))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("gathers", "options"),
    [
        (_PAGED, {}),
        (_PAGED, {"dynamic": True, "integer": "int32"}),
        (_ROWS, {"dynamic": True, "sq": 19}),
        (_HEADS_FIRST, {"sq": 3}),
        (_PAGES_BY_HEAD, {"sq": 3}),
        (_PAGES_BY_HEAD, {"dynamic": True, "integer": "int32"}),
    ],
    ids=["decode", "dynamic", "rows", "heads_first", "pages_by_head", "pages_by_head_dynamic"],
)
def test_compiled(gathers: str, options: dict[str, Any], tmp_path: Path) -> None:
    model = _model(gathers, **options)
    report = compile_model(model, tmp_path / "m.vmfb", parse_target("cpu-host"))
    (site,) = report.sites
    assert (site.fused, site.dispatches, report.misses) == (True, 1, ()) and site.spec.gathered is not None
    compiled = load_module(tmp_path / "m.vmfb")
    for seed in range(3):
        feeds = _feeds(model, seed)
        have = compiled(*(feeds[i.name] for i in model.graph.input))
        assert_same(run(model, feeds), [np.asarray(x) for x in have])
