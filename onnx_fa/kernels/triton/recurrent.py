"""The steps of an LSTM or a GRU by Triton, all of them in one dispatch. A workgroup has some columns of the states of some rows for
the whole sequence. Those of the same rows wait for each other behind each step, whose states they read from what it has written of
the result.

There are so few workgroups that any GPU runs all of them at the same time: none waits for one that cannot begin. All kernels of a
program count in the same numbers, so that each begins when the one before has ended.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from onnx_fa.kernels.cpu.step_body import StepOperands
from onnx_fa.kernels.mlir.called import plain_function_text, read_dims
from onnx_fa.kernels.mlir.text import Text
from onnx_fa.kernels.triton import ptx
from onnx_fa.kernels.triton.config import ARCHITECTURES
from onnx_fa.kernels.triton.entry import Counters, dispatch
from onnx_fa.kernels.triton.executable import ArchCode, executable_text
from onnx_fa.kernels.triton.expressions import Block, Expressions
from onnx_fa.kernels.triton.program import Program, write_program
from onnx_fa.spec.expr import SCORE, Apply, ScoreExpr
from onnx_fa.spec.recurrent import RecurrentSpec

_MOST, _ALL = 64, 128
"""Workgroups of a row at most, and all of them: with 80 registers for each thread, six of them on a multiprocessor, GPUs from 22
multiprocessors on run them at once."""
_LEAST = 8
"""Columns of one: less than a sector of memory is read for nothing."""
_WIDEST = 64
"""Columns whose sums registers hold."""
_SUMS = 4096
"""Of all gates and columns of a workgroup, side by side along the states that are multiplied."""
_WARPS = 4
_COUNTERS = Counters("recurrent_steps", _ALL)
"""How many workgroups of each group of rows have come."""
_CELLS = "out2 + row * {}"
"""Where the state c of a row is kept from step to step, by the H that it has: each workgroup reads what it wrote itself."""


def panel_of(H: int) -> int:
    """The columns of a workgroup of states of so many; 0 where there would be too many workgroups."""
    panel = _LEAST
    while panel > H:
        panel //= 2
    while -(-H // panel) > _MOST:
        panel *= 2
    return panel if panel <= _WIDEST else 0


@cache
def emit_steps(spec: RecurrentSpec) -> dict[str, str]:
    """The executable and the function of the spec's name, which takes its operands and returns all states and the last, by their
    symbols. Raises UnsupportedError where Triton refuses the source."""
    symbol = f"{spec.name}_step"
    program = steps_program(spec, symbol)
    codes = [ArchCode(arch, ptx.compile_program(program, arch, _WARPS, 1)) for arch in ARCHITECTURES]
    texts = {
        _COUNTERS.symbol: [_COUNTERS.declaration],
        symbol: executable_text(symbol, program, codes, [_rows_at_once(spec)] * len(codes)),
        spec.name: _function(spec, symbol),
    }
    return {key: "\n".join(lines) + "\n" for key, lines in texts.items()}


def _rows_at_once(spec: RecurrentSpec) -> int:
    """Of a batch, by workgroups of their own."""
    most = max(1, _ALL // spec.panels)
    return most if spec.rows is None else max(1, min(most, spec.rows))


def steps_program(spec: RecurrentSpec, symbol: str) -> Program:
    """The source."""
    t, H, U = Block(), spec.H, spec.panel
    sizes = _sizes(spec)
    steps, rows = sizes.get("steps", str(spec.steps)), sizes.get("rows", str(spec.rows))
    deep = min(128, _SUMS // (4 * U))
    t.do("pid = tl.program_id(0)")
    t.do("wide = pid.to(tl.int64) * 0")
    t.do(f"column = tl.minimum(pid * {U}, {H - U}) + tl.arange(0, {U})")
    t.do(f"own = column >= pid * {U}  # the others are those of the workgroup before")
    t.do(f"depth = tl.arange(0, {deep})")
    t.do("first = tl.program_id(1)  # of the rows")
    t.do(f"for step in range(0, tl.where(first < {rows}, {steps}, 0)):")
    t.indent += 1
    t.do(f"for row in range(first, {rows}, tl.num_programs(1)):")
    t.indent += 1
    t.do(f"at = (wide + step) * {rows} + row")
    t.do(f"kept = tl.where(at >= {rows}, {H}, 0)")
    t.do(f"before = out0 + (at - {rows}) * {H}")
    _multiply(t, spec, deep)
    own = [f"own{gate}" for gate in range(spec.gates)]
    for gate, name in enumerate(own):
        t.do(f"{name} = tl.load(x + at * {spec.gates * H} + {gate * H} + column)")
    _next_states(t, spec, own)
    t.do(f"tl.store(out0 + at * {H} + column, h_new, mask=own)")
    t.indent -= 1
    _wait_for_all(t, spec, steps)
    t.indent -= 1
    t.do(f"for row in range(first, {rows}, tl.num_programs(1)):")
    t.indent += 1
    t.do(f"step = {steps} + row * 0")
    t.do(f"kept = tl.where(wide + step > 0, {H}, 0)")
    t.do(f"before = out0 + ((wide + step - 1) * {rows} + row) * {H}")
    t.do(f"tl.store(out1 + row * {H} + column, {_held(spec, 'h', 'before', 'column', 'own')}, mask=own)")
    if spec.cell == "LSTM" and spec.steps in (None, 0):
        t.do("if step == 0:")
        t.do(
            f"    tl.store(out2 + row * {H} + column, {_held(spec, 'c', _CELLS.format(H), 'column', 'own')}, mask=own)"
        )
    pointers = [(v.name.removeprefix("%"), "f32") for v in StepOperands(spec).given]
    outs = [(f"out{i}", "f32") for i in range(1 + spec.states)]
    return write_program(symbol, [*pointers, ("count", "i32"), *outs], sizes, t.lines)


def _sizes(spec: RecurrentSpec) -> dict[str, str]:
    """The parameters of sizes that only a run knows, by what they are called in the function."""
    free = [name for name, size in (("steps", spec.steps), ("rows", spec.rows)) if size is None]
    return {name: f"s{i}" for i, name in enumerate(free)}


def _held(spec: RecurrentSpec, first: str, before: str, place: str, mask: str) -> str:
    """Numbers of the state of the step before, from where that lies: of a first step `kept` is 0, and they are the first state's.
    What other workgroups wrote is not in the first cache, or is there as it was."""
    held = f"tl.load({before} + {place}, mask={mask} & ({place} < kept), other=0.0, cache_modifier='.cg')"
    if spec.started:
        held += f" + tl.load({first} + row * {spec.H} + {place}, mask={mask} & ({place} >= kept), other=0.0)"
    return held


def _multiply(t: Block, spec: RecurrentSpec, deep: int) -> None:
    """The products of a row's state with the weights of the workgroup's columns of each gate, `product0` and so on."""
    H, U, all_gates = spec.H, spec.panel, range(spec.gates)
    for gate in all_gates:
        t.do(f"sums{gate} = tl.zeros([{deep}, {U}], tl.float32)")
    t.do(f"for start in range(0, {H}, {deep}):")
    t.indent += 1
    t.do("k = start + depth")
    t.do(f"there = k < {H}")
    t.do(f"held = {_held(spec, 'h', 'before', 'k', 'there')}")
    for gate in all_gates:
        columns = f"({gate * U} + tl.arange(0, {U}))[None, :]"
        place = f"w + pid * {H * spec.gates * U} + k[:, None] * {spec.gates * U} + {columns}"
        t.do(f"sums{gate} += held[:, None] * tl.load({place}, mask=there[:, None], other=0.0)")
    t.indent -= 1
    for gate in all_gates:
        t.do(f"product{gate} = tl.sum(sums{gate}, 0)")


def _next_states(t: Block, spec: RecurrentSpec, own: Sequence[str]) -> None:
    """`h_new`, and of an LSTM c where it is kept, of what x has of each gate and the products."""
    if spec.cell == "LSTM":
        i, o, f, g = (f"{x} + product{n}" for n, x in enumerate(own))
        cells = _CELLS.format(spec.H)
        t.do(f"c_old = {_held(spec, 'c', cells, 'column', 'own')}")
        t.do(f"c_new = {_of(t, 'Sigmoid', f)} * c_old + {_of(t, 'Sigmoid', i)} * {_of(t, 'Tanh', g)}")
        t.do(f"tl.store({cells} + column, c_new, mask=own)")
        t.do(f"h_new = {_of(t, 'Sigmoid', o)} * {_of(t, 'Tanh', 'c_new')}")
        return
    z, r = (f"{own[n]} + product{n}" for n in (0, 1))
    t.do(f"z = {_of(t, 'Sigmoid', z)}")
    reset = f"{_of(t, 'Sigmoid', r)} * (product2 + tl.load(b + column))"
    hidden = _of(t, "Tanh", f"{own[2]} + {reset}")
    t.do(f"h_old = {_held(spec, 'h', 'before', 'column', 'own')}")
    t.do(f"h_new = (1.0 - z) * {hidden} + z * h_old")


def _of(t: Block, op: str, value: str) -> str:
    known: dict[ScoreExpr, str] = {SCORE: t.let(value)}
    return Expressions(t, "rows", 1, (), exact_tanh=True).emit(Apply(op, SCORE), known.get)


def _wait_for_all(t: Block, spec: RecurrentSpec, steps: str) -> None:
    """Goes on when all workgroups of the rows have written their states of a step. Behind the last step nobody waits, and the last
    to come leaves the counter at zero."""
    t.do("tl.debug_barrier()  # all threads' states are written")
    if spec.panels == 1:
        return
    t.do("came = tl.atomic_add(count + first, 1, sem='acq_rel')")
    t.do(f"if step == {steps} - 1:")
    t.do(f"    if came == {spec.panels} * {steps} - 1:")
    t.do("        tl.store(count + first, 0)")
    t.do("else:")
    t.do(f"    while tl.atomic_add(count + first, 0, sem='acquire') < (step + 1) * {spec.panels}:")
    t.do("        pass")
    t.do("tl.debug_barrier()  # no thread reads before that")


def _function(spec: RecurrentSpec, symbol: str) -> list[str]:
    """What a program calls: the dispatch."""
    t, of = Text(), StepOperands(spec)
    read_dims(t, of.given[:1])
    values, types = [x.name for x in of.given], [x.sized_type for x in of.given]
    values.append(_COUNTERS.load(t))
    types.append(_COUNTERS.type)
    results = [values[-1], *(y.sized_type for y in of.results)]
    for dim in _sizes(spec):
        values.append(t.let(f"arith.index_cast %{dim} : index to i32"))
        types.append("i32")
    count = [t.index(spec.panels)] * len(ARCHITECTURES)
    made = dispatch(t, symbol, list(ARCHITECTURES), count, values, types, results)
    _COUNTERS.store(t, made[0])
    return plain_function_text(spec.name, of.given, of.results, t.render(), made[1:])
