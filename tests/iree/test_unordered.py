"""Commands that the compiler lets run beside what writes their operand are found, and such a module's wait for one another."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest

from onnx_fa.iree.compile import compile_model
from onnx_fa.iree.run import load_module
from onnx_fa.iree.unordered import IN_ORDER, WHY_IN_ORDER, unordered
from onnx_fa.spec.target import parse_target

MIDDLE = """<ir_version: 8, opset_import: ["" : 17]>
middle (float[N,64] a, float[8,64] b, float[8,64] c) => (float[M,64] z, float[8,64] p) {
  z = Concat <axis = 0> (b, c, a)
  s = Constant <value_ints = [8]> ()
  e = Constant <value_ints = [16]> ()
  p = Slice (z, s, e)
}"""


def _region(*commands: str) -> str:
    """A function of one region, whose buffers %x and %y are of 64 bytes."""
    lines = ["  %c0 = arith.constant 0 : index"]
    lines += [f"  %c{n} = arith.constant {n} : index" for n in (16, 32, 48, 64)]
    lines += ["  %9:2 = stream.async.concurrent with(%0 as %x: !r{%c64}, %1 as %y: !r{%c64}) -> (!r{%c64}, !r{%c64}) {"]
    return "\n".join([*lines, *(f"    {command}" for command in commands), "    stream.yield %a : !r{%c64}", "  }"])


def _update(result: str, target: str, begin: str, end: str) -> str:
    return f"{result} = stream.async.update %y, {target}[{begin} to {end}] : !r{{%c16}} -> {target} as !r{{%c64}}"


def _slice(source: str, begin: str, end: str) -> str:
    return f"%s = stream.async.slice {source}[{begin} to {end}] : !r{{%c64}} -> !r{{%c16}}"


FIRST, SECOND = _update("%a", "%x", "%c0", "%c16"), _update("%b", "%a", "%c16", "%c32")
TWICE = "%d:2 = stream.async.dispatch @e::@f(%y[%c0 to %c16 for %c16], %x[%c0 to %c16 for %c16]) : (!r{%c64}, !r{%c64})"


@pytest.mark.parametrize(
    "commands",
    [
        (FIRST, _slice("%a", "%c0", "%c16")),
        (FIRST, SECOND, _slice("%b", "%c0", "%c16")),
        (FIRST, _slice("%a", "%n", "%m")),  # the run may have it anywhere
        (FIRST, _slice("%x", "%c0", "%c16")),  # what was there before
        ("%a = stream.async.fill %k, %x[%c0 to %c16 for %c16] : i64 -> %x as !r{%c64}", _slice("%a", "%c0", "%c32")),
        ("%a = stream.async.splat %k : i64 -> !r{%c64}", _slice("%a", "%c0", "%c16")),
        (f"{TWICE} -> (%x{{%c64}}, !r{{%c16}})", _slice("%d#0", "%c0", "%c16")),
        (f"{TWICE} -> (%x{{%c64}}, !r{{%c16}})", _slice("%d#1", "%c0", "%c16")),
    ],
)
def test_are_found(commands: tuple[str, ...]) -> None:
    assert list(unordered(_region(*commands))) == [commands[-1]]


@pytest.mark.parametrize(
    "commands",
    [
        (FIRST, SECOND),
        (FIRST, SECOND, _slice("%b", "%c32", "%c48")),
        (_update("%a", "%x", "%n", "%m"), _slice("%a", "%m", "%k")),
        (FIRST, _slice("%y", "%c0", "%c16")),
        (f"{TWICE} -> (%x{{%c64}}, !r{{%c16}})", _slice("%d#0", "%c16", "%c32")),
        (TWICE.replace("%d:2", "%d") + " -> %x{%c64}", _slice("%y", "%c0", "%c16")),
    ],
)
def test_are_not_found(commands: tuple[str, ...]) -> None:
    assert not list(unordered(_region(*commands)))


def test_each_region_is_read_alone() -> None:
    """What a region before has written is there."""
    assert not list(unordered(_region(FIRST) + "\n" + _region(_slice("%a", "%c0", "%c16"))))


def test_such_a_module_waits(tmp_path: Path) -> None:
    """The middle of a concatenation whose last part is as long as only the run knows."""
    model = onnx.parser.parse_model(MIDDLE)
    done = compile_model(model, tmp_path / "m.vmfb", parse_target("cpu-host"))
    assert WHY_IN_ORDER in done.note
    assert set(IN_ORDER) <= set(done.command)
    a, b, c = (np.full((n, 64), n + i, np.float32) for i, n in enumerate((5, 8, 8)))
    joined, part = load_module(tmp_path / "m.vmfb")(a, b, c)
    np.testing.assert_array_equal(joined, np.concatenate([b, c, a]))
    np.testing.assert_array_equal(part, c)
