"""The files of a user's own model, here and where they are moved to; and that a step's key follows each of them."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest

import tests.support.tiny as tiny
from onnx_fa.errors import MissingDependencyError
from onnx_fa.zoo.entries import Entry, Suite
from onnx_fa.zoo.keys import key
from onnx_fa.zoo.sources import digest_of_weights, package_weights, sources_of


def with_weights_beside(folder: Path) -> Path:
    model = onnx.load(tiny.attention(folder / "inside.onnx"))
    path = folder / "m" / "model.onnx"
    path.parent.mkdir()
    onnx.save(model, path, save_as_external_data=True, location="weights.bin", size_threshold=0)
    return path


def test_weights_beside_the_model(tmp_path: Path) -> None:
    with_weights_beside(tmp_path)
    (tmp_path / "m" / "other").touch()
    entry = Entry("a", "path", "m/model.onnx", base=str(tmp_path))
    sources = sources_of(entry)
    assert sources is not None and sources.digests().keys() == {"model.onnx", "weights.bin"}
    before = key(entry, "cpu-host", {})
    with (tmp_path / "m" / "weights.bin").open("r+b") as stream:
        stream.write(b"\1")
    assert key(entry, "cpu-host", {}) != before


def outside(name: str) -> onnx.TensorProto:
    """An integer in a file of that name beside the model."""
    tensor = onnx.TensorProto(name=name, data_type=onnx.TensorProto.INT64, dims=[1])
    tensor.data_location = onnx.TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value=name)
    return tensor


def test_sparse_weights_beside_the_model(tmp_path: Path) -> None:
    """Of a graph, of a branch that has nothing else, and of a node."""
    kept, inner, held = (
        onnx.SparseTensorProto(values=outside(f"{name}.values"), indices=outside(f"{name}.indices"), dims=[9])
        for name in ("kept", "inner", "held")
    )
    constant = onnx.helper.make_node("Constant", [], ["c"], sparse_value=held)
    branch = onnx.helper.make_node("If", ["b"], ["y"], then_branch=onnx.GraphProto(sparse_initializer=[inner]))
    graph = onnx.GraphProto(node=[constant, branch], sparse_initializer=[kept])
    (tmp_path / "m.onnx").write_bytes(onnx.ModelProto(graph=graph).SerializeToString())
    names = {f"{name}.{part}" for name in ("kept", "inner", "held") for part in ("values", "indices")}
    for name in names:
        (tmp_path / name).write_bytes(bytes(8))
    entry = Entry("a", "path", "m.onnx", base=str(tmp_path))
    sources = sources_of(entry)
    assert sources is not None and sources.digests().keys() == {"m.onnx", *names}
    before = key(entry, "cpu-host", {})
    (tmp_path / "kept.indices").write_bytes(bytes([1, *bytes(7)]))
    assert key(entry, "cpu-host", {}) != before


def test_a_test_of_a_suite_moves_with_its_files(tmp_path: Path) -> None:
    (tmp_path / "t" / "in").mkdir(parents=True)
    tiny.attention(tmp_path / "t" / "model.onnx")
    for name in ("flags.txt", "input.bin"):
        (tmp_path / "t" / "in" / name).write_text(name)
    suite = Suite("cpu", (), (), flagfile="t/in/flags.txt")
    entry = Entry("t", "path", "t/model.onnx", base=str(tmp_path), suite=suite)
    sources = sources_of(entry)
    assert sources is not None and sources.digests().keys() == {"model.onnx", "in/flags.txt", "in/input.bin"}
    moved = sources.moved(entry, "/there")
    assert (moved.base, moved.of) == ("/there", "model.onnx") and moved.suite
    assert moved.suite.flagfile == "in/flags.txt"


@pytest.mark.parametrize("of", ["gone.onnx", "no/folder/gone.onnx"])
def test_a_file_that_is_not_there(tmp_path: Path, of: str) -> None:
    entry = Entry("a", "path", of, base=str(tmp_path))
    sources = sources_of(entry)
    assert sources is not None and not sources.digests() and sources.moved(entry, "/there").of == "gone.onnx"
    assert sources.root / "gone.onnx" == tmp_path / of
    (tmp_path / "gone.onnx").write_bytes(b"no model")
    assert (key(entry, "cpu-host", {}) == key(entry, "cpu-host", {})) and sources_of(
        Entry("a", "family", "bert")
    ) is None


@pytest.mark.parametrize("name", ["", "no_such_package.inside", "/a/folder", "."])
def test_a_package_that_is_none(name: str) -> None:
    assert digest_of_weights(Entry("s", "package", name)) == ""
    with pytest.raises(MissingDependencyError, match="is not installed"):
        package_weights(name)


def test_weights_in_a_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A package with other weights, or another tokenizer, under the same name and version, is another model."""
    entry = Entry("s", "package", "sentences_of_a_test")
    assert digest_of_weights(entry) == ""
    with pytest.raises(MissingDependencyError, match="sentences_of_a_test is not installed"):
        package_weights(entry.of)
    package = tmp_path / entry.of
    (package / "data").mkdir(parents=True)
    (package / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    assert package_weights(entry.of) is None and digest_of_weights(entry) == ""
    weights = package / "data" / "model.safetensors"
    keys = []
    for path, content in ((weights, b"one"), (weights, b"another"), (weights.with_name("tokenizer.json"), b"{}")):
        path.write_bytes(content)
        keys.append(key(entry, "cpu-host", {}))
    assert package_weights(entry.of) == weights and len(set(keys)) == 3
