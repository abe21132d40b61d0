"""Passes over K and V: FuseMax's four forms, by graph; what a site in a model says."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import parser

import tests.support.tiny as tiny
from onnx_fa.errors import UnsupportedError
from onnx_fa.forms.rewrite import explain, rewrite
from onnx_fa.passes.axis_probe import Operand, Part, ProbeError, probe
from onnx_fa.passes.kv_passes import count_passes
from onnx_fa.passes.report import Keys, PassReport
from tests.support.sampled import sampled
from tests.support.spelling_table import Entry, entries

HEAD = """<ir_version: 10, opset_import: ["": 18]>
g (float[2,3,7,4] q, float[2,3,12,4] k, float[2,3,12,5] v) => (float[2,3,7,5] o)
<int64[1] last={-1}, int64[1] outer={-2}, int64[5] split={2,3,7,3,4}, int64[4] merged={2,3,7,12},
 int64[1] one={1}, int64[1] c13={13},
 int64[1] d2={2}, int64[1] d3={3}, int64[1] c0={0}, int64[1] c4={4}, int64[1] c8={8}, int64[1] c12={12}> {
 kt = Transpose<perm=[0,1,3,2]>(k)
"""
PLAIN = "s = MatMul(q, kt)\n p = Softmax<axis=-1>(s)\n o = MatMul(p, v)"
SPELLED_OUT = """
 s = MatMul(q, kt)
 m = ReduceMax(s, last)
 d = Sub(s, m)
 e = Exp(d)
 l = ReduceSum(e, last)
 p = Div(e, l)
 o = MatMul(p, v)"""
DEFERRED = """
 s = MatMul(q, kt)
 m = ReduceMax(s, last)
 d = Sub(s, m)
 e = Exp(d)
 l = ReduceSum(e, last)
 a = MatMul(e, v)
 o = Div(a, l)"""
# Maxima and sums of blocks first: what later corrects them holds block statistics only.
TWO_PASS = """
 s = MatMul(q, kt)
 b = Reshape(s, split)
 lm = ReduceMax(b, last)
 bd = Sub(b, lm)
 sln = Exp(bd)
 sld = ReduceSum(sln, last)
 gm = ReduceMax(lm, outer)
 pd = Sub(lm, gm)
 prm = Exp(pd)
 sp = Mul(sld, prm)
 sd = ReduceSum(sp, outer)
 x = Mul(sln, prm)
 a = Div(x, sd)
 ab = Reshape(a, merged)
 o = MatMul(ab, v)"""
BLOCKS = """
 k0 = Slice(kt, c0, c4, d3)
 k1 = Slice(kt, c4, c8, d3)
 k2 = Slice(kt, c8, c12, d3)
 v0 = Slice(v, c0, c4, d2)
 v1 = Slice(v, c4, c8, d2)
 v2 = Slice(v, c8, c12, d2)
 s0 = MatMul(q, k0)
 s1 = MatMul(q, k1)
 s2 = MatMul(q, k2)
 m0 = ReduceMax(s0, last)
 m1 = ReduceMax(s1, last)
 m2 = ReduceMax(s2, last)
"""


def _step(i: int) -> str:
    """Block i of the online softmax: running maximum r, sum l and product a, rescaled by f."""
    return f"""
 r{i} = Max(r{i - 1}, m{i})
 c{i} = Sub(r{i - 1}, r{i})
 f{i} = Exp(c{i})
 x{i} = Sub(s{i}, r{i})
 e{i} = Exp(x{i})
 ls{i} = ReduceSum(e{i}, last)
 lf{i} = Mul(l{i - 1}, f{i})
 l{i} = Add(lf{i}, ls{i})
 as{i} = MatMul(e{i}, v{i})
 af{i} = Mul(a{i - 1}, f{i})
 a{i} = Add(af{i}, as{i})"""


ONLINE = (
    BLOCKS
    + " r0 = Identity(m0)\n x0 = Sub(s0, r0)\n e0 = Exp(x0)\n l0 = ReduceSum(e0, last)\n a0 = MatMul(e0, v0)"
    + _step(1)
    + _step(2)
    + "\n o = Div(a2, l2)"
)
# The same blocks, but with the maximum over all of them: the first two have to be seen again.
BLOCKS_OF_TWO_PASSES = (
    BLOCKS
    + " g1 = Max(m0, m1)\n g = Max(g1, m2)"
    + "".join(
        f"\n x{i} = Sub(s{i}, g)\n e{i} = Exp(x{i})\n l{i} = ReduceSum(e{i}, last)\n a{i} = MatMul(e{i}, v{i})"
        for i in range(3)
    )
    + "\n l01 = Add(l0, l1)\n l = Add(l01, l2)\n a01 = Add(a0, a1)\n a = Add(a01, a2)\n o = Div(a, l)"
)


def _model(body: str) -> onnx.ModelProto:
    return parser.parse_model(HEAD + body + "\n}")


def _count(model: onnx.ModelProto) -> PassReport:
    return count_passes(model, {"k": Keys(2), "v": Keys(2)})


@pytest.mark.parametrize(
    ("body", "passes"),
    [(PLAIN, 3), (SPELLED_OUT, 3), (DEFERRED, 2), (TWO_PASS, 2), (ONLINE, 1), (BLOCKS_OF_TWO_PASSES, 2)],
    ids=["plain", "spelled out", "deferred", "two-pass", "online", "blocks of two passes"],
)
def test_forms(body: str, passes: int) -> None:
    model = _model(body)
    onnx.checker.check_model(model, full_check=True)
    assert _count(model).count == passes


@pytest.mark.parametrize(("form", "passes"), [("decomposed", 2), ("blocked", 1)])
def test_forms_that_are_written(form: str, passes: int) -> None:
    model, _ = rewrite(_model(PLAIN), form)  # type: ignore[arg-type]
    assert isinstance(model, onnx.ModelProto)
    assert _count(model).count == passes


def test_what_runs_when() -> None:
    report = _count(_model(DEFERRED))
    first, second = report.passes
    assert first.ops == ("Transpose:kt", "MatMul:s", "ReduceMax:m") and first.barriers == ("ReduceMax:m",)
    assert second.ops == ("Sub:d", "Exp:e", "ReduceSum:l", "MatMul:a")
    assert second.barriers == ("ReduceSum:l", "MatMul:a")
    assert report.after == ("Div:o",) and report.between == ()
    # Scores and their maximum wait for the second pass; a row sum and the product for the end.
    rows = 2 * 3 * 7 * 4
    assert dict(first.live) == {"s": 12 * rows, "m": rows} and dict(second.live) == {"l": rows, "a": 5 * rows}
    assert report.live_bytes == 13 * rows


def test_block_statistics_are_held() -> None:
    report = _count(_model(TWO_PASS))
    assert report.between == ("Sub:pd", "Exp:prm", "Mul:sp")
    assert {name for name, _ in report.passes[0].live} == {"lm", "sln", "sld"}
    online = _count(_model(ONLINE))
    assert online.live_bytes < report.live_bytes and "Div:o" in online.after


def test_no_op_is_known_by_name() -> None:
    """Other reductions and functions of the score, and another order of axes, count the same."""
    body = """
 s = MatMul(q, kt)
 t = Transpose<perm=[3,0,1,2]>(s)
 m = ReduceMin<keepdims=0>(t, c0)
 d = Sub(t, m)
 e = Softplus(d)
 l = ReduceL2<keepdims=0>(e, c0)
 p = Div(e, l)
 b = Transpose<perm=[1,2,3,0]>(p)
 o = MatMul(b, v)"""
    assert _count(_model(body)).count == 3


def test_axes_by_experiment() -> None:
    import numpy as np
    from onnx import helper

    f32, M = np.dtype(np.float32), Part(12)
    node = helper.make_node("Reshape", ["x", "shape"], ["y"])
    shape = Operand((3,), np.dtype(np.int64), np.array([3, 4, 5]))
    assert probe(node, [Operand((12, 5), f32, None, (M, None)), shape], 18).parts == ((Part(3, 4), Part(4), None),)
    shape = Operand((1,), np.dtype(np.int64), np.array([60]))
    assert probe(node, [Operand((12, 5), f32, None, (M, None)), shape], 18).parts == ((Part(12, 1, 5),),)
    node = helper.make_node("Gemm", ["a", "b"], ["y"], transB=1)
    of = [Operand((7, 4), f32, None, (None, None)), Operand((12, 4), f32, None, (M, None))]
    assert probe(node, of, 18).parts == ((None, M),)
    with pytest.raises(ProbeError, match="NoSuchOp"):
        probe(helper.make_node("NoSuchOp", ["a"], ["y"]), of[:1], 18)


def test_explain_counts(tmp_path: Path) -> None:
    for path in (tiny.attention(tmp_path / "static.onnx"), tiny.attention(tmp_path / "free.onnx", s="S", batch="N")):
        (site,) = explain(path, passes=True).sites
        assert site.passes is not None and site.passes.words == "3 -> 1", site.passes
    (site,) = explain(tiny.standard(tmp_path / "op.onnx"), passes=True).sites  # ONNX's own definition of the op
    assert site.passes is not None and site.passes.words == "3 -> 1", site.passes


def _in_parts() -> tuple[list[Entry], list[Entry]]:
    """Every other row of the table: those of every run, of each group of rows and with each op, and the others."""
    rows = [e for e in entries()[::2] if e.expected == "match"]
    kept = set(sampled([{e.group, *(n.op_type for n in e.build().graph.node)} for e in rows], 10))
    return [rows[i] for i in sorted(kept)], [row for i, row in enumerate(rows) if i not in kept]


@pytest.mark.parametrize("part", [pytest.param(0, id="now"), pytest.param(1, id="others", marks=pytest.mark.whole)])
def test_all_but_a_few_spellings_are_counted(part: int) -> None:
    """Those with onnxruntime's products, functions with attributes left out, and keys in several tensors too. Else the reason is
    given: keys of several axes, or, of a few, shapes that only a run decides."""
    rows = _in_parts()[part]
    sites = [s for e in rows for s in explain(e.build(), passes=True).sites]
    lacking = [s.passes.reason for s in sites if s.passes is None or "?" in s.passes.words]
    assert len(sites) >= len(rows) > 50 and all("passes not counted: " in reason for reason in lacking)
    assert sum("no single axis" not in reason for reason in lacking) < len(sites) / 18
    assert {s.passes.after.count for s in sites if s.passes is not None and s.passes.after is not None} <= {1, 2}


def test_gathering_along_a_long_axis() -> None:
    """ONNX's own evaluator takes no more than 64 elements there."""
    node = onnx.helper.make_node("GatherElements", ["x", "i"], ["y"], axis=1)
    x = Operand((12, 100), np.dtype(np.float32), None, (Part(12), None))
    index = Operand((12, 7), np.dtype(np.int64), np.arange(84).reshape(12, 7))
    assert probe(node, [x, index], 18).parts == ((Part(12), None),)


def test_what_cannot_be_counted_is_said() -> None:
    with pytest.raises(UnsupportedError, match="no value x"):
        count_passes(_model(PLAIN), {"k": Keys(2), "x": Keys(2)})
    with pytest.raises(UnsupportedError, match="12 and 5 positions"):
        count_passes(_model(PLAIN), {"k": Keys(2), "v": Keys(3)})


IN_TWO = """<ir_version: 10, opset_import: ["": 18]>
g (float[2,3,7,4] q, float[2,3,8,4] k0, float[2,3,4,4] k1, float[2,3,8,5] v0, float[2,3,4,5] v1) => (float[2,3,7,5] o)
<int64[2] cut={8,4}> {
 t0 = Transpose<perm=[0,1,3,2]>(k0)
 t1 = Transpose<perm=[0,1,3,2]>(k1)
 s0 = MatMul(q, t0)
 s1 = MatMul(q, t1)
 s = Concat<axis=-1>(s0, s1)
 p = Softmax<axis=-1>(s)
 p0, p1 = Split<axis=-1>(p, cut)
 o0 = MatMul(p0, v0)
 o1 = MatMul(p1, v1)
 o = Add(o0, o1)
}"""


@pytest.mark.parametrize("first", [8, 11])
def test_keys_in_two_tensors_are_one_rank(first: int) -> None:
    """Blocks that are joined, and those that are cut from all, pass by with the rest, also one of a single key."""
    second = 12 - first
    text = (
        IN_TWO.replace("3,8,", f"3,{first},").replace("3,4,", f"3,{second},").replace("{8,4}", f"{{{first},{second}}}")
    )
    model = parser.parse_model(text)
    onnx.checker.check_model(model, full_check=True)
    places = {"k0": Keys(2, 0, 12), "k1": Keys(2, first, 12), "v0": Keys(2, 0, 12), "v1": Keys(2, first, 12)}
    assert count_passes(model, places).count == 3
    (site,) = explain(model, passes=True).sites
    assert site.passes is not None and site.passes.words == "3 -> 1", site.passes


def test_keys_read_through_other_tensors() -> None:
    """Probabilities weighed by a factor for each key, and a part of the head dim that comes from elsewhere."""
    weighed = PLAIN.replace("MatMul(p, v)", "MatMul(w, v)").replace("\n o =", "\n w = Mul(p, weights)\n o =")
    text = (HEAD + weighed + "\n}").replace("float[2,3,12,5] v)", "float[2,3,12,5] v, float[2,1,1,12] weights)")
    turned = HEAD.replace("k, float[2,3,12,5] v)", "k, float[2,12,2] r, float[2,3,12,5] v)")
    turned = turned.replace("float[2,3,7,4] q", "float[2,3,7,6] q").replace(
        "<perm=[0,1,3,2]>(k)", "<perm=[0,1,3,2]>(kr)"
    )
    turned = turned.replace("int64[1] one={1},", "int64[1] one={1}, int64[4] wide={2,3,12,2},")
    own = " r1 = Unsqueeze(r, one)\n r3 = Expand(r1, wide)\n kr = Concat<axis=-1>(k, r3)\n kt ="
    for model in (parser.parse_model(text), parser.parse_model(turned.replace(" kt =", own) + PLAIN + "\n}")):
        onnx.checker.check_model(model, full_check=True)
        (site,) = explain(model, passes=True).sites
        assert site.passes is not None and site.passes.words == "3 -> 1", site.passes


def test_a_sinks_column_is_more_than_all_keys() -> None:
    body = """
 s = MatMul(q, kt)
 m = ReduceMax(s, last)
 column = Sub(m, m)
 c = Concat<axis=-1>(column, s)
 p = Softmax<axis=-1>(c)
 w = Slice(p, one, c13, d3)
 o = MatMul(w, v)"""
    assert _count(_model(body)).count == 4  # the column itself waits for the maximum
    assert _count(_model(body.replace("ReduceMax(s, last)", "ReduceMax(q, last)"))).count == 3


def _of_bf16(nodes: str) -> onnx.ModelProto:
    head = """<ir_version: 10, opset_import: ["": 13]>
    g (bfloat16[1,2,5,8] q, bfloat16[1,2,5,8] k, bfloat16[1,2,5,8] v, bool[5,5] keep) => (bfloat16[1,2,5,8] o) {"""
    return parser.parse_model(head + nodes + "}")


@pytest.mark.parametrize(
    "nodes",
    [
        """s = Einsum<equation="bhqd,bhkd->bhqk">(q, k)
        p = Softmax<axis=-1>(s)
        o = Einsum<equation="bhqk,bhkd->bhqd">(p, v)""",
        """kt = Transpose<perm=[0,1,3,2]>(k)
        s = MatMul(q, kt)
        low = Neg(s)
        m = Where(keep, s, low)
        p = Softmax<axis=-1>(m)
        o = MatMul(p, v)""",
    ],
)
def test_types_that_onnx_does_not_give_an_op(nodes: str) -> None:
    """Einsum takes no bf16, and Where none before opset 16: JAX's exporters write both."""
    (site,) = explain(_of_bf16(nodes), passes=True).sites
    assert site.passes is not None and site.passes.words == "3 -> 1"


def test_no_exception_leaves_the_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> PassReport:
        raise ZeroDivisionError("by\nzero")

    monkeypatch.setattr("onnx_fa.forms.site_passes.count_passes", fails)
    (site,) = explain(tiny.attention(tmp_path / "m.onnx"), passes=True).sites
    assert site.passes is not None and site.passes.before is None
    assert "passes not counted: ZeroDivisionError" in site.passes.reason and "\n" not in site.passes.reason
