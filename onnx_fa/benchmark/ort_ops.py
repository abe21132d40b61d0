"""Attentions as onnxruntime's users call it: the ops Attention (opset 23), com.microsoft's MultiHeadAttention and
GroupQueryAttention, with operands in each op's own layout."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx

from onnx_fa.errors import UnsupportedError
from onnx_fa.spec.attention import AttentionSpec
from onnx_fa.spec.terms import Causal

Array = npt.NDArray[Any]

ORT_OPS = ("onnxruntime Attention", "onnxruntime MultiHeadAttention", "onnxruntime GroupQueryAttention")
"""The contestants."""
_ATTENTION, _MULTI_HEAD, _GROUPED = ORT_OPS
_CONTRIB = "com.microsoft"


def op_model(what: str, spec: AttentionSpec) -> onnx.ModelProto:
    """The model of one op for a spec of q (B, Hq, Sq, D), k (B, Hkv, Skv, D) and v (B, Hkv, Skv, Dv) in f32. Raises
    UnsupportedError where the op does not say what the spec says."""
    plain = AttentionSpec("f32", spec.Hq, spec.Hkv, spec.Sq, spec.Skv, spec.D, spec.Dv, spec.batch, spec.scale)
    if len(spec.batch) != 1 or spec.symbols or spec not in (plain, _causal(plain)):
        raise UnsupportedError(f"{what}: only plain and causal attention in f32 is written as this op")
    return {_ATTENTION: _attention, _MULTI_HEAD: _multi_head, _GROUPED: _grouped}[what](spec)


def prepare_op(
    what: str, model: onnx.ModelProto, spec: AttentionSpec, arrays: Mapping[str, Array], threads: int
) -> tuple[Callable[[], list[Array]], Callable[[Array], Array]]:
    """The call, and what brings its result to (B, Hq, Sq, Dv). GroupQueryAttention's cache is a buffer that past and present share,
    as onnxruntime-genai calls it."""
    from onnx_fa.ort_session import ort_session

    session = ort_session(model, threads=threads)
    if what == _ATTENTION:
        return lambda: list(session.run(None, {n: arrays[n] for n in "qkv"})), lambda x: x
    B, Hq, Sq, Skv, Dv = int(spec.batch[0]), int(spec.Hq), int(spec.Sq), int(spec.Skv), spec.Dv
    feeds = {n: _tokens(arrays[n]) for n in "qkv"}

    def shown(x: Array) -> Array:
        return x.reshape(B, Sq, Hq, Dv).transpose(0, 2, 1, 3)

    if what == _MULTI_HEAD:
        return lambda: list(session.run(None, feeds)), shown
    import onnxruntime as ort

    new = {n: np.ascontiguousarray(x[:, -Sq:]) for n, x in feeds.items()}
    binding, held = session.io_binding(), []
    for n in "qkv":
        binding.bind_cpu_input(n, new[n])
    for n in "kv":
        cache = ort.OrtValue.ortvalue_from_numpy(np.ascontiguousarray(arrays[n]))
        held.append(cache)
        binding.bind_ortvalue_input(f"past_{n}", cache)
        binding.bind_ortvalue_output(f"present_{n}", cache)
    binding.bind_cpu_input("last", np.full((B,), Skv - 1, np.int32))
    binding.bind_cpu_input("total", np.array(Skv, np.int32))
    out = ort.OrtValue.ortvalue_from_numpy(np.zeros((B, Sq, Hq * Dv), np.float32))
    binding.bind_ortvalue_output("out", out)

    def call() -> list[Array]:
        session.run_with_iobinding(binding)
        return [out.numpy()] if held else []

    return call, shown


def _causal(spec: AttentionSpec) -> AttentionSpec:
    return dataclasses.replace(spec, masks=(Causal(),))


def _tokens(x: Array) -> Array:
    """(B, H, S, D) as (B, S, H * D)."""
    B, H, S, D = x.shape
    return np.ascontiguousarray(x.transpose(0, 2, 1, 3)).reshape(B, S, H * D)


def _model(nodes: list[onnx.NodeProto], inputs: Mapping[str, Any], outputs: Mapping[str, Any]) -> onnx.ModelProto:
    def infos(of: Mapping[str, Any]) -> list[onnx.ValueInfoProto]:
        make = onnx.helper.make_tensor_value_info
        kinds = {"last": onnx.TensorProto.INT32, "total": onnx.TensorProto.INT32}
        return [make(n, kinds.get(n, onnx.TensorProto.FLOAT), shape) for n, shape in of.items()]

    graph = onnx.helper.make_graph(nodes, "attention", infos(inputs), infos(outputs))
    opsets = [onnx.helper.make_opsetid("", 23), onnx.helper.make_opsetid(_CONTRIB, 1)]
    return onnx.helper.make_model(graph, opset_imports=opsets, ir_version=10)


def _attention(spec: AttentionSpec) -> onnx.ModelProto:
    node = onnx.helper.make_node(
        "Attention", ["q", "k", "v"], ["out"], scale=float(spec.scale), is_causal=int(bool(spec.masks))
    )
    return _model([node], dict(zip("qkv", spec.operand_shapes, strict=True)), {"out": spec.out_shape})


def _multi_head(spec: AttentionSpec) -> onnx.ModelProto:
    if spec.group > 1:
        raise UnsupportedError(f"{_MULTI_HEAD}: heads that share keys")
    if spec.masks and spec.Sq != spec.Skv:
        raise UnsupportedError(f"{_MULTI_HEAD}: causal with other numbers of queries and keys")
    node = onnx.helper.make_node(
        "MultiHeadAttention",
        ["q", "k", "v"],
        ["out"],
        domain=_CONTRIB,
        num_heads=spec.Hq,
        scale=float(spec.scale),
        unidirectional=int(bool(spec.masks)),
    )
    return _model([node], _token_shapes(spec, int(spec.Skv)), {"out": _out(spec)})


def _grouped(spec: AttentionSpec) -> onnx.ModelProto:
    if not (spec.Sq == 1 or spec.masks):
        raise UnsupportedError(f"{_GROUPED}: it is always causal")
    if spec.Dv != spec.D or spec.D % 8:
        raise UnsupportedError(f"{_GROUPED}: head dims of {spec.D} and {spec.Dv}")
    cache = {f"{end}_{n}": [spec.batch[0], spec.Hkv, spec.Skv, spec.D] for end in ("past", "present") for n in "kv"}
    node = onnx.helper.make_node(
        "GroupQueryAttention",
        ["q", "k", "v", "past_k", "past_v", "last", "total"],
        ["out", "present_k", "present_v"],
        domain=_CONTRIB,
        num_heads=spec.Hq,
        kv_num_heads=spec.Hkv,
        scale=float(spec.scale),
    )
    past = {n: shape for n, shape in cache.items() if n.startswith("past")}
    counts = {"last": [spec.batch[0]], "total": []}
    present = {n: shape for n, shape in cache.items() if n.startswith("present")}
    return _model([node], _token_shapes(spec, int(spec.Sq)) | past | counts, {"out": _out(spec)} | present)


def _token_shapes(spec: AttentionSpec, keys: int) -> dict[str, list[int]]:
    """q, k and v, `keys` rows of the last two."""
    B = int(spec.batch[0])
    widths = {"q": int(spec.Hq) * spec.D, "k": int(spec.Hkv) * spec.D, "v": int(spec.Hkv) * spec.Dv}
    return {n: [B, int(spec.Sq) if n == "q" else keys, width] for n, width in widths.items()}


def _out(spec: AttentionSpec) -> list[int]:
    return [int(spec.batch[0]), int(spec.Sq), int(spec.Hq) * spec.Dv]
