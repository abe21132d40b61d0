"""Attention for llvm-cpu as one dispatch of vector code (see body.py): what it carries, its tiles, its entry."""

from __future__ import annotations

import contextlib
from dataclasses import asdict

from onnx_fa.errors import UnsupportedError
from onnx_fa.kernels.cpu.bf16_products import check_dot
from onnx_fa.kernels.cpu.body import AttentionBody, lane_body
from onnx_fa.kernels.cpu.combine import PARTS, combine_call, combine_executable, count_parts, splits_of
from onnx_fa.kernels.cpu.spread import spread_groups
from onnx_fa.kernels.cpu.tiles import CpuTiles, VectorConfig, mask_tiles, operand_names, widens
from onnx_fa.kernels.mlir.entry import KernelEntry, bound_argument, listed_types, tied_dims
from onnx_fa.kernels.mlir.kernel import Kernel, check_operands
from onnx_fa.kernels.mlir.operand import Operand
from onnx_fa.kernels.mlir.stored import check_packed, operand_shapes, operand_types
from onnx_fa.kernels.mlir.text import CPU_TRANSLATION, INDEX, Text, executable, tensor_type
from onnx_fa.kernels.plan.folding import fold_queries
from onnx_fa.kernels.tiles.database import Pick, Tiles, pick, queries_computed
from onnx_fa.spec.attention import AttentionSpec
from onnx_fa.spec.switches import Switch
from onnx_fa.spec.target import Target
from onnx_fa.spec.terms import Dim

__all__ = ["STACK_BYTES", "VectorConfig", "default_config", "emit_vector", "stack_bytes", "tuned"]

STACK_BYTES = 100 * 1024
"""What the tiles of one workgroup may take: the runtime gives a worker 128 KiB, and past them the process dies."""
FLAGS = (
    "--iree-llvmcpu-max-allowed-number-of-native-vectors=8192",
    "--iree-llvmcpu-stack-allocation-limit=131072",
)


def stack_bytes(spec: AttentionSpec, config: VectorConfig, dots: bool = False) -> int:
    """Bytes of the tiles that one workgroup keeps on its stack; `dots`: with products of bf16."""
    depth = spec.D // 2 if dots else spec.D
    floats = (depth + spec.Dv + config.BK * (1 + mask_tiles(spec)) + 3 + 2 * len(spec.tensors)) * config.BM
    if dots or widens(spec):
        floats += config.BK * max(depth, spec.Dv)
    return 4 * floats


def multiplies_bf16(spec: AttentionSpec, target: Target) -> bool:
    """Whether products of bf16 were asked for, or are those of the operands and fast, and the spec has them."""
    if target.bf16_dot or (spec.dtype == "bf16" and target.gains_by_pairs):
        with contextlib.suppress(UnsupportedError):
            check_dot(spec)
            return True
    return False


def default_config(spec: AttentionSpec, target: Target) -> VectorConfig:
    """The tiles of `tuned`."""
    return tuned(spec, target)[0]


def tuned(spec: AttentionSpec, target: Target) -> tuple[VectorConfig, Pick]:
    """Measured tiles for the target, preferring few rows beyond Sq, and where they are from. Raises UnsupportedError where none
    fit."""
    folded, dots = fold_queries(spec, merge=target.has(Switch.FOLDING)), multiplies_bf16(spec, target)
    lanes = _lanes(folded, target, dots)
    for keys in (1, 2, 4):

        def config(t: Tiles, keys: int = keys) -> VectorConfig:
            return VectorConfig(
                t["lanes"], t["BM"], t["BK"] // keys, t["tile_keys"], min(t["tile_dims"], spec.Dv), t["unroll"]
            )

        def fits(t: Tiles, keys: int = keys) -> bool:
            if (
                t["lanes"] != lanes
                or (t["BK"] // keys) % t["tile_keys"]
                or (mask_tiles(folded) and (t["BK"] // keys) % lanes)
            ):
                return False
            return stack_bytes(folded, config(t, keys), dots) <= STACK_BYTES

        found = pick(target, "vector", spec, fits, lambda t: queries_computed(folded.Sq, t["BM"]))
        if found:
            return config(found.choice.tiles), found
    raise UnsupportedError(f"vector kernel: D={spec.D} and Dv={spec.Dv} need more than {STACK_BYTES} bytes of stack")


def _lanes(folded: AttentionSpec, target: Target, dots: bool) -> int:
    """The width of vectors: narrow head dims are transposed in narrow ones, and few queries fill no more."""
    sizes = [folded.D // 2 if dots else folded.D, folded.Dv]
    if isinstance(folded.Sq, int):
        sizes.append(2 * folded.Sq - 1)  # of half a vector of queries or more
    return target.lanes_within(*sizes)


def unmeasured(folded: AttentionSpec, target: Target) -> VectorConfig:
    """Tiles by a rule alone: two vectors of queries, and accumulators in half of the registers."""
    lanes, rows = _lanes(folded, target, multiplies_bf16(folded, target)), target.registers // 4
    return VectorConfig(lanes, 2 * lanes, 64, rows, min(rows, folded.Dv), 4)


def check_vector(spec: AttentionSpec, target: Target) -> None:
    """Raises UnsupportedError, with the reason, for what this kernel cannot carry."""
    if target.backend != "llvm-cpu":
        raise UnsupportedError(f"vector kernel: target {target.name} is not a CPU")
    check_operands(spec, "vector")
    check_packed(spec, "vector")
    layouts = (spec.q_layout, spec.k_layout, spec.v_layout, spec.o_layout)
    for name, shape, layout in zip("qkvo", spec.canonical_shapes, layouts, strict=True):
        behind = layout[layout.index(spec.rank - 2) :]
        if shape[-1] == 1 and any(isinstance(d, str) for d in shape) and any(a < spec.rank - 2 for a in behind):
            # Which of the unit dims of a slice is the head dim is then guessed, and a copy of unknown size made.
            raise UnsupportedError(
                f"vector kernel: {name} of dynamic shape with a head dim of 1 and other dims behind its length"
            )


def emit_vector(
    spec: AttentionSpec, target: Target, name: str, config: VectorConfig | None = None, splits: Dim | None = None
) -> Kernel:
    """The kernel of one site as a dispatch of vector code. With `splits` of the keys (None: as many as pay on the machine that runs
    it) a small second dispatch combines what they found. Raises UnsupportedError where spec or tiles do not fit."""
    check_vector(spec, target)
    site, spec = spec, fold_queries(spec, merge=target.has(Switch.FOLDING))
    found = None
    if config is None and not target.has(Switch.TILES):
        config = unmeasured(spec, target)
    elif config is None:
        config, found = tuned(site, target)
    if config.BK % config.lanes and mask_tiles(spec):
        raise UnsupportedError(f"vector kernel: BK={config.BK} is not a multiple of {config.lanes} lanes")
    dots = multiplies_bf16(spec, target)
    if (needed := stack_bytes(spec, config, dots)) > STACK_BYTES:
        raise UnsupportedError(f"vector kernel: tiles need {needed} of {STACK_BYTES} bytes of stack")
    if splits is None:
        splits = splits_of(spec, config.BM, target)
    body = lane_body(spec, config, splits, bf16=dots, off=target.off)
    text = dispatch_text(site, body, name)
    flags = tuple(dict.fromkeys((*FLAGS, *found.choice.flags))) if found else FLAGS
    lossy = target.lossy if dots and spec.dtype != "bf16" else ""
    tiles = shown(config, body.operands.splits) | ({"products": "bf16"} if dots else {})
    return Kernel(name, text, "vector", site, tiles, flags, found.reason if found else "", lossy)


def shown(config: CpuTiles, splits: Dim) -> dict[str, int | str]:
    """The tiles, for reports."""
    return {**asdict(config), **({} if splits == 1 else {"splits": "by cores" if splits == PARTS else splits})}


def dispatch_text(site: AttentionSpec, body: AttentionBody, name: str) -> str:
    """The dispatch of a body and the function that calls it with a site's operands."""
    symbol = f"{name}_attention"
    lines = [*_executable(body, symbol), *_entry(site, body, name, symbol)]
    if body.operands.has_parts:
        lines += combine_executable(
            body.operands.spec,
            body.operands.loop,
            body.operands.splits,
            body.operands.config.lanes,
            f"{name}_combine",
            own_exp2=body.operands.t.exp2_by != "compiler",
        )
    return "\n".join(lines) + "\n"


def _executable(body: AttentionBody, symbol: str) -> list[str]:
    spec = body.operands.spec
    bindings = [
        *(
            (*x, "readonly")
            for x in zip(operand_names(spec), body.operands.stored_shapes, operand_types(spec), strict=True)
        ),
        *((x.name, x.shape, x.element, "readwrite") for x in _kept(body)),
        *((*output, "writeonly") for output in body.operands.outputs),
    ]
    args, ties = list[str](), list[str]()
    for arg, shape, element, access in bindings:
        type_ = f"!iree_tensor_ext.dispatch.tensor<{access}:{tensor_type(shape, element)}>"
        bound, tie = bound_argument(arg, type_, tied_dims(shape, body.operands.dims))
        args.append(bound)
        ties += tie
    first_output = len(args) - len(body.operands.outputs)
    args[first_output:first_output] = [f"{d}: index" for d in body.operands.dims.values()]
    splits = body.operands.splits
    workload, counts = ["%x", "%y", "%z"], list[str]()
    if isinstance(splits, int):
        workload, counts = workload[:2], [f"%z = arith.constant {splits} : index"]
    if body.operands.workers:
        workload[:2] = "%blocks", "%heads"
        counts += _spread("%blocks", "%heads", body.operands.workers)
    helpers = (body.helper.helper, body.helper.keep) if body.helper is not None else ((), "")
    return executable(symbol, workload, counts, args, [*ties, *body.render()], CPU_TRANSLATION, helpers)


def _spread(blocks: str, heads: str, workers: int) -> list[str]:
    """What makes %x and %y, the workgroups of so many workers."""
    t = Text()
    spread = spread_groups(t, t.arith("muli", blocks, heads), workers)
    none = t.index(0)
    return [
        *t.render(),
        f"%x = arith.addi {spread.at_once}, {none} : index",
        f"%y = arith.addi {spread.turns}, {none} : index",
    ]


def _kept(body: AttentionBody) -> list[Operand]:
    """What the dispatch reads and writes, behind its operands."""
    return [x.operand for x in body.memory.all] if body.memory else []


def _entry(site: AttentionSpec, body: AttentionBody, name: str, symbol: str) -> list[str]:
    """The function that a program calls: sizes, the number of workgroups, the dispatch. Operands of the site become those
    of the body by reshapes."""
    spec, entry = body.operands.spec, KernelEntry(site, name)
    t = entry.t
    for symbolic, value in body.operands.dims.items():
        if symbolic != PARTS:
            entry.measure(symbolic, value)
    workload = []
    if body.operands.splits == PARTS:
        keys = t.index(spec.Skv) if isinstance(spec.Skv, int) else body.operands.dims[spec.Skv]
        entry.dims[PARTS] = count_parts(t, spec, body.operands.config.BM, keys, body.operands.heads)
        workload = [entry.dims[PARTS]]
    blocks, heads = body.operands.query_blocks(t), body.operands.query_heads(t)
    shapes, elements = body.operands.stored_shapes, operand_types(spec)
    kept = body.memory.all if body.memory else ()
    taken = [x.take(t) for x in kept]
    values = [
        *entry.pass_operands(operand_shapes(site), shapes, elements),
        *taken,
        *(entry.dims[d] for d in body.operands.dims),
    ]
    passed = [entry.typed(shape, element) for shape, element in zip(shapes, elements, strict=True)]
    passed += [*(x.type for x in _kept(body)), *[INDEX] * len(body.operands.dims)]
    groups = ", ".join([blocks, heads, *workload])
    call = f"flow.dispatch @{symbol}::@{symbol}[{groups}]({', '.join(values)}) : ({', '.join(passed)})"
    outputs = [entry.typed(shape, element) for _, shape, element in body.operands.outputs]
    made = t.several(f"{call} -> {listed_types([*taken, *outputs])}", len(taken) + len(outputs))
    for x, left in zip(kept, made, strict=False):
        x.give_back(t, left)
    made = made[len(kept) :]
    if body.operands.has_parts:
        made = [combine_call(t, spec, f"{name}_combine", made, outputs, entry.dims.get(PARTS))]
    results = [
        entry.reshape(x, old, new, d) for x, (old, d), (new, _) in zip(made, spec.results, site.results, strict=True)
    ]
    return entry.lines(results)
