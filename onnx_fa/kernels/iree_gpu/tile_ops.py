"""Ops on the tiles of a workgroup: slices of operands, elementwise ops and reductions, products."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from onnx_fa.kernels.iree_gpu.matmul import lowering_config
from onnx_fa.kernels.iree_gpu.operand import Operand
from onnx_fa.kernels.iree_gpu.tiles import GpuConfig
from onnx_fa.kernels.mlir.text import Text, tensor_type
from onnx_fa.kernels.mlir.vectors import Scalars
from onnx_fa.spec.target import Target
from onnx_fa.spec.terms import Dim


class Region(Scalars):
    """The body of a linalg.generic: constants have names that the function's do not."""

    def constant(self, literal: str, type_: str) -> str:
        key = f"arith.constant {literal} : {type_}"
        return self._constants.setdefault(key, f"%f{len(self._constants)}")


class TileOps:
    """Writes ops into `t`. `sizes` are those of the axes as the dispatch sees them, padding included; `offsets` say where the
    workgroup is on each axis: "h" (heads of Q), "kv" (heads of K and V), "outer q" and "outer kv" (all batch dims and the head as
    one), and the axes of tiles. `q`, `k` and `v` are the operands of that name."""

    def __init__(
        self,
        config: GpuConfig,
        target: Target,
        dtype: str,
        operands: tuple[Operand, Operand, Operand],
        sizes: dict[str, Dim],
    ) -> None:
        self.config, self.target, self.dtype, self.sizes = config, target, dtype, sizes
        self.q, self.k, self.v = operands
        self.t = Text()
        self.key_axes = ("j", "k") if "j" in self.k.kinds else ("k",)
        self.dim_axes = ("e", "d") if "e" in self.k.kinds else ("d",)
        halves = len(self.key_axes)
        self.tile: dict[str, Dim] = {"m": config.BM, "j": 2, "k": config.BN // halves, "e": 2, "n": sizes["n"]}
        self.tile["d"] = int(sizes["d"]) // len(self.dim_axes)
        self.offsets: dict[str, str] = {}

    def shape(self, axes: Sequence[str]) -> tuple[Dim, ...]:
        return tuple(self.tile[a] for a in axes)

    def type(self, axes: Sequence[str], element: str = "f32") -> str:
        return tensor_type(self.shape(axes), element)

    def empty(self, axes: Sequence[str], element: str = "f32") -> str:
        return self.t.let(f"tensor.empty() : {self.type(axes, element)}")

    def fill(self, axes: Sequence[str], value: float) -> str:
        t, type_ = self.t, self.type(axes)
        return t.let(f"linalg.fill ins({t.f32(value)} : f32) outs({self.empty(axes)} : {type_}) -> {type_}")

    def slice(self, x: Operand) -> str:
        """The tile of an operand at the current offsets."""
        starts, sizes = self.bounds_of(x)
        ones = ", ".join("1" for _ in x.kinds)
        return self.t.let(
            f"tensor.extract_slice {x.name}[{starts}] [{sizes}] [{ones}] : {x.type} to {self.type(x.tile, x.element)}"
        )

    def bounds_of(self, x: Operand) -> tuple[str, str]:
        inner = {"k"} if len(self.key_axes) > 1 else set()  # keys in halves start at a half
        starts = [
            self.offsets.get(k, "0") if k not in inner and (size != 1 or k == "m") else "0"
            for k, size in zip(x.kinds, x.shape, strict=True)
        ]
        if x is self.k or x is self.v:
            starts = [self.offsets["kv"] if k == "h" and s != "0" else s for k, s in zip(x.kinds, starts, strict=True)]
        if x.lead:
            t, axis = self.t, x.kinds[0]
            if axis == "j":  # blocks of keys begin with a half
                base = t.arith(
                    "muli", self.offsets[f"outer {x.lead}"], t.index(int(self.sizes["k"]) // int(self.tile["k"]))
                )
                starts[0] = t.arith("addi", base, self.offsets["j"])
            else:
                base = t.arith("muli", self.offsets[f"outer {x.lead}"], t.index(int(self.sizes[axis])))
                starts[0] = t.arith("addi", base, self.offsets[axis]) if axis in self.offsets else base
        sizes = [str(self.tile[k]) if k in self.tile else "1" for k in x.kinds]
        return ", ".join(starts), ", ".join(sizes)

    def generic(
        self,
        axes: Sequence[str],
        sources: Sequence[tuple[str, Sequence[str], str]],
        into: tuple[str, Sequence[str], str],
        body: Callable[[Region, list[str], str], str],
        attrs: str = "",
        index: bool = False,
    ) -> str:
        """A linalg.generic over `axes`: `sources` and `into` are (tensor, its axes, element); axes that `into` lacks are reduced.
        `body` gets the elements and what is in `into`."""
        t, region = self.t, Region()
        maps = [f"affine_map<({', '.join(axes)}) -> ({', '.join(a)})>" for _, a, _ in (*sources, into)]
        kinds = ", ".join('"parallel"' if a in into[1] else '"reduction"' for a in axes)
        names = [f"%in{i}" for i in range(len(sources))]
        arguments = [f"{n}: {e}" for n, (_, _, e) in zip(names, sources, strict=True)] + [f"%into: {into[2]}"]
        result = body(region, names, "%into")
        ins = ""
        if sources:
            values = ", ".join(s for s, _, _ in sources)
            ins = f"ins({values} : {', '.join(self.type(a, e) for _, a, e in sources)}) "
        lines = [
            f"linalg.generic {{indexing_maps = [{', '.join(maps)}], iterator_types = [{kinds}]}} {ins}"
            f"outs({into[0]} : {self.type(into[1], into[2])}) {attrs}{{",
            f"^bb0({', '.join(arguments)}):",
            *region.render(),
            f"linalg.yield {result} : {into[2]}",
            f"}} -> {self.type(into[1], into[2])}",
        ]
        return t.let("\n".join(lines))

    def matmul(
        self, a: tuple[str, Sequence[str]], b: tuple[str, Sequence[str]], into: str, out: Sequence[str], which: str
    ) -> str:
        """into + a b, of operands in the spec's element type, added up in f32."""
        dtype = self.dtype
        axes = (*out, *(self.dim_axes if which == "qk" else self.key_axes))
        promote = (0, 1) if which == "qk" and self.config.stage_q_in_shared else (1,)
        config = lowering_config(self.target, dtype, which, self.config.subgroups, promote, len(axes))

        def body(r: Region, x: list[str], acc: str) -> str:
            if dtype != "f32":
                x = [r.let(f"arith.extf {e} : {dtype} to f32") for e in x]
            return r.vop("arith.addf", r.vop("arith.mulf", *x), acc)

        sources = [(a[0], a[1], dtype), (b[0], b[1], dtype)]
        return self.generic(axes, sources, (into, out, "f32"), body, attrs=f"attrs = {{lowering_config = {config}}} ")
