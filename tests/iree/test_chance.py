"""Draws of random numbers: with a seed and without, compiled."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest

import onnx_fa
from onnx_fa.errors import ModelError
from onnx_fa.iree.run import load_module


def model(body: str) -> onnx.ModelProto:
    return onnx.parser.parse_model(
        f"""<ir_version: 9, opset_import: ["" : 18]> g (float[N, 500] x) => (float[N, 500] y) {{ {body} }}"""
    )


@pytest.mark.parametrize("op", ["RandomNormalLike", "RandomUniformLike"])
def test_a_draw_by_a_seed_compiles(op: str, tmp_path: Path) -> None:
    first, second = (model(f"a = {op}<{seed}>(x) b = {op}(x) y = Sub(a, b)") for seed in ("seed = 1.0", "dtype = 1"))
    x = np.zeros((4, 500), np.float32)
    for name, made in (("seeded", first), ("free", second)):
        onnx_fa.compile(made, tmp_path / f"{name}.vmfb")
        drawn = load_module(tmp_path / f"{name}.vmfb")(x)[0]
        width = 2.0 if op == "RandomNormalLike" else 1 / 6  # the variance of a difference
        assert drawn.shape == x.shape and abs(drawn.mean()) < 0.2 and abs(drawn.var() / width - 1) < 0.2


def test_the_same_numbers_twice_are_refused(tmp_path: Path) -> None:
    twice = model("a = RandomNormalLike<seed = 2.0>(x) b = RandomNormalLike<seed = 2.0>(x) y = Sub(a, b)")
    with pytest.raises(ModelError, match="draw random numbers by one seed \\(2\\), the same ones twice"):
        onnx_fa.compile(twice, tmp_path / "m.vmfb")
