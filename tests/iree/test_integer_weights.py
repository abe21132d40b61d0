"""MatMul and Gemm by constants that are kept as integers, on CPUs: a kernel that reads them, and onnxruntime's numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto as T
from onnx import helper as h
from onnx import numpy_helper

from onnx_fa.iree.compile import compile_model, import_model
from onnx_fa.iree.run import load_module
from onnx_fa.spec.target import parse_target
from tests.support.joined_models import join_models
from tests.support.kernel_harness import asked_for
from tests.support.ort_run import run
from tests.support.triton_sources import triton_sources

HOST, AVX512 = parse_target("cpu-host"), parse_target("cpu-avx512")
K, N, BLOCK = 96, 48, 32
RANGES = {T.INT4: (-8, 8), T.UINT4: (0, 16), T.INT8: (-128, 128), T.UINT8: (0, 256)}


def model(
    kind: int,
    rows: int | str,
    *,
    zero: bool,
    turned: bool = False,
    axis: int | None = None,
    x: int = T.FLOAT,
    block: int = BLOCK,
) -> onnx.ModelProto:
    """x (2, rows, K) by a weight of (K, N), or (N, K) and turned."""
    rng, (low, high) = np.random.default_rng(kind), RANGES[kind]
    along = int(turned) if axis is None else axis
    shape = (N, K) if turned else (K, N)
    scales = tuple(d // block if i == along else d for i, d in enumerate(shape))

    def integers(name: str, dims: tuple[int, ...]) -> onnx.TensorProto:
        return h.make_tensor(name, kind, dims, rng.integers(low, high, dims).flatten().tolist())

    floats = rng.standard_normal(scales).astype(h.tensor_dtype_to_np_dtype(x))
    tensors = [integers("w", shape), numpy_helper.from_array(floats, "s"), *([integers("z", scales)] if zero else [])]
    nodes = [
        h.make_node("DequantizeLinear", [t.name for t in tensors], ["d"], axis=along, block_size=block),
        *([h.make_node("Transpose", ["d"], ["t"], perm=[1, 0])] if turned else []),
        h.make_node("MatMul", ["x", "t" if turned else "d"], ["y"]),
    ]
    values = [h.make_tensor_value_info(n, x, [2, rows, w]) for n, w in (("x", K), ("y", N))]
    graph = h.make_graph(nodes, "main_graph", values[:1], values[1:], tensors)
    return h.make_model(graph, opset_imports=[h.make_opsetid("", 21)], ir_version=10)


@dataclass(frozen=True)
class Blocks:
    kind: int
    rows: int | str
    zero: bool
    turned: bool

    def model(self) -> onnx.ModelProto:
        return model(self.kind, self.rows, zero=self.zero, turned=self.turned)

    def draw(self, n: int) -> np.ndarray:
        rows = n if isinstance(self.rows, str) else self.rows
        return np.random.default_rng(4).standard_normal((2, rows, K)).astype(np.float32)


BLOCKS = {
    f"{T.DataType.Name(kind)}-{rows}{'-zero' * zero}{'-turned' * turned}": Blocks(kind, rows, zero, turned)
    for kind, rows in ((T.INT4, "n"), (T.UINT4, 9), (T.INT8, "n"), (T.UINT8, 1))
    for zero in (False, True)
    for turned in (False, True)
}


def compiled(models: Sequence[onnx.ModelProto], folder: Path) -> Callable[..., list[np.ndarray]]:
    """All models as one function."""
    compile_model(join_models(models), folder / "m.vmfb", HOST, parameters="embed")
    return load_module(folder / "m.vmfb")


@pytest.fixture(scope="module")
def of_blocks(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> dict[int, dict[str, np.ndarray]]:
    """By free rows, and by name."""
    tried = {name: BLOCKS[name] for name in asked_for(request, "name") or BLOCKS}
    function = compiled([case.model() for case in tried.values()], tmp_path_factory.mktemp("blocks"))
    return {n: dict(zip(tried, function(*(c.draw(n) for c in tried.values())), strict=True)) for n in (1, 13)}


@pytest.mark.parametrize("name", BLOCKS)
def test_numbers(name: str, of_blocks: dict[int, dict[str, np.ndarray]]) -> None:
    case = BLOCKS[name]
    proto = case.model()
    bits = 4 if case.kind in (T.INT4, T.UINT4) else 8
    text = import_model(proto, HOST).text
    assert f"util.call @bits{bits}_" in text and "torch.aten.matmul" not in text
    # onnxruntime's optimiser would round x to 8 bits.
    for n, results in of_blocks.items():
        (want,) = run(proto, {"x": case.draw(n)}, optimise=False)
        assert np.abs(results[name] - want).max() <= 2e-6 * np.abs(want).max()


@pytest.mark.parametrize(
    "changes",
    [{"axis": 1, "block": 16}, {"turned": True, "axis": 0, "block": 16}, {"x": T.FLOAT16}, {"block": 48}],
    ids=["blocks of columns", "blocks of columns, turned", "f16", "no power of two"],
)
def test_what_is_left(changes: dict[str, Any]) -> None:
    """Scales that change along N, other floats, and blocks that no kernel has."""
    assert "@bits" not in import_model(model(T.INT4, 4, zero=True, **changes), AVX512).text


def scaled(kind: int, spelling: str, along: str, *, zero: bool, turned: bool) -> onnx.ModelProto:
    """x (batch, n, K), or (n, K) of a Gemm with a bias, by a weight whose scales are one, or one of each column ("N") or row ("K"):
    by DequantizeLinear, or a Cast, a Sub and a Mul."""
    rng, (low, high) = np.random.default_rng(kind), RANGES[kind]
    shape = (N, K) if turned else (K, N)
    axis = int(turned == (along == "K"))
    count = [] if along == "one" else [shape[axis]]
    column = [count[0] if i == axis else 1 for i in range(2)] if count else []
    dims = count if spelling != "mul" else column

    def integers(name: str, dims: Sequence[int]) -> onnx.TensorProto:
        numbers = rng.integers(low, high, tuple(dims))
        return h.make_tensor(name, kind, dims, np.asarray(numbers).flatten().tolist())

    tensors = [integers("w", shape), numpy_helper.from_array(np.asarray(rng.random(dims), np.float32), "s")]
    tensors += [integers("z", dims)] * zero
    if spelling == "mul":
        nodes = [h.make_node("Cast", ["w"], ["f"], to=T.FLOAT)]
        nodes += [h.make_node("Cast", ["z"], ["zf"], to=T.FLOAT), h.make_node("Sub", ["f", "zf"], ["c"])] * zero
        nodes.append(h.make_node("Mul", ["s", "c" if zero else "f"], ["d"]))
    else:
        nodes = [h.make_node("DequantizeLinear", [t.name for t in tensors], ["d"], axis=axis - 2)]
    lead = ["batch", "n"]
    if spelling == "gemm":
        lead = ["n"]
        tensors.append(numpy_helper.from_array(rng.standard_normal(N).astype(np.float32), "bias"))
        nodes.append(h.make_node("Gemm", ["x", "d", "bias"], ["y"], transB=int(turned)))
    else:
        nodes += [h.make_node("Transpose", ["d"], ["t"], perm=[1, 0])] * turned
        nodes.append(h.make_node("MatMul", ["x", "t" if turned else "d"], ["y"]))
    values = [h.make_tensor_value_info(n, T.FLOAT, [*lead, w]) for n, w in (("x", K), ("y", N))]
    graph = h.make_graph(nodes, "main_graph", values[:1], values[1:], tensors)
    return h.make_model(graph, opset_imports=[h.make_opsetid("", 21)], ir_version=10)


@dataclass(frozen=True)
class Scales:
    kind: int
    spelling: str
    along: str
    zero: bool
    turned: bool

    def model(self) -> onnx.ModelProto:
        return scaled(self.kind, self.spelling, self.along, zero=self.zero, turned=self.turned)

    def draw(self, batch: int, n: int) -> np.ndarray:
        lead = (n,) if self.spelling == "gemm" else (batch, n)
        return np.random.default_rng(4).standard_normal((*lead, K)).astype(np.float32)


SCALES = (
    Scales(T.INT8, "linear", "one", zero=False, turned=False),
    Scales(T.UINT8, "linear", "N", zero=True, turned=True),
    Scales(T.INT8, "mul", "N", zero=False, turned=True),
    Scales(T.UINT8, "mul", "N", zero=True, turned=False),
    Scales(T.INT8, "mul", "one", zero=True, turned=False),
    Scales(T.INT8, "gemm", "N", zero=True, turned=True),
    Scales(T.UINT4, "gemm", "one", zero=False, turned=False),
)


@pytest.fixture(scope="module")
def of_scales(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> dict[tuple[int, int], dict[int, np.ndarray]]:
    """By batch and rows, and by place in `SCALES`."""
    tried = {place: SCALES[place] for place in asked_for(request, "place") or range(len(SCALES))}
    function = compiled([case.model() for case in tried.values()], tmp_path_factory.mktemp("scales"))
    sizes = (1, 1), (2, 7)
    return {n: dict(zip(tried, function(*(case.draw(*n) for case in tried.values())), strict=True)) for n in sizes}


@pytest.mark.parametrize("place", range(len(SCALES)))
def test_scales_of_columns(place: int, of_scales: dict[tuple[int, int], dict[int, np.ndarray]]) -> None:
    """Scales that do not change along K: any rows, several free dims."""
    proto = SCALES[place].model()
    text = import_model(proto, HOST).text
    assert "util.call @bits" in text and "torch.aten.matmul" not in text
    for sizes, results in of_scales.items():
        # onnxruntime's optimiser would round x to 8 bits.
        (want,) = run(proto, {"x": SCALES[place].draw(*sizes)}, optimise=False)
        assert np.abs(results[place] - want).max() <= 2e-6 * np.abs(want).max()


@pytest.mark.parametrize("spelling", ["linear", "mul"])
def test_scales_of_rows(spelling: str) -> None:
    """Scales that change along K by themselves are no kernel's."""
    assert "@bits" not in import_model(scaled(T.INT8, spelling, "K", zero=False, turned=False), AVX512).text


def test_other_makers() -> None:
    """Where the compiler is to make the kernels, and on GPUs."""
    with triton_sources():
        for target in (parse_target("cpu-avx512", "iree"), "cuda"):
            assert "@bits" not in import_model(model(T.INT4, 4, zero=True), target).text


def test_the_module_holds_no_floats(tmp_path: Path) -> None:
    """Only integers, scales and zero points are in the archive."""
    compile_model(model(T.INT4, 4, zero=True), tmp_path / "m.vmfb", HOST, parameters="archive")
    archives = [f for f in tmp_path.iterdir() if f.suffix == ".irpa"]
    assert sum(f.stat().st_size for f in (*archives, tmp_path / "m.vmfb")) < 60_000
