"""A spec in PyTorch, as its users would write it: `scaled_dot_product_attention` with `is_causal`, with a mask made beforehand,
with `enable_gqa`; plain ops where it cannot say the score function."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from onnx_fa.benchmark.torch_exprs import apply_expr
from onnx_fa.forms.plain import input_names
from onnx_fa.spec.attention import AttentionSpec
from onnx_fa.spec.reference import masked
from onnx_fa.spec.terms import Causal, Elementwise, inverse


@dataclasses.dataclass(frozen=True)
class TorchAttention:
    """`call` computes the output from tensors made beforehand; `how` says with what; `mask_bytes` is what the mask takes."""

    call: Callable[[], Any]
    how: str
    mask_bytes: int


Call = Literal["sdpa", "eager", "compile"]
"""By `scaled_dot_product_attention`, by matmul, softmax and matmul, or by torch.compile of these."""


def torch_attention(
    spec: AttentionSpec,
    arrays: Mapping[str, Any],
    kept_mask: Path | None = None,
    *,
    call: Call = "sdpa",
    device: str = "cpu",
) -> TorchAttention:
    """The attention of `arrays` (named as in `input_names`), which go to `device` beforehand. The spec has no symbols, no sink and
    no weights.
    `kept_mask` is an .npy that holds the mask once it is made: a long one takes seconds. K and V kept as integers are for "sdpa" on
    the CPU."""
    if spec.quantized:
        return _dequantized_first(spec, arrays, kept_mask)
    names = input_names(spec)
    layouts = (spec.q_layout, spec.k_layout, spec.v_layout)
    q, k, v = (torch.from_numpy(arrays[n]).to(device).permute(inverse(p)) for n, p in zip(names, layouts, strict=False))
    tensors = [arrays[n] for n in names[3:]]
    gqa = spec.group > 1
    words = ["enable_gqa"] * gqa
    if call != "sdpa" or spec.mods or spec.weighting is not None or not _is_bias(spec, tensors):
        return _eager(spec, q, k, v, tensors, compiled=call == "compile")

    def mask_tensor() -> Any:
        if kept_mask is not None and kept_mask.exists():
            return torch.from_numpy(np.load(kept_mask)).to(device)
        made = np.ascontiguousarray(bias(kept, tensors))
        if kept_mask is not None:
            np.save(kept_mask, made)
        return torch.from_numpy(made).to(device)

    kept = _without_idle_causal(spec)
    causal = kept.masks == (Causal(),) or (kept.masks == (Causal("end"),) and spec.Sq == spec.Skv)
    mask = None if causal or not kept.masks else mask_tensor()
    if causal:
        words.insert(0, "is_causal")
    elif mask is not None:
        words.insert(0, f"{'boolean' if mask.dtype == torch.bool else 'float'} attn_mask")

    def run() -> Any:
        with torch.inference_mode():
            out = torch.nn.functional.scaled_dot_product_attention(
                q, k, v, attn_mask=mask, is_causal=causal, scale=spec.scale, enable_gqa=gqa
            )
            return out.permute(spec.o_layout)

    size = 0 if mask is None else mask.numel() * mask.element_size()
    return TorchAttention(run, ", ".join(["SDPA", *words]), size)


def _dequantized_first(spec: AttentionSpec, arrays: Mapping[str, Any], kept_mask: Path | None) -> TorchAttention:
    """K and V become numbers in every call, by plain ops."""
    plain = dataclasses.replace(spec, k_quant=None, v_quant=None)
    layouts = {"k": (spec.k_quant, spec.k_layout), "v": (spec.v_quant, spec.v_layout)}
    tensors = {n: torch.from_numpy(x) for n, x in arrays.items() if n[0] in layouts}

    def numbers() -> dict[str, Any]:
        result = dict(arrays)
        for n, (quant, layout) in layouts.items():
            if quant is None:
                continue
            x = tensors[n].float()
            axis = layout.index(spec.rank - 1) - spec.rank
            for end, op in (("_zero", torch.sub), ("_scale", torch.mul)):
                part = tensors.get(n + end)
                if part is not None:
                    shared = x.shape[axis] // part.shape[axis] if part.ndim >= -axis else 1
                    x = op(x, part.repeat_interleave(shared, axis) if 1 < shared < x.shape[axis] else part)
            result[n] = x.numpy()
        return result

    def call() -> Any:
        with torch.inference_mode():
            return torch_attention(plain, numbers(), kept_mask).call()

    made = torch_attention(plain, numbers(), kept_mask)
    return TorchAttention(call, f"dequantised, {made.how}", made.mask_bytes)


def bias(spec: AttentionSpec, tensors: list[Any]) -> Any:
    """What the masks add to a score, of the least shape that broadcasts: booleans where that is only 0 and -inf."""
    lead = np.broadcast_shapes((1,), *(t.shape[:-2] for t in tensors))
    values = masked(spec, np.zeros((*lead, spec.Sq, spec.Skv)), *tensors)
    keep = ~np.isneginf(values)
    return keep if not np.any(values[keep]) else values.astype(np.float32)


def _is_bias(spec: AttentionSpec, tensors: list[Any]) -> bool:
    """Whether the masks only add something to the score or drop it: for score expressions, seen at two scores."""
    if not any(isinstance(m, Elementwise) for m in spec.masks):
        return True
    lead = np.broadcast_shapes((1,), *(t.shape[:-2] for t in tensors))
    shape = (*lead, spec.Sq, spec.Skv)
    with np.errstate(invalid="ignore"):
        difference = masked(spec, np.ones(shape), *tensors) - masked(spec, np.zeros(shape), *tensors)
    return bool(np.all(np.isnan(difference) | (np.abs(difference - 1) < 1e-6)))


def _without_idle_causal(spec: AttentionSpec) -> AttentionSpec:
    """A single query at the end of the keys sees all of them."""
    masks = tuple(m for m in spec.masks if not (spec.Sq == 1 and m == Causal("end")))
    return dataclasses.replace(spec, masks=masks)


def _eager(spec: AttentionSpec, q: Any, k: Any, v: Any, tensors: list[Any], compiled: bool = False) -> TorchAttention:
    """Matmul, score function, softmax and matmul in plain ops, or torch.compile of them."""
    plain = dataclasses.replace(spec, mods=())
    mask = torch.from_numpy(np.ascontiguousarray(bias(plain, tensors))).to(q.device) if spec.masks else None
    if mask is not None:
        zeros = torch.zeros(mask.shape, dtype=q.dtype, device=q.device)
        mask = zeros.masked_fill(~mask, -torch.inf) if mask.dtype == torch.bool else mask.to(q.dtype)

    def attend(q: Any, k: Any, v: Any, mask: Any) -> Any:
        keys, values = (x.repeat_interleave(spec.group, -3) if spec.group > 1 else x for x in (k, v))
        score = (q @ keys.transpose(-1, -2)) * spec.scale
        for mod in spec.mods:
            score = torch.tanh(score / mod.cap) * mod.cap
        if mask is not None:
            score = score + mask
        if spec.weighting is None:
            return (score.softmax(-1) @ values).permute(spec.o_layout)
        out = apply_expr(spec.weighting.weight, score) @ values
        if spec.weighting.total is not None:
            total = apply_expr(spec.weighting.total, score).sum(-1, keepdim=True) + spec.weighting.plus
            out = out / total.clamp(min=spec.weighting.least)
        return out.permute(spec.o_layout)

    attend = torch.compile(attend, dynamic=False) if compiled else attend
    if spec.mods:
        _choose_tanh()

    def run() -> Any:
        with torch.inference_mode():
            return attend(q, k, v, mask)

    size = 0 if mask is None else mask.numel() * mask.element_size()
    return TorchAttention(run, "torch.compile of plain ops" if compiled else "plain ops", size)


def _choose_tanh() -> None:
    """Calls tanh on one number. MKL 2024.2, which torch's wheels hold, chooses the code of a vector function in its first call.
    Where torch splits that call among threads, one of them can run the least exact code instead: on an Intel Xeon, 14 of 6,400
    processes had a relative error of 5e-5 in half of the results, and none of 6,200 that had called it on one number before."""
    torch.tanh(torch.zeros(1))
