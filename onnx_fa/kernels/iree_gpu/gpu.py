"""Attention for CUDA and ROCm as one dispatch of IREE's VectorDistribute pipeline (see gpu_body.py): what it carries, its tiles,
its entry."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import asdict
from itertools import product

from onnx_fa.errors import UnsupportedError
from onnx_fa.kernels.iree_gpu.body import GpuBody, GpuConfig, Operand
from onnx_fa.kernels.iree_gpu.matmul import matrix_unit, subgroup_size, translation_info
from onnx_fa.kernels.mlir.kernel import Kernel, check_plain
from onnx_fa.kernels.mlir.text import INDEX, Text, executable, tensor_type
from onnx_fa.kernels.plan.folding import fold_queries
from onnx_fa.kernels.tiles.database import Tiles, pick, queries_computed
from onnx_fa.spec.attention import AddMask, AttentionSpec, Dim, Elementwise
from onnx_fa.spec.target import Target

SHARED_BYTES = {"cuda": 96 * 1024, "rocm": 64 * 1024}
"""Shared memory that the tiles of one workgroup may take."""
_WIDEST = 256
_REGISTERS = 192
"""What a thread's part of a block's scores and output may take."""
_WORKGROUPS = 264
"""Two for each processor of a large GPU: fewer do not fill it."""


def up(size: int, unit: int) -> int:
    """`size` rounded up to whole units."""
    return -(-size // unit) * unit


def head_dims(spec: AttentionSpec, target: Target) -> tuple[int, int]:
    """D and Dv as matrix instructions and copies by all threads take them, zeros added: where no number of threads suits both,
    powers of two."""
    unit = matrix_unit(target, spec.dtype)
    first, second = (max(unit.k, 8), max(unit.n, 8)) if unit else (4, 16)
    d, dv = up(spec.D, first), up(spec.Dv, second)
    odd = {x // (x & -x) for x in (d, dv)}
    if len(odd - {1} if unit else odd) > 1 or not odd <= {1, 3, 5, 7}:
        d, dv = (1 << (x - 1).bit_length() for x in (d, dv))
    return d, dv


def halves(spec: AttentionSpec, target: Target, config: GpuConfig) -> tuple[bool, bool]:
    """Whether D, and a block's keys, are written as two halves: see gpu_body.py."""
    unit = matrix_unit(target, spec.dtype)
    if unit is None or target.backend != "cuda":
        return False, False
    keys = bool(config.VT) and isinstance(spec.Skv, int) and config.BN % (2 * unit.keys) == 0
    return head_dims(spec, target)[0] % (2 * unit.k) == 0, keys


def shared_bytes(spec: AttentionSpec, target: Target, config: GpuConfig) -> int:
    """Shared memory of a workgroup's tiles of Q, K and V, with the padding against bank conflicts; RDNA's P goes through it too."""
    d, dv = head_dims(spec, target)
    size = 4 if spec.dtype == "f32" else 2
    q = config.BM * (d + 16 // size) if config.QS else 0
    kv = config.BN * (d + dv + 32 // size) * max(1, config.ST - 1 if config.ST > 1 else 1)
    p = (
        config.BM * (config.BN + 16 // size)
        if matrix_unit(target, spec.dtype) is None or target.arch == "gfx1100"
        else 0
    )
    return size * (q + kv + p)


def default_config(spec: AttentionSpec, target: Target) -> GpuConfig:
    """Tiles where nothing was measured: the first that fit registers and shared memory. Raises UnsupportedError where none do."""
    d, dv = head_dims(spec, target)
    wide = max(d, dv) > 128
    rows = spec.Sq if isinstance(spec.Sq, int) else _WIDEST
    long = isinstance(spec.Sq, int) and isinstance(spec.Skv, int) and rows >= _WIDEST
    with_unit = matrix_unit(target, spec.dtype) is not None
    least = 16 if with_unit else 8
    keys = (32, 64, 48, 16) if wide or not with_unit else (64, 32, 48, 96, 16)
    # Odd numbers of subgroups are for head dims whose rows do not divide among a power of two of threads.
    subgroups = sorted((4, 3, 5, 6, 7, 2, 1), key=lambda w: w > 1 and least * w > up(rows, least))
    for qs, w in product((1, 0) if with_unit else (0,), subgroups):
        twice = with_unit and target.backend == "cuda" and not wide and rows >= 2 * least * w > 64
        for bn in keys:
            config = GpuConfig(least * w * (2 if twice else 1), bn, w, VT=int(with_unit and long), QS=qs)
            if not problem(spec, target, config):
                return config
    raise UnsupportedError(f"gpu kernel: no tiles for D={spec.D}, Dv={spec.Dv}: {problem(spec, target, config)}")


def tuned(spec: AttentionSpec, target: Target) -> tuple[GpuConfig, str]:
    """Measured tiles for the target, and where they are from; else the default's."""
    folded = fold_queries(spec)
    rows = folded.Sq if isinstance(folded.Sq, int) else math.inf

    def config(t: Tiles) -> GpuConfig:
        return GpuConfig(**t)

    def fits(t: Tiles) -> bool:
        c = config(t)
        if c.VT and isinstance(folded.Skv, str):
            return False  # V would be padded, and keys not in halves
        return max(rows, 16) >= c.BM and not problem(folded, target, c)

    def cost(t: Tiles) -> float:
        """Queries computed, and the processors that a small attention leaves idle."""
        outer = [*folded.batch, folded.Hq, folded.Sq]
        if any(isinstance(d, str) for d in outer):
            return queries_computed(folded.Sq, t["BM"])
        groups = math.prod(int(d) for d in outer[:-1]) * -(-int(folded.Sq) // t["BM"])
        return queries_computed(folded.Sq, t["BM"]) * max(1.0, _WORKGROUPS / groups)

    found = pick(target, "gpu", spec, fits, cost)
    if found and (found.entry.family.dtype == "f32") == (spec.dtype == "f32"):
        return config(found.choice.tiles), found.reason
    return default_config(folded, target), f"built in: nothing was measured for {target.name} and such an attention"


def problem(spec: AttentionSpec, target: Target, config: GpuConfig) -> str:
    """Why tiles do not fit, "" where they do."""
    unit = matrix_unit(target, spec.dtype)
    rows = 16 if unit else 8
    if config.BM % (rows * config.W) or config.BN % 16:
        return (
            f"BM={config.BM} is not a multiple of {rows} rows for each of {config.W} subgroups, or BN={config.BN} of 16"
        )
    if isinstance(spec.Skv, int) and up(spec.Skv, 16) < config.BN:
        return f"BN={config.BN} for {spec.Skv} keys"
    d, dv = head_dims(spec, target)
    if unit is not None and config.BM // config.W * (dv + config.BN) > _REGISTERS * 32:
        return f"BM={config.BM} and BN={config.BN} take more registers than there are for Dv={spec.Dv}"
    threads = config.W * subgroup_size(target)
    vector = 16 // (4 if spec.dtype == "f32" else 2)
    half_d, half_k = halves(spec, target, config)
    width = (2, d // 2) if half_d else (d,)
    keys = (2, config.BN // 2) if half_k else (config.BN,)
    copies = [(config.BN, *width), (dv, *keys) if config.VT else (config.BN, dv), *[(config.BM, *width)] * config.QS]
    for copy in copies:
        if not _divides(copy, threads, vector):
            return f"a tile of {' x '.join(map(str, copy))} does not divide among {threads} threads"
    shared, most = shared_bytes(spec, target, config), SHARED_BYTES[target.backend]
    return f"tiles need {shared} of {most} bytes of shared memory" if shared > most else ""


def _divides(shape: Sequence[int], threads: int, vector: int) -> bool:
    """Whether a tile can be copied by all threads of a workgroup, as IREE's derived_thread_config has it: with the longest vectors
    that give every thread one, threads along the innermost axis first. The compiler takes no other copies."""
    flat, inner = math.prod(shape), shape[-1]
    if flat % threads == 0:
        vector = min(vector, flat // threads)
        vector = 1 if inner % vector and vector % inner else min(inner, vector)
    if inner % vector:
        return False
    for size in (inner // vector, *reversed(shape[:-1])):
        if threads % size == 0:
            threads //= size
        elif size % threads == 0:
            threads = 1
        else:
            return False
    return threads == 1


def _check(spec: AttentionSpec, target: Target) -> None:
    """Raises UnsupportedError, with the reason, for what this kernel cannot carry."""
    if target.backend not in SHARED_BYTES:
        raise UnsupportedError(
            f"gpu kernel: IREE's attention and VectorDistribute have no lowering for {target.backend}"
        )
    if "f64" in spec.operand_dtypes:
        raise UnsupportedError("gpu kernel: f64 operands")
    check_plain(spec)
    if max(spec.D, spec.Dv) > _WIDEST:
        raise UnsupportedError(
            f"gpu kernel: D={spec.D}, Dv={spec.Dv}: head dims above {_WIDEST} take more registers than there are"
        )
    for mask in spec.masks:
        if not isinstance(mask, (AddMask, Elementwise)) and not mask.fill < math.inf:
            raise UnsupportedError(f"gpu kernel: a mask that fills with {mask.fill}")


def emit_gpu(spec: AttentionSpec, target: Target, name: str, config: GpuConfig | None = None) -> Kernel:
    """The kernel of one site for a GPU. Raises UnsupportedError where spec or tiles do not fit."""
    _check(spec, target)
    folded, tuning = fold_queries(spec), ""
    if config is None:
        config, tuning = tuned(spec, target)
    if why := problem(folded, target, config):
        raise UnsupportedError(f"gpu kernel: {why}")
    entry = _Entry(spec, folded, target, name, config)
    chosen = {**asdict(config), "skips": int(entry.body.skipped)}
    return Kernel(name, entry.text(), "gpu", spec, dict(chosen), (), tuning)


def _led(x: Operand, place: int) -> Operand:
    """Q or K with its batch dims and heads in one axis with the next, where they are its first. With more axes, LLVM's analysis of
    alignment gives up before it has seen them all, and single elements are loaded."""
    outer = next((n for n, kind in enumerate(x.kinds) if kind[:1] not in ("b", "h")), 0)
    if place > 1 or not outer or any(isinstance(d, str) for d in x.shape):
        return x
    if list(x.kinds[:outer]) != sorted(x.kinds[:outer]) or any(k[:1] in ("b", "h") for k in x.kinds[outer:]):
        return x
    rows = math.prod(int(d) for d in x.shape[: outer + 1])
    return Operand(x.name, x.kinds[outer:], (rows, *x.shape[outer + 1 :]), x.element, "q" if place == 0 else "kv")


_PADDED = {"m": "Sq, padded", "k": "Skv, padded"}
"""Symbols of lengths that are known at run time, as the dispatch sees them."""


class _Entry:
    """The function that a program calls, and its executables."""

    def __init__(self, site: AttentionSpec, spec: AttentionSpec, target: Target, name: str, config: GpuConfig) -> None:
        self.site, self.spec, self.target, self.name, self.config = site, spec, target, name, config
        batch = [f"b{i}" for i in range(len(spec.batch))]
        score = (*batch, "h", "m", "k")
        kinds: list[tuple[str, ...]] = []
        layouts = (spec.q_layout, spec.k_layout, spec.v_layout)
        for layout, last in zip(layouts, (("m", "d"), ("k", "d"), ("k", "n")), strict=True):
            canonical = (*batch, "h", *last)
            kinds.append(tuple(canonical[a] for a in layout))
        for shape in spec.operand_shapes[3:]:
            own = score[len(score) - len(shape) :]
            kinds.append(tuple("" if d == 1 else k for k, d in zip(own, shape, strict=True)))
        self.kinds = kinds
        canonical = (*batch, "h", "m", "n")
        self.out_kinds = tuple(canonical[a] for a in spec.o_layout)
        d, dv = head_dims(spec, target)
        self.padding = {axis: self._padding(axis) for axis in ("m", "k")}
        self.sizes: dict[str, Dim] = {"d": d, "n": dv, "m": self._length("m"), "k": self._length("k")}
        names = [
            "%q",
            "%k",
            "%v",
            *(f"%mask{i}" for i in range(len(spec.tensors))),
            *["%sink"] * (spec.sink is not None),
        ]
        elements = ["i8" if e == "bool" else e for e in spec.operand_dtypes]
        self.operands = [
            Operand(n, k, self._padded(k, s), e)
            for n, k, s, e in zip(names, kinds, spec.operand_shapes, elements, strict=True)
        ]
        self.out = Operand("%out", self.out_kinds, self._padded(self.out_kinds, spec.out_shape), spec.dtype)
        inside = list(self.operands)
        v = inside[2]
        self.transposed: Operand | None = None
        if config.VT and v.tile == ("k", "n"):
            order = sorted(range(len(v.kinds)), key=lambda a: "bhnk".index(v.kinds[a][0]))
            self.transposed = Operand(
                "%vt", tuple(v.kinds[a] for a in order), tuple(v.shape[a] for a in order), v.element
            )
            self.order = order
            inside[2] = dataclasses.replace(self.transposed, name="%v")
        half_d, half_k = halves(spec, target, config)
        self.halves = "d" * half_d + "k" * (half_k and self.transposed is not None)
        inside = [_led(self._halved(x), n) for n, x in enumerate(inside)]
        self.symbols = [*spec.symbols, *(s for s in _PADDED.values() if s in self.sizes.values())]
        self.body = GpuBody(spec, config, target, inside, self.out, self.sizes, self.value)

    def _halved(self, x: Operand) -> Operand:
        """The operand with its axes in halves: of D, and of a block's keys."""
        kinds: list[str] = []
        shape: list[Dim] = []
        for kind, size in zip(x.kinds, x.shape, strict=True):
            if kind and kind in self.halves:
                half = self.config.BN // 2 if kind == "k" else int(size) // 2
                kinds += ["j" if kind == "k" else "e", kind]
                shape += [int(size) // half, half]
            else:
                kinds.append(kind)
                shape.append(size)
        return Operand(x.name, tuple(kinds), tuple(shape), x.element)

    def value(self, symbol: str) -> str:
        return f"%dim{self.symbols.index(symbol)}"

    def _unaligned(self, axis: str) -> bool:
        """Whether blocks that start anywhere would be read across the alignment of vector loads: the axis is the innermost one of
        something."""
        inner = [k[-1] == axis for k in (*self.kinds, self.out_kinds) if k]
        return any(inner) or (axis == "k" and bool(self.config.VT))

    def _padding(self, axis: str) -> str:
        """How blocks come to their full size: "" (they are), "least" (operands have at least one block; the last block starts
        earlier), "blocks" (operands are padded to whole blocks)."""
        length, block = (self.spec.Sq, self.config.BM) if axis == "m" else (self.spec.Skv, self.config.BN)
        if isinstance(length, int) and length % block == 0:
            return ""
        return "blocks" if self._unaligned(axis) else "least"

    def _length(self, axis: str) -> Dim:
        """The axis as the dispatch sees it."""
        length, block = (self.spec.Sq, self.config.BM) if axis == "m" else (self.spec.Skv, self.config.BN)
        how = self.padding[axis]
        if not how:
            return length
        if isinstance(length, str):
            return _PADDED[axis]
        return up(length, block) if how == "blocks" else max(length, block)

    def _padded(self, kinds: Sequence[str], shape: Sequence[Dim]) -> tuple[Dim, ...]:
        return tuple(self.sizes.get(k, d) if k else d for k, d in zip(kinds, shape, strict=True))

    def _tied(self, shape: Sequence[Dim]) -> str:
        dynamic = ", ".join(self.value(d) for d in shape if isinstance(d, str))
        return f"{{{dynamic}}}" if dynamic else ""

    # Text.

    def text(self) -> str:
        body = self.body.render()
        inside = [*self.body_operands(), self.out]
        info = translation_info(self.target, self.config.W, self.config.ST)
        parts = [self._executable("attention", inside, body, info)]
        if self.transposed is not None:
            parts.append(self._executable("transpose", [self.operands[2], self.transposed], self._transpose()))
        return "\n".join(["\n".join(p) for p in parts] + self._function()) + "\n"

    def body_operands(self) -> list[Operand]:
        return [self.body.q, self.body.k, self.body.v, *self.body.masks, *([self.body.sink] if self.body.sink else [])]

    def _transpose(self) -> list[str]:
        t, v, vt = Text(), self.operands[2], self.transposed
        assert vt is not None
        dynamic = ", ".join(self.value(d) for d in vt.shape if isinstance(d, str))
        empty = t.let(f"tensor.empty({dynamic}) : {vt.type}")
        t.do(f"%result = linalg.transpose ins(%v : {v.type}) outs({empty} : {vt.type}) permutation = {self.order}")
        return t.render()

    def _executable(
        self, part: str, tensors: Sequence[Operand], body: Sequence[str], translation: str = ""
    ) -> list[str]:
        """An executable of one function; the last of `tensors` is what it writes."""
        args, lines = [], []
        for i in range(len(self.symbols)):
            lines.append(f"%dim{i} = iree_tensor_ext.dispatch.workload.ordinal %dim{i}_arg, {i} : index")
        for x in tensors:
            access = "writeonly" if x is tensors[-1] else "readonly"
            type_, tied = f"!iree_tensor_ext.dispatch.tensor<{access}:{x.type}>", self._tied(x.shape)
            args.append(f"{x.name}_arg: {type_}")
            source = f"{x.name}_arg"
            if tied:
                source = f"{x.name}_tied"
                lines.append(f"{source} = flow.dispatch.tie_shape {x.name}_arg : {type_}{tied}")
            if access == "readonly":
                lines.append(
                    f"{x.name} = iree_tensor_ext.dispatch.tensor.load {source}, {self._whole(x)} : {type_}{tied} -> {x.type}"
                )
            else:
                store = f"iree_tensor_ext.dispatch.tensor.store %result, {source}, {self._whole(x)}"
                end = f"{store} : {x.type} -> {type_}{tied}"
        args[-1:-1] = [f"%dim{i}_arg: index" for i in range(len(self.symbols))]
        workload = [f"%w{i}" for i in range(len(self.symbols))]
        return executable(f"{self.name}_{part}", workload, None, args, [*lines, *body, end], translation)

    def _whole(self, x: Operand) -> str:
        sizes = ", ".join(str(d) if isinstance(d, int) else self.value(d) for d in x.shape)
        zeros, ones = ", ".join("0" for _ in x.shape), ", ".join("1" for _ in x.shape)
        return f"offsets = [{zeros}], sizes = [{sizes}], strides = [{ones}]"

    def _function(self) -> list[str]:
        site, spec, t = self.site, self.spec, Text()
        names, shapes = [x.name for x in self.operands], site.operand_shapes
        types = [tensor_type(s, "i1" if d == "bool" else d) for s, d in zip(shapes, site.operand_dtypes, strict=True)]
        out = tensor_type(site.out_shape, site.dtype)
        for symbol in spec.symbols:
            i = next(i for i, s in enumerate(shapes) if symbol in s)
            t.do(f"{self.value(symbol)} = tensor.dim {names[i]}, {t.index(shapes[i].index(symbol))} : {types[i]}")
        values = []
        for n, own, type_, shape, x in zip(names, shapes, types, spec.operand_shapes, self.operands, strict=True):
            value, seen = n, tensor_type(own, x.element)
            if seen != type_:
                value = t.let(f"flow.tensor.bitcast {value} : {type_}{self._tied(own)} -> {seen}{self._tied(own)}")
            values.append(self._reshaped(t, value, own, shape, x.element))
        for axis, symbol in _PADDED.items():
            if symbol in self.symbols:
                length = spec.Sq if axis == "m" else spec.Skv
                block = t.index(self.config.BM if axis == "m" else self.config.BN)
                assert isinstance(length, str)
                now = self.value(length)
                if self.padding[axis] == "blocks":
                    padded = t.arith("muli", t.arith("ceildivui", now, block), block)
                else:
                    padded = t.arith("maxsi", now, block)
                t.do(f"{self.value(symbol)} = arith.addi {padded}, {t.index(0)} : index")
        result = self._attend(t, values)
        result = self._reshaped(t, result, spec.out_shape, site.out_shape, spec.dtype)
        arguments = ", ".join(f"{n}: {t_}" for n, t_ in zip(names, types, strict=True))
        return [
            f"util.func private @{self.name}({arguments}) -> {out} {{",
            *t.render(),
            f"util.return {result} : {out}",
            "}",
        ]

    def _attend(self, t: Text, values: Sequence[str]) -> str:
        """Pads, calls, cuts. Where padding is needed only for short lengths, that is decided when the program runs."""
        needs = [(x, own) for x, own in zip(self.operands, self.spec.operand_shapes, strict=True) if x.shape != own]
        lengths = [a for a in ("m", "k") if isinstance(self.sizes[a], str)]
        fixed = any(isinstance(p, int) and p != d for x, own in needs for p, d in zip(x.shape, own, strict=True))
        if not lengths or fixed or any(self.padding[a] == "blocks" for a in lengths):
            return self._call(t, values, True)
        enough = t.constant("1", "i1")
        for a in lengths:
            length = self.spec.Sq if a == "m" else self.spec.Skv
            assert isinstance(length, str)
            at_least = t.index(self.config.BM if a == "m" else self.config.BN)
            enough = t.arith("andi", enough, t.arith("cmpi sge,", self.value(length), at_least), "i1")
        type_ = tensor_type(self.spec.out_shape, self.spec.dtype)
        result = t.let(f"scf.if {enough} -> ({type_}) {{")
        t.do(f"scf.yield {self._call(t, values, False)} : {type_}")
        t.do("} else {")
        t.do(f"scf.yield {self._call(t, values, True)} : {type_}")
        t.do("}")
        return result

    def _call(self, t: Text, values: Sequence[str], pad: bool) -> str:
        passed = []
        for value, x, own in zip(values, self.operands, self.spec.operand_shapes, strict=True):
            if pad:
                passed.append(self._pad(t, value, own, x))
            else:
                passed.append(self._renamed(t, value, own, x.shape, x.element))
        if self.transposed is not None:
            passed[2] = self._dispatch(t, "transpose", [self.operands[2]], [passed[2]], self.transposed)
        outside = list(self.operands)
        if self.transposed is not None:
            outside[2] = self.transposed
        inside = self.body_operands()
        passed = [
            self._renamed(t, p, x.shape, y.shape, x.element) for p, x, y in zip(passed, outside, inside, strict=True)
        ]
        result = self._dispatch(t, "attention", inside, passed, self.out)
        own = self.spec.out_shape
        if not pad:
            return self._renamed(t, result, self.out.shape, own, self.spec.dtype)
        if own == self.out.shape:
            return result
        sizes = ", ".join(str(d) if isinstance(d, int) else self.value(d) for d in own)
        zeros, ones = ", ".join("0" for _ in own), ", ".join("1" for _ in own)
        return t.let(
            f"tensor.extract_slice {result}[{zeros}] [{sizes}] [{ones}] : {self.out.type} to {tensor_type(own, self.spec.dtype)}"
        )

    def _renamed(self, t: Text, value: str, old: Sequence[Dim], new: Sequence[Dim], element: str) -> str:
        """The tensor with a length that happens to be a padded one."""
        if tuple(old) == tuple(new):
            return value
        types = (f"{tensor_type(s, element)}{self._tied(s)}" for s in (old, new))
        return t.let(f"flow.tensor.reshape {value} : {' -> '.join(types)}")

    def _pad(self, t: Text, value: str, own: Sequence[Dim], x: Operand) -> str:
        if tuple(own) == x.shape:
            return value
        highs = []
        for have, want in zip(own, x.shape, strict=True):
            if have == want:
                highs.append("0")
            elif isinstance(have, int) and isinstance(want, int):
                highs.append(str(want - have))
            else:
                highs.append(
                    t.arith("subi", *(t.index(d) if isinstance(d, int) else self.value(d) for d in (want, have)))
                )
        zero = t.constant("0" if x.element.startswith("i") else "0.0", x.element)
        indices = ", ".join(f"%i{n}: index" for n in range(len(own)))
        return t.let(
            f"tensor.pad {value} low[{', '.join('0' for _ in own)}] high[{', '.join(highs)}] {{\n^bb0({indices}):\n"
            f"tensor.yield {zero} : {x.element}\n}} : {tensor_type(own, x.element)} to {x.type}"
        )

    def _dispatch(self, t: Text, part: str, tensors: Sequence[Operand], values: Sequence[str], out: Operand) -> str:
        entry = f"@{self.name}_{part}::@{self.name}_{part}"
        dims = [f"%dim{i}" for i in range(len(self.symbols))]
        workload = f"[{', '.join(dims)}]" if dims else ""
        types = [f"{x.type}{self._tied(x.shape)}" for x in tensors] + [INDEX] * len(dims)
        return t.let(
            f"flow.dispatch {entry}{workload}({', '.join([*values, *dims])}) : ({', '.join(types)}) -> "
            f"{out.type}{self._tied(out.shape)}"
        )

    def _reshaped(self, t: Text, value: str, old: Sequence[Dim], new: Sequence[Dim], element: str) -> str:
        return self._renamed(t, value, old, new, element)
