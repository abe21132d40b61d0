"""What stops a run in the middle: a killed process, a full disk, a compiler that is missing, hangs or is killed. Nothing is left
half-written, nothing runs on, and the next run works."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto as T
from onnx import helper as h
from onnx import numpy_helper as nh

from onnx_fa.cli import crash, main
from onnx_fa.errors import CompileError, OnnxFaError
from onnx_fa.files import is_sealed, write_sealed, write_whole
from onnx_fa.forms.rewrite import rewrite
from onnx_fa.graph.io import load, save
from onnx_fa.iree.compile import import_model
from onnx_fa.iree.compiler import iree_compile
from onnx_fa.printable import printable, printable_lines
from onnx_fa.spec.target import parse_target
from onnx_fa.staging import PREFIX, staging_folder, sweep_stale
from onnx_fa.tables import markdown_table, text_table
from tests.support import tiny
from tests.support.spellings import Spelling, build

ROOT = Path(__file__).resolve().parents[2]
MLIR = "module {\n}\n"


def _python(code: str, *args: object, **env: str) -> subprocess.Popen[str]:
    """A program of this package that says "ready" and is then somewhere in the middle."""
    command = [sys.executable, "-c", code, *map(str, args)]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT), **env}
    )
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    return process


def _ended(process: subprocess.Popen[str], number: int) -> None:
    process.send_signal(number)
    process.wait(timeout=30)
    assert process.stdout is not None
    process.stdout.close()


def _runs(pid: int) -> bool:
    """Whether the process is there and not only an entry that nobody has collected."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


_HOLDS = """
import sys, time
from pathlib import Path
from onnx_fa.staging import staging_folder
with staging_folder(Path(sys.argv[1])) as folder:
    (folder / "half").write_text("written")
    print("ready", flush=True)
    time.sleep(60)
"""


def test_staging_folders_of_the_dead_go_and_those_of_the_living_stay(tmp_path: Path) -> None:
    killed, living = _python(_HOLDS, tmp_path), _python(_HOLDS, tmp_path)
    folders = set(tmp_path.iterdir())
    assert len(folders) == 2
    _ended(killed, signal.SIGKILL)
    assert set(tmp_path.iterdir()) == folders  # nobody could clear up
    write_whole(tmp_path / "out.txt", "next run")
    left = {p for p in tmp_path.iterdir() if p.name.startswith(PREFIX)}
    assert len(left) == 1 and left < folders and (left.pop() / "half").is_file()
    _ended(living, signal.SIGKILL)
    sweep_stale(tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["out.txt"]


def test_a_staging_folder_is_taken_by_one_only(tmp_path: Path) -> None:
    (tmp_path / f"{PREFIX}file").write_text("the user's own")
    (tmp_path / "link").mkdir()
    (tmp_path / f"{PREFIX}link").symlink_to(tmp_path / "link")
    with staging_folder(tmp_path) as first:
        with staging_folder(tmp_path) as second:
            assert first.is_dir() and second.is_dir() and first != second
        assert first.is_dir() and not second.exists()
    assert sorted(p.name for p in tmp_path.iterdir()) == [f"{PREFIX}file", f"{PREFIX}link", "link"]


_COMPILES = """
import sys
from pathlib import Path
from onnx_fa.iree.compile import import_model, iree_compile
from onnx_fa.spec.target import parse_target
print("ready", flush=True)
iree_compile("module {\\n}\\n", Path(sys.argv[1]), parse_target("cpu-host"), timeout_s=60)
"""


def _compiler(folder: Path, body: str) -> str:
    """A stand-in for iree-compile; in `body`, "$out" is the file it is to write."""
    path = folder / "compiler"
    path.write_text(f'#!/bin/sh\nfor last; do out="$last"; done\necho $$ > {folder}/pid\n{body}\n')
    path.chmod(0o755)
    return str(path)


def _pid_of_stand_in(folder: Path) -> int:
    """Of a `_compiler` that has been started and runs."""
    path = folder / "pid"
    deadline = time.monotonic() + 30
    while not (path.exists() and path.read_text().strip()):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    pid = int(path.read_text())
    assert _runs(pid)
    return pid


def _ends_soon(pid: int) -> None:
    deadline = time.monotonic() + 30
    while _runs(pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not _runs(pid)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_no_compiler_outlives_its_caller(tmp_path: Path, number: int) -> None:
    out = tmp_path / "out"
    out.mkdir()
    hangs = _compiler(tmp_path, 'echo half > "$out"; exec sleep 60')
    process = _python(_COMPILES, out / "m.vmfb", ONNX_FA_IREE_COMPILE=hangs)
    compiler = _pid_of_stand_in(tmp_path)
    _ended(process, number)
    _ends_soon(compiler)
    assert not (out / "m.vmfb").exists()
    write_whole(out / "next", "run")
    assert [p.name for p in out.iterdir()] == ["next"]


_ASKS = """
import os, sys
from onnx_fa.benchmark.worker_session import Session
sys.executable = sys.argv[1]
print("ready", flush=True)
with Session(os.environ, 60) as session:
    session.ask(["a job"])
"""


def test_no_worker_outlives_its_caller(tmp_path: Path) -> None:
    """One that is in the middle of a job does not see that nobody is there to ask for the next."""
    process = _python(_ASKS, _compiler(tmp_path, "exec sleep 60"))
    worker = _pid_of_stand_in(tmp_path)
    _ended(process, signal.SIGKILL)
    _ends_soon(worker)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("exec sleep 60", "was stopped after 1 s"),
        ("kill -9 $$", "was killed by signal SIGKILL"),
        ('echo half > "$out"; kill -9 $$', "was killed by signal SIGKILL"),
        ('echo half > "$out"; exit 3', "failed with exit code 3"),
        ("exit 0", "wrote no output"),
    ],
)
def test_a_compiler_that_does_not_end_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str, words: str
) -> None:
    out = tmp_path / "out"
    out.mkdir()
    monkeypatch.setenv("ONNX_FA_IREE_COMPILE", _compiler(tmp_path, body))
    with pytest.raises(CompileError, match=words):
        iree_compile(MLIR, out / "m.vmfb", parse_target("cpu-host"), timeout_s=1)
    assert sorted(p.name for p in out.iterdir()) == ["m.vmfb.failed.mlir", "m.vmfb.log"]
    monkeypatch.setenv("ONNX_FA_IREE_COMPILE", _compiler(tmp_path, 'echo done > "$out"'))
    iree_compile(MLIR, out / "m.vmfb", parse_target("cpu-host"), timeout_s=30)
    assert (out / "m.vmfb").read_text() == "done\n"


def test_a_missing_compiler_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONNX_FA_IREE_COMPILE", str(tmp_path / "none"))
    with pytest.raises(CompileError, match=r"none: cannot be run: No such file"):
        iree_compile(MLIR, tmp_path / "m.vmfb", parse_target("cpu-host"))
    assert list(tmp_path.iterdir()) == []


def test_many_compiles_into_one_output(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    slow = _compiler(tmp_path, 'for i in 1 2 3 4 5 6 7 8; do echo $$ >> "$out"; sleep 0.05; done')
    runs = [_python(_COMPILES, out / "m.vmfb", ONNX_FA_IREE_COMPILE=slow) for _ in range(3)]
    assert [r.wait(timeout=60) for r in runs] == [0, 0, 0]
    for r in runs:
        assert r.stdout is not None
        r.stdout.close()
    lines = (out / "m.vmfb").read_text().splitlines()
    assert len(lines) == 8 and len(set(lines)) == 1  # one compiler's, whole
    assert [p.name for p in out.iterdir()] == ["m.vmfb"]


# Disks.


def _full(*_: object, **__: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


Step = Callable[[Path], object]
STEPS: dict[str, tuple[str, Step]] = {
    "write_whole": ("write_bytes", lambda p: write_whole(p, "text")),
    "save": ("write_bytes", lambda p: save(load(build(Spelling())), p)),
    "iree_compile": ("write_text", lambda p: iree_compile(MLIR, p, parse_target("cpu-host"))),
}


@pytest.mark.parametrize("name", STEPS)
def test_a_full_disk_names_the_output(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write, step = STEPS[name]
    monkeypatch.setattr(Path, write, _full)
    monkeypatch.setattr(ir, "save", _full)
    with pytest.raises(OnnxFaError, match=r"out\.file: cannot be written: No space left on device"):
        step(tmp_path / "out.file")
    assert list(tmp_path.iterdir()) == []
    monkeypatch.undo()
    if name != "iree_compile":
        step(tmp_path / "out.file")
        assert [p.name for p in tmp_path.iterdir()] == ["out.file"]


def test_a_full_disk_while_a_failed_compile_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The compiler's own end is what the user hears of, with what became of its messages."""
    monkeypatch.setenv("ONNX_FA_IREE_COMPILE", _compiler(tmp_path, "exit 3"))
    out = tmp_path / "out"
    out.mkdir()
    monkeypatch.setattr(Path, "write_bytes", _full)
    with pytest.raises(CompileError, match=r"exit code 3; its messages are lost: .*m\.vmfb\.log: .*No space left"):
        iree_compile(MLIR, out / "m.vmfb", parse_target("cpu-host"))
    assert [p.name for p in out.iterdir()] == ["m.vmfb.failed.mlir"]


def test_a_read_only_folder_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object, **__: object) -> str:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr("tempfile.mkdtemp", refused)
    for step in (lambda: write_whole(tmp_path / "o", ""), lambda: save(load(build(Spelling())), tmp_path / "o")):
        with pytest.raises(OnnxFaError, match="o: cannot be written: Read-only file system"):
            step()


def test_a_limit_on_file_sizes_leaves_nothing(tmp_path: Path) -> None:
    """As a full disk does, in a process of its own: the write itself fails half-way."""
    code = """
import resource, signal, sys
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (512, 512))
from onnx_fa.cli import main
sys.exit(main(["rewrite", sys.argv[1], "-o", sys.argv[2]]))
"""
    model, out = tiny.attention(tmp_path / "a.onnx"), tmp_path / "out"
    out.mkdir()
    done = subprocess.run(
        [sys.executable, "-c", code, str(model), str(out / "b.onnx")],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 2, done.stderr
    assert done.stderr == f"onnx-fa: error: {out / 'b.onnx'}: cannot be written: File too large\n"
    assert list(out.iterdir()) == []


def test_a_model_never_stands_beside_weights_of_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that ends between the two moves leaves no model rather than the old one with the new one's weights."""
    (tmp_path / "in").mkdir()
    (tmp_path / "out").mkdir()
    weights = nh.from_array(np.arange(200, dtype=np.float32), "w")
    graph = h.make_graph(
        [h.make_node("Add", ["x", "w"], ["y"])],
        "g",
        [h.make_tensor_value_info("x", T.FLOAT, [200])],
        [h.make_tensor_value_info("y", T.FLOAT, [200])],
        [weights],
    )
    model = h.make_model(graph, opset_imports=[h.make_opsetid("", 18)], ir_version=10)
    source, target = tmp_path / "in" / "m.onnx", tmp_path / "out" / "m.onnx"
    onnx.save(model, source, save_as_external_data=True, location="w.bin", size_threshold=0)
    save(load(source), target)
    move, weights_file = os.replace, target.with_name("m.onnx.data")

    def dies(old: str | Path, new: str | Path) -> None:
        move(old, new)
        if Path(new) == weights_file:
            raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", dies)
    with pytest.raises(KeyboardInterrupt):
        save(load(source), target)
    monkeypatch.undo()
    assert weights_file.exists() and not target.exists()
    save(load(source), target)
    assert sorted(p.name for p in target.parent.iterdir()) == ["m.onnx", "m.onnx.data"]


def test_a_damaged_file_of_the_cache_is_no_longer_sealed(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    assert not is_sealed(path)
    write_sealed(path, b"model")
    assert is_sealed(path)
    path.write_bytes(b"modem")
    assert not is_sealed(path)
    write_sealed(path, b"model")
    path.with_name("m.onnx.sha256").unlink()
    assert not is_sealed(path)


# Names.

HOSTILE = "\x1b[31mred\x1b]0;title\x07\r\n\u202e</script><img src=x onerror=1>\x9b2J"


def test_names_are_printable_everywhere(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = build(Spelling(mask="add"))
    for node in model.graph.node:
        node.name += HOSTILE
    softmax = next(n for n in model.graph.node if n.op_type == "Softmax")
    other = onnx.NodeProto()
    other.CopyFrom(softmax)
    other.name, other.output[0] = f"left alone{HOSTILE}", f"more{HOSTILE}"
    model.graph.node.append(other)
    model.graph.output.append(h.make_tensor_value_info(f"more{HOSTILE}", T.FLOAT, [2, 4, 7, 9]))
    path, page = tmp_path / "m.onnx", tmp_path / "page.html"
    onnx.save(model, path)
    assert main(["explain", str(path), "--html", str(page)]) == 0
    text = capsys.readouterr().out
    assert "\\x1b[31mred" in text and all(line.isprintable() for line in text.splitlines())
    html = page.read_text()
    assert "<img" not in html and not {"\x1b", "\x07", "\x9b", "\u202e"} & set(html)
    softmax.input[0] = f"nowhere{HOSTILE}"
    onnx.save(model, path)
    assert main(["explain", str(path)]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and error.strip().isprintable() and "\\x1b[31mred" in error


def test_printable() -> None:
    assert printable("plain – näme") == "plain – näme"
    assert printable("a\x1b[0m\n\x9b\u202e\ud800") == "a\\x1b[0m\\n\\x9b\\u202e\\ud800"
    assert printable_lines("a\nb\x07") == "a\nb\\x07"
    assert str(OnnxFaError("one\n  two\x1b")) == "one two\\x1b"
    assert "\x1b" not in text_table(("h",), [("\x1b",)]) + markdown_table(("h",), [("\x1b",)])


@pytest.mark.parametrize("form", ["decomposed", "blocked"])
def test_hostile_names_stay_names_in_the_model(form: str) -> None:
    """Dims, tensors and nodes may be called anything: the rewritten model means the same."""
    model = build(Spelling(mask="add", opset=23))
    for info in (*model.graph.input, *model.graph.output):
        info.type.tensor_type.shape.dim[0].dim_param = f'B"{HOSTILE}'
    for node in model.graph.node:
        node.name += HOSTILE
    new, report = rewrite(model, form)  # type: ignore[call-overload]
    assert len(report.sites) == 1
    onnx.checker.check_model(new)


# What no one foresaw.


def test_an_unforeseen_error_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise AssertionError(f"never\n{HOSTILE}")

    model = tiny.attention(tmp_path / "a.onnx")
    monkeypatch.setattr("onnx_fa.forms.rewrite.find", broken)
    assert main(["explain", str(model)]) == 1
    line = capsys.readouterr().err
    assert line.count("\n") == 1 and line.strip().isprintable()
    assert line.startswith(f"onnx-fa: error: {model}: a bug in onnx_fa") and crash.TRACEBACK_ENV in line
    monkeypatch.setenv(crash.TRACEBACK_ENV, "1")
    assert main(["explain", str(model)]) == 1
    assert "Traceback (most recent call last)" in capsys.readouterr().err


@pytest.mark.parametrize("target", ["cpu-host", "cuda"])
def test_hostile_names_do_not_reach_the_compiler(target: str) -> None:
    """Neither MLIR nor Triton's kernels quote a name of the model as it is."""
    model = build(Spelling(mask="add"))
    for info in (*model.graph.input, *model.graph.output):
        info.type.tensor_type.shape.dim[0].dim_param = f'B"%0{HOSTILE}'
    for node in model.graph.node:
        node.name += HOSTILE
    imported = import_model(model, target)
    assert len(imported.sites) == 1 and not {"\x1b", "\x07", "\u202e"} & set(imported.text)
    assert "</script>" not in imported.text


WHILE_IMPORTING = """
class Interrupt:
    def find_spec(self, name, path=None, target=None):
        if name == "onnx_fa.cli":
            raise KeyboardInterrupt
sys.meta_path.insert(0, Interrupt())
"""
IN_A_CALLBACK = """
import time
from onnx_fa import cli
class Held:
    def __del__(self):
        raise KeyboardInterrupt
def command():
    Held()
    time.sleep(30)
cli.main = command
"""


@pytest.mark.parametrize("code", [WHILE_IMPORTING, IN_A_CALLBACK], ids=["while importing", "in a callback"])
def test_an_interrupt_shows_no_traceback(code: str) -> None:
    code = f"import runpy, sys\n{code}\nrunpy.run_module('onnx_fa', run_name='__main__')"
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=60,
        preexec_fn=lambda: signal.signal(
            signal.SIGINT, signal.SIG_DFL
        ),  # a job in the background inherits that it is ignored
    )
    assert (done.returncode, done.stderr) == (130, "onnx-fa: error: interrupted\n")
