"""The steps of an entry by name, what each needs, which of them an entry has, and what other people's suites call them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from onnx_fa.zoo.entries import Entry

ALL_STEPS = (
    "export",
    "explain",
    "rewrite",
    "compile",
    "stock",
    "iree-import",
    "iree-compile",
    "iree-run",
    "check",
    "verify",
    "bench",
)
"""In their order. Those that begin with `iree-` are what unmodified IREE does with the original model and a suite's flags."""
NEEDS: dict[str, tuple[str, ...]] = {
    "export": (),
    "explain": ("export",),
    "rewrite": ("export",),
    "compile": ("export",),
    "stock": ("export",),
    "iree-import": ("export",),
    "iree-compile": ("iree-import",),
    "iree-run": ("iree-compile",),
    "check": ("compile",),
    "verify": ("compile",),
    "bench": ("compile",),
}
USES: dict[str, tuple[str, ...]] = {"bench": ("stock",)}
"""Steps whose files a step takes too, where they are run and succeed."""
OF_SUITE = ("iree-import", "iree-compile", "iree-run")
RUNNING = ("iree-run", "check", "verify", "bench")
"""Steps that run a compiled module."""
ALWAYS = {"compile": "check"}
"""What a run does behind a step, asked for or not: no module is right because it compiled."""

OF_SHARK = {
    "export": "setup",
    "explain": "import_model",
    "rewrite": "preprocessing",
    "compile": "compilation",
    "stock": "compilation",
    "check": "compiled_inference",
    "verify": "compiled_inference",
    "bench": "benchmark",
}
"""The stages of SHARK-TestSuite by our steps. Its construct_inputs, native_inference and postprocessing are parts of `verify`."""
OF_IREE = {
    "export": "import",
    "explain": "import",
    "rewrite": "import",
    "compile": "compile",
    "stock": "compile",
    "iree-import": "import",
    "iree-compile": "compile",
    "iree-run": "run",
    "check": "run",
    "verify": "run",
    "bench": "run",
}
"""The stages of iree-test-suites by our steps."""
PASS = "PASS"
NUMERICS = "Numerics"
EXPECTATIONS = "expectations"


def stages_of(entry: Entry, steps: Sequence[str]) -> dict[str, str]:
    """The stage of each step, in the words of the suite that the entry is from: of iree-test-suites, else of SHARK-TestSuite."""
    names = OF_IREE if entry.suite else OF_SHARK
    return {s: names[s] for s in steps}


def stage_reached(result: Mapping[str, Any]) -> str:
    """Where an entry's result ended, as SHARK-TestSuite says it: the first stage that failed, expected or not; PASS; or Numerics
    where outputs differ by too much. Where all succeeded and still is not as the zoo expects, "expectations"; where nothing was
    tried, "-"."""
    stages: Mapping[str, str] = result.get("stages", {})
    tried = {s: said for s, said in result["steps"].items() if not said["skipped"]}
    if not tried:
        return "-"
    if failed := [stages.get(s, s) for s, said in tried.items() if not said["ok"]]:
        # Stages come in the order of their first steps; several roads may have failed, each at another.
        return next((stage for stage in stages.values() if stage in failed), failed[0])
    if result.get("verify", {}).get("bad"):
        return NUMERICS
    return PASS if result["ok"] else EXPECTATIONS


def steps_of(entry: Entry) -> tuple[str, ...]:
    """The steps that an entry has: those of a suite only where it is a suite's test, ours only where it is an ONNX model."""
    if entry.suite is None:
        return tuple(s for s in ALL_STEPS if s not in OF_SUITE)
    if entry.source == "path" and not entry.of.endswith(".onnx"):
        return ("export", *OF_SUITE)
    return ALL_STEPS
