"""How the tests run models in onnxruntime: each loaded once for several inputs, and products of bytes exact."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.parser
import pytest

from tests.support import ort_run


def model(text: str) -> onnx.ModelProto:
    return onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["" : 17]> {text}')


@pytest.fixture
def loaded(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """For each session that is made, whether its model was asked for products of bytes."""
    made: list[bool] = []
    make = ort_run.ort_session

    def session(*args: object, **options: object) -> object:
        made.append(bool(read))
        read.clear()
        return make(*args, **options)  # type: ignore[arg-type]

    read: list[object] = []
    exact = ort_run.made_exact
    monkeypatch.setattr(ort_run, "ort_session", session)
    monkeypatch.setattr(ort_run, "made_exact", lambda m: (read.append(m), exact(m))[1])
    monkeypatch.setattr(ort_run, "saturates_bytes", lambda: True)
    ort_run._session_of.cache_clear()
    return made


def test_a_model_is_loaded_once(loaded: list[bool]) -> None:
    """With the optimiser and without; one that was changed in between is another."""
    double = model("g (float[N] x) => (float[N] y) { y = Add (x, x) }")
    for n in (1, 2):
        for optimise in (True, False):
            (y,) = ort_run.run(double, {"x": np.full(n, n, np.float32)}, optimise=optimise)
            assert y.tolist() == [2 * n] * n
    assert loaded == [False, False]
    double.graph.node[0].op_type = "Mul"
    (y,) = ort_run.run(double, {"x": np.full(1, 3, np.float32)})
    assert y.tolist() == [9] and loaded == [False] * 3


def test_what_is_drawn_is_drawn_as_in_a_first_run(loaded: list[bool]) -> None:
    noise = model("g (float[4] x) => (float[4] y) { r = RandomNormalLike <seed = 1.0> (x) y = Add (x, r) }")
    a, b = (ort_run.run(noise, {"x": np.zeros(4, np.float32)})[0] for _ in range(2))
    assert a.tolist() == b.tolist() and loaded == [False, False]


def test_products_of_bytes_are_looked_for(loaded: list[bool]) -> None:
    """Also in a body, which has them by name alone."""
    product = "z = MatMulInteger (x, w)"
    for text in (
        f"g (uint8[2, 3] x, int8[3, 2] w) => (int32[2, 2] z) {{ {product} }}",
        f"""g (uint8[2, 3] x, int8[3, 2] w) => (int32[2, 2] y) <bool c = {{1}}> {{ y = If (c) <
            then_branch = t () => (int32[2, 2] z) {{ {product} }},
            else_branch = e () => (int32[2, 2] z) {{ {product} }}> }}""",
    ):
        (y,) = ort_run.run(model(text), {"x": np.full((2, 3), 255, np.uint8), "w": np.full((3, 2), 127, np.int8)})
        assert (y == 3 * 255 * 127).all()
    assert loaded == [True, True]
