"""The internal ONNX node that stands for a recognised site on its way to a kernel (never written to a user's file)."""

DOMAIN = "onnx_fa"
OP_TYPE = "AttentionSite"
SITE = f"{DOMAIN}.{OP_TYPE}"
"""What `op_of` calls the node. Its inputs are the spec's operands in order, its outputs the attention's and its row statistics."""
SPEC_ATTRIBUTE = "spec"
"""JSON of `AttentionSpec.to_dict()`, in the file that --keep-intermediates writes. In memory the node has no attribute: its spec
stands in the `PlannedSite` that holds the node."""
