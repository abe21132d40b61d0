"""Loops of which IREE computes some wrongly without a word (docs/developer/iree-bugs.md)."""

from __future__ import annotations

import numpy as np
import onnx

from onnx_fa.errors import ModelError
from onnx_fa.iree.legalise.writer import GraphWriter
from onnx_fa.patterns.ops.blocked import SPEC_KEY


def loop(g: GraphWriter, node: onnx.NodeProto) -> bool:
    """A Loop without a first condition: IREE wants one. Raises ModelError for that of the blocked form, which ends the compiler
    by a segmentation fault."""
    if any(p.key == SPEC_KEY for p in node.metadata_props):
        raise ModelError(
            f"{node.name or 'Loop'}: attention in the blocked form, which IREE's compiler does not survive "
            "(docs/developer/iree-bugs.md): compile the model that it was made from"
        )
    free = [name for name in node.input[2:] if g.is_free(name)]
    if len(free) > 1:
        raise ModelError(
            f"node {node.name!r}: Loop that carries {len(free)} values of free sizes, whose memory IREE mixes up; give them (--dim)"
        )
    if len(node.input) < 2 or node.input[1]:
        return False
    made = onnx.NodeProto()
    made.CopyFrom(node)
    made.input[1] = g.const(np.array(True), node.name or "Loop")
    g.nodes.append(made)
    return True
