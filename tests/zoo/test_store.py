"""The store of artefacts: what is put is got, whole, or said to be damaged; on a folder and on another file system of fsspec."""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path

import fsspec
import pytest

from onnx_fa.errors import MissingDependencyError
from onnx_fa.zoo.step_process import record
from onnx_fa.zoo.store import Store, StoreError


@pytest.fixture(params=["folder", "url", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    places = {"folder": tmp_path / "store", "url": f"file://{tmp_path}/store", "memory": f"memory://{tmp_path.name}"}
    return Store(places[request.param])


def test_files_by_their_content(store: Store, tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"model")
    digest = store.put(tmp_path / "a")
    assert digest == hashlib.sha256(b"model").hexdigest() == store.put(tmp_path / "a")
    assert store.size(digest) == 5 and store.size("0" * 64) is None
    again = Store(store.url)  # as another machine opens it
    again.get(digest, tmp_path / "deep" / "b")
    assert (tmp_path / "deep" / "b").read_bytes() == b"model"
    with pytest.raises(StoreError, match=r"no file 0000.* run again"):
        store.get("0" * 64, tmp_path / "c")


def test_a_damaged_file_is_taken_out(store: Store, tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"model")
    digest = store.put(tmp_path / "a")
    fs, path = fsspec.url_to_fs(store.url)
    fs.pipe_file(f"{path}/files/{digest}", b"modem")
    with pytest.raises(StoreError, match="was damaged"):
        store.get(digest, tmp_path / "b")
    assert store.size(digest) is None
    fs.pipe_file(f"{path}/files/{digest}", b"mod")  # as an upload that was cut off leaves it: put again
    store.put(tmp_path / "a")
    store.get(digest, tmp_path / "b")
    assert sorted(Path(p).name for p in fs.ls(f"{path}/files", detail=False)) == [digest]


def test_records_whose_files_are_there(store: Store, tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"model")
    said = record(True, "", seconds=1.5, data={"nodes": 3}) | {"files": {"model.onnx": store.put(tmp_path / "a")}}
    assert store.record("k") is None
    store.note("k", said)
    assert store.record("k") == said
    fs, path = fsspec.url_to_fs(store.url)
    fs.pipe_file(f"{path}/records/k.json", b'{"ok": tr')
    assert store.record("k") is None
    store.note("k", said)
    fs.rm_file(f"{path}/files/{said['files']['model.onnx']}")
    assert store.record("k") is None


@pytest.mark.parametrize(
    ("place", "why"),
    [
        ("nothing://a/b", "Protocol not known: nothing"),
        ("/proc/none", "cannot be read or written"),
        ("/dev/null", "cannot be read or written"),
    ],
)
def test_places_that_are_none(place: str, why: str) -> None:
    with pytest.raises(StoreError, match=why) as caught:
        Store(place)
    assert str(caught.value).startswith(place) and "\n" not in str(caught.value)


def test_without_fsspec(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fsspec.core", None)
    with pytest.raises(MissingDependencyError, match=r"onnx-fa\[cluster\]"):
        Store("memory://a")
