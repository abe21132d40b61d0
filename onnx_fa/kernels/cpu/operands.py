"""What a workgroup of a vector kernel reads and writes: its part of q, k, v, the masks and the results."""

from __future__ import annotations

import math
from collections.abc import Sequence

from onnx_fa.derive.loop import loop_of
from onnx_fa.errors import UnsupportedError
from onnx_fa.kernels.cpu.combine import can_split
from onnx_fa.kernels.cpu.dequantize import Integers, Scales
from onnx_fa.kernels.cpu.spread import spread_groups
from onnx_fa.kernels.cpu.state import Cut, Slab
from onnx_fa.kernels.cpu.tiles import CpuTiles
from onnx_fa.kernels.mlir.entry import tied_dims
from onnx_fa.kernels.mlir.expressions import Vector
from onnx_fa.kernels.mlir.stored import operand_shapes, operand_types, stored_shape
from onnx_fa.kernels.mlir.text import Text, tensor_type
from onnx_fa.kernels.mlir.vectors import Exp2, Lanes
from onnx_fa.spec.attention import AttentionSpec
from onnx_fa.spec.switches import ALL_ON, Switch
from onnx_fa.spec.terms import Causal, Dim, Quantized, TensorArg


class Operands:
    """Loads the slabs of one workgroup. The function's arguments are those of `operand_names`, `dims` for the symbols, `outputs`.

    `t` is the text of the function, to which all its parts write. Raises UnsupportedError for splits of keys that cannot be
    split. `splits`: into how many parts, or the symbol of a number that the program finds (combine.py). `off`: optimisations that
    the body does without. `exp2_by`: as in Lanes, where `off` lets it. `heads`: of how many key/value heads a row of K
    and V holds the numbers side by side, where the queries of the spec are those of all of them. `moves_back`: whether the last
    workgroup has as many queries as the others, if there are so many, of which some are its neighbour's too."""

    def __init__(
        self,
        spec: AttentionSpec,
        config: CpuTiles,
        splits: Dim = 1,
        off: frozenset[Switch] = ALL_ON,
        exp2_by: Exp2 = "polynomial",
        heads: int = 1,
        moves_back: bool = True,
        workers: int = 0,
    ) -> None:
        """`workers`: among how many of them workgroups are spread, so that they have alike (spread.py); 0 where they are not."""
        if splits != 1 and not can_split(spec):
            raise UnsupportedError(
                "the keys of row statistics, of rounded probabilities, or of a dynamic batch, Hq or Sq, are not split"
            )
        self.spec, self.config, self.splits, self.off, self.heads = spec, config, splits, off, heads
        self.workers = workers
        self.has_parts = splits != 1
        self.loop = loop_of(spec, bounded=Switch.MAXIMUM not in off)
        self.t = Lanes(config.lanes, exp2_by="compiler" if Switch.EXP2 in off else exp2_by)
        symbols = (*spec.symbols, splits) if isinstance(splits, str) else spec.symbols
        self.dims = {symbol: f"%dim{i}" for i, symbol in enumerate(symbols)}
        self.ragged_keys = not (isinstance(spec.Skv, int) and spec.Skv % config.BK == 0)
        divides = isinstance(spec.Sq, int) and spec.Sq % config.BM == 0
        self.moves_back = moves_back and not divides
        self.few_queries = not divides and not (moves_back and isinstance(spec.Sq, int) and spec.Sq >= config.BM)
        self.row_type = tensor_type((config.BM,), "f32")

        self.sq, self.skv = self.dim(spec.Sq), self.dim(spec.Skv)
        self._locate()
        queries = Cut(self.m0, self.rows, "rows") if self.few_queries else Cut(self.m0, str(config.BM), config.BM)
        self._load_operands(queries)
        self._load_results(queries)
        tensors = (*spec.tensors, spec.sink) if spec.sink is not None else spec.tensors
        names = [f"%mask{i}" for i in range(len(spec.tensors))] + ["%sink"]
        self.masks = [
            self.load(name, x.shape, element, self.mask_cuts(x))
            for name, x, element in zip(names, tensors, operand_types(spec)[3:], strict=False)
        ]

    def _locate(self) -> None:
        """Which head, queries and keys are the workgroup's."""
        t, spec, config = self.t, self.spec, self.config
        wx, rest = (t.let(f"flow.dispatch.workgroup.id[{i}] : index") for i in (0, 1))
        count = ""
        if self.workers:
            count = self.query_blocks(t)
            wx, rest = self._enter_filled(wx, rest, count)
        if any(isinstance(mask, Causal) for mask in spec.masks) and spec.Sq != 1:
            # Later queries see more keys: the longest workgroups begin first, so that none is left for the end.
            last = t.arith("subi", count or t.let("flow.dispatch.workgroup.count[0] : index"), t.index(1))
            wx = t.arith("subi", last, wx)
        self.lead: list[str] = []
        for d in reversed((*spec.batch, spec.Hq)):
            self.lead.insert(0, t.arith("remui", rest, self.dim(d)))
            rest = t.arith("divui", rest, self.dim(d))
        self.key_limits = (t.index(0), self.skv)
        if self.has_parts:
            self.split = t.let("flow.dispatch.workgroup.id[2] : index")
            self.key_limits = self.split_limits()
        bm = t.index(config.BM)
        self.m0 = t.arith("muli", wx, bm)
        if self.moves_back:
            # The last workgroup moves back to end at the last query; rows shared with its neighbour come out the same.
            back = t.arith("maxsi", t.arith("subi", self.sq, bm), t.index(0))
            self.m0 = t.arith("minsi", self.m0, back)
        self.rows = t.arith("minsi", t.arith("subi", self.sq, self.m0), bm) if self.few_queries else bm
        self.last_row = t.arith("subi", self.rows, t.index(1))

    def query_blocks(self, t: Text) -> str:
        """How many blocks of queries a head has."""
        if isinstance(self.spec.Sq, int):
            return t.index(-(-self.spec.Sq // self.config.BM))
        return t.arith("ceildivui", self.dims[self.spec.Sq], t.index(self.config.BM))

    def query_heads(self, t: Text) -> str:
        """How many heads there are in all batches."""
        sizes = (*self.spec.batch, self.spec.Hq)
        heads = t.index(math.prod(d for d in sizes if isinstance(d, int)))
        for d in sizes:
            if isinstance(d, str):
                heads = t.arith("muli", heads, self.dims[d])
        return heads

    def _enter_filled(self, at: str, turn: str, blocks: str) -> tuple[str, str]:
        """The block of queries, and the head, of a workgroup that is not empty: only such do what follows until `leave`."""
        t = self.t
        groups = t.arith("muli", blocks, self.query_heads(t))
        filled = spread_groups(t, groups, self.workers).filled
        own = t.arith("addi", t.arith("muli", turn, filled), at)
        has_one = t.arith("andi", t.test("ult", at, filled), t.test("ult", own, groups), "i1")
        t.do(f"scf.if {has_one} {{")
        return t.arith("remui", own, blocks), t.arith("divui", own, blocks)

    def leave(self) -> None:
        """Ends what a workgroup does."""
        if self.workers:
            self.t.do("}")

    def _load_operands(self, queries: Cut) -> None:
        """The workgroup's part of q, k and v, and of what says where or what the rows of these are."""
        t, spec = self.t, self.spec
        shapes, types = self.stored_shapes, operand_types(spec)
        kv_head = t.arith("divui", self.lead[-1], t.index(spec.group)) if spec.group > 1 else self.lead[-1]
        kv_lead = [*self.lead[:-1], kv_head]
        keys = self.whole(spec.Skv)
        self.index: Slab | None = None
        self.first_row = ""
        if spec.gathered is not None:
            keys, lead = self.whole(spec.gathered.rows), [Cut(x, "1", None) for x in self.lead[:-1]]
            self.index = self.load("%rows", shapes[-1], types[-1], [*lead, self.whole(spec.Skv)])
            kv_lead = [*[t.index(0)] * len(spec.batch), kv_head]
            if spec.gathered.head_rows:
                kv_lead[-1] = t.index(0)
                self.first_row = t.arith("muli", kv_head, t.index(spec.gathered.head_rows))
        self.q = self.load(
            "%q", shapes[0], types[0], self.cuts(self.lead, queries, spec.D, spec.q_layout), spec.q_layout
        )
        widths = [
            stored_shape((self.heads * w,), d)[0]
            for w, d in zip((spec.D, spec.Dv), spec.operand_dtypes[1:3], strict=True)
        ]
        self.k = self.load("%k", shapes[1], types[1], self.cuts(kv_lead, keys, widths[0], spec.k_layout), spec.k_layout)
        self.v = self.load("%v", shapes[2], types[2], self.cuts(kv_lead, keys, widths[1], spec.v_layout), spec.v_layout)
        self.k_integers = self.integers("%k", spec.k_quant, self.k, kv_lead, spec.k_layout, self.heads * spec.D)
        self.v_integers = self.integers("%v", spec.v_quant, self.v, kv_lead, spec.v_layout, self.heads * spec.Dv)

    def _load_results(self, queries: Cut) -> None:
        """The workgroup's part of what the dispatch writes."""
        spec = self.spec
        self.stats: list[Slab] = []
        if self.has_parts:
            lead = [Cut(x, "1", None) for x in (self.split, *self.lead)]
            cuts = [[*lead, queries, self.whole(spec.Dv)], [*lead, queries], [*lead, queries]]
            self.out, self.part_best, self.part_total = (
                self.load(name, shape, element, c, access="writeonly")
                for (name, shape, element), c in zip(self.outputs, cuts, strict=True)
            )
        else:
            out_cuts = self.cuts(self.lead, queries, spec.Dv, spec.o_layout)
            self.out = self.load("%out", spec.out_shape, spec.dtype, out_cuts, spec.o_layout, "writeonly")
            row_cuts = [*(Cut(x, "1", None) for x in self.lead), queries]
            self.stats = [
                self.load(name, shape, element, row_cuts, access="writeonly")
                for name, shape, element in self.outputs[1:]
            ]

    def split_limits(self) -> tuple[str, str]:
        """The keys of this workgroup's split: whole blocks, but for the end; none where there are fewer blocks than splits."""
        t, bk = self.t, self.t.index(self.config.BK)
        blocks = t.arith("ceildivui", t.arith("ceildivui", self.skv, bk), self.dim(self.splits))
        keys = t.arith("muli", blocks, bk)
        low = t.arith("muli", self.split, keys)
        return low, t.arith("maxsi", low, t.arith("minsi", t.arith("addi", low, keys), self.skv))

    @property
    def stored_shapes(self) -> list[tuple[Dim, ...]]:
        """Shapes of the operands as the dispatch sees them."""
        q, k, v, *further = operand_shapes(self.spec)
        if self.heads == 1:
            return [q, k, v, *further]
        return [q, *((*shape[:-1], self.heads * shape[-1]) for shape in (k, v)), *further]

    @property
    def outputs(self) -> list[tuple[str, tuple[Dim, ...], str]]:
        """(argument, shape, element type) of what the dispatch writes: the results, or for each split of the keys O, not divided by
        the sum, the maximum and the sum."""
        spec = self.spec
        if not self.has_parts:
            return [(f"%stat{i - 1}" if i else "%out", *result) for i, result in enumerate(spec.results)]
        rows = (self.splits, *spec.batch, spec.Hq, spec.Sq)
        return [("%out", (*rows, spec.Dv), "f32"), ("%best", rows, "f32"), ("%total", rows, "f32")]

    def dim(self, d: Dim) -> str:
        return self.t.index(d) if isinstance(d, int) else self.dims[d]

    def binding(self, access: str, shape: Sequence[Dim], element: str) -> str:
        return f"!iree_tensor_ext.dispatch.tensor<{access}:{tensor_type(shape, element)}>{tied_dims(shape, self.dims)}"

    def whole(self, d: Dim) -> Cut:
        return Cut(self.t.index(0), str(d) if isinstance(d, int) else self.dims[d], d)

    def integers(
        self, name: str, quant: Quantized | None, slab: Slab, lead: list[str], layout: tuple[int, ...], width: int
    ) -> Integers | None:
        """K or V as integers with their scales, if that is what they are."""
        if quant is None:
            return None
        rank = self.spec.rank
        shape = (1,) * (rank - len(quant.shape)) + quant.shape

        def scales(arg: str, element: str) -> Scales:
            cuts = []
            for axis, d in zip(layout, shape, strict=True):
                if axis < rank - 2:
                    cuts.append(Cut(self.t.index(0) if d == 1 else lead[axis], "1", None))
                else:
                    cuts.append(Cut(self.t.index(0), "1", None) if d == 1 else self.whole(d))
            part = self.load(arg, quant.shape, element, cuts[rank - len(quant.shape) :])
            groups = shape[layout.index(rank - 1)]
            assert isinstance(groups, int)
            rows = shape[layout.index(rank - 2)] != 1
            swapped = slab.swapped and rows and groups > 1
            return Scales(part.value, part.type, element, rows, 0 if groups == 1 else width // groups, swapped)

        zero = scales(f"{name}_zero", "i8") if quant.zero_point else None
        scale = scales(f"{name}_scale", self.spec.dtype)
        return Integers(self.t, quant, slab.value, slab.type, slab.swapped, scale, zero)

    def cuts(self, lead: list[str], rows: Cut, width: Dim, layout: tuple[int, ...]) -> list[Cut]:
        """One head of q, k, v or out."""
        canonical = [*(Cut(x, "1", None) for x in lead), rows, self.whole(width)]
        return [canonical[axis] for axis in layout]

    def mask_cuts(self, mask: TensorArg) -> list[Cut]:
        """One head of a mask, along the axes that it has."""
        lead = self.lead[max(0, self.spec.rank - len(mask.shape)) :]
        cuts = [Cut(self.t.index(0) if d == 1 else x, "1", None) for d, x in zip(mask.shape[:-2], lead, strict=False)]
        for d in mask.shape[-2:]:
            cuts.append(Cut(self.t.index(0), "1", None) if d == 1 else self.whole(d))
        return cuts

    def load(
        self,
        arg: str,
        shape: Sequence[Dim],
        element: str,
        cuts: list[Cut],
        layout: tuple[int, ...] = (),
        access: str = "readonly",
    ) -> Slab:
        offsets, sizes = ", ".join(c.offset for c in cuts), ", ".join(c.size for c in cuts)
        place = f"offsets = [{offsets}], sizes = [{sizes}], strides = [{', '.join('1' * len(cuts))}]"
        type_ = tensor_type([c.dim for c in cuts if c.dim is not None] or [1], element)
        binding = self.binding(access, shape, element)
        value = self.t.let(f"iree_tensor_ext.dispatch.tensor.load {arg}, {place} : {binding} -> {type_}")
        swapped = bool(layout) and layout.index(self.spec.rank - 1) < layout.index(self.spec.rank - 2)
        return Slab(value, type_, element, place, swapped)

    def row_of(self, key: str) -> str:
        """Where a key's numbers stand in K and V."""
        if self.index is None:
            return key
        x = self.t.let(f"tensor.extract {self.index.value}[{key}] : {self.index.type}")
        row = self.t.let(f"arith.index_cast {x} : {self.index.element} to index")
        return self.t.arith("addi", row, self.first_row) if self.first_row else row

    def query_row(self, row: str) -> str:
        """Rows past the last query stand for the last query, which is then computed several times over."""
        return self.t.arith("minsi", row, self.last_row) if self.few_queries else row

    def query(self, row: str) -> str:
        return self.t.arith("addi", self.m0, self.query_row(row))

    def i32(self, index: str) -> str:
        return self.t.let(f"arith.index_cast {index} : index to i32")

    def lane(self, j: int) -> str:
        """Where vector j of the queries begins."""
        return self.t.index(j * self.t.width)

    def in_first_split(self, x: str) -> str:
        """The vector x in the first split of the keys, 0 in the others."""
        if not self.has_parts:
            return x
        first = self.t.let(f"arith.cmpi eq, {self.split}, {self.t.index(0)} : index")
        return self.t.let(f"arith.select {first}, {x}, {self.t.splat(0.0)} : {self.t.vec}")

    def lane_numbers(self) -> str:
        """0, 1, 2, ... along the lanes, as i32."""
        lanes = self.t.let(f"vector.step : vector<{self.t.width}xindex>")
        return self.t.let(f"arith.index_cast {lanes} : vector<{self.t.width}xindex> to {self.t.ivec}")

    def to_f32(self, value: str, element: str, lanes: str = "") -> str:
        """A scalar (or a vector, with `lanes` such as "16x") of that element type as f32."""
        if element == "f32":
            return value
        types = [f"vector<{lanes}{e}>" if lanes else e for e in (element, "f32")]
        return self.t.let(f"arith.{'uitofp' if element == 'i8' else 'extf'} {value} : {types[0]} to {types[1]}")

    def to_vector(self, value: str, element: str) -> Vector:
        """A vector of a tensor's elements, as expressions take them."""
        if element == "i8":
            zero = self.t.constant("dense<0>", f"vector<{self.t.width}xi8>")
            return Vector(self.t.let(f"arith.cmpi ne, {value}, {zero} : vector<{self.t.width}xi8>"), "i1")
        if element in ("i32", "i64"):
            return Vector(value, element)
        return Vector(self.to_f32(value, element, f"{self.t.width}x"), "f32")

    def splat_of(self, slab: Slab, *indices: str) -> Vector:
        """One element of a tensor in every lane."""
        value = self.t.let(f"tensor.extract {slab.value}[{', '.join(indices)}] : {slab.type}")
        return self.to_vector(self.t.broadcast(value, slab.element), slab.element)

    def read_f32(self, slab: Slab, row: str, column: str, in_bounds: bool = True) -> str:
        """W neighbours of a slab's row."""
        x = self.t.read(slab.value, slab.type, row, column, element=slab.element, in_bounds=in_bounds)
        return self.to_f32(x, slab.element, f"{self.t.width}x")

    @property
    def guards_output(self) -> bool:
        """Whether the output is zero where probabilities are NaN. Where keys are split, what combines the parts does that."""
        return self.spec.empty_row == "guarded" and not self.has_parts

    def write_out(self, x: str, result: str, row: str, column: str, inside: bool) -> str:
        """The output with a vector of it replaced, in its element type. `inside`: all lanes lie in it."""
        t, out = self.t, self.out
        if out.element != "f32":
            x = t.let(f"arith.truncf {x} : {t.vec} to vector<{t.width}x{out.element}>")
        return t.write(x, result, out.type, row, column, element=out.element, in_bounds=inside)

    def extract(self, slab: Slab, *indices: str) -> str:
        at = indices[::-1] if slab.swapped else indices
        value = self.t.let(f"tensor.extract {slab.value}[{', '.join(at)}] : {slab.type}")
        return self.to_f32(value, slab.element)
