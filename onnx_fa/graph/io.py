"""Reading and writing models: every kind of input becomes an onnx_ir.Model, every defect of a file one clear ModelError."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from pathlib import Path

import onnx
import onnx.version_converter
import onnx_ir as ir

from onnx_fa.errors import ModelError, one_line
from onnx_fa.files import staged_file
from onnx_fa.graph.checks import check_proto
from onnx_fa.graph.order import in_order

ModelLike = onnx.ModelProto | ir.Model | str | os.PathLike[str]
_log = logging.getLogger(__name__)
_MAX_ELEMENTS_READ = 64  # elements: shapes, axes and scalars, which shape inference must see
_MAX_BYTES_INSIDE = 1 << 30  # protobuf refuses files over 2 GiB; weights go to one external file well before


def load(model: ModelLike, data_dir: Path | None = None) -> ir.Model:
    """The model as onnx_ir. External weights stay on disk until someone reads them: in the model's folder, or in `data_dir`. An
    ir.Model is returned as it is. Nodes that stand before what they read are moved behind it, as onnxruntime does.

    Raises ModelError when the file is missing, is not ONNX, is truncated, or breaks a rule that `checks` knows: external data that
    is not there or lies elsewhere, a graph with a cycle, a tensor with too little data, ...
    """
    if isinstance(model, ir.Model):
        return model
    name = "model" if isinstance(model, onnx.ModelProto) else os.fspath(model)
    proto = in_order(model if isinstance(model, onnx.ModelProto) else _read(Path(name)))
    base = data_dir or (Path() if isinstance(model, onnx.ModelProto) else Path(name).resolve().parent)
    try:
        check_proto(proto, base)
    except ModelError as e:
        raise ModelError(f"{name}: {e}") from e
    if proto.training_info:
        _log.warning("%s: its training_info is left out", name)
    try:
        result = ir.from_proto(proto)
    except Exception as e:  # onnx_ir raises many kinds for malformed protos
        deepest: BaseException = e
        while deepest.__cause__ is not None:
            deepest = deepest.__cause__
        raise ModelError(f"{name}: malformed model: {one_line(deepest)}") from e
    for info, value in zip(proto.graph.input, result.graph.inputs, strict=True):
        if value.is_graph_output():  # else it would be of the type and shape that it has as an output
            ir.serde.deserialize_value_info_proto(info, value)
    _read_external(result, base)
    _forget_impossible(result)
    return result


def _read(path: Path) -> onnx.ModelProto:
    if path.is_dir():
        raise ModelError(f"{path}: is a folder, not an ONNX file")
    try:
        data = path.read_bytes()
    except OSError as e:
        raise ModelError(f"{path}: cannot be read: {e.strerror}") from e
    if not data:
        raise ModelError(f"{path}: the file is empty")
    proto = onnx.ModelProto()
    try:
        proto.ParseFromString(data)
    except Exception as e:  # protobuf's DecodeError lives in a private module
        raise ModelError(f"{path}: not an ONNX model, or a truncated one (protobuf: {one_line(e)})") from e
    return proto


def _read_external(model: ir.Model, base: Path) -> None:
    """Weights stay on disk; what a node holds and what shape inference must see is read."""
    for graph in model.graphs():
        for value in graph.initializers.values():
            tensor = value.const_value
            if isinstance(tensor, ir.ExternalTensor):
                tensor.base_dir = base
                if tensor.size <= _MAX_ELEMENTS_READ:
                    value.const_value = ir.tensor(tensor.numpy().copy(), name=tensor.name)
    for node in _all_nodes(model):
        for name, attr in node.attributes.items():
            if attr.type == ir.AttributeType.TENSOR and isinstance(tensor := attr.value, ir.ExternalTensor):
                tensor.base_dir = base
                node.attributes[name] = ir.AttrTensor(name, ir.tensor(tensor.numpy().copy(), name=tensor.name))


def _all_nodes(model: ir.Model) -> Iterator[ir.Node]:
    yield from model.graph.all_nodes()
    for function in model.functions.values():
        yield from function.all_nodes()


def _forget_impossible(model: ir.Model) -> None:
    """What value_info says and cannot be, types that are none and sizes below 0, is taken for unknown, as onnxruntime does. An
    initializer is of its own type and shape, whatever value_info says."""
    inputs = {v for g in model.graphs() for v in g.inputs}
    values = [*inputs, *(o for n in _all_nodes(model) for o in n.outputs)]
    for graph in model.graphs():
        for value in graph.initializers.values():
            if value.const_value is not None and value not in inputs:
                value.type, value.shape = (
                    ir.TensorType(value.const_value.dtype),
                    ir.Shape(value.const_value.shape.numpy()),
                )
    for value in values:
        if value.dtype == ir.DataType.UNDEFINED:
            value.type = None
        dims = [] if value.shape is None else list(value.shape.dims)
        if any(isinstance(d, int) and d < 0 for d in dims):
            value.shape = ir.Shape([None if isinstance(d, int) and d < 0 else d for d in dims])


def check_valid(model: ir.Model) -> None:
    """Raises ModelError for a model that breaks ONNX's rules (too few inputs, attributes that do not fit, ...)."""
    try:
        onnx.checker.check_model(ir.to_proto(model), full_check=True)
    except Exception as e:  # the checker and shape inference raise classes of their own
        raise ModelError(f"not a valid ONNX model: {one_line(e)}") from e


def to_proto(model: ModelLike) -> onnx.ModelProto:
    """The model as a ModelProto with all weights inside."""
    if isinstance(model, onnx.ModelProto):
        return model
    m = load(model)
    ir.external_data.load_to_model(m)
    return ir.to_proto(m)


def raise_opset(model: ModelLike, version: int) -> ir.Model:
    """The model in a newer opset, as onnx converts it; as it is where it has that or a newer one. Raises ModelError where onnx
    cannot, as of a model beyond protobuf's 2 GiB."""
    loaded = load(model)
    if loaded.opset_imports.get("", 0) >= version:
        return loaded
    try:
        return ir.from_proto(onnx.version_converter.convert_version(to_proto(loaded), version))
    except Exception as e:  # the converter raises classes of its own, and protobuf's
        raise ModelError(f"the model cannot be converted to opset {version}: {one_line(e)}") from e


def save(model: onnx.ModelProto | ir.Model, path: str | os.PathLike[str]) -> None:
    """Writes a model of either kind, whole or not at all. Raises OnnxFaError when the place cannot be written, and ModelError for a
    ModelProto that `load` refuses.

        model, report = onnx_fa.rewrite("model.onnx")
        onnx_fa.save(model, "model.fa.onnx")

    External weights that lie in the target's folder stay in their file, which the new model refers to. Otherwise weights are
    copied, tensor by tensor, to `<name>.data` beside the model when it had external data or is too large for one protobuf.
    """
    target = Path(path)
    model = load(model)
    tensors = [v.const_value for g in model.graphs() for v in g.initializers.values() if v.const_value is not None]
    external = [t for t in tensors if isinstance(t, ir.ExternalTensor)]
    beside = all(Path(t.base_dir).resolve() == target.parent.resolve() for t in external)
    inside = sum(t.nbytes for t in tensors if not (beside and isinstance(t, ir.ExternalTensor)))
    data = f"{target.name}.data" if (external and not beside) or inside > _MAX_BYTES_INSIDE else None
    with staged_file(target) as staged:
        # onnx_ir restores the model's own tensors after saving, so the caller's model is left as it was.
        ir.save(model, staged, external_data=data)
        if data and (made := staged.with_name(data)).exists():
            beside_it = target.with_name(data)
            if beside_it.exists():
                target.unlink(missing_ok=True)  # between the two moves it would be a model with another's weights
            os.replace(made, beside_it)


def same_kind(model: ModelLike, result: ir.Model) -> onnx.ModelProto | ir.Model:
    """`result` in the kind that the caller passed: ModelProto for ModelProto, else ir.Model."""
    return ir.to_proto(result) if isinstance(model, onnx.ModelProto) else result
