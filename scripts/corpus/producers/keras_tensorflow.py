"""Keras 3 on its tensorflow backend."""

from __future__ import annotations

import os

os.environ["KERAS_BACKEND"] = "tensorflow"

from corpus.keras_models import cases

__all__ = ["cases"]
