"""In which pass an op runs, and when its results are known."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt
import onnx
import onnx.inliner

from onnx_fa.passes.axis_probe import Part

Array = npt.NDArray[np.generic]
Time = tuple[int, int]
"""(pass, positions of M that are over in it): when something is known."""


@dataclass
class Tracked:
    """`ready`: when an element can be read by what streams along; `complete`: when all of it is known. `made`: half passes until it
    is there (2p in pass p, 2p+1 after it). `root`: the value whose elements it shows, if an op only moved them."""

    shape: tuple[int, ...]
    dtype: np.dtype[np.generic]
    const: Array | None = None
    parts: tuple[Part | None, ...] = ()
    ready: Time = (0, 0)
    complete: Time = (0, 0)
    depends: bool = False
    counter: bool = False
    block: bool = False
    """Inside a loop over blocks of M: one block's share."""
    made: int = -1
    root: str = ""

    @property
    def bytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


@dataclass
class Schedule:
    M: int
    opset: int
    values: dict[str, Tracked] = field(default_factory=dict)
    ops: dict[int, dict[str, bool]] = field(default_factory=dict)
    """By pass: the ops and whether each is a barrier."""
    others: dict[str, tuple[int, str]] = field(default_factory=dict)
    """Ops that hold no M, or a share of it: when (made), and their output."""
    last_read: dict[str, int] = field(default_factory=dict)
    block_bytes: int = 0
    in_loop: bool = False


def place_op(
    state: Schedule,
    node: onnx.NodeProto,
    inputs: Sequence[Tracked | None],
    outs: Sequence[Tracked],
    held: set[Part],
    moves: bool,
) -> None:
    """Says in which pass the op runs, or after which, and when its results are known."""
    name = node.name or f"{node.op_type}:{node.output[0]}"
    given = [v for v in inputs if v is not None]
    ready = max((v.ready for v in given), default=(0, 0))
    complete = max((v.complete for v in given), default=(0, 0))
    blocks = [p for p in held if p.cut]
    joined = any(p is not None and not p.cut and p.count == state.M for o in outs for p in o.parts)
    whole = math.prod(p.count for p in {replace(p, inner=1) for p in held}) >= state.M
    if blocks and joined and not state.in_loop:
        # What joins blocks (Concat) has an element of each as soon as that block has it.
        n = max(v.ready[0] + (v.ready[1] > end_of_block(v)) for v in given)
        state.ops.setdefault(n, {})[name] = False
        made, ready, complete = 2 * n, (n, 0), (n, state.M)
    elif blocks or (whole and held):
        # One block is held while it is worked on, so what is known at its end is known to it; a whole rank streams by.
        at = max((1 if p.lo is None else p.lo + p.count for p in blocks), default=0)
        cuts = [end_of_block(o) for o in outs if end_of_block(o)] if len(outs) > 1 else []
        n = ready[0] if ready[1] <= min(cuts, default=at) else ready[0] + 1
        end = state.M if not blocks or any(p.lo is None for p in blocks) else at
        left = any(p is not None for o in outs for p in o.parts)
        state.ops.setdefault(n, {})[name] = not left and not blocks
        made, ready, complete = 2 * n, (n, at) if left or blocks else (n, end), (n, end)
        if blocks:
            state.block_bytes = max([state.block_bytes, *(o.bytes for o in outs if any(o.parts))])
    else:
        statistic = any(p is not None for o in outs for p in o.parts)
        if held and not statistic:
            ready = complete  # a reduction over blocks
            state.ops.setdefault(complete[0], {})[name] = True
        elif not held and not state.in_loop:
            ready = complete
        made = 2 * complete[0] + 1 if complete[1] else 2 * complete[0]
        running = not held and not statistic and 0 < complete[1] < state.M
        if running or (state.in_loop and any(v.block for v in given)):
            # What is known of the blocks so far is brought up to date within the pass.
            made = 2 * ready[0]
            state.ops.setdefault(ready[0], {})[name] = False
        elif name not in state.ops.get(complete[0], {}):
            state.others[name] = (made, node.output[0])
    for value, key in zip(inputs, node.input, strict=True):
        if value is not None:
            root = value.root or key
            state.last_read[root] = max(state.last_read.get(root, -1), made)
    for out in outs:
        # Of several blocks that one op cuts, each is known where it ends.
        out.ready = (ready[0], end_of_block(out)) if len(outs) > 1 and end_of_block(out) else ready
        out.complete, out.made = complete, made
        source = inputs[0]
        if moves and source is not None:
            out.root, out.made = source.root or node.input[0], source.made


def end_of_block(value: Tracked) -> int:
    """Up to which position a value's block reaches; 0 where it is none."""
    return max((p.lo + p.count for p in value.parts if p is not None and p.cut and p.lo is not None), default=0)
