"""Chooses the body of a kernel: the first of those that the target's providers have which can express the spec."""

from __future__ import annotations

import hashlib
import json

from onnx_fa.errors import UnsupportedError
from onnx_fa.kernels.mlir.kernel import Kernel
from onnx_fa.kernels.providers import emitters
from onnx_fa.kernels.transposed import in_order, transpose_around
from onnx_fa.spec.attention import AttentionSpec
from onnx_fa.spec.switches import Switch
from onnx_fa.spec.target import Target


def kernel_name(spec: AttentionSpec, target: Target, body: str = "auto") -> str:
    """ "fa_" and ten hex digits: equal for equal kernels, so a model's sites share what they can. What is switched off of a
    target has no part in it, so that texts with and without can be compared: no module has both."""
    key = json.dumps([spec.to_dict(), target.name, target.flags, target.kernels, target.lossy, body], sort_keys=True)
    return f"fa_{hashlib.sha256(key.encode()).hexdigest()[:10]}"


def emit_kernel(spec: AttentionSpec, target: Target, *, body: str = "auto") -> Kernel:
    """The kernel for `spec` on `target`. Raises UnsupportedError with the reason of every body that was tried, and TargetError
    where the target's kernels are of a provider that is not there."""
    if spec.dtype == "f64":
        raise UnsupportedError("f64 attention is not supported: kernels compute in f32")
    if 0 in (*spec.score_shape, spec.D, spec.Dv):
        raise UnsupportedError("an operand has no elements: there is nothing to compute")
    known = emitters(target)
    name = kernel_name(spec, target, body)
    reasons = []
    for kind in known if body == "auto" else (body,):
        if kind not in known:
            raise UnsupportedError(f"the target {target.name} has no kernel body {kind!r}, only {', '.join(known)}")
        try:
            if not target.has(Switch.LAYOUTS) and spec != in_order(spec):
                return transpose_around(spec, target, name, known[kind])
            return known[kind](spec, target, name)
        except UnsupportedError as error:
            reasons.append(f"{kind}: {error}")
    raise UnsupportedError("no kernel body can express this attention: " + "; ".join(reasons))
