"""A model in a .tar.gz, as collections of models hand them out: unpacked, but nothing outside the folder it goes to."""

from __future__ import annotations

import shutil
import tarfile
import zlib
from pathlib import Path, PurePosixPath

from onnx_fa.errors import ModelError

ENDINGS = (".tar.gz", ".tgz")
LARGEST = 32 << 30
"""Bytes of all files of an archive together: more is no model but a mistake, or worse."""


def is_archive(path: Path) -> bool:
    return path.name.lower().endswith(ENDINGS)


def unpack(path: Path, folder: Path) -> Path:
    """The model of the archive, after all its files are in `folder`, which is made anew.

    Raises ModelError where it cannot be read, holds no model or several, or a member that would leave the folder: a path with `..`,
    an absolute one, a link, a device.
    """
    shutil.rmtree(folder, ignore_errors=True)
    try:
        with tarfile.open(path) as archive:
            members = [m for m in archive.getmembers() if not m.isdir()]
            for m in members:
                _check(path, m)
            if (size := sum(m.size for m in members)) > LARGEST:
                raise ModelError(f"{path}: unpacks to {size >> 30} GiB, more than {LARGEST >> 30}")
            # What macOS's tar puts beside each file under its name, with "._" before it.
            files = [m for m in members if not PurePosixPath(m.name).name.startswith("._")]
            model = _model(path, [m.name for m in files])
            for m in files:
                target = folder / m.name
                target.parent.mkdir(parents=True, exist_ok=True)
                source = archive.extractfile(m)
                assert source is not None  # a file, as checked
                with source, target.open("wb") as stream:
                    shutil.copyfileobj(source, stream)
    except (tarfile.TarError, EOFError, zlib.error, OSError) as e:
        raise ModelError(f"{path}: cannot be unpacked: {e}") from e
    return folder / model


def _check(path: Path, member: tarfile.TarInfo) -> None:
    name = PurePosixPath(member.name)
    if name.is_absolute() or ".." in name.parts:
        raise ModelError(f"{path}: its member {member.name!r} would leave the folder that it is unpacked to")
    if not member.isreg():
        raise ModelError(f"{path}: its member {member.name!r} is no file but a link or a device")


def _model(path: Path, names: list[str]) -> str:
    models = [n for n in names if n.endswith(".onnx")]
    if len(models) > 1:
        models = [n for n in models if PurePosixPath(n).name == "model.onnx"] or models
    if len(models) != 1:
        raise ModelError(f"{path}: {f'{len(models)} ONNX files' if models else 'no ONNX file'} in it, not one")
    return models[0]
