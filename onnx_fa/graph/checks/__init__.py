"""What a model that was read must hold to before anything else looks at it: one question per file, each refusal names its tensor or
node.

onnx.checker is not asked: it refuses models that run (onnxruntime's ops in the default domain), and does not look at external data
as closely.
"""

from __future__ import annotations

from pathlib import Path

import onnx

from onnx_fa.errors import ModelError
from onnx_fa.graph.checks.graphs import check_calls, check_functions, check_graph, check_opsets
from onnx_fa.graph.checks.words import check_metadata, check_text


def check_proto(proto: onnx.ModelProto, base: Path) -> None:
    """`base` is the folder that external data lies in. Raises ModelError, without the model's name."""
    if not proto.HasField("graph") or not (proto.graph.node or proto.graph.output):
        raise ModelError("not an ONNX model (no graph in it); pass a file that torch.onnx.export or onnx.save wrote")
    check_text(
        "the model's producer, domain or doc string",
        proto.producer_name,
        proto.producer_version,
        proto.domain,
        proto.doc_string,
    )
    check_metadata("the model", proto.metadata_props)
    opsets = check_opsets(proto)
    functions = check_functions(proto, base)
    nodes = check_graph(proto.graph, opsets, base)
    check_calls(functions, nodes)
