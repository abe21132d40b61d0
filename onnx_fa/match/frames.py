"""The axes of the score on its way: at the product of Q and K, after each step, at the softmax, and of the probabilities."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import onnx_ir as ir

from onnx_fa.graph.axes import Axes, placed_axes
from onnx_fa.graph.ops import op_of
from onnx_fa.graph.view import GraphView, axes_of
from onnx_fa.match.axes import Axis, leaves, regroup, split_atom, spread_atom
from onnx_fa.match.hints import refuse_rank, say_sizes
from onnx_fa.match.misses import NoMatch
from onnx_fa.match.types import Regroup, Step, Weighting


@dataclass
class Frames:
    """The axes of the score at the product of Q and K, after each step, at the softmax, and of the probabilities."""

    start: list[Axis]
    steps: list[list[Axis]] = field(default_factory=list)
    """The axes that each step sees."""
    given: list[Axis] = field(default_factory=list)
    """The axes of the softmax's input, which are those of its result."""
    softmax: list[Axis] = field(default_factory=list)
    """The same axes, those that the softmax is over as one axis, the last."""
    prob: list[Axis] = field(default_factory=list)


def trace_axes(
    view: GraphView, start: list[Axis], steps: Sequence[Step], score: ir.Value, weighting: Weighting, over: Axes
) -> Frames:
    """Follows the axes through the steps. Atoms split where a Reshape splits an axis."""
    frames = Frames(start)
    axes = start
    after = iter([*(s.node for s in steps if isinstance(s, Regroup)), None])
    node = next(after)
    for step in steps:
        source = node.inputs[0] if node is not None else score
        axes = _pad_axes(view, axes, source)
        frames.steps.append(axes)
        if isinstance(step, Regroup):
            axes = follow_node(view, step.node, axes)
            node = next(after)
    frames.given = axes = _pad_axes(view, axes, score)
    at = placed_axes(over, len(axes))
    if at is None:
        raise NoMatch(f"the softmax is over axes {list(over)} of scores that have {len(axes)}")
    keys = [atom for i in sorted(at) for atom in axes[i]]
    frames.softmax = [*(axis for i, axis in enumerate(axes) if i not in at), keys]
    for moved_by in weighting.regroups:
        axes = follow_node(view, moved_by, axes)
    frames.prob = axes
    return frames


def _pad_axes(view: GraphView, axes: list[Axis], value: ir.Value | None) -> list[Axis]:
    """The axes, and in front of them the unit dims that a mask has added by broadcasting."""
    shape = view.shape(value)
    if shape is None:
        raise refuse_rank(view, "the score", value)
    extra = len(shape) - len(axes)
    if extra < 0 or any(d != 1 for d in shape[:extra]):
        raise NoMatch("a mask broadcasts the score to more dims", value.producer() if value is not None else None)
    return [*([] for _ in range(extra)), *axes]


def follow_node(view: GraphView, node: ir.Node, axes: list[Axis]) -> list[Axis]:
    """The axes behind a Reshape, Transpose, Squeeze, Unsqueeze or Flatten. Raises NoMatch where they cannot be told."""
    shape = view.shape(node.outputs[0])
    if shape is None:
        raise refuse_rank(view, "the score", node.outputs[0], node)
    if op_of(node) == "Transpose":
        perm = list(node.attributes["perm"].as_ints()) if "perm" in node.attributes else list(range(len(axes)))[::-1]
        return [axes[p] for p in perm]
    listed = axes_of(view, node) if op_of(node) in ("Squeeze", "Unsqueeze") else None
    placed = placed_axes(listed, len(shape) if op_of(node) == "Unsqueeze" else len(axes))
    if listed is not None and placed is None:
        raise NoMatch(f"its axes {listed} are none of the score", node)
    if placed is not None and op_of(node) == "Unsqueeze":
        rest = iter(axes)
        return [[] if i in placed else next(rest) for i in range(len(shape))]
    if placed is not None:
        if any(leaves(axes[i]) for i in placed):
            hint = say_sizes(view, [a.size for i in placed for a in leaves(axes[i])])
            raise NoMatch(f"an axis that is not provably of size one is squeezed{hint}", node)
        return [axis for i, axis in enumerate(axes) if i not in placed]
    found = regroup([a for axis in axes for a in leaves(axis)], shape, split_atom, spread_atom)
    if found is None:
        raise NoMatch(f"how {node.op_type} regroups the axes of the score to {list(shape)} cannot be told", node)
    return found
