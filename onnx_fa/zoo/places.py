"""Where the model of a name is, under a folder of models: a file, a folder with a file, an archive with one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from onnx_fa.zoo.archives import ENDINGS


@dataclass(frozen=True)
class Found:
    """The model's path relative to the folder; where there is none, it is empty and `why` says what was looked for."""

    path: str = ""
    why: str = ""


def find_model(models: Path, names: Sequence[str]) -> Found:
    """The model of the first of `names` that has one: NAME itself where it is a file, NAME/model.onnx, NAME.onnx, NAME.tar.gz, or
    the only ONNX file under NAME/. A name that ends as a file does stands for the folder without the ending too."""
    whys: list[str] = []
    for name in dict.fromkeys(names):
        for stem in dict.fromkeys((name, _without_ending(name))):
            for path in _places(stem, is_name=stem == name):
                if (models / path).is_file():
                    return Found(path)
            found = sorted(p for p in (models / stem).rglob("*.onnx") if p.is_file())
            if len(found) == 1:
                return Found(found[0].relative_to(models).as_posix())
            if found:
                whys.append(f"{stem} has {len(found)} ONNX files, and none is {stem}/model.onnx")
    name = names[0]
    looked = f"no {name}/model.onnx, {name}.onnx or {name}.tar.gz under {models}"
    if name.endswith((".onnx", *ENDINGS)):
        looked = f"no {name} under {models}"
    return Found(why="; ".join(whys) or looked)


def _places(stem: str, is_name: bool) -> Iterator[str]:
    if is_name and stem.endswith((".onnx", *ENDINGS)):
        yield stem
    yield f"{stem}/model.onnx"
    yield f"{stem}.onnx"
    yield from (stem + ending for ending in ENDINGS)


def _without_ending(name: str) -> str:
    ending = next((e for e in (".onnx", *ENDINGS) if name.endswith(e)), "")
    return name.removesuffix(ending)
