"""Greedy generation by whatever runs a decoder, with the time of each call."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt


class Decoder(Protocol):
    """Runs a decoder: `start` forgets what was seen, `run` takes tokens behind that and returns the logits (vocabulary) of
    the last. `note` is what is to be said of how it runs."""

    note: str

    def start(self) -> None: ...

    def run(self, tokens: Sequence[int]) -> npt.NDArray[np.generic]: ...


@dataclass(frozen=True)
class Generation:
    """The new tokens, the seconds of the prompt's call, and those of each token's after it."""

    tokens: tuple[int, ...]
    prompt_s: float
    steps_s: tuple[float, ...]
    margins: tuple[float, ...] = ()
    """How much the largest logit is above the second, in units of the largest's magnitude: two programs that round otherwise may
    choose otherwise where it is small."""


def generate(decoder: Decoder, prompt: Sequence[int], count: int, end: Sequence[int] = ()) -> Generation:
    """`count` tokens behind the prompt, or as many as there are up to a token of `end`."""
    decoder.start()
    begin = time.perf_counter()
    logits = decoder.run(prompt)
    token = int(np.argmax(logits))
    prompt_s = time.perf_counter() - begin
    tokens, margins, steps = [token], [_margin(logits)], []
    while len(tokens) < count and token not in end:
        begin = time.perf_counter()
        logits = decoder.run([token])
        token = int(np.argmax(logits))
        steps.append(time.perf_counter() - begin)
        tokens.append(token)
        margins.append(_margin(logits))
    return Generation(tuple(tokens), prompt_s, tuple(steps), tuple(margins))


def _margin(logits: npt.NDArray[np.generic]) -> float:
    numbers = logits.astype(np.float64)
    if numbers.size < 2:
        return float("inf")
    second, first = np.partition(numbers, -2)[-2:]
    return float((first - second) / max(np.abs(numbers).max(), 1e-30))
