"""Sin and Cos of f64 as sums and products: their numbers beside the C library's, as ONNX and compiled."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx
import pytest
from onnx import TensorProto, helper

from onnx_fa.iree.compile import compile_model
from onnx_fa.iree.legalise.double_waves import parts_of_half_pi
from onnx_fa.iree.legalise.rules import legalize
from onnx_fa.iree.run import load_module
from tests.support.node_cases import run_ort

Array = npt.NDArray[np.float64]
RNG = np.random.default_rng(0)
QUARTERS = np.arange(-9, 10) * (np.pi / 2)
NEAR = np.concatenate(
    [
        np.linspace(-20, 20, 4001),
        QUARTERS,
        np.nextafter(QUARTERS, 9),
        [1e-300, -1e-9, 0.0],
        RNG.uniform(-8e5, 8e5, 4000),
    ]
)
FAR = np.concatenate([RNG.uniform(-1e9, 1e9, 2000), [1e12, -3e15]])
ODD = np.array([np.inf, -np.inf, np.nan])


def waves(element: int, count: int) -> onnx.ModelProto:
    """The sine and the cosine of a vector."""
    values = [helper.make_tensor_value_info(name, element, [count]) for name in ("x", "s", "c")]
    nodes = [helper.make_node("Sin", ["x"], ["s"]), helper.make_node("Cos", ["x"], ["c"])]
    graph = helper.make_graph(nodes, "waves", values[:1], values[1:])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def check(x: Array, sine: Array, cosine: Array) -> None:
    """Within a unit in the last place of one, or what a unit in the last place of x moves."""
    allowed = np.maximum(2.3e-16, np.spacing(np.abs(x)) * (np.abs(x) > 8e5))
    assert np.all(np.abs(sine - np.sin(x)) <= allowed) and np.all(np.abs(cosine - np.cos(x)) <= allowed)


@pytest.mark.parametrize("x", [NEAR, FAR], ids=["near", "far"])
def test_numbers(x: Array) -> None:
    model = legalize(waves(TensorProto.DOUBLE, len(x)))
    assert not {"Sin", "Cos"} & {n.op_type for n in model.graph.node}
    check(x, *run_ort(model, {"x": x}))


def test_small_results_are_exact_to_their_own_size() -> None:
    """Where a multiple of pi is next to x, the sine is as small as the rounding of x, and right to fifteen digits."""
    x = np.arange(1, 200_000, 997) * np.pi
    sine, _ = run_ort(legalize(waves(TensorProto.DOUBLE, len(x))), {"x": x})
    assert np.all(np.abs(sine / np.sin(x) - 1) < 1e-14) and np.abs(sine).max() < 1e-9


def test_what_is_not_a_number() -> None:
    with np.errstate(invalid="ignore"):
        found = run_ort(legalize(waves(TensorProto.DOUBLE, 3)), {"x": ODD})
    assert all(np.isnan(y).all() for y in found)


def test_others_are_left() -> None:
    for element in (TensorProto.FLOAT, TensorProto.FLOAT16):
        assert [n.op_type for n in legalize(waves(element, 4)).graph.node] == ["Sin", "Cos"]


def test_parts() -> None:
    """The first two parts have 33 bits, so that their products with whole numbers up to 2^20 are exact."""
    for part in parts_of_half_pi()[:2]:
        mantissa, exponent = np.frexp(part)
        assert float(mantissa * 2.0**33).is_integer() and exponent < 2
    assert sum(parts_of_half_pi()) == np.pi / 2


def test_compiled(tmp_path: Path) -> None:
    """IREE refuses the model as it is: it would call a function that it does not link."""
    x = np.concatenate([NEAR[::7], ODD])
    compile_model(waves(TensorProto.DOUBLE, len(x)), tmp_path / "m.vmfb", "cpu-host")
    sine, cosine = load_module(tmp_path / "m.vmfb")(x)
    check(x[:-3], sine[:-3], cosine[:-3])
    assert np.isnan(sine[-3:]).all() and np.isnan(cosine[-3:]).all()
