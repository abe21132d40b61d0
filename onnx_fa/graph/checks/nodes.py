"""A node by itself: its names are text, and standard ops have the attributes, inputs and outputs that their definition says."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

import onnx

from onnx_fa.errors import ModelError
from onnx_fa.graph.checks.tensors import check_tensor
from onnx_fa.graph.checks.words import check_metadata, check_text, node_label
from onnx_fa.graph.ops import STANDARD, op_of

_Type = onnx.AttributeProto.AttributeType
_SPARSE = (onnx.AttributeProto.SPARSE_TENSOR, onnx.AttributeProto.SPARSE_TENSORS)
_FIELDS = {onnx.AttributeProto.TENSOR: "t", onnx.AttributeProto.GRAPH: "g", onnx.AttributeProto.TYPE_PROTO: "tp"}


class _Schema(NamedTuple):
    types: dict[str, int]
    required: tuple[str, ...]
    inputs: tuple[int, int]
    outputs: tuple[int, int]
    needed: int
    """So many first inputs cannot be left out."""


@cache
def _schema(op: str, domain: str, version: int) -> _Schema | None:
    """The definition of an op, None for those that onnx does not know."""
    if not onnx.defs.has(op, version, domain):
        return None
    found = onnx.defs.get_schema(op, version, domain)
    types = {name: int(a.type.value) for name, a in found.attributes.items()}  # type: ignore[attr-defined]
    required = tuple(name for name, a in found.attributes.items() if a.required)
    single = [i.option == onnx.defs.OpSchema.FormalParameterOption.Single for i in found.inputs]
    needed = single.index(False) if False in single else len(single)
    return _Schema(types, required, (found.min_input, found.max_input), (found.min_output, found.max_output), needed)


def check_node(node: onnx.NodeProto, opsets: Mapping[str, int], base: Path, in_function: bool) -> None:
    """Raises ModelError. Graphs in attributes are not looked at, see `graphs_of`."""
    check_text("a node's name, op or domain", node.name, node.op_type, node.domain, node.overload)
    label = node_label(node)
    kind, domain = (node.op_type, "" if node.domain in STANDARD else node.domain)
    if not kind:
        raise ModelError(f"node {node.name!r} has no op")
    check_text(f"{label}: inputs and outputs", *node.input, *node.output)
    check_text(f"{label}: doc string", node.doc_string)
    check_metadata(label, node.metadata_props)
    seen: set[str] = set()
    for attr in node.attribute:
        check_attribute(attr, label, base, in_function)
        if attr.name in seen:
            raise ModelError(f"{label} has the attribute {attr.name!r} twice")
        seen.add(attr.name)
    if domain in opsets:
        _check_against(node, _schema(kind, domain, opsets[domain]), label)


def graphs_of(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    """The graphs in a node's attributes."""
    for attr in node.attribute:
        if attr.type == onnx.AttributeProto.GRAPH:
            yield attr.g
        elif attr.type == onnx.AttributeProto.GRAPHS:
            yield from attr.graphs


def check_attribute(attr: onnx.AttributeProto, label: str, base: Path, in_function: bool) -> None:
    """Raises ModelError. `label` names the node, or the function whose default it is."""
    check_text(f"{label}: attribute", attr.name, attr.doc_string, attr.ref_attr_name)
    what = f"attribute {attr.name!r} of {label}"
    if not attr.name:
        raise ModelError(f"{label} has an attribute without a name")
    if attr.type == onnx.AttributeProto.UNDEFINED or attr.type not in _Type.values():
        raise ModelError(f"{what} has no type; repair the export")
    if attr.ref_attr_name:
        if not in_function:
            raise ModelError(f"{what} refers to {attr.ref_attr_name!r}, which only a function's node can")
        return
    if attr.type in _SPARSE:
        raise ModelError(f"{what} is a sparse tensor, which is not supported; store it as a plain one")
    if attr.type in _FIELDS and not attr.HasField(_FIELDS[attr.type]):
        raise ModelError(f"{what} says that it is a {_Type.Name(attr.type)}, but holds none")
    if attr.type == onnx.AttributeProto.TENSOR:
        check_tensor(attr.t, what, base)
    for tensor in attr.tensors:
        check_tensor(tensor, what, base)
    if attr.type == onnx.AttributeProto.STRINGS:
        for value in attr.strings:
            _check_utf8(value, what)


def _check_utf8(value: bytes, what: str) -> None:
    try:
        value.decode()
    except UnicodeDecodeError as e:
        raise ModelError(f"{what} is not UTF-8 text: {value[:40]!r}") from e


def _check_value(attr: onnx.AttributeProto, node: onnx.NodeProto, label: str) -> None:
    """What a schema does not say about a value, and onnxruntime refuses."""
    match op_of(node), attr.name:
        case "Transpose", "perm" if sorted(attr.ints) != [*range(len(attr.ints))]:
            raise ModelError(f"{label}: its perm {[*attr.ints]} does not name every axis once; repair the export")
        case "Split", "num_outputs" if attr.i != len(node.output):
            raise ModelError(f"{label}: num_outputs is {attr.i}, but it has {len(node.output)} outputs")


def _check_against(node: onnx.NodeProto, schema: _Schema | None, label: str) -> None:
    if schema is None:
        return
    for attr in node.attribute:
        want = schema.types.get(attr.name)
        if want is None:
            raise ModelError(
                f"{label} has an attribute {attr.name!r}, which {node.op_type} does not know in this opset"
            )
        if attr.type != want:
            what = f"attribute {attr.name!r} of {label} is a {_Type.Name(attr.type)}"
            raise ModelError(f"{what}, but {node.op_type} takes a {_Type.Name(want)}")
        if attr.type == onnx.AttributeProto.STRING and not attr.ref_attr_name:
            _check_utf8(attr.s, f"attribute {attr.name!r} of {label}")
        if not attr.ref_attr_name:
            _check_value(attr, node, label)
    names = {a.name for a in node.attribute}
    if missing := [n for n in schema.required if n not in names]:
        raise ModelError(f"{label} lacks the attribute {missing[0]!r}, which {node.op_type} needs")
    for what, ends, (least, most) in (("inputs", node.input, schema.inputs), ("outputs", node.output, schema.outputs)):
        if not least <= len(ends) <= most:
            bounds = str(least) if least == most else f"{least} to {most}"
            raise ModelError(f"{label} has {len(ends)} {what}, but {node.op_type} has {bounds}")
    if not all(node.input[: min(schema.needed, schema.inputs[0])]):
        at = list(node.input).index("")
        raise ModelError(f"{label}: input {at} is left out, but {node.op_type} needs it")
