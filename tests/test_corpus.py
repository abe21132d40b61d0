"""The corpus of other people's files (`scripts/corpus`, `scripts/corpus_report.py`), without any of its producers: inputs for a
run, the journal of a build, what becomes of a file, and the tables."""

from __future__ import annotations

import importlib
import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from tests.support import tiny

SCRIPTS = Path(__file__).resolve().parent.parent / "scripts"


@pytest.fixture(autouse=True)
def scripts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(SCRIPTS))


def module(name: str) -> Any:
    return importlib.import_module(name)


def with_inputs(**shapes: tuple[int, list[int | str]]) -> onnx.ModelProto:
    """A model without a node that has these inputs."""
    values = [helper.make_tensor_value_info(name, kind, shape) for name, (kind, shape) in shapes.items()]
    return helper.make_model(helper.make_graph([], "g", values, []))


@pytest.mark.parametrize(
    ("symbol", "size"),
    [
        ("batch_size", 2),
        ("past_sequence_length + sequence_length", 6),
        ("past_sequence_length + 1", 6),
        ("encoder_sequence_length_out", 6),
        ("past_decoder_sequence_length", 5),
        ("2*sequence_length", 2),
        ("kv_cache_dim", 16),
        ("unk__12", 9),
        ("what is this?", 9),
    ],
)
def test_the_size_of_a_symbol_follows_from_its_name(symbol: str, size: int) -> None:
    feeds = module("corpus.feeds")
    run = feeds.Run("step", length=1, past=5, sizes={"kv_cache_dim": 16})
    assert feeds.size_of_symbol(symbol, run, unknown=9) == size


def test_padding_is_in_the_mask_and_in_the_positions() -> None:
    feeds = module("corpus.feeds")
    ids, length = TensorProto.INT64, "sequence_length"
    model = with_inputs(
        input_ids=(ids, ["batch_size", length]),
        attention_mask=(ids, ["batch_size", f"past_sequence_length + {length}"]),
        position_ids=(ids, ["batch_size", length]),
    )
    made = feeds.feeds_of(model, feeds.Run("chunk", length=2, past=3, padding="left"))
    np.testing.assert_array_equal(made["attention_mask"], [[1, 1, 1, 1, 1], [0, 0, 1, 1, 1]])
    np.testing.assert_array_equal(made["position_ids"], [[3, 4], [1, 2]])
    assert made["input_ids"].shape == (2, 2)


def test_runs_that_differ_in_nothing_are_left_out() -> None:
    feeds = module("corpus.feeds")
    image = with_inputs(pixel_values=(TensorProto.FLOAT, ["batch_size", 3, 8, 8]))
    assert list(feeds.runs_of(image, feeds.IMAGE)) == ["batch", "one"]
    fixed = with_inputs(input_ids=(TensorProto.INT64, [1, 4]), attention_mask=(TensorProto.INT64, [1, 4]))
    masks = [made["attention_mask"].sum() for made in feeds.runs_of(fixed, feeds.ENCODER).values()]
    assert len(masks) == len(feeds.ENCODER)  # other token ids


def test_a_build_that_was_stopped_goes_on(tmp_path: Path) -> None:
    journal, runner = module("corpus.journal"), module("corpus.__main__")
    for case, state in (("a", "wanted"), ("b", "failed"), ("a", "done"), ("gone", "done")):
        models = [{"name": case, "attentions": 1}] if state == "done" else []
        journal.append(tmp_path, {"case": case, "state": state, "models": models, "versions": {"torch": "2"}})
    with open(tmp_path / journal.NAME, "a") as file:
        file.write('{"case": "c", "sta')  # its process was killed here
    names = ["a", "b", "c"]
    assert runner.remaining(tmp_path, names, [], again=False) == ["c"]
    assert runner.remaining(tmp_path, names, [], again=True) == ["b", "c"]
    assert runner.remaining(tmp_path, names, ["a"], again=False) == ["a"]
    (model,) = journal.write_manifest(tmp_path, "maker", ("torch",), names)
    assert model == {"producer": "maker", "versions": {"torch": "2"}, "name": "a", "attentions": 1}


def small_corpus(folder: Path) -> None:
    """Two files: an attention, and one whose manifest promises more than there is."""
    (folder / "maker").mkdir()
    entries = []
    for name, attentions in (("one", 1), ("more", 3)):
        path = folder / "maker" / f"{name}.onnx"
        tiny.attention(path)
        model = onnx.load(path)
        shapes = {v.name: [d.dim_value or 2 for d in v.type.tensor_type.shape.dim] for v in model.graph.input}
        rng = np.random.default_rng(0)
        np.savez(folder / "maker" / f"{name}.npz", **{n: rng.random(s).astype(np.float32) for n, s in shapes.items()})
        entries.append(
            {"producer": "maker", "name": name, "file": path.name, "attentions": attentions, "versions": {"maker": "1"}}
            | {"runs": {"inputs": f"{name}.npz"}}
        )
    (folder / "maker" / "manifest.json").write_text(json.dumps(entries))


def test_a_report_has_what_is_found_and_what_is_missed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    report, table = module("corpus_report"), module("corpus.report_page")
    small_corpus(tmp_path)
    files = report.files_of(tmp_path, [], "")
    found = dict((file.key, outcome) for file, outcome in report.outcomes(files, tmp_path / "report.jsonl", 1))
    rows = [table.Row.of(file.entry, found[file.key]) for file in files]
    assert [(row.found, row.verdict, row.runs) for row in rows] == [(1, "equal", 1), (1, "equal", 1)]
    assert rows[1].missing == (table.UNSEEN,) * 2
    text = table.page(rows)
    assert "**2 of 4 attentions (50.0%) are found in the files that can run; 0 rewritten files are wrong" in text
    assert f"| maker | {table.UNSEEN} | 2 | more |" in text

    def look_again(file: object) -> object:
        raise AssertionError("the journal has it")

    monkeypatch.setattr(report, "look", look_again)
    assert len(list(report.outcomes(files, tmp_path / "report.jsonl", 1))) == 2


def test_a_process_that_ends_is_the_result_of_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    report, table = module("corpus_report"), module("corpus.report_page")
    small_corpus(tmp_path)
    file = report.files_of(tmp_path, ["maker"], "one")[0]

    def end(path: Path, runs: object) -> object:
        raise SystemExit(3)

    monkeypatch.setattr(report, "check", end)
    row = table.Row.of(file.entry, report.look(file))
    assert row.bad and row.verdict == "failed: the process ended (exit code 3)"


def test_a_result_that_differs_is_seen() -> None:
    check = module("corpus.check")
    a, b = np.array([1.0, np.nan]), np.array([1.1, np.nan])
    assert check.distance([a], [a]) == 0.0
    assert check.distance([a], [b]) == pytest.approx(0.1)
    assert check.distance([a], [np.array([1.0, 2.0])]) == np.inf
    assert check.distance([a], [a[None]]) == np.inf
    assert check.distance([a], [a.astype(np.float32)]) == np.inf


@pytest.mark.parametrize("drawn", [True, False])
def test_a_model_that_draws_random_numbers_is_not_compared(drawn: bool, tmp_path: Path) -> None:
    """The numbers of a session's first run are always the same ones; a node in front takes those of this one."""
    check = module("corpus.check")
    values = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [64]) for n in "xy"]

    def model(op: str, draws: str) -> onnx.ModelProto:
        nodes = [helper.make_node("RandomUniformLike", ["x"], [name]) for name in draws]
        nodes += [helper.make_node(op, ["x", draws[-1] if draws else "x"], ["y"])]
        graph = helper.make_graph(nodes, "g", values[:1], values[1:])
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)

    np.savez(tmp_path / "x.npz", x=np.ones(64, np.float32))
    outcome = check.Outcome()
    pair = (model("Add", "r"), model("Add", "ar")) if drawn else (model("Add", ""), model("Mul", ""))
    check.compare(outcome, *pair, {"run": tmp_path / "x.npz"})
    assert ("another result in every run" in outcome.original) == drawn and bool(outcome.differs) != drawn


@pytest.mark.parametrize(("rows", "verdict"), [(5, "not compared"), (4, "invalid")])
def test_a_rewritten_model_is_invalid_only_where_the_original_runs(rows: int, verdict: str, tmp_path: Path) -> None:
    """A model whose lengths do not fit fails in a run; one whose shapes say so does not even load."""
    check, table = module("corpus.check"), module("corpus.report_page")
    values = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [d]) for n, d in (("a", "n"), ("b", 4))]
    out = [helper.make_tensor_value_info("c", TensorProto.FLOAT, [None])]
    model = helper.make_model(
        helper.make_graph([helper.make_node("Add", ["a", "b"], ["c"])], "g", values, out),
        opset_imports=[helper.make_opsetid("", 17)],
        ir_version=10,
    )
    other = onnx.ModelProto.FromString(model.SerializeToString())
    other.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 5
    outcome = check.Outcome()
    arrays = {"a": np.zeros(rows, np.float32), "b": np.zeros(4, np.float32)}
    np.savez(tmp_path / "one.npz", **arrays)
    check.compare(outcome, model, other, {"one": tmp_path / "one.npz"})
    assert table.verdict_of(outcome.to_dict()).startswith(verdict + ":")


def graph(text: str, opset: int = 18) -> onnx.ModelProto:
    return onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": {opset}]> g {text}')


@pytest.mark.parametrize(
    ("model", "broken"),
    [
        (graph("(float[n, 6] x) => (float[n, 4] y) { y = Missing(x) }"), "No Op registered for Missing"),
        (graph("(float[n, 6] x) => (float[n, 6] z) { y = Abs(x) }"), "z"),
        (
            graph("(float[n, 6] x) => (float[a, c] y) <int64[2] t = {0, 4}> { y = Reshape(x, t) }"),
            "is to make [n, 4] of [n, 6]",
        ),
        # Somebody may run these: onnxruntime has no kernel, only the reference evaluator takes these types, 4 rows would fit.
        (
            graph("(float[n, 6] x) => (float[a, c] y) { b = Cast <to = 16> (x) m = Mul(b, b) y = Cast <to = 1> (m) }"),
            "",
        ),
        (graph("(float[n, 6] x) => (int64[a, c] y) { b = Cast <to = 7> (x) y = Min(b, b) }", 11), ""),
        (graph("(float[n, 6] x) => (float[a, c] y) <int64[2] t = {4, 6}> { y = Reshape(x, t) }"), ""),
    ],
    ids=["no such op", "no such output", "no size fits", "no kernel", "types", "other sizes"],
)
def test_a_file_is_broken_only_where_nobody_can_run_it(model: onnx.ModelProto, broken: str, tmp_path: Path) -> None:
    check = module("corpus.check")
    onnx.save(model, tmp_path / "model.onnx")
    np.savez(tmp_path / "one.npz", x=np.ones((5, 6), np.float32))
    *_, outcome = check.check(tmp_path / "model.onnx", {"one": tmp_path / "one.npz"})
    assert outcome.runs == 0 and (outcome.original or outcome.refused)
    assert bool(outcome.broken) == bool(broken) and broken in outcome.broken


@pytest.mark.parametrize(
    ("text", "rows", "why"),
    [
        ("(float[n, 6] x) => (float[a, c] y) <int64[2] t = {4, 6}> { y = Reshape(x, t) }", (5, 3), "does not run: "),
        ("(float[n, 6] x) => (float[a, c] y) <int64[2] t = {4, 6}> { y = Reshape(x, t) }", (5, 4), ""),
        ("(float[n, 6] x) => (float[n, 4] y) { y = Missing(x) }", (5,), "does not load: "),
    ],
)
def test_what_no_input_runs(text: str, rows: tuple[int, ...], why: str, tmp_path: Path) -> None:
    runs = {str(n): tmp_path / f"{n}.npz" for n in rows}
    for n, path in zip(rows, runs.values(), strict=True):
        np.savez(path, x=np.ones((n, 6), np.float32))
    onnx.save(graph(text), tmp_path / "model.onnx")
    found = module("corpus.check").why_not_run(tmp_path / "model.onnx", runs)
    assert found.startswith(why) and bool(found) == bool(why)


def test_attentions_of_broken_files_are_counted_apart() -> None:
    table = module("corpus.report_page")
    entry = {"producer": "maker", "attentions": 2, "versions": {"maker": "1"}}
    misses = [["n", "Softmax", "a reason"]]
    rows = [
        table.Row.of(entry | {"name": "good"}, {"sites": 1, "misses": misses, "runs": 1}),
        table.Row.of(entry | {"name": "bad"}, {"misses": misses, "original": "no", "broken": "heads | lost"}),
    ]
    text = table.page(rows)
    assert "**1 of 2 attentions (50.0%) are found in the files that can run" in text
    assert "2 further attentions, of which 0 are found, stand in broken files (1 of them)" in text
    assert "| maker | 2 | 2 | 1 | 50.0 | 2 |" in text  # files, attentions, found, %, broken
    assert "| maker | a reason | 1 | good |" in text
    assert "| maker | bad | 0/2 | heads \\| lost |" in text


def test_reasons_are_grouped_without_names_and_numbers() -> None:
    group = module("corpus.report_page").group_of
    assert group("Add_12's dim 'batch' may differ from 4") == group("Add_12's dim 'b' may differ from 512")
    assert group("the log-sum-exp node_LSE_8 (at /a/b)") == group("the log-sum-exp /LSE (at /c_2)")
    assert group("feeds MatMul") != group("feeds Gather")


def test_changes_lie_near_a_softmax() -> None:
    """Of a chain of nodes with a softmax at its end, only the last ones are near it; a change elsewhere is drawn anew."""
    mutations, random = module("corpus_mutations"), module("random")
    names = [f"v{i}" for i in range(30)]
    nodes = [helper.make_node("Relu", [a], [b], name=b) for a, b in itertools.pairwise(names)]
    nodes.append(helper.make_node("Softmax", [names[-1]], ["y"], name="softmax"))
    info = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [2, 3]) for n in ("v0", "y")]
    opset = [helper.make_opsetid("", 18)]
    model = helper.make_model(helper.make_graph(nodes, "g", info[:1], info[1:]), opset_imports=opset, ir_version=10)
    near = mutations.values_near(model)
    assert "y" in near and "v29" in near and "v10" not in near
    changed, done = mutations.change(model, random.Random(1))
    assert done and mutations.values_changed(model, changed) & near
    other = onnx.ModelProto.FromString(model.SerializeToString())
    other.graph.node[0].op_type = "Neg"
    assert mutations.values_changed(model, other) == {"v0", "v1"}


def test_weights_of_infinities_are_found() -> None:
    model = with_inputs(x=(TensorProto.FLOAT, [2, 2]))
    for name, number in (("plain", 1.0), ("odd", np.inf)):
        model.graph.initializer.append(onnx.numpy_helper.from_array(np.full((2, 2), number, np.float32), name))
    assert module("corpus_mutations").odd_numbers(model) == {"odd"}


def test_files_are_drawn_evenly_and_verified_on_their_own_inputs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    report, verify = module("corpus_report"), module("corpus_verify")
    small_corpus(tmp_path)
    files = [report.File(tmp_path / maker, {"producer": maker, "name": str(n)}) for maker in "aab" for n in range(3)]
    drawn = verify.draw(files, 4, 0)
    assert sorted(file.folder.name for file in drawn) == ["a", "a", "b", "b"] and drawn == verify.draw(files, 4, 0)
    monkeypatch.setattr(
        "sys.argv", ["corpus_verify.py", str(tmp_path), "--page", str(tmp_path / "p.md"), "--count", "1"]
    )
    assert verify.main() == 0
    assert "1/1 maker/" in capsys.readouterr().out
    assert "**1 of 1 are ok; 1 of 1 sites" in (tmp_path / "p.md").read_text()
    (line,) = (tmp_path / "verified.jsonl").read_text().splitlines()
    assert json.loads(line)["row"]["verdict"] == "ok"


@pytest.mark.parametrize(
    ("ending", "code", "error", "said", "verdict"),
    [
        ("ok", 0, "", {"ok": True, "notes": []}, "ok"),
        ("ok", 0, "", {"ok": True, "notes": ["not one fused dispatch: s"]}, "not fused"),
        ("failed", 1, "m.onnx: output y: IREE", {"ok": False, "notes": []}, "disagree"),
        ("failed", 1, "iree-compile failed", {}, "compiler"),
        ("failed", 2, "m.onnx: no such op", {}, "refused"),
        ("failed", 1, "the model cannot be run on the inputs made for it: x", {}, "not run"),
        ("failed", 1, "a bug in onnx_fa: x", {}, "ended"),
        ("timeout", 1, "", {}, "ended"),
    ],
)
def test_verdicts(ending: str, code: int, error: str, said: dict[str, Any], verdict: str) -> None:
    table, finished = module("corpus.verified_page"), importlib.import_module("onnx_fa.processes").Finished
    done = finished(ending, code, 0.1, 0, "", f"onnx-fa: error: {error}\n" if error else "")
    assert table.Verified.of({"producer": "p", "name": "n"}, done, "took too long", said).verdict == verdict
