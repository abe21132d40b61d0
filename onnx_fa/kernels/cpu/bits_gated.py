"""Two products of the same rounded rows with weights of a few bits, one of which gates the other, as in SwiGLU, in one dispatch
that rounds what comes of it for the next product:

    round(then(x w^T, x v^T))

A workgroup takes the same rows of both weights, as many as lie in a block of the result or a few, so that a block's largest number
is known where it is computed. Sums of one or two rows of x wait on the stack.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace

from onnx_fa.kernels.cpu.bits_dots import ByteProducts, can_round, rounded_rows
from onnx_fa.kernels.cpu.bits_rounded import RoundedRows, write_block
from onnx_fa.kernels.cpu.bits_spec import BitsProduct
from onnx_fa.kernels.cpu.row_dispatch import call_dispatch, joined, load, make_executable, store
from onnx_fa.kernels.mlir.called import function_text
from onnx_fa.kernels.mlir.expressions import ExprVectors, IntBounds, Vector
from onnx_fa.kernels.mlir.operand import Operand
from onnx_fa.kernels.mlir.text import Text, memref_type
from onnx_fa.kernels.mlir.vectors import Lanes
from onnx_fa.spec.expr import SCORE, ScoreExpr, Tensor
from onnx_fa.spec.target import Target
from onnx_fa.spec.terms import TensorArg

_LEAST_GROUP, _MOST_BLOCK = 32, 64
"""Rows of either weight that a workgroup takes at least, and numbers of a block of the result at most."""


@dataclass(frozen=True)
class GatedBits:
    """`product` is that of either weight, whose sums are the score and tensor 0 of `then`; `made` is how the result is rounded."""

    product: BitsProduct
    then: ScoreExpr
    made: RoundedRows

    @property
    def symbol(self) -> str:
        """Of the dispatch."""
        words = hashlib.sha256(repr((self.then, self.made)).encode()).hexdigest()[:8]
        return f"{self.product.name}_gated_{words}_product"

    @property
    def name(self) -> str:
        return f"{self.symbol}_of"

    @property
    def group(self) -> int:
        """Rows of either weight that a workgroup takes."""
        block = self.made.block
        return _LEAST_GROUP if block < _LEAST_GROUP and self.product.N % _LEAST_GROUP == 0 else block

    @property
    def weights(self) -> tuple[tuple[Operand, ...], tuple[Operand, ...]]:
        """The operands of either weight."""
        gate = self.product.weight
        return gate, tuple(replace(w, name=f"{w.name}_up") for w in gate)

    @property
    def operands(self) -> tuple[Operand, ...]:
        """The rounded rows and both weights."""
        return (*rounded_rows(self.product).operands, *self.weights[0], *self.weights[1])

    @property
    def outputs(self) -> tuple[Operand, ...]:
        return tuple(replace(y, name=f"{y.name}_made") for y in self.made.operands)

    def fits(self, target: Target) -> bool:
        """Whether there is a kernel: blocks of the result are computed by one workgroup, in registers."""
        p, made = self.product, self.made
        alike = p.rounded and can_round(p, target) and made.fits
        return alike and (made.rows, made.K) == (p.rows, p.N) and made.block <= _MOST_BLOCK and p.N % self.group == 0

    def texts(self, target: Target) -> dict[str, str]:
        """The executable and the function of the name, which takes the operands and returns the outputs, by their symbols."""
        t = Text()
        made = call_dispatch(t, self.symbol, self.operands, [x.name for x in self.operands], self.outputs)
        function = function_text(self.name, self.operands, self.outputs, t, made)
        return {
            self.symbol: joined(_GatedProducts(self, target).text(self.symbol)),
            self.name: joined(function),
        }


class _GatedProducts(ByteProducts):
    """The body of one workgroup."""

    def __init__(self, gated: GatedBits, target: Target) -> None:
        super().__init__(gated.product, rounded_rows(gated.product).operands, target, gated.group)
        self.gated, self.lanes = gated, Lanes(gated.made.block)
        self.t = self.lanes
        tensors = (TensorArg((gated.product.N,)),)
        self.exprs = ExprVectors(self.lanes, IntBounds("rows", gated.product.N, tensors), tensors)

    def text(self, symbol: str) -> list[str]:
        groups = [f"%x = arith.constant {self.p.N // self.group} : index"]
        return make_executable(symbol, self.gated.operands, self.gated.outputs, groups, self._body())

    def _body(self) -> list[str]:
        t, p, made = self.t, self.p, self.gated.made
        group = t.let("flow.dispatch.workgroup.id[0] : index")
        first = t.arith("muli", group, t.index(self.group))
        for x in self.from_x:
            self.loaded[x.name] = load(t, x, "readonly", ["0"] * len(x.shape), x.shape)
        both = [self._loaded(weight, first) for weight in self.gated.weights]
        shapes = made.part(self.group)
        offsets = [[*["0"] * (len(shape) - 1), t.arith("muli", group, t.index(int(shape[-1])))] for shape in shapes]
        outputs = [
            load(t, y, "writeonly", at, shape) for y, at, shape in zip(self.gated.outputs, offsets, shapes, strict=True)
        ]
        self.rows = "%rows" if p.rows is None else t.index(p.rows)
        waiting = memref_type((self.shared, self.group), "f32")
        sums = [t.empty(waiting) for _ in both]

        def over_x(m: str, carried: list[str]) -> list[str]:
            ms = self._clamped(m)
            for weight, kept in zip(both, sums, strict=True):
                self.loaded.update(weight)
                self._keep(ms, kept, waiting)
            for j, row in enumerate(ms):
                for b in range(self.group // made.block):
                    at = [t.index(j), t.index(b * made.block)]
                    gate, up = (self.lanes.read(kept, waiting, *at) for kept in sums)
                    carried = write_block(
                        t, made, self._then(gate, up), row, t.index(b), carried, [type_ for _, type_ in outputs]
                    )
            return carried

        results = t.loop((t.index(0), self.rows, t.index(self.shared)), outputs, over_x)
        for value, (_, type_), y, at, shape in zip(results, outputs, self.gated.outputs, offsets, shapes, strict=True):
            store(t, value, type_, y, at, shape)
        return t.render()

    def _loaded(self, weight: Sequence[Operand], first: str) -> dict[str, tuple[str, str]]:
        """A workgroup's rows of a weight, by the names that the products know."""
        parts = (load(self.t, x, "readonly", [first, "0"], (self.group, *x.shape[1:])) for x in weight)
        return {x.name: part for x, part in zip(self.p.weight, parts, strict=True)}

    def _keep(self, ms: list[str], kept: str, type_: str) -> None:
        """Writes the products of some rows of x with all of a workgroup's rows of a weight to the stack."""
        t = self.t
        places = {m: t.index(j) for j, m in enumerate(ms)}
        n = t.fresh()
        t.do(f"scf.for {n} = {t.index(0)} to {t.index(self.group)} step {t.index(self.own)} {{")
        for (m, at), value in self.sums(ms, [t.shifted(n, i) for i in range(self.own)]).items():
            t.do(f"memref.store {value}, {kept}[{places[m]}, {at}] : {type_}")
        t.do("}")

    def _then(self, gate: str, up: str) -> str:
        def known(e: ScoreExpr) -> Vector | None:
            if e == SCORE:
                return Vector(gate, "f32")
            return Vector(up, "f32") if e == Tensor(0) else None

        return self.exprs.emit(self.gated.then, known, {}).value
