"""Weights outside the module: what the importer asks an archive for, the archive, and how modules find it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import iree.runtime as rt
import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import pytest
from iree.compiler.tools.import_onnx import __main__ as stock
from onnx import TensorProto, helper, numpy_helper

from onnx_fa.cli.command import main
from onnx_fa.errors import ModelError, OnnxFaError, RunError
from onnx_fa.iree.archives import archive_of, copy_module
from onnx_fa.iree.compile import compile_model, import_model
from onnx_fa.iree.run import benchmark_module, bind_module, load_module, run, tool_path
from onnx_fa.iree.weights import Externalize, Parameter, hold_weights, write_archive
from tests.support import tiny

RNG = np.random.default_rng(0)


def entries(path: Path) -> dict[str, bytes]:
    """What an archive holds."""
    index = rt.ParameterIndex()
    index.load(str(path))
    return {key: bytes(memoryview(rt.parameter_index_entry_as_numpy_flat_ndarray(e))) for key, e in index.items()}


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Without attention, and with weights too narrow for a kernel, so that iree-import-onnx writes the same; with names that MLIR
    and archives write in other ways."""
    folder = tmp_path_factory.mktemp("plain")
    weights = {
        "a::w": RNG.standard_normal((30, 7)).astype(np.float32),
        "small": RNG.standard_normal(7).astype(np.float32),
        'odd "name" \\ é': RNG.integers(-100, 100, (7, 15)).astype(np.int8),
        "halves": RNG.standard_normal((15, 7)).astype(np.float16),
    }
    nodes = [
        helper.make_node("MatMul", ["x", "a::w"], ["h0"], "first"),
        helper.make_node("Add", ["h0", "small"], ["h1"], "bias"),
        helper.make_node("Cast", ['odd "name" \\ é'], ["w1"], "wide", to=TensorProto.FLOAT),
        helper.make_node("MatMul", ["h1", "w1"], ["h2"], "second"),
        helper.make_node("Cast", ["halves"], ["w2"], "wider", to=TensorProto.FLOAT),
        helper.make_node("MatMul", ["h2", "w2"], ["h3"], "third"),
        helper.make_node("Add", ["h3", "last"], ["y"], "sum"),
    ]
    inputs = [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in (("x", [5, 30]), ("last", [7]))]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, [5, 7])]
    constants = [numpy_helper.from_array(w, name) for name, w in weights.items()]
    return tiny.save(folder / "plain.onnx", nodes, inputs, outputs, constants)


SAID = {
    "nothing": ["--externalize-params"],
    "all": ["--externalize-params", "--num-elements-threshold", "0"],
    "none": ["--externalize-params", "--num-elements-threshold", "1000"],
    "inside": [],
    "not-saved": ["--externalize-params", "--no-save-params"],
    "scope": ["--externalize-params", "--params-scope", "other"],
    "inputs": ["--externalize-params", "--externalize-inputs-threshold", "1"],
    "elsewhere": ["--externalize-params", "--save-params-to", "CUSTOM"],
    "batches": ["--externalize-params", "--param-gb-threshold", "1.0"],
    "large": ["--externalize-params", "--large-model"],
    "unverified": ["--no-verify"],
    "no-data-prop": ["--no-data-prop"],
    "opset": ["--opset-version", "21"],
}
"""What a script says to iree-import-onnx, by name."""


@pytest.mark.parametrize("said", SAID.values(), ids=SAID)
def test_options_mean_what_they_mean_to_iree_import_onnx(plain: Path, tmp_path: Path, said: list[str]) -> None:
    texts, archives = [], []
    for name, tool in (("theirs", _stock), ("ours", main)):
        folder = tmp_path / name
        folder.mkdir()
        own = [str(folder / "custom.irpa") if word == "CUSTOM" else word for word in said]
        assert not tool([*(["import"] if tool is main else []), str(plain), "-o", str(folder / "m.mlir"), *own])
        texts.append((folder / "m.mlir").read_text())
        archives.append({p.name: entries(p) for p in folder.glob("*.irpa")})
    theirs, ours = archives
    assert ours == theirs
    assert _facts(texts[0]) == _facts(texts[1])


def _stock(argv: list[str]) -> Any:
    return stock.main(stock.parse_arguments(argv))


def _facts(text: str) -> tuple[Any, ...]:
    """The function's type, opset, number of loads and names of parameters: how the operators are written differs on purpose."""
    signature = re.search(r"func.func @(\S+)\((.*?)\) -> (.*?) attributes", text)
    assert signature is not None
    arguments = re.sub(r"%\w+", "%", signature[2])
    named = sorted(re.findall(r"#stream.parameter.named<(.*?)> : (tensor<\S+>)", text))
    opset = re.search(r"opset_version = (\d+)", text)
    return signature[1], arguments, signature[3], named, text.count("util.global.load"), opset and opset[1]


def test_a_program_goes_to_standard_output(plain: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert not main(["import", str(plain)])
    assert "func.func @main_graph" in capsys.readouterr().out
    assert main(["import", str(plain), "--externalize-params"]) in (1, 2)
    assert "--save-params-to FILE or --no-save-params" in capsys.readouterr().err


def test_data_may_lie_in_another_folder(plain: Path, tmp_path: Path) -> None:
    away = tmp_path / "away"
    away.mkdir()
    onnx.save(onnx.load(plain), away / "m.onnx", save_as_external_data=True, location="m.data", size_threshold=100)
    model = tmp_path / "m.onnx"
    model.write_bytes((away / "m.onnx").read_bytes())
    assert main(["import", str(model), "-o", str(tmp_path / "m.mlir")]) in (1, 2)  # no data beside it
    for flags in ([], ["--externalize-params"]):
        assert not main(["import", str(model), "-o", str(tmp_path / "m.mlir"), "--data-dir", str(away), *flags])
    assert set(entries(tmp_path / "m_params.irpa")) == {"a__w", 'odd "name" \\ é', "halves"}


@pytest.mark.parametrize("first", [-1, 2, 7])
def test_inputs_that_there_are_not(plain: Path, first: int) -> None:
    with pytest.raises(ModelError, match=f"input {first} cannot be a parameter: the model has 2"):
        import_model(str(plain), externalize=Externalize(first_input=first))


def test_an_input_of_no_size_is_no_parameter(tmp_path: Path) -> None:
    model = tiny.attention(tmp_path / "a.onnx", s="S")
    with pytest.raises(ModelError, match=r"input 'q'.*static"):
        import_model(str(model), externalize=Externalize(first_input=0))


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.encoder(tmp_path_factory.mktemp("encoder") / "encoder.onnx", d=160)


@pytest.fixture(scope="module")
def compiled(encoder: Path) -> dict[str, Path]:
    """The encoder's modules by where its weights are."""
    made = {word: encoder.with_name(f"{word}.vmfb") for word in ("embed", "archive")}
    for word, module in made.items():
        report = compile_model(encoder, module, parameters=word)
        assert report.archive == (archive_of(module) if word == "archive" else None)
        assert [site.fused for site in report.sites] == [True]
    return made


def inputs() -> list[np.ndarray[Any, Any]]:
    mask = np.ones((2, 24), np.int64)
    mask[1, 17:] = 0
    return [RNG.integers(0, 11, (2, 24)), mask]


def test_a_module_takes_its_weights_from_beside_it(compiled: dict[str, Path], tmp_path: Path) -> None:
    given = inputs()
    (want,), (got,) = run(compiled["embed"], *given), run(compiled["archive"], *given)
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)
    assert compiled["archive"].stat().st_size < compiled["embed"].stat().st_size / 5
    assert set(entries(archive_of(compiled["archive"]))) == {"parameter0"}  # all three, packed
    assert not archive_of(compiled["embed"]).exists()
    copy_module(compiled["archive"], tmp_path / "copy.vmfb")
    np.testing.assert_array_equal(load_module(tmp_path / "copy.vmfb")(*given)[0], got)
    assert benchmark_module(compiled["archive"], given, repetitions=1).ms


def test_modules_share_an_archive_that_is_one_file(compiled: dict[str, Path], tmp_path: Path) -> None:
    link = tmp_path / "link.vmfb"
    copy_module(compiled["archive"], link)
    archive_of(link).unlink()
    os.link(archive_of(compiled["archive"]), archive_of(link))
    opened: dict[tuple[int, int], Any] = {}
    first, second = (bind_module(path, opened=opened) for path in (compiled["archive"], link))
    assert len(opened) == 1
    given = inputs()
    for a, b in zip(first(*given), second(*given), strict=True):
        assert (a.to_host() == b.to_host()).all()


def test_iree_run_module_takes_the_archive(compiled: dict[str, Path]) -> None:
    module = compiled["archive"]
    command = [tool_path("iree-run-module"), f"--module={module}", f"--parameters=model={archive_of(module)}"]
    shapes = ["--input=2x24xi64=1", "--input=2x24xi64=1"]
    done = subprocess.run([*command, "--function=main_graph", *shapes], capture_output=True, text=True, check=True)
    assert "2x24x160xf32" in done.stdout


def test_archives_that_do_not_fit(compiled: dict[str, Path], plain: Path, tmp_path: Path) -> None:
    alone = tmp_path / "alone.vmfb"
    alone.write_bytes(compiled["archive"].read_bytes())
    with pytest.raises(RunError, match=r"its weights are missing: they lie in the \.irpa file that was written with"):
        load_module(alone)
    other, short, none = (tmp_path / f"{name}.irpa" for name in ("other", "short", "none"))
    write_archive([Parameter("wk", ir.tensor(np.zeros((160, 160), np.float32)))], other)
    write_archive([Parameter("parameter0", ir.tensor(np.zeros(7, np.float32)))], short)
    none.write_bytes(b"no archive")
    for path in (other, short):
        with pytest.raises(RunError, match=r"its weight 'parameter0' is not in the archive, or of another size"):
            run(alone, *inputs(), parameters={"model": path})
    for path, problem in ((none, "not an archive of weights"), (tmp_path / "absent.irpa", "no such file")):
        with pytest.raises(RunError, match=f"{path}: {problem}"):
            run(alone, *inputs(), parameters={"model": path})
    run(alone, *inputs(), parameters={"model": archive_of(compiled["archive"])})


def test_a_word_that_nobody_knows(encoder: Path, tmp_path: Path) -> None:
    with pytest.raises(OnnxFaError, match="parameters='beside': not one of auto, embed, archive"):
        compile_model(encoder, tmp_path / "m.vmfb", parameters="beside")


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16, np.float64, np.int8, np.uint8, np.int64])
def test_every_type_comes_out_as_it_went_in(dtype: Any, tmp_path: Path) -> None:
    weight = RNG.integers(0, 100, (30, 40)).astype(dtype)
    tensor = ir.tensor(weight, name="w")
    kind = TensorProto.DataType.Value(tensor.dtype.name)
    nodes = [
        helper.make_node("Cast", ["w"], ["f"], "wide", to=TensorProto.FLOAT),
        helper.make_node("Add", ["f", "x"], ["y"]),
    ]
    constants = [helper.make_tensor("w", kind, [30, 40], tensor.tobytes(), raw=True)]
    info = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [30, 40]) for n in "xy"]
    model = tiny.save(tmp_path / "m.onnx", nodes, info[:1], info[1:], constants, opset=21)
    module = tmp_path / "m.vmfb"
    (got,) = _run_archived(model, module)
    np.testing.assert_array_equal(got, weight.astype(np.float32))


def test_flags_stay_in_the_program(tmp_path: Path) -> None:
    """No archive holds booleans as programs read them."""
    flags = RNG.integers(0, 2, (40, 40)).astype(bool)
    nodes = [helper.make_node("Where", ["m", "x", "big"], ["y"], "choose")]
    constants = [numpy_helper.from_array(a, n) for n, a in (("m", flags), ("big", np.full((40, 40), 5, np.float32)))]
    info = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [40, 40]) for n in "xy"]
    model = tiny.save(tmp_path / "m.onnx", nodes, info[:1], info[1:], constants)
    (got,) = _run_archived(model, tmp_path / "m.vmfb")
    np.testing.assert_array_equal(got, np.where(flags, 0, 5))


def _run_archived(model: Path, module: Path) -> list[np.ndarray[Any, Any]]:
    """The result on zeros, with every weight of 100 elements or more in an archive."""
    from onnx_fa.iree.compiler import iree_compile
    from onnx_fa.spec.target import parse_target

    done = import_model(model, externalize=Externalize())
    iree_compile(done.text, module, parse_target("cpu-host"), flags=done.flags, timeout_s=60)
    write_archive(done.parameters, archive_of(module))
    shape = [d.dim_value for d in onnx.load(model).graph.input[0].type.tensor_type.shape.dim]
    return load_module(module)(np.zeros(shape, np.float32))


def test_the_model_keeps_its_weights(encoder: Path) -> None:
    model = ir.load(encoder)
    before = {name: value.const_value for name, value in model.graph.initializers.items()}
    proto, held = hold_weights(model)
    assert {name: value.const_value for name, value in model.graph.initializers.items()} == before
    assert set(held) == {"table", "wq", "wk", "wv"}
    assert {t.name for t in proto.graph.initializer if t.data_location == TensorProto.EXTERNAL} == set(held)


_IMPORT = """
import sys
from pathlib import Path
from onnx_fa.iree.compile import import_model
from onnx_fa.iree.weights import FOR_COMPILE, write_archive
done = import_model(sys.argv[1], externalize=FOR_COMPILE)
if len(sys.argv) > 2:
    write_archive(done.parameters, Path(sys.argv[2]))
print(next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM")))
"""


def test_memory_does_not_grow_with_the_weights(tmp_path: Path) -> None:
    peaks = {}
    for rows in (1 << 8, 1 << 17):
        folder = tmp_path / str(rows)
        folder.mkdir()
        model = _with_holes(folder, rows)
        archive = [] if rows > 1 << 16 else [folder / "m.irpa"]
        done = subprocess.run(
            [sys.executable, "-c", _IMPORT, model, *archive], capture_output=True, text=True, check=True
        )
        peaks[rows] = int(done.stdout) * 1024
    small, large = peaks.values()
    assert large < small + (64 << 20), f"{peaks} for weights of 1 MB and 1 GiB"


def _with_holes(folder: Path, rows: int) -> Path:
    """y = x w with w of rows x 2048 in a file that takes no place on the disk."""
    with (folder / "w.data").open("wb") as file:
        file.truncate(rows * 2048 * 4)
    weight = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[rows, 2048], data_location=TensorProto.EXTERNAL)
    weight.external_data.add(key="location", value="w.data")
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"], "product")]
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, [1, size]) for n, size in (("x", rows), ("y", 2048)))
    return tiny.save(folder / "m.onnx", nodes, [x], [y], [weight])


def test_an_archive_is_written_a_tensor_at_a_time(tmp_path: Path) -> None:
    """Data beside a model goes from file to file; the runtime makes it no larger than the data."""
    model = _with_holes(tmp_path, 1 << 13)
    done = subprocess.run(
        [sys.executable, "-c", _IMPORT, model, tmp_path / "m.irpa"], capture_output=True, text=True, check=True
    )
    size = (tmp_path / "m.irpa").stat().st_size
    assert 64 << 20 <= size < (64 << 20) + 8192
    assert int(done.stdout) < 400 << 10
    assert os.stat(tmp_path / "m.irpa").st_mode == os.stat(model).st_mode


def test_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(OnnxFaError, match="cannot be written"):
        write_archive([], tmp_path / "absent" / "m.irpa")
    write_archive([], tmp_path / "empty.irpa")
    assert entries(tmp_path / "empty.irpa") == {}
