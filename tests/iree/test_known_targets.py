"""Targets of Reshapes that a graph computes from sizes, as constants."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import pytest

import onnx_fa
from onnx_fa.graph.view import GraphView
from onnx_fa.iree.compile import iree_compile
from onnx_fa.iree.importer import import_mlir
from onnx_fa.iree.legalise.known_targets import known_targets, write_known_targets
from onnx_fa.spec.target import parse_target
from tests.support.ort_run import assert_same, run

SIZES = {"B": 3, "S": 5, "T": 4}


def traced(target: str, *, x: str = "B, S, 8", y: str = "D0, D1, D2, D3", zeros: str = "") -> onnx.ModelProto:
    """x to a target of numbers and of B, S and T, which are read of shapes, as PyTorch's exporter traces it."""
    parts = [part.strip() for part in target.split(",")]
    names = [f"{part}_size" if part.isalpha() else f"number{i}" for i, part in enumerate(parts)]
    numbers = ", ".join(f"int64[1] number{i} = {{{p}}}" for i, p in enumerate(parts) if not p.isalpha())
    constants = ", ".join([*[numbers][: bool(numbers)], "int64 at0 = {0}, int64 at1 = {1}, int64[1] first = {0}"])
    sizes = "\n".join(
        f"{size}_scalar = Gather <axis = 0> (shape_{of}, at{at})  {size}_size = Unsqueeze({size}_scalar, first)"
        for size, of, at in (("B", "x", 0), ("S", "x", 1), ("T", "q", 1))
    )
    return onnx.parser.parse_model(
        f"""<ir_version: 9, opset_import: ["" : 18]>
        g (float[{x}] x, float[B, T] q) => (float[{y}] y) <{constants}>
        {{ shape_x = Shape(x)  shape_q = Shape(q)
           {sizes}
           to = Concat <axis = 0> ({", ".join(names)})  moved = Relu(x)  y = Reshape{zeros}(moved, to) }}"""
    )


def target_of(model: onnx.ModelProto) -> list[int] | None:
    return known_targets(GraphView(ir.from_proto(model))).get("y")


SAME = {
    "heads": (traced("B, S, 2, 4"), [0, 0, 2, 4]),
    "heads that are left over": (traced("B, S, -1, 4"), [0, 0, 2, 4]),
    "length that is left over": (traced("B, -1, 2, 4"), [0, 0, 2, 4]),
    "merged": (traced("B, S, 8", x="B, S, 2, 4", y="D0, D1, D2"), [0, 0, 8]),
    "zero copies": (traced("0, S, 2, 4"), [0, 0, 2, 4]),
    "known batch": (traced("B, S, 2, 4", x="3, S, 8"), [3, 0, 2, 4]),
    "a name of the run's": (traced("B, S, 2, 4", zeros=" <allowzero = 1>"), [0, 0, 2, 4]),
}
OTHERS = {
    "other places": traced("S, B, 2, 4"),
    "the size of another input": traced("B, T, 2, -1", x="B, S, 8"),
    "merged free sizes": traced("-1, 2, B, 4"),
    "no elements": traced("B, S, 0, 4", x="B, S, 0", zeros=" <allowzero = 1>"),
    "one free size more": traced("B, 2, S, 4"),
}


@pytest.mark.parametrize("name", SAME)
def test_known(name: str) -> None:
    model, want = SAME[name]
    assert target_of(model) == want
    made = onnx.ModelProto.FromString(model.SerializeToString())
    write_known_targets(made, {"y": want})
    inputs = arrays(model)
    assert_same(run(model, inputs), run(made, inputs))


@pytest.mark.parametrize("name", OTHERS)
def test_others_stay(name: str) -> None:
    assert target_of(OTHERS[name]) is None


def arrays(model: onnx.ModelProto) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    shapes = {
        v.name: [d.dim_value or SIZES.get(d.dim_param, 0) for d in v.type.tensor_type.shape.dim]
        for v in model.graph.input
    }
    return {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}


@pytest.mark.parametrize("sizes", [(3, 5), (1, 1), (0, 5), (3, 0)])
def test_compiled(sizes: tuple[int, int], compiled: Path) -> None:
    """Sizes of 0 too: of these onnxruntime takes none where a -1 is left over, so that the target is written out."""
    x = np.random.default_rng(1).standard_normal((*sizes, 8)).astype(np.float32)
    (got,) = onnx_fa.run(compiled, x, np.ones((sizes[0], 4), np.float32))
    np.testing.assert_array_equal(got, np.maximum(x, 0).reshape(*sizes, 2, 4))


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("targets") / "m.vmfb"
    onnx_fa.compile(SAME["heads that are left over"][0], path)
    return path


def test_a_call_is_not_cut(tmp_path: Path) -> None:
    """Without checks between them all commands of a call are one submission."""
    target = parse_target("cpu-avx512")
    text = import_mlir(SAME["heads"][0], {}, target=target).text
    iree_compile(text, tmp_path / "m.stream", target, phase="stream", timeout_s=120)
    assert "Expected dim size" not in (tmp_path / "m.stream").read_text()
