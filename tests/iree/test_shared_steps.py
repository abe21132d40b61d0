"""Steps of recurrent layers that workgroups share: the same numbers from any number of threads, in every call."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import onnx_fa
from onnx_fa.iree.run import load_module
from onnx_fa.kernels.cpu import recurrent, shared_steps
from onnx_fa.spec.recurrent import RecurrentSpec
from onnx_fa.spec.target import parse_target
from tests.iree.test_recurrent_steps import feeds_of, joined_feeds, layer
from tests.support.joined_models import join_models
from tests.support.ort_run import assert_same, run

_CALLS = """
import json, sys
import numpy as np, iree.runtime as rt
from onnx_fa.iree.run import load_module
module, device, workers, calls, feeds, results = json.loads(sys.argv[1])
rt.flags.parse_flags(f"--task_topology_group_count={workers}")
given = np.load(feeds)
call = load_module(module, device)
first = call(*given.values())
for n in range(calls):
    for i, (a, b) in enumerate(zip(first, call(*given.values()))):
        assert a.tobytes() == b.tobytes(), f"call {n}: result {i} is another"
np.savez(results, *first)
"""


@pytest.fixture(autouse=True)
def all_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recurrent, "_WHOLE_BYTES", 0)


def in_child(
    module: Path, feeds: dict[str, np.ndarray], workers: int, calls: int, device: str = "local-task"
) -> list[np.ndarray]:
    """Results of a call; of as many more a process of its own asserts that they are the same to the bit."""
    given, made = module.with_suffix(".in.npz"), module.with_suffix(".out.npz")
    np.savez(given, **feeds)  # type: ignore[arg-type]
    asked = json.dumps([str(module), device, workers, calls, str(given), str(made)])
    root = str(Path(onnx_fa.__file__).parents[1])
    env = {**os.environ, "PYTHONPATH": root}
    done = subprocess.run([sys.executable, "-c", _CALLS, asked], capture_output=True, text=True, timeout=300, env=env)
    assert done.returncode == 0, done.stderr[-2000:]
    with np.load(made) as found:
        return [found[name] for name in found.files]


def test_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One thread, as many as cores, more than those and than tiles; with workgroups that wait and such that at once compute what
    others have claimed."""
    models = [
        layer("LSTM", 136, direction="bidirectional", states=True),
        layer("GRU", 45, direction="reverse", states=True),
        layer("LSTM", 25, bias=False),
    ]
    sizes = ((19, 3), (1, 1), (40, 6))
    for looks, some in ((shared_steps._LOOKS, slice(3)), (1, slice(1, 3))):
        joined, of_one = join_models(models[some], own_dims=True), None
        given = [feeds_of(m, *s) for m, s in zip(models[some], sizes[some], strict=True)]
        feeds = {f"m{i}_{k}": v for i, of in enumerate(given) for k, v in of.items()}
        want = run(joined, feeds)
        monkeypatch.setattr(shared_steps, "_LOOKS", looks)
        module = tmp_path / f"looks{looks}.vmfb"
        onnx_fa.compile(joined, module)
        for workers, calls in ((1, 2), (2, 60), (3, 20), (8, 10), (20, 4)):
            have = in_child(module, feeds, workers, calls)
            assert_same(want, have, 1e-5)
            of_one = of_one or have
            assert all(np.array_equal(a, b) for a, b in zip(of_one, have, strict=True)), f"{workers} threads"
        assert_same(want, in_child(module, feeds, 2, 3, "local-sync"), 1e-5)


@pytest.mark.parametrize(("whole_bytes", "H", "shared"), [(None, 64, False), (None, 72, True), (0, 16, True)])
def test_one_dispatch(whole_bytes: int | None, H: int, shared: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Small weights are read by one thread."""
    if whole_bytes is None:
        monkeypatch.undo()
    texts = recurrent.RecurrentSteps(RecurrentSpec("LSTM", None, None, H, 8)).texts(parse_target("cpu-avx2"))
    kernel, function = texts.values()
    assert function.count("flow.dispatch @") == 1 and "scf.for" not in function
    assert ("atomic_rmw" in kernel) == shared


def test_sizes(tmp_path: Path) -> None:
    """Free and known: no steps and one, no rows, and such as are left behind those that are computed together."""
    models = [
        layer("LSTM", 21, states=True),
        layer("GRU", 19, states=True),
        layer("GRU", 32, free=False, bias=False, direction="reverse"),
        layer("LSTM", 40, free=False),
    ]
    joined = join_models(models, own_dims=True)
    onnx_fa.compile(joined, tmp_path / "m.vmfb")
    call = load_module(tmp_path / "m.vmfb")
    for steps, batch in ((1, 1), (7, 4), (5, 7)):
        feeds = joined_feeds(models, steps, batch)
        assert_same(run(joined, feeds), call(*feeds.values()), 1e-5)
    for steps, batch in ((0, 2), (6, 0), (0, 0)):
        feeds = joined_feeds(models, steps, batch)
        of_lstm, of_gru = (slice(3 * i, 3 * i + n) for i, n in ((0, 3), (1, 2)))
        have = call(*feeds.values())
        assert [v.shape for v in have[of_lstm]] == [(steps, 1, batch, 21), (1, batch, 21), (1, batch, 21)]
        assert have[of_gru][0].shape == (steps, 1, batch, 19)
        if not steps:
            assert not any(last.any() for last in (*have[of_lstm][1:], have[of_gru][1]))


def test_words_begin_at_zero(tmp_path: Path) -> None:
    """Layers of equal shapes, whose words begin as equal tensors, and calls of other lengths in turns; gates that are wide open or
    shut, by an infinity too."""
    models = [layer("LSTM", 24), layer("LSTM", 24)]
    joined = join_models(models)
    onnx_fa.compile(joined, tmp_path / "m.vmfb")
    call = load_module(tmp_path / "m.vmfb")
    for steps in (9, 3, 30, 9, 1, 30):
        feeds = joined_feeds(models, steps, 2)
        if steps == 30:
            feeds["m1_x"] *= np.float32(300)
            feeds["m1_x"][2, 1, 0] = np.inf
        assert_same(run(joined, feeds), call(*feeds.values()), 1e-5)
