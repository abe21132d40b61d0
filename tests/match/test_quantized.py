"""K and V kept as integers: found in a graph or left alone, what they mean, and no copy of them in f32 in the compiled program."""

from __future__ import annotations

import contextlib
import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto as T
from onnx import helper as h
from onnx.reference import ReferenceEvaluator

from onnx_fa.errors import UnsupportedError
from onnx_fa.forms.plain import input_names, plain_model
from onnx_fa.forms.rewrite import explain, rewrite, rewrite_in_place
from onnx_fa.graph import io
from onnx_fa.iree.compile import compile_model
from onnx_fa.iree.kernels import plan_kernels
from onnx_fa.iree.legalise.rules import legalize
from onnx_fa.iree.stock_road import spec_for_model
from onnx_fa.kernels.cpu.vector import emit_vector
from onnx_fa.kernels.mlir.kernel import Kernel
from onnx_fa.spec.attention import AttentionSpec
from onnx_fa.spec.reference import attention
from onnx_fa.spec.terms import Quantized
from tests import fuzz
from tests.match.test_match_ops import run
from tests.support.cases import BY_NAME, Case, draw_operands, select
from tests.support.kernel_harness import HOST, Kernels, mismatch
from tests.support.random_specs import Drawn, draw_specs
from tests.support.spellings_ops import OUT, QKV, SCALE, Input, model, plain

_F32 = [c for c in select("quantized") if c.spec.dtype == "f32" and c.spec.empty_row == "nan"]


@pytest.mark.parametrize("case", _F32, ids=lambda c: c.name)
def test_found_and_written_back(case: Case) -> None:
    """The plain spelling of a spec is found with its integers, means what ONNX says, and survives both forms."""
    made, spec = plain_model(case.spec), case.bound()[0]
    (site,) = explain(made).sites
    for have, want in ((site.spec.k_quant, spec.k_quant), (site.spec.v_quant, spec.v_quant)):
        assert (have and have.dtype, have and have.zero_point) == (want and want.dtype, want and want.zero_point)
    proto = ir.to_proto(made)
    operands = draw_operands(spec, 0)
    feeds = dict(zip(input_names(spec), operands, strict=True))
    want = attention(spec, *operands)
    (got,) = ReferenceEvaluator(proto).run(None, feeds)
    np.testing.assert_allclose(got, want, rtol=2e-4, atol=2e-5)
    for form in ("decomposed", "blocked"):
        new, report = rewrite(proto, form)  # type: ignore[call-overload]
        assert len(report.sites) == 1
        onnx.checker.check_model(new, full_check=True)
        assert rewrite(new, form)[0].SerializeToString() == new.SerializeToString()  # type: ignore[call-overload]
        if spec.k_quant is not None and spec.k_quant.dtype in ("i8", "u8"):
            np.testing.assert_allclose(run(new, feeds, optimise=False)[0], want, rtol=2e-4, atol=2e-5)


_INTEGERS: list[Input] = [QKV[0], ("k8", QKV[1][1], T.INT8), ("v8", QKV[2][1], T.INT8)]
_B, _H, _S, _D = QKV[1][1]


def _site(nodes: list[onnx.NodeProto], inputs: list[Input], opset: int = 21, **constants: Any) -> AttentionSpec:
    (site,) = explain(model([*nodes, *plain("o")], inputs, [OUT], opset, {**SCALE, **constants})).sites
    return site.spec


def _by_op(x: str, scale: str, **attrs: Any) -> onnx.NodeProto:
    return h.make_node("DequantizeLinear", [f"{x}8", scale], [x], name=f"{x}_dequantize", **attrs)


def test_by_hand() -> None:
    """(Cast(k) - zero) * scale, one number per token."""
    shape = (_B, _H, _S, 1)
    nodes = []
    for x in "kv":
        nodes += [
            h.make_node("Cast", [f"{x}8"], [f"{x}_f"], name=f"{x}_cast", to=T.FLOAT),
            h.make_node("Cast", [f"{x}_zero"], [f"{x}_zf"], name=f"{x}_zero_cast", to=T.FLOAT),
            h.make_node("Sub", [f"{x}_f", f"{x}_zf"], [f"{x}_d"], name=f"{x}_sub"),
            h.make_node("Mul", [f"{x}_d", f"{x}_scale"], [x], name=f"{x}_mul"),
        ]
    extra: list[Input] = [(f"{x}_{n}", shape, t) for x in "kv" for n, t in (("scale", T.FLOAT), ("zero", T.INT8))]
    spec = _site(nodes, [*_INTEGERS, *extra], 18)
    assert spec.k_quant == spec.v_quant == Quantized("i8", shape, True)


def test_one_scale_through_any_regrouping() -> None:
    """A scale that does not vary is the same however axes move behind it: (B, S, H * D) becomes (B, H, S, D)."""
    nodes = []
    for x in "kv":
        nodes += [
            h.make_node("DequantizeLinear", [f"{x}8", "step"], [f"{x}_flat"], name=f"{x}_dequantize"),
            h.make_node("Reshape", [f"{x}_flat", "split"], [f"{x}_split"], name=f"{x}_reshape"),
            h.make_node("Transpose", [f"{x}_split"], [x], name=f"{x}_transpose", perm=(0, 2, 1, 3)),
        ]
    inputs: list[Input] = [QKV[0], *((f"{x}8", (_B, _S, _H * _D), T.UINT8) for x in "kv")]
    spec = _site(nodes, inputs, step=np.float32(0.05), split=np.asarray([_B, _S, _H, _D]))
    assert spec.k_quant == Quantized("u8")
    assert spec.k_layout == (0, 2, 1, 3)


def _numbers(*types: int) -> list[Input]:
    return [QKV[0], ("k8", QKV[1][1], types[0]), ("v8", QKV[2][1], types[0])]


def test_not_absorbed() -> None:
    """What is no small integer, or varies where the site has no dim for it, stays a node in front of the site."""
    wide = _site([_by_op("k", "step"), _by_op("v", "step")], _numbers(T.INT32), step=np.float32(0.1))
    assert wide.quantized == ()
    # Both halves of the keys have a scale of their own.
    halves = [
        h.make_node("DequantizeLinear", ["k8", "step"], ["k_a"], name="a"),
        h.make_node("DequantizeLinear", ["k9", "other"], ["k_b"], name="b"),
        h.make_node("Concat", ["k_a", "k_b"], ["k"], name="k_concat", axis=2),
        _by_op("v", "step"),
    ]
    inputs: list[Input] = [
        QKV[0],
        ("k8", (_B, _H, 2, _D), T.INT8),
        ("k9", (_B, _H, _S - 2, _D), T.INT8),
        ("v8", QKV[2][1], T.INT8),
    ]
    spec = _site(halves, inputs, step=np.float32(0.1), other=np.float32(0.2))
    assert spec.k_quant is None and spec.v_quant == Quantized()
    # One scale for several neighbouring tokens.
    blocks = {"step": np.full((_B, _H, 1, _D), 0.1, np.float32)}
    assert _site([_by_op(x, "step", axis=2, block_size=_S) for x in "kv"], _INTEGERS, **blocks).k_quant is not None
    blocks = {"step": np.full((_B, _H, 2, _D), 0.1, np.float32)}
    longer: list[Input] = [QKV[0], *((f"{x}8", (_B, _H, 6, _D), T.INT8) for x in "kv")]
    spec = _site([_by_op(x, "step", axis=2, block_size=3) for x in "kv"], longer, **blocks)
    assert spec.quantized == ()
    # Rounded queries are dequantised in front of the site.
    q = h.make_node("DequantizeLinear", ["q8", "step"], ["q"], name="q_dequantize")
    rest: list[Input] = [("q8", QKV[0][1], T.INT8), *QKV[1:]]
    assert _site([q], rest, step=np.float32(0.1)).quantized == ()


def test_no_copy_of_the_cache(tmp_path: Path) -> None:
    """One dispatch, and no buffer as large as K would be in f32."""
    spec = BY_NAME["quant_decode"].spec
    io.save(plain_model(spec), tmp_path / "m.onnx")
    done = compile_model(tmp_path / "m.onnx", tmp_path / "m.vmfb")
    (site,) = done.sites
    assert site.fused and site.dispatches == 1
    sizes = [d for d in spec.operand_shapes[1] if isinstance(d, int)]
    assert site.largest_buffer_bytes is not None and site.largest_buffer_bytes < 4 * int(np.prod(sizes))


def test_integers_that_no_kernel_reads() -> None:
    """They become numbers in front of the site, which stays one kernel."""
    spec = dataclasses.replace(BY_NAME["quant_i4_token"].spec, D=33, Dv=33)
    work = plain_model(spec)
    planned = plan_kernels(work, HOST)
    (site,), (found,) = planned.sites, explain(work).sites
    assert not planned.report.misses
    assert site.spec == dataclasses.replace(found.spec, k_quant=None, v_quant=None) != found.spec
    assert {n.op_type for n in planned.model.graph} == {"DequantizeLinear", "AttentionSite"}
    assert site.kernel is not None and site.kernel.spec == site.spec


def test_the_stock_road_begins_behind_the_dequantisation() -> None:
    work = plain_model(BY_NAME["quant_token"].spec)
    _, sites = rewrite_in_place(work, "decomposed")
    text = spec_for_model(work, sites, HOST)
    assert "transform.foreach_match" in text and "xi8>" not in text


@pytest.mark.parametrize("name", ["quant_groups", "quant_token_zero"])
def test_blocks_are_written_for_iree(name: str) -> None:
    """IREE knows no block_size."""
    spec = BY_NAME[name].spec
    proto = onnx.shape_inference.infer_shapes(ir.to_proto(plain_model(spec)))
    legal = legalize(proto)
    assert "DequantizeLinear" not in {n.op_type for n in legal.graph.node}
    feeds = dict(zip(input_names(spec), draw_operands(spec, 0), strict=True))
    np.testing.assert_allclose(run(legal, feeds)[0], run(proto, feeds)[0], rtol=1e-5, atol=1e-6)


def test_refusals() -> None:
    odd = dataclasses.replace(BY_NAME["quant_i4_token"].spec, D=33)
    with pytest.raises(UnsupportedError, match="bytes that hold two rows"):
        emit_vector(odd, HOST, "fa_x")
    for shape in ((3,), (2, 2, 64, 5), (2, 64, 2, 1), (1, 2, 2, 64, 1)):
        with pytest.raises(ValueError, match="scale of k"):
            dataclasses.replace(BY_NAME["quant_token"].spec, k_quant=Quantized("i8", shape))


LONG = 400_000
"""Characters of a kernel that takes a compiler half a minute: of eight queries, all that each does to a key is written out."""


def test_random_specs(tmp_path: Path, pytestconfig: pytest.Config) -> None:
    """With small tiles, and those of few queries with the body for that too; long kernels with --whole."""
    whole = pytestconfig.getoption("whole")
    cases = list[tuple[Drawn, Kernel]]()
    for i, drawn in enumerate(d for d in draw_specs(1000) if d.spec.quantized):
        with contextlib.suppress(UnsupportedError):
            made = [k for k in fuzz.kernels(2 * i + 1, drawn.spec) if whole or len(k.text) < LONG]
            cases += [(drawn, kernel) for kernel in made if len(cases) < 3 or kernel.body == "few"]
        if len(cases) >= (10 if whole else 4):
            break
    assert {"few", "vector"} <= {kernel.body for _, kernel in cases}
    compiled = Kernels([kernel for _, kernel in cases], tmp_path)
    for i, (drawn, kernel) in enumerate(cases):
        for seed, spec in enumerate(drawn.bound()):
            for adversarial in (False, True):
                operands = draw_operands(spec, seed, adversarial=adversarial)
                assert mismatch(spec, operands, compiled.run(i, operands)) is None, (kernel.body, spec)
