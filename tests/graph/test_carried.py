"""Shapes that a Loop or Scan carries, and those that both branches of an If give: what they are in every run, or nothing."""

from __future__ import annotations

import onnx.parser

from onnx_fa.graph.dims import Shape
from onnx_fa.graph.io import load
from onnx_fa.graph.normalise import infer_shapes
from onnx_fa.graph.view import GraphView

_HEAD = '<ir_version: 10, opset_import: ["": 21]>'


def shapes(text: str) -> dict[str, Shape | None]:
    """The shape of every value of a graph, and of those inside it, by name."""
    model = load(onnx.parser.parse_model(f"{_HEAD} g {text}"))
    infer_shapes(model)
    view = GraphView(model)
    values = [v for g in model.graphs() for v in (*g.inputs, *(o for n in g for o in n.outputs))]
    return {str(v.name): view.shape(v) for v in values}


def loop(nodes: str) -> dict[str, Shape | None]:
    """Of a Loop over x of [s, 4] and y of [4, s], whose body makes c and d of a and b."""
    return shapes(f"""(float[s, 4] x, float[4, s] y, int64 trips, bool go) => (float[m, n] first, float[p, q] second) {{
  first, second = Loop(trips, go, x, y) <
    body = inside (int64 i, bool before, float[?, ?] a, float[?, ?] b) => (bool again, float[?, ?] c, float[?, ?] d) {{
      again = Identity(before)
      {nodes}
  }}>
}}""")


def test_shapes_that_the_body_keeps() -> None:
    found = loop("c = Neg(a)\n t = Transpose(c)\n d = Add(b, t)")
    assert found["a"] == found["c"] == found["first"] == ("s", 4)
    assert found["b"] == found["t"] == (4, "s")


def test_shapes_that_change_from_run_to_run() -> None:
    found = loop("c = Transpose(a)\n d = Concat<axis = 1>(b, b)")
    assert found["a"] is not None and not {"s", 4} & {*found["a"]}
    assert found["b"] is not None and found["b"][0] == 4 and found["b"][1] != "s", "one dim stays"


def test_what_follows_from_a_shape_that_changes() -> None:
    """d has b's shape only while c has a's."""
    found = loop("c = Concat<axis = 0>(a, a)\n t = Transpose(c)\n d = Add(b, t)")
    assert found["a"] is not None and found["a"][1] == 4 and found["a"][0] != "s"
    assert found["b"] is not None and found["b"][0] == 4 and found["b"][1] != "s"


def test_loops_inside_each_other() -> None:
    inner = """c = Loop(i, before, a) <body = deep (int64 j, bool was, float[?, ?] e) => (bool on, float[?, ?] f) {
        on = Identity(was)
        f = MADE
      }>
      d = Identity(b)"""
    assert loop(inner.replace("MADE", "Exp(e)"))["f"] == ("s", 4)
    grown = loop(inner.replace("MADE", "Concat<axis = 0>(e, e)"))
    assert grown["f"] is not None and "s" not in grown["f"], grown["f"]
    assert grown["a"] is not None and grown["a"][0] != "s", grown["a"]


def test_branches_that_agree() -> None:
    def branches(other: str) -> Shape | None:
        return shapes(f"""(float[s, 4] x, float[s, t] y, bool first) => (float[m, n] z) {{
  z = If(first) <then_branch = yes () => (float[a, b] p) {{ p = Neg(x) }}, else_branch = no () => (float[c, d] r) {{ {other} }}>
}}""")["z"]

    assert branches("r = Exp(x)") == ("s", 4)
    one = branches("r = Exp(y)")
    assert one is not None and one[0] == "s" and one[1] not in (4, "t")
