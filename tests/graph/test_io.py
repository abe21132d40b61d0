"""Reading and writing models: external data, subgraphs, whole-or-nothing files, the memory of the blocked form."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnx import TensorProto as T
from onnx import helper as h
from onnx import numpy_helper as nh

from onnx_fa.errors import ModelError, OnnxFaError
from onnx_fa.forms.rewrite import explain, rewrite
from onnx_fa.graph.io import load, save, to_proto
from onnx_fa.iree.compile import compile_model
from tests.support.ort_run import assert_same, run
from tests.support.spellings import Graph, Spelling, build, feeds


def with_weights() -> onnx.ModelProto:
    g = Graph(18)
    x = g.input("x", [2, 5, 32])
    w = [g.const(np.random.default_rng(i).standard_normal((32, 32))) for i in range(3)]
    split = g.const([0, 0, 4, 8], np.int64)
    q, k, v = (g.op("Transpose", g.op("Reshape", g.op("MatMul", x, m), split), perm=[0, 2, 1, 3]) for m in w)
    score = g.op("MatMul", q, g.op("Transpose", k, perm=[0, 1, 3, 2]))
    p = g.op("Softmax", g.op("Mul", score, g.const(8**-0.5)), axis=-1)
    g.nodes.append(h.make_node("MatMul", [p, v], ["o"], name="pv"))
    return g.model({"o": ([2, 4, 5, 8], T.FLOAT)})


def test_external_data_stays_external(tmp_path: Path) -> None:
    model = with_weights()
    path = tmp_path / "in" / "m.onnx"
    path.parent.mkdir()
    onnx.save(with_weights(), path, save_as_external_data=True, location="w.bin", size_threshold=0)
    want = run(model, feeds(model))
    new, report = rewrite(path)
    assert len(report.sites) == 1
    out = tmp_path / "out" / "m.fa.onnx"
    out.parent.mkdir()
    save(new, out)
    assert sorted(p.name for p in out.parent.iterdir()) == ["m.fa.onnx", "m.fa.onnx.data"]
    onnx.checker.check_model(out)
    have = ort.InferenceSession(out).run(None, feeds(model))
    assert_same(want, have)


def test_external_data_beside_the_result_is_shared(tmp_path: Path) -> None:
    model = with_weights()
    path = tmp_path / "m.onnx"
    onnx.save(with_weights(), path, save_as_external_data=True, location="w.bin", size_threshold=0)
    want, size = run(model, feeds(model)), (tmp_path / "w.bin").stat().st_size
    for out in (tmp_path / "m.fa.onnx", path):
        save(rewrite(path)[0], out)
        assert sorted(p.name for p in tmp_path.iterdir()) == sorted({"m.onnx", "w.bin", out.name, "m.fa.onnx"})
        assert (tmp_path / "w.bin").stat().st_size == size
        assert_same(want, ort.InferenceSession(out).run(None, feeds(model)))


def test_missing_and_short_external_data_are_named(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(with_weights(), path, save_as_external_data=True, location="w.bin", size_threshold=0)
    (tmp_path / "w.bin").write_bytes(b"\0" * 16)
    with pytest.raises(ModelError, match="truncated"):
        load(path)
    (tmp_path / "w.bin").unlink()
    with pytest.raises(ModelError, match=r"missing: no file .*w\.bin"):
        load(path)


def test_broken_models_give_one_clear_line(tmp_path: Path) -> None:
    good = build(Spelling())
    text = tmp_path / "a.onnx"
    text.write_text("hello, this is no protobuf")
    cut = tmp_path / "cut.onnx"
    cut.write_bytes(good.SerializeToString()[:-40])
    empty = tmp_path / "empty.onnx"
    empty.write_bytes(b"")
    no_opset = onnx.ModelProto.FromString(good.SerializeToString())
    del no_opset.opset_import[:]
    cyclic = onnx.ModelProto.FromString(good.SerializeToString())
    cyclic.graph.node[0].input[0] = cyclic.graph.node[-1].output[0]
    for bad, word in (
        (text, "not an ONNX model"),
        (cut, "truncated"),
        (empty, "empty"),
        (tmp_path, "folder"),
        (tmp_path / "none.onnx", "cannot be read"),
        (no_opset, "opset"),
        (cyclic, "cycle"),
    ):
        with pytest.raises(ModelError, match=word) as e:
            rewrite(bad)
        assert "\n" not in str(e.value)


def test_nothing_half_written(tmp_path: Path) -> None:
    model = load(with_weights())
    with pytest.raises(OnnxFaError, match="cannot be written"):
        save(model, tmp_path / "no" / "such" / "folder.onnx")
    assert list(tmp_path.iterdir()) == []


def test_takes_and_gives_every_kind_of_model(tmp_path: Path) -> None:
    proto = build(Spelling())
    path = tmp_path / "m.onnx"
    onnx.save(proto, path)
    assert isinstance(rewrite(proto)[0], onnx.ModelProto)
    for given in (path, str(path), ir.from_proto(proto)):
        assert isinstance(rewrite(given)[0], ir.Model)


def test_attention_in_a_branch_is_rewritten() -> None:
    inner = build(Spelling())
    g = inner.graph
    branch = h.make_graph(
        list(g.node), "then", [], [h.make_tensor_value_info("o", T.FLOAT, [2, 4, 7, 6])], list(g.initializer)
    )
    zeros = h.make_node("Constant", [], ["z"], value=nh.from_array(np.zeros((2, 4, 7, 6), np.float32)))
    other = h.make_graph([zeros], "else", [], [h.make_tensor_value_info("z", T.FLOAT, [2, 4, 7, 6])])
    node = h.make_node("If", ["c"], ["y"], name="if", then_branch=branch, else_branch=other)
    inputs = [h.make_tensor_value_info("c", T.BOOL, []), *g.input]
    graph = h.make_graph([node], "main", inputs, [h.make_tensor_value_info("y", T.FLOAT, [2, 4, 7, 6])])
    model = h.make_model(graph, opset_imports=[h.make_opsetid("", 18)], ir_version=10)
    onnx.checker.check_model(model)
    new, report = rewrite(model)
    assert len(report.sites) == 1
    onnx.checker.check_model(new)
    values = feeds(build(Spelling()))
    for c in (True, False):
        assert_same(run(model, {"c": np.array(c), **values}), run(new, {"c": np.array(c), **values}))


def test_initializers_nobody_reads_are_kept() -> None:
    model = build(Spelling())
    model.graph.initializer.append(nh.from_array(np.ones(3, np.float32), "spare"))
    assert "spare" in {i.name for i in rewrite(model)[0].graph.initializer}


def test_a_softmax_inside_a_function_is_reported() -> None:
    body = [h.make_node("Softmax", ["a"], ["b"], name="sm", axis=-1)]
    function = h.make_function("local", "F", ["a"], ["b"], body, [h.make_opsetid("", 18)])
    info = [h.make_tensor_value_info(n, T.FLOAT, [2, 3]) for n in "xy"]
    graph = h.make_graph([h.make_node("F", ["x"], ["y"], domain="local")], "g", [info[0]], [info[1]])
    model = h.make_model(
        graph, functions=[function], opset_imports=[h.make_opsetid("", 18), h.make_opsetid("local", 1)], ir_version=10
    )
    (miss,) = explain(model).misses
    assert miss.node.endswith("sm") and "graph output" in miss.reason


# The peak is VmHWM, which exec resets. (ru_maxrss starts at the test process's size after vfork: over 1 GB late in a run.)
_MEASURE = """
import sys
import numpy as np, onnxruntime as ort
o = ort.SessionOptions(); o.intra_op_num_threads = 2
s = ort.InferenceSession(sys.argv[1], o)
rng = np.random.default_rng(0)
x = {n: rng.standard_normal((1, 2, 16384, 64), dtype=np.float32) for n in "qkv"}
y = s.run(None, x)[0]
assert np.isfinite(y).all()
print(next(int(line.split()[1]) // 1024 for line in open("/proc/self/status") if line.startswith("VmHWM")))
"""


@pytest.mark.slow
def test_blocked_form_needs_little_memory(tmp_path: Path) -> None:
    """S=16384, H=2, D=64: one score tensor alone would take 2.1 GB."""
    model = build(Spelling(B=1, Hq=2, Hkv=2, Sq=16384, Skv=16384, D=64, Dv=64))
    new, _ = rewrite(model, "blocked")
    path = tmp_path / "blocked.onnx"
    onnx.save(new, path)
    done = subprocess.run(
        [sys.executable, "-c", _MEASURE, str(path)], capture_output=True, text=True, timeout=300, check=True
    )
    assert int(done.stdout) < 1000, f"{done.stdout.strip()} MB"


def test_masks_in_external_data_compile(tmp_path: Path) -> None:
    """Matching reads a constant mask from the file of external data; the file must still be readable, and closable, later."""
    model = build(Spelling(mask="const_causal", Sq=16, Skv=16))
    path = tmp_path / "m.onnx"
    onnx.save(
        build(Spelling(mask="const_causal", Sq=16, Skv=16)),
        path,
        save_as_external_data=True,
        location="w",
        size_threshold=0,
    )
    new, report = rewrite(path)
    assert [type(m).__name__ for m in report.sites[0].spec.masks] == ["Causal"]
    assert_same(run(model, feeds(model)), run(to_proto(new), feeds(model)))
    compiled = compile_model(path, tmp_path / "m.vmfb")
    assert [s.fused for s in compiled.sites] == [True]
