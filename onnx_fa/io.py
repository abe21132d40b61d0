"""Reading and writing models: every kind of input becomes an onnx_ir.Model, every defect of a file one clear ModelError."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import onnx
import onnx_ir as ir

from onnx_fa.errors import ModelError, OnnxFaError, one_line

ModelLike = onnx.ModelProto | ir.Model | str | os.PathLike[str]
_SMALL = 64  # elements: shapes, axes and scalars, which shape inference must see
_SPLIT_BYTES = 1 << 30  # protobuf refuses files over 2 GiB; weights go to one external file well before


def load(model: ModelLike) -> ir.Model:
    """The model as onnx_ir. External weights stay on disk until someone reads them. An ir.Model is returned as it is.

    Raises ModelError when the file is missing, is not ONNX, is truncated, imports no opset, names external data that is not
    there, or has a graph with a cycle or an input that nothing produces.
    """
    if isinstance(model, ir.Model):
        return model
    name = "model" if isinstance(model, onnx.ModelProto) else os.fspath(model)
    proto = model if isinstance(model, onnx.ModelProto) else _read(Path(name))
    if not proto.HasField("graph") or not (proto.graph.node or proto.graph.output):
        raise ModelError(
            f"{name}: not an ONNX model (no graph in it); pass a file that torch.onnx.export or onnx.save wrote"
        )
    if not any(o.domain in ("", "ai.onnx") for o in proto.opset_import):
        raise ModelError(f"{name}: the model imports no opset of the default domain; set opset_import before using it")
    base = Path() if isinstance(model, onnx.ModelProto) else Path(name).resolve().parent
    _check_external(proto, base, name)
    _check_order(proto.graph, set(), name)
    try:
        result = ir.from_proto(proto)
    except Exception as e:  # onnx_ir raises many kinds for malformed protos
        raise ModelError(f"{name}: malformed model: {one_line(e)}") from e
    _rebase_external(result, base)
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


def _check_external(proto: onnx.ModelProto, base: Path, name: str) -> None:
    for tensor in proto.graph.initializer:
        if tensor.data_location != onnx.TensorProto.EXTERNAL:
            continue
        info = {e.key: e.value for e in tensor.external_data}
        path = base / info.get("location", "")
        if not path.is_file():
            raise ModelError(
                f"{name}: external data of {tensor.name!r} is missing: no file {path}; keep it beside the model"
            )
        end = int(info.get("offset", 0)) + int(info.get("length", 0))
        if path.stat().st_size < end:
            raise ModelError(
                f"{name}: external data of {tensor.name!r} is truncated: {path} is shorter than {end} bytes"
            )


def _check_order(graph: onnx.GraphProto, outer: set[str], name: str) -> None:
    """Every node input is defined before it; says whether a violation is a cycle, a wrong order or a missing tensor."""
    known = outer | {i.name for i in graph.input} | {i.name for i in graph.initializer}
    known |= {s.values.name for s in graph.sparse_initializer}
    all_outputs = {o for n in graph.node for o in n.output}
    for node in graph.node:
        label = f"node {node.name or node.op_type!r}"
        for i in node.input:
            if i and i not in known:
                where = "is not produced by any node" if i not in all_outputs else "is produced only later"
                hint = "sort the nodes, or break the cycle" if i in all_outputs else "repair the export"
                raise ModelError(
                    f"{name}: graph {graph.name!r} is not topologically sorted or has a cycle: "
                    f"input {i!r} of {label} {where}; {hint}"
                )
        for attr in node.attribute:
            for sub in [attr.g] if attr.type == onnx.AttributeProto.GRAPH else attr.graphs:
                _check_order(sub, known, name)
        for o in node.output:
            if o and o in known - outer:
                raise ModelError(f"{name}: tensor {o!r} is produced twice, again by {label}")
            known.add(o)
    for o_info in graph.output:
        if o_info.name not in known:
            raise ModelError(f"{name}: graph output {o_info.name!r} is produced by no node")


def _rebase_external(model: ir.Model, base: Path) -> None:
    for graph in model.graphs():
        for value in graph.initializers.values():
            tensor = value.const_value
            if isinstance(tensor, ir.ExternalTensor):
                tensor.base_dir = base
                if tensor.size <= _SMALL:
                    value.const_value = ir.tensor(tensor.numpy().copy(), name=tensor.name)


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


def save(model: ir.Model, path: str | os.PathLike[str]) -> None:
    """Writes the model, whole or not at all. Raises OnnxFaError when the place cannot be written.

    External weights that lie in the target's folder stay in their file, which the new model refers to. Otherwise weights are
    copied, tensor by tensor, to `<name>.data` beside the model when it had external data or is too large for one protobuf.
    """
    target = Path(path)
    tensors = [v.const_value for g in model.graphs() for v in g.initializers.values() if v.const_value is not None]
    external = [t for t in tensors if isinstance(t, ir.ExternalTensor)]
    beside = all(Path(t.base_dir).resolve() == target.parent.resolve() for t in external)
    inside = sum(t.nbytes for t in tensors if not (beside and isinstance(t, ir.ExternalTensor)))
    data = f"{target.name}.data" if (external and not beside) or inside > _SPLIT_BYTES else None
    try:
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=".onnx_fa-") as tmp:
            staged = Path(tmp) / target.name
            # onnx_ir restores the model's own tensors after saving, so the caller's model is left as it was.
            ir.save(model, staged, external_data=data)
            if data and (Path(tmp) / data).exists():
                os.replace(Path(tmp) / data, target.parent / data)
            os.replace(staged, target)
    except OSError as e:
        raise OnnxFaError(f"{target}: cannot be written: {e.strerror or one_line(e)}") from e


def same_kind(model: ModelLike, result: ir.Model) -> onnx.ModelProto | ir.Model:
    """`result` in the kind that the caller passed: ModelProto for ModelProto, else ir.Model."""
    return ir.to_proto(result) if isinstance(model, onnx.ModelProto) else result
