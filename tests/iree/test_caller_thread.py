"""Short programs ask for the thread that calls: what work is reckoned, what a module says, and who follows it."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto as T
from onnx import helper

import onnx_fa
from onnx_fa.benchmark import models
from onnx_fa.benchmark.case_bench import CaseBench
from onnx_fa.benchmark.case_result import QUICK
from onnx_fa.errors import RunError
from onnx_fa.forms.plain import plain_model
from onnx_fa.graph.io import load, save
from onnx_fa.iree import drivers, run
from onnx_fa.iree.caller_thread import SHORT_US, device_of_work, program_us, site_device, site_us
from onnx_fa.iree.drivers import CALLER, WORKERS, preferred_device
from onnx_fa.spec.attention import AttentionSpec
from onnx_fa.spec.cases import case
from onnx_fa.spec.linear import LinearSpec
from onnx_fa.spec.target import parse_target
from onnx_fa.verifier.case_checks import verify_case
from onnx_fa.verifier.once import check_once
from tests.support.cli_process import run_main

SHORT = AttentionSpec(dtype="f32", batch=(1,), Hq=4, Hkv=2, Sq=1, Skv=100, D=32, Dv=32)
LONG = AttentionSpec(dtype="f32", batch=(1,), Hq=4, Hkv=2, Sq=256, Skv=256, D=32, Dv=32)


def test_work_of_a_site() -> None:
    """By its products, or by what it reads, whichever takes longer; nothing is said of sizes that are not known."""
    assert site_us(LONG) == 2 * 4 * 256 * 256 * 64 / 60e3
    decoding = AttentionSpec(dtype="f32", batch=(1,), Hq=8, Hkv=8, Sq=1, Skv=4000, D=64, Dv=64)
    read = 4 * (2 * 8 * 4000 * 64 + 8 * 64) / 25e3
    assert site_us(decoding) == pytest.approx(read)
    free = AttentionSpec(dtype="f32", batch=(1,), Hq=8, Hkv=8, Sq=1, Skv="keys", D=64, Dv=64)
    assert site_us(free) is None
    assert site_us(LinearSpec((1,), 100, 200, "f32")) == 4 * 100 * 200 / 25e3


def test_who_computes() -> None:
    assert [device_of_work(us) for us in (None, 1.0, SHORT_US, SHORT_US + 1)] == [WORKERS, CALLER, CALLER, WORKERS]
    cpu, gpu = parse_target("cpu-avx2"), parse_target("cuda")
    assert [site_device(s, cpu) for s in (SHORT, LONG)] == [CALLER, WORKERS]
    assert site_device(SHORT, gpu) == gpu.device


def graph(node: onnx.NodeProto, inputs: Sequence[Sequence[int | str]], out: Sequence[int]) -> onnx.ModelProto:
    given = [helper.make_tensor_value_info(n, T.FLOAT, s) for n, s in zip(node.input, inputs, strict=True)]
    made = [helper.make_tensor_value_info(node.output[0], T.FLOAT, out)]
    return helper.make_model(helper.make_graph([node], "g", given, made))


@pytest.mark.parametrize(
    ("op", "inputs", "out", "flops"),
    [
        ("MatMul", [(2, 30, 400), (400, 500)], (2, 30, 500), 2 * 2 * 30 * 400 * 500),
        ("MatMul", [(9, 30, 400), (9, 400, 500)], (9, 30, 500), 2 * 9 * 30 * 400 * 500),
        ("Gemm", [(30, 400), (400, 500)], (30, 500), 2 * 30 * 400 * 500),
        ("Conv", [(1, 8, 20, 20), (16, 8, 3, 3)], (1, 16, 18, 18), 4 * 2 * 16 * 18 * 18 * 8 * 9),
        ("Add", [(100, 100), (100, 100)], (100, 100), 0),
    ],
)
def test_work_of_nodes(op: str, inputs: list[tuple[int, ...]], out: tuple[int, ...], flops: int) -> None:
    model = graph(helper.make_node(op, ["a", "b"], ["y"]), inputs, out)
    moved = 4 * sum(int(np.prod(s)) for s in (*inputs, out)) / 25e3
    assert program_us(model, {}) == pytest.approx(max(flops / 60e3, moved))


def test_work_that_is_not_known() -> None:
    """Sizes that are known at run time only, recurrences, and results without a type."""
    assert program_us(graph(helper.make_node("Add", ["a", "b"], ["y"]), [("n", 4), (1, 4)], (1, 4)), {}) is None
    assert program_us(graph(helper.make_node("LSTM", ["a", "b"], ["y"]), [(1, 4), (1, 4)], (1, 4)), {}) is None
    untyped = graph(helper.make_node("Relu", ["a"], ["y"]), [(1, 4)], (1, 4))
    untyped.graph.node.insert(0, helper.make_node("Relu", ["a"], ["between"]))
    assert program_us(untyped, {}) is None


@pytest.fixture(scope="module")
def modules(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """One of little work and one of more."""
    folder = tmp_path_factory.mktemp("modules")
    for name, spec in (("short", SHORT), ("long", LONG)):
        save(plain_model(spec), folder / f"{name}.onnx")
        onnx_fa.compile(folder / f"{name}.onnx", folder / f"{name}.vmfb")
    return folder / "short.vmfb", folder / "long.vmfb"


def test_what_a_module_asks_for(modules: tuple[Path, Path], tmp_path: Path) -> None:
    short, _ = modules
    assert [preferred_device(m) for m in modules] == [CALLER, WORKERS]
    assert preferred_device(short.read_bytes()) == CALLER
    assert [preferred_device(short, d) for d in (WORKERS, CALLER, "cuda")] == [CALLER, CALLER, "cuda"]
    function = run.function_of(short)
    assert preferred_device(short, WORKERS, function) == CALLER and preferred_device(short, WORKERS, "no") == WORKERS
    (tmp_path / "text.vmfb").write_text("no module")
    assert [preferred_device(tmp_path / n) for n in ("text.vmfb", "nothing.vmfb")] == [WORKERS, WORKERS]


def test_a_timed_module_is_read_once(modules: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """Its function and its driver come of one reading."""
    read, data = list[Path](), Path.read_bytes

    def seen(path: Path) -> bytes:
        read.append(path)
        return data(path)

    def no_run(*args: object, **options: object) -> None:
        raise RunError("not run")

    for vmfb, device in zip(modules, (CALLER, WORKERS), strict=True):
        function = run.function_of(vmfb)
        with monkeypatch.context() as m:
            m.setattr(Path, "read_bytes", seen)
            timed = models._Modules(vmfb.parent, [], [], 0, 1, {"device": WORKERS}, lambda message: None)
            m.setattr(models, "run_module", no_run)
            timed.add_ours(vmfb.with_suffix(".onnx"), parse_target("cpu-host"), vmfb)
        assert timed.options["device"] == device and [p.suffix for p in read] == [".vmfb"]
        assert run.exported_by(vmfb) == (function, device) and run.exported_by(vmfb, "cuda") == (function, "cuda")
        read.clear()


def test_what_is_not_read(modules: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """Large modules, and any where the runtime is not installed."""
    with monkeypatch.context() as m:
        m.setattr(drivers, "_LARGE", 10)
        assert preferred_device(modules[0]) == WORKERS
    monkeypatch.setitem(sys.modules, "iree.runtime", None)
    assert preferred_device(modules[0]) == WORKERS


def test_runs_where_it_is_asked_for(modules: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """The same numbers by both drivers; who names a driver gets that."""
    used, bind = list[str](), run.bind_module

    def seen(vmfb: Path | bytes, device: str, *rest: object) -> run.Bound:
        used.append(device)
        return bind(vmfb, device, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(run, "bind_module", seen)
    rng = np.random.default_rng(0)
    operands = [rng.standard_normal(s).astype(np.float32) for s in SHORT.operand_shapes]
    results = [onnx_fa.run(modules[0], *operands, device=d)[0] for d in (None, WORKERS, CALLER)]
    assert used == [CALLER, WORKERS, CALLER]
    np.testing.assert_array_equal(results[0], results[2])
    np.testing.assert_allclose(results[0], results[1], rtol=1e-5, atol=1e-6)


def test_verify_runs_where_it_is_asked_for(modules: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """Of models and their kernels alone, of cases, and of `compile --check`: what a user runs is what is checked."""
    used, bind = list[str](), run.bind_module

    def seen(vmfb: Path | bytes, device: str, *rest: object) -> run.Bound:
        used.append(device)
        return bind(vmfb, device, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(run, "bind_module", seen)
    host = parse_target("cpu-host")
    for vmfb, device in zip(modules, (CALLER, WORKERS), strict=True):
        path = vmfb.with_suffix(".onnx")
        onnx_fa.verify(path, host, module=vmfb, seeds=1).check()
        check_once(load(path), vmfb, host)
        assert used == [device] * 3  # the model, its kernel, and the check
        used.clear()
    verify_case(case("x", dtype="f32", batch=(1,), Hq=4, Hkv=2, Sq=1, Skv=100, D=32, Dv=32), host).check()
    assert used == [CALLER]


def test_commands(modules: tuple[Path, Path]) -> None:
    """`compile` prints the driver, `run` follows the module."""
    for model, device in (("short", CALLER), ("long", WORKERS)):
        path = modules[0].with_name(f"{model}.onnx")
        done = run_main("onnx_fa.cli.command", ["compile", path, "-o", path.with_name("again.vmfb")], path.parent)
        assert done.returncode == 0 and re.findall(r"--device=(\S+)", done.stderr) == [device, device], done.stderr
    shapes = ["x".join(map(str, s)) + "xf32" for s in SHORT.operand_shapes]
    args = ["run", modules[0], *(f"--input={s}" for s in shapes)]
    done = run_main("onnx_fa.cli.command", args, modules[0].parent)
    assert done.returncode == 0 and "output 0: 1x4x1x32xfloat32" in done.stdout, done.stderr


def test_benchmarks_use_one_driver(tmp_path: Path) -> None:
    """All programs of a case run on the driver that its work asks for."""
    decode = case("x", dtype="f32", batch=(1,), Hq=4, Hkv=2, Sq=1, Skv=100, D=32, Dv=32)
    bench = CaseBench(decode, parse_target("cpu-host"), QUICK, tmp_path, 0, lambda message: None)
    assert bench.device == CALLER
