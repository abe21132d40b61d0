"""The free dims of a model's inputs: their names, the shapes that sizes make of them, and a model in which some are fixed."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping, Sequence

import onnx_ir as ir

from onnx_fa.errors import ModelError
from onnx_fa.graph.io import ModelLike, load
from onnx_fa.graph.normalise import infer_shapes
from onnx_fa.graph.view import GraphView

ODD_LENGTH = 37
"""The default size of a symbolic length: no tile or vector size divides it."""
OTHER_LENGTHS = (24, 12, 1, 1600)
"""Lengths to try where a model does not run with that one: an even one, shorter ones, and one of which a tower of convolutions over
sound leaves something."""

_BATCH_WORDS = ("batch", "bsz", "bs", "n_batch")
_OPERATORS: dict[type, Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
}


def graph_inputs(model: ir.Model) -> list[ir.Value]:
    """The inputs that a caller must give: those that no initializer fills."""
    return [v for v in model.graph.inputs if v.name not in model.graph.initializers]


def symbols(model: ir.Model) -> tuple[str, ...]:
    """The names of the free dims of the inputs, in order of appearance; an unnamed dim is `<input>.<axis>`. Inputs
    without a shape have none."""
    names: dict[str, None] = {}
    for value in graph_inputs(model):
        if value.shape is None:
            continue
        for symbol in filter(lambda d: isinstance(d, str), _dims(value)):
            names.update(_names(str(symbol)))
    return tuple(names)


def input_shapes(
    model: ir.Model, dims: Mapping[str, int] | None = None, default: int = ODD_LENGTH
) -> dict[str, tuple[int, ...]]:
    """Concrete shapes of the inputs. Symbols not in `dims` get `default`, batch sizes 2.

    Raises ModelError when an input has no shape, or `dims` names an unknown symbol or a size below 0.
    """
    sizes = free_sizes(model, dims or {}, default)
    return {str(v.name): tuple(_size(d, sizes, v) for d in _dims(v)) for v in graph_inputs(model)}


def free_sizes(model: ir.Model, dims: Mapping[str, int], default: int) -> dict[str, int]:
    """The size of each free dim: that of `dims`, else 2 for a batch and `default` for others.

    Raises ModelError when `dims` names an unknown symbol or a size below 0.
    """
    known = symbols(model)
    _check_given(dims, known)
    return {s: dims.get(s, 2 if s.lower().startswith(_BATCH_WORDS) else default) for s in known}


def _check_given(sizes: Mapping[str, int], known: tuple[str, ...]) -> None:
    for name, size in sizes.items():
        if name not in known:
            raise ModelError(
                f"--dim {name}: the model has no such dim; its free dims are: {', '.join(known) or 'none'}"
            )
        if size < 0:
            raise ModelError(f"--dim {name}={size}: a size cannot be negative")


def fix_dims(model: ModelLike, sizes: Mapping[str, int]) -> ir.Model:
    """A copy of the model in which the free dims named have these sizes, wherever the graph names them.

    Raises ModelError for a name that is no free dim of the inputs, and for a size below 0.
    """
    fixed = model.clone() if isinstance(model, ir.Model) else load(model)
    _check_given(sizes, symbols(fixed))
    for value in graph_inputs(fixed):
        if value.shape is not None:
            named = [sizes.get(f"{value.name}.{a}") if _is_unnamed(d) else d for a, d in enumerate(value.shape)]
            value.shape = ir.Shape(named)
    said: dict[ir.Value, list[int | ir.SymbolicDim | None]] = {}
    for graph in fixed.graphs():
        for value in graph.inputs:
            if value.shape is not None:
                value.shape = ir.Shape([_fixed_dim(d, sizes) for d in value.shape])
        for value in (o for node in graph for o in node.outputs):
            if value.shape is not None and (dims := [_fixed_dim(d, sizes) for d in value.shape]) != list(value.shape):
                said[value], value.shape = dims, None
    _follow(fixed, said)
    return fixed


def _follow(model: ir.Model, said: Mapping[ir.Value, Sequence[int | ir.SymbolicDim | None]]) -> None:
    """Gives values that nodes make the dims that follow from the inputs, and where nothing follows those that the file `said`.

    Some exporters call two lengths by one name inside a graph (onnxruntime-genai's builder the queries' and the keys'), which does
    no harm until one of them is fixed."""
    if not said:
        return
    infer_shapes(model)
    view = GraphView(model)
    for value, dims in said.items():
        found = view.shape(value)
        if found is None or len(found) != len(dims):
            value.shape = ir.Shape(dims)
        else:
            value.shape = ir.Shape([told if told is not None else d for told, d in zip(found, dims, strict=True)])


def rename_dim(model: ir.Model, old: str, new: str) -> None:
    """Calls a free dim of a model otherwise, wherever it stands by itself: `new` may be a sum of other dims that it equals."""
    for graph in model.graphs():
        for value in (*graph.inputs, *(o for node in graph for o in node.outputs)):
            if value.shape is not None and any(_symbol(d) == old for d in value.shape):
                value.shape = ir.Shape([new if _symbol(d) == old else d for d in value.shape])


def _symbol(dim: int | ir.SymbolicDim) -> str | None:
    return dim.value if isinstance(dim, ir.SymbolicDim) else None


def _is_unnamed(dim: int | ir.SymbolicDim) -> bool:
    return isinstance(dim, ir.SymbolicDim) and dim.value is None


def _fixed_dim(dim: int | ir.SymbolicDim, sizes: Mapping[str, int]) -> int | ir.SymbolicDim | None:
    """The dim with the sizes put in. One in which another symbol is left ("past + seq") is unknown: shape inference may find it."""
    symbol = dim.value if isinstance(dim, ir.SymbolicDim) else None
    if symbol is None:
        return dim
    names = _names(symbol).keys()
    if not names & sizes.keys():
        return dim
    if not names <= sizes.keys():
        return None
    tree = _parse(symbol)
    size = _evaluate(tree, sizes, symbol) if tree else sizes[symbol]
    return size if size >= 0 else None


def _names(symbol: str) -> dict[str, None]:
    """The names in a dim, in the order in which they stand there."""
    tree = _parse(symbol)
    return dict.fromkeys(n.id for n in ast.walk(tree) if isinstance(n, ast.Name)) if tree else {symbol: None}


def _dims(value: ir.Value) -> list[int | str]:
    if value.shape is None:
        raise ModelError(
            f"input {value.name!r} has no shape, so no random array can be made for it: give it with --input"
        )
    dims: list[int | str] = []
    for axis, dim in enumerate(value.shape):
        if isinstance(dim, int):
            dims.append(dim)
        else:
            dims.append(str(dim.value) if dim.value is not None else f"{value.name}.{axis}")
    return dims


def _parse(symbol: str) -> ast.expr | None:
    """The expression that an exporter wrote as a dim ("past + seq"), or None for a plain name."""
    try:
        tree = ast.parse(symbol, mode="eval").body
    except SyntaxError:
        return None
    parts = [n for n in ast.walk(tree) if not isinstance(n, (ast.operator, ast.expr_context))]
    plain = all(
        isinstance(n, ast.Name)
        or (isinstance(n, ast.Constant) and isinstance(n.value, int))
        or (isinstance(n, ast.BinOp) and type(n.op) in _OPERATORS)
        for n in parts
    )
    return tree if plain else None


def _size(dim: int | str, sizes: Mapping[str, int], value: ir.Value) -> int:
    if isinstance(dim, int):
        return dim
    tree = _parse(dim)
    size = _evaluate(tree, sizes, dim) if tree else sizes[dim]
    if size < 0:
        raise ModelError(f"input {value.name!r}: dim {dim!r} comes out as {size}; choose other sizes with --dim")
    return size


def _evaluate(tree: ast.expr, sizes: Mapping[str, int], symbol: str) -> int:
    match tree:
        case ast.Name(id=name):
            return sizes[name]
        case ast.Constant(value=int(number)):
            return number
        case ast.BinOp(left=left, op=op, right=right):
            return _OPERATORS[type(op)](_evaluate(left, sizes, symbol), _evaluate(right, sizes, symbol))
    raise ModelError(f"dim {symbol!r} cannot be computed")
