"""Loop and Scan, of which IREE computes some wrongly without a word (docs/developer/iree-bugs.md)."""

from __future__ import annotations

import numpy as np
import onnx

from onnx_fa.errors import ModelError
from onnx_fa.iree.legalise.writer import GraphWriter, attr_of
from onnx_fa.patterns.ops.blocked import SPEC_KEY


def loop(g: GraphWriter, node: onnx.NodeProto) -> bool:
    """A Loop without a first condition: IREE wants one. Raises ModelError for that of the blocked form, which ends the compiler
    by a segmentation fault."""
    if any(p.key == SPEC_KEY for p in node.metadata_props):
        raise ModelError(
            f"{node.name or 'Loop'}: attention in the blocked form, which IREE's compiler does not survive "
            "(docs/developer/iree-bugs.md): compile the model that it was made from"
        )
    free = [sum(not isinstance(d, int) for d in g.shape(name) or []) for name in node.input[2:]]
    if len([n for n in free if n]) > 1 and max(free) > 1:
        raise ModelError(
            f"node {node.name!r}: Loop that carries {len(free)} values of free sizes, whose memory IREE mixes up where one has two "
            "such sizes; give them (--dim)"
        )
    if len(node.input) < 2 or node.input[1]:
        return False
    made = onnx.NodeProto()
    made.CopyFrom(node)
    made.input[1] = g.const(np.array(True), node.name or "Loop")
    g.nodes.append(made)
    return True


def scan(g: GraphWriter, node: onnx.NodeProto) -> bool:
    """Raises ModelError for a Scan of a number of steps that only a run knows: IREE takes the first of them, or refuses."""
    count = attr_of(node, "num_scan_inputs", 0)
    axes = attr_of(node, "scan_input_axes", [0] * count)
    for x, axis in zip(node.input[len(node.input) - count :], axes, strict=False):
        shape = g.shape(x)
        if shape and not isinstance(shape[axis], int):
            raise ModelError(
                f"node {node.name!r}: Scan over {x!r}, whose length is not static, of which IREE takes one step; give it (--dim)"
            )
    return False
