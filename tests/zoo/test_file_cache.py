"""Files that a machine keeps of the store: fetched once, right whatever happens to them, no more than there is room for."""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import shutil
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path

import pytest

from onnx_fa.zoo.file_cache import FileCache
from onnx_fa.zoo.store import LostFileError, Store


@pytest.fixture
def fetched(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often each file was fetched from the store."""
    found: Counter[str] = Counter()
    get = Store.get

    def counted(self: Store, digest: str, path: Path) -> None:
        found[digest] += 1
        time.sleep(0.05)  # so that threads meet
        get(self, digest, path)

    monkeypatch.setattr(Store, "get", counted)
    return found


def put(store: Store, folder: Path, content: bytes) -> str:
    (folder / "new").write_bytes(content)
    return store.put(folder / "new")


def names(folder: Path) -> set[str]:
    return {p.name for p in folder.iterdir() if p.is_file()}


def test_a_file_is_fetched_once(tmp_path: Path, fetched: Counter[str]) -> None:
    """By threads that all want it at the same time, and by a worker that is started later."""
    store = Store(tmp_path / "store")
    digest = put(store, tmp_path, b"model")

    def get(i: int) -> bytes:
        path = tmp_path / f"step{i}" / "model"
        FileCache(store, tmp_path / "kept").get(digest, path)
        return path.read_bytes()

    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(get, range(8))) == {b"model"}
    assert fetched == {digest: 1}


def test_what_is_put_is_not_fetched(tmp_path: Path, fetched: Counter[str]) -> None:
    store = Store(tmp_path / "store")
    (tmp_path / "a").write_bytes(b"module")
    files = FileCache(store, tmp_path / "kept")
    digest = files.put(tmp_path / "a")
    files.get(digest, tmp_path / "b")
    assert (tmp_path / "b").read_bytes() == b"module" and not fetched and store.size(digest) == 6


@pytest.mark.parametrize("made", ["fetched", "put"])
def test_a_step_that_writes_to_its_files_damages_no_other(tmp_path: Path, fetched: Counter[str], made: str) -> None:
    files = FileCache(Store(tmp_path / "store"), tmp_path / "kept")
    (tmp_path / "a").write_bytes(b"model")
    digest = files.put(tmp_path / "a")
    if made == "fetched":
        files.get(digest, tmp_path / "b")
        (tmp_path / "a").write_bytes(b"model")
    for path in (tmp_path / "a", tmp_path / "b"):
        if path.exists():
            with path.open("r+b") as stream:
                stream.write(b"wrong")
    files.get(digest, tmp_path / "c")
    assert (tmp_path / "c").read_bytes() == b"model" and not fetched


def test_a_damaged_file_is_fetched_anew(tmp_path: Path, fetched: Counter[str]) -> None:
    """As is one that a killed process left unfinished."""
    store, kept = Store(tmp_path / "store"), tmp_path / "kept"
    digest = put(store, tmp_path, b"model")
    files = FileCache(store, kept)
    (kept / f"{digest}.part").write_bytes(b"mo")
    for times in (1, 2):
        files.get(digest, tmp_path / "a")
        assert (tmp_path / "a").read_bytes() == b"model" and fetched == {digest: times}
        assert names(kept) == {digest}
        (kept / digest).write_bytes(b"modem")
    shutil.rmtree(tmp_path / "store" / "files")
    with pytest.raises(LostFileError):
        files.get(digest, tmp_path / "a")
    assert not names(kept)


def test_what_was_not_used_for_the_longest_time_goes(tmp_path: Path, fetched: Counter[str]) -> None:
    store, kept = Store(tmp_path / "store"), tmp_path / "kept"
    a, b, c, large = (put(store, tmp_path, x) for x in (b"a" * 40, b"b" * 40, b"c" * 40, b"d" * 101))
    files = FileCache(store, kept, limit=100)
    for age, digest in ((30, a), (20, b)):
        files.get(digest, tmp_path / "x")
        os.utime(kept / digest, (time.time() - age,) * 2)
    files.get(a, tmp_path / "x")  # used now, and so the younger one
    files.get(c, tmp_path / "x")
    assert names(kept) == {a, c}
    files.get(large, tmp_path / "x")
    assert (tmp_path / "x").stat().st_size == 101 and names(kept) == {a, c}
    assert set(fetched.values()) == {1}


def _use(folder: str, digests: list[str], seed: int) -> bool:
    files = FileCache(Store(f"{folder}/store"), Path(folder, "kept"), limit=2500)
    path = Path(folder, f"own{seed}")
    for i in range(60):
        digest = digests[(i * (seed + 1) + seed) % len(digests)]
        files.get(digest, path)
        if hashlib.sha256(path.read_bytes()).hexdigest() != digest:
            return False
    return True


def test_processes_share_it(tmp_path: Path) -> None:
    """With room for some of the files, so that each removes what others have just used."""
    store = Store(tmp_path / "store")
    digests = [put(store, tmp_path, bytes([i]) * 1000) for i in range(6)]
    with ProcessPoolExecutor(3, mp_context=multiprocessing.get_context("spawn")) as pool:
        assert all(pool.map(_use, [str(tmp_path)] * 3, [digests] * 3, range(3)))
    assert names(tmp_path / "kept") <= set(digests)
