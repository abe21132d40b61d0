"""Whether a file can be run by anybody: one that onnxruntime does not run may only lack a kernel there."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import onnx
from onnx.reference import ReferenceEvaluator

from onnx_fa.forms.rewrite import find
from onnx_fa.graph.contradiction import find_contradiction
from onnx_fa.graph.io import load

Array = np.ndarray[Any, np.dtype[Any]]
NO_KERNEL = "NotImplemented: "
"""What onnxruntime raises for a valid model of which it cannot compute an op."""


def why_broken(model: onnx.ModelProto, refused: str, feeds: Iterable[Mapping[str, Array]]) -> str:
    """Why nobody can run a model of which onnxruntime runs none of `feeds`, "" where somebody may. `refused` says why onnxruntime
    does not load it, "" where it loads.

    A file is broken where onnxruntime refuses it as invalid and ONNX's reference evaluator does not run it either, or where it
    loads and its shapes contradict each other whatever the inputs' sizes are. It is not where inputs of other sizes or other
    numbers may run."""
    feeds = list(feeds)
    if not feeds or NO_KERNEL in refused:
        return ""
    if refused:
        return "" if any(_evaluates(model, arrays) for arrays in feeds) else refused
    view, _, _ = find(load(model))
    return find_contradiction(view) or ""


def _evaluates(model: onnx.ModelProto, arrays: Mapping[str, Array]) -> bool:
    """Whether ONNX's reference evaluator gives results."""
    try:
        with np.errstate(all="ignore"):
            ReferenceEvaluator(model).run(None, dict(arrays))
    except Exception:  # it raises exceptions of any class
        return False
    return True
