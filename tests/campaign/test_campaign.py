"""The campaign of random graphs (`python -m tests.campaign`): a part of it, and that it sees what is wrong."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from random import Random

import ml_dtypes
import numpy as np
import onnx
import onnx.parser
import pytest

from onnx_fa.forms.rewrite import rewrite
from tests.campaign import check as checks
from tests.campaign import chunks
from tests.campaign.draw import draw
from tests.campaign.inputs import Engine
from tests.campaign.mutations import MUTATIONS, mutate
from tests.campaign.noise import movement, noisy
from tests.campaign.shrink import shrink
from tests.campaign.sketch import KINDS

SIZE = 100
PARTS = [0, *(pytest.param(part, marks=pytest.mark.whole) for part in range(1, 11))]
"""Of so many graphs each."""


@pytest.mark.parametrize("part", PARTS)
def test_random_graphs_keep_their_results(part: int) -> None:
    chunk = chunks.run_chunk(part * SIZE, SIZE)
    tally = chunk.tally
    print(dict(tally))
    assert not chunk.faults, "\n".join(f"--only {f['seed']}: {f['verdict']}: {f['text']}" for f in chunk.faults)
    assert tally["graphs"] == SIZE
    assert tally["valid"] >= 0.7 * tally["graphs"]
    assert tally["matched"] >= 0.3 * tally["valid"], "a matcher that refuses everything is never wrong"
    assert all(tally[f"kind {kind} valid"] for kind in KINDS)


@pytest.mark.parametrize("name", MUTATIONS)
def test_every_mutation_applies(name: str) -> None:
    for seed in range(60):
        drawn = draw(seed)
        if drawn is not None and drawn.feeds.runs(drawn.fixed):
            changed = mutate(drawn.fixed, name, Random(seed), drawn.feeds)
            if changed is not None and changed.SerializeToString() != drawn.fixed.SerializeToString():
                return
    raise AssertionError("no graph has a place for it")


def test_the_least_number_of_a_type_has_no_lower_neighbour() -> None:
    """Nor an opposite."""
    least = np.iinfo(np.int64).min
    numbers = set()
    for seed in range(40):
        graph = onnx.helper.make_graph([], "g", [], [], [onnx.numpy_helper.from_array(np.array([least]), "n")])
        model = onnx.helper.make_model(graph)
        MUTATIONS["bound"](model, Random(seed))
        numbers.add(int(onnx.numpy_helper.to_array(model.graph.initializer[0])[0]))
    assert {least, least + 1, 2**31 - 1} <= numbers


def _first_site() -> int:
    """A seed whose graph has a Softmax that is a site in the decomposed form."""
    for seed in range(0, 400, 4):
        drawn = draw(seed, "plain")
        ops = [] if drawn is None else [n.op_type for n in drawn.model.graph.node]
        if "Softmax" in ops and checks.check(drawn, seed).sites:
            return seed
    raise AssertionError("no such graph")


def test_faults_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """A number that is off, a report that lacks a softmax, an exception, an endless rewrite, a model that does not load."""
    seed = _first_site()
    drawn = draw(seed, "plain")
    assert drawn is not None

    def broken(how: str) -> str:
        def rewritten(model: onnx.ModelProto, form: str) -> object:
            new, report = rewrite(model, form)  # type: ignore[call-overload]
            if how == "endless":
                while True:
                    pass
            if how == "traceback":
                raise RecursionError
            if how == "wrong":
                last = new.graph.output[0].name
                node = next(n for n in new.graph.node if last in n.output)
                node.output[0] = "before"
                new.graph.node.append(onnx.helper.make_node("Add", ["before", "before"], [last], name="twice"))
            if how == "does not load":
                new.graph.node[-1].op_type = "NoSuchOp"
            if how == "unaccounted":
                report = type(report)(report.sites[:0], report.misses[:0])
            return new, report

        monkeypatch.setattr(checks, "rewrite", rewritten)
        monkeypatch.setattr(checks, "SECONDS", 0.5)
        monkeypatch.setattr(checks, "_valid", lambda model, new: None)
        return checks.check(drawn, seed).verdict

    for how in ("wrong", "traceback", "endless", "does not load", "unaccounted"):
        assert broken(how) == how


def test_a_process_that_ends_costs_one_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is counted as a crash, and the next graph has its turn."""
    chunk = chunks.Chunk(0, 3, "")
    monkeypatch.setattr(chunks, "COMMAND", ("-c", "import sys; print('at 0 result', flush=True); sys.exit(3)"))
    assert chunks._run_from(chunk, 0, 3, None) == 1
    (fault,) = chunk.faults
    assert fault["verdict"] == "crash" and "exit code 3" in fault["text"]


def test_the_journal_is_read_again(tmp_path: Path) -> None:
    row = {"seed": 0, "kind": "plain", "mutations": ("narrow",), "base": "", "verdict": "same", "sites": 1, "misses": 0}
    chunk = chunks.Chunk(0, 1, chunks.digest())
    chunk.add({**row, "notes": ["settled later"], "text": ""})
    journal = tmp_path / "graphs.jsonl"
    journal.write_text(chunk.to_json() + "\n")
    (known,) = chunks.run(1, 0, 1, journal)
    assert known.tally == Counter(chunk.tally) and known.tally["matched"] == 1


def test_noise_is_a_few_units_in_the_last_place() -> None:
    """What two right results may differ by is small for a plain graph, and there is some."""
    seed = _first_site()
    drawn = draw(seed, "plain")
    assert drawn is not None
    inputs = drawn.feeds.plain(drawn.fixed)
    old = Engine(drawn.fixed)
    (want, *_) = old.run(inputs)
    moved, jumped = movement(drawn.fixed, old, inputs, 0, want)
    assert 0 < moved.max() < 1e-4 * float(np.linalg.norm(want)) and not jumped.any()


def test_noise_moves_equal_numbers_apart() -> None:
    """Scores that a fill (-1e4) has swallowed in bf16 are equal there, and not where a site adds it in f32."""
    source = """<ir_version: 10, opset_import: ["": 18]>
    g (bfloat16[1, 1] q, bfloat16[1, 4] k, bfloat16[4, 1] v) => (bfloat16[1, 1] o) <bfloat16 fill = {50716}>
    { s = MatMul (q, k)
      low = Add (s, fill)
      p = Softmax (low)
      o = MatMul (p, v) }"""
    model = onnx.parser.parse_model(source)
    rng = np.random.default_rng(0)
    inputs = {
        n: rng.standard_normal(s).astype(ml_dtypes.bfloat16) for n, s in (("q", (1, 1)), ("k", (1, 4)), ("v", (4, 1)))
    }
    old = Engine(model)
    (want,) = old.run(inputs)
    assert abs(want.astype(float).item() - float(np.mean(np.float32(inputs["v"])))) < 0.02
    assert movement(model, old, inputs, 0, want)[0].max() > 0.1


@pytest.mark.parametrize(("size", "moves"), [(1.0, False), (1000.0, True)])
@pytest.mark.parametrize(("kind", "fill"), [("float", -1e9), ("float16", -6e4)])
def test_noise_of_scores_that_a_fill_has_rounded(kind: str, fill: float, size: float, moves: bool) -> None:
    """Beside -1e9 a score of a few is lost, and the row is the mean of V; of a thousand some steps of 64 are left."""
    source = f"""<ir_version: 10, opset_import: ["": 18]>
    g ({kind}[1, 4] s, {kind}[4, 1] v, {kind}[1] fill) => ({kind}[1, 1] o)
    {{ low = Add (s, fill)
       p = Softmax (low)
       o = MatMul (p, v) }}"""
    model = onnx.parser.parse_model(source)
    dtype = np.float32 if kind == "float" else np.float16
    scores = np.asarray([[0.29, 0.27, 0.31, 0.3]]) * size
    inputs = {
        "s": scores.astype(dtype),
        "v": np.asarray([[1], [2], [3], [4]], dtype),
        "fill": np.asarray([fill], dtype),
    }
    old = Engine(model)
    (want,) = old.run(inputs)
    moved, _ = movement(model, old, inputs, 0, want)
    assert moved > 0.1 if moves else moved < 0.05


def test_noise_of_a_score_whose_terms_cancel() -> None:
    """127 and 128 steps of a quantised number leave one step, with what their products round: it may lie on a tie."""
    model = onnx.parser.parse_model(
        """<ir_version: 10, opset_import: ["": 18]>
        g (float[1, 2] q, float[2, 1] k) => (float[1, 1] s) { s = MatMul (q, k) }"""
    )
    step = np.float32(6 / 255)
    inputs = {"q": np.asarray([[127 * step, -128 * step]], np.float32), "k": np.ones((2, 1), np.float32)}
    old = Engine(noisy(model, 1))
    (moved,), (exact,) = old.run(inputs), Engine(model).run(inputs)
    assert 1e-7 < abs(moved - exact).item() < 1e-5


def test_the_smallest_graph_of_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rewrite that fails on any Softmax: one is left, with nothing in front of it, and what makes the result of its own."""
    drawn = draw(_first_site(), "plain")
    assert drawn is not None

    def rewritten(model: onnx.ModelProto, form: str) -> object:
        if any(n.op_type == "Softmax" for n in model.graph.node):
            raise RecursionError
        return rewrite(model, form)  # type: ignore[call-overload]

    monkeypatch.setattr(checks, "rewrite", rewritten)
    small = shrink(drawn, 0)
    assert len(small.model.graph.node) < len(drawn.model.graph.node)
    ops = [n.op_type for n in small.model.graph.node]
    assert ops[0] == "Softmax" and len(ops) <= 5 and ops.count("MatMul") <= 1
