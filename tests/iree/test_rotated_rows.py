"""Rotations on CUDA, with the new rows of caches: which queries, keys and values of one product are one node, and which are not."""

from __future__ import annotations

from collections import Counter

import onnx
import onnx.parser
import pytest

from onnx_fa.iree.importer import import_mlir
from onnx_fa.iree.inference import infer_types
from onnx_fa.iree.legalise.rotated_rows import ROTATED_ROWS, rotated_spec_of
from onnx_fa.iree.legalise.rotations import find_rotations
from onnx_fa.iree.legalise.writer import FLOATS, GraphWriter, attributes_of, named_dims
from onnx_fa.spec.rotated import KeptHeads, RotatedSpec
from onnx_fa.spec.target import parse_target
from tests.support.triton_sources import triton_sources

CUDA = parse_target("cuda")
HQ, HKV, D, CACHE = 3, 2, 16, 9
CONSTANTS = "".join(
    f"{name} = Constant <value = int64[{len(numbers)}] {{{', '.join(map(str, numbers))}}}> () "
    for name, numbers in {
        "zero": [0],
        "half": [D // 2],
        "d": [D],
        "last": [-1],
        "k0": [HQ * D],
        "v0": [(HQ + HKV) * D],
        "end": [(HQ + 2 * HKV) * D],
        "as_q": [0, 0, HQ, D],
        "as_kv": [0, 0, HKV, D],
        "two": [2],
    }.items()
)


def rotated(x: str, y: str, cos: str = "c", sin: str = "n") -> str:
    """x (B, S, H, D) rotated, as it is spelled."""
    return (
        f"{y}a = Slice({x}, zero, half, last) {y}b = Slice({x}, half, d, last) {y}ac = Mul({y}a, {cos}) {y}bs = Mul({y}b, {sin}) "
        f"{y}r = Sub({y}ac, {y}bs) {y}as = Mul({y}a, {sin}) {y}bc = Mul({y}b, {cos}) {y}i = Add({y}as, {y}bc) "
        f"{y} = Concat <axis = -1> ({y}r, {y}i) "
    )


TABLES = "cg = Gather <axis = 0> (table, at) c = Unsqueeze(cg, two) ng = Gather <axis = 0> (other, at) n = Unsqueeze(ng, two) "
AGAIN = TABLES.replace("cg", "ch").replace("ng", "nh").replace("c =", "c2 =").replace("n =", "n2 =")
QUERIES = "qf = Slice(x, zero, k0, last) qh = Reshape(qf, as_q) " + rotated("qh", "q")
KEYS = "kf = Slice(x, k0, v0, last) kh = Reshape(kf, as_kv) " + rotated("kh", "k", "c2", "n2")
VALUES = "vf = Slice(x, v0, end, last) vh = Reshape(vf, as_kv) "
FRONT = "{0}t = Transpose <perm = [0, 2, 1, 3]> ({0}) {0}w = Transpose <perm = [2, 0, 1, 3]> ({0}t) "
APPENDED = FRONT.format("k") + FRONT.format("vh") + "K = onnx_fa.AppendRows(pk, kw) V = onnx_fa.AppendRows(pv, vhw) "
WHOLE = CONSTANTS + TABLES + QUERIES + AGAIN + KEYS + VALUES + APPENDED
APART = {
    "keys_by_other_tables": WHOLE.replace(AGAIN, AGAIN.replace("Gather <axis = 0> (other", "Gather <axis = 0> (table")),
    "keys_by_other_rows": WHOLE.replace(AGAIN, AGAIN.replace("(table, at)", "(table, at2)")),
    "keys_read": WHOLE + "u = Neg(k) ",
    "values_read": WHOLE + "u = Neg(vh) ",
    "values_of_others": WHOLE.replace("vf = Slice(x,", "vf = Slice(x2,"),
    "values_rotated": WHOLE.replace(VALUES, VALUES + rotated("vh", "v")).replace("(vh)", "(v)"),
    "not_turned": WHOLE.replace(
        FRONT.format("vh"),
        "vt = Transpose <perm = [1, 0, 3, 2]> (vh) vhw = Transpose <perm = [0, 1, 3, 2]> (vt) vz = Neg(vhw)",
    ),
    "no_values": WHOLE.replace("V = onnx_fa.AppendRows(pv, vhw)", "V = Add(vhw, vhw)"),
    "cache_made_later": WHOLE.replace("K = onnx_fa.AppendRows(pk, kw)", "pl = Neg(pk) K = onnx_fa.AppendRows(pl, kw)"),
}


def model(body: str, lead: str = "1, 1", dtype: str = "float", batch: str = "") -> onnx.ModelProto:
    """The graph of a body; `batch` is what it says of the caches' second dim, that of `lead` unless it is given."""
    batch = batch or lead.partition(", ")[0]
    cache = f"{dtype}[{CACHE}, {batch}, {HKV}, {D}]"
    shape = f"{dtype}[{lead}, {(HQ + 2 * HKV) * D}]"
    given = f"{shape} x, {shape} x2, int64[{lead}] at, int64[{lead}] at2, {cache} pk, {cache} pv"
    given += f", {dtype}[64, {D // 2}] table, {dtype}[64, {D // 2}] other"
    heads = f"{dtype}[{lead}, {HQ}, {D}] q"
    read = f", {dtype}[N, M, L, P] u" if " u = " in body else ""
    if "vz =" in body:
        read += f", {dtype}[N, M, L, P] vz"
    text = (
        '<ir_version: 9, opset_import: ["" : 17, "onnx_fa" : 1]> '
        f"g ({given}) => ({heads}, {cache} K, {cache} V{read}) {{ {body} }}"
    )
    made = onnx.parser.parse_model(text)
    used = {name for node in made.graph.node for name in node.input}
    kept = [v for v in made.graph.input if v.name in used]
    del made.graph.input[:]
    made.graph.input.extend(kept)
    return made


def found_in(proto: onnx.ModelProto) -> list[RotatedSpec]:
    """The specs of the nodes that rotations became."""
    infer_types(proto, {})
    with triton_sources():
        find_rotations(proto, target=CUDA)
    onnx.checker.check_graph(proto.graph, _context())
    g = GraphWriter(proto)
    return [
        rotated_spec_of([(named_dims(g.shape(x) or ()), FLOATS[g.kind(x)]) for x in node.input], attributes_of(node))
        for node in proto.graph.node
        if f"{node.domain}.{node.op_type}" == ROTATED_ROWS
    ]


def _context() -> onnx.checker.C.CheckerContext:
    """Of graphs whose nodes are in order."""
    context = onnx.checker.C.CheckerContext()
    context.ir_version, context.opset_imports = 9, {"": 17, "onnx_fa": 1}
    return context


@pytest.mark.parametrize("dtype", ["float", "float16"])
@pytest.mark.parametrize("lead", ["1, 1", "2, 3", "1, n"])
def test_whole(lead: str, dtype: str) -> None:
    proto = model(WHOLE, lead, dtype)
    (spec,) = found_in(proto)
    assert (spec.first, spec.heads, spec.D, spec.width) == (0, HQ, D, (HQ + 2 * HKV) * D)
    assert spec.kept == KeptHeads(HQ * D, (HQ + HKV) * D, HKV, CACHE)
    assert Counter(n.op_type for n in proto.graph.node).keys().isdisjoint({"AppendRows", "Transpose", "Concat", "Mul"})


def test_keys_first() -> None:
    """The node stands where the first of the rotations does, and reads the tables that are there by then."""
    (spec,) = found_in(model(CONSTANTS + AGAIN + KEYS + TABLES + QUERIES + VALUES + APPENDED))
    assert spec.kept is not None


@pytest.mark.parametrize("name", APART)
def test_apart(name: str) -> None:
    """Where keys or values are something else, or read by others, the rotations are nodes of their own."""
    found = found_in(model(APART[name]))
    assert len(found) == 2 + (name == "values_rotated") and all(spec.kept is None for spec in found)


def test_caches_of_a_batch_that_is_not_known_stay_apart() -> None:
    found = found_in(model(WHOLE, batch="b"))
    assert len(found) == 2 and all(spec.kept is None for spec in found)


def test_text() -> None:
    """What the program calls: one function, which takes the caches and returns them."""
    with triton_sources():
        text = import_mlir(model(WHOLE), {}, target=CUDA).text
    calls = [line for line in text.splitlines() if "util.call" in line]
    assert len(calls) == 1 and calls[0].count(f"tensor<{CACHE}x1x{HKV}x{D}xf32>") == 4
