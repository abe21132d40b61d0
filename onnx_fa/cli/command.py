"""`main`: one command is parsed and run, and whatever goes wrong becomes one line and an exit code."""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
import threading
from collections.abc import Sequence
from typing import NoReturn

from onnx_fa.cli.crash import crash_message
from onnx_fa.cli.parser import make_parser
from onnx_fa.errors import ModelError, OnnxFaError
from onnx_fa.printable import PrintableFormatter, printable

INTERRUPTED = 130


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command and returns the exit code: 0, 1 (compiler, run or mismatch), 2 (input or usage), 130
    (interrupted)."""
    args = make_parser().parse_args(argv)
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, _terminate)  # so that a compiler at work is ended too
    _log_to_stderr(args.verbose)
    try:
        code: int = args.command(args) or 0
        sys.stdout.flush()
        return code
    except ModelError as e:
        return _fail(_with_model(str(e), args), e.exit_code)
    except OnnxFaError as e:
        return _fail(str(e), e.exit_code)
    except BrokenPipeError:
        # The reader of a pipe has gone; what is left must not be flushed at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as e:
        return _fail(f"{e.filename or _subject(args) or 'standard output'}: {e.strerror or e}", 2)
    except MemoryError:
        return _fail("out of memory", 1)
    except KeyboardInterrupt:
        return _fail("interrupted", INTERRUPTED)
    except Exception as e:  # one line for the user, who can do nothing about it
        return _crash(e, _subject(args))


def _log_to_stderr(verbose: int) -> None:
    handler = logging.StreamHandler()
    handler.setFormatter(PrintableFormatter(logging.BASIC_FORMAT))
    own = [logging.ERROR, logging.WARNING, logging.INFO, logging.DEBUG][min(verbose + 1, 3)]
    others = logging.ERROR if verbose < 0 else logging.WARNING  # their debugging is of no use to who runs this package
    logging.basicConfig(level=others, handlers=[handler])
    logging.getLogger("onnx_fa").setLevel(own)


def _subject(args: argparse.Namespace) -> str:
    """The file that a command was given."""
    return str(getattr(args, "model", None) or getattr(args, "module", None) or "")


def _with_model(message: str, args: argparse.Namespace) -> str:
    """The message about a model, which begins with the file that the user gave where it does not name that."""
    path = str(getattr(args, "model", None) or getattr(args, "random_inputs", None) or "")
    return message if path in message else f"{path}: {message}"


def _crash(error: Exception, subject: str) -> int:
    *lines, last = crash_message(error, subject).split("\n")
    for line in lines:
        print(printable(line), file=sys.stderr)
    return _fail(last, 1)


def _terminate(number: int, _: object) -> NoReturn:
    raise SystemExit(128 + number)


def _fail(message: str, code: int) -> int:
    print(f"onnx-fa: error: {printable(' '.join(message.split()))}", file=sys.stderr)
    return code
