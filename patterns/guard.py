"""After the softmax: Where(IsNaN(p), 0, p), which turns a fully masked row's NaN into zero."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from onnx_fa.graph_view import GraphView
from onnx_fa.match import After


def nan_guard(view: GraphView, value: ir.Value, users: Sequence[ir.Node]) -> After | None:
    tests = [u for u in users if u.op_type == "IsNaN"]
    wheres = [u for u in users if u.op_type == "Where"]
    if len(users) != 2 or len(tests) != 1 or len(wheres) != 1:
        return None
    test, where = tests[0], wheres[0]
    if view.users(test.outputs[0]) != [where] or test.outputs[0].is_graph_output():
        return None
    if where.inputs[0] is test.outputs[0] and where.inputs[2] is value and view.scalar(where.inputs[1]) == 0.0:
        return After(where.outputs[0], guard=True)
    return None
