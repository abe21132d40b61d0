"""The ordered tables of patterns: one file per layer that can be peeled off an attention."""

from onnx_fa.match import Patterns
from onnx_fa.patterns import (
    blocked,
    elementwise,
    guard,
    mask,
    operand,
    passthrough,
    probability,
    scale,
    sink,
    softcap,
    softmax,
    standard,
    unnormalised,
)

PATTERNS = Patterns(
    anchors=(softmax.anchor, unnormalised.anchor),
    ops=(standard.attention, blocked.blocked),
    score=(passthrough.on_score, softcap.softcap, scale.scale, mask.add, mask.where, elementwise.elementwise),
    after=(
        passthrough.on_probabilities,
        probability.masked_anew,
        guard.guard,
        probability.cut_sink,
        probability.factor,
        unnormalised.mixed_heads,
    ),
    tail=(sink.gate,),
    operand=operand.read_operand,
    mask=mask.terms,
)
