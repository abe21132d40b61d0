"""Keras 3 on its torch backend."""

from __future__ import annotations

import os

os.environ["KERAS_BACKEND"] = "torch"

from corpus.keras_models import cases

__all__ = ["cases"]
