"""The ordered tables of patterns: one file per layer that can be peeled off an attention."""

from onnx_fa.match import Patterns
from onnx_fa.patterns import (
    blocked,
    contrib,
    flex,
    guard,
    mask,
    operand,
    passthrough,
    product,
    regroup,
    scale,
    softcap,
    softmax,
    standard,
)

PATTERNS = Patterns(
    anchors=softmax.anchor,
    ops=(standard.attention, contrib.contrib, flex.flex_attention, blocked.blocked),
    score=(passthrough.on_score, regroup.on_score, softcap.softcap, scale.scale, mask.add, mask.where),
    after=(passthrough.on_probabilities, regroup.on_probabilities, guard.nan_guard),
    product=product.product,
    operand=operand.readings,
    place=operand.place,
    mask=mask.terms,
)
