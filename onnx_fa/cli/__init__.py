"""The command line.

In: arguments. Out: one call of the Python API, one line for every error, and an exit code.
"""

from __future__ import annotations

from onnx_fa.cli.command import main as main
