"""Lengths that Resize makes of constant scales. onnxruntime rounds dim * scale to f32 before it takes the floor, ONNX's inference
does not: 11 * (17 / 11) is 17 by the one and 16 by the other. tf2onnx writes every tf.image.resize so."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import onnx
from onnx import helper, numpy_helper

from onnx_fa.graph.ops import op_of
from onnx_fa.graph.repeated_letters import equation_of, with_own_letters

Floats = np.ndarray[Any, np.dtype[np.float32]]


def raise_scales(scales: Floats, dims: Sequence[int | None]) -> Floats | None:
    """Scales that are units in the last place larger where the floor of the exact product is less than onnxruntime's length, and
    make it that; None where they say the same already, and where there are not as many as dims."""
    if len(scales) != len(dims) or not np.isfinite(scales).all():
        return None
    raised = scales.copy()
    for i, (scale, dim) in enumerate(zip(scales, dims, strict=True)):
        if dim is None or scale <= 0:
            continue
        made = math.floor(scale * np.float32(dim))
        while math.floor(float(raised[i]) * dim) < made:
            raised[i] = np.nextafter(raised[i], np.float32(np.inf))
    return None if np.array_equal(raised, scales) else raised


def resize_scales(node: onnx.NodeProto) -> str:
    """The name of what a Resize or Upsample scales by; empty where another number than dim * scale says what becomes of a dim."""
    given = [*node.input, "", "", "", ""]
    kind = op_of(node)
    if kind not in ("Resize", "Upsample") or (kind == "Resize" and given[3]):
        return ""
    crop = any(a.name == "coordinate_transformation_mode" and a.s == b"tf_crop_and_resize" for a in node.attribute)
    return "" if crop else given[1 if kind == "Upsample" or len(node.input) == 2 else 2]


def infer_as_run(model: onnx.ModelProto, infer: Callable[[onnx.ModelProto], onnx.ModelProto]) -> onnx.ModelProto:
    """`infer` of the model, with the lengths that onnxruntime makes of constant scales in the main graph, and of axes that an
    Einsum there repeats."""
    return _with_repeated(model, lambda each: _with_scales(each, infer))


def _with_repeated(model: onnx.ModelProto, infer: Callable[[onnx.ModelProto], onnx.ModelProto]) -> onnx.ModelProto:
    """`infer` of the model with letters of their own for axes that are repeated. Each round may find axes of 1 in what it made."""
    inferred, trial = infer(model), model
    places = [i for i, node in enumerate(model.graph.node) if equation_of(node)]
    for _ in places:
        graph = inferred.graph
        dims = {v.name: _dims(v.type) for v in (*graph.input, *graph.value_info, *graph.output)}
        dims |= {t.name: list(t.dims) for t in graph.initializer}
        found: dict[int, str] = {}
        for i in places:
            node = trial.graph.node[i]
            equation = with_own_letters(equation_of(node), [dims.get(name) for name in node.input])
            found |= {} if equation is None else {i: equation}
        if not found:
            break
        if trial is model:
            trial = onnx.ModelProto()
            trial.CopyFrom(model)
        for i, equation in found.items():
            next(a for a in trial.graph.node[i].attribute if a.name == "equation").s = equation.encode()
        inferred = infer(trial)
    if trial is not model:
        for i in places:
            inferred.graph.node[i].CopyFrom(model.graph.node[i])
    return inferred


def _with_scales(model: onnx.ModelProto, infer: Callable[[onnx.ModelProto], onnx.ModelProto]) -> onnx.ModelProto:
    inferred = infer(model)
    kept: dict[int, tuple[int, str]] = {}
    trial = model
    while found := [wrong for wrong in _wrong(inferred, model) if wrong.place not in kept]:
        if trial is model:
            trial = onnx.ModelProto()
            trial.CopyFrom(model)
        for place, at, scales in found:
            node = trial.graph.node[place]
            kept[place] = (at, node.input[at])
            node.input[at] = f"{node.output[0]}/scales as run"
            trial.graph.initializer.append(numpy_helper.from_array(scales, node.input[at]))
        inferred = infer(trial)
    del inferred.graph.initializer[len(model.graph.initializer) :]
    for place, (at, name) in kept.items():
        inferred.graph.node[place].input[at] = name
    return inferred


class _Wrong(NamedTuple):
    """The place of a node in its graph, that of its scales in its inputs, and what these are to be for inference."""

    place: int
    at: int
    scales: Floats


def _wrong(inferred: onnx.ModelProto, model: onnx.ModelProto) -> Iterator[_Wrong]:
    """Nodes of known dims for which ONNX's inference finds other lengths than onnxruntime gives."""
    nodes = [(i, node, name) for i, node in enumerate(model.graph.node) if (name := resize_scales(node))]
    if not nodes:
        return
    graph = inferred.graph
    dims = {v.name: _dims(v.type) for v in (*graph.input, *graph.value_info, *graph.output)}
    constants = {t.name: t for t in model.graph.initializer}
    constants |= {n.output[0]: t for n in model.graph.node if op_of(n) == "Constant" and (t := _constant(n))}
    for i, node, name in nodes:
        first, told, tensor = dims.get(node.input[0]), dims.get(node.output[0]), constants.get(name)
        raised = None if told is None else _raised(node, first, tensor)
        if raised is not None:
            yield _Wrong(i, [*node.input].index(name), raised)


def scales_as_run(
    node: onnx.NodeProto, types: Mapping[str, onnx.TypeProto], content: Mapping[str, onnx.TensorProto]
) -> dict[str, onnx.TensorProto]:
    """By its name the content of a node's scales by which ONNX's inference finds onnxruntime's lengths; {} where it does as is."""
    name = resize_scales(node)
    first = _dims(types[node.input[0]]) if name and node.input[0] in types else None
    raised = _raised(node, first, content.get(name))
    return {} if raised is None else {name: numpy_helper.from_array(raised, name)}


def _raised(node: onnx.NodeProto, first: list[int | None] | None, tensor: onnx.TensorProto | None) -> Floats | None:
    """`raise_scales` of the axes that a node names, all of `first` where it names none."""
    if first is None or tensor is None or tensor.data_location == onnx.TensorProto.EXTERNAL:
        return None
    axes = [a for each in node.attribute if each.name == "axes" for a in each.ints] or range(len(first))
    if tensor.data_type != onnx.TensorProto.FLOAT or any(not -len(first) <= a < len(first) for a in axes):
        return None
    return raise_scales(numpy_helper.to_array(tensor).ravel(), [first[a] for a in axes])


def _dims(kind: onnx.TypeProto) -> list[int | None] | None:
    if not kind.tensor_type.HasField("shape"):
        return None
    return [d.dim_value if d.HasField("dim_value") else None for d in kind.tensor_type.shape.dim]


def _constant(node: onnx.NodeProto) -> onnx.TensorProto | None:
    """What a Constant gives, if that may be scales."""
    for attribute in node.attribute:
        if attribute.name == "value":
            tensor: onnx.TensorProto = attribute.t
            return tensor
        if attribute.name == "value_floats":
            return helper.make_tensor("", onnx.TensorProto.FLOAT, [len(attribute.floats)], attribute.floats)
    return None
