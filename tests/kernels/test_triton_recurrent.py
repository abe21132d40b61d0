"""The steps of LSTMs and GRUs by Triton: numbers in Triton's interpreter, and what becomes of a model for CUDA (no GPU)."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from onnx_fa.errors import ModelError
from onnx_fa.iree.compile import import_model
from onnx_fa.kernels.triton import ptx
from onnx_fa.kernels.triton.recurrent import emit_steps, panel_of, steps_program
from onnx_fa.spec.recurrent import Cell, RecurrentSpec
from tests.iree.test_recurrent_steps import layer
from tests.support.cuda_programs import program_of
from tests.support.interpreted import distances_of
from tests.support.triton_sources import triton_sources


def test_numbers() -> None:
    """The source is within f32's rounding of float64, and NaN is where it is there."""
    found = distances_of("recurrent_interpreter")
    assert len(found) == 15 and {name: d for name, d in found.items() if not d <= 3e-7} == {}


@pytest.mark.parametrize(
    ("H", "panel"), [(1, 1), (5, 4), (8, 8), (64, 8), (512, 8), (513, 16), (1024, 16), (4096, 64), (4097, 0)]
)
def test_workgroups(H: int, panel: int) -> None:
    """No more of a row than a small GPU runs at once, and together with those of other rows too."""
    assert panel_of(H) == panel
    if panel:
        assert -(-H // panel) <= 64
        assert "tl.where(first < s1, s0, 0)" in steps_program(RecurrentSpec("LSTM", None, None, H, panel), "s").text


def test_one_that_is_alone_waits_for_nobody() -> None:
    """Else all workgroups of a row wait, but behind the last step, when the last of them sets the counter back."""
    alone, two = (steps_program(RecurrentSpec("LSTM", None, 1, H, 8), "s").text for H in (8, 12))
    assert "atomic" not in alone and alone.count("debug_barrier") == 1
    assert re.search(r"if step == s0 - 1:\n +if came == 2 \* s0 - 1:\n +tl.store\(count \+ first, 0\)", two)
    assert re.search(r"while tl.atomic_add\(count \+ first, 0, sem='acquire'\) < \(step \+ 1\) \* 2:", two)
    assert "cache_modifier='.cg'" in two, "what others wrote may lie in the first cache as it was"


@pytest.mark.parametrize("cell", ["LSTM", "GRU"])
@pytest.mark.parametrize("steps", [None, 5])
@pytest.mark.parametrize("rows", [None, 3])
def test_sizes_are_numbered_in_order(cell: Cell, steps: int | None, rows: int | None) -> None:
    """As what compiles a program calls its parameters, whichever sizes are free."""
    program = steps_program(RecurrentSpec(cell, steps, rows, 16, 8), "s")
    free = [name for name, size in (("steps", steps), ("rows", rows)) if size is None]
    parameters = re.search(r"def s\(.*count, out0, out1(?:, out2)?(.*)\):", program.text)
    assert parameters and parameters[1] == "".join(f", s{i}" for i in range(len(free)))
    assert program.constants == tuple(free) and not re.search(r"[(*,] None[), ]", program.text)


def test_one_free_size_compiles() -> None:
    for steps, rows in ((None, 3), (5, None)):
        program = steps_program(RecurrentSpec("GRU", steps, rows, 16, 8), f"s{steps}_{rows}")
        assert ".target sm_80" in ptx.compile_program(program, 80, 4, 1).text


@pytest.mark.parametrize(("H", "panel"), [(512, 8), (4096, 64)])
def test_as_many_run_at_once_as_wait_for_each_other(H: int, panel: int, tmp_path: Path) -> None:
    """A multiprocessor has registers for six workgroups of 128 threads with 80 each."""
    triton = pytest.importorskip("triton")
    assembler = Path(triton.__file__).parent / "backends/nvidia/bin/ptxas"
    program = steps_program(RecurrentSpec("LSTM", None, None, H, panel, started=True), "s")
    (tmp_path / "s.ptx").write_text(ptx.compile_program(program, 90, 4, 1).text)
    command = [assembler, "-arch", "sm_90a", "-v", "s.ptx", "-o", "s.cubin"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    used = re.search(r"Used (\d+) registers", done.stderr + done.stdout)
    assert used and int(used[1]) <= 80


def test_kernels_follow_each_other() -> None:
    """Whose workgroups might else take each other's places while both wait: their counter is the same, of all in a program."""
    with triton_sources():
        texts = [emit_steps(RecurrentSpec("LSTM", None, None, H, 8)) for H in (8, 24)]
    assert len(set.intersection(*map(set, texts))) == 1 and "recurrent_steps_count" in texts[0]
    assert texts[0]["recurrent_steps_count"] == texts[1]["recurrent_steps_count"]


@pytest.mark.parametrize(("op", "way"), [("LSTM", "forward"), ("GRU", "bidirectional"), ("LSTM", "bidirectional")])
def test_one_dispatch_of_all_steps(op: str, way: str, tmp_path: Path) -> None:
    """Of free lengths and batches, which IREE mixes up; compiled for all architectures once, and as Triton's source else."""
    model = layer(op, 24, direction=way, states=True)  # type: ignore[arg-type]
    program = program_of(model, tmp_path, compiled=way == "forward")
    count = 2 if way == "bidirectional" else 1
    assert len(re.findall(r"stream\.cmd\.dispatch {?@steps_", program)) == count and "scf.while" not in program


def test_what_has_no_kernel_is_refused_as_before() -> None:
    with triton_sources(), pytest.raises(ModelError, match="GRU of a free length and a free batch"):
        import_model(layer("GRU", 24, linear_before_reset=0), "cuda")
