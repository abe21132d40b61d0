"""Attention for llvm-cpu as one dispatch of vector code (see vector_body.py): what it carries, its tiles, its entry."""

from __future__ import annotations

import math
from dataclasses import asdict

from onnx_fa.emit.kernel_text import Kernel
from onnx_fa.emit.mlir_text import INDEX, Text, tensor_type
from onnx_fa.emit.vector_body import VectorBody, VectorConfig, operand_types, varies
from onnx_fa.errors import UnsupportedError
from onnx_fa.spec import AddMask, AttentionSpec, Elementwise
from onnx_fa.target import Target
from onnx_fa.tuning.database import Pick, Tiles, pick, queries_computed

__all__ = ["STACK_BYTES", "VectorConfig", "default_config", "emit_vector", "stack_bytes", "tuned"]

STACK_BYTES = 100 * 1024
"""What the tiles of one workgroup may take: the runtime gives a worker 128 KiB, and past them the process dies."""
FLAGS = (
    "--iree-llvmcpu-max-allowed-number-of-native-vectors=8192",
    "--iree-llvmcpu-stack-allocation-limit=131072",
)
_TRANSLATION = "#iree_codegen.translation_info<pipeline = #iree_cpu.pipeline<LinalgExtTileAndVectorize>>"


def stack_bytes(spec: AttentionSpec, config: VectorConfig) -> int:
    """Bytes of the tiles that one workgroup keeps on its stack."""
    mask_tiles = sum(varies(m) == (True, True) for m in spec.tensor_masks)
    floats = (spec.D + spec.Dv + config.BK * (1 + mask_tiles) + 3) * config.BM
    if spec.dtype != "f32":
        floats += config.BK * max(spec.D, spec.Dv)
    return 4 * floats


def default_config(spec: AttentionSpec, target: Target) -> VectorConfig:
    """The tiles of `tuned`."""
    return tuned(spec, target)[0]


def tuned(spec: AttentionSpec, target: Target) -> tuple[VectorConfig, Pick]:
    """Measured tiles for the target, preferring few rows beyond Sq, and where they are from. Raises UnsupportedError where none
    fit."""
    lanes = target.lanes
    while lanes > 4 and (
        lanes > min(spec.D, spec.Dv) or (lanes > 8 and isinstance(spec.Sq, int) and 2 * spec.Sq <= lanes)
    ):
        lanes //= 2  # narrow head dims are transposed in narrow vectors
    for keys in (1, 2, 4):

        def config(t: Tiles, keys: int = keys) -> VectorConfig:
            return VectorConfig(t["W"], t["BM"], t["BK"] // keys, t["RI"], min(t["RN"], spec.Dv), t["U"])

        def fits(t: Tiles, keys: int = keys) -> bool:
            if t["W"] != lanes or (t["BK"] // keys) % t["RI"]:
                return False
            return stack_bytes(spec, config(t, keys)) <= STACK_BYTES

        found = pick(target, "vector", spec, fits, lambda t: queries_computed(spec.Sq, t["BM"]))
        if found:
            return config(found.choice.tiles), found
    raise UnsupportedError(f"vector kernel: D={spec.D} and Dv={spec.Dv} need more than {STACK_BYTES} bytes of stack")


def _check(spec: AttentionSpec, target: Target) -> None:
    """Raises UnsupportedError, with the reason, for what this kernel cannot carry."""
    if target.backend != "llvm-cpu":
        raise UnsupportedError(f"vector kernel: target {target.name} is not a CPU")
    if spec.sink is not None:
        raise UnsupportedError("vector kernel: a sink")
    if any(isinstance(m, Elementwise) for m in spec.masks):
        raise UnsupportedError("vector kernel: a score function or mask given as an expression")
    if spec.dtype == "f64" or any(isinstance(m, AddMask) and m.dtype == "f64" for m in spec.masks):
        raise UnsupportedError("vector kernel: f64 operands")
    if min(spec.D, spec.Dv) < 4:
        raise UnsupportedError(f"vector kernel: head dims D={spec.D}, Dv={spec.Dv} are below one vector")
    if isinstance(spec.Sq, int) and spec.Sq < min(target.lanes, 8):
        raise UnsupportedError(f"vector kernel: {spec.Sq} queries do not fill a vector")
    for name, layout in (("q", spec.q_layout), ("the output", spec.o_layout)):
        if layout.index(spec.rank - 1) < layout.index(spec.rank - 2):
            raise UnsupportedError(f"vector kernel: {name} is stored with its head dim before its length")
    for mask in spec.masks:
        if not isinstance(mask, (AddMask, Elementwise)) and not mask.fill < math.inf:
            raise UnsupportedError(f"vector kernel: a mask that fills with {mask.fill}")


def emit_vector(spec: AttentionSpec, target: Target, name: str, config: VectorConfig | None = None) -> Kernel:
    """The kernel of one site as a dispatch of vector code. Raises UnsupportedError where spec or tiles do not fit."""
    _check(spec, target)
    found = None
    if config is None:
        config, found = tuned(spec, target)
    if min(spec.D, spec.Dv) < config.W:
        raise UnsupportedError(f"vector kernel: {config.W} lanes exceed the head dims D={spec.D}, Dv={spec.Dv}")
    if config.BK % config.W and any(varies(m) == (True, True) for m in spec.tensor_masks):
        raise UnsupportedError(f"vector kernel: BK={config.BK} is not a multiple of {config.W} lanes")
    if stack_bytes(spec, config) > STACK_BYTES:
        raise UnsupportedError(f"vector kernel: tiles need {stack_bytes(spec, config)} of {STACK_BYTES} bytes of stack")
    body = VectorBody(spec, config)
    symbol = f"{name}_attention"
    text = "\n".join([*_executable(body, symbol), *_entry(body, name, symbol)]) + "\n"
    flags = tuple(dict.fromkeys((*FLAGS, *found.choice.flags))) if found else FLAGS
    return Kernel(name, text, "vector", spec, dict(asdict(config)), flags, found.reason if found else "")


def _names(spec: AttentionSpec) -> list[str]:
    return ["%q", "%k", "%v", *(f"%mask{i}" for i in range(len(spec.tensor_masks)))]


def _executable(body: VectorBody, symbol: str) -> list[str]:
    spec = body.spec
    bindings = [
        *zip(_names(spec), spec.operand_shapes, operand_types(spec), ["readonly"] * len(_names(spec)), strict=True),
        ("%out", spec.out_shape, spec.dtype, "writeonly"),
    ]
    args, ties = [], []
    for arg, shape, element, access in bindings:
        type_ = f"!iree_tensor_ext.dispatch.tensor<{access}:{tensor_type(shape, element)}>"
        tied = body.tied(shape)
        args.append(f"{arg}_: {type_}" if tied else f"{arg}: {type_}")
        if tied:
            ties.append(f"{arg} = flow.dispatch.tie_shape {arg}_ : {type_}{tied}")
    args[-1:-1] = [f"{d}: index" for d in body.dims.values()]
    return [
        f"flow.executable private @{symbol} {{",
        f"flow.executable.export public @{symbol} workgroups(%x: index, %y: index) -> (index, index, index) {{",
        "%z = arith.constant 1 : index",
        "flow.return %x, %y, %z : index, index, index",
        "}",
        "builtin.module {",
        f"func.func @{symbol}({', '.join(args)}) attributes {{translation_info = {_TRANSLATION}}} {{",
        *ties,
        *body.render(),
        "return",
        "}",
        "}",
        "}",
    ]


def _entry(body: VectorBody, name: str, symbol: str) -> list[str]:
    """The function that a program calls: sizes, the number of workgroups, the dispatch."""
    spec, t, names, shapes = body.spec, Text(), _names(body.spec), body.spec.operand_shapes
    types = [tensor_type(s, "i1" if d == "bool" else d) for s, d in zip(shapes, spec.operand_dtypes, strict=True)]
    out = tensor_type(spec.out_shape, spec.dtype)
    for symbolic, value in body.dims.items():
        i = next(i for i, s in enumerate(shapes) if symbolic in s)
        t.do(f"{value} = tensor.dim {names[i]}, {t.index(shapes[i].index(symbolic))} : {types[i]}")
    if isinstance(spec.Sq, int):
        blocks = t.index(-(-spec.Sq // body.config.BM))
    else:
        blocks = t.arith("ceildivui", body.dims[spec.Sq], t.index(body.config.BM))
    heads = t.index(math.prod(d for d in (*spec.batch, spec.Hq) if isinstance(d, int)))
    for d in (*spec.batch, spec.Hq):
        if isinstance(d, str):
            heads = t.arith("muli", heads, body.dims[d])
    values, passed = [], []
    for value, shape, type_, element in zip(names, shapes, types, operand_types(spec), strict=True):
        seen = tensor_type(shape, element)
        tied = body.tied(shape)
        values.append(value if seen == type_ else t.let(f"flow.tensor.bitcast {value} : {type_}{tied} -> {seen}{tied}"))
        passed.append(f"{seen}{tied}")
    values += body.dims.values()
    passed += [INDEX] * len(body.dims)
    result = t.let(
        f"flow.dispatch @{symbol}::@{symbol}[{blocks}, {heads}]({', '.join(values)}) : ({', '.join(passed)}) -> "
        f"{out}{body.tied(spec.out_shape)}"
    )
    return [
        f"util.func private @{name}({', '.join(f'{n}: {t_}' for n, t_ in zip(names, types, strict=True))}) -> {out} {{",
        *t.render(),
        f"util.return {result} : {out}",
        "}",
    ]
