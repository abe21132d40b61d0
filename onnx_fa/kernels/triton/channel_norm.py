"""What norms of channels take from sequences and images whose channels come last (onnx_fa/spec/channel_norm.py), by Triton, in two
dispatches. In the first a workgroup has some channels and a part of the places: each of its threads keeps means and sums of squares
of its own (Welford 1962), which are then put together (Chan, Golub, LeVeque 1983), as those of all parts are by the second. So no
sum has many terms, and none loses what is small beside a mean."""

from __future__ import annotations

from functools import cache

from onnx_fa.kernels.cpu.channel_norm import ChannelStatistics
from onnx_fa.kernels.mlir.called import function_text, read_dims
from onnx_fa.kernels.mlir.operand import Operand
from onnx_fa.kernels.mlir.text import Text, element_type
from onnx_fa.kernels.triton import ptx
from onnx_fa.kernels.triton.config import ARCHITECTURES, padded
from onnx_fa.kernels.triton.entry import dispatch
from onnx_fa.kernels.triton.executable import ArchCode, executable_text
from onnx_fa.kernels.triton.expressions import Block
from onnx_fa.kernels.triton.program import Program, write_program
from onnx_fa.spec.channel_norm import ChannelSpec

PARTS = 64
"""Of the places: with 128 channels enough workgroups for all multiprocessors."""
_PLACES = 32
"""That a workgroup reads at a time."""
_COLUMNS = 64
"""Channels of a workgroup."""
_WARPS = 4


@cache
def emit_channels(kernel: ChannelStatistics) -> dict[str, str]:
    """The executables and the function of the kernel's name, which takes x and the scale and returns the mean and the factor of
    each channel, by their symbols."""
    spec, texts = kernel.spec, dict[str, list[str]]()
    for program in (parts_program(spec, f"{spec.name}_parts"), whole_program(spec, f"{spec.name}_whole")):
        codes = [ArchCode(arch, ptx.compile_program(program, arch, _WARPS, 1)) for arch in ARCHITECTURES]
        texts[program.entry] = executable_text(program.entry, program, codes, [1] * len(codes))
    texts[spec.name] = _function(kernel)
    return {key: "\n".join(lines) + "\n" for key, lines in texts.items()}


def _columns(spec: ChannelSpec) -> int:
    return min(_COLUMNS, padded(spec.channels))


def _blocks(spec: ChannelSpec) -> int:
    """Workgroups beside each other."""
    return -(-spec.channels // _columns(spec))


def _sizes(spec: ChannelSpec) -> tuple[str, str, dict[str, str]]:
    """How the source calls the numbers of images and of places, and its parameters, by what they hold."""
    free = {"images": spec.images, "length": spec.length}
    names = {name: f"s{i}" for i, name in enumerate(name for name, known in free.items() if known is None)}
    return names.get("images", str(spec.images)), names.get("length", str(spec.length)), names


def _begin(t: Block, spec: ChannelSpec, workgroup: str) -> None:
    """Which image and channels a workgroup has. Of no images one workgroup is launched all the same."""
    images, _, _ = _sizes(spec)
    columns, blocks = _columns(spec), _blocks(spec)
    t.do(f"image = ({workgroup} // {blocks}).to(tl.int64)")
    t.do(f"c = {workgroup} % {blocks} * {columns} + tl.arange(0, {columns})")
    t.do(f"there = c < {spec.channels} * (image < {images}).to(tl.int32)")


def parts_program(spec: ChannelSpec, symbol: str) -> Program:
    """The source of the first dispatch: of each part the means, and the sums of the squares of what they leave."""
    t, (images, length, sizes) = Block(), _sizes(spec)
    t.do("pid = tl.program_id(0)")
    _begin(t, spec, f"(pid // {PARTS})")
    t.do(f"part = pid % {PARTS}")
    t.do(f"each = tl.cdiv(({length}), {PARTS})")
    t.do(f"end = tl.minimum(({length}), (part + 1) * each)")
    t.do(f"first = part * each + tl.arange(0, {_PLACES})")
    t.do(f"images = x + image * ({length}) * {spec.channels} + c")
    # Numbers are taken from one of them, so that what is small beside a mean has all its digits.
    t.do("base_at = images + tl.minimum(part * each, end - 1).to(tl.int64) * " + str(spec.channels))
    t.do(f"some = {spec.channels} * ((image < {images}) & (end > 0)).to(tl.int32)")
    t.do("base = tl.load(base_at, mask=c < some, other=0.0).to(tl.float32)")
    t.do(f"mean = tl.zeros([{_PLACES}, {_columns(spec)}], tl.float32)")
    t.do(f"square = tl.zeros([{_PLACES}, {_columns(spec)}], tl.float32)")
    t.do(f"count = tl.zeros([{_PLACES}], tl.float32)")
    t.do(f"for k in range(0, each, {_PLACES}):")
    t.indent += 1
    t.do("place = first + k")
    t.do("known = (place < end)[:, None] & there[None, :]")
    t.do(f"at = images[None, :] + place.to(tl.int64)[:, None] * {spec.channels}")
    t.do("count += (place < end).to(tl.float32)")
    t.do("number = tl.load(at, mask=known, other=0.0).to(tl.float32) - base[None, :]")
    t.do("apart = tl.where(known, number - mean, 0.0)")
    t.do("mean += apart / tl.maximum(count, 1.0)[:, None]")
    t.do("square += apart * tl.where(known, number - mean, 0.0)")
    t.indent -= 1
    _join(t, "count", "mean", "square")
    t.do(f"to = out + ((image * {PARTS} + part) * 2) * {spec.channels} + c")
    t.do("tl.store(to, base + whole, mask=there)")
    t.do(f"tl.store(to + {spec.channels}, squares, mask=there)")
    return write_program(symbol, [("x", element_type(spec.dtype)), ("out", "f32")], sizes, t.lines)


def whole_program(spec: ChannelSpec, symbol: str) -> Program:
    """The source of the second dispatch: the mean and the factor of each channel."""
    t, (_, length, sizes) = Block(), _sizes(spec)
    t.do("pid = tl.program_id(0)")
    _begin(t, spec, "pid")
    t.do(f"part = tl.arange(0, {PARTS})")
    t.do(f"each = tl.cdiv(({length}), {PARTS})")
    t.do(f"count = tl.maximum(tl.minimum(({length}) - part * each, each), 0).to(tl.float32)")
    t.do(f"at = parted + ((image * {PARTS} + part[:, None]) * 2) * {spec.channels} + c[None, :]")
    t.do("mean = tl.load(at, mask=there[None, :], other=0.0)")
    t.do(f"square = tl.load(at + {spec.channels}, mask=there[None, :], other=0.0)")
    _join(t, "count", "mean", "square")
    t.do("scales = tl.load(scale + c, mask=there, other=0.0)")
    t.do(f"to = image * {spec.channels} + c")
    t.do("tl.store(out0 + to, whole, mask=there)")
    t.do(f"factor = scales / tl.sqrt_rn(squares / ({length}) + {spec.epsilon!r})")
    t.do("tl.store(out1 + to, factor, mask=there)")
    pointers = [("parted", "f32"), ("scale", "f32"), ("out0", "f32"), ("out1", "f32")]
    return write_program(symbol, pointers, sizes, t.lines)


def _join(t: Block, count: str, mean: str, square: str) -> None:
    """Puts rows together: `whole` is the mean of all that they count, `squares` the sum of the squares of what it leaves."""
    t.do(f"all = tl.maximum(tl.sum({count}, 0), 1.0)")
    t.do(f"whole = tl.sum({mean} * {count}[:, None], 0) / all")
    t.do(f"off = {mean} - whole[None, :]")
    t.do(f"squares = tl.sum({square} + {count}[:, None] * off * off, 0)")


def _function(kernel: ChannelStatistics) -> list[str]:
    t, spec, x = Text(), kernel.spec, kernel.x
    read_dims(t, [x])
    images = "%images" if spec.images is None else t.index(spec.images)
    count = t.arith("muli", images, t.index(_blocks(spec)))
    whole = t.arith("maxui", count, t.index(1))  # CUDA takes no launch of nothing
    sizes = [t.let(f"arith.index_cast %{size} : index to i32") for size in _sizes(spec)[2]]
    parted = Operand("%parted", (x.shape[0], PARTS, 2, spec.channels), "f32")

    def run(symbol: str, count: str, given: list[Operand], values: list[str], made: list[Operand]) -> list[str]:
        types = [v.sized_type for v in given] + ["i32"] * len(sizes)
        results = [v.sized_type for v in made]
        return dispatch(t, symbol, list(ARCHITECTURES), [count] * len(ARCHITECTURES), [*values, *sizes], types, results)

    (parts,) = run(f"{spec.name}_parts", t.arith("muli", whole, t.index(PARTS)), [x], [x.name], [parted])
    operands = [parted, kernel.scale]
    made = run(f"{spec.name}_whole", whole, operands, [parts, kernel.scale.name], kernel.results)
    return function_text(spec.name, [x, kernel.scale], kernel.results, t, made)
