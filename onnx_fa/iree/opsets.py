"""A model of an old opset, as iree-compile reads it: of the definitions of operators before opset 13 it has few, and of those it
takes some for what they are today (a Split whose sizes are an attribute cuts into equal parts)."""

from __future__ import annotations

import onnx
import onnx.inliner
import onnx.version_converter

from onnx_fa.errors import ModelError
from onnx_fa.graph.ops import STANDARD
from onnx_fa.iree.legalise.writer import all_nodes

OPSET = 17
"""What iree-import-onnx raises models to as well."""


def raise_opset(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model in opset 17, or in the later one that it has; types of values are to be inferred anew. Raises ModelError where a
    node cannot be written so."""
    version = next((o.version for o in model.opset_import if o.domain in STANDARD), OPSET)
    if version >= OPSET:
        return model
    inlined = onnx.inliner.inline_local_functions(model) if model.functions else model
    try:
        raised = onnx.version_converter.convert_version(inlined, OPSET)
    except (RuntimeError, onnx.version_converter.ConvertError) as e:
        reason = " ".join(str(e).split())[:300]
        raise ModelError(f"the model is of opset {version}, and cannot be raised to {OPSET} for IREE: {reason}") from e
    # The converter drops what nodes are marked with.
    marks = {
        name: node.metadata_props for node in all_nodes(inlined.graph) if node.metadata_props for name in node.output
    }
    for node in all_nodes(raised.graph) if marks else ():
        mark = next((marks[name] for name in node.output if name in marks), None)
        if mark is not None:
            node.metadata_props.extend(mark)
    return raised
