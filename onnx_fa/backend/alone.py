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
    spec = kernel.spec
    types = [_tensor(s, d) for s, d in zip(spec.operand_shapes, spec.operand_dtypes, strict=True)]
    out = _tensor(spec.out_shape, spec.dtype)
    params = ", ".join(f"%a{i}: {t}" for i, t in enumerate(types))
    names = ", ".join(f"%a{i}" for i in range(len(types)))
    return (
        f"{kernel.text}\nfunc.func @{FUNCTION}({params}) -> {out} {{\n"
        f"  %r = util.call @{kernel.name}({names}) : ({', '.join(types)}) -> {out}\n  return %r : {out}\n}}\n"
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
