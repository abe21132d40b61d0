"""A kernel: the MLIR text that stands for one site on one target."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from onnx_fa.derive.attention import hidden_score, vanishes
from onnx_fa.errors import UnsupportedError
from onnx_fa.kernels.mlir.launches import Plan
from onnx_fa.spec.attention import AttentionSpec
from onnx_fa.spec.terms import AddMask, Elementwise, Weighting


@dataclass(frozen=True)
class Into:
    """`text` is another function of a kernel, `util.func private @{name}_into`: it takes the operands, then a
    `!hal.buffer` for each result, to which it writes, then one for each workspace, of `workspace` bytes. It allocates nothing, and
    returns the results. `plan` is the same without a runtime."""

    text: str = field(repr=False)
    workspace: tuple[int, ...]
    plan: Plan = field(repr=False)


@dataclass(frozen=True)
class Kernel:
    """`text` holds top-level MLIR ops (no enclosing module): a `util.func private @{name}` that takes the spec's operands as
    builtin tensors, in the spec's order, stored shapes (`?` for symbols) and element types (i1 for booleans), and returns the
    output tensor; and whatever executables it dispatches. Every dispatch that belongs to the site has `name` in its symbol, so
    that a compiled artifact can be inspected per site. `body` is the name of its maker in kernels/providers.py. `config` is what
    was chosen, for reports; `flags` are the iree-compile flags without which the text does not compile, or that its tiles
    were measured with. `tuning` says where the tiles are from, in words; "" where they were given. `lossy` names what makes it less
    exact than its operands, such as "tf32" or "bf16 dot" (asked for). `into` is there where a body has it."""

    name: str
    text: str = field(repr=False)
    body: str
    spec: AttentionSpec
    config: dict[str, int | str] = field(default_factory=dict)
    flags: tuple[str, ...] = ()
    tuning: str = ""
    lossy: str = ""
    into: Into | None = field(default=None, repr=False)


def check_operands(spec: AttentionSpec, body: str) -> None:
    """Raises UnsupportedError, which names the body, for what none carries: operands of f64, and masks that fill with infinity or
    NaN."""
    if spec.weighting is not None:
        _check_weighting(spec, spec.weighting, body)
    if "f64" in spec.operand_dtypes:
        raise UnsupportedError(f"{body} kernel: f64 operands")
    for mask in spec.masks:
        if not isinstance(mask, (AddMask, Elementwise)) and not mask.fill < math.inf:
            raise UnsupportedError(f"{body} kernel: a mask that fills with {mask.fill}")


def _check_weighting(spec: AttentionSpec, weighting: Weighting, body: str) -> None:
    """Raises UnsupportedError for a weighting that blocks of keys do not carry: keys past the last one and scores that masks make
    -inf must weigh nothing, and what stands for 0 / 0 must be told from the sum alone."""
    hidden_score(spec)
    masked = any(not isinstance(m, (AddMask, Elementwise)) and m.fill == -math.inf for m in spec.masks)
    if masked and not vanishes(weighting, -math.inf):
        raise UnsupportedError(f"{body} kernel: a masked score of -inf would weigh something")
    if weighting.total is not None and spec.empty_row not in ("nan", "mean"):
        same = weighting.total == weighting.weight and not weighting.plus and weighting.least == -math.inf
        if spec.empty_row != "guarded" or not same:
            raise UnsupportedError(
                f"{body} kernel: empty rows of an attention without a softmax that are {spec.empty_row}"
            )


def check_stored(spec: AttentionSpec) -> None:
    """Raises UnsupportedError for what only the bodies for CPUs carry: K and V as integers or gathered from a pool."""
    if spec.quantized:
        raise UnsupportedError("K or V kept as integers")
    if spec.gathered is not None:
        raise UnsupportedError("K or V gathered from a pool")


def check_plain(spec: AttentionSpec) -> None:
    """Raises UnsupportedError for that, and for row statistics, and probabilities that are rounded or multiplied by a tensor."""
    check_stored(spec)
    if spec.stats:
        raise UnsupportedError(f"row statistics ({', '.join(spec.stats)}) as outputs")
    if spec.weights is not None:
        raise UnsupportedError("probabilities that are multiplied by a tensor before they multiply V")
    if spec.rounding is not None:
        raise UnsupportedError("probabilities that are rounded need a second sweep over the keys")
