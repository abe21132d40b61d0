"""The files of a user's own model, here and where they are moved to; and that a step's key follows each of them."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest

import tests.support.tiny as tiny
from onnx_fa.zoo.entries import Entry, Suite
from onnx_fa.zoo.keys import key
from onnx_fa.zoo.sources import sources_of


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
