"""What is done to a model in memory before matching: nothing that a reader of the result could see.

Only types and shapes are filled in. Constants are folded lazily while matching (`GraphView.const`), so that no part of the graph
outside a site is ever rewritten.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Container, Iterator, Mapping
from contextlib import contextmanager

import numpy as np
import onnx_ir as ir

from onnx_fa.errors import ModelError
from onnx_fa.graph.bounded import may_follow
from onnx_fa.graph.contrib_shapes import contrib_types
from onnx_fa.graph.declared import correct_outputs
from onnx_fa.graph.moves import EACH_ONCE
from onnx_fa.graph.onnx_inference import infer_by_onnx
from onnx_fa.graph.ops import constant_tensor, op_of
from onnx_fa.graph.view import GraphView


def infer_shapes(model: ir.Model) -> None:
    """Fills in value types and shapes. Unnamed dims that an exporter left are dropped first, so that inference may name them; where
    more is known than ONNX's inference found out, so are all names that it made up ("unk__16", which quantisers write into files,
    too): it would keep them where it now finds a number.

    What the content of an initializer says is used only where the caller of the model cannot give another one. A declared shape of
    an output that contradicts the node which makes it is corrected, and what follows from it is inferred anew.
    """
    given = {o: o.shape.copy() if o.shape is not None else None for o in model.graph.outputs}
    _fill(model)
    if correct_outputs(model, given):
        _fill(model)
    if _fill_expands(model):
        _fill(model, anew=True)


def values_with_shapes(model: ir.Model) -> set[ir.Value]:
    """What nodes make and a model declares a whole shape of: numbers and names."""
    made = (o for graph in model.graphs() for node in graph for o in node.outputs)
    return {o for o in made if o.shape is not None and not any(_is_unknown(d, made_up=False) for d in o.shape)}


def forget_made_up_names(model: ir.Model, kept: Container[ir.Value]) -> None:
    """Takes all names out of shapes in which inference made one up, but of the values in `kept`. onnxruntime's optimiser goes by
    them: of a Reshape that asks for dims of the same names it makes one that copies them by 0, and which fails where one of them is
    0 (docs/developer/onnxruntime-bugs.md). Other names in such a shape go as well: who reads the file again infers it anew."""
    for value in (o for graph in model.graphs() for node in graph for o in node.outputs):
        if value.shape is None or value in kept or not any(map(is_made_up, value.shape)):
            continue
        value.shape = ir.Shape(d if isinstance(d, int) else None for d in value.shape)


def is_made_up(dim: int | ir.SymbolicDim) -> bool:
    """Whether a dim's name is one that inference made up, or is computed of such: "broadcast(unk__1, unk__2)"."""
    return not isinstance(dim, int) and dim.value is not None and _MADE_UP.search(dim.value) is not None


def _fill(model: ir.Model, *, anew: bool = False) -> None:
    """`anew`: without the names that inference made up before."""
    _correct_constants(model)
    fixed = {*model.graph.inputs, *model.graph.outputs}
    complete = True
    dropped: dict[ir.Value, ir.Shape] = {}
    for node in model.graph.all_nodes():
        for value in node.outputs:
            if value in fixed:
                continue
            if value.shape is not None and any(_is_unknown(d, made_up=anew) for d in value.shape):
                dropped[value], value.shape = value.shape, None
            complete &= value.shape is not None and value.dtype is not None
    if complete:
        return
    attention = {v: v.shape for n in model.graph.all_nodes() if op_of(n) == "Attention" for v in n.outputs}
    _infer(model)
    for _ in range(_MAX_ROUNDS):
        if not _fill_types(model):
            break
        _infer(model)  # goes on where it stopped
    for value, shape in attention.items():
        # ONNX's inference of the scores' shape takes lengths that it does not know for 0.
        if value.shape is not None and 0 in value.shape.dims and (shape is None or 0 not in shape.dims):
            value.shape = shape
    for value, shape in dropped.items():
        if value.shape is None:
            # A rank is better than nothing. Names that were made up before may mean something else now.
            value.shape = ir.Shape(None if anew and _is_unknown(d) else d for d in shape)
        elif len(value.shape) == len(shape):  # numbers that inference does not find
            dims = [
                old if isinstance(old, int) and _is_unknown(d) else d for d, old in zip(value.shape, shape, strict=True)
            ]
            value.shape = ir.Shape(dims)


def _fill_expands(model: ir.Model) -> bool:
    """Shapes of Expands to constants that a little arithmetic makes. PyTorch's older exporter writes Where and Equal for dims that
    stay, through which ONNX's inference follows no numbers. Returns whether there were any."""
    unknown = [
        n for n in model.graph if op_of(n) == "Expand" and not _is_static(n.outputs[0]) and _is_static(n.inputs[0])
    ]
    if not unknown:
        return False
    view, filled = GraphView(model), False
    for node in unknown:
        have, asked = node.inputs[0], view.const(node.inputs[1])
        if have is None or have.shape is None or asked is None:
            continue
        try:
            node.outputs[0].shape = ir.Shape(np.broadcast_shapes(have.shape.numpy(), tuple(map(int, asked.ravel()))))
        except ValueError:  # onnxruntime says so when it runs the model
            continue
        filled = True
    return filled


def _is_static(value: ir.Value | None) -> bool:
    return value is not None and value.shape is not None and value.shape.is_static()


_MADE_UP = re.compile(r"unk__\d+")


def _is_unknown(dim: int | ir.SymbolicDim, *, made_up: bool = True) -> bool:
    """Whether a dim says nothing: it has no name, or one that ONNX's inference made up."""
    if isinstance(dim, int):
        return False
    return dim.value is None or (made_up and _MADE_UP.fullmatch(dim.value) is not None)


def _correct_constants(model: ir.Model) -> None:
    """A constant has the shape of its tensor, whatever a file declares of it: onnxruntime-genai's builder declares vectors as
    scalars."""
    for node in model.graph.all_nodes():
        if op_of(node) != "Constant" or not node.outputs:
            continue
        tensor, declared = constant_tensor(node.outputs[0]), node.outputs[0].shape
        if tensor is not None and declared is not None and declared != tensor.shape:
            node.outputs[0].shape = ir.Shape(int(n) for n in tensor.numpy().shape)


_MAX_ROUNDS = 4
"""How often ONNX's inference goes on behind types that were filled in."""
_MAX_POSITIONS = 1 << 31
_ARITHMETIC: dict[str, Callable[[float, float], float]] = {
    "Add": operator.add,
    "Sub": operator.sub,
    "Mul": operator.mul,
}
_SAME_VALUE = EACH_ONCE | {"Cast"}
_MAX_DEPTH = 16


def _number(value: ir.Value | None, depth: int = 0) -> float | None:
    """A number that constants decide, through a little arithmetic."""
    if value is None or depth > _MAX_DEPTH:
        return None
    tensor = constant_tensor(value)
    if tensor is not None:
        return float(tensor.numpy().reshape(-1)[0]) if tensor.size == 1 and tensor.dtype != ir.DataType.STRING else None
    node = value.producer()
    if node is None or not node.inputs:
        return None
    if op_of(node) in _SAME_VALUE:
        return _number(node.inputs[0], depth + 1)
    if op_of(node) in _ARITHMETIC and len(node.inputs) == 2:
        left, right = (_number(i, depth + 1) for i in node.inputs)
        return None if left is None or right is None else _ARITHMETIC[op_of(node)](left, right)
    return None


def _check_ranges(model: ir.Model) -> None:
    """Raises ModelError for a Range of more numbers than any length has."""
    for node in model.graph.all_nodes():
        if op_of(node) != "Range" or len(node.inputs) != 3:
            continue
        start, limit, delta = (_number(i) for i in node.inputs)
        if start is None or limit is None or not delta:
            continue
        if (limit - start) / delta > _MAX_POSITIONS:
            label = node.name or node.op_type
            raise ModelError(
                f"node {label!r} makes {(limit - start) / delta:.3g} numbers, more than any length; repair the export"
            )


def _infer(model: ir.Model) -> None:
    _check_ranges(model)
    # From IR version 4 on, an initializer that is an input too is only a default: a Reshape to it has no known shape.
    initializers = model.graph.initializers
    defaults = {k: v for k, v in initializers.items() if v.is_graph_input() and (model.ir_version or 4) >= 4}
    with _names_used_once(model):
        _infer_by_onnx(model, defaults)


def _infer_by_onnx(model: ir.Model, defaults: Mapping[str, ir.Value]) -> None:
    initializers = model.graph.initializers
    try:
        for name in defaults:
            del initializers[name]
        infer_by_onnx(model, data_prop=False)
        made = [out for node in model.graph.all_nodes() for out in node.outputs]
        if all(v.dtype is not None and v.shape is not None and v.shape.is_static() for v in made):
            return  # nothing is left to find
        shapes = (v.shape.dims for v in (*model.graph.inputs, *initializers.values(), *made) if v.shape is not None)
        if may_follow(shapes):
            infer_by_onnx(model, data_prop=True)
    finally:
        for name, value in defaults.items():
            initializers[name] = value


@contextmanager
def _names_used_once(model: ir.Model) -> Iterator[None]:
    """Gives every value of a subgraph a name of its own for a while. The branches of an If may use the same names; ONNX's inference
    keeps the numbers that it follows by name, and would take those of one branch for the other's."""
    seen = {v.name for node in model.graph for v in node.outputs} | {v.name for v in model.graph.inputs}
    renamed: list[tuple[ir.Value, str | None]] = []
    for graph in model.graphs():
        if graph is model.graph:
            continue
        for value in (*graph.inputs, *(out for node in graph for out in node.outputs)):
            if value.name in seen and value.name:
                renamed.append((value, value.name))
                value.name = f"{value.name}//{len(renamed)}"
            seen.add(value.name)
    try:
        yield
    finally:
        for value, name in reversed(renamed):
            value.name = name


_SAME_TYPE = frozenset(
    "SimplifiedLayerNormalization Identity Softmax LogSoftmax LayerNormalization RMSNormalization Neg Abs Sqrt "
    "Reciprocal Exp Log Erf Tanh Sigmoid Relu Gelu "
    "Dropout Clip Add Sub Mul Div Pow Max Min MatMul Gemm Einsum Transpose Reshape Expand Squeeze Unsqueeze Slice Gather Concat "
    "Split Tile Pad Flatten ReduceMax ReduceSum ReduceMean ReduceMin".split()
)
_BOOLEAN = frozenset("Equal Less LessOrEqual Greater GreaterOrEqual And Or Not Xor IsNaN IsInf".split())


def _fill_types(model: ir.Model) -> bool:
    """Element types behind ops that ONNX's inference does not know (onnxruntime's matmuls), which is where it stops. Returns
    whether there were any."""
    filled = False
    for node in model.graph.all_nodes():
        if not node.inputs:
            continue
        for out, made in zip(node.outputs, contrib_types(node), strict=False):
            if out.dtype is None and made is not None:
                out.type = ir.TensorType(made)
                filled = True
        like = node.inputs[1] if op_of(node) == "Where" else node.inputs[0]
        dtype: ir.DataType | None = None
        if op_of(node) in _SAME_TYPE or op_of(node) == "Where":
            dtype = like.dtype if like is not None else None
        elif op_of(node) in _BOOLEAN:
            dtype = ir.DataType.BOOL
        elif op_of(node) == "Cast":
            dtype = ir.DataType(node.attributes["to"].as_int())
        for out in node.outputs[: None if op_of(node) == "Split" else 1]:
            if out.dtype is None and dtype is not None:
                out.type = ir.TensorType(dtype)
                filled = True
    return filled
