"""The comparisons of one site: the rewritten one and its kernel, alone, against float64."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx_ir as ir

from onnx_fa.errors import OnnxFaError, UnsupportedError
from onnx_fa.forms.replace import Site
from onnx_fa.iree.kernels import Planned, operands_of
from onnx_fa.spec.accuracy import LOSSY_PRODUCT
from onnx_fa.spec.attention import AttentionSpec
from onnx_fa.spec.cases import packed
from onnx_fa.spec.reference import attention, logits
from onnx_fa.spec.rounding_bounds import rounds as ties
from onnx_fa.spec.rounding_bounds import slack
from onnx_fa.verifier.comparisons import Check, norm_error
from onnx_fa.verifier.inputs import Array
from onnx_fa.verifier.runners import Runner

SITE_TOLERANCE = {"f64": 1e-12, "f32": 2e-6, "f16": 2e-3, "bf16": 1e-2, **LOSSY_PRODUCT}
"""One site against float64: 2-norm of the difference over the 2-norm of the reference. Where the original itself is
further off, its error is allowed, but never more than ten times this. The last are for kernels that were asked for that."""
ROUNDING = {"f64": 2.3e-16, "f32": 1.2e-7, "f16": 9.8e-4, "bf16": 7.9e-3, **LOSSY_PRODUCT}
"""Added to both, times the largest score that a row's softmax rests on: rounding a score moves its exp by that much,
in every spelling. It is 1e-3 for a row where all keys are masked by -1e4, and nothing to speak of elsewhere."""
SWALLOWED = 1e16
"""A score of this size hides what is added to it even from float64."""
REFERENCE_BYTES = 1 << 30
"""Sites whose float64 scores would need more than this are not compared (the table says so)."""


class SiteKernels:
    """The kernels that the compiled model calls, each compiled alone, and what the model calls them with."""

    def __init__(self, planned: Planned, folder: Path) -> None:
        from onnx_fa.iree.alone import FUNCTION, compile_alone
        from onnx_fa.iree.caller_thread import site_device
        from onnx_fa.iree.run import load_module

        self.of, target = planned.kernels, planned.target
        self.notes: list[str] = []
        self._calls: dict[str, Callable[..., list[Array]]] = {}
        self._runner: Runner | None = None
        try:
            model, self._values = operands_of(planned)
        except UnsupportedError as e:
            self.notes.append(f"kernels are not tried alone: {e}")
            self._values = {}
            return
        if model.graph.outputs:
            self._runner = Runner(model, folder / "operands.onnx")
        for name, kernel in {k.name: k for k in self.of.values()}.items():
            compile_alone(kernel, folder / f"{name}.vmfb", target)
            device = site_device(kernel.spec, target)
            self._calls[name] = load_module(folder / f"{name}.vmfb", device, FUNCTION)

    def operands(self, arrays: Mapping[str, Array]) -> dict[str, list[Array]]:
        """What every site's kernel is called with."""
        known = {**arrays, **(self._made(self._runner, arrays) if self._runner is not None else {})}
        return {
            site: [known[str(v.name)] if v.const_value is None else v.const_value.numpy() for v in values]
            for site, values in self._values.items()
        }

    @staticmethod
    def _made(runner: Runner, arrays: Mapping[str, Array]) -> dict[str, Array]:
        """What a kernel gets has the declared type, whatever it was computed in."""
        return {name: x.astype(runner.declared(name, x), copy=False) for name, x in runner(arrays).items()}

    def run(self, site: str, operands: Sequence[Array]) -> Array:
        return self._calls[self.of[site].name](*(np.asarray(packed(x), order="C") for x in operands))[0]


class JudgedSite:
    """A site in float64, and what of it can be held against a result."""

    def __init__(self, spec: AttentionSpec, operands: Sequence[Array]) -> None:
        with np.errstate(all="ignore"):
            self.want = attention(spec, *operands)
            s = logits(spec, *operands)
            keys = s[..., : s.shape[-1] - (spec.sink is not None)]
            peaks, tops = (np.abs(x.max(axis=-1, initial=-np.inf)) for x in (keys, s))
        # Beyond 1e6 it is a mask. One that swallows what it is added to, in float64 too, has no rounding that could matter; of one
        # that float64 sees through (all keys masked by -1e9) the reference knows more than any f32 computation, and says nothing.
        self.peak = float(np.max(np.concatenate([x[x < 1e6] for x in (peaks, tops)]), initial=0.0))
        seen_through = (peaks >= 1e6) & (peaks < SWALLOWED) & (spec.dtype != "f64")
        self._unknown = np.transpose(np.broadcast_to(seen_through[..., None], (*peaks.shape, spec.Dv)), spec.o_layout)
        self._judged = np.where(self._unknown, np.nan, self.want)
        # What ties of roundings may do is no error (see ties.py).
        self.free = slack(spec, operands) if ties(spec) else None
        rows = f"{int(seen_through.sum())} rows not judged: a finite mask on all keys, which f32 cannot see through"
        self._note = rows * bool(seen_through.any())

    def error(self, got: Array) -> float:
        got = np.where(self._unknown, np.nan, got) if got.shape == self.want.shape else got
        return norm_error(got, self._judged, self.free)

    def check(self, inputs: str, what: str, got: Array, allowed: float) -> Check:
        error = self.error(got)
        note = "NaN at other places, or another shape" if not np.isfinite(error) else self._note
        return Check(inputs, what, "float64", error, allowed, error <= allowed, note)


class SiteChecks:
    """The comparisons of one site; `peak` is the largest score that a softmax of it rests on, `free` what ties may move. `in_f32`:
    the rewritten model was run in f32, so that a site of bf16 is held to f32, but for its kernel."""

    def __init__(
        self,
        inputs: str,
        site: Site,
        output: ir.Value,
        values: Mapping[str, Array],
        original: Mapping[str, Array],
        *,
        in_f32: bool = False,
    ) -> None:
        self.site, self.checks, self.peak, self.free = site, list[Check](), 0.0, None
        self._inputs, self._what, self._base = inputs, f"site {site.name}", SITE_TOLERANCE[site.spec.dtype]
        self._operands = [values[str(v.name)] for v in site.operands]
        self._judged = _judged(site.spec, self._operands)
        if self._judged is None:
            self.checks.append(self._not_made("rewritten", "too large for the float64 reference"))
            return
        self.peak, self.free = self._judged.peak, self._judged.free
        theirs = original.get(str(output.name))
        kind = "f32" if in_f32 and site.spec.dtype == "bf16" else site.spec.dtype
        base = SITE_TOLERANCE[kind]
        if theirs is not None and theirs.shape == self._judged.want.shape:
            error, most = self._judged.error(theirs), 10 * base
            # For information: the original may be less exact than what it is compared with.
            self.checks.append(Check(inputs, f"{self._what}: original", "float64", error, most, None, "not judged"))
            if np.isfinite(error):
                base = max(base, min(error, most))
        self._base = max(self._base, base)
        allowed = base + ROUNDING[kind] * self.peak
        self.checks.append(self._judged.check(inputs, f"{self._what}: rewritten", values[str(output.name)], allowed))

    def kernel(self, kernels: SiteKernels, operands: Sequence[Array] | None) -> Check:
        """The site's kernel alone, on what the compiled model calls it with."""
        kernel = kernels.of.get(self.site.name)
        if kernel is None or operands is None:
            return self._not_made("kernel", "no kernel")
        spec, judged = kernel.spec, self._judged
        if spec != self.site.spec or not _equal(operands, self._operands):
            judged = _judged(spec, operands)
        if judged is None:
            return self._not_made("kernel", "too large for the float64 reference")
        # Kernels keep scores in f32 at least, whatever the operands are.
        allowed = self._base + ROUNDING["f32" if spec.dtype != "f64" else "f64"] * judged.peak
        if kernel.lossy:
            allowed = max(allowed, SITE_TOLERANCE[kernel.lossy] + ROUNDING[kernel.lossy] * judged.peak)
        return judged.check(self._inputs, f"{self._what}: kernel", kernels.run(self.site.name, operands), allowed)

    def _not_made(self, who: str, why: str) -> Check:
        return Check(self._inputs, f"{self._what}: {who}", "float64", None, None, None, why)


def _judged(spec: AttentionSpec, operands: Sequence[Array]) -> JudgedSite | None:
    """None where the scores would take too much memory."""
    elements = float(np.prod([_size(d, spec, operands) for d in spec.score_shape], dtype=np.float64))
    return JudgedSite(spec, operands) if elements * 8 <= REFERENCE_BYTES else None


def _equal(a: Sequence[Array], b: Sequence[Array]) -> bool:
    return len(a) == len(b) and all(
        x.dtype == y.dtype and x.shape == y.shape and x.tobytes() == y.tobytes() for x, y in zip(a, b, strict=True)
    )


def _size(dim: int | str, spec: AttentionSpec, operands: Sequence[Array]) -> int:
    if isinstance(dim, int):
        return dim
    for shape, array in zip(spec.operand_shapes, operands, strict=True):
        if dim in shape:
            return int(array.shape[shape.index(dim)])
    raise OnnxFaError(f"dim {dim} of a site is in none of its operands")
