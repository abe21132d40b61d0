"""The steps of an entry by name, what each needs, and which of them an entry has."""

from __future__ import annotations

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
    "verify": ("compile",),
    "bench": ("compile",),
}
OF_SUITE = ("iree-import", "iree-compile", "iree-run")
RUNNING = ("iree-run", "verify", "bench")
"""Steps that run a compiled module."""


def steps_of(entry: Entry) -> tuple[str, ...]:
    """The steps that an entry has: those of a suite only where it is a suite's test, ours only where it is an ONNX model."""
    if entry.suite is None:
        return tuple(s for s in ALL_STEPS if s not in OF_SUITE)
    if entry.source == "path" and not entry.of.endswith(".onnx"):
        return ("export", *OF_SUITE)
    return ALL_STEPS
