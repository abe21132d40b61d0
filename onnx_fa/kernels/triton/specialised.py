"""The overlapped form with warps of different kinds (Shah et al., "FlashAttention-3", section 3.1): two warpgroups have half of the
queries each, and walk through the blocks of keys at their own pace, so that one's softmax meets the other's products; a warp loads
K and V for both, which have its registers. A block in a ring is loaded again when both have used it.
"""

from __future__ import annotations

from collections.abc import Sequence

from onnx_fa.errors import UnsupportedError
from onnx_fa.kernels.plan.score import ExprStep, IndexStep, score_plan
from onnx_fa.kernels.plan.skipping import skipping
from onnx_fa.kernels.triton.block_ranges import Ends
from onnx_fa.kernels.triton.overlapped import OverlappedSource, can_overlap
from onnx_fa.kernels.triton.program import Program
from onnx_fa.spec.attention import AttentionSpec
from onnx_fa.spec.expr import Apply

_PARTS = 2
LOADING_WARPS = 1
_REGISTERS = 240, 24
"""Of a thread that computes, and of one that loads."""
BARRIERS = "bars k_bars v_bars k_free v_free".split()


def can_specialise(spec: AttentionSpec) -> bool:
    """Whether the form is for a spec: what can be overlapped, and whose blocks follow from positions alone, as all warps must know
    which to visit."""
    masks = any(_chooses(step) for step in score_plan(spec).steps)
    return can_overlap(spec) and not masks and not skipping(spec).low


def _chooses(step: IndexStep | ExprStep) -> bool:
    """Whether a step makes a mask: it chooses between the score and something else."""
    match step:
        case ExprStep(Apply("Where")):
            return True
    return False


class SpecialisedSource(OverlappedSource):
    """Writes the source: the function of the warps that compute, that of the warp that loads, and the kernel, which starts them.
    Raises UnsupportedError for what only the other forms carry."""

    parts = _PARTS

    def program(self) -> Program:
        if not can_specialise(self.spec):
            raise UnsupportedError("specialised warps are for attentions whose blocks of keys follow from positions")
        names = [*(n for n, _ in self.pointers()), *self.names.values()]
        rows, loads = (
            kind(self.spec, self.config, self.name, skips=self.skips, loop=self.loop)
            for kind in (RowsSource, LoadsSource)
        )
        rows.body()
        loads.body()
        self.place()
        self.element()
        self.buffers(_PARTS)
        self.sources()
        common = [*(x for name in "qkv" for x in self.owned(name, "buffer")), *BARRIERS]
        sources = [x for name in "qkv" for x in self.owned(name, "source")]
        shared = ", ".join([*common, *names])
        listed = [f"({self.name}_rows_{i}, ({shared}))" for i in range(_PARTS)]
        listed.append(f"({self.name}_loads, ({', '.join([*sources, *common, *names])}))")
        workers = f"{[self.config.warps] * (_PARTS - 1) + [LOADING_WARPS]}"
        registers = f"{[_REGISTERS[0]] * (_PARTS - 1) + [_REGISTERS[1]]}"
        self.t.do(f"tl.warp_specialize([{', '.join(listed)}], {workers}, {registers})")
        kernel = self.written(self.pointers())
        functions = [
            self.header + function_text(f"{self.name}_rows", ["part: tl.constexpr", *common, *names], rows.t.lines)
        ]
        for i in range(_PARTS):
            call = f"    {self.name}_rows({i}, {shared})"
            functions.append(function_text(f"{self.name}_rows_{i}", [*common, *names], [call]))
        functions.append(function_text(f"{self.name}_loads", [*sources, *common, *names], loads.t.lines))
        text = "\n\n".join([*functions, kernel.text.removeprefix(self.header)])
        return Program(kernel.entry, text, kernel.pointers, kernel.constants)


def function_text(name: str, parameters: Sequence[str], lines: Sequence[str]) -> str:
    return f"@gluon.jit\ndef {name}({', '.join(parameters)}):\n" + "\n".join(lines) + "\n"


class RowsSource(OverlappedSource):
    """One of the parts: `part` is its number."""

    parts, part = _PARTS, "part"

    def number_rows(self) -> None:
        self.t.do(f"row = {self.m0} + part * {self.height} + om")
        self.mask_rows()

    def load_queries(self) -> None:
        self.element()
        for buffer in self.owned("q", "buffer"):
            self.t.do(f"{buffer} = {buffer}.index(part)")

    def ranges(self) -> Ends:
        """Those of all parts. From here on, the first query is the part's."""
        found = super().ranges()
        self.m0 = self.t.let(f"{self.m0} + part * {self.height}")
        return found

    def begin(self) -> None:
        """The warp that loads does all that."""

    def scored(self) -> None:
        self.free("k", "n")

    def used(self, n: str) -> None:
        self.free(*(("k", "0") if n == "0" else ("v", f"{n} - 1")))

    def free(self, name: str, at: str) -> None:
        slot = self.t.let(f"({self.turn(at)}) % {self.config.stages}")
        self.t.do(f"mbarrier.arrive({name}_free.index({slot}), count=1)")


class LoadsSource(OverlappedSource):
    """The warp that loads Q, K and V."""

    parts = _PARTS

    def body(self) -> None:
        t = self.t
        self.place()
        self.walk(*self.ranges())
        for i in range(_PARTS):
            self.fetch_queries(str(i), f".index({i})")
        t.do("for n in range(0, total):")
        t.indent += 1
        self.fetch_free("k", "n")
        self.fetch_free("v", "n")
        t.indent -= 1

    def fetch_free(self, name: str, n: str) -> None:
        """The same as `fetch`, once all parts have used what was in the buffer."""
        t, stages, turn = self.t, self.config.stages, self.turn(n)
        slot = t.let(f"({turn}) % {stages}")
        t.do(f"mbarrier.wait({name}_free.index({slot}), ((({turn}) // {stages}) & 1) ^ 1)")
        self.fetch(name, n)
