"""As test_iree_bugs.py, what GPUs' code alone shows."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from onnx_fa.iree.compiler import find_compiler
from onnx_fa.iree.drivers import runtime
from onnx_fa.iree.run import tool_path
from tests.support.iree_bugs import FOLDER, REPAIRED, compiled
from tests.support.lavapipe import require_lavapipe, run_on_lavapipe

CUDA = ("--iree-hal-target-device=cuda", "--iree-cuda-target=sm_80")
STOCK_VULKAN = ("--iree-hal-target-device=vulkan",)


def test_masked_extremes(tmp_path: Path) -> None:
    """As the pass writes it: there may be no GPU to run it."""
    name, printed = "masked_extremes", "--mlir-print-ir-after=iree-codegen-materialize-vector-masking"
    command = [
        str(find_compiler()),
        str(FOLDER / f"{name}.mlir"),
        "-o",
        str(tmp_path / "bug.vmfb"),
        *CUDA,
        printed,
    ]
    text = subprocess.run(command, check=True, capture_output=True, text=True, timeout=120).stderr
    assert "vector.multi_reduction <minsi>" in text
    assert "arith.constant dense<-1> : vector<1x4xi32>" in text, REPAIRED


def test_wide_reduction(tmp_path: Path) -> None:
    with pytest.raises(subprocess.CalledProcessError) as refused:
        compiled("wide_reduction", tmp_path, device=CUDA)
        pytest.fail(REPAIRED)
    assert "op failed to distribute" in refused.value.stderr
    compiled("wide_reduction", tmp_path, "--iree-codegen-llvmgpu-use-reduction-vector-distribution=false", device=CUDA)


def test_vulkan_int64(tmp_path: Path) -> None:
    with pytest.raises(subprocess.CalledProcessError) as caught:
        compiled("vulkan_int64", tmp_path, device=STOCK_VULKAN)
        pytest.fail(REPAIRED)
    assert "failed to legalize operation 'vector.broadcast'" in caught.value.stderr


def test_vulkan_half(tmp_path: Path) -> None:
    require_lavapipe()
    vmfb = compiled("vulkan_half", tmp_path, device=STOCK_VULKAN)
    (x,) = run_on_lavapipe(vmfb, "main", [np.ones((64, 64), np.float16), np.ones((64, 64), bool)], 1, tmp_path)
    assert not (x == 1.0).all(), REPAIRED


def test_two_gpus(tmp_path: Path) -> None:
    devices = [f"--iree-hal-target-device={name}=cuda[{i}]" for i, name in enumerate("ab")]
    vmfb = compiled("two_gpus", tmp_path, "--iree-cuda-target=sm_80", device=tuple(devices))
    if "cuda" not in runtime().query_available_drivers() or len(_gpus()) < 2:
        pytest.skip("there are no two GPUs")
    command = [tool_path("iree-run-module"), f"--module={vmfb}", "--device=CUDA://0", "--device=CUDA://1"]
    with pytest.raises(subprocess.TimeoutExpired):
        subprocess.run([*command, "--function=main", "--input=4xf32=1"], capture_output=True, timeout=60)
        pytest.fail(REPAIRED)


def _gpus() -> list[Any]:
    try:
        found: list[Any] = runtime().get_driver("cuda").query_available_devices()
    except (RuntimeError, ValueError):
        return []
    return found
