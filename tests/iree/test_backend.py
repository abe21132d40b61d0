"""The backend: limits, compiling, importing, legalizing, running and inspecting."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from onnx_fa import processes as limits
from onnx_fa.errors import CompileError, ModelError, OnnxFaError, RunError
from onnx_fa.forms.rewrite import rewrite
from onnx_fa.iree.compile import KEEP_F64, MODEL_FLAGS, compile_model, import_model
from onnx_fa.iree.compiler import COMPILER_ENV, iree_compile, merge_flags
from onnx_fa.iree.importer import import_mlir
from onnx_fa.iree.inspect import is_score_shape
from onnx_fa.iree.legalise.rules import legalize
from onnx_fa.iree.run import benchmark_module, load_module, run_module
from onnx_fa.iree.vmfb_facts import inspect_vmfb
from onnx_fa.spec.attention import AttentionSpec
from onnx_fa.spec.target import parse_target
from tests.support import ort_run
from tests.support.joined_models import join_models

TARGET = parse_target("cpu-host")
DOUBLE = """module {
  func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
    %y = arith.addf %x, %x : tensor<4xf32>
    return %y : tensor<4xf32>
  }
}
"""


def _python(code: str, **kwargs: Any) -> limits.Finished:
    return limits.run_limited([sys.executable, "-c", code], **{"timeout_s": 20, "memory_bytes": 1 << 30, **kwargs})


def test_limits_ok_and_failed() -> None:
    done = _python("import sys; print('out'); print('err', file=sys.stderr)")
    assert (done.ending, done.returncode, done.stdout, done.stderr) == ("ok", 0, "out\n", "err\n")
    failed = _python("raise SystemExit(3)")
    assert failed.ending == "failed"
    assert failed.describe(20, 1 << 30) == "failed with exit code 3"
    killed = _python("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)")
    assert "SIGSEGV" in killed.describe(20, 1 << 30)


@pytest.mark.parametrize("own_group", [False, True])
def test_limits_kill_the_whole_group(tmp_path: Path, own_group: bool) -> None:
    pid_file = tmp_path / "pid"
    child = (
        f"import subprocess; p = subprocess.Popen(['sleep', '60'], start_new_session={own_group});"
        f"open({str(pid_file)!r}, 'w').write(str(p.pid)); p.wait()"
    )
    start = time.monotonic()
    done = _python(child, timeout_s=1.5)
    assert done.ending == "timeout"
    assert time.monotonic() - start < 10
    grandchild = Path(f"/proc/{pid_file.read_text()}/stat")
    deadline = time.monotonic() + 5
    while grandchild.exists() and grandchild.read_text().rpartition(")")[2].split()[0] != "Z":
        assert time.monotonic() < deadline, "the grandchild is still running"
        time.sleep(0.05)


def test_limits_memory() -> None:
    done = _python("x = bytearray(400 << 20); import time; time.sleep(30)", memory_bytes=200 << 20)
    assert done.ending == "memory"
    assert done.peak_bytes > 200 << 20
    assert "0.195 GiB" in done.describe(20, 200 << 20)
    small = _python("x = bytearray(100 << 20)\nimport time; time.sleep(0.2)")
    assert 100 << 20 < small.peak_bytes < 160 << 20


def _fake_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str) -> None:
    script = tmp_path / "fake-compile"
    script.write_text(f"#!{sys.executable}\nimport sys, time\n{body}\n")
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv(COMPILER_ENV, str(script))


def test_compile_and_run(tmp_path: Path) -> None:
    out = tmp_path / "double.vmfb"
    iree_compile(DOUBLE, out, TARGET)
    assert os.listdir(tmp_path) == ["double.vmfb"]
    x = np.arange(4, dtype=np.float32)
    np.testing.assert_array_equal(load_module(out)(x)[0], 2 * x)
    np.testing.assert_array_equal(load_module(out.read_bytes())(x)[0], 2 * x)
    results, _ = run_module(out, [x], 1, function="main")
    np.testing.assert_array_equal(results[0], 2 * x)
    # A process this short may end before anyone looks at its memory a second time.
    assert max(run_module(out, [x], 1, function="main")[1] for _ in range(5)) > 1 << 20
    samples = benchmark_module(out, [x], function="main", repetitions=3)
    assert len(samples.ms) == 3
    assert 0 < samples.median < 1000
    with pytest.raises(RunError, match="no function 'f'"):
        load_module(out, function="f")
    with pytest.raises(RunError, match="main:"):
        load_module(out)(np.zeros((3, 3), np.float32))
    with pytest.raises(RunError, match="main:"):
        load_module(out)(np.zeros(4, "datetime64[s]"))  # a KeyError of the bindings


def test_f64_stays_f64(tmp_path: Path) -> None:
    """IREE would compute it in f32 by default, and take the callers' buffers of f64 for f32."""
    shape, out = [1, 2, 6, 8], tmp_path / "f64.vmfb"
    nodes = [
        helper.make_node("MatMul", ["q", "k"], ["s"]),
        helper.make_node("Softmax", ["s"], ["p"], axis=-1),
        helper.make_node("MatMul", ["p", "v"], ["o"]),
    ]
    shapes = {"q": shape, "k": [1, 2, 8, 6], "v": shape}
    inputs = [helper.make_tensor_value_info(n, TensorProto.DOUBLE, s) for n, s in shapes.items()]
    outputs = [helper.make_tensor_value_info("o", TensorProto.DOUBLE, shape)]
    model = helper.make_model(
        helper.make_graph(nodes, "g", inputs, outputs), opset_imports=[helper.make_opsetid("", 18)], ir_version=9
    )
    report = compile_model(model, out, TARGET)
    assert not report.sites and "f64" in report.misses[0].reason
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal(s) for s in shapes.values())
    e = np.exp(q @ k)
    want = e / e.sum(axis=-1, keepdims=True) @ v
    (have,) = load_module(out)(q, k, v)
    assert have.dtype == np.float64
    np.testing.assert_allclose(have, want, rtol=1e-13)
    for info in (*model.graph.input, *model.graph.output):
        info.type.tensor_type.elem_type = TensorProto.FLOAT
    assert not set(KEEP_F64) & set(import_model(model, TARGET).flags)


def test_compile_error_names_a_log(tmp_path: Path) -> None:
    out = tmp_path / "bad.vmfb"
    with pytest.raises(CompileError, match="failed with exit code 1") as info:
        iree_compile(DOUBLE.replace("addf", "nonsense"), out, TARGET)
    log = tmp_path / "bad.vmfb.log"
    assert "\n" not in str(info.value)
    assert str(log) in str(info.value)
    assert "nonsense" in log.read_text()
    assert "--iree-hal-target-device=local" in log.read_text()
    assert not out.exists()


def test_hung_compile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _fake_compiler(tmp_path, monkeypatch, "print('still thinking', file=sys.stderr, flush=True); time.sleep(60)")
    out = tmp_path / "x.vmfb"
    with pytest.raises(CompileError, match=r"stopped after 1 s.*x\.vmfb\.log"):
        iree_compile(DOUBLE, out, TARGET, timeout_s=1)
    assert "still thinking" in (tmp_path / "x.vmfb.log").read_text()
    assert not out.exists()


def test_compile_out_of_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _fake_compiler(tmp_path, monkeypatch, "x = bytearray(400 << 20); time.sleep(60)")
    with pytest.raises(CompileError, match=r"more than 0\.195 GiB"):
        iree_compile(DOUBLE, tmp_path / "x.vmfb", TARGET, memory_bytes=200 << 20)


def test_compiler_that_writes_nothing_or_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _fake_compiler(tmp_path, monkeypatch, "")
    with pytest.raises(CompileError, match="wrote no output"):
        iree_compile(DOUBLE, tmp_path / "x.vmfb", TARGET)
    monkeypatch.setenv(COMPILER_ENV, str(tmp_path / "absent"))
    with pytest.raises(CompileError, match="absent: cannot be run"):
        iree_compile(DOUBLE, tmp_path / "x.vmfb", TARGET)
    with pytest.raises(OnnxFaError, match="cannot be written"):
        iree_compile(DOUBLE, tmp_path / "no" / "x.vmfb", TARGET)


def test_merge_flags() -> None:
    assert merge_flags(("--a=1", "--b"), ("--a=2",), ("--c=3",)) == ("--a=2", "--b", "--c=3")


# --- models ---------------------------------------------------------------------------------------------------------


def _model(
    nodes: list[onnx.NodeProto],
    inputs: dict[str, list[int | str]],
    constants: dict[str, Any],
    output: list[int | str] | None,
    *,
    opset: int = 23,
    functions: list[onnx.FunctionProto] | None = None,
    domains: tuple[str, ...] = (),
) -> onnx.ModelProto:
    graph = helper.make_graph(
        nodes,
        "main_graph",
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in inputs.items()],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, output)],
        [numpy_helper.from_array(np.asarray(v), n) for n, v in constants.items()],
    )
    imports = [helper.make_opsetid("", opset), *(helper.make_opsetid(d, 1) for d in domains)]
    return helper.make_model(graph, opset_imports=imports, ir_version=10, functions=functions or [])


def _check(tmp_path: Path, *given: tuple[onnx.ModelProto, Sequence[Any]]) -> None:
    """Each of some models, compiled as one, agrees on its inputs with onnx's own reference implementation."""
    from onnx.reference import ReferenceEvaluator

    out = tmp_path / "m.vmfb"
    joined = join_models([model for model, _ in given], own_dims=True) if len(given) > 1 else given[0][0]
    iree_compile(import_mlir(joined, {}).text, out, TARGET, flags=MODEL_FLAGS["llvm-cpu"], timeout_s=120)
    found = load_module(out)(*(x for _, arrays in given for x in arrays))
    for (model, arrays), got in zip(given, found, strict=True):
        names = [i.name for i in model.graph.input]
        (want,) = ReferenceEvaluator(model).run(None, dict(zip(names, arrays, strict=True)))
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


def _random(*shape: int) -> Any:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


MERGED: tuple[tuple[list[int | str], list[int]], ...] = (
    (["b", "s", 4, 32], [-1, 128]),
    (["b", "s", 128], [-1, 64]),
    (["b", 4, "s", 32], [-1, 128]),
    (["b", "s", 4, 32], [-1, 32]),
    (["s", "b", 8], [2, -1]),
)


def test_reshapes_that_merge_dynamic_dims(tmp_path: Path) -> None:
    given = []
    for dims, target in MERGED:
        shape = [{"b": 2, "s": 5}.get(d, d) if isinstance(d, str) else d for d in dims]
        for zeros in ({}, {"allowzero": 1}):
            nodes = [
                helper.make_node("Reshape", ["x", "s"], ["r"], **zeros),
                helper.make_node("Mul", ["r", "r"], ["y"]),
            ]
            given.append((_model(nodes, {"x": dims}, {"s": target}, None), [_random(*(int(d) for d in shape))]))
    _check(tmp_path, *given)


def test_rms_normalization_and_rotary_embedding(tmp_path: Path) -> None:
    given = []
    for axis, scale in ((-1, _random(8)), (2, _random(3, 8))):
        node = helper.make_node("RMSNormalization", ["x", "w"], ["y"], axis=axis, epsilon=1e-3)
        given.append((_model([node], {"x": ["b", "s", 3, 8]}, {"w": scale}, None), [_random(2, 5, 3, 8)]))
    rotated: tuple[tuple[list[int | str], dict[str, int]], ...] = (
        ([2, 4, 5, 16], {}),
        ([2, 4, 5, 16], {"interleaved": 1}),
        ([2, 5, 64], {"num_heads": 4}),
        ([2, 4, 5, 24], {"rotary_embedding_dim": 16}),
    )
    constants = {"c": _random(20, 8), "s": _random(20, 8) * 0.5, "p": np.arange(10, dtype=np.int64).reshape(2, 5)}
    for shape, attrs in rotated:
        node = helper.make_node("RotaryEmbedding", ["x", "c", "s", "p"], ["y"], **attrs)
        given.append((_model([node], {"x": shape}, constants, shape), [_random(*(int(d) for d in shape))]))
    _check(tmp_path, *given)


TO_SHAPES_OF_THE_RUN: tuple[tuple[list[int | str], list[int | str], tuple[int, ...]], ...] = (
    (["b", "s", 6], ["b", 2, 2, 6], (3, 4, 6)),
    (["s", "b", "h", 3], ["s", "b", "d"], (5, 4, 2, 3)),
    (["s", "b", 6], ["s", "c", 3], (5, 3, 6)),
    (["c", "s", 3], ["b", 2, "s", 3], (6, 5, 3)),
    (["s", "b", 2, "e"], ["r", 6], (5, 4, 2, 3)),
    (["s", "b", 6], ["s", "b", 2, 3], (5, 4, 6)),
    (["s", "b", 2, 3], ["s", "b", 6], (5, 4, 2, 3)),
)


def test_reshapes_whose_target_only_a_run_knows(tmp_path: Path) -> None:
    """IREE takes free dims that are merged or split for others, some of them without a word."""
    given = []
    for dims, made, x in TO_SHAPES_OF_THE_RUN:
        known = {name: size for name, size in zip(dims, x, strict=True) if isinstance(name, str)}
        sizes = {"r": 20, "b": 3, "d": 6, "c": 2 * known.get("b", 3), **known}
        target = np.array([sizes[d] if isinstance(d, str) else d for d in made])
        node = helper.make_node("Reshape", ["x", "shape"], ["y"], "split")
        model = _model([node], {"x": dims, "shape": [len(made)]}, {}, made)
        model.graph.input[1].type.tensor_type.elem_type = TensorProto.INT64
        given.append((model, [_random(*x), target]))
    _check(tmp_path, *given)


def test_convolution_of_patches_is_a_matmul(tmp_path: Path) -> None:
    given, constants = [], {"w": _random(5, 3, 4, 2), "b": _random(5)}
    for batch in (2, "b"):
        node = helper.make_node("Conv", ["x", "w", "b"], ["y"], strides=[4, 2], kernel_shape=[4, 2])
        model = _model([node], {"x": [batch, 3, 8, 6]}, constants, None)
        assert "Conv" not in {n.op_type for n in legalize(model).graph.node}
        given.append((model, [_random(2, 3, 8, 6)]))
    _check(tmp_path, *given)
    overlapping = _model([helper.make_node("Conv", ["x", "w", "b"], ["y"])], {"x": [2, 3, 8, 6]}, constants, None)
    assert "Conv" in {n.op_type for n in legalize(overlapping).graph.node}


@pytest.mark.parametrize("batch", [2, "b"])
def test_patches_of_a_free_batch_compile(tmp_path: Path, batch: int | str) -> None:
    """One transposition of six dims in front of a packed matmul is an error of iree-compile where the batch is free."""
    node = helper.make_node("Conv", ["x", "w"], ["y"], strides=[8, 8], kernel_shape=[8, 8])
    model = _model([node], {"x": [batch, 3, 32, 32]}, {"w": _random(48, 3, 8, 8)}, None)
    assert "Conv" not in {n.op_type for n in legalize(model).graph.node}
    report = compile_model(model, tmp_path / "m.vmfb", TARGET)
    assert not report.note
    x = _random(2, 3, 32, 32)
    ort_run.assert_same(ort_run.run(model, {"x": x}), load_module(tmp_path / "m.vmfb")(x))


def test_what_fails_packed_is_compiled_without(tmp_path: Path) -> None:
    """Of a product that the compiler keeps: its weight is too narrow for a kernel of ours."""
    nodes = [
        helper.make_node("Reshape", ["x", "split"], ["a"]),
        helper.make_node("Transpose", ["a"], ["b"], perm=[0, 2, 4, 1, 3, 5]),
        helper.make_node("Reshape", ["b", "rows"], ["c"]),
        helper.make_node("MatMul", ["c", "w"], ["y"]),
    ]
    constants = {"split": np.array([0, 3, 4, 8, 4, 8]), "rows": np.array([0, 16, 192]), "w": _random(192, 7)}
    model = _model(nodes, {"x": ["b", 3, 32, 32]}, constants, ["b", 16, 7])
    report = compile_model(model, tmp_path / "m.vmfb", TARGET)
    assert "without packed matrix products" in report.note and "delinearize_index" in report.note
    assert "--iree-opt-data-tiling=false" in report.command
    x = _random(2, 3, 32, 32)
    ort_run.assert_same(ort_run.run(model, {"x": x}), load_module(tmp_path / "m.vmfb")(x))
    with pytest.raises(CompileError, match="delinearize_index"):
        compile_model(model, tmp_path / "m.vmfb", TARGET, flags=["--iree-opt-data-tiling"])


def test_matmul_of_many_dims_by_a_matrix_is_one_of_rows(tmp_path: Path) -> None:
    given = []
    for batch in (2, "b"):
        node = helper.make_node("MatMul", ["x", "w"], ["y"])
        model = _model([node], {"x": [batch, 3, 7, 6]}, {"w": _random(6, 5)}, [batch, 3, 7, 5])
        assert [n.op_type for n in legalize(model).graph.node] == ["Reshape", "MatMul", "Reshape"]
        given.append((model, [_random(2, 3, 7, 6)]))
    _check(tmp_path, *given)


@pytest.mark.parametrize(
    ("dims", "weight"), [(["b", "s", 7, 6], [6, 5]), ([2, 7, 6], [6, 5]), ([2, 3, 7, 6], [3, 6, 5])]
)
def test_other_matmuls_stay(dims: list[int | str], weight: list[int]) -> None:
    model = _model([helper.make_node("MatMul", ["x", "w"], ["y"])], {"x": dims}, {"w": _random(*weight)}, None)
    assert [n.op_type for n in legalize(model).graph.node] == ["MatMul"]


def test_operator_defined_as_a_function_is_expanded(tmp_path: Path) -> None:
    model = _model([helper.make_node("Swish", ["x"], ["y"], alpha=0.7)], {"x": [3, 4]}, {}, [3, 4], opset=24)
    assert "Swish" not in {n.op_type for n in legalize(model).graph.node}
    _check(tmp_path, (model, [_random(3, 4)]))


def test_local_functions_are_inlined(tmp_path: Path) -> None:
    body = helper.make_function(
        "local", "Twice", ["a"], ["b"], [helper.make_node("Add", ["a", "a"], ["b"])], [helper.make_opsetid("", 23)]
    )
    node = helper.make_node("Twice", ["x"], ["y"], domain="local")
    model = _model([node], {"x": [3]}, {}, [3], functions=[body], domains=("local",))
    _check(tmp_path, (model, [_random(3)]))


def test_a_slice_with_computed_bounds_keeps_its_other_dims() -> None:
    """IREE takes a dim for a broadcast one only where it is statically 1, so losing it breaks a later Expand."""
    nodes = [
        helper.make_node("Shape", ["x"], ["shape"]),
        helper.make_node("Gather", ["shape", "one"], ["end"]),
        helper.make_node("Slice", ["table", "zero", "end", "one"], ["part"]),
        helper.make_node("Expand", ["part", "shape"], ["y"]),
    ]
    constants = {"one": np.array([1]), "zero": np.array([0]), "table": _random(1, 48)}
    text = import_mlir(_model(nodes, {"x": ["b", "s"]}, constants, None), {}).text
    assert "!torch.vtensor<[1,?],f32>" in text


def test_unknown_domain_is_refused() -> None:
    node = helper.make_node("Foo", ["x"], ["y"], name="the_node", domain="acme")
    with pytest.raises(ModelError, match=r"'the_node'.*Foo.*'acme'"):
        import_mlir(_model([node], {"x": [3]}, {}, [3], domains=("acme",)), {})


def test_import_is_what_iree_import_onnx_gives() -> None:
    nodes = [helper.make_node("MatMul", ["x", "w"], ["m"]), helper.make_node("Relu", ["m"], ["y"])]
    text = import_mlir(_model(nodes, {"x": ["b", 4]}, {"w": _random(4, 3)}, ["b", 3]), {}).text
    assert "func.func @main_graph(%arg0: !torch.vtensor<[?,4],f32>) -> !torch.vtensor<[?,3],f32>" in text
    assert 'torch.operator "onnx.MatMul"' in text
    assert "dialect_resources" in text


def _attention(S: int, D: int = 16, H: int = 2, *, foreign: bool = False) -> onnx.ModelProto:
    """softmax(q k^T) v; `foreign` puts something no kernel knows between score and softmax."""
    nodes = [
        helper.make_node("Transpose", ["k"], ["kt"], perm=[0, 1, 3, 2]),
        helper.make_node("MatMul", ["q", "kt"], ["s0"], name="scores"),
        helper.make_node("Mul", ["s0", "c"], ["s1"]),
        helper.make_node("CumSum", ["s1", "axis"], ["s2"]) if foreign else helper.make_node("Identity", ["s1"], ["s2"]),
        helper.make_node("Softmax", ["s2"], ["p"], axis=-1, name="softmax"),
        helper.make_node("MatMul", ["p", "v"], ["y"]),
    ]
    shape: list[int | str] = [1, H, S, D]
    constants = {"c": np.float32(D**-0.5), "axis": np.int64(3)}
    return _model(nodes, dict.fromkeys("qkv", shape), constants, shape, opset=18)


def _softmax_attention(q: Any, k: Any, v: Any) -> Any:
    s = (q @ k.transpose(0, 1, 3, 2)).astype(np.float64) * q.shape[-1] ** -0.5
    p = np.exp(s - s.max(-1, keepdims=True))
    return p / p.sum(-1, keepdims=True) @ v


def test_a_fused_site_is_reported_as_such(tmp_path: Path) -> None:
    out = tmp_path / "m.vmfb"
    report = compile_model(_attention(64), out, TARGET, keep_intermediates=tmp_path / "kept")
    (site,) = report.sites
    assert (site.fused, site.dispatches) == (True, 1)
    assert site.largest_buffer_bytes is not None
    assert site.largest_buffer_bytes < 131072
    assert site.tiles
    assert report.misses == ()
    assert report.inspection.buffers == ()
    assert report.vmfb_bytes == out.stat().st_size
    kept = {p.name for p in (tmp_path / "kept").iterdir()}
    assert kept == {"site.onnx", "imported.mlir", "phases"}
    kernels = {k.name for k in import_model(_attention(64), TARGET).kernels.values()}
    assert set(inspect_vmfb(out).kernels()) == kernels
    q, k, v = (np.random.default_rng(i).standard_normal((1, 2, 64, 16)).astype(np.float32) for i in range(3))
    np.testing.assert_allclose(load_module(out)(q, k, v)[0], _softmax_attention(q, k, v), atol=1e-5)


def test_an_unfused_model_shows_its_score_buffer(tmp_path: Path) -> None:
    report = compile_model(_attention(64, foreign=True), tmp_path / "m.vmfb", TARGET)
    assert report.sites == ()
    assert len(report.misses) == 1
    assert any(b.bytes == 2 * 64 * 64 * 4 for b in report.inspection.buffers), report.inspection.buffers
    assert inspect_vmfb(tmp_path / "m.vmfb").kernels() == ()


def test_the_blocked_form_is_refused_in_one_line() -> None:
    blocked, report = rewrite(_attention(64), "blocked")
    assert len(report.sites) == 1
    with pytest.raises(ModelError, match="in the blocked form"):
        import_model(blocked, TARGET)


def test_a_failed_model_compile_leaves_only_its_log(tmp_path: Path) -> None:
    with pytest.raises(CompileError, match=r"m\.vmfb\.log"):
        compile_model(_attention(64), tmp_path / "m.vmfb", TARGET, flags=("--iree-no-such-flag",))
    assert sorted(os.listdir(tmp_path)) == ["m.vmfb.failed.mlir", "m.vmfb.log"]


def test_a_stack_beyond_the_worker_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("onnx_fa.iree.stacks.STACK_BYTES", 1000)
    with pytest.raises(CompileError, match="bytes of stack"):
        compile_model(_attention(64), tmp_path / "m.vmfb", TARGET)
    assert os.listdir(tmp_path) == []


def test_score_shape() -> None:
    spec = AttentionSpec("f32", Hq=12, Hkv=12, Sq=1024, Skv=1024, D=64, Dv=64, batch=(1,))
    assert is_score_shape((12, 1024, 1024), spec)
    assert is_score_shape((12288, 1024), spec)
    assert not is_score_shape((1024, 1024), spec)  # an activation with hidden = 1024
    assert not is_score_shape((1024, 12288), spec)
    assert not is_score_shape((12, 1024, None), spec)


def test_inspect_of_something_else(tmp_path: Path) -> None:
    path = tmp_path / "x.vmfb"
    path.write_bytes(b"not a module")
    with pytest.raises(RunError, match="not a compiled IREE module"):
        inspect_vmfb(path)
    with pytest.raises(RunError, match="not an IREE module"):
        load_module(path)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_while_a_program_starts_ends_it(number: signal.Signals, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between its start and its name in this process it must not be left running."""
    started: list[int] = []

    class Slow(subprocess.Popen[bytes]):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            started.append(self.pid)
            signal.raise_signal(number)

    def stop(*_: object) -> None:
        raise SystemExit(99)

    before = signal.signal(number, stop)
    monkeypatch.setattr(limits.subprocess, "Popen", Slow)
    try:
        with pytest.raises(SystemExit, match="99"):
            limits.run_limited(["sleep", "60"], timeout_s=60, memory_bytes=1 << 30)
    finally:
        signal.signal(number, before)
    with pytest.raises(ProcessLookupError):
        os.kill(started[0], 0)
