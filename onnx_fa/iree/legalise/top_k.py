"""TopK as IREE compiles it: sorted, with its values read, and of signed numbers."""

from __future__ import annotations

import onnx
from onnx import TensorProto

from onnx_fa.iree.legalise import unsigned
from onnx_fa.iree.legalise.casts import add_cast
from onnx_fa.iree.legalise.writer import GraphWriter, attr_of


def top_k(g: GraphWriter, node: onnx.NodeProto) -> bool:
    """Sorted is one of the orders that `sorted=0` leaves open, as experts are chosen by. Where only the places are read, IREE sorts
    a copy of the values, for which the stack is too small unless it knows their number: so the places read the values, too.
    Unsigned integers are sorted as signed ones that hold them. Raises ModelError for uint64."""
    values, *places = node.output
    alone = bool(places and places[0]) and not g.readers(values) and not g.is_output(values)
    wide = unsigned.widened(g, node)
    if not alone and attr_of(node, "sorted", 1) and wide is None:
        return False
    made = onnx.NodeProto()
    made.CopyFrom(node)
    del made.attribute[:]
    made.attribute.extend(a for a in node.attribute if a.name != "sorted")
    hint, kind = node.name or "TopK", g.kind(node.input[0])
    if wide is not None:
        made.input[0], made.output[0] = g.cast(node.input[0], kind, wide, hint), g.fresh(hint)
    g.nodes.append(made)
    if alone:
        _read_values(g, made, places[0], wide or kind)
    elif wide is not None:
        add_cast(g, made.output[0], wide, kind, hint, out=values)
    return True


def _read_values(g: GraphWriter, node: onnx.NodeProto, places: str, kind: int) -> None:
    """Adds to the places of a TopK whether a value is below one and above one: 0, of which the compiler does not know that."""
    hint = node.name or "TopK"
    values = node.output[0]
    node.output[1] = g.fresh(hint)
    one = g.scalar(1, kind, hint)
    never = g.add("And", [g.add("Less", [values, one], hint), g.add("Greater", [values, one], hint)], hint)
    nothing = g.add("Cast", [never], hint, to=TensorProto.INT64)
    g.add("Add", [node.output[1], nothing], hint, out=places)
