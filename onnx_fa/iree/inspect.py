"""What the compiler really made of each site, read from its own IR (after `flow` and after code generation)."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from onnx_fa.errors import RunError
from onnx_fa.forms.report import SiteReport
from onnx_fa.iree.placed import devices_of
from onnx_fa.spec.attention import AttentionSpec
from onnx_fa.spec.target import device_name

if TYPE_CHECKING:
    from onnx_fa.iree.kernels import PlannedSite
    from onnx_fa.kernels.mlir.kernel import Kernel

_TENSOR = re.compile(r"tensor<((?:(?:\?|\d+)x)*)([a-z]+[0-9a-zA-Z]*)")
_DISPATCH = re.compile(r"(?:(%[\w$.]+)(?::\d+)? = )?flow\.dispatch \{?@([\w$.]+)::@([\w$.]+)(.*)")
_ALLOCA = re.compile(r"llvm\.alloca (%\w+) x (\S.*?) (?:\{|:)")
_CONSTANT = re.compile(r"(%\w+) = llvm\.mlir\.constant\((\d+) : \w+\)")
_BITS = {"bf16": 16, "index": 64}
# What only an attention (or a softmax) needs; a transpose, a cast or a mask preparation has none of it.
_COMPUTES = re.compile(r"math\.exp|vector\.fma|linalg\.(?:batch_)?matmul|contraction|attention|linalg\.softmax")
# The exponential of a difference: a sigmoid or a GELU has none.
_SOFTMAX = re.compile(r"linalg\.softmax|(%\w+) = arith\.subf[^\n]*\n\s*%\w+ = math\.exp2? \1\b")

OUTSIDE = "a softmax, or a merge of parts of one, outside any kernel"


@dataclass(frozen=True)
class Buffer:
    """A tensor that is written by one dispatch and read by another. `bytes` is None when a dim is dynamic."""

    dispatch: str
    type: str
    shape: tuple[int | None, ...]
    bytes: int | None
    why: str

    def __str__(self) -> str:
        size = "of dynamic size" if self.bytes is None else f"{self.bytes} bytes"
        return f"{self.type} ({size}) from dispatch {self.dispatch}: {self.why}"


@dataclass(frozen=True)
class Dispatch:
    """One `flow.dispatch` in the program. `computes` is false for pure data movement."""

    executable: str
    export: str
    results: tuple[str, ...]
    computes: bool
    softmax: bool

    @property
    def combines(self) -> bool:
        """Whether it adds up what workgroups with a part of the keys each found (kernels/cpu/combine.py)."""
        return self.executable.endswith("_combine")


@dataclass(frozen=True)
class SiteFacts:
    """Of one kernel: its dispatches per site, how many of them compute (but for one that combines the parts of split keys), buffers
    between them, a workgroup's stack."""

    dispatches: int
    computing: int
    largest_buffer_bytes: int | None
    stack_bytes: int | None
    score_buffers: tuple[Buffer, ...]
    devices: frozenset[str] = frozenset()
    """Those that its dispatches run on, of a program of several."""

    @property
    def fused(self) -> bool:
        return self.computing == 1 and not self.score_buffers


@dataclass(frozen=True)
class Inspection:
    """`by_kernel` has the facts of each kernel by its name; `buffers` is every Sq x Skv buffer of the program, and what
    a softmax that is not in a kernel writes; `dispatches` are all dispatches in order of first use; `stacks` has the
    stack bytes of a workgroup by executable (None: known only at run time)."""

    by_kernel: Mapping[str, SiteFacts] = field(default_factory=dict)
    buffers: tuple[Buffer, ...] = ()
    dispatches: tuple[Dispatch, ...] = ()
    stacks: Mapping[str, int | None] = field(default_factory=dict)

    def fill(self, site: PlannedSite) -> SiteReport:
        """The site's report with what was found; unchanged for a site that has no kernel."""
        kernel = site.kernel
        if kernel is None:
            return site.report
        facts = self.by_kernel[kernel.name]
        place = None if site.device is None else device_name(site.device)
        return replace(
            site.report,
            device=place if place is None or place in facts.devices else "",
            fused=facts.fused,
            dispatches=facts.dispatches,
            largest_buffer_bytes=facts.largest_buffer_bytes,
            tiles={"body": kernel.body, **kernel.config},
            tuning=kernel.tuning,
        )


def inspect_phases(folder: Path, sites: Sequence[PlannedSite]) -> Inspection:
    """Reads what `--dump-compilation-phases-to=folder` left of a model that has these sites.

    A dispatch belongs to a kernel when the kernel's name is in its symbol, or that of one that the compiler merged with it.
    Raises RunError when a phase is missing.
    """
    flow = _phase(folder, "flow")
    bodies = dict(_executables(flow, "flow.executable"))
    program = _outside(flow)
    calls = [_dispatch(m, bodies) for line in program if (m := _DISPATCH.search(line))]
    kernels = [site.kernel for site in sites if site.kernel is not None]
    made = {f"{k.name}_attention" for k in kernels if k.body == "triton"}
    calls = [replace(c, computes=True) if c.executable in made else c for c in calls]  # there is no IR of their code
    stacks = {n: _stack_bytes(b) for n, b in _executables(_phase(folder, "executable-targets"), "hal.executable")}
    for function, size in _frames(folder).items():
        # The frame holds the allocas and what the register allocator spilled besides.
        for name in (n for n in stacks if function.startswith(n)):
            allocas = stacks[name]
            stacks[name] = None if allocas is None else max(allocas, size)
    specs, twins = {k.name: k.spec for k in kernels}, _twins(kernels)
    places = devices_of(_phase(folder, "stream")) if any(site.device is not None for site in sites) else {}
    by_kernel = {}
    for name, spec in specs.items():
        uses = sum(k.name in twins[name] for k in kernels)
        own = [c for c in calls if any(n in c.executable for n in twins[name])]
        scores = tuple(b for c in own for b in _score_buffers(c, [spec]))
        inner = [_bytes(t) for c in own if not c.computes for t in c.results]
        inner += [_bytes(t) for c in own if c.computes for t in c.results if not _is_output(t, spec)]
        stack = max((stacks.get(c.executable) for c in own), key=lambda s: math.inf if s is None else s, default=None)
        known = [*inner, stack]
        largest = None if any(b is None for b in known) else max(b for b in known if b is not None)
        by_kernel[name] = SiteFacts(
            math.ceil(len(own) / uses),
            math.ceil(sum(c.computes and not c.combines for c in own) / uses),
            largest,
            stack,
            scores,
            frozenset(place for c in own for place in places.get(c.executable, ())),
        )
    fused = [site.spec for site in sites if not site.reason]
    everywhere = [b for c in calls for b in _score_buffers(c, fused)]
    for call in calls:
        if call.softmax and not any(name in call.executable for name in specs):
            everywhere += [_buffer(call, t, OUTSIDE) for t in call.results]
    unique = {(b.dispatch, b.type): b for b in reversed(everywhere)}
    return Inspection(by_kernel, tuple(reversed(unique.values())), tuple(dict.fromkeys(calls)), stacks)


def inspect_program(folder: Path) -> tuple[Dispatch, ...]:
    """Every dispatch of a program without kernels of this project, each as often as it is in the text, from what
    `--dump-compilation-phases-to=folder` left. Raises RunError when the phase is missing."""
    flow = _phase(folder, "flow")
    bodies = dict(_executables(flow, "flow.executable"))
    return tuple(_dispatch(m, bodies) for line in _outside(flow) if (m := _DISPATCH.search(line)))


def bytes_of_type(text: str) -> int | None:
    """The size of a tensor type as dispatches have them; None when a dim is dynamic."""
    return _bytes(text)


def elements_of_type(text: str) -> int | None:
    """The number of elements of such a type; None when a dim is dynamic."""
    dims = _shape(text)[0]
    return None if any(d is None for d in dims) else math.prod(d for d in dims if d is not None)


def _twins(kernels: Sequence[Kernel]) -> dict[str, set[str]]:
    """By the name of each kernel the names of all that have its text but for the name. The compiler keeps one of them, which every
    site then dispatches: they differ in the names of free lengths, of which nothing is left in the text."""
    of_text: dict[str, set[str]] = {}
    for k in kernels:
        of_text.setdefault(k.text.replace(k.name, ""), set()).add(k.name)
    return {name: names for names in of_text.values() for name in names}


_LABEL = re.compile(r'^"?([\w$.]+)"?:')
_FRAME = re.compile(r"\bsubq?\s+(?:\$(\d+), %rsp|sp, sp, #(\d+)(, lsl #12)?)")


def _frames(folder: Path) -> dict[str, int]:
    """Bytes of each function's stack frame, from the assembly that --iree-hal-dump-executable-intermediates-to left
    (x86-64 and AArch64; empty where there is none)."""
    frames: dict[str, int] = {}
    for path in folder.glob("*.s"):
        function = ""
        for line in path.read_text(errors="replace").splitlines():
            if m := _LABEL.match(line):
                function = m[1] if not m[1].startswith(".L") else function
            elif m := _FRAME.search(line):
                size = int(m[1] or m[2]) << (12 if m[3] else 0)
                frames[function] = frames.get(function, 0) + size
    return frames


def _phase(folder: Path, phase: str) -> list[str]:
    found = sorted(folder.glob(f"*.{phase}.mlir"))
    if not found:
        raise RunError(f"{folder}: iree-compile left no IR of its phase {phase!r}")
    return found[-1].read_text().splitlines()


def _executables(lines: Sequence[str], op: str) -> Iterator[tuple[str, list[str]]]:
    """(symbol, lines) of each executable; the printer puts its closing bracket at the opening line's indentation."""
    start = re.compile(rf"( *){re.escape(op)} (?:private|public)?\s*@([\w$.]+)")
    i = 0
    while i < len(lines):
        m = start.match(lines[i])
        if m:
            end = next((j for j in range(i + 1, len(lines)) if lines[j].startswith(m[1] + "}")), len(lines) - 1)
            yield m[2], list(lines[i : end + 1])
            i = end
        i += 1


def _outside(lines: Sequence[str]) -> list[str]:
    inside = False
    result = []
    for line in lines:
        if line.startswith("  flow.executable "):
            inside = True
        if not inside:
            result.append(line)
        if line.startswith("  }"):
            inside = False
    return result


def _dispatch(match: re.Match[str], bodies: Mapping[str, list[str]]) -> Dispatch:
    executable, export, rest = match[2], match[3], match[4]
    text = "\n".join(bodies.get(executable, []))
    arrow = rest.rpartition(" -> ")[2]
    results = tuple(m.group(0) + ">" for m in _TENSOR.finditer(arrow))
    return Dispatch(executable, export, results, bool(_COMPUTES.search(text)), bool(_SOFTMAX.search(text)))


def _shape(text: str) -> tuple[tuple[int | None, ...], str]:
    m = _TENSOR.match(text)
    assert m is not None
    return tuple(None if d == "?" else int(d) for d in m[1].split("x") if d), m[2]


def _bytes(text: str) -> int | None:
    dims, element = _shape(text)
    if any(d is None for d in dims):
        return None
    bits = _BITS.get(element) or int(re.sub(r"\D", "", element) or 8)
    return math.prod(d for d in dims if d is not None) * max(bits, 8) // 8


def _buffer(call: Dispatch, text: str, why: str) -> Buffer:
    return Buffer(call.export, text, _shape(text)[0], _bytes(text), why)


def _score_buffers(call: Dispatch, specs: Sequence[AttentionSpec]) -> Iterator[Buffer]:
    for text in call.results:
        dims = _shape(text)[0]
        for spec in specs:
            if is_score_shape(dims, spec):
                yield _buffer(call, text, f"Sq x Skv = {spec.Sq} x {spec.Skv}")
                break


def is_score_shape(dims: Sequence[int | None], spec: AttentionSpec) -> bool:
    """Whether a tensor of these dims is the whole score, or a mask of Sq x Skv, of the spec (unit dims aside).

    The whole score is told by its element count, so that batch and heads may be collapsed and an Sq x hidden activation
    with hidden = Skv is not taken for one. Decode (Sq = 1) has no such buffer. False when a dim is dynamic.
    """
    score = [d for d in spec.score_shape if isinstance(d, int)]
    if spec.Skv in (spec.D, spec.Dv):
        return False  # then the score is as large as q or the output, and cannot be told from them
    if len(score) < len(spec.score_shape) or any(d is None for d in dims) or spec.Sq == 1:
        return False
    wide = [d for d in dims if d is not None and d != 1]
    if not wide or wide[-1] not in (spec.Skv, spec.Sq):
        return False
    return math.prod(wide) == math.prod(score) and math.prod(score[:-2]) > 1


def _is_output(text: str, spec: AttentionSpec) -> bool:
    """Whether a tensor may be a result of the site."""
    dims = _shape(text)[0]
    if any(d is None for d in dims):
        return True  # one computing dispatch writes one tensor; its size is not known before run time
    for shape, _ in spec.results:
        if any(not isinstance(d, int) for d in shape):
            return True
        if math.prod(d or 1 for d in dims) == math.prod(d for d in shape if isinstance(d, int)):
            return True
    return False


def _stack_bytes(lines: Sequence[str]) -> int | None:
    """Bytes of all allocas of an executable's largest function: one workgroup's memory.

    None when a size is known only at run time.
    """
    starts = [i for i, line in enumerate(lines) if "llvm.func @" in line]
    bounds = zip(starts, [*starts[1:], len(lines)], strict=False)  # code that was not compiled here has no function
    sizes = [_function_stack(lines[a:b]) for a, b in bounds]
    return None if None in sizes else max((s for s in sizes if s is not None), default=0)


def _function_stack(lines: Sequence[str]) -> int | None:
    constants = {m[1]: int(m[2]) for line in lines if (m := _CONSTANT.search(line))}
    total = 0
    for line in lines:
        m = _ALLOCA.search(line)
        if not m:
            continue
        count = constants.get(m[1])
        size = _llvm_bytes(m[2])
        if count is None or size is None:
            return None
        total += count * size
    return total


def _llvm_bytes(text: str) -> int | None:
    array = re.fullmatch(r"!llvm\.array<(\d+) x (.*)>", text)
    if array:
        inner = _llvm_bytes(array[2])
        return None if inner is None else int(array[1]) * inner
    vector = re.fullmatch(r"vector<((?:\d+x)+)(\w+)>", text)
    if vector:
        inner = _llvm_bytes(vector[2])
        return None if inner is None else math.prod(int(d) for d in vector[1].split("x") if d) * inner
    scalar = re.fullmatch(r"(?:f|i|bf)(\d+)", text)
    if scalar:
        return max(1, int(scalar[1]) // 8)
    return 8 if text.startswith("!llvm.ptr") else None
