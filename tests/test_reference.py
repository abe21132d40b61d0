"""The float64 reference against plain loops, torch's SDPA and the ONNX reference of the Attention op."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator

from onnx_fa.reference import attention
from onnx_fa.spec import NEG_INF, AddMask, AttentionSpec, BoolMask, Causal, SlidingWindow, Softcap
from tests.cases import CASES, Case, draw_operands

_SMALL = [c for c in CASES if "bench" not in c.tags and "head_dim" not in c.tags]


def _at(mask: Any, index: tuple[int, ...]) -> Any:
    """The element of a right-aligned broadcast tensor."""
    own = index[len(index) - mask.ndim :]
    return mask[tuple(0 if n == 1 else i for i, n in zip(own, mask.shape, strict=True))]


def _loops(spec: AttentionSpec, operands: list[Any]) -> Any:
    """One row at a time, in Python floats."""
    assert isinstance(spec.Sq, int) and isinstance(spec.Skv, int)
    q, k, v = (
        np.transpose(x, np.argsort(p)).astype(float)
        for x, p in zip(operands, (spec.q_layout, spec.k_layout, spec.v_layout), strict=False)
    )
    out = np.zeros([int(n) for n in spec.canonical_shapes[3]])
    for index in itertools.product(*(range(int(n)) for n in spec.score_shape[:-1])):
        *batch, head, i = index
        kv = (*batch, head // spec.group)
        row = []
        for j in range(spec.Skv):
            s = spec.scale * sum(a * b for a, b in zip(q[index], k[(*kv, j)], strict=True))
            for mod in spec.mods:
                s = mod.cap * math.tanh(s / mod.cap)
            tensors = iter(operands[3:])
            for mask in spec.masks:
                if isinstance(mask, AddMask):
                    s += mask.factor * float(_at(next(tensors), (*index, j)))
                    continue
                if isinstance(mask, BoolMask):
                    keep = bool(_at(next(tensors), (*index, j)))
                else:
                    here = i + (spec.Skv - spec.Sq if mask.offset == "end" else mask.offset)
                    if isinstance(mask, Causal):
                        keep = j <= here
                    else:
                        keep = mask.left is None or j >= here - mask.left
                        keep = keep and (mask.right is None or j <= here + mask.right)
                s = s if keep else mask.fill
            row.append(s)
        top = max(row)
        if top == NEG_INF:
            out[index] = 0.0 if spec.empty_row in ("zero", "guarded") else math.nan
            continue
        p = [math.exp(s - top) for s in row]
        out[index] = sum(w * x for w, x in zip(p, v[kv], strict=True)) / sum(p)
    return np.transpose(out, spec.o_layout)


@pytest.mark.parametrize("case", _SMALL, ids=lambda c: c.name)
def test_loops(case: Case) -> None:
    spec = case.bound()[-1]
    small = {n: min(d, 6) for n, d in (("Sq", spec.Sq), ("Skv", spec.Skv)) if isinstance(d, int)}
    if not spec.tensor_masks:  # a mask's shape follows the lengths
        spec = AttentionSpec(**{**vars(spec), **small})
    elif spec.Sq != 1:
        spec = _shrink(spec)
    operands = draw_operands(spec, 1, adversarial=True)
    with np.errstate(all="ignore"):
        got = attention(spec, *operands)
    np.testing.assert_allclose(got, _loops(spec, operands), rtol=1e-9, atol=1e-12)


def _shrink(spec: AttentionSpec) -> AttentionSpec:
    """A masked spec with lengths of at most 6."""
    symbols = {spec.Sq: "s", spec.Skv: "t"} if spec.Sq != spec.Skv else {spec.Sq: "s"}
    data = spec.to_dict()
    lengths = {"s": 6, "t": 5}

    def rename(d: Any) -> Any:
        return lengths[symbols[d]] if d in symbols and d not in (1, 2, 3) else d

    for mask in data["masks"]:
        if "shape" in mask:
            mask["shape"] = [rename(d) for d in mask["shape"]]
    data |= {"Sq": rename(spec.Sq), "Skv": rename(spec.Skv)}
    return AttentionSpec.from_dict(data)


@pytest.mark.parametrize(("causal", "masked"), [(False, None), (True, None), (False, "bool"), (False, "float")])
def test_torch(causal: bool, masked: str | None) -> None:
    torch = pytest.importorskip("torch")
    masks: tuple[Any, ...] = (Causal(),) if causal else ()
    if masked:
        masks = (BoolMask((2, 1, 7, 9)) if masked == "bool" else AddMask((2, 1, 7, 9)),)
    # A row with no key left: torch's SDPA gives zero.
    spec = AttentionSpec("f32", 4, 2, 7, 9, 16, 8, (2,), scale=0.3, masks=masks, empty_row="zero")
    operands = draw_operands(spec, 0, adversarial=masked == "bool")
    q, k, v, *mask = (torch.from_numpy(x) for x in operands)
    want = torch.nn.functional.scaled_dot_product_attention(
        q.double(),
        k.double(),
        v.double(),
        attn_mask=(mask[0] if masked == "bool" else mask[0].double()) if mask else None,
        is_causal=causal,
        scale=0.3,
        enable_gqa=True,
    )
    np.testing.assert_allclose(attention(spec, *operands), want.numpy(), rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("causal", [0, 1])
@pytest.mark.parametrize("softcap", [0.0, 2.0])
@pytest.mark.parametrize("heads", [(4, 4), (4, 2)])
def test_onnx_attention(causal: int, softcap: float, heads: tuple[int, int]) -> None:
    spec = AttentionSpec(
        "f32",
        *heads,
        6,
        6,
        16,
        8,
        (2,),
        scale=0.25,
        mods=(Softcap(softcap),) if softcap else (),
        masks=(Causal(),) if causal else (),
        empty_row="zero",
    )
    value = onnx.helper.make_tensor_value_info
    f32 = onnx.TensorProto.FLOAT
    node = onnx.helper.make_node("Attention", ["q", "k", "v"], ["o"], scale=0.25, is_causal=causal, softcap=softcap)
    names = zip("qkv", spec.operand_shapes, strict=True)
    graph = onnx.helper.make_graph([node], "g", [value(n, f32, s) for n, s in names], [value("o", f32, None)])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 24)], ir_version=10)
    operands = draw_operands(spec, 2)
    (want,) = ReferenceEvaluator(model).run(None, dict(zip("qkv", operands, strict=True)))
    np.testing.assert_allclose(attention(spec, *operands), want, rtol=1e-4, atol=1e-5)


def test_offsets_and_windows() -> None:
    """Which keys a query sees, spelled out."""

    def seen(mask: Any) -> list[list[int]]:
        spec = AttentionSpec("f32", 1, 1, 3, 5, 8, 5, masks=(mask,), empty_row="zero")
        v = np.eye(5)[None]
        out = attention(spec, np.zeros((1, 3, 8)), np.zeros((1, 5, 8)), v)
        return [list(np.flatnonzero(row)) for row in out[0]]

    assert seen(Causal()) == [[0], [0, 1], [0, 1, 2]]
    assert seen(Causal("end")) == [[0, 1, 2], [0, 1, 2, 3], [0, 1, 2, 3, 4]]
    assert seen(Causal(-1)) == [[], [0], [0, 1]]
    assert seen(SlidingWindow(1, 0)) == [[0], [0, 1], [1, 2]]
    assert seen(SlidingWindow(1, 1, 2)) == [[1, 2, 3], [2, 3, 4], [3, 4]]
