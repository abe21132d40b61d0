"""Programs that are over before a second thread is awake. A call of IREE's "local-task" hands its work to threads, which are asleep
as a rule, and takes 30 to 60 us for that alone; "local-sync" computes in the thread that calls. What is expected to take one
thread less than SHORT_US asks for the latter: the compiled function says so where IREE keeps facts of a function, and
`preferred_device` (drivers.py) reads it. Measured on drawn cases (docs/results/shapes.md), two cores: with 100 us of work both
take the same time; with less, one thread is up to six times as fast as two.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import onnx

from onnx_fa.graph.op_kinds import BROADCASTS, REDUCE, SAME
from onnx_fa.graph.ops import op_of
from onnx_fa.graph.site_op import SITE
from onnx_fa.iree.drivers import CALLER, DEVICE, WORKERS
from onnx_fa.spec.attention import AttentionSpec
from onnx_fa.spec.dtypes import NUMPY
from onnx_fa.spec.linear import LinearSpec
from onnx_fa.spec.target import Target

SHORT_US = 80.0
GFLOPS, GBYTES = 60.0, 25.0
"""Of one thread: what kernels reach on short operands, and what caches deliver; both on the low side of what was measured, as the
difference costs a long program more than a short one gains."""
_SLOWER = {"Conv": 4.0}
_OTHER_TYPES = 8.0
"""So many times as long the compiler's own convolutions take, and its products of other types than f32."""
_PRODUCTS = frozenset({"MatMul", "MatMulInteger", "Gemm", "Conv"})
_MOVES = frozenset(
    "Reshape Transpose Concat Slice Split Squeeze Unsqueeze Expand Gather GatherElements Flatten Tile Pad Shape Constant "
    "ConstantOfShape Range Size".split()
)
_CHEAP = SAME | BROADCASTS | REDUCE | _MOVES


def site_us(spec: AttentionSpec | LinearSpec) -> float | None:
    """What one thread is expected to take, in microseconds; None for sizes that are known at run time only."""
    if spec.symbols:
        return None
    if isinstance(spec, LinearSpec):
        return _us(spec.flops, spec.K * spec.N * (spec.bits.bits if spec.bits else 32) / 8)
    operands = zip(spec.operand_shapes, spec.operand_dtypes, strict=True)
    return _us(spec.flops, sum(_bytes(shape, np.dtype(NUMPY[dtype]).itemsize) for shape, dtype in operands))


def program_us(model: onnx.ModelProto, specs: Mapping[str, AttentionSpec]) -> float | None:
    """What one thread is expected to take for a model whose types are inferred; `specs` are of its site nodes. None where a size
    is known at run time only, or a node is of a kind whose work this does not know (loops, recurrences)."""
    values = {v.name: v.type.tensor_type for v in (*model.graph.input, *model.graph.value_info, *model.graph.output)}
    shapes = {t.name: (tuple(t.dims), _size(t.data_type)) for t in model.graph.initializer}
    for name, held in values.items():
        dims = [d.dim_value if d.HasField("dim_value") else -1 for d in held.shape.dim]
        if held.HasField("shape") and min(dims, default=0) >= 0:
            shapes[name] = tuple(dims), _size(held.elem_type)
    total = 0.0
    for node in model.graph.node:
        if op_of(node) == SITE and node.name in specs:
            us = site_us(specs[node.name])
        else:
            us = _node_us(node, shapes)
        if us is None:
            return None
        total += us
    return total


def device_of_work(us: float | None) -> str:
    """The driver of a CPU for a program that takes one thread so long."""
    return WORKERS if us is None or us > SHORT_US else CALLER


def site_device(spec: AttentionSpec | LinearSpec, target: Target) -> str:
    """The driver for a program that is one site: as that of `device_of_work` where a target's is the usual one of CPUs."""
    return device_of_work(site_us(spec)) if target.device == WORKERS else target.device


def thread_fact(model: onnx.ModelProto, specs: Mapping[str, AttentionSpec], target: Target | None) -> str:
    """The fact of a function that the model becomes, as MLIR; empty where it asks for no driver. Arguments as for `program_us`."""
    if target is None or target.device != WORKERS or target.devices > 1:
        return ""
    device = device_of_work(program_us(model, specs))
    return f'{DEVICE} = "{device}"' if device != WORKERS else ""


def _node_us(node: onnx.NodeProto, shapes: Mapping[str, tuple[Sequence[int], float]]) -> float | None:
    op, named = op_of(node), [n for n in (*node.input, *node.output) if n]
    if op not in _PRODUCTS | _CHEAP or not all(n in shapes for n in named):
        return None
    moved = sum(_bytes(*shapes[n]) for n in named)
    if op not in _PRODUCTS:
        return _us(0, moved)
    (out, _), (first, each), (second, _) = (shapes[n] for n in (node.output[0], *node.input[:2]))
    summed = math.prod(second[1:]) if op == "Conv" else math.prod(second) // max(1, out[-1] if out else 1)
    if op == "MatMul" and len(second) != 2:
        summed = first[-1] if first else 1
    slower = _SLOWER.get(op, 1.0) * (1.0 if each == _F32 else _OTHER_TYPES)
    return _us(2 * math.prod(out) * summed * slower, moved)


def _us(flops: float, moved: float) -> float:
    return max(flops / (1e3 * GFLOPS), moved / (1e3 * GBYTES))


def _bytes(shape: Sequence[object], each: float) -> float:
    return each * math.prod(d for d in shape if isinstance(d, int))


_F32 = 4.0


def _size(data_type: int) -> float:
    return float(onnx.helper.tensor_dtype_to_np_dtype(data_type).itemsize) if data_type else 0.0
