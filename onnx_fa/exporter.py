"""From a PyTorch module straight to a rewritten ONNX model."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

import onnx

from onnx_fa.errors import MissingDependencyError
from onnx_fa.forms.replace import Form
from onnx_fa.forms.report import RewriteReport
from onnx_fa.forms.rewrite import check_form, rewrite

if TYPE_CHECKING:
    import torch


def export(
    module: torch.nn.Module,
    args: tuple[Any, ...],
    *,
    form: Form = "decomposed",
    opset: int = 18,
    dynamo: bool = True,
    input_names: Sequence[str] | None = None,
    output_names: Sequence[str] | None = None,
    dynamic_shapes: dict[str, Any] | tuple[Any, ...] | list[Any] | None = None,
) -> tuple[onnx.ModelProto, RewriteReport]:
    """`torch.onnx.export(module.eval(), args)`, then `rewrite` to `form`.

    `args` are the example inputs, whose shapes are the model's unless `dynamic_shapes` (as torch.onnx.export takes it)
    says otherwise. Raises ValueError for a form that is none, and MissingDependencyError without torch (or onnxscript, which
    the dynamo exporter needs); torch's own export errors pass through.
    """
    check_form(form)
    try:
        import torch
    except ImportError as e:
        raise MissingDependencyError("export needs PyTorch: pip install 'onnx-fa[torch]'") from e
    names: dict[str, Any] = {
        "input_names": list(input_names) if input_names is not None else None,
        "output_names": list(output_names) if output_names is not None else None,
        "opset_version": opset,
        "verbose": False,
    }
    training = module.training
    module.eval()
    try:
        if dynamo:
            try:
                program = torch.onnx.export(module, args, dynamo=True, dynamic_shapes=dynamic_shapes, **names)
            except ModuleNotFoundError as e:
                raise MissingDependencyError(f"torch's dynamo exporter needs {e.name}: pip install {e.name}") from e
            assert program is not None
            proto = program.model_proto
        else:
            buffer = io.BytesIO()
            torch.onnx.export(module, args, cast(Any, buffer), dynamo=False, **names)  # it takes a stream too
            proto = onnx.load_model_from_string(buffer.getvalue())
    finally:
        module.train(training)
    return rewrite(proto, form)
