"""Operators that IREE's ONNX frontend does not know, found before iree-compile starts: all of them, not the first."""

from __future__ import annotations

import functools
from collections.abc import Collection

import onnx

from onnx_fa.errors import ModelError
from onnx_fa.graph.growing import APPEND_ROWS
from onnx_fa.graph.ops import BLOCKED, CONTRIB, STANDARD, op_of
from onnx_fa.graph.site_op import SITE
from onnx_fa.iree.legalise.bits_fused import BITS_NODES
from onnx_fa.iree.legalise.broadcasts import SAME_SIZES
from onnx_fa.iree.legalise.channel_norm import CHANNEL_STATISTICS
from onnx_fa.iree.legalise.convolutions import CONV_SITE
from onnx_fa.iree.legalise.indexed_products import INDEXED_PRODUCT
from onnx_fa.iree.legalise.linear_attention import LINEAR_ATTENTION_SITE
from onnx_fa.iree.legalise.linear_sites import LINEAR_SITE
from onnx_fa.iree.legalise.norm_sites import NORM_SITE
from onnx_fa.iree.legalise.packed_rows import APART
from onnx_fa.iree.legalise.recurrent_steps import RECURRENT_STEPS
from onnx_fa.iree.legalise.resize_planes import RESAMPLED_PLANES
from onnx_fa.iree.legalise.sequence_sites import SEQUENCE_SITE
from onnx_fa.iree.legalise.token_sums import TOKEN_SUMS
from onnx_fa.iree.legalise.top_k import TOP_K_SITE
from onnx_fa.iree.legalise.writer import all_nodes

UNKNOWN = frozenset(
    [
        "CausalConvWithState",
        "ConcatFromSequence",
        "CumProd",
        "ImageDecoder",
        "LinearAttention",
        "RegexFullMatch",
        "StringConcat",
        "StringNormalizer",
        "StringSplit",
        "TensorScatter",
    ]
)
"""Standard operators whose names the library of IREE 3.13 does not have. Some have a function body, which is written out before."""

_NOT_MEANT = frozenset(["BitCast"])
"""Standard operators whose names the library has for something else."""

KNOWN_CONTRIB = frozenset(
    [
        "DequantizeLinear",
        "GatherND",
        "GridSample",
        "Pad",
        "QLinearAdd",
        "QLinearAveragePool",
        "QLinearConcat",
        "QLinearConv",
        "QLinearGlobalAveragePool",
        "QLinearLeakyRelu",
        "QLinearMul",
        "QLinearSigmoid",
        "QuantizeLinear",
        "Range",
        "Trilu",
    ]
)
"""Operators of onnxruntime's own domain that it does know, or that are a standard operator under another domain."""

_OURS = BITS_NODES | {APPEND_ROWS, CHANNEL_STATISTICS, CONV_SITE, LINEAR_ATTENTION_SITE, LINEAR_SITE, NORM_SITE}
_OURS |= {APART, INDEXED_PRODUCT, RECURRENT_STEPS, RESAMPLED_PLANES, SAME_SIZES, SEQUENCE_SITE, TOKEN_SUMS, TOP_K_SITE}
"""Nodes that stand for kernels, for checks, or keep dispatches apart."""
_NODES_SHOWN = 2


def check_known(graph: onnx.GraphProto, sites: Collection[str]) -> None:
    """`sites` are the names of the nodes that a kernel takes the place of. Raises ModelError that names all that is unknown."""
    refused: dict[tuple[str, str], list[str]] = {}
    for node in all_nodes(graph):
        if reason := _reason(node, sites):
            refused.setdefault((_words(node), reason), []).append(node.name)
    if not refused:
        return
    if len(refused) == 1:
        ((op, reason),) = refused
        raise ModelError(f"{_shown(next(iter(refused.values())))}: {op} {reason}")
    told = [f"{op} {reason} ({_shown(names)})" for (op, reason), names in refused.items()]
    raise ModelError(f"{sum(map(len, refused.values()))} nodes cannot be compiled: " + "; ".join(told))


def _reason(node: onnx.NodeProto, sites: Collection[str]) -> str:
    """Why a node cannot be compiled; "" where it can."""
    op = op_of(node)
    if node.domain in STANDARD:
        if op not in _standard_names():
            return "is no operator of ONNX, and no model-local function either"
        return "is unknown to IREE" if op in UNKNOWN | _NOT_MEANT else ""
    if op in _OURS or (op == SITE and node.name in sites):
        return ""
    if node.domain == BLOCKED:
        return (
            "has channels in blocks whose size the file does not say: that of the machine on which onnxruntime saved it; save the "
            "model with a lower level of optimisation (ORT_ENABLE_EXTENDED)"
        )
    if node.domain != CONTRIB:
        return (
            "has no definition in the model and is unknown to IREE; export it as standard operators or as a "
            "model-local function"
        )
    if "Attention" in op or op.endswith(".RotaryEmbedding"):
        return (
            "could not be written in standard operators (explain says why), and IREE's own import of it is not to be "
            "relied on"
        )
    return "" if _bare(op) in KNOWN_CONTRIB else "is unknown to IREE, and not written out for it"


@functools.cache
def _standard_names() -> frozenset[str]:
    return frozenset(schema.name for schema in onnx.defs.get_all_schemas() if schema.domain in STANDARD)


def _words(node: onnx.NodeProto) -> str:
    op = _bare(op_of(node))
    if node.domain in STANDARD:
        return op
    if node.domain == BLOCKED:
        return "what onnxruntime computes on its own layout"
    return f"{op} of com.microsoft" if node.domain == CONTRIB else f"operator {op} of domain {node.domain!r}"


def _bare(op: str) -> str:
    """The name without its domain."""
    return op.rpartition(".")[2]


def _shown(names: list[str]) -> str:
    more = f" and {len(names) - _NODES_SHOWN} more" * (len(names) > _NODES_SHOWN)
    return f"node {', '.join(map(repr, names[:_NODES_SHOWN]))}{more}"
