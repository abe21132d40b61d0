"""The ordered tables of patterns: one file per layer that can be peeled off an attention, in folders by what they read.

In: a node or value of a graph. Out: what it is a layer of (`onnx_fa.match.types`), or nothing where this file knows no such thing.
"""

from onnx_fa.match import Patterns
from onnx_fa.patterns.masks import layers as masks
from onnx_fa.patterns.operands import cache, operand, place, product
from onnx_fa.patterns.ops import blocked, contrib, flex, standard
from onnx_fa.patterns.quant import rounding
from onnx_fa.patterns.score import elementwise, passthrough, regroup, scale, softcap
from onnx_fa.patterns.softmax import guard, in_place, leftover, own_sum, probability, sink, spellings, unnormalised

PATTERNS = Patterns(
    anchors=(
        unnormalised.refuse_mixed_scores,
        spellings.find_softmax,
        in_place.find_weights,
        in_place.find_shares,
        unnormalised.refuse_unnormalised,
        leftover.refuse_leftover,
    ),
    ops=(
        standard.match_attention,
        contrib.match_contrib,
        flex.match_flex_attention,
        rounding.refuse_integer_softmax,
        blocked.match_blocked,
    ),
    score=(
        passthrough.peel_noop,
        passthrough.peel_added_zero,
        regroup.peel_regroup,
        softcap.peel_softcap,
        scale.peel_scale,
        masks.peel_add,
        masks.peel_where,
        elementwise.peel_elementwise,
    ),
    after=(
        unnormalised.refuse_mixed_heads,
        passthrough.skip_noop,
        passthrough.skip_added_zero,
        regroup.follow_regroup,
        own_sum.divide_by_own_sum,
        own_sum.drop_by_product,
        probability.divide_anew,
        guard.read_guard,
        probability.cut_sink,
        probability.move_factor,
        rounding.read_rounding_of_probabilities,
    ),
    tail=(sink.read_gate,),
    product=product.read_product,
    joined_score=cache.join_scores,
    joined_values=cache.join_values,
    operand=operand.find_readings,
    place=place.place_tensor,
    mask=masks.read_terms,
)
