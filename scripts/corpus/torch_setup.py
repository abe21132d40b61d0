"""Makes torchvision and torchaudio importable beside a CPU build of torch. PyPI's are built for CUDA: without CUDA's libraries
their compiled operators are not loaded, and their import fails. No model of the corpus uses these."""

from __future__ import annotations

import importlib.util
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

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


def without_compiled_torchaudio() -> None:
    """Before torchaudio is imported: in the place of its module that loads what is compiled stands one that loads nothing."""
    parts = ModuleType("torchaudio._extension")
    parts._IS_TORCHAUDIO_EXT_AVAILABLE = False  # type: ignore[attr-defined]
    parts.fail_if_no_align = lambda function: function  # type: ignore[attr-defined]
    sys.modules["torchaudio._extension"] = parts


class _StandIn(ModuleType):
    """A module of which every name is a class that does nothing."""

    def __getattr__(self, name: str) -> type:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {})


def stand_in_for(*names: str) -> None:
    """Puts modules in the place of packages that load data, train or decode: a library imports them beside its models, and they
    bring packages of their own, or download."""
    for name in names:
        made = _StandIn(name)
        made.__spec__ = ModuleSpec(name, None)
        made.__path__ = []
        sys.modules[name] = made


define_missing_operators()
