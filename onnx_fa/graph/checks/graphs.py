"""A graph: every name is there, once, and before it is read; its inputs, outputs and functions fit together."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import onnx

from onnx_fa.errors import ModelError
from onnx_fa.graph.checks.nodes import check_attribute, check_node, graphs_of
from onnx_fa.graph.checks.tensors import check_kind, check_tensor
from onnx_fa.graph.checks.words import check_metadata, check_text, node_label
from onnx_fa.graph.ops import STANDARD

Key = tuple[str, str, str]
"""Of a function: its domain, name and overload."""
_MAX_CALLS = 1_000_000
"""Nodes that calls of functions may come to in all: functions that call each other twice grow by powers of two."""


def check_opsets(proto: onnx.ModelProto | onnx.FunctionProto) -> dict[str, int]:
    """The version of each domain, the default one as "". Raises ModelError."""
    opsets: dict[str, int] = {}
    newest = onnx.defs.onnx_opset_version()
    for entry in proto.opset_import:
        check_text("opset_import", entry.domain)
        domain = "" if entry.domain in STANDARD else entry.domain
        if not 1 <= entry.version < 2**31:
            raise ModelError(f"opset_import of domain {entry.domain!r} has version {entry.version}")
        if domain == "" and entry.version > newest:
            raise ModelError(
                f"the model imports opset {entry.version}; the installed onnx knows those up to {newest}: upgrade onnx"
            )
        if opsets.setdefault(domain, entry.version) != entry.version:
            raise ModelError(f"opset_import names domain {entry.domain!r} twice, with different versions")
    if "" not in opsets and isinstance(proto, onnx.ModelProto):
        raise ModelError("the model imports no opset of the default domain; set opset_import before using it")
    return opsets


def check_graph(graph: onnx.GraphProto, opsets: Mapping[str, int], base: Path) -> list[onnx.NodeProto]:
    """The main graph and all graphs inside it. Returns all their nodes. Raises ModelError."""
    for info in graph.input:
        if info.type.WhichOneof("value") is None:
            raise ModelError(f"graph input {info.name!r} has no type; repair the export")
        if info.type.HasField("tensor_type"):
            check_kind(info.type.tensor_type.elem_type, f"graph input {info.name!r}")
    if not graph.output:
        raise ModelError(f"graph {graph.name!r} has no outputs: nothing is computed; repair the export")
    return _check_graph(graph, set(), opsets, base, False)


def check_functions(proto: onnx.ModelProto, base: Path) -> dict[Key, list[Key]]:
    """Every function by itself. Returns what each calls: all nodes in it, by the names that functions have. Raises ModelError."""
    calls: dict[Key, list[Key]] = {}
    for function in proto.functions:
        check_text("a function's name or domain", function.name, function.domain, function.overload)
        what = f"function {function.name!r}"
        key = (function.domain, function.name, function.overload)
        if key in calls:
            raise ModelError(f"{what} is there twice")
        check_text(f"{what}: inputs, outputs and attributes", *function.input, *function.output, *function.attribute)
        check_text(f"{what}: doc string", function.doc_string)
        check_metadata(what, function.metadata_props)
        for attr in function.attribute_proto:
            check_attribute(attr, what, base, False)
        for info in function.value_info:
            _check_info(info, what)
        for names, side in ((function.input, "input"), (function.output, "output")):
            if "" in names or len(set(names)) != len(names):
                raise ModelError(f"{what} has an {side} without a name, or the same one twice")
        nodes = _check_nodes(function.node, set(), set(function.input), check_opsets(function), base, what, True)
        made = {o for n in function.node for o in n.output} | set(function.input)
        if missing := [o for o in function.output if o not in made]:
            raise ModelError(f"{what}: output {missing[0]!r} is produced by no node")
        calls[key] = _calls(nodes)
    return calls


def _calls(nodes: Sequence[onnx.NodeProto]) -> list[Key]:
    return [(n.domain, n.op_type, n.overload) for n in nodes]


def check_calls(functions: Mapping[Key, Sequence[Key]], nodes: Sequence[onnx.NodeProto]) -> None:
    """No function calls itself, and the model stays within bounds with all calls of `nodes` written out. Raises ModelError."""
    main = ("", "", "")
    calls = {**functions, main: _calls(nodes)}
    sizes: dict[Key, int] = {}
    for start in calls:
        path = [start]  # each calls the next one
        while path:
            key = path[-1]
            todo = next((c for c in calls[key] if c in functions and c not in sizes), None)
            if todo in path:
                raise ModelError(f"function {key[1]!r} calls itself")
            if todo is not None:
                path.append(todo)
                continue
            sizes[key] = len(calls[key]) + sum(sizes.get(c, 0) for c in calls[key])
            if sizes[key] > max(_MAX_CALLS, len(calls[key])):
                name = "the model" if key == main else f"function {key[1]!r}"
                raise ModelError(f"{name} comes to more than {_MAX_CALLS} nodes with the functions that are called")
            path.pop()


def _check_graph(
    graph: onnx.GraphProto, outer: set[str], opsets: Mapping[str, int], base: Path, in_function: bool
) -> list[onnx.NodeProto]:
    """The nodes of the graph and of all inside it."""
    check_text("a graph's name", graph.name, graph.doc_string)
    what = f"graph {graph.name!r}"
    check_metadata(what, graph.metadata_props)
    for note in graph.quantization_annotation:
        check_text(f"{what}: quantization_annotation", note.tensor_name)
        check_metadata(f"{what}: quantization_annotation", note.quant_parameter_tensor_names)
    for info in (*graph.input, *graph.output, *graph.value_info):
        _check_info(info, what)
    inputs = [i.name for i in graph.input]
    if "" in inputs or len(set(inputs)) != len(inputs):
        raise ModelError(f"{what} has an input without a name, or the same one twice")
    if graph.sparse_initializer:
        name = graph.sparse_initializer[0].values.name
        raise ModelError(f"sparse initializer {name!r} is not supported; store it as a plain one")
    local = set(inputs)
    seen: set[str] = set()
    for tensor in graph.initializer:
        check_text("name of an initializer", tensor.name)
        if not tensor.name or tensor.name in seen:
            raise ModelError(f"{what} has an initializer without a name, or {tensor.name!r} twice")
        check_tensor(tensor, f"initializer {tensor.name!r}", base)
        seen.add(tensor.name)
    _check_defaults(graph)
    nodes = _check_nodes(graph.node, outer, local | seen, opsets, base, what, in_function)
    known = outer | local | seen | {o for n in graph.node for o in n.output}
    for info in graph.output:
        if info.name not in known:
            raise ModelError(f"graph output {info.name!r} is produced by no node")
    return nodes


def _check_defaults(graph: onnx.GraphProto) -> None:
    """Initializers that are inputs too are of the input's type and shape."""
    infos = {i.name: i.type.tensor_type for i in graph.input if i.type.HasField("tensor_type")}
    for tensor in graph.initializer:
        info = infos.get(tensor.name)
        if info is None:
            continue
        dims = [d.dim_value if d.HasField("dim_value") else -1 for d in info.shape.dim]
        fits = len(dims) == len(tensor.dims) and all(d in (-1, e) for d, e in zip(dims, tensor.dims, strict=True))
        if (info.elem_type and info.elem_type != tensor.data_type) or (info.HasField("shape") and not fits):
            raise ModelError(f"initializer {tensor.name!r} is of another type or shape than the input of that name")


def _check_nodes(
    nodes: Sequence[onnx.NodeProto],
    outer: set[str],
    local: set[str],
    opsets: Mapping[str, int],
    base: Path,
    where: str,
    in_function: bool,
) -> list[onnx.NodeProto]:
    """Every input is defined before it is read; says whether a violation is a cycle, a wrong order or a missing tensor. `local`
    gets what the nodes make."""
    found: list[onnx.NodeProto] = []
    for node in nodes:
        check_node(node, opsets, base, in_function)
        found.append(node)
        label = node_label(node)
        for name in node.input:
            if name and name not in local and name not in outer:
                later = any(name in n.output for n in nodes)
                how = "is produced only later" if later else "is not produced by any node"
                hint = "sort the nodes, or break the cycle" if later else "repair the export"
                raise ModelError(
                    f"{where} is not topologically sorted or has a cycle: input {name!r} of {label} {how}; {hint}"
                )
        inner = list(graphs_of(node))
        known = outer | local if inner else set[str]()
        for graph in inner:
            found += _check_graph(graph, known, opsets, base, in_function)
        for name in node.output:
            if name and name in local:
                raise ModelError(f"tensor {name!r} is produced twice, again by {label}")
            local.add(name)
    local.discard("")
    return found


def _check_info(info: onnx.ValueInfoProto, where: str) -> None:
    check_text(f"{where}: a tensor's name", info.name)
    what = f"tensor {info.name!r}"
    check_text(f"{what}: doc string", info.doc_string)
    check_metadata(what, info.metadata_props)
    todo = [info.type]
    while todo:
        type_ = todo.pop()
        kind = type_.WhichOneof("value")
        check_text(f"{what}: denotation", type_.denotation)
        if kind in ("tensor_type", "sparse_tensor_type"):
            inner = getattr(type_, kind)
            if inner.elem_type:
                check_kind(inner.elem_type, what)
            for dim in inner.shape.dim:
                check_text(f"{what}: a dim's name", dim.dim_param, dim.denotation)
            if math.prod(d.dim_value for d in inner.shape.dim if d.dim_value > 0) >= 2**62:
                raise ModelError(f"{what} has a shape of more than 2^62 elements; repair the export")
        elif kind in ("sequence_type", "optional_type"):
            element = getattr(type_, kind).elem_type
            if element.WhichOneof("value") is None:
                raise ModelError(f"{what} is a {kind.removesuffix('_type')} of no type; repair the export")
            todo.append(element)
        elif kind is not None:
            raise ModelError(f"{what} is a {kind.removesuffix('_type')}, which is not supported")
