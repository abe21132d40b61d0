"""verify: agreement on tiny models, and that it sees a wrong result wherever one is put."""

from __future__ import annotations

import dataclasses
import importlib
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import pytest
from onnx import TensorProto, numpy_helper

import onnx_fa.iree.kernels
import onnx_fa.iree.run
import onnx_fa.kernels.choose
from onnx_fa.cli.command import main
from onnx_fa.errors import MismatchError, ModelError, RunError
from onnx_fa.forms.rewrite import rewrite_in_place
from onnx_fa.graph import io
from onnx_fa.graph.free_dims import input_shapes, symbols
from onnx_fa.verifier.comparisons import norm_error
from onnx_fa.verifier.inputs import random_inputs
from onnx_fa.verifier.report import VerifyReport
from onnx_fa.verifier.verifier import _narrowest, verify
from tests.support import tiny

# By import_module, because `onnx_fa.verify` may also be the function of that name.
verify_module = importlib.import_module("onnx_fa.verifier.site_checks")


def kinds(report: VerifyReport) -> set[str]:
    return {c.what for c in report.checks if c.error is not None}


def test_agrees_static(tmp_path: Path) -> None:
    report = verify(tiny.attention(tmp_path / "a.onnx", s=37), seeds=2)
    report.check()
    assert report.ok and "MISMATCH" not in report.table()
    assert kinds(report) == {
        "original (optimiser on): output o",
        "rewritten: output o",
        "rewritten (optimiser on): output o",
        "IREE: output o",
        "site softmax: original",
        "site softmax: rewritten",
        "site softmax: kernel",
    }
    assert {c.inputs for c in report.checks} == {"seed 0", "seed 1", "large", "padded", "empty"}
    assert all(c.ok for c in report.checks if not c.what.endswith(": original"))


def test_agrees_dynamic_over_odd_lengths(tmp_path: Path) -> None:
    report = verify(tiny.attention(tmp_path / "a.onnx", s="S", skv="T", batch="batch"), seeds=1)
    report.check()
    assert {c.inputs for c in report.checks} >= {f"seed {i}, length {n}" for i, n in enumerate((37, 61, 1))}


def test_agrees_with_token_ids_and_padding(tmp_path: Path) -> None:
    """The model compiles, its site is fused, and a fully masked row (the mean of v) agrees too."""
    report = verify(tiny.encoder(tmp_path / "e.onnx"), seeds=1)
    report.check()
    assert [s.fused for s in report.sites] == [True]
    assert "empty" in {c.inputs for c in report.checks}


def test_attention_op(tmp_path: Path) -> None:
    report = verify(tiny.standard(tmp_path / "s.onnx"), seeds=1)
    report.check()
    assert [s.variant for s in report.sites] == ["mha+causal"]


def test_kinds_of_model(tmp_path: Path) -> None:
    """A proto and an ir.Model work like a path, and are not changed."""
    path = tiny.attention(tmp_path / "a.onnx", mask=False)
    proto = onnx.load(path)
    before = proto.SerializeToString()
    verify(proto, seeds=1).check()
    assert proto.SerializeToString() == before
    model = io.load(path)
    verify(model, seeds=1).check()
    assert ir.to_proto(model).SerializeToString() == ir.to_proto(io.load(path)).SerializeToString()


def test_sees_a_wrong_module(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    right = onnx_fa.iree.run.load_module

    def wrong(*args: Any, **options: Any) -> Any:
        call = right(*args, **options)
        return lambda *arrays: [out * np.float32(1.001) for out in call(*arrays)]

    monkeypatch.setattr(onnx_fa.iree.run, "load_module", wrong)
    path = tiny.attention(tmp_path / "a.onnx")
    report = verify(path, seeds=1)
    bad = {c.what for c in report.checks if c.ok is False}
    assert bad == {"IREE: output o", "site softmax: kernel"}
    with pytest.raises(MismatchError, match="site softmax: kernel"):
        report.check()
    assert main(["verify", str(path), "--seeds", "1", "-q"]) == 1
    shown = capsys.readouterr()
    assert "MISMATCH" in shown.out and "onnx-fa: error:" in shown.err


@pytest.mark.parametrize(("lossy", "share"), [("tf32", 2.0**-10), ("tf32", 2.0**-5), ("", 2.0**-10)])
def test_tf32_has_a_row_of_its_own(lossy: str, share: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Operands that lose so large a share of themselves pass where tf32 was asked for, if it is no more than tf32 loses."""
    right, emit = onnx_fa.iree.run.load_module, onnx_fa.kernels.choose.emit_kernel

    def coarse(*args: Any, **options: Any) -> Any:
        call = right(*args, **options)
        steps = 2.0**23 * share

        def cut(x: Any) -> Any:
            return (x.view(np.uint32) & ~np.uint32(steps - 1)).view(np.float32)

        return lambda *arrays: call(*map(cut, arrays))

    monkeypatch.setattr(onnx_fa.iree.run, "load_module", coarse)
    monkeypatch.setattr(
        onnx_fa.iree.kernels, "emit_kernel", lambda *a, **k: dataclasses.replace(emit(*a, **k), lossy=lossy)
    )
    report = verify(tiny.attention(tmp_path / "a.onnx", s=37, mask=False), seeds=1)
    bad = {c.what for c in report.checks if c.ok is False and c.inputs.startswith("seed")}
    assert bad == (set() if lossy and share < 2.0**-9 else {"IREE: output o", "site softmax: kernel"})
    assert ("tf32 in 1 sites: output o differs by" in report.table()) == bool(lossy)
    assert all(c.allowed < 2e-4 for c in report.checks if "rewritten" in c.what and c.allowed and c.inputs == "seed 0")


def test_sees_nan_at_other_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    right = onnx_fa.iree.run.load_module

    def wrong(*args: Any, **options: Any) -> Any:
        def call(*arrays: Any) -> list[Any]:
            (out,) = right(*args, **options)(*arrays)
            out = out.copy()
            out[0, 0, 0, 0] = np.nan
            return [out]

        return call

    monkeypatch.setattr(onnx_fa.iree.run, "load_module", wrong)
    report = verify(tiny.attention(tmp_path / "a.onnx", mask=False), seeds=1)
    with pytest.raises(MismatchError, match="NaN"):
        report.check()


def test_sees_a_wrong_rewrite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A site whose spec says another scale than what runs: the float64 reference disagrees."""
    right = verify_module.attention
    monkeypatch.setattr(verify_module, "attention", lambda spec, *operands: right(spec, *operands) * (1 + 3e-5))
    report = verify(tiny.attention(tmp_path / "a.onnx", mask=False), seeds=1)
    bad = {c.what for c in report.checks if c.ok is False and c.inputs == "seed 0"}
    assert bad == {"site softmax: rewritten", "site softmax: kernel"}


def test_norm_error() -> None:
    want = np.array([3.0, 4.0, np.nan])
    assert norm_error(np.array([3.0, 4.5, np.nan], np.float32), want) == pytest.approx(0.1)
    assert norm_error(np.array([3.0, 4.5, 1.0], np.float32), want) == np.inf
    assert norm_error(np.zeros(2, np.float32), want) == np.inf


def test_inputs_stay_in_their_table(tmp_path: Path) -> None:
    model = io.load(tiny.encoder(tmp_path / "e.onnx", vocabulary=5))
    seen: set[int] = set()
    for seed in range(5):
        arrays = random_inputs(model, seed=seed)
        seen |= set(arrays["input_ids"].ravel().tolist())
        mask = arrays["attention_mask"]
        assert mask.dtype == np.int64 and set(np.unique(mask)) <= {0, 1} and (mask.sum(axis=1) >= 1).all()
    assert seen == set(range(5))
    empty = random_inputs(model, variant="empty")["attention_mask"]
    assert not empty[0].any() and empty[1].any()
    padded = random_inputs(model, variant="padded")["attention_mask"]
    assert (padded.sum(axis=1) <= padded.shape[1] // 4).all() and (padded.sum(axis=1) >= 1).all()


def test_inputs_are_seeded_and_share_dims(tmp_path: Path) -> None:
    model = io.load(tiny.attention(tmp_path / "a.onnx", s="S", skv="P + S", batch="batch"))
    assert symbols(model) == ("batch", "S", "P")
    shapes = input_shapes(model, {"P": 3}, default=5)
    assert shapes == {"q": (2, 2, 5, 16), "k": (2, 2, 8, 16), "v": (2, 2, 8, 16), "mask": (2, 1, 1, 8)}
    a, b, c = (random_inputs(model, seed=s) for s in (1, 1, 2))
    assert all(np.array_equal(a[n], b[n]) for n in a)
    assert not np.array_equal(a["q"], c["q"])
    with pytest.raises(ModelError, match="no such dim"):
        input_shapes(model, {"Z": 1})
    with pytest.raises(ModelError, match="comes out as -"):
        input_shapes(io.load(tiny.attention(tmp_path / "b.onnx", s="S - 4")), {"S": 1})


def test_failing_run_is_a_mismatch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    right = onnx_fa.iree.run.load_module

    def wrong(vmfb: Path, *args: Any, **options: Any) -> Any:
        def call(*arrays: Any) -> list[Any]:
            raise RunError("device lost")

        return call if vmfb.name == "model.vmfb" else right(vmfb, *args, **options)

    monkeypatch.setattr(onnx_fa.iree.run, "load_module", wrong)
    report = verify(tiny.attention(tmp_path / "a.onnx", mask=False), seeds=1)
    assert {c.what: c.note for c in report.checks if c.ok is False} == {"IREE: run": "device lost"}
    with pytest.raises(MismatchError, match="device lost"):
        report.check()


def test_a_note_says_that_a_model_draws_numbers(tmp_path: Path) -> None:
    """As slots that start anywhere: no runtime draws the numbers of another."""
    text = """<ir_version: 9, opset_import: ["" : 18]> g (float[4, 5] x) => (float[4, 5] y)
    { drawn = RandomNormalLike(x) y = Add(x, drawn) }"""
    proto = onnx.parser.parse_model(text)
    proto.graph.node[0].name = "start"
    report = verify(proto, seeds=1)
    assert any(note.startswith("RandomNormalLike 'start' draws random numbers") for note in report.notes)
    assert not any("draws" in note for note in verify(tiny.attention(tmp_path / "a.onnx"), seeds=1).notes)


def test_sizes_that_the_model_refuses_are_skipped(tmp_path: Path) -> None:
    """A table of 40 positions: 61 is skipped, and the table says so; a size that must be taken is refused."""
    path = tiny.attention(tmp_path / "a.onnx", s="S", mask=False)
    proto = onnx.load(path)
    table = numpy_helper.from_array(np.ones((40, 1), np.float32), "table")
    proto.graph.initializer.extend([table, numpy_helper.from_array(np.array([1]), "one")])
    proto.graph.node[-1].output[0] = "o0"
    proto.graph.node.extend(
        [
            onnx.helper.make_node("Shape", ["q"], ["length"], "length", start=2, end=3),
            onnx.helper.make_node("Sub", ["length", "one"], ["last"], "last"),
            onnx.helper.make_node("Gather", ["table", "last"], ["position"], "position"),
            onnx.helper.make_node("Add", ["o0", "position"], ["o"], "add_position"),
        ]
    )
    onnx.save(proto, path)
    report = verify(path, seeds=1)
    report.check()
    assert "inputs seed 1, length 61 skipped" in "\n".join(report.notes)
    assert "inputs seed 0, length 37 skipped" not in "\n".join(report.notes)
    with pytest.raises(RunError, match="--dim"):
        verify(path, seeds=1, dims={"S": 61})


def test_rows_masked_by_a_number_that_float64_sees_through(tmp_path: Path) -> None:
    """All keys at -1e9: in f32 the scores are lost beside it, in float64 they are not. The model's results decide there."""
    model = onnx.parser.parse_model(
        """<ir_version: 9, opset_import: ["": 18]>
        g (float[2,2,20,16] q, float[2,2,20,16] k, float[2,2,20,16] v, float[2,1,1,20] mask) => (float[2,2,20,16] o)
        <float one = {1}, float high = {1e9}> {
          kt = Transpose <perm=[0,1,3,2]> (k)
          s = MatMul (q, kt)
          drop = Sub (mask, one)
          low = Mul (drop, high)
          m = Add (s, low)
          p = Softmax <axis=-1> (m)
          o = MatMul (p, v)
        }"""
    )
    onnx.save(model, tmp_path / "a.onnx")
    report = verify(tmp_path / "a.onnx", seeds=1)
    report.check()
    unjudged = [c for c in report.checks if "f32 cannot see through" in c.note]
    assert unjudged and {c.inputs for c in unjudged} == {"empty"} and all(c.ok for c in unjudged)
    assert all(c.ok for c in report.checks if c.inputs == "empty" and "output" in c.what)


_SHORT = """<ir_version: 9, opset_import: ["": 18]>
g (float[2,2,20,16] q, float[2,2,20,16] k, float[2,2,20,16] v, int64[2] lengths) => (float[2,2,20,16] o)
<int64[4] column = {{2, 1, 1, 1}}, int64 zero = {{0}}, int64 one = {{1}}, int64 count = {{20}},
 int64 less = {{{less}}}, float out = {{-inf}}> {{
  kt = Transpose <perm=[0,1,3,2]> (k)
  s = MatMul (q, kt)
  at = Range (zero, count, one)
  left = Sub (lengths, less)
  ends = Reshape (left, column)
  hide = GreaterOrEqual (at, ends)
  m = Where (hide, out, s)
  p = Softmax <axis=-1> (m)
  o = MatMul (p, v)
}}"""


def test_lengths_are_drawn_so_that_keys_are_seen(tmp_path: Path) -> None:
    """A row of length 0 is NaN; some inputs must have rows of many keys."""
    onnx.save(onnx.parser.parse_model(_SHORT.format(less=0)), tmp_path / "a.onnx")
    verify(tmp_path / "a.onnx").check()
    drawn = [random_inputs(io.load(tmp_path / "a.onnx"), seed=s)["lengths"] for s in range(6)]
    assert max(int(x.max()) for x in drawn[1::2]) > 2 and max(int(x.max()) for x in drawn[::2]) == 1


def test_results_that_are_never_finite_show_nothing(tmp_path: Path) -> None:
    onnx.save(onnx.parser.parse_model(_SHORT.format(less=100)), tmp_path / "a.onnx")
    report = verify(tmp_path / "a.onnx")
    assert [c.inputs for c in report.checks if c.ok is False] == ["all"]
    with pytest.raises(MismatchError, match="no inputs that were tried give a finite value"):
        report.check()


@pytest.mark.parametrize(("narrow", "want"), [(False, "f64"), (True, "f32")])
def test_f64_is_held_to_f64(tmp_path: Path, narrow: bool, want: str) -> None:
    """A model of float64 throughout has float64's tolerance; one that computes in f32 in between has that of f32."""
    nodes = [
        onnx.helper.make_node("MatMul", ["q", "k"], ["s"]),
        onnx.helper.make_node("Cast", ["s"], ["t"], to=TensorProto.FLOAT if narrow else TensorProto.DOUBLE),
        onnx.helper.make_node("Cast", ["t"], ["u"], to=TensorProto.DOUBLE),
        onnx.helper.make_node("Softmax", ["u"], ["p"], axis=-1),
        onnx.helper.make_node("MatMul", ["p", "v"], ["o"]),
    ]
    shapes = {"q": [2, 5, 4], "k": [2, 4, 6], "v": [2, 6, 3]}
    inputs = [onnx.helper.make_tensor_value_info(n, TensorProto.DOUBLE, s) for n, s in shapes.items()]
    outputs = [onnx.helper.make_tensor_value_info("o", TensorProto.DOUBLE, [2, 5, 3])]
    path = tiny.save(tmp_path / "a.onnx", nodes, inputs, outputs)
    rewritten = io.load(path)
    rewrite_in_place(rewritten, "decomposed")
    assert _narrowest(io.load(path), rewritten) == want
