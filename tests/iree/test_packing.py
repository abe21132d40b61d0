"""Weights that stand in the archive as the module wants them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import iree.runtime as rt
import numpy as np
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper

from onnx_fa.iree import compile as compiling
from onnx_fa.iree.archive_format import lay_out
from onnx_fa.iree.archives import archive_of
from onnx_fa.iree.compile import compile_model
from onnx_fa.iree.packing import asked_for, may_pack
from onnx_fa.iree.run import run
from onnx_fa.iree.weights import Parameter
from onnx_fa.kernels.row_sites import kept_why, panel_of
from onnx_fa.spec.linear import LinearSpec
from onnx_fa.spec.target import parse_target
from tests.support import tiny

RNG = np.random.default_rng(0)
ODD = "odd name/é"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Rows of a table times two weights, of which one lies at an odd place of its file and is read as it is, too."""
    folder = tmp_path_factory.mktemp("model")
    constants = []
    with (folder / "w.data").open("wb") as file:
        for name, shape, skip in (("table", (200, 130), 3), (ODD, (130, 150), 1), ("second", (150, 140), 64)):
            file.write(bytes(skip))
            tensor = TensorProto(name=name, data_type=TensorProto.FLOAT, dims=shape, data_location=TensorProto.EXTERNAL)
            for key, value in (("location", "w.data"), ("offset", file.tell())):
                tensor.external_data.add(key=key, value=str(value))
            file.write((RNG.standard_normal(shape) / 10).astype(np.float32).tobytes())
            constants.append(tensor)
    nodes = [
        helper.make_node("Gather", ["table", "ids"], ["x"], "rows"),
        helper.make_node("MatMul", ["x", ODD], ["h"], "one"),
        helper.make_node("MatMul", ["h", "second"], ["y"], "two"),
        helper.make_node("Gather", [ODD, "ids"], ["z"], "some"),
    ]
    ids = [helper.make_tensor_value_info("ids", TensorProto.INT64, ["S"])]
    outputs = [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["S", d]) for n, d in (("y", 140), ("z", 150))]
    return tiny.save(folder / "model.onnx", nodes, ids, outputs, constants)


def entries(path: Path) -> dict[str, int]:
    index = rt.ParameterIndex()
    index.load(str(path))
    return {key: entry.length for key, entry in index.items()}


def check(module: Path, model: Path) -> None:
    ids = RNG.integers(0, 130, 11)
    want = ort.InferenceSession(model).run(None, {"ids": ids})
    for got, right in zip(run(module, ids), want, strict=True):
        np.testing.assert_allclose(got, right, rtol=1e-5, atol=1e-6)


def test_the_archive_has_what_the_module_reads_alone(model: Path, tmp_path: Path) -> None:
    module = tmp_path / "m.vmfb"
    report = compile_model(model, module, parameters="archive")
    assert not report.note
    check(module, model)
    packed = entries(archive_of(module))
    assert set(packed) == {"table", ODD, "parameter0"}, "the table is read by rows, and a weight as it is and packed"
    tiles = 130 * 160 + 150 * 160  # in panels of 32 columns where the machine has AVX-512
    assert 4 * (130 * 150 + 150 * 140) <= packed["parameter0"] <= 4 * tiles + 128
    assert not [p for p in tmp_path.iterdir() if p not in (module, archive_of(module))]


def test_an_encoder_that_does_not_compile(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiling, "ENCODER_FLAGS", ("--no-such-flag",))
    module = tmp_path / "m.vmfb"
    report = compile_model(model, module, parameters="archive")
    assert "weights are packed whenever the module is loaded" in report.note
    assert "no-such-flag" in report.note
    assert set(entries(archive_of(module))) == {"table", ODD, "second"}
    check(module, model)
    assert not [p for p in tmp_path.iterdir() if p not in (module, archive_of(module))]


def test_who_asks_for_an_encoder(model: Path, tmp_path: Path) -> None:
    weight = ir.tensor(np.zeros(4, np.float32))
    assert may_pack([Parameter("w", weight)], ["--iree-opt-level=O2"])
    assert not may_pack([], [])
    assert not may_pack([Parameter("w", weight)], ["--iree-parameter-encoder-mode=overlay"])
    assert not may_pack([Parameter("w", weight), Parameter("parameter3", weight)], []), "the encoder's own name"


def test_names_are_found_as_mlir_prints_them() -> None:
    from iree.compiler import ir as mlir

    names = [ODD, "a/b.c", "tab\there", "end\\", "\\22", 'a "quote"', "w", "w1"]
    parameters = [Parameter(name, ir.tensor(np.zeros(1))) for name in names]
    with mlir.Context():
        text = "\n".join(f"%a = util.buffer.constant : !util.buffer = {mlir.StringAttr.get(n)}" for n in names[:-1])
    assert [p.key for p in asked_for(parameters, text)] == names[:-1]


@pytest.mark.parametrize("lengths", [[100], [0, 7, 64, 1, 4096]])
def test_an_archive_is_laid_out_as_the_runtime_does(lengths: list[int], tmp_path: Path) -> None:
    data = {f"n{i}" * (i + 1): RNG.integers(0, 255, n).astype(np.uint8) for i, n in enumerate(lengths)}
    index = rt.ParameterIndex()
    for name, array in data.items():
        index.add_buffer(name, array)
    index.create_archive_file(str(tmp_path / "theirs.irpa"))
    theirs = (tmp_path / "theirs.irpa").read_bytes()
    layout = lay_out([(name, len(array)) for name, array in data.items()])
    ours = bytearray(layout.size)
    ours[: len(layout.head)] = layout.head
    for at, array in zip(layout.offsets, data.values(), strict=True):
        ours[at : at + len(array)] = array.tobytes()
    assert bytes(ours) == theirs


_PEAK = """
import sys, threading, time
from onnx_fa.iree.compile import compile_model
def private():
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("RssAnon")) >> 10
before, peak = private(), [0]
def watch():
    while True:
        peak[0] = max(peak[0], private())
        time.sleep(0.005)
threading.Thread(target=watch, daemon=True).start()
compile_model(sys.argv[1], sys.argv[2], parameters="archive")
print(peak[0] - before)
"""


def test_memory_is_that_of_a_few_weights(tmp_path: Path) -> None:
    """192 MiB of weights, in 12 pieces."""
    n, count = 2048, 12
    with (tmp_path / "w.data").open("wb") as file:
        file.truncate(4 * n * n * count)
    weights = []
    for i in range(count):
        weight = TensorProto(name=f"w{i}", data_type=TensorProto.FLOAT, dims=[n, n], data_location=TensorProto.EXTERNAL)
        for key, value in (("location", "w.data"), ("offset", 4 * n * n * i)):
            weight.external_data.add(key=key, value=str(value))
        weights.append(weight)
    nodes = [helper.make_node("MatMul", [f"x{i}", f"w{i}"], [f"x{i + 1}"], f"product{i}") for i in range(count)]
    x, y = (helper.make_tensor_value_info(f"x{i}", TensorProto.FLOAT, [4, n]) for i in (0, count))
    model = tiny.save(tmp_path / "m.onnx", nodes, [x], [y], weights)
    command: list[Any] = [sys.executable, "-c", _PEAK, model, tmp_path / "m.vmfb"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    spec, host = LinearSpec((4,), n, n, "f32"), parse_target("cpu-host")
    panel = 1 if kept_why(spec, host) else panel_of(spec, host)
    columns = -(-n // panel) * panel  # the last panel holds the last columns, some of them twice
    assert entries(tmp_path / "m.irpa") == {"parameter0": 4 * n * columns * count}
    assert int(done.stdout) < 120, "MiB, of which the importer takes some 50"
