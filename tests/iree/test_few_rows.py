"""Products of a few rows by weights of a few bits on CUDA: which take the norm in front and the gate beside them, and which do
not."""

from __future__ import annotations

import json
import re

import numpy as np
import onnx
import onnx.parser
import pytest

from onnx_fa.errors import UnsupportedError
from onnx_fa.iree.compile import import_model
from onnx_fa.iree.compiler import iree_compile
from onnx_fa.iree.importer import import_mlir
from onnx_fa.iree.inference import infer_types
from onnx_fa.iree.legalise.few_rows import FUSED_LINEAR, join_few_rows
from onnx_fa.iree.legalise.linear_sites import find_linear_sites
from onnx_fa.iree.legalise.norm_sites import find_norm_sites
from onnx_fa.iree.legalise.rules import legalize
from onnx_fa.iree.legalise.writer import attributes_of
from onnx_fa.kernels.triton.fused_linear import emit_fused, takes
from onnx_fa.spec.expr import SCORE, Apply, Tensor
from onnx_fa.spec.fused_linear import FusedLinear, multiply_fused
from onnx_fa.spec.linear import Bits, LinearSpec, followed
from onnx_fa.spec.norm import NormSpec
from onnx_fa.spec.target import parse_target
from onnx_fa.spec.terms import TensorArg
from tests.support.bits_graphs import complete
from tests.support.linear_cases import FUSED, draw_fused
from tests.support.triton_sources import triton_sources

CUDA = parse_target("cuda")
K, BLOCK = 64, 32
_TIMES = Apply("Mul", SCORE, Tensor(0))
NORM = "n = SimplifiedLayerNormalization <epsilon = 1e-6> (x, g) "
PAIR = "a = BITS(n, w1, s1) b = BITS(n, w2, s2) i = Sigmoid(a) j = Mul(a, i) h = Mul(j, b) "
DOWN = "d = BITS(h, w3, s3) y = Add(d, x)"
WHOLE = NORM + PAIR + DOWN
THREE = NORM + "a = BITS(n, w1, s1) b = BITS(n, w2, s2) c = BITS(n, w3, s3) t = Concat <axis = -1> (a, b, c) y = Neg(t)"
JOINED = {
    "whole": (WHOLE, [(True, True)]),
    "norm": (NORM + "a = BITS(n, w1, s1) y = Neg(a)", [(True, False)]),
    "pair": (PAIR.replace("(n,", "(x,") + DOWN, [(False, True)]),
    "three": (THREE, [(True, False)] * 3),
    "gate_is_up": (WHOLE.replace("Mul(j, b)", "Mul(b, j)"), [(True, True)]),
    "relu": (NORM + "a = BITS(n, w1, s1) b = BITS(n, w2, s2) j = Relu(b) h = Mul(a, j) " + DOWN, [(True, True)]),
    "through": (NORM.replace("n =", "m =") + "n = Identity(m) " + PAIR + DOWN, [(True, True)]),
    "floats": (NORM + "a = MatMul(n, f) y = Neg(a)", [(True, False)]),
    "some_read_floats": (NORM + "a = BITS(n, w1, s1) b = MatMul(n, f) c = Neg(a) y = Sub(c, b)", [(True, False)] * 2),
    "norm_is_read": (WHOLE.replace("Add(d, x)", "Add(d, n)"), [(False, True)]),
    "norm_is_centred": (WHOLE.replace("SimplifiedLayerNormalization", "LayerNormalization"), [(False, True)]),
    "gate_is_read": (WHOLE.replace("Add(d, x)", "Add(d, a)"), [(True, False)] * 2),
    "gate_of_others": (WHOLE.replace("BITS(n, w1", "BITS(x, w1"), [(True, False)]),
    "other_bits": (WHOLE.replace("BITS(n, w1, s1)", "WIDE(n, w1, s4)"), [(True, False)] * 2),
}
ALONE = {
    "nothing": "a = BITS(x, w1, s1) y = Neg(a)",
    "floats_alone": "a = MatMul(x, f) y = Neg(a)",
    "read_otherwise": NORM + "a = BITS(n, w1, s1) b = Neg(n) y = Add(a, b)",
    "other_axis": "n = SimplifiedLayerNormalization <axis = 1> (x, gg) a = BITS(n, w1, s1) y = Neg(a)",
    "summed": "t = Add(x, r) n = SimplifiedLayerNormalization (t, g) a = BITS(n, w1, s1) y = Add(a, t)",
}


def model(body: str, lead: str = "1, 1", dtype: str = "float") -> onnx.ModelProto:
    """The graph of a body, where BITS is a product by a weight of four bits, and WIDE has blocks of 64."""
    for word, block in (("BITS", BLOCK), ("WIDE", 2 * BLOCK)):
        body = re.sub(
            rf"\b{word}\b", f"com.microsoft.MatMulNBits <K = {K}, N = {K}, bits = 4, block_size = {block}>", body
        )
    shape, wide = f"{dtype}[{lead}, {K}]", f"{dtype}[{lead}, {3 * K if 'Concat' in body else K}]"
    imports = '["" : 17, "com.microsoft" : 1]'
    made = onnx.parser.parse_model(
        f"<ir_version: 9, opset_import: {imports}> main_graph ({shape} x, {shape} r) => ({wide} y) {{ {body} }}"
    )
    rng, kind = np.random.default_rng(3), np.float32 if dtype == "float" else np.float16
    arrays = {
        **{f"w{i}": rng.integers(0, 256, (K, K // BLOCK, BLOCK // 2)).astype(np.uint8) for i in (1, 2, 3)},
        **{f"s{i}": (rng.standard_normal(K * (K // BLOCK)) / 8).astype(kind) for i in (1, 2, 3)},
        "s4": rng.standard_normal(K).astype(kind),
        "g": rng.standard_normal(K).astype(kind),
        "gg": rng.standard_normal((1, K)).astype(kind),
        "f": rng.standard_normal((K, K)).astype(kind),
    }
    if "s4" in body:
        arrays["w1"] = arrays["w1"].reshape(K, 1, BLOCK)
    return complete(made, arrays)


def fused_in(proto: onnx.ModelProto) -> list[FusedLinear]:
    """The specs of the nodes that products, norms and gates became together."""
    infer_types(proto, {})
    with triton_sources():
        made = legalize(proto, target=CUDA)
        infer_types(made, {})
        find_linear_sites(made, target=CUDA)
        find_norm_sites(made, target=CUDA)
        join_few_rows(made, target=CUDA)
    assert {v.name for v in made.graph.output} | {n for node in made.graph.node for n in node.input if n} <= {
        *(v.name for v in (*made.graph.input, *made.graph.initializer)),
        *(o for node in made.graph.node for o in node.output),
    }
    nodes = [node for node in made.graph.node if f"{node.domain}.{node.op_type}" == FUSED_LINEAR]
    return [FusedLinear.from_dict(json.loads(attributes_of(node)["spec"])) for node in nodes]


@pytest.mark.parametrize("name", JOINED)
def test_joined(name: str) -> None:
    body, kinds = JOINED[name]
    for lead in ("1, 1", "1, 3"):
        found = fused_in(model(body, lead))
        assert [(spec.norm is not None, spec.gate is not None) for spec in found] == kinds


@pytest.mark.parametrize("name", ALONE)
def test_alone(name: str) -> None:
    assert fused_in(model(ALONE[name])) == []


def test_many_rows_and_rows_that_are_not_known_stay_as_they_are() -> None:
    assert fused_in(model(WHOLE, "1, 7")) == fused_in(model(WHOLE, "1, n")) == []
    assert len(fused_in(model(WHOLE, "1, 1", "float16"))) == 1


def test_reports_name_the_kernel() -> None:
    """Of the norm and of both products it is the same; the other product has one of its own."""
    with triton_sources():
        found = import_mlir(model(WHOLE), {}, target=CUDA)
    kernels = [report.kernel for report in (*found.linear, *found.norms)]
    assert len(kernels) == 4 and len(set(kernels)) == 2 and all(f"@{name}(" in found.text for name in kernels)
    assert found.norms[0].kernel in [report.kernel for report in found.linear]
    assert dict(found.norms[0].origin.tiles)["splits"] == 1


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"norm": NormSpec((1, 1), 288, "f32", "f32", 1e-5)}, "in front of"),
        ({"norm": NormSpec((1, 1), 64, "f32", "f32", 1e-5, False)}, "in front of"),
        ({"gate": LinearSpec((1, 1), 288, 64, "f32", True)}, "beside"),
    ],
)
def test_what_does_not_fit(changes: dict[str, object], reason: str) -> None:
    pair = FUSED["gated_pair"]
    with pytest.raises(ValueError, match=reason):
        FusedLinear(**{"product": pair.product, "norm": None, "gate": pair.gate} | changes)  # type: ignore[arg-type]


def test_meaning() -> None:
    """Against the product, the norm and the gate one by one, and after a way through JSON."""
    spec = FUSED["normed_pair"]
    operands = draw_fused(spec)
    given = dict(zip(spec.operand_names(), operands, strict=True))
    x = given["x"].astype(np.float64)
    n = x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-5) * given["gain"]

    def weight(name: str, scale: str) -> np.ndarray:
        packed = given[name]
        numbers = np.stack([packed & 15, packed >> 4], -1).reshape(packed.shape[0], -1).astype(np.float64) - 8
        return (numbers * np.repeat(given[scale].astype(np.float64), 64, axis=1)).T

    gate = n @ weight("gw", "gscale")
    want = (n @ weight("w", "scale") + given["t0"]) * (gate / (1 + np.exp(-gate)))
    np.testing.assert_allclose(multiply_fused(spec, operands), want, rtol=1e-12)
    assert FusedLinear.from_dict(json.loads(json.dumps(spec.to_dict()))) == spec


@pytest.mark.parametrize(
    "product",
    [LinearSpec((7,), 64, 64, "f32", True), LinearSpec(("n",), 64, 64, "f32", True), LinearSpec((1,), 64, 64, "u8")],
)
def test_many_rows_and_bytes_are_refused(product: LinearSpec) -> None:
    assert not takes(FusedLinear(product))
    with pytest.raises(UnsupportedError, match="many rows"):
        emit_fused(FusedLinear(product))


def test_norms_are_taken_where_few_workgroups_read_them() -> None:
    """And pairs of floats of up to two rows, whose sums registers hold."""
    bits = Bits(4, 32, "f32")
    for N, taken in ((4096, True), (12800, False)):
        product = LinearSpec((1,), 4096, N, "f32", True, bits)
        assert takes(FusedLinear(product, NormSpec((1,), 4096, "f32", "f32", 1e-5, False))) == taken
    for rows, taken in ((2, True), (3, False)):
        gate = LinearSpec((rows,), 64, 64, "f16")
        pair = FusedLinear(followed(gate, _TIMES, (TensorArg((rows, 64), "f16"),)), None, gate)
        assert takes(pair) == taken


@pytest.mark.parametrize("compiled", [False, True])
def test_module(compiled: bool, tmp_path) -> None:  # type: ignore[no-untyped-def]
    """Two dispatches for a norm and three products; Triton's code of both architectures."""
    if compiled:
        text = import_model(model(WHOLE), CUDA).text
        iree_compile(text, tmp_path / "m.vmfb", CUDA, timeout_s=120)
        data = (tmp_path / "m.vmfb").read_bytes()
        assert b".target sm_90a" in data and b".target sm_80" in data
        return
    with triton_sources():
        text = import_mlir(model(WHOLE), {}, target=CUDA).text
    iree_compile(text, tmp_path / "m.stream", CUDA, phase="stream", timeout_s=120)
    assert len(re.findall(r"stream\.cmd\.dispatch", (tmp_path / "m.stream").read_text())) == 2
