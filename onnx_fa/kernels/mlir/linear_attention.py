"""Linear attention for any target: a loop over the tokens, each of which is three dispatches that the compiler makes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from onnx_fa.kernels.mlir.entry import KernelEntry
from onnx_fa.kernels.mlir.text import tensor_type
from onnx_fa.spec.linear_attention import LinearAttentionSpec, linear_attention_name
from onnx_fa.spec.terms import Dim

_B, _H, _G, _D, _V = "b", "h", "g", "d", "v"


def emit_loop(spec: LinearAttentionSpec) -> dict[str, str]:
    """The function of the site's name, which takes its operands and returns its results, by its symbol."""
    name = linear_attention_name(spec)
    return {name: "\n".join(_Loop(spec, name).text()) + "\n"}


class _Loop(KernelEntry):
    """Writes the function."""

    def __init__(self, spec: LinearAttentionSpec, name: str) -> None:
        super().__init__(spec, name)
        self.spec = spec
        self.read_type, self.state_type = (tensor_type(shape, dtype) for shape, dtype in spec.results)

    def text(self) -> list[str]:
        t, spec = self.t, self.spec
        for dim in (spec.B, spec.T):
            if isinstance(dim, str) and dim not in self.dims:
                self.measure(dim)
        read_shape, _ = spec.results[0]
        rows = self._empty(read_shape)
        last = t.index(spec.T) if isinstance(spec.T, int) else self.dims[spec.T]
        start = [("%state", self.state_type), (rows, self.read_type)]
        whole = {name: self._of_each_state(name, shape) for name, shape in spec.operands if name != "state"}

        def token(at: str, carried: list[str]) -> list[str]:
            state, rows = carried
            tokens = {name: self._token(name, value, shape, at) for name, (value, shape) in whole.items()}
            held = self._held(state, tokens) if spec.beta else ""
            state = self._next(state, tokens, held)
            return [state, self._written(self._read(state, tokens["q"]), rows, at)]

        state, rows = t.loop((t.index(0), last, t.index(1)), start, token)
        return self.lines([rows, state])

    def _size(self, dim: Dim) -> str:
        return str(dim) if isinstance(dim, int) else self.dims[dim]

    def _empty(self, shape: Sequence[Dim]) -> str:
        dynamic = ", ".join(self.dims[d] for d in shape if isinstance(d, str))
        return self.t.let(f"tensor.empty({dynamic}) : {tensor_type(shape, 'f32')}")

    def _zeros(self, shape: Sequence[Dim]) -> str:
        t, type_ = self.t, tensor_type(shape, "f32")
        return t.let(f"linalg.fill ins({t.f32(0.0)} : f32) outs({self._empty(shape)} : {type_}) -> {type_}")

    def _bounds(self, shape: Sequence[Dim], at: str) -> str:
        """The part of a tensor of that shape that is a token's."""
        starts = ", ".join(["0", at, *["0"] * (len(shape) - 2)])
        sizes = ", ".join([self._size(shape[0]), "1", *(self._size(d) for d in shape[2:])])
        return f"[{starts}] [{sizes}] [{', '.join('1' for _ in shape)}]"

    def _of_each_state(self, name: str, shape: tuple[Dim, ...]) -> tuple[str, tuple[Dim, ...]]:
        """An operand with a head for each state, and its shape. Rates that all heads share stay one."""
        heads = shape[2]
        assert isinstance(heads, int)
        times = self.spec.H // heads
        if name not in "qk" or times == 1:
            return f"%{name}", shape
        t, wide = self.t, (*shape[:3], times, *shape[3:])
        axes = "btnrgd"[: len(wide)]
        given = (f"%{name}", tensor_type(shape, "f32"), axes.replace("r", ""))
        out = (self._empty(wide), tensor_type(wide, "f32"), axes)
        spread = self._generic(axes, "", {"x": given}, out, [], "%x_")
        merged = (*shape[:2], self.spec.H, *shape[3:])
        rest = ", ".join(f"[{n}]" for n in range(4, len(wide)))
        return t.let(
            f"tensor.collapse_shape {spread} [[0], [1], [2, 3], {rest}] : {out[1]} into {tensor_type(merged, 'f32')}"
        ), merged

    def _token(self, name: str, operand: str, shape: tuple[Dim, ...], at: str) -> tuple[str, str, str]:
        """A token's part of an operand, its type, and its axes by name; a last axis of one that all share is dropped."""
        axes = {"q": _B + _H + _G + _D, "k": _B + _H + _D, "v": _B + _H + _V, "decay": _B + _H + _D, "beta": _B + _H}[
            name
        ]
        kept = [shape[0], *shape[2:]]
        if name in ("decay", "beta") and kept[-1] == 1:
            kept, axes = kept[:-1], axes[:-1]
        whole, part = tensor_type(shape, "f32"), tensor_type(kept, "f32")
        value = self.t.let(f"tensor.extract_slice {operand}{self._bounds(shape, at)} : {whole} to {part}")
        return value, part, axes

    def _generic(
        self,
        loops: str,
        sums: str,
        inputs: Mapping[str, tuple[str, str, str]],
        out: tuple[str, str, str],
        lines: Sequence[str],
        made: str = "%y",
    ) -> str:
        """A linalg.generic over the named axes, those in `sums` being added up. `lines` compute what is `made` of the inputs' names
        and of %sum."""
        dims = ", ".join(loops)

        def map_of(axes: str) -> str:
            return f"affine_map<({dims}) -> ({', '.join(axes)})>"

        maps = ", ".join(map_of(axes) for _, _, axes in (*inputs.values(), out))
        kinds = ", ".join('"reduction"' if axis in sums else '"parallel"' for axis in loops)
        values, types = (", ".join(x[n] for x in inputs.values()) for n in (0, 1))
        names = ", ".join([*(f"%{name}_ : f32" for name in inputs), "%sum : f32"])
        return self.t.let(
            f"linalg.generic {{indexing_maps = [{maps}], iterator_types = [{kinds}]}} ins({values} : {types}) "
            f"outs({out[0]} : {out[1]}) {{\n^bb0({names}):\n"
            + "\n".join(lines)
            + f"\nlinalg.yield {made} : f32\n}} -> {out[1]}"
        )

    def _held(self, state: str, tokens: Mapping[str, tuple[str, str, str]]) -> str:
        """What the state holds for the token's key, (B, H, Dv)."""
        spec = self.spec
        shape = (spec.B, spec.H, spec.Dv)
        inputs = {"s": (state, self.state_type, _B + _H + _D + _V), "k": tokens["k"]}
        lines = ["%p = arith.mulf %s_, %k_ : f32", "%y = arith.addf %sum, %p : f32"]
        if spec.decay:
            inputs["a"] = tokens["decay"]
            lines = [
                "%d = arith.mulf %s_, %a_ : f32",
                "%p = arith.mulf %d, %k_ : f32",
                "%y = arith.addf %sum, %p : f32",
            ]
        out = (self._zeros(shape), tensor_type(shape, "f32"), _B + _H + _V)
        return self._generic(_B + _H + _V + _D, _D, inputs, out, lines)

    def _next(self, state: str, tokens: Mapping[str, tuple[str, str, str]], held: str) -> str:
        """The state behind the token."""
        spec = self.spec
        inputs = {"s": (state, self.state_type, _B + _H + _D + _V), "k": tokens["k"], "v": tokens["v"]}
        lines, old, added = list[str](), "%s_", "%v_"
        if spec.decay:
            inputs["a"] = tokens["decay"]
            lines.append("%d = arith.mulf %s_, %a_ : f32")
            old = "%d"
        if spec.beta:
            inputs["r"] = tokens["beta"]
            inputs["w"] = (held, tensor_type((spec.B, spec.H, spec.Dv), "f32"), _B + _H + _V)
            lines += ["%left = arith.subf %v_, %w_ : f32", "%step = arith.mulf %left, %r_ : f32"]
            added = "%step"
        lines += [f"%p = arith.mulf %k_, {added} : f32", f"%y = arith.addf {old}, %p : f32"]
        axes = _B + _H + _D + _V
        (_, (shape, _)) = spec.results
        return self._generic(axes, "", inputs, (self._empty(shape), self.state_type, axes), lines)

    def _read(self, state: str, q: tuple[str, str, str]) -> tuple[str, tuple[Dim, ...]]:
        """What the token's queries read of the state, and its shape."""
        spec = self.spec
        shape = (spec.B, spec.H, spec.G, spec.Dv)
        inputs = {"q": q, "s": (state, self.state_type, _B + _H + _D + _V)}
        scale = self.t.f32(spec.scale)
        lines = [
            f"%m = arith.mulf %q_, {scale} : f32",
            "%p = arith.mulf %m, %s_ : f32",
            "%y = arith.addf %sum, %p : f32",
        ]
        out = (self._zeros(shape), tensor_type(shape, "f32"), _B + _H + _G + _V)
        return self._generic(_B + _H + _G + _V + _D, _D, inputs, out, lines), shape

    def _written(self, made: tuple[str, tuple[Dim, ...]], rows: str, at: str) -> str:
        """The rows with a token's."""
        value, shape = made
        whole = self.spec.results[0][0]
        part = tensor_type(shape, "f32")
        return self.t.let(
            f"tensor.insert_slice {value} into {rows}{self._bounds(whole, at)} : {part} into {self.read_type}"
        )
