"""What a graph that is being rewritten knows of its nodes."""

from __future__ import annotations

import onnx.parser
import pytest

from onnx_fa.iree.legalise.writer import GraphWriter


def test_places_of_nodes() -> None:
    """Those of the graph as it came, by any of a node's outputs, whatever is added and whichever nodes are equal."""
    model = onnx.parser.parse_model("""<ir_version: 9, opset_import: ["": 18]> g (float[4] x) => (float[2] a, float[2] b) {
        r = Relu(x)
        s = Relu(x)
        a, c = Split<num_outputs = 2>(r)
        d, b = Split<num_outputs = 2>(s)
    }""")
    g = GraphWriter(model)
    g.add("Abs", ["x"], "added")
    assert [g.place(name) for name in ("r", "s", "a", "c", "d", "b")] == [0, 1, 2, 2, 3, 3]
    assert all(g.maker(name) is g.graph.node[g.place(name)] for name in ("r", "s", "c", "b"))
    assert g.maker("x") is None
    with pytest.raises(KeyError):
        g.place("x")
