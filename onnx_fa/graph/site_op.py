"""The internal ONNX node that stands for a recognised site on its way to a kernel (never written to a user's file)."""

DOMAIN = "onnx_fa"
OP_TYPE = "AttentionSite"
SPEC_ATTRIBUTE = "spec"
"""JSON of `AttentionSpec.to_dict()`. The node's inputs are the spec's operands in order, its one output the attention's."""
