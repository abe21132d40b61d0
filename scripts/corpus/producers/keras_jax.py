"""Keras 3 on its jax backend."""

from __future__ import annotations

import os

os.environ["KERAS_BACKEND"] = "jax"

from corpus.keras_models import cases

__all__ = ["cases"]
