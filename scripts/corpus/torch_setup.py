"""Makes torchvision importable beside a CPU build of torch. PyPI's torchvision is built for CUDA: without CUDA's libraries its
compiled operators are not loaded, and its import fails where it describes two of them. No model of the corpus uses these."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import torch

_LIBRARY = torch.library.Library("torchvision", "FRAGMENT")
"""Kept: a definition ends with its library."""


def define_missing_operators() -> None:
    """Defines the two operators without an implementation, where torchvision is installed and its own do not load."""
    found = importlib.util.find_spec("torchvision")
    if found is None or found.origin is None:
        return
    try:
        torch.ops.load_library(Path(found.origin).parent / "_C.so")
    except OSError:
        for name in ("nms", "qnms"):
            _LIBRARY.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")


define_missing_operators()
