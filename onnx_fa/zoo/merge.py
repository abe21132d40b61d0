"""`zoo merge`: the results of all shards of a run as one, as if it had not been in shards."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from onnx_fa.errors import OnnxFaError
from onnx_fa.files import read_text, write_whole, writing
from onnx_fa.zoo.entries import folder_name
from onnx_fa.zoo.run import read_results
from onnx_fa.zoo.shards import Shard, parse_shard

Json = dict[str, Any]


@dataclass(frozen=True)
class _Part:
    """What one shard's folder holds. `names` are those of the whole zoo, in its order."""

    folder: Path
    said: Json
    results: list[Json]
    shard: Shard
    names: list[str]


def merge(output: Path, folders: Sequence[Path]) -> tuple[list[Json], Json]:
    """The results of all shards in the zoo's order, and the facts of the machines; both are written to `output` too, with the
    pictures and logs of the models.

    Raises OnnxFaError for folders that are no shards of one run, for one that is missing or there twice, and when `output` is one
    of them or cannot be written.
    """
    if same := [f for f in folders if f.resolve() == output.resolve()]:
        raise OnnxFaError(f"{same[0]}: the merged results need a folder of their own")
    parts = [_read(f) for f in folders]
    _check(parts)
    first = parts[0]
    found = {r["name"]: r for p in parts for r in p.results}
    results = [found[n] for n in first.names]
    machine = first.said["machine"] | {
        key: "; ".join(dict.fromkeys(str(p.said["machine"].get(key, "")) for p in parts)) for key in ("cpu", "gpu")
    }
    with writing(output):
        (output / "work").mkdir(parents=True, exist_ok=True)
        for p in parts:
            for source in _kept(p):
                target = output / "work" / source.parent.name / source.name
                target.parent.mkdir(exist_ok=True)
                shutil.copyfile(source, target)
    write_whole(output / "results.jsonl", "".join(json.dumps(r) + "\n" for r in results))
    write_whole(output / "run.json", json.dumps(first.said | {"machine": machine, "shard": None}) + "\n")
    return results, machine


def _kept(p: _Part) -> Iterator[Path]:
    """What the reports show of a shard's models, and what their steps said."""
    for r in p.results:
        work = p.folder / "work" / folder_name(r["name"])
        yield from (f for f in sorted(work.glob("*.log")) if f.is_file())
        if (work / "sites.html").is_file():
            yield work / "sites.html"


def _read(folder: Path) -> _Part:
    path = folder / "run.json"
    try:
        said = json.loads(read_text(path))
        names = said["zoo"]["entries"]
        text = said["shard"]
        whole = (
            {"target", "machine", "settings"} <= set(said) and "digest" in said["zoo"] and "versions" in said["machine"]
        )
        if not whole or not isinstance(names, list) or not all(isinstance(n, str) for n in names):
            raise ValueError("it does not say which zoo was run, and how")
    except (ValueError, KeyError, TypeError) as e:
        raise OnnxFaError(f"{path}: not of a shard of onnx-fa zoo run: {e}") from e
    if text is None:
        raise OnnxFaError(f"{folder}: a whole run, not a shard (zoo run --shard i/n)")
    try:
        shard = parse_shard(text)
    except (ValueError, TypeError) as e:
        raise OnnxFaError(f"{path}: not of a shard of onnx-fa zoo run: {e}") from e
    results = read_results(folder / "results.jsonl")
    if {r["name"] for r in results} != shard.names(names) or len(results) != len(shard.names(names)):
        raise OnnxFaError(f"{folder}: its results are not those of shard {shard}")
    return _Part(folder, said, results, shard, names)


def _check(parts: Sequence[_Part]) -> None:
    """Raises OnnxFaError where the parts are not all the shards of one run."""
    first = parts[0]
    for p in parts[1:]:
        for what, of in _comparable(first).items():
            here = _comparable(p)[what]
            if here != of:
                raise OnnxFaError(f"{p.folder}: another {what} than {first.folder}: {here}, not {of}")
    by_number: dict[int, _Part] = {}
    for p in parts:
        if p.shard.number in by_number:
            raise OnnxFaError(f"shard {p.shard} is there twice: {by_number[p.shard.number].folder} and {p.folder}")
        by_number[p.shard.number] = p
    if lacking := [str(n) for n in range(1, first.shard.count + 1) if n not in by_number]:
        raise OnnxFaError(f"no results of shard {', '.join(lacking)} of {first.shard.count}")


def _comparable(p: _Part) -> dict[str, str]:
    """What shards of one run have in common, by the words of a message."""
    zoo: Json = p.said["zoo"]
    return {
        "target": str(p.said["target"]),
        "zoo": f"{zoo['digest']} of {len(p.names)} models",
        "number of shards": str(p.shard.count),
        **{f"value of {key}": json.dumps(value) for key, value in sorted(p.said["settings"].items())},
        "set of settings": ", ".join(sorted(p.said["settings"])),
        "set of versions": json.dumps(p.said["machine"]["versions"], sort_keys=True),
    }
