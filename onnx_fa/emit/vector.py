"""Attention for llvm-cpu written at the vector level: one dispatch, queries along the lanes, keys in blocks.

A workgroup owns BM queries of one head. It keeps Q^T (D x BM, scaled), O^T (Dv x BM) and the scores S^T of one block of BK
keys (BK x BM) on the worker's stack, and walks the keys with the running maximum m and sum l of online softmax:

    S^T = K Q^T;  m' = max(m, S);  P = 2^(S - m');  l = l 2^(m - m') + sum P;  O^T = O^T 2^(m - m') + V^T P

With queries along the lanes the row statistics are plain vectors, and K and V are read as scalars that are broadcast into
fused multiply-adds, in whatever layout they have. Scores are in units of log2, so that exp is exp2.

Index masks (causal, window) decide which key blocks are visited: blocks that no query sees are skipped, blocks that every
query sees run without a compare, and only the blocks on an edge test positions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

from onnx_fa.emit.kernel_text import Kernel
from onnx_fa.errors import UnsupportedError
from onnx_fa.spec import AddMask, AttentionSpec, BoolMask, Causal, Dim, MaskTerm, SlidingWindow
from onnx_fa.target import Target

LOG2E = math.log2(math.e)
STACK_BYTES = 100 * 1024
"""What the tiles of one workgroup may take: the runtime gives a worker 128 KiB and dies past it."""
MASK_FLOOR = -1.0e37
"""Finite masks and fills are raised to this, so that log2(e) times them, and sums of a few of them, stay finite."""
MAX_START = -3.0e38
"""The running maximum before the first key: finite, so that a score of -inf gives 2^-inf = 0 and not NaN; below any mask."""
EXP2_RANGE = 130.0
"""A score this far below the row's maximum has probability 0 in f32."""

# 2^x on [-1/2, 1/2], lowest power first: Remez fit of the relative error, 2e-7 after rounding.
EXP2_POLYNOMIAL = (
    1.0000001192092896,
    0.6931469440460205,
    0.24022114276885986,
    0.05550709739327431,
    0.009675757959485054,
    0.0013277939287945628,
)
FLAGS = (
    "--iree-llvmcpu-max-allowed-number-of-native-vectors=8192",
    "--iree-llvmcpu-stack-allocation-limit=131072",
)
INDEX, I32, I1 = "index", "i32", "i1"


@dataclass(frozen=True)
class VectorConfig:
    """Tiles of the kernel, in queries, keys and head dims.

    W lanes of a vector; BM queries per workgroup; BK keys per block; register tiles of RI keys x BM queries (scores) and
    RN head dims x BM queries (output); U steps of the reduction unrolled. BM is a multiple of W, BK of RI.
    """

    W: int
    BM: int
    BK: int
    RI: int
    RN: int
    U: int

    def __post_init__(self) -> None:
        if min(self.W, self.BM, self.BK, self.RI, self.RN, self.U) < 1 or self.W not in (4, 8, 16):
            raise ValueError(f"tiles must be positive and W one of 4, 8, 16: {self}")
        if self.BM % self.W or self.BK % self.RI:
            raise ValueError(f"BM must be a multiple of W, and BK of RI: {self}")


def stack_bytes(spec: AttentionSpec, config: VectorConfig) -> int:
    """Bytes of the tiles that one workgroup keeps on its stack."""
    tiles = (
        spec.D + spec.Dv + config.BK * (1 + sum(_varies(spec, m) == (True, True) for m in spec.tensor_masks))
    ) * config.BM
    if spec.dtype != "f32":
        tiles += config.BK * max(spec.D, spec.Dv)
    return 4 * (tiles + 3 * config.BM)


def default_config(spec: AttentionSpec, target: Target) -> VectorConfig:
    """Tiles for that spec on that target. Raises UnsupportedError where none fit the stack."""
    lanes = target.lanes
    while lanes > min(spec.D, spec.Dv) and lanes > 4:
        lanes //= 2
    many = target.registers >= 32
    vectors = 4 if many and max(spec.D, spec.Dv) <= 96 else 2
    if isinstance(spec.Sq, int):
        vectors = max(1, min(vectors, -(-spec.Sq // lanes)))
    for bk in (64, 32, 16):
        for j in range(vectors, 0, -1):
            accumulators = 24 if many else 12
            rows = {4: 4, 3: 4, 2: 8, 1: 8}[j] if many else {4: 2, 3: 4, 2: 4, 1: 8}[j]
            rows = min(rows, accumulators // j)
            config = VectorConfig(lanes, j * lanes, bk, rows, _divisor(spec.Dv, rows), 8)
            if stack_bytes(spec, config) <= STACK_BYTES:
                return config
    raise UnsupportedError(
        f"vector kernel: head dims D={spec.D}, Dv={spec.Dv} need more than {STACK_BYTES} bytes of stack"
    )


def _divisor(n: int, at_most: int) -> int:
    return next(d for d in range(min(n, at_most), 0, -1) if n % d == 0)


def _varies(spec: AttentionSpec, mask: BoolMask | AddMask) -> tuple[bool, bool]:
    """Whether a tensor mask varies along the queries, and along the keys."""
    shape = (1, 1, *mask.shape)[-2:]
    return shape[0] != 1, shape[1] != 1


def check_supported(spec: AttentionSpec, lanes: int) -> None:
    """Raises UnsupportedError, with the reason, for what this kernel cannot carry."""
    axis_d, axis_s = spec.rank - 1, spec.rank - 2
    if spec.dtype == "f64":
        raise UnsupportedError("vector kernel: f64 operands")
    if min(spec.D, spec.Dv) < 4:
        raise UnsupportedError(f"vector kernel: head dims D={spec.D}, Dv={spec.Dv} below one vector")
    if isinstance(spec.Sq, int) and spec.Sq < min(lanes, 8):
        raise UnsupportedError(f"vector kernel: Sq={spec.Sq} does not fill a vector of {lanes} lanes")
    for name, layout in (("q", spec.q_layout), ("out", spec.o_layout)):
        if layout.index(axis_d) < layout.index(axis_s):
            raise UnsupportedError(f"vector kernel: {name} stored with its head dim before its length")
    for term in spec.masks:
        if isinstance(term, AddMask) and term.dtype == "f64":
            raise UnsupportedError("vector kernel: f64 mask")


class _Text:
    """MLIR text under construction: SSA names, constants (each once, at the top) and loops."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self._constants: dict[str, str] = {}
        self._count = 0

    def name(self) -> str:
        self._count += 1
        return f"%x{self._count}"

    def let(self, operation: str) -> str:
        result = self.name()
        self.lines.append(f"{result} = {operation}")
        return result

    def constant(self, literal: str, type_: str) -> str:
        key = f"arith.constant {literal} : {type_}"
        return self._constants.setdefault(key, f"%k{len(self._constants)}")

    def index(self, value: int) -> str:
        return self.constant(str(value), INDEX)

    def arith(self, op: str, a: str, b: str, type_: str = INDEX) -> str:
        return self.let(f"arith.{op} {a}, {b} : {type_}")

    def loop(
        self,
        bounds: tuple[str, str, str],
        inits: Sequence[tuple[str, str]],
        body: Callable[[str, list[str]], list[str]],
    ) -> list[str]:
        """scf.for over (low, high, step) that carries (value, type) pairs; `body(iv, args)` returns the next values."""
        iv, args = self.name(), [self.name() for _ in inits]
        types = ", ".join(t for _, t in inits)
        result = self.name()
        low, high, step = bounds
        carried = ", ".join(f"{a} = {v}" for a, (v, _) in zip(args, inits, strict=True))
        head = (
            f"{result}:{len(inits)} = scf.for {iv} = {low} to {high} step {step} iter_args({carried}) -> ({types}) {{"
        )
        self.lines.append(head)
        values = body(iv, args)
        self.lines.append(f"scf.yield {', '.join(values)} : {types}")
        self.lines.append("}")
        return [f"{result}#{i}" for i in range(len(inits))]

    def render(self) -> list[str]:
        return [f"{name} = {key}" for key, name in self._constants.items()] + self.lines


@dataclass(frozen=True)
class _Slab:
    """One operand (or mask) of this workgroup's head: a 1-D or 2-D tensor, and how its two axes are ordered."""

    value: str
    type: str
    element: str
    swapped: bool = False


@dataclass(frozen=True)
class _Block:
    """A block of keys: first key, how many loop rows to run (a multiple of RI), and whether positions must be tested."""

    k0: str
    rows: str
    edge: bool


@dataclass(frozen=True)
class _State:
    """What the loops over keys carry: O^T, the score tile, mask tiles, and per vector of queries the maximum and the sum."""

    acc: str
    scores: str
    scratch: tuple[str, ...]
    best: tuple[str, ...]
    total: tuple[str, ...]


def _float(value: float) -> str:
    if math.isinf(value):
        return "0xFF800000" if value < 0 else "0x7F800000"
    return f"{value:.9e}"


def _mlir_dtype(dtype: str) -> str:
    return "i1" if dtype == "bool" else dtype


def _tensor(shape: Sequence[Dim], element: str) -> str:
    return f"tensor<{''.join(f'{d}x' if isinstance(d, int) else '?x' for d in shape)}{element}>"


def _fill(value: float) -> float:
    """A mask's fill in units of log2."""
    return value if math.isinf(value) else max(value, MASK_FLOOR) * LOG2E


def _window(term: Causal | SlidingWindow) -> tuple[int | None, int | None]:
    """(left, right): query at position p keeps keys p - left .. p + right; None is no bound."""
    return (None, 0) if isinstance(term, Causal) else (term.left, term.right)


def _never_empty(spec: AttentionSpec) -> bool:
    """Whether every query surely keeps a key (no tensor masks, index masks of known place that leave one)."""
    if spec.tensor_masks:
        return False
    low, high = -math.inf, math.inf
    for term in spec.masks:
        if not isinstance(term, (Causal, SlidingWindow)):
            continue
        left, right = _window(term)
        if term.offset != "end":
            offset = term.offset
        elif isinstance(spec.Sq, int) and isinstance(spec.Skv, int):
            offset = spec.Skv - spec.Sq
        elif spec.Sq == spec.Skv:
            offset = 0
        else:
            return False
        low = max(low, offset - left) if left is not None else low
        high = min(high, offset + right) if right is not None else high
    if low > high or high < 0:
        return False
    if low == -math.inf:
        return True
    if isinstance(spec.Sq, int) and isinstance(spec.Skv, int):
        return spec.Sq - 1 + low <= spec.Skv - 1
    return spec.Sq == spec.Skv and low <= 0


@dataclass(frozen=True)
class _Skipping:
    """Which index masks may skip blocks, and the maximum at or below which a row needs the skipped keys after all."""

    terms: tuple[int, ...]
    threshold: float | None


def _skipping(spec: AttentionSpec) -> _Skipping:
    """A key outside an index mask may go unvisited where its probability is 0 in every row.

    With fill -inf that is so unless a later mask replaces the score by a finite fill. With a finite fill it is so in each row
    whose maximum is far above the fill: `threshold` says which rows need the rest, None that none can.
    """
    terms: list[int] = []
    fills: list[float] = []
    never_empty = _never_empty(spec)
    for i, term in enumerate(spec.masks):
        if not isinstance(term, (Causal, SlidingWindow)):
            continue
        later = spec.masks[i + 1 :]
        reached = [t.fill for t in (term, *later) if not isinstance(t, AddMask) and math.isfinite(t.fill)]
        if any(f > -1e30 for f in reached) and any(isinstance(t, AddMask) for t in later):
            continue
        terms.append(i)
        if not (never_empty and all(f <= -1e30 for f in reached)):
            fills += [_fill(f) for f in reached]
    return _Skipping(tuple(terms), max(fills) + EXP2_RANGE if fills else None)


class _Emitter:
    """Builds the body of the dispatch for one spec."""

    def __init__(self, spec: AttentionSpec, config: VectorConfig, symbol: str) -> None:
        self.spec, self.config, self.symbol = spec, config, symbol
        self.t = _Text()
        self.vectors = config.BM // config.W
        self.vec = f"vector<{config.W}xf32>"
        self.ivec = f"vector<{config.W}xi32>"
        self.bvec = f"vector<{config.W}xi1>"
        self.qT_type = _tensor((spec.D, config.BM), "f32")
        self.acc_type = _tensor((spec.Dv, config.BM), "f32")
        self.tile_type = _tensor((config.BK, config.BM), "f32")
        self.row_type = _tensor((config.BM,), "f32")
        self.dims = {s: f"%dim{i}" for i, s in enumerate(spec.symbols)}
        self.ragged_keys = not (isinstance(spec.Skv, int) and spec.Skv % config.BK == 0)
        self.few_queries = not (isinstance(spec.Sq, int) and spec.Sq >= config.BM)
        self.skipping = _skipping(spec)
        self.widen = spec.dtype != "f32"
        self.tiled = [_varies(spec, m) == (True, True) for m in spec.tensor_masks]

    # Small pieces.

    def dim(self, d: Dim) -> str:
        return self.t.index(d) if isinstance(d, int) else self.dims[d]

    def splat(self, value: float) -> str:
        return self.t.constant(f"dense<{_float(value)}>", self.vec)

    def scalar(self, value: float) -> str:
        return self.t.constant(_float(value), "f32")

    def vop(self, op: str, *operands: str) -> str:
        return self.t.let(f"{op} {', '.join(operands)} : {self.vec}")

    def fma(self, a: str, b: str, c: str) -> str:
        return self.vop("vector.fma", a, b, c)

    def select(self, condition: str, a: str, b: str) -> str:
        return self.t.let(f"arith.select {condition}, {a}, {b} : {self.bvec}, {self.vec}")

    def compare(self, predicate: str, a: str, b: str) -> str:
        return self.t.let(f"arith.cmpf {predicate}, {a}, {b} : {self.vec}")

    def maximum(self, a: str, b: str) -> str:
        """a > b ? a : b, one instruction on most machines: yields b where either is NaN."""
        return self.select(self.compare("ogt", a, b), a, b)

    def broadcast(self, scalar: str, type_: str = "f32") -> str:
        return self.t.let(f"vector.broadcast {scalar} : {type_} to vector<{self.config.W}x{type_}>")

    def read(self, tensor: str, type_: str, *indices: str) -> str:
        zero = self.scalar(0.0)
        return self.t.let(
            f"vector.transfer_read {tensor}[{', '.join(indices)}], {zero} {{in_bounds = [true]}} : {type_}, {self.vec}"
        )

    def write(self, value: str, tensor: str, type_: str, *indices: str) -> str:
        return self.t.let(
            f"vector.transfer_write {value}, {tensor}[{', '.join(indices)}] {{in_bounds = [true]}} : {self.vec}, {type_}"
        )

    def shifted(self, base: str, by: int) -> str:
        return base if by == 0 else self.t.arith("addi", base, self.t.index(by))

    def lane(self, j: int) -> str:
        return self.t.index(j * self.config.W)

    def exp2(self, x: str) -> str:
        """2^x for x <= 0: exact 0 below -126 and at -inf, NaN stays NaN.

        Adding 1.5 * 2^23 rounds x to an integer n in the low bits of the sum; shifted to the exponent's place and added as an
        integer it scales the polynomial in x - n by 2^n.
        """
        magic = self.splat(12582912.0)
        rounded = self.vop("arith.addf", x, magic)
        r = self.vop("arith.subf", x, self.vop("arith.subf", rounded, magic))
        p = self.splat(EXP2_POLYNOMIAL[-1])
        for c in reversed(EXP2_POLYNOMIAL[:-1]):
            p = self.fma(p, r, self.splat(c))
        bits = self.t.let(f"arith.bitcast {p} : {self.vec} to {self.ivec}")
        power = self.t.let(f"arith.bitcast {rounded} : {self.vec} to {self.ivec}")
        power = self.t.arith("shli", power, self.t.constant("dense<23>", self.ivec), self.ivec)
        scaled = self.t.let(f"arith.bitcast {self.t.arith('addi', bits, power, self.ivec)} : {self.ivec} to {self.vec}")
        return self.select(self.compare("olt", x, self.splat(-126.0)), self.splat(0.0), scaled)

    def transpose(self, rows: list[str]) -> list[str]:
        """W vectors of W lanes, transposed, in shuffles that are one instruction each."""
        w = self.config.W

        def pair(a: str, b: str, mask: list[int]) -> str:
            return self.t.let(f"vector.shuffle {a}, {b} {mask} : {self.vec}, {self.vec}")

        def unpack(a: str, b: str, unit: int, high: bool) -> str:
            """Interleaves units of lanes within each group of four lanes."""
            mask: list[int] = []
            for group in range(0, w, 4):
                for u in range(2 // unit):
                    start = group + 2 * high + u * unit
                    mask += [*range(start, start + unit), *range(w + start, w + start + unit)]
            return pair(a, b, mask)

        # Within groups of four lanes: afterwards rows[4 i + c], group g, holds column 4 g + c of rows 4 i .. 4 i + 3.
        out: list[str] = []
        for i in range(0, w, 4):
            r = rows[i : i + 4]
            a, b = unpack(r[0], r[1], 1, False), unpack(r[0], r[1], 1, True)
            c, d = unpack(r[2], r[3], 1, False), unpack(r[2], r[3], 1, True)
            out += [unpack(a, c, 2, False), unpack(a, c, 2, True), unpack(b, d, 2, False), unpack(b, d, 2, True)]
        # Then a transpose of the groups, for each c.
        groups = w // 4
        result = list(out)
        for c in range(4):
            column = [out[4 * i + c] for i in range(groups)]
            if groups == 2:
                a, b = column
                column = [pair(a, b, [0, 1, 2, 3, 8, 9, 10, 11]), pair(a, b, [4, 5, 6, 7, 12, 13, 14, 15])]
            elif groups == 4:
                low, high = list(range(8)), list(range(8, 16))
                x = [pair(column[i], column[i + 1], [*h, *(16 + e for e in h)]) for h in (low, high) for i in (0, 2)]
                even, odd = [0, 1, 2, 3, 8, 9, 10, 11], [4, 5, 6, 7, 12, 13, 14, 15]
                column = [
                    pair(a, b, [*h, *(16 + e for e in h)]) for a, b in ((x[0], x[1]), (x[2], x[3])) for h in (even, odd)
                ]
            for g in range(groups):
                result[4 * g + c] = column[g]
        return result

    # Where this workgroup is, and its operands.

    def positions(self) -> None:
        t, spec, config = self.t, self.spec, self.config
        wx = t.let("flow.dispatch.workgroup.id[0] : index")
        rest = t.let("flow.dispatch.workgroup.id[1] : index")
        self.axes: list[str] = []
        for d in reversed((*spec.batch, spec.Hq)):
            self.axes.insert(0, t.arith("remui", rest, self.dim(d)))
            rest = t.arith("divui", rest, self.dim(d))
        self.m0 = t.arith("muli", wx, t.index(config.BM))
        self.sq, self.skv = self.dim(spec.Sq), self.dim(spec.Skv)
        if not (isinstance(spec.Sq, int) and spec.Sq % config.BM == 0):
            # The last workgroup moves back to end at the last query; rows shared with its neighbour come out the same.
            back = t.arith("maxsi", t.arith("subi", self.sq, t.index(config.BM)), t.index(0))
            self.m0 = t.arith("minsi", self.m0, back)
        self.rows = t.index(config.BM)
        if self.few_queries:
            self.rows = t.arith("minsi", t.arith("subi", self.sq, self.m0), t.index(config.BM))
        self.last_row = t.arith("subi", self.rows, t.index(1))

    def query_row(self, row: str) -> str:
        """Rows past the last query stand for the last query, which is then computed several times over."""
        return self.t.arith("minsi", row, self.last_row) if self.few_queries else row

    def slab(
        self, arg: str, layout: tuple[int, ...], shape: tuple[Dim, ...], element: str, rows: tuple[str, Dim, str]
    ) -> _Slab:
        """The 2-D part of q, k, v or out that this workgroup's head reads; `rows` is (first row, static size, size)."""
        spec = self.spec
        head = self.axes[-1]
        if arg in ("%ki", "%vi") and spec.group > 1:
            head = self.t.arith("divui", head, self.t.index(spec.group))
        zero, one = self.t.index(0), self.t.index(1)
        width = shape[-1]
        where = {**{i: (a, one) for i, a in enumerate((*self.axes[:-1], head))}}
        where[spec.rank - 2] = (rows[0], rows[2])
        where[spec.rank - 1] = (zero, self.t.index(int(width)))
        static: dict[int, Dim] = {spec.rank - 2: rows[1], spec.rank - 1: width}
        swapped = layout.index(spec.rank - 1) < layout.index(spec.rank - 2)
        stored = tuple(shape[a] for a in layout)
        kind = "writeonly" if arg == "%oi" else "readonly"
        sizes = [
            str(static[a]) if isinstance(static.get(a, "?"), int) else (where[a][1] if a in static else "1")
            for a in layout
        ]
        result = _tensor(tuple(static[a] for a in layout if a in static), element)
        value = self.load(arg, kind, stored, element, [where[a][0] for a in layout], sizes, result)
        return _Slab(value, result, element, swapped)

    def dispatch_type(self, kind: str, stored: Sequence[Dim], element: str) -> str:
        return f"!iree_tensor_ext.dispatch.tensor<{kind}:{_tensor(stored, element)}>"

    def tied(self, stored: Sequence[Dim]) -> str:
        dynamic = [self.dims[d] for d in stored if isinstance(d, str)]
        return f"{{{', '.join(dynamic)}}}" if dynamic else ""

    def load(
        self,
        arg: str,
        kind: str,
        stored: Sequence[Dim],
        element: str,
        offsets: list[str],
        sizes: list[str],
        result: str,
    ) -> str:
        strides = ", ".join(["1"] * len(stored))
        return self.t.let(
            f"iree_tensor_ext.dispatch.tensor.load {arg}, offsets = [{', '.join(offsets)}], sizes = [{', '.join(sizes)}], "
            f"strides = [{strides}] : {self.dispatch_type(kind, stored, element)}{self.tied(stored)} -> {result}"
        )

    def mask_slab(self, i: int, mask: BoolMask | AddMask) -> _Slab:
        """A tensor mask of this workgroup's head: Sq x Skv, or the one axis it varies along, or one element."""
        spec = self.spec
        shape = mask.shape
        lead = [*self.axes, "", ""][spec.rank - len(shape) :]
        by_q, by_k = _varies(spec, mask)
        offsets, sizes, kept = [], [], []
        for axis, d in enumerate(shape):
            from_end = len(shape) - axis
            if from_end <= 2:
                whole = by_k if from_end == 1 else by_q
                offsets.append(self.t.index(0))
                sizes.append((str(d) if isinstance(d, int) else self.dim(d)) if whole else "1")
                if whole:
                    kept.append(d)
            else:
                offsets.append(self.t.index(0) if d == 1 else lead[axis])
                sizes.append("1")
        element = "i8" if isinstance(mask, BoolMask) else mask.dtype
        result = _tensor(kept or (1,), element)
        return _Slab(self.load(f"%mask{i}", "readonly", shape, element, offsets, sizes, result), result, element)

    # Masks as values.

    def extract(self, slab: _Slab, *indices: str) -> str:
        if slab.swapped:
            indices = indices[::-1]
        return self.t.let(f"tensor.extract {slab.value}[{', '.join(indices)}] : {slab.type}")

    def to_f32(self, value: str, element: str, shape: str = "") -> str:
        """A scalar (or, with a shape such as "16x", a vector) of that element type as f32."""
        dest = f"vector<{shape}f32>" if shape else "f32"
        source = f"vector<{shape}{element}>" if shape else element
        if element == "f32":
            return value
        op = "arith.uitofp" if element == "i8" else "arith.extf"
        return self.t.let(f"{op} {value} : {source} to {dest}")

    def prepare_mask(self, mask: BoolMask | AddMask, value: str) -> str:
        """A vector of mask elements as the kernel uses them: booleans as 0 / 1, additive ones clamped, in units of log2."""
        if isinstance(mask, BoolMask):
            return value
        if mask.factor != 1.0:
            value = self.vop("arith.mulf", value, self.splat(mask.factor))
        floor = self.splat(MASK_FLOOR)
        finite = self.compare("one", value, self.splat(-math.inf))
        low = self.compare("olt", value, floor)
        both = self.t.let(f"arith.andi {finite}, {low} : {self.bvec}")
        return self.vop("arith.mulf", self.select(both, floor, value), self.splat(LOG2E))

    def apply_mask(self, mask: BoolMask | AddMask, score: str, value: str) -> str:
        if isinstance(mask, AddMask):
            return self.vop("arith.addf", score, value)
        keep = self.compare("one", value, self.splat(0.0))
        return self.select(keep, score, self.splat(_fill(mask.fill)))

    def mask_tile(self, i: int, mask: BoolMask | AddMask, tile: str, block: _Block) -> str:
        """Reads a block of an Sq x Skv mask with queries along the lanes."""
        t, config, slab = self.t, self.config, self.masks[i]
        w = config.W
        narrow = f"vector<{w}x{slab.element}>"
        pad = t.constant("0", "i8") if slab.element == "i8" else t.constant("0.0", slab.element)
        inside = "false" if self.ragged_keys and block.edge else "true"

        def keys(key: str, args: list[str]) -> list[str]:
            column = t.arith("addi", block.k0, key)

            def queries(row: str, args: list[str]) -> list[str]:
                vectors = []
                for lane in range(w):
                    at = t.arith("addi", self.m0, self.query_row(self.shifted(row, lane)))
                    x = t.let(
                        f"vector.transfer_read {slab.value}[{at}, {column}], {pad} {{in_bounds = [{inside}]}} : {slab.type}, {narrow}"
                    )
                    vectors.append(self.prepare_mask(mask, self.to_f32(x, slab.element, f"{w}x")))
                out = args[0]
                for lane, x in enumerate(self.transpose(vectors)):
                    out = self.write(x, out, self.tile_type, self.shifted(key, lane), row)
                return [out]

            return t.loop((t.index(0), t.index(config.BM), t.index(w)), [(args[0], self.tile_type)], queries)

        rows = block.rows if block.edge else t.index(config.BK)
        return t.loop((t.index(0), rows, t.index(w)), [(tile, self.tile_type)], keys)[0]

    def row_vectors(self, mask: BoolMask | AddMask, slab: _Slab) -> list[str]:
        """A mask that varies along the queries only (or not at all), as one vector per vector of queries."""
        t, config = self.t, self.config
        if not _varies(self.spec, mask)[0]:
            value = self.broadcast(self.to_f32(self.extract(slab, t.index(0)), slab.element))
            return [self.prepare_mask(mask, value)] * self.vectors

        def body(row: str, args: list[str]) -> list[str]:
            at = t.arith("addi", self.m0, self.query_row(row))
            value = self.to_f32(self.extract(slab, at), slab.element)
            return [t.let(f"tensor.insert {value} into {args[0]}[{row}] : {self.row_type}")]

        empty = t.let(f"tensor.empty() : {self.row_type}")
        rows = t.loop((t.index(0), t.index(config.BM), t.index(1)), [(empty, self.row_type)], body)[0]
        return [self.prepare_mask(mask, self.read(rows, self.row_type, self.lane(j))) for j in range(self.vectors)]

    # The dispatch.

    def load_queries(self, q: _Slab) -> str:
        """Q^T, scaled: D x BM."""
        t, spec, w = self.t, self.spec, self.config.W
        cap = spec.mods[0].cap if spec.mods else None
        scale = self.splat(spec.scale / cap if cap else spec.scale * LOG2E)
        zero, element = t.constant("0.0", q.element), f"vector<{w}x{q.element}>"

        def body(row: str, d0: str, out: str) -> str:
            rows = []
            for lane in range(w):
                at = self.query_row(self.shifted(row, lane))
                x = t.let(
                    f"vector.transfer_read {q.value}[{at}, {d0}], {zero} {{in_bounds = [true]}} : {q.type}, {element}"
                )
                rows.append(self.vop("arith.mulf", self.to_f32(x, q.element, f"{w}x"), scale))
            for lane, x in enumerate(self.transpose(rows)):
                out = self.write(x, out, self.qT_type, self.shifted(d0, lane), row)
            return out

        return self.over_tiles(spec.D, t.let(f"tensor.empty() : {self.qT_type}"), self.qT_type, body)

    def over_tiles(self, width: int, init: str, type_: str, body: Callable[[str, str, str], str]) -> str:
        """body(row, head dim, tensor) over W x W tiles of BM x width; the last tile overlaps where W does not divide."""
        t, w = self.t, self.config.W
        zero, step = t.index(0), t.index(w)

        def rows(row: str, args: list[str]) -> list[str]:
            whole = t.index(width - width % w)
            out = t.loop((zero, whole, step), [(args[0], type_)], lambda d0, a: [body(row, d0, a[0])])
            return [body(row, t.index(width - w), out[0])] if width % w else out

        return t.loop((zero, t.index(self.config.BM), step), [(init, type_)], rows)[0]

    def store_output(self, o: _Slab, acc: str, total: tuple[str, ...]) -> str:
        """O = (O^T / l)^T, into the output's rows."""
        t, spec, w = self.t, self.spec, self.config.W
        inverse = t.let(f"tensor.empty() : {self.row_type}")
        sums = t.let(f"tensor.empty() : {self.row_type}")
        for j, total_j in enumerate(total):
            reciprocal = self.vop("arith.divf", self.splat(1.0), total_j)
            inverse = self.write(reciprocal, inverse, self.row_type, self.lane(j))
            if spec.empty_row == "zero":
                sums = self.write(total_j, sums, self.row_type, self.lane(j))
        element = f"vector<{w}x{o.element}>"

        def body(row: str, d0: str, out: str) -> str:
            scale = self.read(inverse, self.row_type, row)
            columns = []
            for lane in range(w):
                x = self.read(acc, self.acc_type, self.shifted(d0, lane), row)
                x = self.vop("arith.mulf", x, scale)
                if spec.empty_row == "zero":
                    some = self.compare("ogt", self.read(sums, self.row_type, row), self.splat(0.0))
                    x = self.select(some, x, self.splat(0.0))
                columns.append(x)
            for lane, x in enumerate(self.transpose(columns)):
                if o.element != "f32":
                    x = t.let(f"arith.truncf {x} : {self.vec} to {element}")
                at = self.query_row(self.shifted(row, lane))
                out = t.let(
                    f"vector.transfer_write {x}, {out}[{at}, {d0}] {{in_bounds = [true]}} : {element}, {o.type}"
                )
            return out

        return self.over_tiles(spec.Dv, o.value, o.type, body)

    def fma_tile(
        self,
        rows: int,
        steps: tuple[int, str],
        unroll: int,
        scalar: Callable[[int, str], str],
        right: str,
        right_type: str,
        init: Callable[[int, int], str],
    ) -> list[list[str]]:
        """rows x BM accumulators in registers: init + sum over steps k of scalar(row, k) * right[k, queries]."""
        t, n = self.t, self.vectors

        def body(k: str, acc: list[str]) -> list[str]:
            acc = list(acc)
            for u in range(unroll):
                at = self.shifted(k, u)
                vectors = [self.read(right, right_type, at, self.lane(j)) for j in range(n)]
                for i in range(rows):
                    b = self.broadcast(scalar(i, at))
                    for j in range(n):
                        acc[i * n + j] = self.fma(b, vectors[j], acc[i * n + j])
            return acc

        inits = [(init(i, j), self.vec) for i in range(rows) for j in range(n)]
        out = t.loop((t.index(0), steps[1], t.index(unroll)), inits, body)
        return [out[i * n : (i + 1) * n] for i in range(rows)]

    def score(self, term_values: list[list[str] | None], raw: str, i: str, key: str, j: int, block: _Block) -> str:
        """What the softmax sees, in units of log2, for one vector of queries and one key."""
        t, spec = self.t, self.spec
        s = raw
        for mod, following in zip(spec.mods, (*spec.mods[1:], None), strict=False):
            s = self.vop("math.tanh", s)
            s = self.vop("arith.mulf", s, self.splat(mod.cap / following.cap if following else mod.cap * LOG2E))
        for term, values in zip(spec.masks, term_values, strict=True):
            if values is not None and isinstance(term, (BoolMask, AddMask)):
                s = self.apply_mask(term, s, values[j])
            elif isinstance(term, (Causal, SlidingWindow)) and block.edge:
                s = self.index_mask(term, s, key, j)
        if block.edge and self.ragged_keys:
            keep = t.arith("cmpi slt,", key, self.skv)
            bias = t.let(f"arith.select {keep}, {self.scalar(0.0)}, {self.scalar(-math.inf)} : f32")
            s = self.vop("arith.addf", s, self.broadcast(bias))
        return s

    def offset(self, term: Causal | SlidingWindow) -> str:
        return self.t.arith("subi", self.skv, self.sq) if term.offset == "end" else self.t.index(term.offset)

    def index_mask(self, term: Causal | SlidingWindow, s: str, key: str, j: int) -> str:
        t = self.t
        position = self.query_positions[j]
        distance = t.let(f"arith.index_cast {t.arith('subi', key, self.offset(term))} : index to i32")
        left, right = _window(term)
        keep: list[str] = []
        if right is not None:
            limit = self.broadcast(t.arith("subi", distance, t.constant(str(right), I32), I32), I32)
            keep.append(t.let(f"arith.cmpi sle, {limit}, {position} : {self.ivec}"))
        if left is not None:
            limit = self.broadcast(t.arith("addi", distance, t.constant(str(left), I32), I32), I32)
            keep.append(t.let(f"arith.cmpi sge, {limit}, {position} : {self.ivec}"))
        for condition in keep:
            s = self.select(condition, s, self.splat(_fill(term.fill)))
        return s

    def block(self, state: _State, block: _Block) -> _State:
        """One block of keys: scores, probabilities, output."""
        t, spec, config, n = self.t, self.spec, self.config, self.vectors
        zero = t.index(0)
        rows = block.rows if block.edge else t.index(config.BK)
        clamp = block.edge and self.ragged_keys
        last_key = t.arith("subi", self.skv, t.index(1)) if clamp else ""
        scratch = list(state.scratch)
        tile_of: dict[int, str] = {}
        for i, mask in enumerate(spec.tensor_masks):
            if self.tiled[i]:
                slot = sum(self.tiled[:i])
                scratch[slot] = tile_of[i] = self.mask_tile(i, mask, scratch[slot], block)

        def key_of(i: str, r: int) -> tuple[str, str]:
            """(key, row of the slab to read for it)"""
            key = t.arith("addi", block.k0, self.shifted(i, r))
            return key, (t.arith("minsi", key, last_key) if clamp else key)

        k_scratch = sum(self.tiled)
        k_slab, k_row = self.k, key_of
        if self.widen:
            scratch[k_scratch] = self.widen_block(self.k, spec.D, scratch[k_scratch], rows, key_of)

        def scores(i: str, args: list[str]) -> list[str]:
            tile, best = args[0], list(args[1:])
            keys = [key_of(i, r) for r in range(config.RI)]
            local = [self.shifted(i, r) for r in range(config.RI)]

            def scalar(r: int, d: str) -> str:
                if self.widen:
                    return t.let(f"tensor.extract {scratch[k_scratch]}[{local[r]}, {d}] : {self.wide_type}")
                return self.extract(k_slab, keys[r][1], d)

            unroll = math.gcd(config.U, spec.D)
            out = self.fma_tile(
                config.RI,
                (spec.D, t.index(spec.D)),
                unroll,
                scalar,
                self.qT,
                self.qT_type,
                lambda r, j: self.splat(0.0),
            )
            for r in range(config.RI):
                values = self.mask_values(local[r], keys[r][1], tile_of)
                for j in range(n):
                    s = self.score(values, out[r][j], local[r], keys[r][0], j, block)
                    tile = self.write(s, tile, self.tile_type, local[r], self.lane(j))
                    best[j] = self.maximum(s, best[j])
            return [tile, *best]

        carried = [(state.scores, self.tile_type), *((b, self.vec) for b in state.best)]
        tile, *best = t.loop((zero, rows, t.index(config.RI)), carried, scores)

        decay = [self.exp2(self.vop("arith.subf", old, new)) for old, new in zip(state.best, best, strict=True)]
        total = [self.vop("arith.mulf", l, a) for l, a in zip(state.total, decay, strict=True)]

        def probabilities(i: str, args: list[str]) -> list[str]:
            tile, total = args[0], list(args[1:])
            for j in range(n):
                s = self.read(tile, self.tile_type, i, self.lane(j))
                p = self.exp2(self.vop("arith.subf", s, best[j]))
                total[j] = self.vop("arith.addf", total[j], p)
                tile = self.write(p, tile, self.tile_type, i, self.lane(j))
            return [tile, *total]

        carried = [(tile, self.tile_type), *((l, self.vec) for l in total)]
        tile, *total = t.loop((zero, rows, t.index(1)), carried, probabilities)

        if self.widen:
            scratch[k_scratch] = self.widen_block(self.v, spec.Dv, scratch[k_scratch], rows, k_row)

        def output(d: str, args: list[str]) -> list[str]:
            acc = args[0]
            columns = [self.shifted(d, r) for r in range(config.RN)]
            old = [[self.read(acc, self.acc_type, c, self.lane(j)) for j in range(n)] for c in columns]
            scaled = [[self.vop("arith.mulf", x, decay[j]) for j, x in enumerate(row)] for row in old]

            def scalar(r: int, i: str) -> str:
                if self.widen:
                    return t.let(f"tensor.extract {scratch[k_scratch]}[{i}, {columns[r]}] : {self.wide_type}")
                return self.extract(self.v, key_of(i, 0)[1], columns[r])

            unroll = math.gcd(config.RI, config.U) if block.edge else math.gcd(config.U, config.BK)
            out = self.fma_tile(
                config.RN, (config.BK, rows), unroll, scalar, tile, self.tile_type, lambda r, j: scaled[r][j]
            )
            for r in range(config.RN):
                for j in range(n):
                    acc = self.write(out[r][j], acc, self.acc_type, columns[r], self.lane(j))
            return [acc]

        carried = [(state.acc, self.acc_type)]
        acc = t.loop((zero, t.index(spec.Dv), t.index(config.RN)), carried, output)[0]
        return _State(acc, tile, tuple(scratch), tuple(best), tuple(total))

    def widen_block(
        self, slab: _Slab, width: int, tile: str, rows: str, key_of: Callable[[str, int], tuple[str, str]]
    ) -> str:
        """Copies a block of K or V to f32, once per block instead of once per use."""
        t, w = self.t, self.config.W
        narrow, zero = f"vector<{w}x{slab.element}>", t.constant("0.0", slab.element)

        def copy(i: str, row: str, d: str, out: str) -> str:
            if slab.swapped:
                x = self.to_f32(self.extract(slab, row, d), slab.element)
                return t.let(f"tensor.insert {x} into {out}[{i}, {d}] : {self.wide_type}")
            x = t.let(
                f"vector.transfer_read {slab.value}[{row}, {d}], {zero} {{in_bounds = [true]}} : {slab.type}, {narrow}"
            )
            return self.write(self.to_f32(x, slab.element, f"{w}x"), out, self.wide_type, i, d)

        def body(i: str, args: list[str]) -> list[str]:
            row = key_of(i, 0)[1]
            step = 1 if slab.swapped else w
            whole = t.index(width - width % step)
            out = t.loop(
                (t.index(0), whole, t.index(step)),
                [(args[0], self.wide_type)],
                lambda d, a: [copy(i, row, d, a[0])],
            )
            return [copy(i, row, t.index(width - w), out[0])] if width % step else out

        return t.loop((t.index(0), rows, t.index(1)), [(tile, self.wide_type)], body)[0]

    def mask_values(self, i: str, key: str, tiles: dict[int, str]) -> list[list[str] | None]:
        """For each mask term, its vectors at one key (None for index masks)."""
        values: list[list[str] | None] = []
        tensors = 0
        for term in self.spec.masks:
            if not isinstance(term, (BoolMask, AddMask)):
                values.append(None)
                continue
            if tensors in tiles:
                tile = tiles[tensors]
                values.append([self.read(tile, self.tile_type, i, self.lane(j)) for j in range(self.vectors)])
            elif _varies(self.spec, term)[1]:
                slab = self.masks[tensors]
                value = self.broadcast(self.to_f32(self.extract(slab, key), slab.element))
                values.append([self.prepare_mask(term, value)] * self.vectors)
            else:
                values.append(self.row_masks[tensors])
            tensors += 1
        return values

    # Which keys, in which blocks.

    def ceil_blocks(self, low: str, high: str) -> str:
        """How many blocks of BK cover [low, high); none if it is empty."""
        t, bk = self.t, self.config.BK
        length = t.arith("maxsi", t.arith("subi", high, low), t.index(0))
        return t.arith("divui", self.shifted(length, bk - 1), t.index(bk))

    def bounds(self) -> tuple[str, str, str, str]:
        """(first, full_first, full_end, end): keys to visit, and among them the blocks that need no test of positions."""
        t, bk = self.t, self.config.BK
        zero = t.index(0)
        first, end, full_first, full_end = zero, self.skv, zero, self.skv
        last = t.arith("addi", self.m0, self.last_row)
        for i, term in enumerate(self.spec.masks):
            if not isinstance(term, (Causal, SlidingWindow)):
                continue
            left, right = _window(term)
            offset = self.offset(term)
            skips = i in self.skipping.terms
            if right is not None:
                reach = t.arith("addi", offset, t.index(right + 1))
                full_end = t.arith("minsi", full_end, t.arith("addi", self.m0, reach))
                if skips:
                    end = t.arith("minsi", end, t.arith("addi", last, reach))
            if left is not None:
                reach = t.arith("subi", offset, t.index(left))
                full_first = t.arith("maxsi", full_first, t.arith("addi", last, reach))
                if skips:
                    first = t.arith("maxsi", first, t.arith("addi", self.m0, reach))
        block = t.index(bk)

        def floor(x: str) -> str:
            return t.arith("muli", t.arith("divui", x, block), block)

        if end != self.skv:
            end = t.arith("maxsi", end, zero)
        if first != zero:
            first = floor(t.arith("minsi", first, self.skv))
        if full_end != self.skv or self.ragged_keys:
            full_end = floor(t.arith("maxsi", full_end, zero))
        if full_first != zero:
            full_first = floor(self.shifted(t.arith("minsi", full_first, end), bk - 1))
            full_end = t.arith("maxsi", full_end, full_first)
        return first, full_first, full_end, end

    def carried(self, state: _State) -> list[tuple[str, str]]:
        return [
            (state.acc, self.acc_type),
            (state.scores, self.tile_type),
            *zip(state.scratch, self.scratch_types, strict=True),
            *((x, self.vec) for x in (*state.best, *state.total)),
        ]

    def unpack(self, values: list[str]) -> _State:
        s, n = len(self.scratch_types), self.vectors
        rest = values[2 + s :]
        return _State(values[0], values[1], tuple(values[2 : 2 + s]), tuple(rest[:n]), tuple(rest[n:]))

    def pack(self, state: _State) -> list[str]:
        return [v for v, _ in self.carried(state)]

    def edge_loop(self, state: _State, ranges: list[tuple[str, str]]) -> _State:
        """Visits blocks of up to two ranges of keys, each possibly shorter than a block at its end, testing positions."""
        t, config = self.t, self.config
        block = t.index(config.BK)
        counts = [self.ceil_blocks(low, high) for low, high in ranges]
        number = counts[0] if len(counts) == 1 else t.arith("addi", counts[0], counts[1])

        def body(step: str, args: list[str]) -> list[str]:
            low, high = ranges[0]
            at = step
            if len(ranges) == 2:
                second = t.arith("cmpi sge,", step, counts[0])
                low, high = (
                    t.let(f"arith.select {second}, {b}, {a} : index") for a, b in zip(ranges[0], ranges[1], strict=True)
                )
                later = t.arith("subi", step, counts[0])
                at = t.let(f"arith.select {second}, {later}, {step} : index")
            k0 = t.arith("addi", low, t.arith("muli", at, block))
            keys = t.arith("minsi", t.arith("subi", high, k0), block)
            ri = t.index(config.RI)
            rows = t.arith("muli", t.arith("ceildivui", keys, ri), ri)
            return self.pack(self.block(self.unpack(args), _Block(k0, rows, True)))

        return self.unpack(t.loop((t.index(0), number, t.index(1)), self.carried(state), body))

    def all_keys(self, state: _State) -> _State:
        t = self.t
        zero = t.index(0)
        first, full_first, full_end, end = self.bounds()

        def full(k0: str, args: list[str]) -> list[str]:
            return self.pack(self.block(self.unpack(args), _Block(k0, "", False)))

        state = self.unpack(t.loop((full_first, full_end, t.index(self.config.BK)), self.carried(state), full))
        ranges = []
        if full_first != zero:
            ranges.append((first, full_first))
        if full_end != self.skv or end != self.skv:
            ranges.append((full_end, end))
        if ranges:
            state = self.edge_loop(state, ranges)
        if self.skipping.threshold is not None and (first != zero or end != self.skv):
            # A finite fill counts in rows that nothing else reaches: if there is such a row, visit what was skipped.
            limit = self.scalar(self.skipping.threshold)
            lowest = state.best[0]
            for b in state.best[1:]:
                lowest = self.select(self.compare("olt", b, lowest), b, lowest)
            least = t.let(f"vector.reduction <minnumf>, {lowest} : {self.vec} into f32")
            needed = t.let(f"arith.cmpf ole, {least}, {limit} : f32")
            skipped = [(zero, first)] if first != zero else []
            skipped += [(end, self.skv)] if end != self.skv else []
            ranges = [(a, t.let(f"arith.select {needed}, {b}, {a} : index")) for a, b in skipped]
            state = self.edge_loop(state, ranges)
        return state

    def body(self) -> list[str]:
        t, spec, config = self.t, self.spec, self.config
        q_shape, k_shape, v_shape, o_shape = spec.canonical_shapes
        self.positions()
        n_rows: Dim = "rows" if self.few_queries else config.BM
        q = self.slab("%qi", spec.q_layout, q_shape, spec.dtype, (self.m0, n_rows, self.rows))
        keys = (t.index(0), spec.Skv, self.skv)
        self.k = self.slab("%ki", spec.k_layout, k_shape, spec.dtype, keys)
        self.v = self.slab("%vi", spec.v_layout, v_shape, spec.dtype, keys)
        self.masks = [self.mask_slab(i, m) for i, m in enumerate(spec.tensor_masks)]
        self.row_masks = {
            i: self.row_vectors(m, self.masks[i]) for i, m in enumerate(spec.tensor_masks) if not _varies(spec, m)[1]
        }
        if any(isinstance(m, (Causal, SlidingWindow)) for m in spec.masks):
            self.query_positions = []
            step = t.let(f"vector.step : vector<{config.W}xindex>")
            step = t.let(f"arith.index_cast {step} : vector<{config.W}xindex> to {self.ivec}")
            first = t.let(f"arith.index_cast {self.m0} : index to i32")
            last = t.let(f"arith.index_cast {t.arith('subi', self.sq, t.index(1))} : index to i32")
            for j in range(self.vectors):
                base = self.broadcast(t.arith("addi", first, t.constant(str(j * config.W), I32), I32), I32)
                position = t.arith("addi", base, step, self.ivec)
                if self.few_queries:
                    position = t.arith("minsi", position, self.broadcast(last, I32), self.ivec)
                self.query_positions.append(position)
        self.qT = self.load_queries(q)
        acc = t.let(f"tensor.empty() : {self.acc_type}")
        acc = t.let(
            f"linalg.fill {{lowering_config = {CPU_CONFIG}}} ins({self.scalar(0.0)} : f32) outs({acc} : {self.acc_type}) -> {self.acc_type}"
        )
        self.wide_type = _tensor((config.BK, max(spec.D, spec.Dv)), "f32")
        self.scratch_types = [self.tile_type] * sum(self.tiled) + [self.wide_type] * self.widen
        scratch = tuple(t.let(f"tensor.empty() : {s}") for s in self.scratch_types)
        scores = t.let(f"tensor.empty() : {self.tile_type}")
        state = _State(acc, scores, scratch, (self.splat(MAX_START),) * self.vectors, (self.splat(0.0),) * self.vectors)
        state = self.all_keys(state)
        o = self.slab("%oi", spec.o_layout, o_shape, spec.dtype, (self.m0, n_rows, self.rows))
        result = self.store_output(o, state.acc, state.total)
        self.store(result, o, n_rows)
        return t.render()

    def store(self, value: str, o: _Slab, n_rows: Dim) -> None:
        spec = self.spec
        stored = spec.out_shape
        offsets, sizes = [], []
        for a in spec.o_layout:
            if a == spec.rank - 2:
                offsets.append(self.m0)
                sizes.append(str(n_rows) if isinstance(n_rows, int) else self.rows)
            elif a == spec.rank - 1:
                offsets.append(self.t.index(0))
                sizes.append(str(spec.Dv))
            else:
                offsets.append(self.axes[a])
                sizes.append("1")
        strides = ", ".join(["1"] * len(stored))
        kind = self.dispatch_type("writeonly", stored, o.element)
        self.t.lines.append(
            f"iree_tensor_ext.dispatch.tensor.store {value}, %oi, offsets = [{', '.join(offsets)}], "
            f"sizes = [{', '.join(sizes)}], strides = [{strides}] : {o.type} -> {kind}{self.tied(stored)}"
        )


CPU_CONFIG = (
    "#iree_cpu.lowering_config<distribution = [0, 0], vector_common_parallel = [0, 0], vector_reduction = [0, 0]>"
)
TRANSLATION = "#iree_codegen.translation_info<pipeline = #iree_cpu.pipeline<LinalgExtTileAndVectorize>>"


def emit_vector(spec: AttentionSpec, target: Target, name: str, config: VectorConfig | None = None) -> Kernel:
    """The kernel of one site as a dispatch of vector code, for llvm-cpu targets.

    Raises UnsupportedError with the reason where the spec, or the tiles, do not fit.
    """
    if target.backend != "llvm-cpu":
        raise UnsupportedError(f"vector kernel: target {target.name} is not a CPU")
    check_supported(spec, target.lanes)
    config = config or default_config(spec, target)
    if spec.Dv % config.RN:
        raise UnsupportedError(f"vector kernel: RN={config.RN} does not divide Dv={spec.Dv}")
    if config.W > min(spec.D, spec.Dv):
        raise UnsupportedError(f"vector kernel: {config.W} lanes are more than the head dims D={spec.D}, Dv={spec.Dv}")
    if any(_varies(spec, m) == (True, True) for m in spec.tensor_masks) and config.BK % config.W:
        raise UnsupportedError(f"vector kernel: BK={config.BK} is not a multiple of {config.W} lanes")
    if stack_bytes(spec, config) > STACK_BYTES:
        raise UnsupportedError(f"vector kernel: tiles need {stack_bytes(spec, config)} of {STACK_BYTES} bytes of stack")
    emitter = _Emitter(spec, config, name)
    text = "\n".join([*_executable(emitter), *_entry(emitter)])
    return Kernel(name, text, "vector", spec, dict(asdict(config)), FLAGS)


def _operands(spec: AttentionSpec) -> list[tuple[str, tuple[Dim, ...], str]]:
    """(argument name, stored shape, element type as the dispatch sees it)"""
    names = ["q", "k", "v", *(f"mask{i}" for i in range(len(spec.tensor_masks)))]
    types = ["i8" if d == "bool" else d for d in spec.operand_dtypes]
    return list(zip(names, spec.operand_shapes, types, strict=True))


def _executable(emitter: _Emitter) -> list[str]:
    spec, symbol = emitter.spec, f"{emitter.symbol}_attention"
    body = emitter.body()
    args, ties = [], []
    for name, shape, element in _operands(spec):
        inner = f"%{name}" if name.startswith("mask") else f"%{name}i"
        kind = emitter.dispatch_type("readonly", shape, element)
        if emitter.tied(shape):
            args.append(f"{inner}_: {kind}")
            ties.append(f"{inner} = flow.dispatch.tie_shape {inner}_ : {kind}{emitter.tied(shape)}")
        else:
            args.append(f"{inner}: {kind}")
    dims = [f"{d}: index" for d in emitter.dims.values()]
    out = emitter.dispatch_type("writeonly", spec.out_shape, spec.dtype)
    if emitter.tied(spec.out_shape):
        ties.append(f"%oi = flow.dispatch.tie_shape %oi_ : {out}{emitter.tied(spec.out_shape)}")
        args_out = [f"%oi_: {out}"]
    else:
        args_out = [f"%oi: {out}"]
    return [
        f"flow.executable private @{symbol} {{",
        f"flow.executable.export public @{symbol} workgroups(%x: index, %y: index) -> (index, index, index) {{",
        "%z = arith.constant 1 : index",
        "flow.return %x, %y, %z : index, index, index",
        "}",
        "builtin.module {",
        f"func.func @{symbol}({', '.join([*args, *dims, *args_out])}) attributes {{translation_info = {TRANSLATION}}} {{",
        *ties,
        *body,
        "return",
        "}",
        "}",
        "}",
    ]


def _entry(emitter: _Emitter) -> list[str]:
    """The function that a program calls: shapes, workgroup counts, the dispatch."""
    spec, config, symbol = emitter.spec, emitter.config, f"{emitter.symbol}_attention"
    t = _Text()
    operands = _operands(spec)
    types = [_tensor(s, _mlir_dtype(d)) for s, d in zip(spec.operand_shapes, spec.operand_dtypes, strict=True)]
    for dim, value in emitter.dims.items():
        operand = next(i for i, s in enumerate(spec.operand_shapes) if dim in s)
        axis = spec.operand_shapes[operand].index(dim)
        t.lines.append(f"{value} = tensor.dim %{operands[operand][0]}, {t.index(axis)} : {types[operand]}")
    blocks = (
        t.index(-(-spec.Sq // config.BM))
        if isinstance(spec.Sq, int)
        else t.arith("ceildivui", emitter.dims[spec.Sq], t.index(config.BM))
    )
    heads = t.index(math.prod(d for d in (*spec.batch, spec.Hq) if isinstance(d, int)))
    for d in (*spec.batch, spec.Hq):
        if isinstance(d, str):
            heads = t.arith("muli", heads, emitter.dims[d])
    values, shapes = [], []
    for (name, shape, element), type_ in zip(operands, types, strict=True):
        value = f"%{name}"
        if type_.endswith("xi1>"):
            byte = _tensor(shape, element)
            tied = emitter.tied(shape)
            value = t.let(f"flow.tensor.bitcast {value} : {type_}{tied} -> {byte}{tied}")
            type_ = byte
        values.append(value)
        shapes.append(f"{type_}{emitter.tied(shape)}")
    values += emitter.dims.values()
    shapes += [INDEX] * len(emitter.dims)
    out = _tensor(spec.out_shape, spec.dtype)
    result = t.let(
        f"flow.dispatch @{symbol}::@{symbol}[{blocks}, {heads}]({', '.join(values)}) : ({', '.join(shapes)}) "
        f"-> {out}{emitter.tied(spec.out_shape)}"
    )
    arguments = ", ".join(f"%{o[0]}: {t_}" for o, t_ in zip(operands, types, strict=True))
    return [
        f"util.func private @{emitter.symbol}({arguments}) -> {out} {{",
        *t.render(),
        f"util.return {result} : {out}",
        "}",
    ]
