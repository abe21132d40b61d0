"""A kernel: the MLIR text that stands for one site on one target."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from onnx_fa.spec import AttentionSpec

Body = Literal["op", "vector", "few", "gpu", "triton"]


@dataclass(frozen=True)
class Kernel:
    """`text` holds top-level MLIR ops (no enclosing module): a `util.func private @{name}` that takes the spec's operands as
    builtin tensors, in the spec's order, stored shapes (`?` for symbols) and element types (i1 for booleans), and returns the
    output tensor; and whatever executables it dispatches. Every dispatch that belongs to the site has `name` in its symbol, so
    that a compiled artifact can be inspected per site. `config` is what was chosen, for reports; `flags` are the iree-compile
    flags without which the text does not compile, or that its tiles were measured with. `tuning` says
    where the tiles are from, in words; "" where they were given."""

    name: str
    text: str = field(repr=False)
    body: Body
    spec: AttentionSpec
    config: dict[str, int | str] = field(default_factory=dict)
    flags: tuple[str, ...] = ()
    tuning: str = ""
