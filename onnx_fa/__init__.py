"""onnx_fa: every attention in an ONNX model becomes one tiled, fused IREE dispatch."""

from pathlib import Path

_checkout = Path(__file__).resolve().parent.parent
if (_checkout / "pyproject.toml").is_file() and (_checkout / "patterns").is_dir():
    # In a checkout, patterns/ and models/ lie beside the package; installed, they lie inside it.
    __path__.append(str(_checkout))
