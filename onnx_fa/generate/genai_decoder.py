"""Greedy generation by onnxruntime-genai, where it is installed and the folder is its own."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from onnx_fa.errors import MissingDependencyError, RunError, one_line
from onnx_fa.generate.greedy import Generation
from onnx_fa.generate.layout import DecoderFiles


def load_genai(files: DecoderFiles) -> Any:
    """Its model. Raises MissingDependencyError, and RunError for a folder that it does not load."""
    try:
        import onnxruntime_genai as genai
    except ImportError as e:
        raise MissingDependencyError("onnxruntime-genai is not installed: pip install onnxruntime-genai") from e
    if not files.config:
        raise RunError("no genai_config.json: not a folder of onnxruntime-genai")
    try:
        return genai.Model(os.fspath(files.folder))
    except Exception as e:  # its exceptions share no public base class
        raise RunError(f"onnxruntime-genai does not load {files.folder}: {one_line(e)}") from e


def generate_by_genai(model: Any, prompt: Sequence[int], count: int) -> Generation:
    """As `greedy.generate`; it ends at an end token. Raises RunError."""
    import onnxruntime_genai as genai

    try:
        options = genai.GeneratorParams(model)
        options.set_search_options(do_sample=False, max_length=len(prompt) + count)
        writer = genai.Generator(model, options)
        begin = time.perf_counter()
        writer.append_tokens(np.asarray(prompt, np.int32))
        writer.generate_next_token()
        tokens = [int(writer.get_next_tokens()[0])]
        prompt_s, steps = time.perf_counter() - begin, []
        while len(tokens) < count and not writer.is_done():
            begin = time.perf_counter()
            writer.generate_next_token()
            tokens.append(int(writer.get_next_tokens()[0]))
            steps.append(time.perf_counter() - begin)
    except Exception as e:  # its exceptions share no public base class
        raise RunError(f"onnxruntime-genai: {one_line(e)}") from e
    return Generation(tuple(tokens), prompt_s, tuple(steps))
