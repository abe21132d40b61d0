"""Runs the program iree-compile, within limits of time and memory, and says in one line what went wrong."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Sequence
from pathlib import Path

from onnx_fa import processes as limits
from onnx_fa.errors import CompileError, MissingDependencyError, OnnxFaError
from onnx_fa.files import write_whole, writing
from onnx_fa.spec.target import Target
from onnx_fa.staging import staging_folder

COMPILER_ENV = "ONNX_FA_IREE_COMPILE"
"""Environment variable: another iree-compile than the installed wheel's."""


def find_compiler() -> Path:
    """The iree-compile program itself (not its Python wrapper). Raises MissingDependencyError."""
    override = os.environ.get(COMPILER_ENV)
    if override:
        return Path(override)
    try:
        from iree.compiler.tools import binaries
    except ImportError as e:
        raise MissingDependencyError("iree-compile is not installed: pip install iree-base-compiler") from e
    return Path(binaries.find_tool("iree-compile"))


def iree_compile(
    source: str | os.PathLike[str],
    output: Path,
    target: Target,
    *,
    flags: Sequence[str] = (),
    phase: str | None = None,
    timeout_s: float = 600,
    memory_bytes: int = 8 << 30,
    log: Path | None = None,
) -> None:
    """Compiles MLIR (a path, or text with a newline in it) for `target` to `output`: a .vmfb, or the IR of `phase`.

    `phase` is a name that iree-compile's --compile-to takes ("input", "flow", "stream", ...). `flags` come after the
    target's own. Raises CompileError, of one line, when iree-compile fails, hangs or needs too much memory; its command
    and stderr are then in `log` (`<output>.log`). `output` is written whole or not at all.
    """
    output = Path(output)
    compiler = find_compiler()
    with writing(output), staging_folder(output.parent) as tmp:
        staged = tmp / "out"
        is_text = isinstance(source, str) and "\n" in source
        path = tmp / "in.mlir" if is_text else Path(source)
        if is_text:
            path.write_text(str(source))
        options = [*target.flags, *flags, *([f"--compile-to={phase}"] if phase else [])]
        command = [str(compiler), str(path), *options, "-o", str(staged)]
        try:
            done = limits.run_limited(command, timeout_s=timeout_s, memory_bytes=memory_bytes)
        except OSError as e:
            raise CompileError(f"{compiler}: cannot be run: {e.strerror}") from e
        if done.ending == "ok" and staged.exists():
            os.replace(staged, output)
            return
        what = done.describe(timeout_s, memory_bytes) if done.ending != "ok" else "wrote no output"
        log = log or output.with_name(output.name + ".log")
        try:
            kept = log.with_suffix(".failed.mlir") if is_text else path
            if is_text:
                os.replace(path, kept)
            shown = shlex.join([str(compiler), str(kept), *options, "-o", str(output)])
            write_whole(log, f"$ {shown}\n# {done.describe(timeout_s, memory_bytes)}\n{done.stdout}{done.stderr}")
            told = f"command and messages are in {log}"
        except (OSError, OnnxFaError) as e:
            told = f"its messages are lost: {e}"
    raise CompileError(f"iree-compile {what}{first_error(done.stderr)}; {told}")


_OPTION_REFUSED = re.compile(r"Unknown command line argument|[Ff]or the -\S+ option|option: ")


def first_error(stderr: str) -> str:
    """The first error of iree-compile's messages, as " (...)"; empty where there is none."""
    for line in stderr.splitlines():
        if "error:" in line:
            return f" ({line.partition('error:')[2].strip()[:160]})"
    # What it says of options that it does not know or cannot read has no such word.
    option = next((line for line in stderr.splitlines() if _OPTION_REFUSED.search(line)), "")
    return f" ({option.strip()[:160]})" if option else ""


def merge_flags(*groups: Sequence[str]) -> tuple[str, ...]:
    """All flags, the last value of each name: iree-compile refuses a repeated option."""
    merged: dict[str, str] = {}
    for flag in (f for group in groups for f in group):
        merged[flag.partition("=")[0]] = flag
    return tuple(merged.values())
