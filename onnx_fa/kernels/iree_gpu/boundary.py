"""The operands of the attention dispatch as it sees them: padded where blocks need it, V transposed, axes in halves."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

from onnx_fa.kernels.iree_gpu.operand import Operand
from onnx_fa.kernels.iree_gpu.tiles import GpuConfig, halves, head_dims, round_up
from onnx_fa.kernels.mlir.entry import tied_dims
from onnx_fa.spec.attention import AttentionSpec
from onnx_fa.spec.target import Target
from onnx_fa.spec.terms import Dim

PADDED = {"m": "Sq, padded", "k": "Skv, padded"}
"""Symbols of lengths that are known at run time, as the dispatch sees them."""


def lead_with_heads(operand: Operand, place: int) -> Operand:
    """Q or K with its batch dims and heads in one axis with the next, where they are its first. With more axes, LLVM's analysis of
    alignment gives up before it has seen them all, and single elements are loaded."""
    kinds, shape = operand.kinds, operand.shape
    outer = next((axis for axis, kind in enumerate(kinds) if kind[:1] not in ("b", "h")), 0)
    if place > 1 or not outer or any(isinstance(size, str) for size in shape):
        return operand
    if list(kinds[:outer]) != sorted(kinds[:outer]) or any(kind[:1] in ("b", "h") for kind in kinds[outer:]):
        return operand
    rows = math.prod(int(size) for size in shape[: outer + 1])
    lead = "q" if place == 0 else "kv"
    return Operand(operand.name, kinds[outer:], (rows, *shape[outer + 1 :]), operand.element, lead)


class Boundary:
    """What lies between a site's operands and the dispatch: `operands` and `out` outside of it, `inside` what it takes (V is
    `transposed` where a dispatch before it does that), and the `sizes` of the axes in it. `spec` has its queries folded."""

    def __init__(self, spec: AttentionSpec, target: Target, config: GpuConfig) -> None:
        self.spec, self.config = spec, config
        self.kinds, self.out_kinds = self._axis_kinds()
        d, dv = head_dims(spec, target)
        self.padding = {axis: self._padding(axis) for axis in ("m", "k")}
        self.sizes: dict[str, Dim] = {"d": d, "n": dv, "m": self._length("m"), "k": self._length("k")}
        names = [f"%{name}" for name in spec.operand_names("mask")]
        elements = ["i8" if dtype == "bool" else dtype for dtype in spec.operand_dtypes]
        self.operands = [
            Operand(name, kinds, self._padded(kinds, shape), element)
            for name, kinds, shape, element in zip(names, self.kinds, spec.operand_shapes, elements, strict=True)
        ]
        self.out = Operand("%out", self.out_kinds, self._padded(self.out_kinds, spec.out_shape), spec.dtype)
        self.transposed = self._transposed_v()
        inside = list(self.operands)
        if self.transposed is not None:
            inside[2] = dataclasses.replace(self.transposed, name="%v")
        halve_dims, halve_keys = halves(spec, target, config)
        self.halved_kinds: set[str] = set()
        if halve_dims:
            self.halved_kinds.add("d")
        if halve_keys and self.transposed is not None:
            self.halved_kinds.add("k")
        self.inside = [lead_with_heads(self._halved(operand), place) for place, operand in enumerate(inside)]
        self.symbols = [*spec.symbols, *(symbol for symbol in PADDED.values() if symbol in self.sizes.values())]
        """What the dispatch's workload says: the spec's symbols, and lengths that are padded when the program runs."""
        self.dims = {symbol: f"%dim{i}" for i, symbol in enumerate(self.symbols)}

    def _axis_kinds(self) -> tuple[list[tuple[str, ...]], tuple[str, ...]]:
        """What walks each stored axis of the operands, and of the output."""
        spec = self.spec
        batch = [f"b{i}" for i in range(len(spec.batch))]
        kinds: list[tuple[str, ...]] = []
        layouts = (spec.q_layout, spec.k_layout, spec.v_layout)
        for layout, last in zip(layouts, (("m", "d"), ("k", "d"), ("k", "n")), strict=True):
            canonical = (*batch, "h", *last)
            kinds.append(tuple(canonical[axis] for axis in layout))
        score = (*batch, "h", "m", "k")
        for shape in spec.operand_shapes[3:]:
            own = score[len(score) - len(shape) :]
            kinds.append(tuple("" if size == 1 else kind for kind, size in zip(own, shape, strict=True)))
        canonical = (*batch, "h", "m", "n")
        return kinds, tuple(canonical[axis] for axis in spec.o_layout)

    def _transposed_v(self) -> Operand | None:
        """V with its keys innermost, where the tiles want it and it is stored otherwise."""
        values = self.operands[2]
        if not self.config.transpose_v or values.tile != ("k", "n"):
            return None
        order = self.order()
        kinds, shape = (tuple(values.kinds[axis] for axis in order), tuple(values.shape[axis] for axis in order))
        return Operand("%vt", kinds, shape, values.element)

    def order(self) -> list[int]:
        """The permutation that transposes V."""
        kinds = self.operands[2].kinds
        return sorted(range(len(kinds)), key=lambda axis: "bhnk".index(kinds[axis][0]))

    def _halved(self, operand: Operand) -> Operand:
        """The operand with its axes in halves: of D, and of a block's keys."""
        kinds: list[str] = []
        shape: list[Dim] = []
        for kind, size in zip(operand.kinds, operand.shape, strict=True):
            if kind in self.halved_kinds:
                half = self.config.BN // 2 if kind == "k" else int(size) // 2
                kinds += ["j" if kind == "k" else "e", kind]
                shape += [int(size) // half, half]
            else:
                kinds.append(kind)
                shape.append(size)
        return Operand(operand.name, tuple(kinds), tuple(shape), operand.element)

    def value(self, symbol: str) -> str:
        """The SSA index of a symbol."""
        return self.dims[symbol]

    def _unaligned(self, axis: str) -> bool:
        """Whether blocks that start anywhere would be read across the alignment of vector loads: the axis is the innermost one of
        something."""
        innermost = [kinds[-1] for kinds in (*self.kinds, self.out_kinds) if kinds]
        return axis in innermost or (axis == "k" and bool(self.config.transpose_v))

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
            return PADDED[axis]
        return round_up(length, block) if how == "blocks" else max(length, block)

    def _padded(self, kinds: Sequence[str], shape: Sequence[Dim]) -> tuple[Dim, ...]:
        return tuple(self.sizes.get(kind, size) if kind else size for kind, size in zip(kinds, shape, strict=True))

    def tied(self, shape: Sequence[Dim]) -> str:
        return tied_dims(shape, self.dims)
