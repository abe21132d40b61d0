"""The ordered tables of patterns: one file per layer that can be peeled off an attention."""

from onnx_fa.match import Patterns
from onnx_fa.patterns import (
    blocked,
    contrib,
    elementwise,
    flex,
    guard,
    mask,
    operand,
    passthrough,
    probability,
    product,
    quant,
    regroup,
    scale,
    sink,
    softcap,
    softmax,
    standard,
    unnormalised,
)

PATTERNS = Patterns(
    anchors=(unnormalised.mixed_scores, softmax.anchor, unnormalised.anchor),
    ops=(standard.attention, contrib.contrib, flex.flex_attention, quant.integer_softmax, blocked.blocked),
    score=(
        passthrough.on_score,
        regroup.on_score,
        softcap.softcap,
        scale.scale,
        mask.add,
        mask.where,
        elementwise.elementwise,
    ),
    after=(
        unnormalised.mixed_heads,
        passthrough.on_probabilities,
        regroup.on_probabilities,
        probability.masked_anew,
        guard.guard,
        probability.cut_sink,
        probability.factor,
        quant.rounded_probabilities,
    ),
    tail=(sink.gate,),
    product=product.product,
    operand=operand.readings,
    place=operand.place,
    mask=mask.terms,
)
