"""Convolutions of one tap as products by AMX's tiles: what they compute, and which they are."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from onnx_fa.iree.compile import compile_model, import_model
from onnx_fa.iree.run import load_module
from onnx_fa.kernels.cpu import linear_share
from onnx_fa.kernels.cpu.window import emit_window, panel_of
from onnx_fa.kernels.cpu.window_body import operands_of, y_of
from onnx_fa.kernels.cpu.window_product import product_of
from onnx_fa.kernels.cpu.worker_memory import TEXT_NAME
from onnx_fa.spec.expr import SCORE, Apply, Float, Tensor
from onnx_fa.spec.linear_cases import in_panels
from onnx_fa.spec.target import foreign_cpu, parse_target
from onnx_fa.spec.terms import TensorArg
from onnx_fa.spec.windows import WindowSpec, slide
from tests.support.image_nets import Net
from tests.support.kernel_harness import FLAGS, run_iree_compile
from tests.support.ort_run import assert_same, run

AMX = parse_target("cpu-amx")
here = pytest.mark.skipif(bool(foreign_cpu(AMX)), reason=foreign_cpu(AMX))
PLAIN = WindowSpec(2, 1, 80, 72, (9, 11), (1, 1), (1, 1), (1, 1), panel_of(72, AMX), bias=True, last=True, x_last=True)
RESIDUAL = Apply("Add", Apply("Max", SCORE, Float(0.0)), Tensor(0))
SPECS = {
    "plain": PLAIN,
    "no_bias": replace(PLAIN, bias=False),
    "free": replace(PLAIN, images=None),
    "residual": replace(PLAIN, then=RESIDUAL, tensors=(TensorArg((2, 99, 72)),)),
    "of_channels": replace(PLAIN, then=Apply("Mul", SCORE, Tensor(0)), tensors=(TensorArg((72,)),)),
}


@pytest.fixture(autouse=True)
def every_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linear_share, "LEAST_PRODUCTS", 0)
    monkeypatch.setattr(linear_share, "MOST_WORKERS", 16)
    monkeypatch.setattr(linear_share, "_gains", lambda *_: True)


@pytest.mark.parametrize("name", SPECS)
def test_which(name: str) -> None:
    spec = SPECS[name]
    product = product_of(spec, AMX)
    assert product is not None and (product.K, product.N, product.panel) == (80, 72, 32)
    texts = emit_window(spec, AMX)
    assert list(texts) == [f"{spec.name}_tiles", TEXT_NAME, spec.name] and "tdpbf16ps" in texts[f"{spec.name}_tiles"]


@pytest.mark.parametrize(
    "changes",
    [
        {"kernel": (3, 3)},
        {"strides": (2, 2)},
        {"pads": (1, 1, 1, 1)},
        {"x_last": False},
        {"last": False},
        {"groups": 2},
        {"dtype": "f16"},
        {"N": 48, "panel": 48},
        {"sizes": (5, 5), "images": 1},
    ],
)
def test_which_are_not(changes: dict[str, Any]) -> None:
    spec = replace(PLAIN, **changes)
    assert product_of(spec, AMX) is None
    assert product_of(PLAIN, parse_target("cpu-avx512")) is None


@pytest.fixture(scope="module")
def functions(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Any]:
    """Calls the function of a spec, of a module of all."""
    texts: dict[str, str] = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(linear_share, "LEAST_PRODUCTS", 0)
        patch.setattr(linear_share, "MOST_WORKERS", 16)
        for name, spec in SPECS.items():
            texts |= emit_window(spec, AMX)
            operands = operands_of(spec)
            types, y = [x.type for x in operands], y_of(spec).type
            arguments = ", ".join(f"%{i}: {type_}" for i, type_ in enumerate(types))
            values = ", ".join(f"%{i}" for i in range(len(types)))
            texts[name] = (
                f"util.func public @{name}({arguments}) -> {y} {{\n"
                f"%y = util.call @{spec.name}({values}) : ({', '.join(types)}) -> {y}\nutil.return %y : {y}\n}}\n"
            )
    output = tmp_path_factory.mktemp("products") / "m.vmfb"
    run_iree_compile(
        "".join(texts.values()), output, ("--iree-llvmcpu-stack-allocation-limit=131072", *FLAGS), target=AMX
    )
    return lambda name, *given: load_module(output, function=name)(*given)[0]


@here
@pytest.mark.parametrize("name", SPECS)
def test_numbers(name: str, functions: Callable[..., Any]) -> None:
    spec, rng = SPECS[name], np.random.default_rng(0)
    for images in (2,) if spec.images else (1, 2, 5):
        shapes = [(images, *x.shape[1:]) if i == 0 else x.shape for i, x in enumerate(operands_of(spec))]
        given = [rng.standard_normal(shape).astype(np.float32) for shape in shapes]
        given[1] = in_panels(rng.standard_normal((spec.K, spec.N)).astype(np.float32), spec.panel)
        want, got = slide(spec, *given), functions(name, *given)
        assert got.shape == want.shape
        assert np.linalg.norm(got - want) <= 3e-7 * np.linalg.norm(want)


@here
def test_a_network(tmp_path: Path) -> None:
    """Convolutions of one tap between others, with what follows them, beside onnxruntime; an infinity stays in its places."""
    net = Net(64, 12, 12, batch=2)
    a = net.add("Relu", net.conv("x", 64, 96))
    b = net.add("Relu", net.conv(a, 96, 96, 3))
    model = net.model(net.add("Relu", net.add("Add", net.conv(b, 96, 64), "x")))
    text = import_model(model, AMX).text
    assert text.count("tdpbf16ps %tmm6") > 0
    compile_model(model, tmp_path / "m.vmfb", AMX, parameters="embed")
    x = np.random.default_rng(1).standard_normal((2, 64, 12, 12)).astype(np.float32)
    for bad in (0.0, np.inf):
        x[1, 3, 4, 5] = bad
        assert_same(run(model, {"x": x}), load_module(tmp_path / "m.vmfb")(x), 1e-5)
