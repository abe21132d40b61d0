"""Networks of convolutions along one axis with channels last, as vocoders, codecs and features of sound have them, most often of
free length.
The kernel of such a convolution reads and writes (batch, length, channels), and what lies between two of them needs no
transposes."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import onnx
import onnx_ir as ir

from onnx_fa.graph.ops import op_of
from onnx_fa.iree.legalise.channel_norm import channel_norm, same_sequence
from onnx_fa.iree.legalise.conv_transpose import Axis, upsampled_axes, write_phases
from onnx_fa.iree.legalise.image_rows import Places, RowsForm, RowsWriter
from onnx_fa.iree.legalise.row_forms import SINGLE, batch_norm, concat, pointwise, slice_, split
from onnx_fa.iree.legalise.row_parts import FindForm, write_parts
from onnx_fa.iree.legalise.sequence_places import cut_places, is_whole, pad_places, place_pads
from onnx_fa.iree.legalise.sequence_sites import Columns, Taps, has_kernels, sequence_spec, spec_of, write_sequence
from onnx_fa.iree.legalise.writer import FLOATS, GraphWriter, attr_of, declare_own_nodes
from onnx_fa.spec.sequences import SequenceSpec
from onnx_fa.spec.target import Target
from onnx_fa.spec.terms import Dim

_RANK = 3
_NOMINAL = 1024
"""Places that a sequence of free length is taken to have, where what is turned is counted."""
_TURN = [0, 2, 1]
_MORE = "#"
"""Between the symbol of a length and by how much another is longer, as "L#+2"."""
_CONVOLUTIONS = ("Conv", "ConvTranspose")
"""What is between others, as tokens of a transformer, stays as it is."""


@dataclass(frozen=True)
class Sound(Places):
    """A sequence (batch, channels, length): those whose lengths have the same symbol are as long."""

    length: Dim

    @property
    def where(self) -> tuple[Dim, ...]:
        return (self.length,)

    @property
    def numbers(self) -> int:
        places = self.length if isinstance(self.length, int) else _NOMINAL
        return self.channels * places if places > 1 and self.channels > 1 else 0

    @property
    def lone(self) -> int:
        """What a convolution by itself saves: of a known length a kernel for channels first takes it too."""
        return int(isinstance(self.length, str))

    @property
    def rows(self) -> list[Dim | None]:
        return [self.batch, self.length, self.channels]


Sounds = dict[str, Sound]


class SoundWriter(RowsWriter[Sound]):
    """Of sequences."""

    def _turned(self, x: str, hint: str) -> str:
        return self.g.add("Transpose", [x], hint, perm=_TURN)

    def _turned_back(self, x: str) -> None:
        self.g.add("Transpose", [self.rows[x]], x, perm=_TURN, out=x)


def put_sequences_last(
    model: onnx.ModelProto, held: Mapping[str, ir.TensorProtocol] | None = None, *, target: Target | None = None
) -> None:
    """Writes parts of the main graph with channels last, in place, for a CPU or a CUDA device whose kernels take them. `held` are
    initializers whose data are not in the model; types of values are taken from `value_info`."""
    g = GraphWriter(model, held, target=target)
    if not has_kernels(g):
        return
    there = {g.kind(node.input[0]) for node in model.graph.node if op_of(node) in _CONVOLUTIONS}
    for kind in there.intersection(g.kernel_kinds):
        g = GraphWriter(model, held, target=target)
        sounds = _sounds(g, kind)
        if sounds and write_parts(g, sounds, _FORMS, SoundWriter(g, sounds, kind), around=_CONVOLUTIONS):
            declare_own_nodes(model)


def _sounds(g: GraphWriter, kind: int) -> dict[str, Sound]:
    """All values of a kind that are sequences."""
    found = {v.name: sound for v in g.graph.input if (sound := _sound(g, v.name, kind)) is not None}
    found = {name: replace(sound, length=sound.length or f"{name}/length") for name, sound in found.items()}
    for node in g.graph.node:
        made = {name: sound for name in node.output if (sound := _sound(g, name, kind)) is not None}
        made = _of_one_batch(g, found, node, made) if made else made
        length = _length(g, found, node, made) if made else ""
        for name, sound in made.items():
            # Inference gives each result of a Conv or a Pad symbols of its own, though it may be as long as what it is made of.
            own = sound.length if isinstance(sound.length, int) else length or sound.length or f"{name}/length"
            found[name] = replace(sound, length=own)
    return found


def _sound(g: GraphWriter, name: str, kind: int) -> Sound | None:
    """A value's shape, if it is a sequence; without a length where inference says none."""
    shape = g.shape(name)
    if g.kind(name) != kind or shape is None or len(shape) != _RANK or g.is_constant(name):
        return None
    batch, channels, own = shape
    if 0 in shape or not isinstance(channels, int):
        return None
    return Sound(batch, channels, own or "")


def _of_one_batch(g: GraphWriter, found: Sounds, node: onnx.NodeProto, made: Sounds) -> Sounds:
    """What a node makes, with the batch of all sequences that it reads where that is its own: inference gives it another symbol."""
    batches, lengths = ({getattr(found[x], name) for x in node.input if x in found} for name in ("batch", "length"))
    find = _FORMS.get(op_of(node))
    if len(batches) != 1 or find is None or op_of(node) == "Reshape":
        return made
    own = {name: replace(sound, batch=next(iter(batches))) for name, sound in made.items()}
    # Operators of single numbers want lengths of one symbol, too.
    alike = own
    if len(lengths) == 1 and op_of(node) in _AS_LONG:
        alike = {name: replace(sound, length=next(iter(lengths))) for name, sound in own.items()}
    return own if find(g, ChainMap(alike, found), node) is not None else made


def _length(g: GraphWriter, found: Sounds, node: onnx.NodeProto, made: Sounds) -> str:
    """That of what a node makes, if it is as long as what it reads; else ""."""
    lengths = {found[x].length for x in node.input if x in found}
    (length, *more) = [*lengths, ""]
    if len(more) != 1 or not isinstance(length, str):
        return ""
    if op_of(node) == "Conv":
        spec = sequence_spec(g, node)
        return _longer(length, sum(spec.pads) - spec.span + 1) if spec is not None and spec.stride == 1 else ""
    if op_of(node) == "Pad":
        pads = place_pads(g, node)
        known = [n for n in pads or () if isinstance(n, int)]
        return _longer(length, sum(known)) if len(known) == 2 else ""
    if op_of(node) == "Slice" and is_whole(g, node):
        return length
    find = _AS_LONG.get(op_of(node))
    alike = {name: replace(sound, length=length) for name, sound in made.items()}
    return length if find is not None and find(g, ChainMap(alike, found), node) is not None else ""


def _longer(length: str, by: int) -> str:
    """The symbol of a length that is by so much longer than another, or shorter. A convolution of fewer places than it has taps is
    refused by onnxruntime, so that none is less than nothing."""
    base, _, more = length.partition(_MORE)
    total = by + int(more or 0)
    return f"{base}{_MORE}{total:+d}" if total else base


def _convolution(g: GraphWriter, sounds: Sounds, node: onnx.NodeProto) -> RowsForm | None:
    x, y = node.input[0], node.output[0]
    spec = sequence_spec(g, node) if x in sounds and y in sounds else None
    if spec is None:
        return None
    return RowsForm((x,), (y,), partial(_write_convolution, spec), _turned_else(sounds, x, y))


def _turned_else(sounds: Sounds, x: str, y: str) -> int:
    """What is turned around a convolution from x to y by itself, and more where it is to be written as rows even then."""
    return sounds[x].numbers + sounds[y].numbers + sounds[x].lone


def _write_convolution(spec: SequenceSpec, w: SoundWriter, node: onnx.NodeProto) -> None:
    hint, (y,) = node.name or node.op_type, node.output
    operands = [w.read(node.input[0], hint), *(name for name in node.input[1:] if name)]
    w.give(y, write_sequence(w.g, spec, operands, w.images[y].rows, hint))


def _upsampling(g: GraphWriter, sounds: Sounds, node: onnx.NodeProto) -> RowsForm | None:
    """A ConvTranspose as a Conv whose columns are the places that lie between two of x."""
    x, y = node.input[0], node.output[0]
    axes = upsampled_axes(g, node) if x in sounds and y in sounds else None
    if axes is None:
        return None
    (axis,), bias = axes, len(node.input) > 2 and bool(node.input[2])
    columns = Columns(1, sounds[x].channels, axis.stride * sounds[y].channels)
    spec = spec_of(g, (sounds[x].batch, sounds[x].length), columns, Taps(axis.depth, 1, 1, axis.pads), bias)
    if spec is None or spec.columns != columns.N:
        return None
    spec = replace(spec, phases=axis.stride, dtype=FLOATS[g.kind(x)])
    return RowsForm((x,), (y,), partial(_write_upsampling, spec, axis), _turned_else(sounds, x, y))


def _write_upsampling(spec: SequenceSpec, axis: Axis, w: SoundWriter, node: onnx.NodeProto) -> None:
    g, hint, (y,) = w.g, node.name or node.op_type, node.output
    sound, operands = w.images[y], [w.read(node.input[0], hint), *write_phases(g, node, [axis])]
    low, high = axis.cut
    rows = write_sequence(g, spec, operands, [sound.batch, None if low or high else sound.length], hint)
    if low or high:
        end = -high if high else np.iinfo(np.int32).max
        rows = g.add("Slice", [rows, *(g.ints([n], hint) for n in (low, end, 1))], hint)
    w.give(y, rows)


def _transpose(g: GraphWriter, sounds: Sounds, node: onnx.NodeProto) -> RowsForm | None:
    """A Transpose that puts channels last, or those of something else first: as rows none."""
    x, y, perm = node.input[0], node.output[0], list(attr_of(node, "perm", []))
    if perm != _TURN:
        return None
    if x in sounds:
        return RowsForm((x,), (), _write_leave, sounds[x].numbers)
    return RowsForm((), (y,), _write_enter, sounds[y].numbers) if y in sounds else None


def _write_leave(w: SoundWriter, node: onnx.NodeProto) -> None:
    hint = node.name or node.op_type
    w.g.add("Identity", [w.read(node.input[0], hint)], hint, out=node.output[0])


def _write_enter(w: SoundWriter, node: onnx.NodeProto) -> None:
    w.give(node.output[0], w.g.add("Identity", [node.input[0]], node.name or node.op_type))


_AS_LONG: dict[str, FindForm] = {
    **dict.fromkeys(SINGLE, pointwise),
    "BatchNormalization": batch_norm,
    "InstanceNormalization": channel_norm,
    "Reshape": same_sequence,
    "Concat": concat,
    "Split": split,
    "Slice": slice_,
}
"""Of operators whose results are as long as what they read."""
_FORMS: dict[str, FindForm] = {
    **_AS_LONG,
    "Slice": cut_places,
    "Pad": pad_places,
    "Conv": _convolution,
    "ConvTranspose": _upsampling,
    "Transpose": _transpose,
}
