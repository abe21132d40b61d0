"""Products of rows that lie in parts, with norms in front of them: which ones a kernel takes, and that they mean the same."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun

import onnx_fa
from onnx_fa.graph.ops import op_of
from onnx_fa.graph.site_op import DOMAIN
from onnx_fa.iree.inference import infer_types
from onnx_fa.iree.legalise import row_parts
from onnx_fa.iree.legalise.channels_last import put_channels_last
from onnx_fa.iree.legalise.joined_products import JOINED_PRODUCT, join_products, joined_product_of
from onnx_fa.iree.run import load_module
from onnx_fa.kernels.cpu.joined_product import JoinedProduct
from onnx_fa.spec.expr import K, evaluate
from onnx_fa.spec.target import parse_target
from tests.iree.test_convolutions import ConvSite
from tests.support.image_nets import Net
from tests.support.joined_models import join_models
from tests.support.ort_run import assert_same, run

NARROW, WIDE = parse_target("cpu-avx2"), parse_target("cpu-avx512")


class JoinedSite(OpRun):
    """What the node means."""

    op_domain = DOMAIN

    def _run(self, *operands: np.ndarray, **attributes: Any) -> tuple[np.ndarray]:
        spec = joined_product_of([x.shape for x in operands], attributes)
        n = len(spec.columns)
        (w, *rest), x = operands[n:], np.concatenate(operands[:n], axis=2).astype(np.float64)
        whole = w[:-1].transpose(1, 0, 2).reshape(spec.K, -1)
        weight = np.concatenate([whole, w[-1][:, whole.shape[1] - spec.N :]], axis=1)
        made = evaluate(spec.before, x, rest[: spec.rows_of]) @ weight.astype(np.float64)
        return (evaluate(spec.then, made, rest[spec.rows_of :]).astype(np.float32),)


JoinedSite.__name__ = "JoinedProduct"


def dense(
    height: int, width: int, columns: int, *, layers: int = 3, batch: int | str = "N", growth: int = 16
) -> onnx.ModelProto:
    """DenseNet's block: norms in front of products, and all that came before side by side."""
    n = Net(16, height, width, batch=batch)
    values, channels = [n.conv("x", 16, 32)], 32
    for i in range(layers):
        joined = n.add("Concat", *values, axis=1) if i else values[0]
        a = n.add("Relu", n.conv(n.add("Relu", n.norm(joined, channels)), channels, columns, bias=bool(i % 2)))
        values.append(n.conv(a, columns, growth, 3, bias=False))
        channels += growth
    return n.model(n.conv(n.add("Relu", n.norm(n.add("Concat", *values, axis=1), channels)), channels, 32))


def side_by_side(height: int, width: int, *, parts: int = 3, channels: int = 16, opset: int = 17) -> onnx.ModelProto:
    """YOLO's: images side by side, which one product alone reads, and a residual behind it."""
    n = Net(16, height, width, opset=opset)
    values = [n.add("Relu", n.conv("x", 16, channels)) for _ in range(parts)]
    y = n.add("Sigmoid", n.conv(n.add("Concat", *values, axis=1), parts * channels, 48))
    return n.model(n.conv(n.add("Add", y, n.conv(values[0], channels, 48)), 48, 16))


def changed_by(steps: str) -> onnx.ModelProto:
    """A product of images side by side that such operators change before."""
    n = Net(16, 6, 7)
    value = n.add("Concat", n.conv("x", 16, 16), n.conv("x", 16, 32), axis=1)
    for step in steps.split():
        number = n.const(np.float32(0.75)) if step.endswith("1") else n.weight(48, 1, 1)
        op = step.rstrip("1")
        value = (
            n.add(op, value) if op == "Relu" else n.add(op, *([number, value] if step == "Add" else [value, number]))
        )
    return n.model(n.conv(value, 48, 40))


MODELS = {
    "densenet": lambda: dense(14, 14, 64),
    "columns": lambda: dense(7, 5, 33, batch=2, layers=2),  # that panels do not divide
    "few_rows": lambda: dense(2, 3, 32, layers=2),
    "many_parts": lambda: dense(4, 4, 32, layers=26),
    "deep": lambda: dense(5, 7, 32, layers=2, growth=640),  # six rows of which do not fit
    "side_by_side": lambda: side_by_side(9, 11),
    "added": lambda: changed_by("Add Relu Mul1 Add1 Mul"),
}


def written(model: onnx.ModelProto, target: Any = NARROW) -> onnx.ModelProto:
    """The model with channels last and these products."""
    made = onnx.ModelProto.FromString(model.SerializeToString())
    infer_types(made, {})
    put_channels_last(made, target=target)
    infer_types(made, {})
    join_products(made, target=target)
    return made


def count(model: onnx.ModelProto) -> int:
    return Counter(op_of(node) for node in model.graph.node)[JOINED_PRODUCT]


def images(model: onnx.ModelProto) -> dict[str, np.ndarray]:
    dims = [d.dim_value for d in model.graph.input[0].type.tensor_type.shape.dim]
    return {"x": np.random.default_rng(1).standard_normal([2, *dims[1:]]).astype(np.float32)}


@pytest.fixture(autouse=True)
def all_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_parts, "_saved", lambda *_: 1)


@pytest.mark.parametrize("target", [NARROW, WIDE], ids=["avx2", "avx512"])
@pytest.mark.parametrize("name", MODELS)
def test_means_the_same(name: str, target: Any) -> None:
    model = MODELS[name]()
    made = written(model, target)
    products = [len(n.attribute) for n in made.graph.node if op_of(n) == JOINED_PRODUCT]
    assert len(products) == {"densenet": 3, "columns": 2, "few_rows": 2, "many_parts": 26, "deep": 2}.get(name, 1)
    got = ReferenceEvaluator(made, new_ops=[ConvSite, JoinedSite]).run(None, images(model))
    assert_same(run(model, images(model)), list(got), 2e-5)


EVERY_RUN = ("columns", "deep", "side_by_side", "added")


@pytest.mark.parametrize(
    "names",
    [
        pytest.param(EVERY_RUN, id="every_run"),
        pytest.param([name for name in MODELS if name not in EVERY_RUN], id="others", marks=pytest.mark.whole),
    ],
)
def test_compiled(names: Sequence[str], tmp_path: Path) -> None:
    models = [MODELS[name]() for name in names]
    feeds = {f"m{i}_x": images(m)["x"] for i, m in enumerate(models)}
    joined = join_models(models)
    onnx_fa.compile(joined, tmp_path / "m.vmfb")
    call = load_module(tmp_path / "m.vmfb")
    assert_same(run(joined, feeds), call(*feeds.values()), 2e-5)


def test_nothing_is_put_side_by_side() -> None:
    """All that reads it reads its parts."""
    made = written(dense(6, 6, 16))
    assert not [n for n in made.graph.node if op_of(n) == "Concat" and n.name.startswith("n")]


@pytest.mark.parametrize("why", ["gpu", "kernels", "lanes", "parts", "read", "given", "columns", "run", "rows"])
def test_stays(why: str) -> None:
    target = {"gpu": parse_target("cuda-sm_80"), "kernels": replace(NARROW, kernels="iree")}.get(why, NARROW)
    n = Net(16, 1 if why == "rows" else 6, 3)
    each = 12 if why == "lanes" else 16
    values = [n.conv("x", 16, each) for _ in range(40 if why == "parts" else 2)]
    channels, value = each * len(values), n.add("Concat", *values, axis=1)
    changed = n.add("Relu", value) if why in ("read", "given") else value
    if why == "run":
        changed = n.add("Mul", value, n.add("GlobalAveragePool", value))
    y = n.conv(changed, channels, 16 if why != "columns" else 8)
    model = n.model(n.add("Neg", changed) if why == "read" else y, *[changed] * (why == "given"), y)
    assert count(written(model, target)) == 0


def test_refused() -> None:
    with pytest.raises(ValueError, match="no function"):
        JoinedProduct(None, 8, (16,), 16, 16, before=K)
