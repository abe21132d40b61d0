"""One kernel as a module of its own: for checking and timing it without a model around it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from onnx_fa.backend.compile import iree_compile, merge_flags
from onnx_fa.emit.kernel_text import Kernel
from onnx_fa.target import Target

FUNCTION = "site"
"""The function that the module exports: the spec's operands to its output."""


def module_text(kernel: Kernel) -> str:
    """The kernel and a public function that calls it."""
    return f"{kernel.text}\n{entry_text(kernel, FUNCTION)}"


def entry_text(kernel: Kernel, function: str) -> str:
    """A public function that calls the kernel."""
    spec = kernel.spec
    types = [_tensor(s, d) for s, d in zip(spec.operand_shapes, spec.operand_dtypes, strict=True)]
    outs = ", ".join(_tensor(s, d) for s, d in spec.results)
    made = ", ".join(f"%r#{i}" for i in range(len(spec.results)))
    params = ", ".join(f"%a{i}: {t}" for i, t in enumerate(types))
    names = ", ".join(f"%a{i}" for i in range(len(types)))
    return (
        f"func.func @{function}({params}) -> ({outs}) {{\n"
        f"  %r:{len(spec.results)} = util.call @{kernel.name}({names}) : ({', '.join(types)}) -> ({outs})\n"
        f"  return {made} : {outs}\n}}\n"
    )


def compile_alone(
    kernel: Kernel,
    output: Path,
    target: Target,
    *,
    flags: Sequence[str] = (),
    timeout_s: float = 120,
    memory_bytes: int = 8 << 30,
) -> None:
    """Compiles the kernel to `output`, a .vmfb; `flags` win over the kernel's. Raises CompileError."""
    options = merge_flags(kernel.flags, flags)
    text = module_text(kernel)
    iree_compile(text, output, target, flags=options, timeout_s=timeout_s, memory_bytes=memory_bytes)


def _tensor(shape: Sequence[int | str], dtype: str) -> str:
    sizes = "".join(f"{d if isinstance(d, int) else '?'}x" for d in shape)
    return f"tensor<{sizes}{'i1' if dtype == 'bool' else dtype}>"
