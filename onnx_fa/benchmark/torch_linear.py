"""A linear site in PyTorch, as its users would write it: `linear` with its bias, `gelu`, plain ops for what else follows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import torch

from onnx_fa.benchmark.torch_exprs import apply_expr
from onnx_fa.errors import UnsupportedError
from onnx_fa.spec.expr import SCORE, Apply, ScoreExpr, Tensor
from onnx_fa.spec.linear import LinearSpec
from onnx_fa.spec.linear_cases import GELU

_BIASED = Apply("Add", SCORE, Tensor(0))


@dataclass(frozen=True)
class TorchLinear:
    """`call` computes y from tensors made beforehand; `how` says with what."""

    call: Callable[[], Any]
    how: str


def torch_linear(spec: LinearSpec, operands: Sequence[npt.NDArray[Any]], device: str = "cpu") -> TorchLinear:
    """The product of a spec without panels; its operands go to `device` beforehand, the weight as (N, K), as PyTorch keeps it.
    Raises UnsupportedError for bytes, and for a weight in another type than x."""
    if spec.is_of_bytes or spec.stored or spec.bits is not None:
        raise UnsupportedError(f"PyTorch: a product of {spec.dtype} by a weight of another type")
    x, w, *tensors = (_tensor(a).to(device) for a in operands)
    weight = w if spec.transposed else w.T.contiguous()
    columns = bool(tensors) and spec.tensors[0].shape == (spec.N,)
    then = _without_bias(spec.then) if columns else spec.then
    bias = tensors[0] if then != spec.then else None
    gelu = then == _without_bias(GELU)
    words = ["linear", *["bias"] * (bias is not None), *["gelu"] * gelu, *["plain ops"] * (then != SCORE and not gelu)]

    def call() -> Any:
        with torch.inference_mode():
            y = torch.nn.functional.linear(x, weight, bias)
            return torch.nn.functional.gelu(y) if gelu else apply_expr(then, y, tensors)

    return TorchLinear(call, ", ".join(words))


def _without_bias(e: ScoreExpr) -> ScoreExpr:
    """The expression as a function of the sum with the first tensor, where it adds that to the sum."""
    if e == _BIASED:
        return SCORE
    return Apply(e.op, *map(_without_bias, e.args)) if isinstance(e, Apply) else e


def _tensor(x: npt.NDArray[Any]) -> torch.Tensor:
    """NumPy's bf16 is another type than PyTorch's, and two bytes of no type in an .npy."""
    if x.dtype == ml_dtypes.bfloat16 or x.dtype.kind == "V":
        return torch.from_numpy(x.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(x)
