"""Weights that a compiled program wants in another layout than the model's are brought into it once, on the way to the archive.

Matrix products in packed layout want their weights in tiles, and what depends on weights alone is computed beforehand. Left to
itself a module does both whenever it is loaded, beside the weights as they are, which takes as much memory again. iree-compile can
write a second program that does it: the *encoder*. It reads weights by their names, and writes what it makes of them in steps, each
of which needs the memory of one weight. The module then asks for that, under names that the compiler chose.
"""

from __future__ import annotations

import mmap
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import onnx_ir as ir

from onnx_fa.errors import CompileError, MissingDependencyError, one_line
from onnx_fa.files import staged_file
from onnx_fa.iree.archives import SCOPE
from onnx_fa.iree.weights import Parameter, begin_archive

ENCODER_FLAGS = ("--iree-llvmcpu-stack-allocation-limit=65536",)
"""For compiling an encoder: half of a worker's stack, which tiles of its copies take."""
_OPTION = "--iree-parameter-encoder-"
_MADE = re.compile(r"parameter\d+")
"""The compiler's names for what an encoder writes."""
_TEXT = re.compile(r'util\.buffer\.constant : !util\.buffer = "((?:[^"\\]|\\.)*)"')
_PRINTED = {ord('"'): "\\22", ord("\\"): "\\\\"}
_DATA = 1
"""The kind of an entry whose bytes an encoder writes."""
_LOOK_NS = 100_000_000


def may_pack(parameters: Sequence[Parameter], flags: Sequence[str]) -> bool:
    """Whether an encoder can be asked for: not where its names could be those of weights, or where the caller asks for one."""
    return (
        bool(parameters)
        and not any(f.startswith(_OPTION) for f in flags)
        and not any(_MADE.fullmatch(p.key) for p in parameters)
    )


def encoder_flags(encoder: Path) -> tuple[str, ...]:
    """Makes iree-compile write an encoder (MLIR) to this path, and a module that needs what it writes."""
    return (f"{_OPTION}mode=overlay", f"{_OPTION}output-file={encoder}", f"{_OPTION}output-scope={SCOPE}")


def asked_for(parameters: Sequence[Parameter], text: str) -> list[Parameter]:
    """Those whose names a program has, an encoder or the IR of a module's HAL phase."""
    named = set(_TEXT.findall(text))
    return [p for p in parameters if _as_mlir(p.key) in named]


def _as_mlir(text: str) -> str:
    """As MLIR prints it between quotes."""
    return "".join(_PRINTED.get(byte, chr(byte) if 32 <= byte < 127 else f"\\{byte:02X}") for byte in text.encode())


def write_packed_archive(kept: Sequence[Parameter], read: Sequence[Parameter], encoder: Path, path: Path) -> None:
    """Writes `kept`, and what `encoder` (.vmfb) makes of the parameters that it reads, to `path` (.irpa), whole or not at all.

    Files are mapped, and their pages given back; memory is that of a few weights. Raises CompileError where the encoder fails, and
    OnnxFaError where the place cannot be written.
    """
    try:
        import iree.runtime as rt
    except ImportError as e:
        raise MissingDependencyError("the IREE runtime is not installed: pip install iree-base-runtime") from e
    with staged_file(path) as staged, staged.open("w+b") as file:
        program = _Encoder(rt, encoder)
        made = program.outputs()
        starts = begin_archive(kept, made, file)
        file.flush()
        index, maps = rt.ParameterIndex(), {}
        for key, source, at, length in _places(read, staged.with_name("inside")):
            if source not in maps:
                with source.open("rb") as opened:
                    maps[source] = mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ)
            index.add_from_file_handle(key, rt.FileHandle.wrap_memory(maps[source], writable=False), length, at)
        archive = rt.FileHandle.wrap_fd(file.fileno(), readable=True, writable=True)
        for (key, length), at in zip(made, starts[len(kept) :], strict=True):
            index.add_from_file_handle(key, archive, length, at)
        program.run(index, list(maps.values()))


def _places(parameters: Sequence[Parameter], inside: Path) -> Iterator[tuple[str, Path, int, int]]:
    """The key of each parameter, and the file, offset and length of its bytes: beside the model, or in `inside`."""
    held = [p for p in parameters if not isinstance(p.tensor, ir.ExternalTensor)]
    with inside.open("wb") as file:
        starts = dict(zip((p.key for p in held), begin_archive(held, (), file), strict=True))
    for parameter in parameters:
        tensor, at = parameter.tensor, starts.get(parameter.key)
        if isinstance(tensor, ir.ExternalTensor):
            yield parameter.key, Path(tensor.path), tensor.offset or 0, tensor.nbytes
        elif at is not None:
            yield parameter.key, inside, at, tensor.nbytes


class _Encoder:
    """An encoder that is loaded. Its functions are those that IREE's own tool iree-encode-parameters calls."""

    def __init__(self, rt: Any, path: Path) -> None:
        config = rt.Config("local-task")
        self._rt, self._device, self._instance = rt, config.device, config.vm_instance
        self._module = rt.VmModule.mmap(self._instance, str(path))

    def outputs(self) -> list[tuple[str, int]]:
        """Names and lengths of what it writes. Raises CompileError where it would write elsewhere than to an archive of ours."""
        (scopes,) = _items(self._call(self._context(self._rt.ParameterIndex()), "__encode_parameter_indices_all"))
        made = []
        for scope in _items(scopes):
            entries = _items(scope.get_as_list(1))
            if self._text(scope, 0) != SCOPE or any(entry.get_variant(0) != _DATA for entry in entries):
                raise CompileError(
                    "the compiler packs weights in a way that is not known here; compile with --parameters embed"
                )
            made += [(self._text(entry, 1), int(entry.get_variant(3))) for entry in entries]
        return made

    def run(self, index: Any, maps: Sequence[mmap.mmap]) -> None:
        """Reads and writes the entries of `index`. Pages of `maps` that it has read are given back while it runs."""
        context = self._context(index)
        (steps,) = _items(self._call(context, "__encode_parameter_steps_all"))
        timeline = self._device.create_semaphore(0)
        begin, end = (self._rt.HalFence.create_at(timeline, value) for value in (0, 1))
        arguments = self._rt.VmVariantList(3)
        arguments.push_list(steps)
        arguments.push_ref(begin)
        arguments.push_ref(end)
        self._call(context, "__encode_parameters_all", arguments)
        try:
            while not end.wait(timeout=_LOOK_NS):
                for pages in maps:
                    pages.madvise(mmap.MADV_DONTNEED)
        except Exception as e:  # as above
            raise CompileError(f"weights could not be packed: {one_line(e)}") from e

    def _context(self, index: Any) -> Any:
        rt = self._rt
        weights = rt.create_io_parameters_module(self._instance, index.create_provider(scope=SCOPE))
        return rt.VmContext(self._instance, [rt.create_hal_module(self._instance, self._device), weights, self._module])

    def _call(self, context: Any, name: str, arguments: Any = None) -> Any:
        results = self._rt.VmVariantList(1)
        try:
            context.invoke(self._module.lookup_function(name), arguments or self._rt.VmVariantList(0), results)
        except Exception as e:  # the bindings raise whatever their C++ throws
            raise CompileError(f"weights could not be packed: {one_line(e)}") from e
        return results

    def _text(self, items: Any, at: int) -> str:
        return bytes(items.get_as_object(at, self._rt.VmBuffer)).decode()


def _items(lists: Any) -> list[Any]:
    return [lists.get_as_list(at) for at in range(lists.size)]
