"""onnx_fa: every attention in an ONNX model becomes one tiled, fused IREE dispatch.

    model, report = onnx_fa.rewrite("model.onnx")        # standard ops in a fusable order
    onnx_fa.save(model, "model.fa.onnx")
    report = onnx_fa.compile(model, "model.vmfb")        # kernels in place, inspected
    outputs = onnx_fa.run("model.vmfb", *arrays)         # NumPy arrays, in the model's order
    onnx_fa.verify(model).check()                        # against onnxruntime and float64
    model, report = onnx_fa.export(module, args)         # torch.onnx.export, then rewrite

Models are `onnx.ModelProto`, `onnx_ir.Model` or a path. What goes wrong with them raises an `OnnxFaError`.
"""

from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    __version__: str

    from onnx_fa.benchmark.models import bench
    from onnx_fa.errors import OnnxFaError
    from onnx_fa.exporter import export
    from onnx_fa.forms.report import RewriteReport, SiteReport
    from onnx_fa.forms.rewrite import explain, rewrite
    from onnx_fa.graph.io import save
    from onnx_fa.iree.compile import compile_model as compile
    from onnx_fa.iree.run import run
    from onnx_fa.match.misses import Miss
    from onnx_fa.spec.attention import AttentionSpec
    from onnx_fa.spec.target import Target, parse_target
    from onnx_fa.verifier.verifier import verify

__all__ = [
    "AttentionSpec",
    "Miss",
    "OnnxFaError",
    "RewriteReport",
    "SiteReport",
    "Target",
    "__version__",
    "bench",
    "compile",
    "explain",
    "export",
    "parse_target",
    "rewrite",
    "run",
    "save",
    "verify",
]

_HOME = {
    "AttentionSpec": ("spec.attention", "AttentionSpec"),
    "Miss": ("match.misses", "Miss"),
    "OnnxFaError": ("errors", "OnnxFaError"),
    "RewriteReport": ("forms.report", "RewriteReport"),
    "SiteReport": ("forms.report", "SiteReport"),
    "Target": ("spec.target", "Target"),
    "bench": ("benchmark.models", "bench"),
    "compile": ("iree.compile", "compile_model"),
    "explain": ("forms.rewrite", "explain"),
    "export": ("exporter", "export"),
    "parse_target": ("spec.target", "parse_target"),
    "rewrite": ("forms.rewrite", "rewrite"),
    "run": ("iree.run", "run"),
    "save": ("graph.io", "save"),
    "verify": ("verifier.verifier", "verify"),
}

_checkout = Path(__file__).resolve().parent.parent
if (_checkout / "pyproject.toml").is_file() and (_checkout / "patterns").is_dir():
    # In a checkout, patterns/ and models/ lie beside the package; installed, they lie inside it. An editable install maps both
    # names, but to the checkout that was installed: a second checkout on the path (a git worktree, a bisection) would run its own
    # onnx_fa/ on the patterns of the first. So each checkout looks beside itself.
    __path__.append(str(_checkout))


def __getattr__(name: str) -> Any:
    """Loads a public name on first use: the command line must start fast."""
    if name == "__version__":
        return _version()
    if name not in _HOME:
        raise AttributeError(f"module 'onnx_fa' has no attribute {name!r}")
    module, attribute = _HOME[name]
    value = getattr(import_module(f"onnx_fa.{module}"), attribute)
    globals()[name] = value
    return value


def _version() -> str:
    try:
        return version("onnx-fa")
    except PackageNotFoundError:  # run from a checkout that is not installed
        return "(not installed)"
