"""Norms and gates joined to the rounding of products with weights of a few bits: what is, what is not, and its numbers."""

from __future__ import annotations

import re
from collections import Counter

import numpy as np
import onnx
import pytest

from onnx_fa.iree.compile import compile_model, import_model
from onnx_fa.iree.inference import infer_types
from onnx_fa.iree.legalise.bits_fused import fuse_rounded
from onnx_fa.iree.legalise.rules import legalize
from onnx_fa.iree.run import load_module
from onnx_fa.spec.target import parse_target
from tests.support.bits_graphs import complete
from tests.support.joined_models import join_models
from tests.support.ort_run import run

HOST = parse_target("cpu-host")
ROUNDS = parse_target("cpu-avx512")
"""What has the instructions, whatever this processor has."""
K, BLOCK = 64, 32
INFINITE = 2
"""The row that has an infinity in it."""
NORM = "t = Add(x, r) n = SimplifiedLayerNormalization <epsilon = 1e-6> (t, g) "
GATE = "a = BITS(n, w1, s1) b = BITS(n, w2, s2) i = Sigmoid(a) j = Mul(a, i) h = Mul(j, b) "
MLP = NORM + GATE + "d = BITS(h, w3, s3) y = Add(t, d)"
FUSED = {
    "mlp": (MLP, {"RoundedRows": 1, "GatedProduct": 1, "RoundedProduct": 1}),
    "norm": (
        "n = SimplifiedLayerNormalization <epsilon = 1e-5> (x, g) a = BITS(n, w1, s1) y = Add(a, r)",
        {"RoundedRows": 1, "RoundedProduct": 1},
    ),
    "spelled": (
        "e = Constant <value = float {1e-6}> () p = Mul(x, x) m = ReduceMean <axes = [-1]> (p) q = Add(m, e) o = Sqrt(q) "
        "v = Div(x, o) n = Mul(v, g) a = BITS(n, w1, s1) b = BITS(n, w2, s2) c = Sub(a, b) y = Add(c, r)",
        {"RoundedRows": 1, "RoundedProduct": 2},
    ),
    "gate": (
        "z = Add(x, r) f = Identity(z) a = BITS(f, w1, s1) b = BITS(f, w2, s2) c = Relu(b) h = Mul(a, c) y = BITS(h, w3, s3)",
        {"RoundedRows": 1, "GatedProduct": 1, "RoundedProduct": 1},
    ),
    "sum_unread": (NORM + "y = BITS(n, w1, s1)", {"RoundedRows": 1, "RoundedProduct": 1}),
}
KEPT = {
    "norm_read": NORM + "a = BITS(n, w1, s1) y = Add(a, n)",
    "bias_in_norm": NORM + "o = Add(n, g) y = BITS(o, w1, s1)",
    "centred": "n = LayerNormalization (x, g) a = BITS(n, w1, s1) y = Add(a, r)",
    "other_axis": "n = SimplifiedLayerNormalization <axis = 1> (x, gg) a = BITS(n, w1, s1) y = Add(a, r)",
    "not_all_round": NORM + "a = BITS(n, w1, s1) b = EXACT(n, w2, s2) y = Add(a, b)",
    "unlike_blocks": NORM + "a = BITS(n, w1, s1) b = WIDE(n, w2, s4) y = Add(a, b)",
    "alone": "f = Add(x, r) y = BITS(f, w1, s1)",
}
UNGATED = {
    "gate_read": NORM + GATE + "d = BITS(h, w3, s3) y = Add(h, d)",
    "up_read": NORM + GATE + "d = BITS(h, w3, s3) y = Add(b, d)",
    "not_rounded": NORM + GATE + "d = EXACT(h, w3, s3) y = Add(t, d)",
    "third": NORM + GATE + "k = Mul(h, x) d = BITS(k, w3, s3) y = Add(t, d)",
    "one_product": NORM + "a = BITS(n, w1, s1) i = Sigmoid(a) h = Mul(a, i) d = BITS(h, w3, s3) y = Add(t, d)",
}


def model(body: str, lead: str = "1, n", dtype: str = "float") -> onnx.ModelProto:
    """The graph of a body, where BITS is a product that rounds, EXACT one that does not, and WIDE has blocks of 64."""
    sizes = f"K = {K}, N = {K}, bits = 4"
    for word, block, level in (("BITS", BLOCK, 4), ("EXACT", BLOCK, 0), ("WIDE", 2 * BLOCK, 4)):
        attributes = f"<{sizes}, block_size = {block}, accuracy_level = {level}>"
        body = re.sub(rf"\b{word}\b", f"com.microsoft.MatMulNBits {attributes}", body)
    shape = f"{dtype}[{lead}, {K}]"
    text = (
        f'<ir_version: 9, opset_import: ["" : 17, "com.microsoft" : 1]> main_graph ({shape} x, {shape} r) => ({shape} y) '
        f"{{ {body} }}"
    )
    made, rng = onnx.parser.parse_model(text), np.random.default_rng(3)
    kind = np.float32 if dtype == "float" else np.float16
    arrays = {
        **{f"w{i}": rng.integers(0, 256, (K, K // BLOCK, BLOCK // 2)).astype(np.uint8) for i in (1, 2, 3)},
        **{f"s{i}": (rng.standard_normal(K * (K // BLOCK)) / 8).astype(kind) for i in (1, 2, 3)},
        "s4": rng.standard_normal(K).astype(kind),
        "g": rng.standard_normal(K).astype(kind),
        "gg": rng.standard_normal((5, K)).astype(kind),
    }
    if "WIDE" not in body and "s4" in body:
        arrays["w2"] = arrays["w2"].reshape(K, 1, BLOCK)
    return complete(made, arrays)


def imported(proto: onnx.ModelProto) -> onnx.ModelProto:
    """The graph as the importer gets it."""
    infer_types(proto, {})
    made = legalize(proto, target=ROUNDS)
    infer_types(made, {})
    fuse_rounded(made, target=ROUNDS)
    return made


def ops_of(proto: onnx.ModelProto) -> Counter[str]:
    """How many nodes of each op of ours there are."""
    return Counter(n.op_type for n in imported(proto).graph.node if n.domain == "onnx_fa")


@pytest.mark.parametrize("name", FUSED)
def test_fused(name: str) -> None:
    body, ops = FUSED[name]
    assert ops_of(model(body)) == ops
    assert ops_of(model(body, "7")) == ops and ops_of(model(body, "1, 1")) == ops


@pytest.mark.parametrize("name", KEPT)
def test_kept(name: str) -> None:
    """What others read in f32, is normed otherwise, or is rounded in two ways."""
    assert set(ops_of(model(KEPT[name], "1, 5"))) == {"BitsProduct"}


@pytest.mark.parametrize("name", UNGATED)
def test_not_gated(name: str) -> None:
    """Only the norm is joined where what the gate makes is read by others, or is more than a function of two products."""
    ops = ops_of(model(UNGATED[name]))
    assert "GatedProduct" not in ops and ops["RoundedRows"] == 1


def test_other_leading_dims_and_types() -> None:
    """Rows of several free dims stay as they are; f16 is cast in front of a product."""
    body = FUSED["norm"][0]
    assert set(ops_of(model(body, "b, n"))) == {"BitsProduct"}
    assert set(ops_of(model(body, "1, n", "float16"))) == {"BitsProduct"}


def test_given_out() -> None:
    """A norm that the model gives out stays, and a sum that it gives out is one of the results."""
    proto = model(FUSED["mlp"][0])
    proto.graph.output.append(onnx.helper.make_tensor_value_info("t", onnx.TensorProto.FLOAT, [1, "n", K]))
    assert ops_of(proto)["RoundedRows"] == 1
    proto.graph.output.append(onnx.helper.make_tensor_value_info("n", onnx.TensorProto.FLOAT, [1, "n", K]))
    made, nodes = ops_of(proto), {"RoundedRows": 1, "GatedProduct": 1, "RoundedProduct": 1}
    assert made == nodes and "Sqrt" in {n.op_type for n in imported(proto).graph.node}
    assert "Sqrt" not in {n.op_type for n in imported(model(FUSED["mlp"][0])).graph.node}


def test_reports() -> None:
    """Each product is told of, with the kernel that it is a part of, and what the first of a pair does with the other's numbers."""
    made = import_model(model(FUSED["mlp"][0]), ROUNDS)
    assert len(made.linear) == 3 and all(site.kernel and not site.kept for site in made.linear)
    gate, up, down = made.linear
    assert gate.kernel == up.kernel != down.kernel and f"@{gate.kernel}::" in made.text
    assert [len(site.spec.tensors) for site in made.linear] == [1, 0, 0] and "Sigmoid" in str(gate.spec.then)
    assert len({site.name for site in made.linear}) == 3


@pytest.fixture(scope="module")
def numbers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, np.ndarray]:
    """Of all models, compiled as one."""
    path = tmp_path_factory.mktemp("fused") / "m.vmfb"
    bodies = {name: body for name, (body, _) in FUSED.items()} | UNGATED | {"norm_read": KEPT["norm_read"]}
    compile_model(join_models([model(body) for body in bodies.values()]), path, HOST, parameters="embed")
    call, made = load_module(path), {}
    for rows in (1, 6):
        for name, y in zip(bodies, call(*inputs(rows) * len(bodies)), strict=True):
            made[f"{name} {rows}"] = y
    x, r = inputs(6)
    x[0, INFINITE, 5] = np.inf
    for name, y in zip(bodies, call(*[x, r] * len(bodies)), strict=True):
        made[f"{name} infinite"] = y
    return made


def inputs(rows: int) -> list[np.ndarray]:
    """x and r, with a block of zeros, and large numbers in the last row."""
    rng = np.random.default_rng(rows)
    x, r = (rng.standard_normal((1, rows, K)).astype(np.float32) for _ in range(2))
    x[0, 0, :BLOCK] = r[0, 0, :BLOCK] = 0
    x[0, -1] *= 1e6
    return [x, r]


@pytest.mark.skipif(not HOST.multiplies_bytes, reason="this processor has neither AVX2 nor AVX-512")
@pytest.mark.parametrize("rows", [1, 6])
@pytest.mark.parametrize("name", [*FUSED, *UNGATED, "norm_read"])
def test_numbers(name: str, rows: int, numbers: dict[str, np.ndarray]) -> None:
    """onnxruntime's, which rounds the same blocks: a number of ours that lies as near to half a step as f32 tells may be
    rounded to the other side, so that single results differ by a step of one factor."""
    body = FUSED[name][0] if name in FUSED else {**UNGATED, **KEPT}[name]
    x, r = inputs(rows)
    want, got = run(model(body), {"x": x, "r": r}, optimise=False)[0], numbers[f"{name} {rows}"]
    assert got.shape == want.shape
    assert np.linalg.norm(got - want) <= 2e-6 * np.linalg.norm(want)


@pytest.mark.skipif(not HOST.multiplies_bytes, reason="this processor has neither AVX2 nor AVX-512")
@pytest.mark.parametrize("name", FUSED)
def test_infinities(name: str, numbers: dict[str, np.ndarray]) -> None:
    """A row with an infinity has no finite number, as in f32, and the others are what they were."""
    got, others = numbers[f"{name} infinite"], np.arange(6) != INFINITE
    assert not np.isfinite(got[0, INFINITE]).any()
    np.testing.assert_array_equal(got[0, others], numbers[f"{name} 6"][0, others])
