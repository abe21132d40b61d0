"""Tensors of a file: a type that there is, dims that can be, and as much data as they need, inside the file or beside it."""

from __future__ import annotations

import math
import os
import stat
from pathlib import Path

import onnx
import onnx_ir as ir

from onnx_fa.errors import ModelError
from onnx_fa.graph.checks.words import check_metadata, check_text

_KINDS = frozenset(ir.DataType) - {ir.DataType.UNDEFINED}
_MAX_BYTES = 1 << 62
_MAX_RANK = 64  # of NumPy
_FIELDS = ("float_data", "int32_data", "string_data", "int64_data", "double_data", "uint64_data")
_FIELD_OF: dict[int, str] = {
    **{k: "float_data" for k in (onnx.TensorProto.FLOAT, onnx.TensorProto.COMPLEX64)},
    **{k: "double_data" for k in (onnx.TensorProto.DOUBLE, onnx.TensorProto.COMPLEX128)},
    **{k: "uint64_data" for k in (onnx.TensorProto.UINT32, onnx.TensorProto.UINT64)},
    onnx.TensorProto.INT64: "int64_data",
    onnx.TensorProto.STRING: "string_data",
}
"""All other types are kept in int32_data."""


def check_kind(kind: int, what: str) -> ir.DataType:
    """The element type of that number. Raises ModelError where there is none."""
    if kind not in _KINDS:
        known = f"{int(min(_KINDS))} to {int(max(_KINDS))}"
        raise ModelError(f"{what} has data type {kind}, which is none: ONNX's are {known}; repair the export")
    return ir.DataType(kind)


def check_tensor(tensor: onnx.TensorProto, what: str, base: Path) -> None:
    """Raises ModelError. `what` names the tensor, or the node that holds it."""
    check_text(f"{what}: name", tensor.name)
    check_text(f"{what}: doc string", tensor.doc_string)
    check_metadata(what, tensor.metadata_props)
    kind = check_kind(tensor.data_type, what)
    if bad := next((d for d in tensor.dims if d < 0), None):
        raise ModelError(f"{what} has a dim of {bad}; the dims of a tensor with data are 0 or more")
    if len(tensor.dims) > _MAX_RANK:
        raise ModelError(f"{what} has {len(tensor.dims)} dims; more than {_MAX_RANK} cannot be read")
    count = math.prod(tensor.dims)
    size = 0 if kind == ir.DataType.STRING else (count * kind.bitwidth + 7) // 8
    if count > _MAX_BYTES or size > _MAX_BYTES:
        raise ModelError(f"{what} has {_dims(tensor)} elements, more than any memory holds")
    if tensor.HasField("segment"):
        raise ModelError(f"{what} is a segment of a tensor, which cannot be read; store it whole")
    if tensor.data_location == onnx.TensorProto.EXTERNAL:
        if kind == ir.DataType.STRING:
            raise ModelError(f"{what} has strings as external data, which ONNX does not allow; store them inside")
        _check_external(tensor, what, base, size)
    else:
        _check_inside(tensor, what, kind, count, size)


def _dims(tensor: onnx.TensorProto) -> str:
    return "x".join(map(str, tensor.dims))


def _check_inside(tensor: onnx.TensorProto, what: str, kind: ir.DataType, count: int, size: int) -> None:
    filled = [f for f in _FIELDS if len(getattr(tensor, f))]
    if tensor.HasField("raw_data"):
        have = len(tensor.raw_data)
        if kind == ir.DataType.STRING or filled:
            raise ModelError(f"{what} has raw data and {filled[0] if filled else 'strings'}; one of them is too many")
        if have != size:
            raise ModelError(f"{what} has {have} bytes of data, but {_dims(tensor)} elements of {kind} are {size}")
        return
    right = _FIELD_OF.get(int(kind), "int32_data")
    if wrong := [f for f in filled if f != right]:
        raise ModelError(f"{what} is of type {kind}, but its data is in {wrong[0]}, not in {right}")
    need = count
    if kind in (ir.DataType.COMPLEX64, ir.DataType.COMPLEX128):
        need = 2 * count
    elif kind != ir.DataType.STRING and kind.bitwidth < 8:
        need = size  # several to a byte, a byte to an entry
    have = len(getattr(tensor, right))
    if have != need:
        raise ModelError(f"{what} has {have} entries of data, but {_dims(tensor)} elements of {kind} need {need}")


def _check_external(tensor: onnx.TensorProto, what: str, base: Path, size: int) -> None:
    for entry in tensor.external_data:
        check_text(f"external data of {what}", entry.key, entry.value)
    info = {e.key: e.value for e in tensor.external_data}
    path = _data_file(info.get("location", ""), what, base)
    offset = _number(info.get("offset", "0"), "offset", what)
    if "length" in info and (length := _number(info["length"], "length", what)) != size:
        raise ModelError(f"external data of {what}: length {length}, but {_dims(tensor)} elements are {size} bytes")
    have = path.stat().st_size
    if have < offset + size:
        raise ModelError(
            f"external data of {what} is truncated: {path} has {have} bytes, {offset + size} are needed; "
            "copy the file again"
        )


def _number(text: str, key: str, what: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 20):
        raise ModelError(f"external data of {what}: {key} {text!r} is not a number of bytes, 0 or more")
    return int(text)


def _data_file(location: str, what: str, base: Path) -> Path:
    """The file of external data: a regular one in the model's folder or below, reached through no link and known by no other
    name, so that a model cannot make others of the user's files its own."""
    if not location or "\0" in location:
        raise ModelError(f"external data of {what}: its location {location!r} is not a file name; repair the export")
    folder = base.resolve()
    path = Path(os.path.normpath(folder / location))
    if os.path.isabs(location) or not path.is_relative_to(folder):
        raise ModelError(
            f"external data of {what}: its location {location!r} is outside of the model's folder; keep it beside the model"
        )
    try:
        status = path.lstat()
        real = path.resolve()
    except FileNotFoundError:
        raise ModelError(f"external data of {what} is missing: no file {path}; keep it beside the model") from None
    except OSError as e:
        raise ModelError(f"external data of {what}: {path}: cannot be read: {e.strerror}") from e
    if real != path:
        raise ModelError(f"external data of {what}: {path} goes through a link; put the file itself beside the model")
    if not stat.S_ISREG(status.st_mode):
        raise ModelError(f"external data of {what}: {path} is not a file")
    if status.st_nlink > 1:
        raise ModelError(f"external data of {what}: {path} has other names (hard links); put a copy beside the model")
    return path
