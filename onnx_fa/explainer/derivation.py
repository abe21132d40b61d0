"""What `onnx-fa derive` tells of one site: its program, the chain of rules, what was rejected and why, traffic against the lower
bound, and the kernel that it became."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from onnx_fa.derive.attention import OUTPUT, STEPS, TOTAL, WEIGHT, function_of, program_of
from onnx_fa.derive.chain import Step, chain_of
from onnx_fa.derive.check import F64, Function, evaluate
from onnx_fa.derive.search import Derivation, NoRecurrenceError, derive
from onnx_fa.derive.terms import Term
from onnx_fa.errors import UnsupportedError
from onnx_fa.explainer.page import template
from onnx_fa.kernels.choose import emit_kernel
from onnx_fa.spec.attention import AttentionSpec
from onnx_fa.spec.dtypes import NUMPY
from onnx_fa.spec.expr import evaluate as evaluate_expr
from onnx_fa.spec.reference import rounded
from onnx_fa.spec.target import Target
from onnx_fa.spec.words import einsums

_KEYS = 24
"""Random keys that every step is checked on."""
FAST_MEMORY = 1 << 20
"""Bytes of fast memory that the traffic is counted for, those of a core's second cache."""


@dataclass(frozen=True)
class Told:
    """One site. `errors`: how far each step's value is from the program's, relatively, in float64 on random keys. `rejected`: other
    forms and why they were not chosen. `traffic`: in words, one line each."""

    name: str
    spec: AttentionSpec
    derivation: Derivation | None
    chain: tuple[Step, ...]
    errors: tuple[float, ...]
    rejected: tuple[tuple[str, str], ...]
    traffic: tuple[str, ...]
    kernel: str
    refused: str = ""

    @property
    def columns(self) -> int:
        return self.spec.Dv

    def to_dict(self) -> dict[str, Any]:
        """As JSON: the chain from the model's cascade to the chosen one, with f32 bytes held per row and additions per score."""
        d = self.derivation
        return {
            "name": self.name,
            "seconds": d.seconds if d else 0.0,
            "nodes": d.nodes if d else 0,
            "classes": d.classes if d else 0,
            "chain": [
                {
                    "cascade": s.cascade,
                    "rule": s.rule,
                    "passes": s.passes,
                    "bytes_held": s.bytes_held(self.columns),
                    "operations": s.operations,
                }
                for s in self.chain
            ],
            "refused": self.refused or None,
        }


def tell(name: str, spec: AttentionSpec, target: Target) -> Told:
    """The derivation of one site."""
    try:
        found = derive(program_of(spec))
    except NoRecurrenceError as e:
        return Told(name, spec, None, (), (), (), traffic(spec), _kernel(spec, target), str(e))
    chain = tuple(chain_of(found, OUTPUT))
    return Told(
        name,
        spec,
        found,
        chain,
        tuple(_errors(spec, [s.term for s in chain])),
        tuple(_rejected(spec, found, chain)),
        traffic(spec),
        _kernel(spec, target),
    )


def _functions(spec: AttentionSpec) -> dict[str, Function]:
    """The program's functions in NumPy."""

    def of(name: str) -> Function:
        expr = function_of(spec, name)
        return lambda x: np.asarray(evaluate_expr(expr, x, []), np.float64)

    found: dict[str, Function] = {"Reciprocal": lambda x: 1 / x}
    if spec.rounding is not None:
        rounding = spec.rounding
        found[STEPS] = lambda p: rounded(rounding, p) / rounding.scale
    if spec.weighting is not None:
        found |= {WEIGHT: of(WEIGHT)} | ({TOTAL: of(TOTAL)} if spec.weighting.total is not None else {})
    return found


def _errors(spec: AttentionSpec, terms: Sequence[Term]) -> list[float]:
    draw = np.random.default_rng(0)
    keys: dict[str, F64] = {
        "s": draw.normal(size=_KEYS) * 3,
        "v": draw.normal(size=(_KEYS, 4)),
        "w": draw.random(_KEYS),
    }
    values = [evaluate(t, keys, functions=_functions(spec)) for t in terms]
    size = float(np.linalg.norm(values[0])) or 1.0
    return [float(np.linalg.norm(v - values[0])) / size for v in values]


def _rejected(spec: AttentionSpec, found: Derivation, chain: Sequence[Step]) -> list[tuple[str, str]]:
    """Forms that cost more, with the reason."""
    rejected: list[tuple[str, str]] = []
    for step in chain[:-1]:
        if step.passes > chain[-1].passes and all(step.passes != int(w[1].split()[0]) for w in rejected):
            rejected.append(
                (step.cascade, f"{step.passes} passes over the keys, the chosen form takes {chain[-1].passes}")
            )
    bare = derive(dataclasses.replace(found.program, bounded=("s",)))
    if not found.program.bounded and bare.recurrence != found.recurrence:
        form = next(str(t) for name, t, _ in bare.best if name == OUTPUT)
        rejected.append((form, "nothing bounds the exponent of a score: e^89 is no f32, e^12 no f16"))
    if spec.rounding is not None:
        rejected.append(
            ("one pass", "a rounded number is no multiple of what it was: nothing leaves the sum over earlier keys")
        )
    return rejected


def traffic(spec: AttentionSpec) -> tuple[str, ...]:
    """What moves between fast and slow memory, of one head, against what must (Saha and Ye 2024: of M numbers of fast memory with
    M >= d^2, N queries and keys and head dim d, attention moves N^2 d^2 / M numbers at the least, but for a factor)."""
    sq, skv, d = spec.Sq, spec.Skv, max(spec.D, spec.Dv)
    if not isinstance(sq, int) or not isinstance(skv, int):
        return ("lengths that are known only at run time: no numbers",)
    size = np.dtype(NUMPY[spec.dtype]).itemsize
    memory = FAST_MEMORY // size
    block = max(1, memory // (4 * d))
    tiled = sq * (spec.D + spec.Dv) + math.ceil(sq / block) * skv * (spec.D + spec.Dv)
    plain = sq * (spec.D + spec.Dv) + skv * (spec.D + spec.Dv) + 4 * sq * skv
    bound = sq * skv * d * d / memory
    once = (sq + skv) * (spec.D + spec.Dv)
    return (
        f"of one head, with {FAST_MEMORY >> 10} KiB of fast memory: blocks of {min(block, sq)} queries move "
        f"{tiled * size / 2**20:.3g} MiB",
        f"scores written and read twice move {plain * size / 2**20:.3g} MiB",
        f"lower bound (Saha and Ye 2024, without its constant): {max(bound, once) * size / 2**20:.3g} MiB"
        + (" (every operand once)" if once >= bound else ""),
    )


def _kernel(spec: AttentionSpec, target: Target) -> str:
    try:
        kernel = emit_kernel(spec, target)
    except UnsupportedError as e:
        return f"no kernel for {target.name}: {e}"
    tiles = ", ".join(f"{k} {v}" for k, v in kernel.config.items())
    return f"{target.name}: body {kernel.body}, {len(kernel.text.splitlines())} lines ({tiles})"


def lines_of(told: Told) -> list[str]:
    """The site as text."""
    d = told.derivation
    lines = [f"{told.name} ({told.spec.variant})", *(f"  {x}" for x in einsums(told.spec))]
    if d is None:
        return [*lines, f"  refused: {told.refused}"]
    lines.append(f"  e-graph: {d.nodes} nodes, {d.classes} classes, {d.rounds} rounds, {d.seconds:.3f} s")
    for n, (step, error) in enumerate(zip(told.chain, told.errors, strict=True)):
        if n:
            lines.append(f"    by: {step.rule}" + (f"   [{step.proof}]" if step.proof else ""))
        lines.append(
            f"  {step.passes} pass{'es' * (step.passes != 1)}, {step.bytes_held(told.columns)} bytes held per row, "
            f"{step.operations} operations per score, float64 error {error:.0e}"
        )
        lines.append(f"    {step.cascade}")
    lines += ["  recurrence:", *(f"    {x}" for x in d.recurrence.lines)]
    for form, reason in told.rejected:
        lines.append(f"  not chosen: {form}")
        lines.append(f"    because: {reason}")
    return [*lines, *(f"  traffic: {x}" for x in told.traffic), f"  kernel: {told.kernel}"]


def derivation_page(title: str, sites: Sequence[Told]) -> str:
    """A self-contained page."""
    shown = [
        {
            "told": t,
            "einsums": einsums(t.spec),
            "steps": list(zip(t.chain, t.errors, strict=True)),
            "variant": t.spec.variant,
        }
        for t in sites
    ]
    return template("derive.html").render(model=title, sites=shown)
