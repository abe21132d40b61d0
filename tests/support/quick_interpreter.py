"""Triton's interpreter without what it does for nothing: half of its time. Imported after TRITON_INTERPRET is set, and before a
kernel is loaded."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from triton.runtime import interpreter


def quicken() -> None:
    """Integers are not added up once more in 64 bits for an assertion that is only made in debug mode, which is off; and Triton's
    functions are replaced by interpreted ones once for each launch and function, not once for each call of a function."""
    builder = interpreter.interpreter_builder
    assert not builder.options.debug
    builder.options = replace(builder.options, sanitize_overflow=False)
    replaced = set[Any]()
    launch = interpreter.GridExecutor.__call__

    def launch_anew(self: Any, *args: Any, **kwargs: Any) -> None:
        replaced.clear()  # a launch puts Triton's own functions back when it ends
        launch(self, *args, **kwargs)

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        if self.fn not in replaced:
            replaced.add(self.fn)
            interpreter._patch_lang(self.fn)
        run: Callable[..., Any] = self.rewrite()
        try:
            return run(*args, **kwargs)
        except Exception as e:
            raise interpreter.InterpreterError(repr(e)) from e

    interpreter.GridExecutor.__call__ = launch_anew
    interpreter.InterpretedFunction.__call__ = call
