"""The pytest plugin: a fixture that holds a model to being fused and right."""

from __future__ import annotations

from importlib.metadata import entry_points
from pathlib import Path

import pytest
from onnx import TensorProto, helper

import tests.support.tiny as tiny
from onnx_fa.testing import assert_fused

pytest_plugins = ["pytester"]


def test_fixture(pytester: pytest.Pytester) -> None:
    tiny.attention(pytester.path / "a.onnx", wrong=True)
    pytester.makepyfile(
        """
        import pytest

        def test_right(fused_attention):
            fused_attention("a.onnx", sites=1, misses=1)

        def test_says_what_is_wrong(fused_attention):
            with pytest.raises(AssertionError, match="2 expected"):
                fused_attention("a.onnx", sites=2)
            with pytest.raises(AssertionError, match="router_softmax"):
                fused_attention("a.onnx")
        """
    )
    installed = any(e.value == "onnx_fa.testing" for e in entry_points(group="pytest11"))
    loaded = [] if installed else ["-p", "onnx_fa.testing"]
    # Not in this process: native modules cannot be imported twice.
    pytester.runpytest_subprocess("-p", "no:cacheprovider", *loaded).assert_outcomes(passed=2)


def test_a_model_without_attention(tmp_path: Path) -> None:
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, [2, 3]) for n in "xy")
    path = tiny.save(tmp_path / "a.onnx", [helper.make_node("Relu", ["x"], ["y"])], [x], [y])
    with pytest.raises(AssertionError, match="no attention was found"):
        assert_fused(path)
