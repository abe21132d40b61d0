"""The ordered tables of patterns: one file per layer that can be peeled off an attention, in folders by what they read.

In: a node or value of a graph. Out: what it is a layer of (`onnx_fa.match.types`), or nothing where this file knows no such thing.
"""

from onnx_fa.match import Patterns
from onnx_fa.patterns.masks import layers as masks
from onnx_fa.patterns.operands import cache, operand, place, product
from onnx_fa.patterns.ops import blocked, contrib, flex, standard
from onnx_fa.patterns.quant import rounding
from onnx_fa.patterns.score import elementwise, passthrough, regroup, scale, softcap
from onnx_fa.patterns.softmax import guard, leftover, probability, sink, spellings, unnormalised

PATTERNS = Patterns(
    anchors=(unnormalised.mixed_scores, spellings.anchor, unnormalised.anchor, leftover.anchor),
    ops=(standard.attention, contrib.contrib, flex.flex_attention, rounding.integer_softmax, blocked.blocked),
    score=(
        passthrough.on_score,
        regroup.on_score,
        softcap.softcap,
        scale.scale,
        masks.add,
        masks.where,
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
        rounding.rounded_probabilities,
    ),
    tail=(sink.gate,),
    product=product.product,
    joined_score=cache.joined_score,
    joined_values=cache.joined_values,
    operand=operand.readings,
    place=place.place,
    mask=masks.terms,
)
