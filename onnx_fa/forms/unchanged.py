"""Whether what a form would write stands in the graph already."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir


def is_same_value(new: ir.Value, old: ir.Value, stop: set[ir.Value]) -> bool:
    """Whether two values are computed by the same ops from the same operands: then a rewrite would change nothing."""
    todo, seen = [(new, old)], set[tuple[ir.Value, ir.Value]]()
    while todo:
        pair = todo.pop()
        if pair[0] is pair[1] or pair in seen:
            continue
        seen.add(pair)
        above = _same_if(*pair, stop)
        if above is None:
            return False
        todo += above
    return True


def _same_if(new: ir.Value, old: ir.Value, stop: set[ir.Value]) -> list[tuple[ir.Value, ir.Value]] | None:
    """The pairs of values that have to be the same for these to be; None where they are not."""
    if new.const_value is not None and old.const_value is not None:
        a, b = new.const_value, old.const_value
        same = a.dtype == b.dtype and a.shape == b.shape and np.array_equal(a.numpy(), b.numpy())
        return [] if same else None
    if new in stop or old in stop:
        return None
    x, y = new.producer(), old.producer()
    if x is None or y is None or x.op_identifier() != y.op_identifier() or len(x.inputs) != len(y.inputs):
        return None
    if x.outputs.index(new) != y.outputs.index(old) or not _same_attributes(x, y):
        return None
    pairs = list(zip(x.inputs, y.inputs, strict=True))
    if any((i is None) != (j is None) for i, j in pairs):
        return None
    return [(i, j) for i, j in pairs if i is not None and j is not None]


def _same_attributes(x: ir.Node, y: ir.Node) -> bool:
    def plain(node: ir.Node) -> dict[str, object]:
        return {
            k: tuple(a.value) if isinstance(a.value, (list, tuple)) else a.value for k, a in node.attributes.items()
        }

    return plain(x) == plain(y)


def nodes_between(output: ir.Value, operands: set[ir.Value]) -> tuple[ir.Node, ...]:
    """The nodes from the operands to the output, each behind those that it reads."""
    found: dict[ir.Node, None] = {}
    stack = [output]
    opened: set[ir.Node] = set()
    while stack:
        value = stack[-1]
        node = value.producer()
        if value in operands or node is None or node in found:
            stack.pop()
        elif node in opened:
            found[node] = None
            stack.pop()
        else:
            opened.add(node)
            stack += [i for i in reversed(node.inputs) if i is not None]
    return tuple(found)
