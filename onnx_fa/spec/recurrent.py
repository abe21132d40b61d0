"""The steps of an LSTM or a GRU, one after the other, whose inputs have been multiplied for all steps before.

LSTM (gates input, output, forget, cell):  c' = f c + i g,  h' = o tanh(c'),  each gate of x[t] + h R
GRU (gates update, reset, hidden):  h' = (1 - z) tanh(x_h[t] + r (h R_h + b)) + z h,  z and r of x[t] + h R

ONNX's operators, the GRU with `linear_before_reset`: https://onnx.ai/onnx/operators/onnx__LSTM.html, onnx__GRU.html
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

Cell = Literal["LSTM", "GRU"]
GATES: dict[Cell, int] = {"LSTM": 4, "GRU": 3}


@dataclass(frozen=True)
class RecurrentSpec:
    """`steps` of `rows` of a batch (None: known at run time only), with states of H numbers, all f32. x is (steps, rows, gates *
    H). The weight comes in panels of some columns of every gate, (panels, H, gates * panel), of which the last has the last
    columns. A GRU has then what is added to its last gate before that is reset, (H,). With `started` the first states follow,
    (rows, H): h, and c of an LSTM; else they are 0. Results are all states h, (steps, rows, H), and the last ones. Raises
    ValueError for panels wider than H."""

    cell: Cell
    steps: int | None
    rows: int | None
    H: int
    panel: int
    started: bool = False

    def __post_init__(self) -> None:
        if not 0 < self.panel <= self.H:
            raise ValueError(f"panels of {self.panel} columns of {self.H}")

    @property
    def gates(self) -> int:
        return GATES[self.cell]

    @property
    def panels(self) -> int:
        return -(-self.H // self.panel)

    @property
    def states(self) -> int:
        """How many there are."""
        return 2 if self.cell == "LSTM" else 1

    @property
    def name(self) -> str:
        """Of the function: equal for equal specs."""
        return f"steps_{hashlib.sha256(repr(self).encode()).hexdigest()[:10]}"

    def first_column(self, panel: int) -> int:
        return min(panel * self.panel, self.H - self.panel)


def gate_panels(spec: RecurrentSpec, weight: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """ONNX's R of one direction, (gates * H, H), in panels."""
    by_gate = weight.reshape(spec.gates, spec.H, spec.H)
    starts = [spec.first_column(p) for p in range(spec.panels)]
    panels = [by_gate[:, start : start + spec.panel].transpose(2, 0, 1) for start in starts]
    return np.ascontiguousarray(np.stack(panels).reshape(spec.panels, spec.H, -1))


def unroll(
    spec: RecurrentSpec, x: npt.NDArray[Any], w: npt.NDArray[Any], *more: npt.NDArray[Any]
) -> tuple[npt.NDArray[np.float64], ...]:
    """The meaning of a spec in float64; `more` are the operands behind the weight."""
    x, (H, G) = np.asarray(x, np.float64), (spec.H, spec.gates)
    weight = np.empty((H, G, H))
    for p, panel in enumerate(np.asarray(w, np.float64).reshape(spec.panels, H, G, spec.panel)):
        start = spec.first_column(p)
        weight[:, :, start : start + spec.panel] = panel
    bias = more[0] if spec.cell == "GRU" else 0.0
    states = [np.zeros((x.shape[1], H))] * spec.states
    if spec.started:
        states = [np.asarray(state, np.float64) for state in more[-spec.states :]]
    made = np.empty((*x.shape[:2], H))
    for t, own in enumerate(x.reshape(*x.shape[:2], G, H)):
        product = np.einsum("bk,kgn->bgn", states[0], weight)
        if spec.cell == "LSTM":
            i, o, f, g = np.moveaxis(own + product, 1, 0)
            c = _sigmoid(f) * states[1] + _sigmoid(i) * np.tanh(g)
            states = [_sigmoid(o) * np.tanh(c), c]
        else:
            z, r = (_sigmoid(own[:, n] + product[:, n]) for n in (0, 1))
            hidden = np.tanh(own[:, 2] + r * (product[:, 2] + bias))
            states = [(1 - z) * hidden + z * states[0]]
        made[t] = states[0]
    return made, *states


def _sigmoid(x: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    return np.asarray(0.5 * (1 + np.tanh(0.5 * x)))
