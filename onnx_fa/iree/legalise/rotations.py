"""Rotary embeddings (rotation_spelling.py) as one node each, which becomes a call of a kernel: for CPUs (kernels/cpu/rotate.py), or
for CUDA (rotated_rows.py). The compiler makes four dispatches of each: two of arithmetic, and two that copy halves."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import onnx
import onnx_ir as ir
from onnx import TensorProto, helper

from onnx_fa.graph.site_op import DOMAIN
from onnx_fa.iree.legalise.rotated_rows import rotated_rows
from onnx_fa.iree.legalise.rotation_spelling import Rotation, rotation_at
from onnx_fa.iree.legalise.writer import FLOATS, GraphWriter, declare_own_nodes
from onnx_fa.kernels.cpu.rotate import RotatedHeads
from onnx_fa.spec.target import Target
from onnx_fa.spec.terms import Dim

ROTATED_HEADS = f"{DOMAIN}.RotatedHeads"
"""Inputs x (rows, width), cos and sin (rows, D / 2); attributes `first`, `heads`, `D`."""


def rotated_heads_of(operands: Sequence[tuple[Dim, ...]], attributes: Mapping[str, Any]) -> RotatedHeads:
    """The kernel of a RotatedHeads whose operands have these shapes."""
    rows, width = operands[0]
    assert isinstance(width, int)
    return RotatedHeads(rows if isinstance(rows, int) else None, width, **attributes)


def find_rotations(
    model: onnx.ModelProto, held: Mapping[str, ir.TensorProtocol] | None = None, *, target: Target | None = None
) -> None:
    """Writes a node for each rotation whose heads lie side by side, of f32 for CPUs and of any float for CUDA, in place. Types of
    values are taken from `value_info`."""
    g = GraphWriter(model, held, target=target)
    on_cpu = g.cpu is not None and g.cpu.kernels == "auto"
    if not on_cpu and (g.cuda is None or not g.cuda.is_gpu):
        return
    kinds = (TensorProto.FLOAT,) if on_cpu else tuple(FLOATS)
    found = {
        place: r for place, node in enumerate(model.graph.node) if (r := rotation_at(g, node, place, kinds)) is not None
    }
    made = _rotated_heads(g, found) if on_cpu else rotated_rows(g, found)
    if not made:
        return
    g.replace_nodes([n for place, node in enumerate(model.graph.node) for n in made.get(place, [node])])
    declare_own_nodes(model)


def _rotated_heads(g: GraphWriter, found: Mapping[int, Rotation]) -> dict[int, list[onnx.NodeProto]]:
    """The nodes at each place where some take the place of others, and none where nodes are gone."""
    made = dict[int, list[onnx.NodeProto]]()
    for place, rotation in found.items():
        shape = g.shape(rotation.y)
        assert shape is not None and g.cpu is not None
        sizes = [d for d in shape[:-2] if isinstance(d, int)]
        rows = math.prod(sizes) if len(sizes) == len(shape) - 2 else None
        read = rotation.read
        spec = RotatedHeads(rows, read.width, read.first, read.heads, read.D)
        if not spec.lanes(g.cpu):
            continue
        start = len(g.nodes)
        _write(g, rotation, spec, g.graph.node[place].name or rotation.y)
        made.update({at: [] for at in rotation.places})
        made[place] = g.nodes[start:]
    return made


def _write(g: GraphWriter, found: Rotation, spec: RotatedHeads, hint: str) -> None:
    shape = g.shape(found.y)
    assert shape is not None
    rows = -1 if spec.rows is None else spec.rows

    def flat(value: str, width: int) -> str:
        return g.typed(g.reshape(value, [rows, width], hint), TensorProto.FLOAT, (spec.lead, width))

    inputs = [flat(found.read.x, spec.width), flat(found.cos, spec.D // 2), flat(found.sin, spec.D // 2)]
    made = g.typed(g.fresh(hint), TensorProto.FLOAT, (spec.lead, spec.heads * spec.D))
    g.nodes.append(
        helper.make_node(
            "RotatedHeads",
            inputs,
            [made],
            g.fresh(f"{hint}/RotatedHeads"),
            domain=DOMAIN,
            first=spec.first,
            heads=spec.heads,
            D=spec.D,
        )
    )
    g.reshape(made, [d if isinstance(d, int) else -1 for d in shape], hint, out=found.y)
