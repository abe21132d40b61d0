"""One road from a model to its kernels, whoever asks for them."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

import onnx_fa
import onnx_fa.iree.alone
import onnx_fa.iree.run
from onnx_fa.forms.plain import input_names, plain_model
from onnx_fa.iree.compile import import_model
from onnx_fa.iree.kernels import operands_of, plan_kernels
from onnx_fa.kernels.mlir.kernel import Kernel
from onnx_fa.spec.attention import AttentionSpec
from onnx_fa.spec.reference import attention
from onnx_fa.tuning.model_cases import cases_of_model
from onnx_fa.verifier.verifier import verify
from tests.match.test_gathered import _PAGED, _feeds, _model
from tests.support.cases import BY_NAME, draw_operands
from tests.support.kernel_harness import HOST
from tests.support.ort_run import run

EMITTING = {
    "kernels/choose.py",
    "distributed/modules.py",
    "explainer/derivation.py",
    "iree/kernels.py",
    "iree/stock_road.py",
    "tuning/spaces.py",
}
"""Those that make a kernel of a spec: the chooser, the one road of whole models, the stock road, whose patterns begin where IREE's
importer lets them, the tuner, which tries tiles, what tells how a site becomes a kernel, and parts for several devices."""


def test_verify_tries_the_kernels_that_compile_uses(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A pool that is read where it is, K and V kept as integers: the kernels alone are those of the compiled module."""
    tried: list[Kernel] = []
    called: list[int] = []

    def load(path: Path, *_: Any, **options: Any) -> Any:
        def call(*arrays: Any) -> list[Any]:
            called.append(len(arrays))
            return [np.zeros((1,), np.float32)]

        return call

    monkeypatch.setattr(onnx_fa.iree.alone, "compile_alone", lambda kernel, *_: tried.append(kernel))
    monkeypatch.setattr(onnx_fa.iree.run, "load_module", load)
    model = _model(_PAGED)
    verify(model, HOST, seeds=1, module=tmp_path / "m.vmfb")
    compiled = import_model(model, HOST).kernels
    assert {k.name: k.text for k in tried} == {k.name: k.text for k in compiled.values()} and tried
    (spec,) = {k.spec for k in tried}
    assert spec.gathered is not None and len(spec.operand_shapes) in called
    assert [c.spec for c in cases_of_model(model, {}, HOST)] == [spec]


@pytest.mark.parametrize("name", ["paged", "quant_token"])
def test_what_kernels_are_called_with(name: str) -> None:
    """The reference on what a kernel is called with is the model's output, reshaped at most."""
    if name == "paged":
        model, feeds = _model(_PAGED), _feeds(_model(_PAGED))
    else:
        spec: AttentionSpec = BY_NAME[name].spec
        model = ir.to_proto(plain_model(spec))
        feeds = dict(zip(input_names(spec), draw_operands(spec, 0), strict=True))
    planned = plan_kernels(model, HOST)
    before = [n.name for n in planned.model.graph]
    shown, values = operands_of(planned)
    assert [n.name for n in planned.model.graph] == before
    ((site, operands),) = values.items()
    names = [o.name for o in shown.graph.outputs]
    proto = ir.to_proto(shown)
    made = dict(zip(names, run(proto, feeds, optimise=False), strict=True)) if names else {}
    given = [feeds.get(v.name, made.get(v.name)) if v.const_value is None else v.const_value.numpy() for v in operands]
    want = attention(planned.kernels[site].spec, *given)
    (have,) = run(model, feeds, optimise=False)
    np.testing.assert_allclose(np.sort(have.ravel()), np.sort(want.ravel()), rtol=1e-4, atol=1e-5)


def test_nobody_else_makes_kernels_of_specs() -> None:
    root = Path(str(onnx_fa.__file__)).parent
    found = {
        str(path.relative_to(root))
        for path in root.rglob("*.py")
        if any(isinstance(n, ast.Name) and n.id == "emit_kernel" for n in ast.walk(ast.parse(path.read_text())))
        or "def emit_kernel" in path.read_text()
    }
    assert found == EMITTING
