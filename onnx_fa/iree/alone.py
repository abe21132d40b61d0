"""One kernel as a module of its own: for checking and timing it without a model around it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from onnx_fa.iree.compiler import iree_compile, merge_flags
from onnx_fa.kernels.mlir.kernel import Into, Kernel
from onnx_fa.kernels.mlir.stored import is_packed, stored_shape
from onnx_fa.kernels.mlir.text import Text, element_type, tensor_type
from onnx_fa.spec.attention import AttentionSpec
from onnx_fa.spec.linear import LinearSpec
from onnx_fa.spec.target import Target

FUNCTION = "site"
"""The function that the module exports: the spec's operands to its output."""
INTO = "site_into"
"""One that takes the buffers of its results after the operands, then those of workspaces, and writes there. Two fences follow: it
begins when the first is reached, returns at once, and the second is reached when the results are there."""
WORKSPACE = "site_workspace"
"""One without operands: the bytes of each workspace."""
TIMEOUT_S = 120.0
"""A kernel that compiles at all takes seconds."""
_ASYNC = 'attributes {iree.abi.model = "coarse-fences"} '
"""Of a function to which IREE adds the two fences."""


class SiteKernel(Protocol):
    """What a module is made of: a kernel's function of this name, which takes the operands of the spec and returns its results."""

    @property
    def name(self) -> str: ...
    @property
    def text(self) -> str: ...
    @property
    def flags(self) -> tuple[str, ...]: ...
    @property
    def spec(self) -> AttentionSpec | LinearSpec: ...


def module_text(kernel: SiteKernel, into: bool = False) -> str:
    """The kernel and a public function that calls it; with `into`, INTO and WORKSPACE too."""
    text = kernel.text + entry_text(kernel, FUNCTION)
    return text + _into_text(kernel) if into else text


def _into_text(kernel: SiteKernel) -> str:
    """A body without a function of its own for this has its results copied, where IREE sees no better, and no workspace."""
    made = _into_of(kernel)
    sizes = made.workspace if made else ()
    text = Text()
    values = [text.let(f"arith.constant {size} : i64") for size in sizes]
    types = ", ".join(["i64"] * len(sizes))
    returned = f"return {', '.join(values)} : {types}" if sizes else "return"
    body = "\n".join([*text.render(), returned])
    function = f"\nfunc.func @{WORKSPACE}() -> ({types}) {{\n{body}\n}}\n"
    return (made.text if made else "") + entry_text(kernel, INTO, into=True) + function


def _into_of(kernel: SiteKernel) -> Into | None:
    return kernel.into if isinstance(kernel, Kernel) else None


def entry_text(kernel: SiteKernel, function: str, into: bool = False) -> str:
    """A public function that calls a kernel. 4-bit integers come to it two to a byte. With `into` it takes the buffers of its
    results and workspaces, too, and fences."""
    spec, t = kernel.spec, Text()
    shapes, dtypes = spec.operand_shapes, spec.operand_dtypes
    types = [tensor_type(s, element_type(d)) for s, d in zip(shapes, dtypes, strict=True)]
    params, values = [], []
    for i, (shape, dtype, type_) in enumerate(zip(shapes, dtypes, types, strict=True)):
        if not is_packed(dtype):
            params.append(f"%a{i}: {type_}")
            values.append(f"%a{i}")
            continue
        seen = tensor_type(stored_shape(shape, dtype), "i8")
        params.append(f"%a{i}: {seen}")
        dims = [t.let(f"tensor.dim %a{i}, {t.index(n)} : {seen}") for n, d in enumerate(shape) if isinstance(d, str)]
        tied = f"{{{', '.join(dims)}}}" if dims else ""
        values.append(t.let(f"flow.tensor.bitcast %a{i} : {seen}{tied} -> {type_}{tied}"))
    results = [tensor_type(s, element_type(d)) for s, d in spec.results]
    outs = ", ".join(results)
    callee = kernel.name
    if into and (made_into := _into_of(kernel)):
        buffers = [f"%b{n}" for n in range(len(results) + len(made_into.workspace))]
        params += [f"{buffer}: !hal.buffer" for buffer in buffers]
        callee, values, types = f"{callee}_into", [*values, *buffers], [*types, *["!hal.buffer"] * len(buffers)]
    elif into:
        params += [f"%b{n}: !hal.buffer {{iree.abi.output = {n} : index}}" for n in range(len(results))]
    made = t.several(f"util.call @{callee}({', '.join(values)}) : ({', '.join(types)}) -> ({outs})", len(spec.results))
    # What IREE makes of a func.func loses the attribute.
    head, end, attributes = ("util.func public", "util.return", _ASYNC) if into else ("func.func", "return", "")
    body = "\n".join([*t.render(), f"{end} {', '.join(made)} : {outs}"])
    return f"\n{head} @{function}({', '.join(params)}) -> ({outs}) {attributes}{{\n{body}\n}}\n"


def compile_alone(
    kernel: SiteKernel,
    output: Path,
    target: Target,
    *,
    flags: Sequence[str] = (),
    into: bool = False,
    timeout_s: float = TIMEOUT_S,
    memory_bytes: int = 8 << 30,
) -> None:
    """Compiles the kernel to `output`, a .vmfb (with `into`, of both functions); `flags` win over the kernel's. Raises
    CompileError."""
    options = merge_flags(kernel.flags, flags)
    text = module_text(kernel, into)
    iree_compile(text, output, target, flags=options, timeout_s=timeout_s, memory_bytes=memory_bytes)
