"""From a block of products of Q and K to what is summed, on tiles of a workgroup: scale, softcaps, masks, score functions. Scores
are in units of log2 where the loop takes exponentials of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from onnx_fa.derive.attention import hidden_score
from onnx_fa.derive.loop import loop_of
from onnx_fa.kernels.iree_gpu.language import RegionLanguage
from onnx_fa.kernels.iree_gpu.operand import Operand
from onnx_fa.kernels.iree_gpu.tile_ops import Region, TileOps
from onnx_fa.kernels.iree_gpu.tiles import GpuConfig
from onnx_fa.kernels.mlir.scalar_scores import ScalarScores
from onnx_fa.kernels.mlir.vectors import EXP2_POWERS, NEAREST_INT, Scalars
from onnx_fa.kernels.plan.score import LOG2E
from onnx_fa.kernels.plan.skipping import skipping
from onnx_fa.spec.attention import AttentionSpec
from onnx_fa.spec.dtypes import F32_MAX
from onnx_fa.spec.switches import Switch
from onnx_fa.spec.target import Target
from onnx_fa.spec.terms import Dim, IndexMask

LOWEST_START = -F32_MAX
"""Where row maxima start: so that a row that sees only -inf subtracts a number from it."""
_EXP2_F16 = (1.0, 0.69328293, 0.24221097, 0.05500893)
"""As EXP2_POWERS, with a relative error of 1e-4: half a step of f16 is 5e-4."""


class GpuScores:
    """Text of the dispatch's function. `operands` are q, k, v, then what the masks read, then the sink, as the dispatch takes them;
    `sizes` are those of the axes in it, padding included, while lengths of the spec are the true ones. `value` gives the SSA index
    of a symbol."""

    def __init__(
        self,
        spec: AttentionSpec,
        config: GpuConfig,
        target: Target,
        operands: Sequence[Operand],
        out: Operand,
        sizes: dict[str, Dim],
        value: Callable[[str], str],
    ) -> None:
        self.spec, self.config, self.target = spec, config, target
        self.operands = list(operands)
        self.q, self.k, self.v, *rest = operands
        self.masks = rest[: len(spec.tensors)]
        self.sink = rest[len(spec.tensors)] if spec.sink is not None else None
        self.out, self.value = out, value
        self.scalar = ScalarScores(spec, value, self.offset)
        self.skips = skipping(spec, visit_all=not target.has(Switch.SKIPPING))
        self.loop = loop_of(spec, narrow=spec.dtype == "f16", bounded=target.has(Switch.MAXIMUM))
        self.walk = self.loop.one_walk
        self.ops = TileOps(config, target, spec.dtype, (self.q, self.k, self.v), sizes)
        self.t = self.ops.t

    def language(self, region: Scalars) -> RegionLanguage:
        lengths = {"q": self.spec.Sq, "k": self.spec.Skv}
        return RegionLanguage(
            region, self.spec, self.exp2, self.late_scale, lambda r, e: self.scalar.length(r, lengths[e.axis])
        )

    def size(self, dim: Dim) -> str:
        return self.t.index(dim) if isinstance(dim, int) else self.value(dim)

    def exp2(self, r: Scalars, x: str) -> str:
        """2^x for x <= 0, exactly 1 at 0 and 0 from -127 down. On CUDA by a polynomial of the fractional part, whose exponent bits
        the whole part is added to: IREE's own expansion takes twice as many instructions. NaN gives any number: see `finish`."""
        if self.target.backend != "cuda" or not self.target.has(Switch.EXP2):
            return r.vop("math.exp2", x)
        powers = EXP2_POWERS if self.spec.dtype == "f32" else _EXP2_F16
        x = r.vop("arith.maximumf", x, r.splat(-127.0))
        rounded = r.vop("arith.addf", x, r.splat(NEAREST_INT))
        rest = r.vop("arith.subf", x, r.vop("arith.subf", rounded, r.splat(NEAREST_INT)))
        p = r.polynomial(rest, powers)
        bits, n = (r.let(f"arith.bitcast {y} : f32 to i32") for y in (p, rounded))
        n = r.arith("shli", n, r.constant("23", "i32"), "i32")
        return r.let(f"arith.bitcast {r.arith('addi', bits, n, 'i32')} : i32 to f32")

    @property
    def steps(self) -> bool:
        """Whether anything but the scale changes a score."""
        return bool(self.spec.mods or self.scalar.plan.steps) or self.ragged

    @property
    def ragged(self) -> bool:
        """Whether some block holds keys that do not count."""
        return isinstance(self.spec.Skv, str) or self.spec.Skv % self.config.BN != 0

    @property
    def late_scale(self) -> float | None:
        """What products of Q and K are multiplied by where they are subtracted from their maximum, in one instruction; None where
        scores are scaled before the maximum is known."""
        plain = not self.steps and self.sink is None and 0 < self.spec.scale < 1 and self.spec.weighting is None
        return self.spec.scale * LOG2E if plain else None

    def scores(self, raw: str) -> str:
        """What the softmax sees, in units of log2, of a block of products of Q and K."""
        spec, axes = self.spec, ("m", *self.ops.key_axes)
        sources: list[tuple[str, Sequence[str], str]] = [(raw, axes, "f32")]
        sources += [(self.ops.slice(x), x.tile, x.element) for x in self.masks]
        m0, k0, fresh = self.ops.offsets["m"], self.ops.offsets["k"], self.ops.offsets["fresh"]

        def body(r: Region, x: list[str], _: str) -> str:
            query = r.arith("addi", r.let("linalg.index 0 : index"), m0)
            key = r.arith("addi", self.key(r), k0)
            tensors = [self.scalar.element(r, e.element, x) for e, x in zip(self.masks, x[1:], strict=True)]
            s = self.scalar.score(r, x[0], query, key, tensors)
            if self.ragged:
                counts = r.let(f"arith.cmpi sge, {key}, {fresh} : index")
                inside = r.let(f"arith.cmpi slt, {key}, {self.size(spec.Skv)} : index")
                s = r.select(r.arith("andi", counts, inside, "i1"), s, r.splat(hidden_score(spec)))
            return s

        return self.ops.generic(axes, sources, (self.ops.empty(axes), axes, "f32"), body)

    def key(self, r: Region) -> str:
        """The key of an element of the score, counted from the block's first."""
        if len(self.ops.key_axes) == 1:
            return r.let("linalg.index 1 : index")
        half = r.arith("muli", r.let("linalg.index 1 : index"), r.index(self.config.BN // 2))
        return r.arith("addi", half, r.let("linalg.index 2 : index"))

    def offset(self, mask: IndexMask) -> str:
        if mask.offset != "end":
            return self.t.index(mask.offset)
        if isinstance(self.spec.Sq, int) and isinstance(self.spec.Skv, int):
            return self.t.index(self.spec.Skv - self.spec.Sq)
        return self.t.arith("subi", self.size(self.spec.Skv), self.size(self.spec.Sq))
