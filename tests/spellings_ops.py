"""Attentions that are one op, in containers, or quantised: onnx Attention and FlexAttention, onnxruntime's ops, If, Loop, Scan and
functions around them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
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
            nodes = plain(out, mask="mask" if name == "then" else "")[3 if name == "then" else 3 :]
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
    other = [h.make_node("Tanh", ["x"], ["t"]), h.make_node("Mul", ["x", "t"], ["y"])]
    functions.append(function("Gate", other, ["x"], ["y"]))
    callee = "Attend"
    if nested:
        inner = [call("Attend", ["q", "k", "v", "scale", "mask"], ["a"]), call("Gate", ["a"], ["o"])]
        functions.append(function("Layer", inner, ["q", "k", "v", "scale", "mask"], ["o"]))
        callee = "Layer"
    names = ["q", *(f"x{i}" for i in range(1, calls)), "g"]
    nodes = [call(callee, [a, "k", "v", "scale", "mask"], [b]) for a, b in zip(names, names[1:], strict=False)]
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


CONTAINERS: dict[str, Builder] = {
    "if": in_if,
    "if-op": partial(in_if, op=True),
    "if-split": partial(in_if, split=True),
    "if-shared": partial(in_if, shared=True),
    "loop": in_loop,
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
    "loop-undeclared": partial(in_loop, declared=False),  # x could change its shape from turn to turn
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
