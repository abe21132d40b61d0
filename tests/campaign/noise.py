"""How far a graph's result moves when its arithmetic rounds otherwise: what two correct results may differ by."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np
import onnx
from onnx import TensorProto as T
from onnx import helper as h
from onnx import numpy_helper as nh

from tests.support.ort_run import session

from .inputs import Array, Engine, Inputs

ROUNDING = {T.FLOAT: 2.0**-22, T.FLOAT16: 2.0**-10, T.BFLOAT16: 2.0**-7, T.DOUBLE: 2.0**-51}
"""A few units in the last place."""
NAMES = {"tensor(float)": T.FLOAT, "tensor(float16)": T.FLOAT16, "tensor(double)": T.DOUBLE}
ROUNDED = (
    "MatMul Gemm Einsum FusedMatMul Mul Div Add Sub Exp Log Softmax LogSoftmax ReduceSum ReduceMean ReduceLogSumExp Tanh Sigmoid "
    "Sqrt Pow Softplus Erf Attention"
).split()
LARGEST = {T.FLOAT: 3e4, T.FLOAT16: 3e4, T.BFLOAT16: 2e10, T.DOUBLE: 3e4}
"""Larger numbers are kept: a fill that masks keys is to swallow all scores alike. In bf16 smaller ones swallow scores too, which
they do not where a site computes in f32."""
SWALLOWED = ("ReduceLogSumExp",)
"""Whoever subtracts this from a number of its own size reads its last digits, however large it is."""
_SUMS = ("Add", "Sub")
"""What is left of a small number beside a large one, where anything is, has been rounded in the large one's last place: a row
whose every key a mask of -1e9 hides compares the thousands of its scores by steps of 64, which are others in another order."""
SAMPLES = 6


def element_types(model: onnx.ModelProto) -> dict[str, int]:
    """Element types of what the nodes make: onnxruntime knows those of its own ops too."""
    shown = onnx.ModelProto()
    shown.CopyFrom(model)
    del shown.graph.output[:]
    for node in shown.graph.node:
        shown.graph.output.extend(onnx.ValueInfoProto(name=o) for o in node.output if o)
    try:
        infos = session(shown, optimise=False).get_outputs()
    except Exception:  # a graph that only the reference evaluator runs
        graph = onnx.shape_inference.infer_shapes(model).graph
        return {i.name: i.type.tensor_type.elem_type for i in (*graph.value_info, *graph.output)}
    return {i.name: NAMES.get(i.type, T.UNDEFINED) for i in infos}


def noisy(model: onnx.ModelProto, seed: int) -> onnx.ModelProto:
    """The model with every number that its arithmetic makes moved by a little, up or down as a fast wave of the number says, or for
    an even seed of its place: equal numbers, such as products of equal rows, are moved apart."""
    made = onnx.ModelProto()
    made.CopyFrom(model)
    kinds = element_types(model)
    nodes: list[onnx.NodeProto] = []
    for n, old in enumerate(model.graph.node):
        node = onnx.NodeProto()
        node.CopyFrom(old)
        nodes.append(node)
        kind = kinds.get(node.output[0], 0) if node.output else 0
        if node.op_type == "Attention" and not node.domain and kind == T.DOUBLE:
            _move_scale(node, seed)
        if node.op_type in ROUNDED and node.domain != "my" and kind in ROUNDING:
            out, node.output[0] = node.output[0], f"noise{n}_exact"
            largest = LARGEST[kind] if node.op_type not in SWALLOWED else np.inf
            # Numbers that a sum has swallowed make the same of every other one; what was lost differs.
            terms = tuple(node.input) if node.op_type in _SUMS else (node.output[0],)
            new, constants = _wave(f"noise{n}_", node.output[0], out, kind, seed, largest, terms)
            if node.op_type == "MatMul" and kind in (T.FLOAT, T.DOUBLE):
                _round_terms(new, f"noise{n}_", node.input)
            if node.op_type in _SUMS:
                new[-1:-1] = _shown(f"noise{n}_", node.output[0], terms)
                new[-1].input[0] = f"noise{n}_moves"
            nodes += new
            made.graph.initializer.extend(constants)
    del made.graph.node[:]
    made.graph.node.extend(nodes)
    return made


def _move_scale(node: onnx.NodeProto, seed: int) -> None:
    """ONNX defines an Attention op by the root of its scale, which is rounded to f32 even where the operands are f64."""
    for attribute in node.attribute:
        if attribute.name == "scale":
            attribute.f *= 1 + (2.0**-23 if seed % 2 else -(2.0**-23))


def _wave(
    own: str, exact: str, out: str, kind: int, seed: int, largest: float, terms: Sequence[str]
) -> tuple[list[onnx.NodeProto], list[onnx.TensorProto]]:
    """out = exact * (1 + step * sin(faster * x + seed)) where |exact| < largest, else exact; for an odd seed x is term + 0.37 *
    other term, for an even one the place in the tensor."""
    dtype = h.tensor_dtype_to_np_dtype(kind)
    step, limit = np.float32(ROUNDING[kind]), np.asarray(largest).astype(dtype)
    numbers: dict[str, Any] = {
        "faster": np.float32(12345.678 * (1 + seed / 10)),  # a number added to a large angle would be lost
        "seed": np.float32(seed),
        "nought": np.float32(0),
        "other": np.float32(0.37),
        "most": np.float32(3e38),
        "step": step,
        "limit": limit,
        "half_place": np.asarray(ml_dtypes.finfo(dtype).eps / 4).astype(dtype),  # of a number just below a power of two
    }
    places: list[onnx.NodeProto] = []
    if seed % 2 == 0:
        numbers |= {"first": np.int64(0), "one": np.int64(1)}
        terms = [f"{own}place"]
        places = [
            h.make_node("Shape", [exact], [f"{own}shape"]),
            h.make_node("Size", [exact], [f"{own}count"]),
            h.make_node("Range", [f"{own}first", f"{own}count", f"{own}one"], [f"{own}index"]),
            h.make_node("Reshape", [f"{own}index", f"{own}shape"], terms),
        ]
    nodes = [
        *places,
        h.make_node("Cast", [terms[0]], [f"{own}f32"], to=T.FLOAT),
        h.make_node("Cast", [terms[-1]], [f"{own}last"], to=T.FLOAT),
        h.make_node("Mul", [f"{own}last", f"{own}other"], [f"{own}less"]),
        h.make_node("Add", [f"{own}f32", f"{own}less"], [f"{own}both"]),
        h.make_node("Mul", [f"{own}both", f"{own}faster"], [f"{own}turns"]),
        h.make_node("Abs", [f"{own}turns"], [f"{own}far"]),
        h.make_node("Less", [f"{own}far", f"{own}most"], [f"{own}ends"]),  # not for the largest numbers
        h.make_node("Where", [f"{own}ends", f"{own}turns", f"{own}nought"], [f"{own}some"]),
        h.make_node("Add", [f"{own}some", f"{own}seed"], [f"{own}angle"]),
        h.make_node("Sin", [f"{own}angle"], [f"{own}sine"]),
        h.make_node("Mul", [f"{own}sine", f"{own}step"], [f"{own}part_f32"]),
        h.make_node("Cast", [f"{own}part_f32"], [f"{own}part"], to=kind),
        h.make_node("Mul", [exact, f"{own}part"], [f"{own}change"]),
        h.make_node("Add", [exact, f"{own}change"], [f"{own}moved"]),
        h.make_node("Abs", [exact], [f"{own}size"]),
        h.make_node("Less", [f"{own}size", f"{own}limit"], [f"{own}small"]),
        h.make_node("Where", [f"{own}small", f"{own}moved", exact], [out]),
    ]
    return nodes, [nh.from_array(np.asarray(x), f"{own}{name}") for name, x in numbers.items()]


def _round_terms(nodes: list[onnx.NodeProto], own: str, factors: Sequence[str]) -> None:
    """Moves a product by what its terms round, which is more than its own size says where they cancel: a score of a few quantised
    numbers may lie on a tie. Another order of a sum of products is off by some units in the last place of the product of the
    operands' sizes (Higham 2002, Accuracy and Stability of Numerical Algorithms, section 3.5)."""
    at = next(i for i, node in enumerate(nodes) if node.output[0] == f"{own}change")
    nodes[at].input[0] = f"{own}terms"
    sizes = [f"{own}factor{i}" for i in range(2)]
    nodes[at:at] = [
        *(h.make_node("Abs", [x], [size]) for x, size in zip(factors, sizes, strict=True)),
        h.make_node("MatMul", sizes, [f"{own}terms"]),
    ]


def _shown(own: str, total: str, terms: Sequence[str]) -> list[onnx.NodeProto]:
    """What moves of a sum: the small ones, and the large ones in which a small term has left something."""
    nodes = [
        h.make_node("Abs", [total], [f"{own}total"]),
        h.make_node("Mul", [f"{own}total", f"{own}half_place"], [f"{own}lost"]),
    ]
    for name, term in zip(("first", "last"), terms, strict=True):
        nodes += [
            h.make_node("Abs", [term], [f"{own}{name}_size"]),
            h.make_node("Less", [f"{own}{name}_size", f"{own}limit"], [f"{own}{name}_small"]),
            h.make_node("Less", [f"{own}lost", f"{own}{name}_size"], [f"{own}{name}_left"]),
            h.make_node("And", [f"{own}{name}_small", f"{own}{name}_left"], [f"{own}{name}_shows"]),
        ]
    return [
        *nodes,
        h.make_node("Or", [f"{own}first_shows", f"{own}last_shows"], [f"{own}shows"]),
        h.make_node("Or", [f"{own}small", f"{own}shows"], [f"{own}moves"]),
    ]


def nudged(inputs: Inputs, seed: int) -> Inputs:
    """The same inputs with every float moved by one unit in the last place, up or down."""
    rng = np.random.default_rng(seed)
    moved: Inputs = {}
    for name, x in inputs.items():
        if x.dtype.kind in "iub":
            moved[name] = x
            continue
        eps = float(np.finfo(x.dtype).eps) if x.dtype.kind == "f" else 2.0**-8
        with np.errstate(all="ignore"):
            near = (x.astype(np.float64) * (1 + rng.choice([-1, 1], x.shape) * eps)).astype(x.dtype)
        moved[name] = np.where(np.isfinite(x.astype(np.float64)), near, x).astype(x.dtype)
    return moved


def distance(a: Array, b: Array) -> float:
    """Norm of the difference where both are finite; infinite when they differ in what is not."""
    if a.shape != b.shape:
        return float("inf")
    a, b = a.astype(np.float64), b.astype(np.float64)
    finite = np.isfinite(a)
    if not np.array_equal(finite, np.isfinite(b)) or not np.array_equal(a[~finite], b[~finite], equal_nan=True):
        return float("inf")
    with np.errstate(over="ignore"):
        return float(np.linalg.norm(a[finite] - b[finite]))


def by_rows(x: Array) -> Array:
    """Norms along the last axis of what is finite."""
    with np.errstate(over="ignore"):
        finite = np.where(np.isfinite(x), x, 0)
        return np.asarray(np.linalg.norm(finite, axis=-1) if x.ndim else np.abs(finite))


def movement(model: onnx.ModelProto, old: Engine, inputs: Inputs, index: int, want: Array) -> tuple[Array, Array]:
    """(how far each row of output `index` moves, along the last axis, which of its elements go from a number to none or back) under
    noise in the inputs and inside."""
    start = want.astype(np.float64)
    moves, jumped = np.zeros(want.shape[:-1]), np.zeros(want.shape, bool)
    for seed in range(SAMPLES):
        engine = Engine(noisy(model, seed + 1), by_definition=old.by_definition)
        noise = nudged(inputs, seed), nudged(inputs, seed + 50)
        for moved in (old.run(noise[0]), engine.run(inputs), engine.run(noise[1])):
            x = moved[index].astype(np.float64)
            with np.errstate(invalid="ignore"):
                moves = np.maximum(moves, by_rows(x - start))
                other = (x != start) & ~(np.isnan(x) & np.isnan(start))
            jumped |= other & ~(np.isfinite(x) & np.isfinite(start))
    return moves, jumped
