"""A spec in words and as einsums, for people."""

from __future__ import annotations

from collections.abc import Sequence
from typing import assert_never

from onnx_fa.spec.attention import AttentionSpec
from onnx_fa.spec.expr import words as expression
from onnx_fa.spec.terms import AddMask, BoolMask, Causal, Elementwise, MaskTerm, SlidingWindow, Weighting

_EMPTY_ROW = {
    "nan": "NaN",
    "zero": "zero",
    "guarded": "zero, as does any row that became NaN",
    "mean": "the mean of V, since masked scores are finite",
}


def shape_words(dims: Sequence[object]) -> str:
    return "x".join(map(str, dims)) or "scalar"


def mask_words(term: MaskTerm) -> str:
    """A mask term in words, e.g. "causal from the end", "bool 2x1x1xS"."""

    def at(offset: int | str) -> str:
        if offset == 0:
            return ""
        return " from the end" if offset == "end" else f" offset {offset}"

    if isinstance(term, Elementwise):
        read = ", ".join(f"t{i} {t.dtype} {shape_words(t.shape)}" for i, t in enumerate(term.tensors))
        return f"{term.label} {expression(term.expr)}" + (f" with {read}" if read else "")
    if isinstance(term, Causal):
        words = f"causal{at(term.offset)}"
    elif isinstance(term, BoolMask):
        words = f"bool {shape_words(term.shape)}"
    elif isinstance(term, AddMask):
        factor = "" if term.factor == 1 else f" times {term.factor:g}"
        return f"add {term.dtype} {shape_words(term.shape)}{factor}"
    elif isinstance(term, SlidingWindow):
        left, right = ("any" if n is None else str(n) for n in (term.left, term.right))
        words = f"window {left} left, {right} right{at(term.offset)}"
    else:
        assert_never(term)
    return words if term.fill == float("-inf") else f"{words}, fill {term.fill:.3g}"


def score_words(spec: AttentionSpec) -> list[str]:
    """What is done to the scores after scaling, in order, and how K and V are kept."""
    mods = [f"softcap {m.cap:g}" for m in spec.mods]
    sink = [f"sink {shape_words(spec.sink.shape)}"] if spec.sink is not None else []
    kept = [f"{n} in {x.dtype}" for n, x in (("k", spec.k_quant), ("v", spec.v_quant)) if x is not None]
    if spec.gathered is not None:
        kept.append(f"k and v gathered from {spec.gathered.rows} rows")
    return [*mods, *map(mask_words, spec.masks), *sink, *kept, *rounding_words(spec), *weight_words(spec)]


def rounding_words(spec: AttentionSpec) -> list[str]:
    """What is done to the probabilities before they multiply V."""
    chain = spec.rounding.chain if spec.rounding else ()
    return [f"probabilities rounded to {r.dtype} in steps of {r.scale:.6g}, zero point {r.zero_point}" for r in chain]


def weighting_words(weighting: Weighting) -> str:
    """What multiplies V in place of probabilities, e.g. "sigmoid(score)"."""
    words = expression(weighting.weight)
    if weighting.total is None:
        return words
    total = f"sum of {expression(weighting.total)}" + (f" + {weighting.plus:g}" if weighting.plus else "")
    return f"{words} / " + (f"max({total}, {weighting.least:g})" if weighting.least > float("-inf") else f"({total})")


def weight_words(spec: AttentionSpec) -> list[str]:
    """What the probabilities are multiplied by before they multiply V."""
    w = spec.weights
    if w is None:
        return []
    if spec.weighting is not None:
        return [f"weights times {w.dtype} {shape_words(w.shape)}"]
    anew = ", divided by their own sum" if spec.renormalised else ""
    return [f"probabilities times {w.dtype} {shape_words(w.shape)}{anew}"]


def sentence(spec: AttentionSpec) -> str:
    """The spec as one sentence."""
    if spec.group == 1:
        heads = f"{spec.Hq} heads"
    else:
        heads = f"{spec.Hq} query heads on {spec.Hkv} of K and V"
    lengths = f"{spec.Sq} queries and as many keys" if spec.Sq == spec.Skv else f"{spec.Sq} queries, {spec.Skv} keys"
    width = f"head dim {spec.D}" + ("" if spec.Dv == spec.D else f" ({spec.Dv} for V)")
    batch = f"batch {shape_words(spec.batch)}, " if spec.batch else ""
    then = "; ".join(score_words(spec)) or "no mask"
    said = f"{spec.dtype}, {batch}{heads}, {lengths}, {width}. Scores times {spec.scale:.6g}; {then}."
    if spec.weighting is not None:
        return f"{said} No softmax: a key's weight is {weighting_words(spec.weighting)}."
    return f"{said} A row without a key yields {_EMPTY_ROW[spec.empty_row]}."


def einsums(spec: AttentionSpec) -> list[str]:
    """The computation as einsums over the spec's own dims: b batch, h heads of K and V, g query heads on each, s queries, t keys,
    d and e head dims."""
    b = "b" * bool(spec.batch)
    q, k = (f"{b}hg", f"{b}h") if spec.group > 1 else (f"{b}h", f"{b}h")
    lines = [f"S = {spec.scale:.6g} * einsum('{q}sd,{k}td->{q}st', Q, K)"]
    lines += [f"S = {m.cap:g} * tanh(S / {m.cap:g})" for m in spec.mods]
    lines += [f"S = mask(S): {mask_words(m)}" for m in spec.masks]
    if spec.weighting is not None:
        lines.append(f"P = {weighting_words(spec.weighting)} over t")
    elif spec.sink is None:
        lines.append("P = softmax(S) over t")
    else:
        lines.append("P = softmax([S, sink]) over t, without the sink's column")
    lines += [f"P = round(P): {w}" for w in rounding_words(spec)]
    lines += [f"P = weighted(P): {w}" for w in weight_words(spec)]
    return [*lines, f"O = einsum('{q}st,{k}te->{q}se', P, V)"]
