"""Attentions that are one op, in containers, or quantised: onnx Attention and FlexAttention, onnxruntime's ops, If, Loop, Scan and
functions around them."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto as T
from onnx import helper as h
from onnx import numpy_helper as nh

Builder = Callable[[], onnx.ModelProto]
Dims = list[int | str]
Input = tuple[str, Dims, int]

B, HQ, HKV, S, L, D, DV = 2, 4, 2, 5, 7, 8, 6


def model(
    nodes: list[onnx.NodeProto],
    inputs: list[Input],
    outputs: list[Input],
    opset: int = 23,
    constants: dict[str, Any] | None = None,
    functions: list[onnx.FunctionProto] | None = None,
) -> onnx.ModelProto:
    graph = h.make_graph(
        nodes,
        "g",
        [h.make_tensor_value_info(n, t, s) for n, s, t in inputs],
        [h.make_tensor_value_info(n, t, s) for n, s, t in outputs],
        [nh.from_array(np.asarray(x), n) for n, x in (constants or {}).items()],
    )
    domains = {n.domain for n in nodes if n.domain} | {f.domain for f in functions or ()}
    opsets = [h.make_opsetid("", opset), *(h.make_opsetid(d, 1) for d in sorted(domains))]
    return h.make_model(graph, opset_imports=opsets, ir_version=11, functions=functions)


# Containers: a plain attention (or the op) in subgraphs and functions.


def plain(o: str, q: str = "q", k: str = "k", v: str = "v", *, name: str = "", scale: str = "scale", mask: str = ""):
    """Nodes of softmax(scale * q k^T + mask) v, all values named after `name`."""
    n = name or o
    nodes = [
        h.make_node("Transpose", [k], [f"{n}_kt"], name=f"{n}_transpose", perm=[0, 1, 3, 2]),
        h.make_node("MatMul", [q, f"{n}_kt"], [f"{n}_qk"], name=f"{n}_qk"),
        h.make_node("Mul", [f"{n}_qk", scale], [f"{n}_s"], name=f"{n}_scale"),
    ]
    if mask:
        nodes.append(h.make_node("Add", [f"{n}_s", mask], [f"{n}_m"], name=f"{n}_mask"))
    return [
        *nodes,
        h.make_node("Softmax", [f"{n}_m" if mask else f"{n}_s"], [f"{n}_p"], name=f"{n}_softmax", axis=-1),
        h.make_node("MatMul", [f"{n}_p", v], [o], name=f"{n}_pv"),
    ]


QKV: list[Input] = [("q", [B, HQ, S, D], T.FLOAT), ("k", [B, HQ, S, D], T.FLOAT), ("v", [B, HQ, S, D], T.FLOAT)]
MASK: Input = ("mask", [B, 1, S, S], T.FLOAT)
OUT: Input = ("o", [B, HQ, S, D], T.FLOAT)
SCALE = {"scale": np.float32(0.3)}


def info(name: str, dims: Dims | None, dtype: int = T.FLOAT) -> onnx.ValueInfoProto:
    return h.make_tensor_value_info(name, dtype, dims)


def in_if(*, op: bool = False, split: bool = False, shared: bool = False) -> onnx.ModelProto:
    """Both branches attend, with values of the graph around them; `split`: the scores come from outside."""
    branches = {}
    for name in ("then", "else"):
        out = f"{name}_o"
        if op:
            nodes = [
                h.make_node("Attention", ["q", "k", "v", "mask"], [out], name=f"{name}_attn", is_causal=name == "then")
            ]
        elif split:
            nodes = plain(out, mask="mask" if name == "then" else "")[3:]
            for node in nodes:
                node.input[:] = ["s_s" if i == f"{out}_s" else i for i in node.input]
        else:
            nodes = plain(out, mask="mask" if name == "then" else "")
        branches[f"{name}_branch"] = h.make_graph(nodes, name, [], [info(out, OUT[1])])
    outer = plain("s")[:3] if split else []
    if shared:
        outer = plain("first", mask="mask")
    node = h.make_node("If", ["mask_on"], ["o"], name="if", **branches)
    outputs = [OUT, ("first", OUT[1], T.FLOAT)] if shared else [OUT]
    return model([*outer, node], [*QKV, MASK, ("mask_on", [], T.BOOL)], outputs, 23, SCALE)


def in_loop(*, declared: bool = True, nested: bool = False) -> onnx.ModelProto:
    """x becomes attention(x, k, v), three times; `nested`: inside an If inside the loop."""
    inner = plain("body_x", "x_in", mask="mask")
    if nested:
        yes = h.make_graph(plain("yes_x", "x_in", mask="mask"), "yes", [], [info("yes_x", OUT[1])])
        no = h.make_graph([h.make_node("Identity", ["x_in"], ["no_x"])], "no", [], [info("no_x", OUT[1])])
        inner = [h.make_node("If", ["mask_on"], ["body_x"], name="if", then_branch=yes, else_branch=no)]
    body = h.make_graph(
        [*inner, h.make_node("Identity", ["go_in"], ["go"])],
        "body",
        [info("i", [], T.INT64), info("go_in", [], T.BOOL), info("x_in", OUT[1] if declared else None)],
        [info("go", [], T.BOOL), info("body_x", OUT[1] if declared else None)],
    )
    loop = h.make_node("Loop", ["trips", "", "q"], ["o"], name="loop", body=body)
    inputs = [*QKV, MASK, *([("mask_on", [], T.BOOL)] if nested else [])]
    return model([loop], inputs, [OUT], 23, {**SCALE, "trips": np.int64(3)})


def in_scan() -> onnx.ModelProto:
    """Every slice of q (3, B, H, S, D) attends to the same k and v."""
    body = h.make_graph(
        plain("part_o", "part_q", mask="mask"), "body", [info("part_q", OUT[1])], [info("part_o", OUT[1])]
    )
    scan = h.make_node("Scan", ["q"], ["o"], name="scan", body=body, num_scan_inputs=1)
    many: list[Input] = [("q", [3, *OUT[1]], T.FLOAT), *QKV[1:], MASK]
    return model([scan], many, [("o", [3, *OUT[1]], T.FLOAT)], 23, SCALE)


DOMAIN = "tests"


def function(name: str, nodes: list[onnx.NodeProto], inputs: list[str], outputs: list[str], attributes: list[str] = []):  # noqa: B006
    domains = {n.domain for n in nodes if n.domain}
    opsets = [h.make_opsetid("", 23), *(h.make_opsetid(d, 1) for d in domains)]
    return h.make_function(DOMAIN, name, inputs, outputs, nodes, opsets, attributes)


def call(name: str, inputs: list[str], outputs: list[str], **attrs: Any) -> onnx.NodeProto:
    return h.make_node(name, inputs, outputs, name=f"call_{outputs[0]}", domain=DOMAIN, **attrs)


def in_function(
    *, calls: int = 1, nested: bool = False, parts: bool = False, attribute: bool = False, op: bool = False
):
    """`parts`: only the softmax is a function; `attribute`: the op's scale is an attribute of the function."""
    if parts:
        body = [h.make_node("Softmax", ["x"], ["y"], name="softmax", axis=-1)]
        functions = [function("Weights", body, ["x"], ["y"])]
        nodes = [n if n.op_type != "Softmax" else call("Weights", list(n.input), list(n.output)) for n in plain("o")]
        return model(nodes, QKV, [OUT], 23, SCALE, functions)
    if op or attribute:
        node = h.make_node("Attention", ["q", "k", "v"], ["o"], name="attn", is_causal=1)
        if attribute:
            scale = onnx.AttributeProto(name="scale", type=onnx.AttributeProto.FLOAT, ref_attr_name="scale")
            node.attribute.append(scale)
        functions = [function("Attend", [node], ["q", "k", "v"], ["o"], ["scale"] if attribute else [])]
        return model(
            [call("Attend", ["q", "k", "v"], ["o"], **({"scale": 0.7} if attribute else {}))],
            QKV,
            [OUT],
            23,
            None,
            functions,
        )
    functions = [function("Attend", plain("o", mask="mask"), ["q", "k", "v", "scale", "mask"], ["o"])]
    other = [h.make_node("Abs", ["x"], ["t"]), h.make_node("Mul", ["x", "t"], ["y"])]
    functions.append(function("Gate", other, ["x"], ["y"]))
    callee = "Attend"
    if nested:
        inner = [call("Attend", ["q", "k", "v", "scale", "mask"], ["a"]), call("Gate", ["a"], ["o"])]
        functions.append(function("Layer", inner, ["q", "k", "v", "scale", "mask"], ["o"]))
        callee = "Layer"
    names = ["q", *(f"x{i}" for i in range(1, calls)), "g"]
    nodes = [call(callee, [a, "k", "v", "scale", "mask"], [b]) for a, b in itertools.pairwise(names)]
    nodes.append(call("Gate", ["g"], ["o"]))
    return model(nodes, [*QKV, MASK], [OUT], 23, SCALE, functions)


def function_in_if() -> onnx.ModelProto:
    base = in_function()
    node = call("Attend", ["q", "k", "v", "scale", "mask"], ["then_o"])
    then = h.make_graph([node], "then", [], [info("then_o", OUT[1])])
    other = h.make_graph([h.make_node("Identity", ["q"], ["else_o"])], "else", [], [info("else_o", OUT[1])])
    branch = h.make_node("If", ["mask_on"], ["o"], name="if", then_branch=then, else_branch=other)
    return model([branch], [*QKV, MASK, ("mask_on", [], T.BOOL)], [OUT], 23, SCALE, [base.functions[0]])


def siblings(*, present: bool = False) -> onnx.ModelProto:
    """Three attentions on the same K, V and mask, one of them the op."""
    nodes = [*plain("a", mask="mask"), *plain("b", "q2", mask="mask")]
    outs = ["c", "nk", "nv"] if present else ["c"]
    more = ["pk", "pv"] if present else []
    nodes.append(h.make_node("Attention", ["q", "k", "v", *(["", *more] if present else ["mask"])], outs, name="attn"))
    outputs: list[Input] = [(n, OUT[1], T.FLOAT) for n in "abc"]
    inputs = [*QKV, ("q2", QKV[0][1], T.FLOAT), MASK]
    if present:
        inputs += [(n, [B, HQ, 3, D], T.FLOAT) for n in more]
        outputs += [(n, [B, HQ, 3 + S, D], T.FLOAT) for n in ("nk", "nv")]
    return model(nodes, inputs, outputs, 23, SCALE)


_CONTAINERS: dict[str, Builder] = {
    "if": in_if,
    "if-op": partial(in_if, op=True),
    "if-split": partial(in_if, split=True),
    "if-shared": partial(in_if, shared=True),
    "loop": in_loop,
    "loop-undeclared": partial(in_loop, declared=False),
    "loop-if": partial(in_loop, nested=True),
    "scan": in_scan,
    "function": in_function,
    "function-twice": partial(in_function, calls=2),
    "function-nested": partial(in_function, calls=3, nested=True),
    "function-softmax": partial(in_function, parts=True),
    "function-op": partial(in_function, op=True),
    "function-attribute": partial(in_function, attribute=True),
    "function-in-if": function_in_if,
    "siblings": siblings,
    "siblings-present": partial(siblings, present=True),
}


CONTAINERS: Mapping[str, Builder] = MappingProxyType(_CONTAINERS)
"""Not a dict, which would join the table of spellings: that compares the nodes of the main graph, and inlining changes them."""


def plain_function() -> onnx.ModelProto:
    """A softmax over classes in a function: nothing to inline."""
    body = [h.make_node("MatMul", ["x", "w"], ["s"]), h.make_node("Softmax", ["s"], ["y"], name="softmax", axis=-1)]
    nodes = [call("Classify", ["q", "w"], ["o"])]
    return model(
        nodes,
        [("q", [B, 6], T.FLOAT), ("w", [6, 3], T.FLOAT)],
        [("o", [B, 3], T.FLOAT)],
        23,
        None,
        [function("Classify", body, ["x", "w"], ["y"])],
    )


NOT_CONTAINERS: dict[str, Builder] = {
    "function-classifier": plain_function,
}


# The Attention op.


def attention(
    mask: tuple[Dims, int] | None = None,
    *,
    past: int | str | None = None,
    lengths: bool = False,
    flat: bool = False,
    heads: tuple[int, int] = (HQ, HKV),
    s: int | str = S,
    length: int | str = L,
    scores: int | None = None,
    dtype: int = T.FLOAT,
    opset: int = 23,
    **attrs: Any,
) -> onnx.ModelProto:
    """One node; `past` keys before those of the call; `scores` asks for qk_matmul_output in that mode."""
    hq, hkv = heads
    kv = s if past is not None else length
    q: Input = ("q", [B, s, hq * D] if flat else [B, hq, s, D], dtype)
    k: Input = ("k", [B, kv, hkv * D] if flat else [B, hkv, kv, D], dtype)
    v: Input = ("v", [B, kv, hkv * DV] if flat else [B, hkv, kv, DV], dtype)
    inputs, names = [q, k, v], ["q", "k", "v"]
    if mask is not None:
        inputs.append(("mask", mask[0], mask[1]))
    names.append("mask" if mask is not None else "")
    outputs: list[Input] = [("o", [B, s, hq * DV] if flat else [B, hq, s, DV], dtype)]
    total: int | str = kv
    if past is not None:
        inputs += [("pk", [B, hkv, past, D], dtype), ("pv", [B, hkv, past, DV], dtype)]
        total = past + kv if isinstance(past, int) and isinstance(kv, int) else "total"
        outputs += [("nk", [B, hkv, total, D], dtype), ("nv", [B, hkv, total, DV], dtype)]
    names += ["pk", "pv"] if past is not None else ["", ""]
    if lengths:
        inputs.append(("lengths", [B], T.INT64))
        names.append("lengths")
    if flat:
        attrs |= {"q_num_heads": hq, "kv_num_heads": hkv}
    made = [o[0] for o in outputs]
    if scores is not None:
        outputs.append(("qk", [B, hq, s, total], dtype))
        made += [*[""] * (3 - len(made)), "qk"]
        attrs["qk_matmul_output_mode"] = scores
    while not names[-1]:
        names.pop()
    node = h.make_node("Attention", names, made, name="attn", **attrs)
    return model([node], inputs, outputs, opset)


STANDARD: dict[str, Builder] = {
    "attention": partial(attention),
    "attention-flat": partial(attention, flat=True),
    "attention-causal": partial(attention, is_causal=1),
    "attention-scale-softcap": partial(attention, scale=0.3, softcap=2.0),
    "attention-mask-2d": partial(attention, ([S, L], T.FLOAT)),
    "attention-mask-3d": partial(attention, ([1, S, L], T.FLOAT)),
    "attention-mask-4d-causal": partial(attention, ([B, 1, S, L], T.BOOL), is_causal=1),
    "attention-mask-softcap": partial(attention, ([B, HQ, S, L], T.FLOAT), softcap=1.5),
    "attention-past": partial(attention, past=3),
    "attention-past-causal": partial(attention, past=3, is_causal=1),
    "attention-past-flat": partial(attention, past=3, is_causal=1, flat=True),
    "attention-past-mask": partial(attention, ([B, 1, S, 3 + S], T.FLOAT), past=3),
    "attention-scores-0": partial(attention, ([S, L], T.FLOAT), scores=0, softcap=2.0),
    "attention-scores-1": partial(attention, ([S, L], T.FLOAT), scores=1, softcap=2.0),
    "attention-scores-2": partial(attention, ([S, L], T.FLOAT), scores=2, softcap=2.0),
    "attention-scores-3": partial(attention, ([S, L], T.FLOAT), scores=3, softcap=2.0),
    "attention-one-head": partial(attention, heads=(HQ, 1)),
}
"""onnxruntime computes these."""

_REFERENCE: dict[str, Builder] = {
    "attention-mask-1d": partial(attention, ([L], T.BOOL)),
    "attention-mask-heads": partial(attention, ([HQ, 1, L], T.FLOAT)),
    "attention-scores-past": partial(attention, past=3, scores=2, is_causal=1),
    "attention-short-mask": partial(attention, ([B, HQ, S, L - 2], T.FLOAT), opset=24),
    "attention-short-mask-bool": partial(attention, ([S, L - 3], T.BOOL)),
    "attention-lengths": partial(attention, lengths=True, opset=24),
    "attention-lengths-causal": partial(attention, lengths=True, is_causal=1, opset=24),
    "attention-lengths-mask": partial(attention, ([B, 1, S, L], T.FLOAT), lengths=True, is_causal=1, opset=24),
    "attention-window": partial(attention, left_window_size=2, right_window_size=1, opset=25),
    "attention-window-left": partial(attention, left_window_size=1, opset=25),
    "attention-window-causal-past": partial(attention, past=3, left_window_size=2, is_causal=1, opset=25),
    "attention-window-lengths": partial(attention, lengths=True, left_window_size=2, opset=25),
    "attention-symbolic-past": partial(attention, past="p", s="s", is_causal=1),
    "attention-symbolic-past-window": partial(attention, past="p", s="s", left_window_size=2, opset=25),
    "attention-symbolic-past-one": partial(attention, past="p", s=1, is_causal=1),
    "attention-symbolic-mask": partial(attention, ([B, 1, "s", "keys"], T.FLOAT), past="p", s="s"),
    "attention-f16": partial(attention, ([S, L], T.FLOAT16), dtype=T.FLOAT16),
}
REFERENCE = tuple(_REFERENCE.items())
"""onnx's reference evaluator computes these; onnxruntime refuses them, or differs from the standard."""

NOT_STANDARD: dict[str, Builder] = {
    "attention-precision": partial(attention, softmax_precision=T.FLOAT16),
    "attention-precision-bf16": partial(attention, softmax_precision=T.BFLOAT16),
}


# FlexAttention.


def flex(
    score: str = "", prob: str = "", *, heads: tuple[int, int] = (HQ, HKV), dtype: int = T.FLOAT, **attrs: Any
) -> onnx.ModelProto:
    """One node with modifiers named by `score` and `prob`."""
    hq, hkv = heads
    inputs: list[Input] = [("q", [B, hq, S, D], dtype), ("k", [B, hkv, L, D], dtype), ("v", [B, hkv, L, DV], dtype)]
    constants: dict[str, Any] = {
        "cap": np.asarray(2.0, np.float32),
        "half": np.asarray(0.5, np.float32),
        "zero": np.asarray(0),
        "one": np.asarray(1),
        "two": np.asarray(2),
        "three": np.asarray(3),
        "low": np.asarray(-np.inf, np.float32),
        "slopes": np.linspace(0.1, 0.5, hq, dtype=np.float32).reshape(hq, 1, 1),
        "columns": np.arange(L).reshape(1, L),
        "bias": np.sin(np.arange(hq * L, dtype=np.float32)).reshape(hq, 1, L),
        "rows": np.asarray([1]),
    }
    node = h.make_node("FlexAttention", ["q", "k", "v"], ["o"], name="flex", domain="ai.onnx.preview", **attrs)
    for name, kind in (("score_mod", score), ("prob_mod", prob)):
        if kind:
            full = info(f"{name}_in", [B, hq, S, L])
            nodes = _modifier(kind, f"{name}_in")
            # The reference evaluator does not show a modifier what lies around it.
            held = [nh.from_array(x, c) for c, x in constants.items() if any(c in made.input for made in nodes)]
            graph = h.make_graph(nodes, name, [full], [info(f"{name}_in_out", [B, hq, S, L])], held)
            node.attribute.append(h.make_attribute(name, graph))
    return model([node], inputs, [("o", [B, hq, S, DV], dtype)])


def _modifier(kind: str, x: str) -> list[onnx.NodeProto]:
    out, n = f"{x}_out", h.make_node
    match kind:
        case "identity":
            return [n("Identity", [x], [out])]
        case "softcap":
            return [n("Div", [x, "cap"], ["a"]), n("Tanh", ["a"], ["b"]), n("Mul", ["b", "cap"], [out])]
        case "bias":
            return [n("Add", [x, "bias"], [out])]
        case "causal" | "alibi":
            ranges = [
                n("Shape", [x], ["shape"]),
                n("Gather", ["shape", "two"], ["sq"]),
                n("Gather", ["shape", "three"], ["skv"]),
                n("Range", ["zero", "sq", "one"], ["i"]),
                n("Range", ["zero", "skv", "one"], ["j"]),
                n("Unsqueeze", ["i", "rows"], ["query"]),
            ]
            if kind == "causal":
                return [*ranges, n("LessOrEqual", ["j", "query"], ["keep"]), n("Where", ["keep", x, "low"], [out])]
            far = [n("Sub", ["j", "query"], ["far"]), n("Cast", ["far"], ["float"], to=T.FLOAT)]
            return [*ranges, *far, n("Mul", ["float", "slopes"], ["slope"]), n("Add", [x, "slope"], [out])]
        case "half":
            return [n("Mul", [x, "half"], [out])]
        case "columns":
            return [n("Less", ["columns", "three"], ["keep"]), n("Where", ["keep", x, "low"], [out])]
        case "square":
            return [n("Mul", [x, x], [out])]
        case "cumulative":
            return [n("CumSum", [x, "three"], [out])]
    raise ValueError(kind)


_FLEX: dict[str, Builder] = {
    "flex": flex,
    "flex-scale": partial(flex, scale=0.3),
    "flex-one-head": partial(flex, heads=(HQ, 1)),
    "flex-f16": partial(flex, dtype=T.FLOAT16),
    "flex-prob-half": partial(flex, prob="half"),
    "flex-prob-identity": partial(flex, prob="identity"),
    **{
        f"flex-{kind}": partial(flex, kind)
        for kind in ("identity", "softcap", "bias", "causal", "alibi", "columns", "square", "half")
    },
}
FLEX = tuple(_FLEX.items())
"""onnxruntime does not have the op: onnx's reference evaluator computes these."""

NOT_FLEX: dict[str, Builder] = {
    "flex-prob-square": partial(flex, prob="square"),
    "flex-cumulative": partial(flex, "cumulative"),
    "flex-precision": partial(flex, softmax_precision=T.FLOAT16),
}


# Quantised models.


def rounded(o: str, x: str, scale: str = "step", zero: str = "zero") -> list[onnx.NodeProto]:
    return [
        h.make_node("QuantizeLinear", [x, scale, zero], [f"{o}_8"], name=f"{o}_quantize"),
        h.make_node("DequantizeLinear", [f"{o}_8", scale, zero], [o], name=f"{o}_dequantize"),
    ]


def quantised(*, score: bool = False, probabilities: bool = False, dynamic: bool = False) -> onnx.ModelProto:
    """Q, K, V and the result rounded to uint8, and more where asked."""
    nodes = [n for x in "qkv" for n in rounded(f"{x}r", x)]
    for node in plain("a", "qr", "kr", "vr"):
        if node.op_type == "Softmax" and score:
            nodes += rounded("a_sr", "a_s", "wide")
            node.input[0] = "a_sr"
        if node.name == "a_pv" and probabilities:
            nodes += rounded("a_pr", "a_p", "fine", "lowest")
            node.input[0] = "a_pr"
        if node.name == "a_pv" and dynamic:
            nodes.append(h.make_node("DynamicQuantizeLinear", ["a_p"], ["p8", "p_scale", "p_zero"], name="p_dynamic"))
            nodes.append(h.make_node("DequantizeLinear", ["p8", "p_scale", "p_zero"], ["a_pd"], name="p_dequantize"))
            node.input[0] = "a_pd"
        nodes.append(node)
    nodes += rounded("o", "a")
    steps = {"step": np.float32(0.03), "wide": np.float32(0.07), "fine": np.float32(1 / 255)}
    constants: dict[str, Any] = {**SCALE, "zero": np.uint8(128), "lowest": np.uint8(0), **steps}
    used = {i for n in nodes for i in n.input}
    return model(nodes, QKV, [OUT], 21, {n: x for n, x in constants.items() if n in used})


def integer_cache(bits: int) -> onnx.ModelProto:
    """K and V kept as int8 (inputs, one scale per head) or int4 (constants, one scale)."""
    if bits == 8:
        inputs: list[Input] = [QKV[0], ("k8", QKV[1][1], T.INT8), ("v8", QKV[2][1], T.INT8)]
        scales = np.linspace(0.01, 0.04, HQ, dtype=np.float32)
        nodes = [
            h.make_node("DequantizeLinear", [f"{x}8", "scales"], [x], name=f"{x}_dequantize", axis=1) for x in "kv"
        ]
        return model([*nodes, *plain("o")], inputs, [OUT], 21, {**SCALE, "scales": scales})
    nodes = [h.make_node("DequantizeLinear", [f"{x}4", "scales"], [x], name=f"{x}_dequantize") for x in "kv"]
    made = model([*nodes, *plain("o")], QKV[:1], [OUT], 21, {**SCALE, "scales": np.float32(0.3)})
    for i, name in enumerate(("k4", "v4")):
        numbers = np.random.default_rng(i).integers(-8, 8, QKV[1][1])
        made.graph.initializer.append(h.make_tensor(name, T.INT4, QKV[1][1], numbers.reshape(-1)))
    return made


QUANTISED: dict[str, Builder] = {
    "quant-operands": quantised,
    "quant-score": partial(quantised, score=True),
    "quant-int8-cache": partial(integer_cache, 8),
    "quant-int4-cache": partial(integer_cache, 4),
    "quant-probabilities": partial(quantised, probabilities=True),
}
NOT_QUANTISED: dict[str, Builder] = {
    "quant-probabilities-dynamic": partial(quantised, dynamic=True),
}


# onnxruntime's own ops.


def contrib(
    op: str, inputs: list[Input | None], outputs: list[Input], fixed: dict[str, Any] | None = None, **attrs: Any
) -> onnx.ModelProto:
    """One node of domain com.microsoft; `fixed` are the values of integer inputs, which `feeds` finds in their doc_string."""
    given = [i for i in inputs if i is not None]
    names = [i[0] if i is not None else "" for i in inputs]
    node = h.make_node(op, names, [o[0] for o in outputs], name="attn", domain="com.microsoft", **attrs)
    made = model([node], given, outputs, 18)
    for value in made.graph.input:
        if fixed and value.name in fixed:
            value.doc_string = json.dumps(fixed[value.name])
    return made


def mha(
    mask: Dims | None = None,
    *,
    bias: bool = False,
    extra: Dims | None = None,
    past: int | None = None,
    projected: bool = False,
    length: int = L,
    values: Any = None,
    **attrs: Any,
) -> onnx.ModelProto:
    """MultiHeadAttention; `mask` has the given dims, and `values` where it holds lengths."""
    length = S if past is not None or attrs.get("unidirectional") else length
    dv = D if past is not None or projected else DV
    keys: list[Input] = [("k", [B, length, HQ * D], T.FLOAT), ("v", [B, length, HQ * dv], T.FLOAT)]
    if projected:
        keys = [("k", [B, HQ, length, D], T.FLOAT), ("v", [B, HQ, length, dv], T.FLOAT)]
    inputs: list[Input | None] = [("q", [B, S, HQ * D], T.FLOAT), *keys]
    inputs.append(("bias", [2 * HQ * D + HQ * dv], T.FLOAT) if bias else None)
    inputs.append(("mask", mask, T.INT32) if mask else None)
    inputs.append(("extra", extra, T.FLOAT) if extra else None)
    outputs: list[Input] = [("o", [B, S, HQ * dv], T.FLOAT)]
    if past is not None:
        inputs += [("pk", [B, HQ, past, D], T.FLOAT), ("pv", [B, HQ, past, dv], T.FLOAT)]
        outputs += [(n, [B, HQ, past + length, D], T.FLOAT) for n in ("nk", "nv")]
    while inputs[-1] is None:
        inputs.pop()
    return contrib("MultiHeadAttention", inputs, outputs, {"mask": values} if values else None, num_heads=HQ, **attrs)


def projected(
    mask: Dims | None = None,
    *,
    past: int | None = None,
    extra: Dims | None = None,
    sizes: list[int] | None = None,
    values: Any = None,
    **attrs: Any,
) -> onnx.ModelProto:
    """Attention, which projects its input."""
    wide, width = 10, HQ * D
    last = sizes[2] if sizes else width
    if sizes:
        attrs["qkv_hidden_sizes"] = sizes
    inputs: list[Input | None] = [
        ("q", [B, S, wide], T.FLOAT),
        ("weights", [wide, 2 * width + last], T.FLOAT),
        ("bias", [2 * width + last], T.FLOAT),
        ("mask", mask, T.INT32) if mask else None,
        ("past", [2, B, HQ, past, D], T.FLOAT) if past is not None else None,
        ("extra", extra, T.FLOAT) if extra else None,
    ]
    outputs: list[Input] = [("o", [B, S, last], T.FLOAT)]
    if past is not None:
        outputs.append(("present", [2, B, HQ, past + S, D], T.FLOAT))
    while inputs[-1] is None:
        inputs.pop()
    return contrib("Attention", inputs, outputs, {"mask": values} if values else None, num_heads=HQ, **attrs)


def projected_integers(
    mask: Dims | None = None,
    *,
    past: int | None = None,
    columns: bool = False,
    zeros: str = "xw",
    signed: bool = True,
    values: Any = None,
    **attrs: Any,
) -> onnx.ModelProto:
    """QAttention; `columns`: a scale and a zero point for each column of the weights; `zeros`: which zero points there are."""
    wide, width = 10, 3 * HQ * D
    kind, each = T.INT8 if signed else T.UINT8, [width] if columns else [1]
    inputs: list[Input | None] = [
        ("q", [B, S, wide], T.UINT8),
        ("weights", [wide, width], kind),
        ("bias", [width], T.FLOAT),
        ("x_scale", [], T.FLOAT),
        ("scale", each, T.FLOAT),
        ("mask", mask, T.INT32) if mask else None,
        ("x_zero", [], T.UINT8) if "x" in zeros else None,
        ("zero", each, kind) if "w" in zeros else None,
        ("past", [2, B, HQ, past, D], T.FLOAT) if past is not None else None,
    ]
    outputs: list[Input] = [("o", [B, S, HQ * D], T.FLOAT)]
    if past is not None:
        outputs.append(("present", [2, B, HQ, past + S, D], T.FLOAT))
    while inputs[-1] is None:
        inputs.pop()
    fixed: dict[str, Any] = {"x_scale": 0.02, "scale": [0.01 + i / 1e4 for i in range(each[0])], "mask": values}
    fixed |= {"x_zero": 130, "zero": [i % 7 for i in range(each[0])]}
    return contrib("QAttention", inputs, outputs, fixed, num_heads=HQ, **attrs)


def gqa(
    s: int = S,
    past: int | None = None,
    lengths: tuple[int, ...] = (S, S),
    *,
    packed: bool = False,
    rotary: int = 0,
    positions: Any = None,
    extra: Dims | None = None,
    sink: bool = False,
    norms: bool = False,
    kind: int = T.FLOAT,
    integers: tuple[str, int] | None = None,
    **attrs: Any,
) -> onnx.ModelProto:
    """GroupQueryAttention over a cache of `past` rows, of which every batch row has `lengths` with those of this call. `integers`:
    how the cache is quantised, and to how many bits."""
    b, d = len(lengths), 16
    total = max(lengths)
    kept = past if attrs.get("sliding_window_cache") and past else max(past or 0, total)
    cache, scale = (kind, d), [1]
    if integers is not None:
        how, bits = integers
        cache = (T.INT8, d) if bits == 8 else (T.UINT8, d // 2)
        scale = [1] if how == "PER_TENSOR" else [1, HKV, 1, d]
        attrs |= {"k_quant_type": how, "v_quant_type": how, "kv_cache_bit_width": bits}
    width = (HQ + 2 * HKV) * d if packed else HQ * d
    inputs: list[Input | None] = [("q", [b, s, width], kind)]
    inputs += [None, None] if packed else [(n, [b, s, HKV * d], kind) for n in "kv"]
    inputs += [(n, [b, HKV, past, cache[1]], cache[0]) for n in ("pk", "pv")] if past is not None else [None, None]
    inputs += [("lengths", [b], T.INT32), ("total", [1], T.INT32)]
    inputs += [(n, [32, rotary], T.FLOAT) for n in ("cos", "sin")] if rotary else [None, None]
    inputs.append(("positions", [b, s], T.INT64) if positions else None)
    inputs.append(("extra", extra, T.FLOAT) if extra else None)
    inputs.append(("sink", [HQ], T.FLOAT) if sink else None)
    inputs += [(f"{n}_scale", scale, T.FLOAT) for n in "kv"] if integers else [None, None]
    inputs += [(f"{n}_norm", [d], kind) for n in "qk"] if norms else []
    while inputs[-1] is None:
        inputs.pop()
    outputs: list[Input] = [("o", [b, s, HQ * d], kind)]
    outputs += [(n, [b, HKV, kept, cache[1]], cache[0]) for n in ("nk", "nv")]
    if rotary:
        attrs.setdefault("do_rotary", 1)
    fixed = {"lengths": [n - 1 for n in lengths], "total": [total], "positions": positions}
    return contrib("GroupQueryAttention", inputs, outputs, fixed, num_heads=HQ, kv_num_heads=HKV, **attrs)


def decoder(
    *, cross: bool = False, held: int = 3, extra: bool = False, bias: bool = False, **attrs: Any
) -> onnx.ModelProto:
    """DecoderMaskedMultiHeadAttention: one query, over another sequence or over a cache buffer that holds `held` rows."""
    q: Input = ("q", [B, 1, HQ * D], T.FLOAT)
    outputs: list[Input] = [("o", [B, 1, HQ * D], T.FLOAT)]
    name = "DecoderMaskedMultiHeadAttention"
    if cross:
        keys: list[Input] = [(n, [B, HQ, L, D], T.FLOAT) for n in "kv"]
        added: list[Input | None] = [*[None] * 7, ("bias", [3 * HQ * D], T.FLOAT)] if bias else []
        return contrib(name, [q, *keys, *added], outputs, num_heads=HQ, **attrs)
    rows: list[Input] = [(n, [B, 1, HQ * D], T.FLOAT) for n in "kv"]
    pasts: list[Input] = [(n, [B, HQ, L, D], T.FLOAT) for n in ("pk", "pv")]
    outputs += [(n, [B, HQ, L, D], T.FLOAT) for n in ("nk", "nv")]
    mask: Input | None = ("extra", [1, HQ, 1, held + 1], T.FLOAT) if extra else None
    inputs = [q, *rows, None, mask, *pasts, ("held", [1], T.INT32)]
    return contrib(name, inputs, outputs, {"held": [held]}, num_heads=HQ, past_present_share_buffer=1, **attrs)


def causal_cross(length: int, past: int | None = None) -> onnx.ModelProto:
    """MultiHeadAttention with `unidirectional` and other keys than queries."""
    inputs: list[Input | None] = [("q", [B, S, HQ * D], T.FLOAT), *((n, [B, length, HQ * D], T.FLOAT) for n in "kv")]
    outputs: list[Input] = [("o", [B, S, HQ * D], T.FLOAT)]
    if past is not None:
        inputs += [None, None, None, *((n, [B, HQ, past, D], T.FLOAT) for n in ("pk", "pv"))]
        outputs += [(n, [B, HQ, past + length, D], T.FLOAT) for n in ("nk", "nv")]
    return contrib("MultiHeadAttention", inputs, outputs, num_heads=HQ, unidirectional=1)


def with_scores(model: onnx.ModelProto, *dims: int) -> onnx.ModelProto:
    """The model with the scores of its one node as an output."""
    node = model.graph.node[0]
    node.output.extend([""] * (3 - len(node.output)) + ["scores"])
    model.graph.output.append(h.make_tensor_value_info("scores", T.FLOAT, dims))
    return model


_LEAST = float(np.finfo(np.float32).min)
_CONTRIB: dict[str, Builder] = {
    "mha": mha,
    "mha-scale": partial(mha, scale=0.3),
    "mha-bias": partial(mha, bias=True),
    "mha-lengths": partial(mha, [B], values=[3, L]),
    "mha-no-length": partial(mha, [B], values=[0, L]),
    "mha-padding": partial(mha, [B, L]),
    "mha-padding-3d": partial(mha, [B, S, L]),
    "mha-filter": partial(mha, [B, L], mask_filter_value=-3.4e38),
    "mha-extra": partial(mha, extra=[1, HQ, S, L]),
    "mha-extra-padding": partial(mha, [B, L], extra=[B, 1, S, L]),
    "mha-causal": partial(mha, unidirectional=1),
    "mha-causal-2": partial(mha, unidirectional=2),  # which onnxruntime does not take for true
    "gqa-rotary-2": partial(gqa, rotary=8, do_rotary=2),
    "gqa-interleaved-minus-1": partial(gqa, rotary=8, rotary_interleaved=-1),
    "mha-causal-padding": partial(mha, [B, S], unidirectional=1),
    "mha-causal-least": partial(mha, [B, S], unidirectional=1, mask_filter_value=_LEAST),
    "mha-causal-least-lengths": partial(mha, [B], values=[3, 0], unidirectional=1, mask_filter_value=_LEAST),
    "mha-infinite-filter": partial(mha, [B, L], mask_filter_value=-float("inf")),
    "mha-infinite-filter-causal": partial(mha, [B, S], unidirectional=1, mask_filter_value=-float("inf")),
    "mha-causal-cross": partial(causal_cross, L),
    "mha-causal-cross-fewer": partial(causal_cross, S - 2),
    "mha-causal-cross-past": partial(causal_cross, L, past=3),
    "mha-causal-scores": lambda: with_scores(mha([B, S], unidirectional=1), B, HQ, S, S),
    "mha-scores": lambda: with_scores(mha(extra=[1, HQ, S, L], scale=0.2), B, HQ, S, L),
    "mha-scores-past": lambda: with_scores(mha([B, 3 + S], past=3), B, HQ, S, 3 + S),
    "mha-past": partial(mha, past=3),
    "mha-past-causal-bias": partial(mha, past=3, unidirectional=1, bias=True),
    "mha-past-padding": partial(mha, [B, 3 + S], past=3),
    "mha-past-empty": partial(mha, past=0),
    "mha-projected": partial(mha, projected=True),
    "mha-projected-bias": partial(mha, [B, L], projected=True, bias=True),
    "attention-ms": projected,
    "attention-ms-sizes": partial(projected, sizes=[HQ * D, HQ * D, HQ * DV]),
    "attention-ms-causal": partial(projected, unidirectional=1),
    "attention-ms-padding": partial(projected, [B, S], unidirectional=1),
    "attention-ms-padding-3d": partial(projected, [B, S, S]),
    "attention-ms-lengths": partial(projected, [B], values=[3, S]),
    "attention-ms-bounds": partial(projected, [2 * B], values=[3, S, 1, 0]),
    "attention-ms-no-mask": partial(projected, [1, 1], values=[[0]]),
    "attention-ms-past": partial(projected, [B, 3 + S], past=3, unidirectional=1),
    "attention-ms-extra": partial(projected, extra=[B, HQ, S, S], scale=0.7),
    "qattention": projected_integers,
    "qattention-no-zeros": partial(projected_integers, zeros="", signed=False),
    "qattention-columns": partial(projected_integers, [B, S], columns=True, unidirectional=1),
    "qattention-lengths": partial(projected_integers, [B], zeros="w", values=[3, S]),
    "qattention-bounds": partial(projected_integers, [2 * B], zeros="x", values=[3, S, 1, 0]),
    "qattention-no-mask": partial(projected_integers, [B, 1], columns=True, zeros="", values=[[0], [1]]),
    "qattention-past": partial(projected_integers, [B, 3 + S], past=3, unidirectional=1, mask_filter_value=-3.4e38),
    "gqa": gqa,
    "gqa-ragged": partial(gqa, lengths=(S, 3)),
    "gqa-buffer": partial(gqa, past=9, lengths=(S, 3)),
    "gqa-decode": partial(gqa, 1, 8, (6, 4)),
    "gqa-decode-grow": partial(gqa, 1, 6, (7, 7)),
    "gqa-chunk": partial(gqa, 3, 6, (9,)),
    "gqa-packed-rotary": partial(gqa, packed=True, rotary=8),
    "gqa-rotary": partial(gqa, rotary=8, lengths=(S, 3)),
    "gqa-rotary-interleaved": partial(gqa, rotary=8, rotary_interleaved=1),
    "gqa-rotary-decode": partial(gqa, 1, 8, (6, 4), rotary=8),
    "gqa-rotary-positions": partial(gqa, rotary=8, positions=[[3, 4, 5, 6, 7], [0, 1, 2, 3, 4]]),
    "gqa-rotary-chunk-positions": partial(gqa, 3, 6, (9,), rotary=8, positions=[[9, 4, 11]]),
    "gqa-softcap-extra": partial(gqa, softcap=1.5, extra=[1, 1, S, S]),
    "gqa-extra-decode": partial(gqa, 1, 8, (6, 6), extra=[1, 1, 1, 6]),
    "gqa-window": partial(gqa, local_window_size=2),
    "gqa-window-decode": partial(gqa, 1, 8, (6, 4), local_window_size=3),
    "gqa-smooth": partial(gqa, smooth_softmax=1),
    "gqa-sink": partial(gqa, sink=True),
    "gqa-sink-window-decode": partial(gqa, 1, 8, (6, 4), local_window_size=2, sink=True),
    "gqa-bidirectional": partial(gqa, causal=0, scale=0.2),
    "decoder": decoder,
    "decoder-extra": partial(decoder, extra=True, scale=0.1),
    "decoder-cross": partial(decoder, cross=True),
    "decoder-cross-bias": partial(decoder, cross=True, bias=True),
}

CONTRIB = tuple(_CONTRIB.items())
"""Pairs, not a dict, which would join the table of spellings: a NaN in a query of GroupQueryAttention is a row of zeros in
onnxruntime, and NaN elsewhere."""

NOT_CONTRIB: dict[str, Builder] = {
    "gqa-quantised": partial(gqa, k_quant_type="PER_TENSOR"),
    "gqa-window-cache": partial(gqa, sliding_window_cache=1),
    "packed": lambda: contrib(
        "PackedMultiHeadAttention",
        [*((n, [7, HQ * D], T.FLOAT) for n in "qkv"), None, ("offsets", [B, S], T.INT32), ("sums", [B + 1], T.INT32)],
        [("o", [7, HQ * D], T.FLOAT)],
        num_heads=HQ,
    ),
}


_LENGTHS = {"s": S, "p": 4, "keys": 4 + S, "total": 4 + S}


def feeds(
    made: onnx.ModelProto, seed: int = 0, *, large: bool = False, empty_rows: bool = False
) -> dict[str, np.ndarray]:
    """Inputs: normal floats (scores in the hundreds if `large`), masks that keep most keys and, in some rows, none."""
    rng = np.random.default_rng(seed)
    result: dict[str, np.ndarray] = {}
    for value in made.graph.input:
        kind = h.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
        dims = value.type.tensor_type.shape.dim
        shape = [d.dim_value if d.HasField("dim_value") else _LENGTHS[d.dim_param] for d in dims]
        if value.doc_string and json.loads(value.doc_string) is not None:
            result[value.name] = np.asarray(json.loads(value.doc_string), kind)
            continue
        empty = (0,) * (len(shape) - 1)
        if value.name == "lengths":  # nonpad_kv_seqlen
            x = np.asarray([0 if empty_rows else 3, L - 1], kind)
        elif kind == np.bool_ or (value.name == "mask" and kind.kind == "i"):
            x = np.asarray(rng.random(shape) < 0.7).astype(kind)
            if shape:
                x[..., 0] = 1
                if empty_rows:
                    x[empty] = 0
        elif kind in (np.int8, np.uint8):
            x = rng.integers(-100, 100, shape).astype(kind)
        else:
            x = rng.standard_normal(shape).astype(kind)
            if value.name == "mask":
                x[rng.random(shape) < 0.3] = -np.inf
                x[..., 0] = 0
                if empty_rows:
                    x[empty] = -np.inf
            elif large and value.name in ("q", "k"):
                x *= 15
        result[value.name] = x
    return result
