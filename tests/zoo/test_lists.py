"""Lists of models by other people: what they may say, where models are looked for, what an archive may hold."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import tests.support.tiny as tiny
from onnx_fa.cli.command import main
from onnx_fa.errors import ModelError, OnnxFaError
from onnx_fa.zoo.archives import unpack
from onnx_fa.zoo.collections import read
from onnx_fa.zoo.entries import Entry, chosen, folder_name
from onnx_fa.zoo.judge import judge
from onnx_fa.zoo.places import find_model
from onnx_fa.zoo.sizes import runnable_sizes


def touch(folder: Path, *names: str) -> Path:
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x")
    return folder


def listed(folder: Path, text: str) -> Path:
    path = folder / "list.txt"
    path.write_text(text)
    return path


def tar(path: Path, **members: bytes | str) -> Path:
    """Members by name (`__` is a slash); text is where a link leads."""
    with tarfile.open(path, "w:gz") as archive:
        for name, data in members.items():
            info = tarfile.TarInfo(name.replace("__", "/"))
            if isinstance(data, str):
                info.type, info.linkname = tarfile.SYMTYPE, data
                archive.addfile(info)
            else:
                info.size = len(data)
                archive.addfile(info, io.BytesIO(data))
    return path


# Lists of paths.


def test_paths_and_globs(tmp_path: Path) -> None:
    touch(tmp_path, "a.onnx", "deep/b.onnx", "deep/er/c.onnx", "deep/readme", "x y.onnx", "z[1].onnx")
    text = "# all of them\n\n./a.onnx  # the first\ndeep/**/*.onnx\na.onnx\nx y.onnx\nz[1].onnx\n../gone.onnx\nno*.onnx\ndeep\n"
    entries = read(listed(tmp_path, text))
    assert [e.name for e in entries] == [
        *("a.onnx", "deep/b.onnx", "deep/er/c.onnx", "x y.onnx", "z[1].onnx", "../gone.onnx", "no*.onnx", "deep")
    ]
    assert [(e.source, e.of) for e in entries[-2:]] == [
        ("missing", "no file matches no*.onnx"),
        ("missing", "deep is a folder: name its files, such as deep/*.onnx"),
    ]
    assert all(Path(e.base) == tmp_path for e in entries[:-2])
    # Nothing is expected of them, and they are for every target.
    assert {(e.sites, e.misses) for e in entries} == {(None, None)} and len(chosen(entries, [], "cuda-sm_80")) == 8


@pytest.mark.parametrize("text", ["", "\n# nothing\n  \n"])
def test_a_list_without_models(tmp_path: Path, text: str) -> None:
    for models in (None, tmp_path):
        with pytest.raises(OnnxFaError, match=r"list\.txt: names no model"):
            read(listed(tmp_path, text), models)


def test_what_is_no_collection(tmp_path: Path) -> None:
    for name, models, why in (
        ("zoo.yaml", None, r"zoo\.yaml: zoo files end in \.toml"),
        ("zoo.toml", tmp_path, "leave --models out"),
        ("list.txt", tmp_path / "none", "--models .*none: no such folder"),
        ("none.txt", tmp_path, "cannot be read"),
    ):
        with pytest.raises(OnnxFaError, match=why):
            read(tmp_path / name, models)
    (tmp_path / "binary.txt").write_bytes(b"\xff\xfe")
    with pytest.raises(OnnxFaError, match="is not text"):
        read(tmp_path / "binary.txt")
    with pytest.raises(OnnxFaError, match=r"list\.txt:2: .* is no name of a model"):
        read(listed(tmp_path, "a.onnx\nb\0.onnx"))


# Lists of names, as SHARK-TestSuite has them.


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("bert", "bert/model.onnx"),
        ("bert", "bert.onnx"),
        ("bert", "bert.tar.gz"),
        ("bert", "bert/model/bert-12.onnx"),  # the only one
        ("org/hf_bert", "org/hf_bert/model.onnx"),
        ("org/hf_bert", "hf_bert/model.onnx"),  # the suite's run directory
        ("pytorch/models/opt-125M", "pytorch/models/opt-125M/model.onnx"),
        ("text/bert/model/bert-10.tar.gz", "text/bert/model/bert-10.tar.gz"),
        ("text/bert/model/bert-10.tar.gz", "bert-10.tar.gz"),
        ("text/bert/model/bert-10.tar.gz", "bert-10/model.onnx"),  # unpacked already
        ("nlp/bert_Opset16_x/bert_Opset16.onnx", "nlp/bert_Opset16_x/bert_Opset16.onnx"),
        ("resnet50.a1_in1k", "resnet50.a1_in1k/model.onnx"),  # what stands behind the dot is no ending
    ],
)
def test_where_a_name_is_looked_for(tmp_path: Path, name: str, file: str) -> None:
    models = touch(tmp_path / "models", file)
    (entry,) = read(listed(tmp_path, name), models)
    assert (entry.name, entry.source, entry.of, entry.base) == (name, "path", file, str(models))


def test_names_without_a_file_are_kept(tmp_path: Path) -> None:
    models = touch(tmp_path / "models", "two/a.onnx", "two/b.onnx", "hf_x/model.onnx", "here/model.onnx")
    entries = read(listed(tmp_path, "one two a/hf_x\nb/hf_x   here here"), models)
    assert [e.name for e in entries] == ["one", "two", "a/hf_x", "b/hf_x", "here"]
    assert [e.source for e in entries] == ["missing"] * 4 + ["path"]  # whose hf_x is, nothing says
    assert entries[0].of == f"no one/model.onnx, one.onnx or one.tar.gz under {models}"
    assert entries[1].of == "two has 2 ONNX files, and none is two/model.onnx"
    assert find_model(models, ("x.tar.gz",)).why == f"no x.tar.gz under {models}"


@pytest.mark.parametrize("name", ["../x", "a/../../x", "/etc/x", ".", "./.."])
def test_names_that_lead_out_of_the_folder(tmp_path: Path, name: str) -> None:
    with pytest.raises(OnnxFaError, match=r"list\.txt:2: '.*' leads out of the folder of the models"):
        read(listed(tmp_path, f"good\n{name}\n"), tmp_path)


def test_folders_of_entries_are_safe_and_differ() -> None:
    names = ["a/b", "a-b", "a\\b", "..", "../x", "x", "/x", ".x", "x y", "bert", "org/bert", "ü", "n" * 300, "n" * 301]
    folders = [folder_name(n) for n in names]
    assert len(set(folders)) == len(names)
    assert all("/" not in f and "\\" not in f and not f.startswith(".") and len(f) < 120 for f in folders)
    assert folder_name("bert") == "bert" and folder_name("a-b") == "a-b"


def test_softmaxes_left_alone_are_nobody_s_problem_where_nothing_is_expected() -> None:
    miss = {"node": "n", "op": "Softmax", "reason": "why"}
    result = {"steps": {}, "explain": {"sites": [], "misses": [miss]}, "compile": {"misses": [miss], "sites": []}}
    assert judge(Entry("m", "path", "m", misses=None), result) == ([], [])
    assert judge(Entry("m", "path", "m"), result)[0] == ["left alone: n (Softmax): why"]


# Archives.


def test_an_archive_is_unpacked_whole(tmp_path: Path) -> None:
    path = tar(
        tmp_path / "a.tar.gz",
        bert__model__bert_onnx=b"",
        **{"bert/bert.onnx": b"m", "bert/w.bin": b"w", "bert/._bert.onnx": b""},
    )
    model = unpack(path, tmp_path / "out")
    assert model == tmp_path / "out" / "bert" / "bert.onnx" and model.read_bytes() == b"m"
    assert (model.parent / "w.bin").read_bytes() == b"w" and not (model.parent / "._bert.onnx").exists()


@pytest.mark.parametrize(
    ("members", "why"),
    [
        ({"../m.onnx": b"x"}, "would leave the folder"),
        ({"/tmp/m.onnx": b"x"}, "would leave the folder"),
        ({"a/../../m.onnx": b"x"}, "would leave the folder"),
        ({"m.onnx": "/etc/passwd"}, "is no file but a link"),
        ({"m.onnx": b"x", "dir": ".."}, "is no file but a link"),
        ({"m.pb": b"x"}, "no ONNX file in it"),
        ({"a.onnx": b"x", "b.onnx": b"x"}, "2 ONNX files in it, not one"),
    ],
)
def test_archives_that_are_refused(tmp_path: Path, members: dict[str, bytes | str], why: str) -> None:
    folder = tmp_path / "work" / "out"
    with pytest.raises(ModelError, match=why):
        unpack(tar(tmp_path / "a.tar.gz", **members), folder)
    assert not folder.exists() and not list((tmp_path / "work").glob("*") if (tmp_path / "work").exists() else [])


def test_archives_that_cannot_be_read(tmp_path: Path) -> None:
    whole = tar(tmp_path / "a.tar.gz", **{"m.onnx": bytes(range(256)) * 400}).read_bytes()
    for data in (b"no archive", whole[: len(whole) // 2], b""):
        (tmp_path / "b.tar.gz").write_bytes(data)
        with pytest.raises(ModelError, match=r"b\.tar\.gz: cannot be unpacked"):
            unpack(tmp_path / "b.tar.gz", tmp_path / "out")


# Sizes of free dims, which a list does not say.


def with_free_dims(path: Path, nodes: list[onnx.NodeProto], **constants: object) -> Path:
    """A model of x to y, both of batch x S."""
    inputs, outputs = ([helper.make_tensor_value_info(n, TensorProto.FLOAT, ["batch", "S"])] for n in "xy")
    held = [numpy_helper.from_array(np.asarray(v), n) for n, v in constants.items()]
    graph = helper.make_graph(nodes, "g", inputs, outputs, held)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
    return path


@pytest.mark.parametrize(("rows", "length"), [(64, None), (32, 24), (16, 12), (8, 1)])
def test_lengths_that_a_model_can_be_run_with(tmp_path: Path, rows: int, length: int | None) -> None:
    """A table of positions may end early."""
    nodes = [
        helper.make_node("Shape", ["x"], ["shape"], start=1, end=2),
        helper.make_node("Squeeze", ["shape"], ["length"]),
        helper.make_node("Range", ["zero", "length", "one"], ["positions"]),
        helper.make_node("Gather", ["table", "positions"], ["rows"]),
        helper.make_node("Add", ["x", "rows"], ["y"]),
    ]
    path = with_free_dims(tmp_path / "m.onnx", nodes, table=np.arange(rows, dtype=np.float32), zero=0, one=1)
    assert runnable_sizes(path, {}) == ({} if length is None else {"batch": 2, "S": length})
    assert runnable_sizes(path, {"batch": 3, "S": 5}) == {"batch": 3, "S": 5}
    assert runnable_sizes(path, {"batch": 3}) == {"batch": 3} | ({} if length is None else {"S": length})


def test_a_model_that_runs_with_no_length(tmp_path: Path) -> None:
    weights = np.ones((5, 5), np.float32)
    assert (
        runnable_sizes(
            with_free_dims(tmp_path / "m.onnx", [helper.make_node("MatMul", ["x", "w"], ["y"])], w=weights), {}
        )
        == {}
    )


# A run over a list.


@pytest.mark.whole
def test_a_run_over_a_list_of_names(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One in a folder, one in an archive, one that is not there: each has its line, and the exit code is 1."""
    models = tmp_path / "models"
    (models / "org" / "hf_a").mkdir(parents=True)
    model = tiny.attention(models / "org" / "hf_a" / "model.onnx")
    tar(models / "packed.tar.gz", **{"packed/m.onnx": model.read_bytes()})
    path = listed(tmp_path, "org/hf_a\npacked gone\n")
    out = tmp_path / "out"
    args = [
        "zoo",
        "run",
        "--zoo",
        str(path),
        "--models",
        str(models),
        "-o",
        str(out),
        "--steps",
        "explain",
        "--jobs",
        "2",
    ]
    assert main(args) == 1
    said = capsys.readouterr().out
    assert f"gone: export: not found: no gone/model.onnx, gone.onnx or gone.tar.gz under {models}" in said
    results = [json.loads(line) for line in (out / "results.jsonl").read_text().splitlines()]
    assert [(r["name"], r["ok"], len(r.get("explain", {}).get("sites", []))) for r in results] == [
        ("org/hf_a", True, 1),
        ("packed", True, 1),
        ("gone", False, 0),
    ]
    work = sorted(p.name for p in (out / "work").iterdir())
    assert work == sorted([folder_name("org/hf_a"), "packed", "gone"])
    assert f'href="#model-{folder_name("org/hf_a")}"' in (out / "results.html").read_text()
    # What was unpacked is taken over, and made again where it is damaged.
    unpacked = out / "work" / "packed" / "unpacked" / "packed" / "m.onnx"
    unpacked.write_bytes(b"")
    assert main([*args, "--filter", "packed", "--update-baseline"]) == 0 and unpacked.read_bytes() == model.read_bytes()
    assert list(json.loads((tmp_path / "list-baseline.json").read_text())["entries"]) == ["packed"]
    assert main(["zoo", "list", "--zoo", str(path), "--models", str(tmp_path / "none")]) == 2
