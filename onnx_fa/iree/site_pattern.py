"""What of a site's lowering the transform dialect is to match, and the function that replaces it.

Reshapes and transposes at the edges of a site may fold with their neighbours in a whole model, so they are cut off the pattern and
undone in the replacement, where they fold away.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import iree.compiler.ir as mlir
import onnx_ir as ir

from onnx_fa.errors import CompileError, UnsupportedError
from onnx_fa.iree.transform_text import Replacement
from onnx_fa.kernels.mlir.kernel import Kernel
from onnx_fa.spec.attention import AttentionSpec

_EDGE_OPS = ("tensor.collapse_shape", "tensor.expand_shape", "linalg.transpose", "tensor.cast")


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


def make_replacement(site: SpecSite, text: str, kernel: Kernel, symbol: str) -> Replacement:
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
        return Replacement(symbol, arguments, pattern, size, body, (*(s for s in symbols if s != kernel.name), symbol))


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
