"""Chooses the body of a kernel: a vector-level loop where one can express the spec, else the op in a dispatch."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from typing import Literal

from onnx_fa.emit.few import emit_few
from onnx_fa.emit.kernel_text import Kernel
from onnx_fa.emit.op_kernel import emit_op
from onnx_fa.emit.vector import emit_vector
from onnx_fa.errors import UnsupportedError
from onnx_fa.spec import AttentionSpec
from onnx_fa.target import Target

Body = Literal["auto", "op", "vector", "few"]

_EMITTERS: dict[str, Callable[[AttentionSpec, Target, str], Kernel]] = {
    "few": emit_few,
    "vector": emit_vector,
    "op": emit_op,
}
"""In order of preference."""


def kernel_name(spec: AttentionSpec, target: Target, body: Body = "auto") -> str:
    """ "fa_" and ten hex digits: equal for equal kernels, so a model's sites share what they can."""
    key = json.dumps([spec.to_dict(), target.name, target.flags, body], sort_keys=True)
    return f"fa_{hashlib.sha256(key.encode()).hexdigest()[:10]}"


def emit_kernel(spec: AttentionSpec, target: Target, *, body: Body = "auto") -> Kernel:
    """The kernel for `spec` on `target`. Raises UnsupportedError with the reason of every body that was tried."""
    if spec.dtype == "f64":
        raise UnsupportedError("f64 attention is not supported: kernels compute in f32")
    if target.backend != "llvm-cpu":
        raise UnsupportedError(f"no kernel for backend {target.backend} (target {target.name})")
    name = kernel_name(spec, target, body)
    reasons = []
    for kind in _EMITTERS if body == "auto" else (body,):
        try:
            return _EMITTERS[kind](spec, target, name)
        except UnsupportedError as error:
            reasons.append(f"{kind}: {error}")
    raise UnsupportedError("no kernel body can express this attention: " + "; ".join(reasons))
