"""How many parts keys are split into follows the workers that a program finds, and any number of parts gives the same attention."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import numpy as np
import pytest

from onnx_fa.iree.alone import entry_text
from onnx_fa.kernels.cpu import combine
from onnx_fa.kernels.cpu.combine import EACH, FEWEST_KEYS, count_parts, workgroups
from onnx_fa.kernels.cpu.few import emit_few
from onnx_fa.kernels.cpu.vector import VectorConfig, emit_vector
from onnx_fa.kernels.mlir.text import Text
from onnx_fa.spec.attention import AttentionSpec
from onnx_fa.spec.target import Target
from onnx_fa.spec.terms import BoolMask, Causal, TensorArg
from tests.support.cases import draw_operands
from tests.support.kernel_harness import FLAGS, HOST, mismatch, run_iree_compile

_HEADS = 3
_FEW = AttentionSpec("f32", _HEADS, 1, 1, "t", 16, 24, (1,), scale=0.25, sink=TensorArg((_HEADS, 1, 1)))
_MANY = AttentionSpec("f32", 2, 2, 11, "t", 16, 16, (1,), scale=0.25, masks=(Causal("end"),))
_GUARDED = AttentionSpec(
    "f32", 2, 2, 2, "t", 8, 8, (1,), scale=0.5, masks=(BoolMask((2, 1, "t")),), empty_row="guarded"
)
_SPECS = (_FEW, _MANY, _GUARDED)
_WORKERS = (1, 3, 16)


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Functions call0, ... of the specs, with parts of one key or more, and `count`, the number of parts of _FEW elsewhere."""
    t = Text()
    keys = t.let("arith.index_cast %given : i64 to index")
    count = t.let(f"arith.index_cast {count_parts(t, _FEW, 1, keys)} : index to i64")
    body = "\n".join([*t.render(), f"return {count} : i64"])
    text = f"func.func @count(%given: i64) -> i64 {{\n{body}\n}}\n"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(combine, "FEWEST_KEYS", 1)
        patch.setattr(Target, "cores", None)
        few, guarded = (emit_few(s, HOST, n) for s, n in ((_FEW, "fa_few"), (_GUARDED, "fa_guarded")))
        many = emit_vector(_MANY, HOST, "fa_many", VectorConfig(4, 8, 16, 4, 2, 2))
    kernels = (few, many, guarded)
    assert all(k.config["splits"] == "by cores" for k in kernels)
    text += "".join(k.text + entry_text(k, f"call{i}") for i, k in enumerate(kernels))
    output = tmp_path_factory.mktemp("parts") / "program.vmfb"
    run_iree_compile(text, output, (*dict.fromkeys(f for k in kernels for f in k.flags), *FLAGS))
    return output


def _run(program: Path, workers: int, function: str, *arguments: str) -> str:
    done = subprocess.run(
        [
            *("iree-run-module", f"--module={program}", "--device=local-task", f"--function={function}"),
            *(f"--task_topology_group_count={workers}", *arguments),
        ],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_number_of_parts_follows_workers_and_keys(program: Path) -> None:
    found = {}
    for workers in _WORKERS:
        for keys in (0, FEWEST_KEYS, 2 * FEWEST_KEYS, 200 * FEWEST_KEYS):
            said = re.search(r"i64=(\d+)", _run(program, workers, "count", f"--input={keys}"))
            assert said is not None
            found[workers, keys] = int(said[1])
    groups = workgroups(_FEW, 1)
    assert found == {(w, k): max(1, min(-(-EACH * w // groups), k // FEWEST_KEYS)) for w, k in found}
    assert len({found[w, 200 * FEWEST_KEYS] for w in _WORKERS}) == len(_WORKERS)


@pytest.mark.parametrize("index", range(len(_SPECS)))
def test_any_number_of_parts_gives_the_reference(index: int, program: Path, tmp_path: Path) -> None:
    """With more parts than blocks of keys, than keys, and without any keys; with infinite operands too."""
    for keys in (0, 1, 17, 333, 5000):
        spec = _SPECS[index].bind({"t": keys})
        operands = draw_operands(spec, keys, adversarial=keys % 2 == 1)
        inputs = []
        for i, x in enumerate(operands):
            np.save(tmp_path / f"{i}.npy", x)
            inputs.append(f"--input=@{tmp_path / f'{i}.npy'}")
        for workers in _WORKERS:
            _run(program, workers, f"call{index}", *inputs, f"--output=@{tmp_path / 'out.npy'}")
            assert mismatch(spec, operands, [np.load(tmp_path / "out.npy")]) is None, (keys, workers)
