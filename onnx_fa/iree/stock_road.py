"""The stock road: a transform-dialect spec that puts our kernels in place of decomposed sites in stock iree-compile.

The matcher of the transform dialect compares linalg op by op, so a pattern written by hand would break with every
release of IREE. Here each site's own ONNX nodes are imported and lowered alone, by the installed IREE, to the point
where the spec will run; what comes out is the pattern. Reshapes and transposes at the edges of a site may fold with
their neighbours in a whole model, so they are cut off the pattern and undone in the replacement, where they fold away.
"""

from __future__ import annotations

import json
import re
import shlex
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import iree.compiler.ir as mlir
import onnx
import onnx_ir as ir

from onnx_fa.errors import CompileError, UnsupportedError
from onnx_fa.forms.rewrite import Site
from onnx_fa.iree.compile import find_compiler
from onnx_fa.kernels.choose import emit_kernel
from onnx_fa.kernels.mlir.kernel import Kernel
from onnx_fa.processes import run_limited
from onnx_fa.spec.attention import AttentionSpec
from onnx_fa.spec.target import Target

EmitKernel = Callable[[AttentionSpec, Target], Kernel]

_ONNX_TYPES = {
    "f64": onnx.TensorProto.DOUBLE,
    "f32": onnx.TensorProto.FLOAT,
    "f16": onnx.TensorProto.FLOAT16,
    "bf16": onnx.TensorProto.BFLOAT16,
    "bool": onnx.TensorProto.BOOL,
    "i32": onnx.TensorProto.INT32,
    "i64": onnx.TensorProto.INT64,
}
_EDGE_OPS = ("tensor.collapse_shape", "tensor.expand_shape", "linalg.transpose", "tensor.cast")
_TIMEOUT_S = 120
_MEMORY_BYTES = 8 << 30


@dataclass(frozen=True)
class SpecSite:
    """A decomposed site of a model.

    Its nodes, in topological order, compute the value `output` from the values `operands`, in the spec's order.
    Whatever else the nodes read must be an initializer, or a Constant node's output.
    """

    name: str
    spec: AttentionSpec
    operands: tuple[str, ...]
    output: str
    nodes: tuple[ir.Node, ...]


def emit_transform_spec(
    model: ir.Model,
    sites: Sequence[SpecSite],
    target: Target,
    *,
    emit: EmitKernel = emit_kernel,
    left_out: Callable[[SpecSite, UnsupportedError], None] | None = None,
) -> str:
    """The text of a spec for `iree-compile --iree-preprocessing-transform-spec-filename`.

    `emit` makes a site's kernel. Equal sites share one pattern. The first lines name the further iree-compile flags
    that the kernels need (`spec_flags` reads them). A site that no pattern or kernel can stand for raises
    UnsupportedError, or is left out of the spec and passed to `left_out`. Raises CompileError when the installed IREE
    refuses a site's nodes.
    """
    seen: set[bytes] = set()
    kernels: dict[str, Kernel] = {}
    replacements: list[_Replacement] = []
    for site in sites:
        try:
            if site.spec.stats:
                raise UnsupportedError("row statistics as outputs: a pattern of the stock road has one result")
            proto = site_model(model, site)
            key = json.dumps(site.spec.to_dict()).encode() + proto.SerializeToString(deterministic=True)
            if key in seen:
                continue
            kernel = emit(site.spec, target)
            kernel = replace(kernel, text=_without_state(kernel.text))
            replacement = _replacement(site, _lower(proto, site.name), kernel, f"onnx_fa_{len(replacements)}")
        except UnsupportedError as error:
            if left_out is None:
                raise
            left_out(site, error)
            continue
        seen.add(key)
        kernels[kernel.name] = kernel
        replacements.append(replacement)
    return _module_text(replacements, kernels.values())


def spec_sites(sites: Iterable[Site]) -> list[SpecSite]:
    """The sites of `rewrite_in_place(model, "decomposed")`."""
    return [
        SpecSite(s.name, s.spec, tuple(str(v.name) for v in s.operands), str(s.nodes[-1].outputs[0].name), s.nodes)
        for s in (site.plain or site for site in sites)  # patterns begin behind a dequantisation
    ]


def spec_for_model(
    model: ir.Model,
    sites: Iterable[Site],
    target: Target,
    left_out: Callable[[SpecSite, UnsupportedError], None] | None = None,
) -> str:
    """`emit_transform_spec` for a model and what `rewrite_in_place(model, "decomposed")` said of its sites."""
    return emit_transform_spec(model, spec_sites(sites), target, left_out=left_out)


def spec_flags(text: str) -> tuple[str, ...]:
    """The iree-compile flags that a spec's first lines ask for."""
    return tuple(re.findall(r"^// and (--\S+)$", text, re.MULTILINE))


def site_model(model: ir.Model, site: SpecSite) -> onnx.ModelProto:
    """A model of the site alone: inputs are the operands (once each), values are renamed by their order."""
    names = {name: f"operand{i}" for i, name in reversed(list(enumerate(site.operands)))}
    inputs = []
    operands = zip(site.operands, site.spec.operand_dtypes, site.spec.operand_shapes, strict=True)
    for i, (name, dtype, shape) in enumerate(operands):
        if names[name] == f"operand{i}":
            inputs.append(onnx.helper.make_tensor_value_info(names[name], _ONNX_TYPES[dtype], shape))
    produced = {out.name for node in site.nodes for out in node.outputs}
    initializers: list[onnx.TensorProto] = []

    def rename(value: ir.Value | None) -> str:
        if value is None or not value.name:
            return ""
        if value.name in names:
            return names[value.name]
        constant = ir.convenience.get_const_tensor(value)
        if constant is None and value.name not in produced:
            raise UnsupportedError(f"site {site.name} reads {value.name}, which is neither an operand nor a constant")
        names[value.name] = f"value{len(names)}"
        if value.name not in produced and constant is not None:
            tensor = ir.serde.serialize_tensor(ir.tensor(constant.numpy()))
            tensor.name = names[value.name]
            initializers.append(tensor)
        return names[value.name]

    nodes: list[onnx.NodeProto] = []
    infos: list[onnx.ValueInfoProto] = []
    for node in site.nodes:
        proto = ir.serde.serialize_node(node)
        renamed = [rename(v) for v in node.inputs], [rename(v) for v in node.outputs]
        for old, new in zip((proto.input, proto.output), renamed, strict=True):
            del old[:]
            old.extend(new)
        proto.ClearField("metadata_props")
        proto.name, proto.doc_string = f"node{len(nodes)}", ""
        nodes.append(proto)
        for value in node.outputs:
            if value.name != site.output and value.shape is not None and value.type is not None:
                info = ir.serde.serialize_value(value)
                info.name = names[str(value.name)]
                info.ClearField("metadata_props")
                infos.append(info)
    if site.output not in names:
        raise UnsupportedError(f"site {site.name}: none of its nodes yields its output {site.output}")
    output = onnx.helper.make_tensor_value_info(names[site.output], _ONNX_TYPES[site.spec.dtype], site.spec.out_shape)
    graph = onnx.helper.make_graph(nodes, "site", inputs, [output], initializers, value_info=infos)
    opsets = [onnx.helper.make_opsetid(domain, version) for domain, version in model.opset_imports.items()]
    return onnx.helper.make_model(graph, opset_imports=opsets, ir_version=model.ir_version)


def _lower(proto: onnx.ModelProto, name: str) -> str:
    """The MLIR that preprocessing sees of a model, from the installed IREE."""
    with tempfile.TemporaryDirectory(prefix="onnx_fa_") as folder:
        source, imported, lowered = (Path(folder, f) for f in ("site.onnx", "site.mlir", "input.mlir"))
        onnx.save(proto, source)
        _run(name, [sys.executable, "-m", "iree.compiler.tools.import_onnx", str(source), "-o", str(imported)])
        # Device flags play no part before preprocessing; some device has to be named.
        flags = ["--iree-hal-target-device=local", "--iree-hal-local-target-device-backends=llvm-cpu"]
        compiler = str(find_compiler())
        _run(name, [compiler, "--compile-to=input", *flags, str(imported), "-o", str(lowered)])
        return lowered.read_text()


def _run(name: str, command: list[str]) -> None:
    done = run_limited(command, timeout_s=_TIMEOUT_S, memory_bytes=_MEMORY_BYTES)
    if done.ending != "ok":
        with tempfile.NamedTemporaryFile("w", prefix="onnx_fa_", suffix=".log", delete=False) as log:
            log.write(f"{shlex.join(command)}\n{done.stderr}")
        how = done.describe(_TIMEOUT_S, _MEMORY_BYTES)
        raise CompileError(f"site {name}: {command[0]} {how} on the site's nodes alone; see {log.name}")


@dataclass(frozen=True)
class _Replacement:
    """`pattern` is the matcher's body, of `size` ops; `function` the util.func @`symbol`; both take `arguments`."""

    symbol: str
    arguments: tuple[tuple[str, str], ...]
    pattern: str
    size: int
    function: str
    imports: tuple[str, ...]


def _parse(text: str, what: str) -> Any:
    try:
        return mlir.Module.parse(text)
    except mlir.MLIRError as error:
        raise CompileError(f"{what} is not valid MLIR: {str(error).splitlines()[-1]}") from error


def _op(operation: Any) -> Any:
    """The generic view: op classes may hide `name` behind an attribute of that name."""
    return operation.operation


def _owner(value: Any) -> Any | None:
    return None if isinstance(value.owner, mlir.Block) else _op(value.owner)


_STATE = re.compile(r"util\.global private mutable @([\w$.]+) = dense<0> : (.*)\n")


def _without_state(text: str) -> str:
    """A kernel's text with buffers of zeros made anew in each call instead of those that the module keeps: a transform spec imports
    no variables."""
    for name, type_ in _STATE.findall(text):
        text = re.sub(
            rf"(%[\w$.]+) = util\.global\.load @{re.escape(name)} : .*\n",
            rf"\1_zero = arith.constant 0 : i32\n\1 = flow.tensor.splat \1_zero : {type_}\n",
            text,
        )
        text = re.sub(rf"util\.global\.store .*@{re.escape(name)} : .*\n", "", text)
    return _STATE.sub("", text)


def _replacement(site: SpecSite, text: str, kernel: Kernel, symbol: str) -> _Replacement:
    with mlir.Context() as context, mlir.Location.unknown():
        context.allow_unregistered_dialects = True
        module = _parse(text, f"the lowered site {site.name}")
        function = next(op for op in module.body.operations if any(_named(op, "hal.tensor.import")))
        operands = _operand_values(site, function)
        root, epilogue = _trailing_edge(next(iter(_named(function, "hal.tensor.barrier"))).operands[0])
        inputs, prologues = _leading_edges(operands, root)
        pattern, arguments = _pattern_text(site, root, inputs)
        kernel_module = _parse(f"module {{\n{kernel.text}\n}}", f"the kernel of site {site.name}")
        symbols = [mlir.StringAttr(_op(op).attributes["sym_name"]).value for op in kernel_module.body.operations]
        entry = next(op for op, s in zip(kernel_module.body.operations, symbols, strict=True) if s == kernel.name)
        body = _function_text(symbol, arguments, prologues, _op(entry), epilogue, root)
        size = len(_cone(root, inputs))
        return _Replacement(symbol, arguments, pattern, size, body, (*(s for s in symbols if s != kernel.name), symbol))


def _named(function: Any, name: str) -> Iterable[Any]:
    for region in _op(function).regions:
        for block in region.blocks:
            yield from (_op(op) for op in block.operations if _op(op).name == name)


def _operand_values(site: SpecSite, function: Any) -> list[Any]:
    """The tensor of each operand, in the spec's order."""
    by_argument = {}
    for op in _named(function, "hal.tensor.import"):
        by_argument[mlir.BlockArgument(op.operands[0]).arg_number] = op.results[0]
    order = list(dict.fromkeys(site.operands))
    missing = [name for i, name in enumerate(order) if i not in by_argument]
    if missing:
        raise UnsupportedError(f"site {site.name}: IREE drops its operand {missing[0]}")
    return [by_argument[order.index(name)] for name in site.operands]


def _trailing_edge(value: Any) -> tuple[Any, list[Any]]:
    """The last value that is not just another shape or order of its elements, and the edge ops after it, last first."""
    cut = []
    while (owner := _owner(value)) is not None and owner.name in _EDGE_OPS:
        cut.append(owner)
        value = owner.operands[0]
    return value, cut


def _cone(root: Any, leaves: Iterable[Any] = ()) -> list[Any]:
    """The ops that `root` is computed from, in their order in the block, not going past `leaves`."""
    stop = {v.get_name() for v in leaves}
    found: set[str] = set()
    work = [root]
    while work:
        value = work.pop()
        owner = _owner(value)
        if value.get_name() in stop or owner is None or owner.results[0].get_name() in found:
            continue
        found.add(owner.results[0].get_name())
        work.extend(v for v in owner.operands if not isinstance(v.type, mlir.IndexType))
    owner = _owner(root)
    if owner is None:
        return []
    return [_op(op) for op in owner.block.operations if len(_op(op).results) and _op(op).results[0].get_name() in found]


def _leading_edges(operands: Sequence[Any], root: Any) -> tuple[list[Any], list[tuple[Any, list[Any]]]]:
    """The pattern's inputs, and per operand its input and the edge ops before it, last first.

    An operand that reaches the pattern in more than one shape is its own input: else they could match unrelated values.
    """
    cone = _cone(root)
    inputs: dict[str, Any] = {}
    result = []
    for operand in operands:
        reached: list[tuple[Any, list[Any]]] = []
        work = [(operand, list[Any]())]
        while work:
            value, chain = work.pop()
            users = [op for op in cone if any(v == value for v in op.operands)]
            edges = [op for op in users if op.name in _EDGE_OPS and op.operands[0] == value]
            if len(edges) < len(users):
                reached.append((value, chain))
            work.extend((op.results[0], [op, *chain]) for op in edges)
        if not reached:
            raise UnsupportedError("IREE's lowering of the site does not read one of its operands")
        value, chain = reached[0] if len(reached) == 1 else (operand, [])
        inputs[value.get_name()] = value
        result.append((value, chain))
    return list(inputs.values()), result


def _pattern_text(site: SpecSite, root: Any, inputs: Sequence[Any]) -> tuple[str, tuple[tuple[str, str], ...]]:
    arguments = [(v.get_name(), str(v.type)) for v in inputs]
    lines: list[str] = []
    for op in _cone(root, inputs):
        text = str(op)
        if "dense_resource<" in text:
            raise UnsupportedError(f"site {site.name} holds a large constant: make it an operand")
        if op.name.startswith(("hal.", "util.")):
            raise UnsupportedError(f"site {site.name}: {op.name} inside of it cannot be matched")
        if op.name == "tensor.empty":
            # Which empty tensor an op writes to depends on what else the model holds.
            sizes = [f"%size{i}" for i in range(len(op.operands))]
            lines += [f"{size} = arith.constant 0 : index" for size in sizes if not any(size in x for x in lines)]
            name, type_ = op.results[0].get_name(), op.results[0].type
            lines.append(f"{name} = tensor.empty({', '.join(sizes)}) {{match.operation_name_only}} : {type_}")
            continue
        for value in op.operands:
            if isinstance(value.type, mlir.IndexType):
                # A size: whatever computes it, the shapes of the operands fix its value.
                size = f"%dim{len(arguments)}"
                arguments.append((size, "index"))
                text = re.sub(rf"{re.escape(value.get_name())}(?![\w$#])", size, text, count=1)
        lines.append(text)
    return "\n".join(lines), tuple(arguments)


def _shape(type_: Any) -> list[int | None]:
    t = mlir.RankedTensorType(type_)
    return [None if t.is_dynamic_dim(i) else t.get_dim_size(i) for i in range(t.rank)]


class _Names:
    """Lines of MLIR, each with a fresh name for its result."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def let(self, operation: str) -> str:
        name = f"%edge{len(self.lines)}"
        self.lines.append(f"{name} = {operation}")
        return name

    def size(self, value: str, type_: Any, axis: int) -> str:
        return self.let(f"tensor.dim {value}, {self.let(f'arith.constant {axis} : index')} : {type_}")

    def undo(self, value: str, op: Any) -> str:
        """The operand of the edge op `op` from its result."""
        source, result = op.operands[0].type, op.results[0].type
        if op.name == "tensor.cast":
            return self.let(f"tensor.cast {value} : {result} to {source}")
        if op.name == "linalg.transpose":
            order = list(mlir.DenseI64ArrayAttr(op.attributes["permutation"]))
            sizes = [self.size(value, result, order.index(a)) for a, n in enumerate(_shape(source)) if n is None]
            empty = self.let(f"tensor.empty({', '.join(sizes)}) : {source}")
            back = [order.index(a) for a in range(len(order))]
            return self.let(f"linalg.transpose ins({value} : {result}) outs({empty} : {source}) permutation = {back}")
        groups = [[mlir.IntegerAttr(i).value for i in mlir.ArrayAttr(g)] for g in op.attributes["reassociation"]]
        if op.name == "tensor.expand_shape":
            return self.let(f"tensor.collapse_shape {value} {groups} : {result} into {source}")
        shape = _shape(source)
        sizes = [str(n) for n in shape]
        for axis, group in enumerate(groups):
            unknown = [a for a in group if shape[a] is None]
            if len(unknown) > 1:
                raise UnsupportedError("a reshape at the edge of a site merges two lengths known only at run time")
            if unknown:
                known = 1
                for a in group:
                    known *= shape[a] or 1
                size = self.size(value, result, axis)
                if known > 1:
                    size = self.let(f"arith.divui {size}, {self.let(f'arith.constant {known} : index')} : index")
                sizes[unknown[0]] = size
        return self.let(
            f"tensor.expand_shape {value} {groups} output_shape [{', '.join(sizes)}] : {result} into {source}"
        )


def _function_text(
    symbol: str,
    arguments: Sequence[tuple[str, str]],
    prologues: Sequence[tuple[Any, list[Any]]],
    entry: Any,
    epilogue: Sequence[Any],
    root: Any,
) -> str:
    """The kernel's function, `entry`, between the inverses of the edge ops that the pattern leaves out."""
    incoming = {name: f"%match{i}" for i, (name, _) in enumerate(arguments)}
    edges = _Names()
    block = entry.regions[0].blocks[0]
    if len(block.arguments) != len(prologues):
        raise UnsupportedError(f"kernel {symbol}: takes {len(block.arguments)} operands for {len(prologues)}")
    values = {}
    for argument, (value, chain) in zip(block.arguments, prologues, strict=True):
        text = incoming[value.get_name()]
        for op in chain:
            text = edges.undo(text, op)
        have = chain[-1].operands[0].type if chain else value.type
        if have != argument.type:
            text = edges.let(f"tensor.cast {text} : {have} to {argument.type}")
        values[argument.get_name()] = text
    lines = []
    *body, last = [_op(op) for op in block.operations]
    for op in body:
        lines.append(str(op))
    result, type_ = last.operands[0].get_name(), last.operands[0].type
    if epilogue and type_ != epilogue[0].results[0].type:
        lines.append(f"%result = tensor.cast {result} : {type_} to {epilogue[0].results[0].type}")
        result, type_ = "%result", epilogue[0].results[0].type
    before = len(edges.lines)
    for op in epilogue:
        result, type_ = edges.undo(result, op), op.operands[0].type
    if type_ != root.type:
        result = edges.let(f"tensor.cast {result} : {type_} to {root.type}")
    lines = [*edges.lines[:before], *(_renamed(line, values) for line in lines), *edges.lines[before:]]
    parameters = ", ".join(f"{incoming[name]}: {t}" for name, t in arguments)
    text = "\n".join([*lines, f"util.return {result} : {root.type}"])
    return f"util.func private @{symbol}({parameters}) -> {root.type} {{\n{text}\n}}"


def _renamed(text: str, names: Mapping[str, str]) -> str:
    return re.sub(r"%[\w$.-]+", lambda m: names.get(m.group(), m.group()), text)


def _module_text(replacements: Sequence[_Replacement], kernels: Iterable[Kernel]) -> str:
    kernels = list(kernels)
    flags = dict.fromkeys(flag for kernel in kernels for flag in kernel.flags)
    parts = [
        "// Made by onnx-fa for iree-compile --iree-preprocessing-transform-spec-filename=THIS FILE",
        *(f"// and {flag}" for flag in flags),
        "module attributes {transform.with_named_sequence} {",
        *(kernel.text for kernel in kernels),
        *(r.function for r in replacements),
        *map(_matcher, replacements),
        *map(_replacer, replacements),
        "transform.named_sequence @__transform_main(%module: !transform.any_op) {",
    ]
    # One pass per pattern, the largest first: a pattern may be part of a larger one.
    for i, r in enumerate(sorted(replacements, key=lambda r: -r.size)):
        parts += [
            f'%functions{i} = transform.structured.match ops{{["util.func"]}} in %module'
            " : (!transform.any_op) -> !transform.any_op",
            f"transform.foreach %functions{i} : !transform.any_op {{",
            "^bb1(%function: !transform.any_op):",
            f"transform.foreach_match in %function @match_{r.symbol} -> @replace_{r.symbol}"
            " : (!transform.any_op) -> (!transform.any_op)",
            "}",
            "transform.apply_dce to %module : !transform.any_op",
        ]
    return "\n".join([*parts, "transform.yield", "}", "}", ""])


_OP, _VALUE = "!transform.any_op", "!transform.any_value"


def _matcher(r: _Replacement) -> str:
    arguments = ", ".join(f"{name}: {type_}" for name, type_ in r.arguments)
    return "\n".join(
        [
            f"transform.named_sequence @match_{r.symbol}(%root: {_OP} {{transform.readonly}})",
            f"-> ({_VALUE}, {_VALUE}) {{",
            "%ins, %outs = transform.iree.match.cast_compatible_dag_from_root %root {",
            f"^bb0({arguments}):",
            r.pattern,
            f"}} : ({_OP}) -> ({_VALUE}, {_VALUE})",
            f"transform.yield %ins, %outs : {_VALUE}, {_VALUE}",
            "}",
        ]
    )


def _replacer(r: _Replacement) -> str:
    read = f"{_VALUE} {{transform.readonly}}"
    return "\n".join(
        [
            f"transform.named_sequence @replace_{r.symbol}(%ins: {read}, %out: {read}) {{",
            f"%root = transform.get_defining_op %out : ({_VALUE}) -> {_OP}",
            f"%module = transform.util.get_nearest_symbol_table %root : ({_OP}) -> {_OP}",
            *(
                f"%import{i} = transform.util.import_symbol @{name} into %module if undefined : ({_OP}) -> {_OP}"
                for i, name in enumerate(r.imports)
            ),
            f"transform.util.cast_and_call inline_call %import{len(r.imports) - 1}(%ins) -> %out after %root {{",
            "transform.type_conversion.tensor.cast_shape_dynamic_dims",
            f"}} : ({_OP}, {_VALUE}, {_VALUE}, {_OP}) -> ()",
            "transform.yield",
            "}",
        ]
    )
