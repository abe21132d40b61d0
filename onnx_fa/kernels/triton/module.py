"""A generated Triton kernel inside an IREE module: PTX of each architecture is a variant of one executable, chosen by the device
when the program is loaded. The module needs nothing but IREE's runtime."""

from __future__ import annotations

import math
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass

from onnx_fa.errors import UnsupportedError
from onnx_fa.kernels.mlir.kernel import Kernel, check_plain
from onnx_fa.kernels.mlir.text import Text, tensor_type
from onnx_fa.kernels.plan.folding import fold_queries
from onnx_fa.kernels.triton import ptx
from onnx_fa.kernels.triton.config import ARCHITECTURES, TritonConfig, f32_products
from onnx_fa.kernels.triton.overlapped import OverlappedSource
from onnx_fa.kernels.triton.source import AttentionSource, Program, combine_program, combines_itself
from onnx_fa.kernels.triton.specialised import SpecialisedSource
from onnx_fa.kernels.triton.tiles import smaller, tf32_tiles, tuned
from onnx_fa.processes import DEFAULT, Limits
from onnx_fa.spec.attention import AddMask, AttentionSpec, Dim, Elementwise
from onnx_fa.spec.target import Target

WIDEST = 256
"""The largest head dim."""
_TARGET = '#hal.executable.target<"cuda", "cuda-nvptx-fb", {{target_arch = "{}"{}}}>'
_MOST_BLOCKS = 2**31 - 1
_COMBINE_WARPS = 4


@dataclass(frozen=True)
class _Variant:
    """One architecture's code of a dispatch, and its configuration."""

    arch: int
    code: ptx.Compiled
    config: TritonConfig


def missing(target: Target) -> str:
    """Why Triton's kernels cannot be made for a target; "" where they can."""
    if target.backend != "cuda":
        return "Triton's kernels are for CUDA"
    return "" if ptx.available() else "Triton is not installed: pip install triton (or onnx-fa[triton])"


def emit_triton(spec: AttentionSpec, target: Target, name: str, config: TritonConfig | None = None) -> Kernel:
    """The kernel of one site as Triton code. `config` holds for every architecture it fits. Raises UnsupportedError where the
    spec cannot be expressed."""
    _check(spec, target)
    variants, program, reason = _variants(fold_queries(spec), _symbol(name), config, target.tf32)
    return _kernel(spec, name, variants, program, reason, tf32=target.tf32)


def emit_exactly(
    spec: AttentionSpec, target: Target, name: str, config: TritonConfig, arch: int, limits: Limits
) -> Kernel:
    """The kernel with these tiles and no others, for sm_`arch` alone: what a tuner measures. Raises UnsupportedError where they do
    not fit, or a compilation passes a limit."""
    _check(spec, target)
    program = program_of(fold_queries(spec), config, _symbol(name), arch, tf32=target.tf32)
    code = ptx.compile_program(program, arch, config.warps, config.stages, limits)
    return _kernel(spec, name, [_Variant(arch, code, config)], program, "", limits, tf32=target.tf32)


def _symbol(name: str) -> str:
    return f"{name}_attention"


def _kernel(
    site: AttentionSpec,
    name: str,
    variants: list[_Variant],
    program: Program,
    reason: str,
    limits: Limits = DEFAULT,
    *,
    tf32: bool = False,
) -> Kernel:
    """The kernel's text; where parts of split keys are combined by a dispatch of its own, with that."""
    spec, chosen = fold_queries(site), variants[0].config
    text: list[str] = _executable(_symbol(name), program, variants)
    combine = None
    if chosen.splits > 1 and not combines_itself(spec, chosen):
        combine = combine_program(spec, chosen, f"{name}_combine")
        archs = [v.arch for v in variants]
        with ThreadPoolExecutor(len(archs)) as pool:
            codes = list(pool.map(lambda a: ptx.compile_program(combine, a, _COMBINE_WARPS, 1, limits), archs))
        text += _executable(combine.entry, combine, [_Variant(a, c, chosen) for a, c in zip(archs, codes, strict=True)])
    text += _Entry(site, spec, name, program, variants, combine).lines()
    fields = {
        f"{k}_sm_{v.arch}" if v.arch != variants[0].arch else k: x
        for v in variants
        for k, x in asdict(v.config).items()
    }
    lossy = "tf32" if tf32 and spec.dtype == "f32" else ""
    return Kernel(name, "\n".join(text) + "\n", "triton", site, fields, (), reason, lossy)


def _check(spec: AttentionSpec, target: Target) -> None:
    if reason := missing(target):
        raise UnsupportedError(f"triton kernel: {reason}")
    if "f64" in spec.operand_dtypes:
        raise UnsupportedError("triton kernel: f64 operands")
    check_plain(spec)
    if max(spec.D, spec.Dv) > WIDEST:
        raise UnsupportedError(f"triton kernel: head dims above {WIDEST}")
    for mask in spec.masks:
        if not isinstance(mask, (AddMask, Elementwise)) and not mask.fill < math.inf:
            raise UnsupportedError(f"triton kernel: a mask that fills with {mask.fill}")


def _variants(
    spec: AttentionSpec, symbol: str, given: TritonConfig | None, tf32: bool
) -> tuple[list[_Variant], Program, str]:
    """The kernel for each architecture, with tiles that fit it; the operands it takes; where the tiles are from."""
    with ThreadPoolExecutor(len(ARCHITECTURES)) as pool:
        made = list(pool.map(lambda arch: _variant(spec, symbol, given, arch, tf32), ARCHITECTURES))
    others = "".join(f"; sm_{v.arch}: {reason}" for v, _, reason in made[1:] if reason)
    return [v for v, _, _ in made], made[0][1], (made[0][2] + others).removeprefix("; ")


def _variant(
    spec: AttentionSpec, symbol: str, given: TritonConfig | None, arch: int, tf32: bool
) -> tuple[_Variant, Program, str]:
    in_tf32 = tf32_tiles(spec) if tf32 and spec.dtype == "f32" and arch == ARCHITECTURES[0] else None
    wanted, reason = (given, "") if given else in_tf32 or tuned(spec, arch)
    problem: UnsupportedError | None = None
    for config in smaller(wanted):
        try:
            program = program_of(spec, config, symbol, arch, tf32=tf32)
            code = ptx.compile_program(program, arch, config.warps, config.stages)
        except UnsupportedError as e:
            problem = problem or e
            continue
        if problem:
            reason += f"{'; ' * bool(reason)}other tiles, as these do not fit: {problem}"
        return _Variant(arch, code, config), program, reason
    raise UnsupportedError(f"triton kernel: {problem}")


def program_of(spec: AttentionSpec, config: TritonConfig, symbol: str, arch: int, *, tf32: bool = False) -> Program:
    """The source of a spec (already folded) in the form that the tiles name; `tf32`: of f32 with single products of tf32. Raises
    UnsupportedError where they cannot be."""
    if config.overlap and arch // 10 != 9:
        raise UnsupportedError("the overlapped form is Hopper's")
    if config.overlap:
        return (SpecialisedSource if config.overlap == 2 else OverlappedSource)(spec, config, symbol).program()
    return AttentionSource(spec, config, symbol, products=f32_products(config, arch, tf32=tf32)).program()


def _executable(symbol: str, program: Program, variants: Sequence[_Variant]) -> list[str]:
    """The executable of one dispatch. Its workload is the number of workgroups, one number per variant."""
    scratch = any(v.code.scratch for v in variants)
    written = {"count", "out", "part", "stat"}
    bindings = [
        "#hal.pipeline.binding<storage_buffer" + (">" if name in written else ", ReadOnly>")
        for name, _ in program.pointers
    ] + ["#hal.pipeline.binding<storage_buffer>"] * scratch
    layout = f"#hal.pipeline.layout<constants = {len(program.constants)}, bindings = [{', '.join(bindings)}]>"
    lines = [f"hal.executable private @{symbol} {{"]
    workload = ", ".join(f"%n{v.arch}: index" for v in variants)
    for v in variants:
        target = _TARGET.format("sm_80", f", onnx_fa.arch = {v.arch} : i32")
        data = v.code.text.encode()
        code = f'dense<"0x{data.hex()}"> : vector<{len(data)}xi8>'
        object_ = f'#hal.executable.object<{{path = "{symbol}_sm_{v.arch}.ptx", data = {code}}}>'
        lines.append(f"hal.executable.variant public @sm_{v.arch} target({target}) objects([{object_}]) {{")
        if v.arch != variants[-1].arch:
            lines += [
                "hal.executable.condition(%device: !hal.device) -> i1 {",
                '%known, %major = hal.device.query<%device : !hal.device> key("cuda.device" :: "compute_capability_major") '
                ": i1, i32 = 0 : i32",
                f"%wanted = arith.constant {v.arch // 10} : i32",
                "%same = arith.cmpi eq, %major, %wanted : i32",
                "hal.return %same : i1",
                "}",
            ]
        sizes = (
            f"workgroup_size = [{32 * v.code.warps} : index, 1 : index, 1 : index], subgroup_size = 32 : index, "
            f"workgroup_local_memory = {v.code.shared} : index"
        )
        lines += [
            f"hal.executable.export public @{symbol} ordinal(0) layout({layout}) "
            f"count(%device: !hal.device, {workload}) -> (index, index, index) {{",
            f"%y = arith.constant {v.config.splits if symbol.endswith('_attention') else 1} : index",
            "%z = arith.constant 1 : index",
            f"hal.return %n{v.arch}, %y, %z : index, index, index",
            f"}} <{{{sizes}}}>",
            "}",
        ]
    return [*lines, "}"]


class _Entry:
    """The function that a program calls: sizes, the numbers of workgroups, the dispatches."""

    def __init__(
        self,
        site: AttentionSpec,
        spec: AttentionSpec,
        name: str,
        program: Program,
        variants: Sequence[_Variant],
        combine: Program | None,
    ) -> None:
        self.site, self.spec, self.name, self.t = site, spec, name, Text()
        self.program, self.variants, self.combine = program, variants, combine
        self.dims: dict[str, str] = {}
        self.counter = f"{name}_count"
        config = variants[0].config
        heads = math.prod(d for d in (*spec.batch, spec.Hq) if isinstance(d, int))
        blocks = max(-(-spec.Sq // v.config.BM) for v in variants) if isinstance(spec.Sq, int) else 0
        self.counters = f"tensor<{heads * blocks}xi32>" if combines_itself(spec, config) else ""

    def tied(self, shape: Sequence[Dim]) -> str:
        dynamic = [self.dims[d] for d in shape if isinstance(d, str)]
        return f"{{{', '.join(dynamic)}}}" if dynamic else ""

    def product(self, dims: Sequence[Dim]) -> str:
        value = self.t.index(math.prod(d for d in dims if isinstance(d, int)))
        for d in dims:
            if isinstance(d, str):
                value = self.t.arith("muli", value, self.dims[d])
        return value

    def flat(self, dims: Sequence[Dim], element: str, more: int = 0) -> str:
        """The type of a buffer of so many elements."""
        known = math.prod(d for d in dims if isinstance(d, int))
        if all(isinstance(d, int) for d in dims):
            return f"tensor<{known + more}x{element}>"
        return f"tensor<?x{element}>{{{self.t.arith('addi', self.product(dims), self.t.index(more))}}}"

    def reshaped(self, value: str, old: Sequence[Dim], new: Sequence[Dim], element: str) -> str:
        if tuple(old) == tuple(new):
            return value
        types = (f"{tensor_type(s, element)}{self.tied(s)}" for s in (old, new))
        return self.t.let(f"flow.tensor.reshape {value} : {' -> '.join(types)}")

    def lines(self) -> list[str]:
        site, spec, t = self.site, self.spec, self.t
        shapes = site.operand_shapes
        names = [
            "%q",
            "%k",
            "%v",
            *(f"%mask{i}" for i in range(len(site.tensors))),
            *["%sink"] * (site.sink is not None),
        ]
        types = [tensor_type(s, "i1" if d == "bool" else d) for s, d in zip(shapes, site.operand_dtypes, strict=True)]
        for symbol in site.symbols:
            i = next(i for i, s in enumerate(shapes) if symbol in s)
            self.dims[symbol] = t.let(f"tensor.dim {names[i]}, {t.index(shapes[i].index(symbol))} : {types[i]}")
        values, passed = [], []
        for value, own, type_, shape, (_, element) in zip(
            names, shapes, types, spec.operand_shapes, self.program.pointers, strict=False
        ):
            seen = tensor_type(own, element)
            if seen != type_:
                value = t.let(f"flow.tensor.bitcast {value} : {type_}{self.tied(own)} -> {seen}{self.tied(own)}")
            values.append(self.reshaped(value, own, shape, element))
            passed.append(f"{tensor_type(shape, element)}{self.tied(shape)}")
        constants = [t.let(f"arith.index_cast {self.dims[s]} : index to i32") for s in self.program.constants]
        heads = self.product((*spec.batch, spec.Hq))
        counts = []
        for v in self.variants:
            if isinstance(spec.Sq, int):
                blocks = t.index(-(-spec.Sq // v.config.BM))
            else:
                blocks = t.arith("ceildivui", self.dims[spec.Sq], t.index(v.config.BM))
            counts.append(t.arith("muli", heads, blocks))
        out = f"{tensor_type(spec.out_shape, spec.dtype)}{self.tied(spec.out_shape)}"
        results = [out]
        config = self.variants[0].config
        if config.splits > 1:
            rows = (*spec.batch, spec.Hq, spec.Sq)
            parts = [self.flat((*rows, config.splits * spec.Dv), "f32"), self.flat((*rows, 2 * config.splits), "f32")]
            results = parts if self.combine else [*parts, out]
        if combines_itself(spec, config):
            # The counters outlive the call. Each is zero again when the dispatch ends.
            values.append(t.let(f"util.global.load @{self.counter} : {self.counters}"))
            passed.append(self.counters)
            results.insert(0, values[-1])
        scratch = max(v.code.scratch for v in self.variants)
        if scratch:
            BM = self.variants[0].config.BM
            if isinstance(spec.Sq, int):
                results.append(self.flat((*spec.batch, spec.Hq, -(-spec.Sq // BM), scratch), "i8", ptx.ALIGNMENT))
            else:
                most = t.arith("addi", t.arith("muli", counts[0], t.index(scratch)), t.index(ptx.ALIGNMENT))
                results.append(f"tensor<?xi8>{{{most}}}")
        result = self.dispatch(
            self.program.entry, counts, [*values, *constants], [*passed, *["i32"] * len(constants)], results
        )
        if self.combine is not None:
            queries = self.product((*spec.batch, spec.Hq, spec.Sq))
            result = self.dispatch(
                self.combine.entry,
                [queries] * len(self.variants),
                [f"{result}#0", f"{result}#1", *constants],
                [*results[:2], *["i32"] * len(constants)],
                [out],
            )
        elif combines_itself(spec, config):
            t.do(f"util.global.store {result}#0, @{self.counter} : {self.counters}")
            result += "#3"
        elif scratch:
            result += "#0"
        result = self.reshaped(result, spec.out_shape, site.out_shape, spec.dtype)
        type_ = tensor_type(site.out_shape, site.dtype)
        arguments = ", ".join(f"{n}: {x}" for n, x in zip(names, types, strict=True))
        state = [f"util.global private mutable @{self.counter} = dense<0> : {self.counters}"] if self.counters else []
        return [
            *state,
            f"util.func private @{self.name}({arguments}) -> {type_} {{",
            *t.render(),
            f"util.return {result} : {type_}",
            "}",
        ]

    def dispatch(
        self, symbol: str, counts: Sequence[str], values: Sequence[str], types: Sequence[str], results: Sequence[str]
    ) -> str:
        entries = ", ".join(f"@{symbol}::@sm_{v.arch}::@{symbol}" for v in self.variants)
        result = f"({', '.join(results)})" if len(results) > 1 else results[0]
        text = (
            f"flow.dispatch {{{entries}}}[{', '.join(counts)}]({', '.join(values)}) : ({', '.join(types)}) -> {result}"
        )
        if len(results) == 1:
            return self.t.let(text)
        self.t.do(f"%{symbol}:{len(results)} = {text}")
        return f"%{symbol}"
