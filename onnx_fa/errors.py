"""Errors that a user can act on. The CLI prints them as one line and exits with `exit_code`."""

import re

from onnx_fa.printable import printable


def one_line(error: BaseException) -> str:
    """Another library's message, fit for the one line of ours."""
    return " ".join(str(error).split())[:300] or type(error).__name__


class OnnxFaError(Exception):
    """Something the user can mend: the message says what is wrong, where, and what to do, in one line, whatever names it quotes."""

    exit_code = 2

    def __init__(self, message: object = "") -> None:
        super().__init__(printable(re.sub(r"\s*[\r\n]\s*", " ", str(message))))


class ModelError(OnnxFaError):
    """The input is not a usable ONNX model."""


class TargetError(OnnxFaError):
    """The target is unknown, or no such device is present."""


class MissingDependencyError(OnnxFaError):
    """An optional package is needed for this call."""


class UnsupportedError(OnnxFaError):
    """A kernel, form or backend cannot express what was asked; the caller may try another."""


class CompileError(OnnxFaError):
    """iree-compile failed, hung or ran out of memory; the message names the log file."""

    exit_code = 1


class RunError(OnnxFaError):
    """A compiled module could not be run."""

    exit_code = 1


class LeftAloneError(OnnxFaError):
    """Something was left alone, and the caller asked that nothing be."""

    exit_code = 1


class MismatchError(OnnxFaError):
    """Two results that must agree do not."""

    exit_code = 1
