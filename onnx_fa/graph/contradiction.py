"""What shows that a model fails in every run, so that nothing can be said of its attentions."""

from __future__ import annotations

import sympy

from onnx_fa.graph.dims import Shape, product_of
from onnx_fa.graph.lengths import expression
from onnx_fa.graph.ops import op_of
from onnx_fa.graph.view import GraphView


def find_contradiction(view: GraphView) -> str | None:
    """Why no run of the model comes to its end, whatever it is given; None where nothing shows that. An exporter that mistakes the
    number of heads writes such a Reshape: 48 * batch * seq elements become 24 * batch * seq. Nodes in branches and bodies are not
    looked at: they may not run."""
    for node in view.model.graph:
        if op_of(node) != "Reshape" or not node.outputs:
            continue
        before, after = view.shape(node.inputs[0]), view.shape(node.outputs[0])
        if before is not None and after is not None and _never_as_many(before, after):
            label = node.name or f"Reshape:{node.outputs[0].name}"
            return (
                f"the model fails in every run with a batch and a length: {label} is to make {_words(after)} of "
                f"{_words(before)}, another number of elements; export it anew"
            )
    return None


def _never_as_many(one: Shape, other: Shape) -> bool:
    """Whether tensors of these shapes never have equally many elements, but for none at all."""
    counts = [product_of(one), product_of(other)]
    if None in counts or 0 in counts:
        return False
    ratio = sympy.cancel(expression(counts[0]) / expression(counts[1]))
    return bool(ratio.is_Number and ratio != 1)


def _words(shape: Shape) -> str:
    return f"[{', '.join(map(str, shape))}]"
