"""What a producer's file gives: named cases, each of which makes models with their true attentions and inputs to run them on."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx

Array = np.ndarray[Any, np.dtype[Any]]
Feeds = Mapping[str, Array]


@dataclass(frozen=True)
class Made:
    """One model. `model` is a model or the file that the producer wrote; `attentions` is how many true attentions are in it, known
    from its configuration, and `why` says how, where that is not obvious. `runs` are inputs by the name of the run."""

    name: str
    model: onnx.ModelProto | Path
    attentions: int
    why: str = ""
    runs: Mapping[str, Feeds] = field(default_factory=dict)


@dataclass(frozen=True)
class Case:
    """A name, unique among its producer's, and what makes its models in a folder that is empty and deleted afterwards."""

    name: str
    build: Callable[[Path], Iterable[Made]]
