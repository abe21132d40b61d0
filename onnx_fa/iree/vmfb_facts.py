"""What a compiled module says of itself: its functions, and the names of its dispatches."""

from __future__ import annotations

import re
import tempfile
from dataclasses import dataclass
from pathlib import Path

from onnx_fa import processes as limits
from onnx_fa.errors import RunError


@dataclass(frozen=True)
class VmfbFacts:
    """What a .vmfb alone tells: exported functions, and the names of its dispatch functions."""

    functions: tuple[str, ...]
    exports: tuple[str, ...]

    def kernels(self) -> tuple[str, ...]:
        """Names of the kernels of this project that are in it."""
        return tuple(dict.fromkeys(m.group(0) for e in self.exports if (m := re.match(r"fa_[0-9a-f]{10}", e))))

    def linear(self) -> tuple[str, ...]:
        """Names of the kernels of linear sites."""
        return tuple(e for e in self.exports if is_linear(e))

    def norms(self) -> tuple[str, ...]:
        """Names of the kernels of norms."""
        return tuple(e for e in self.exports if re.fullmatch(_NORM, e))

    def linear_attentions(self) -> tuple[str, ...]:
        """Names of the kernels of linear attentions."""
        return tuple(e for e in self.exports if re.fullmatch(_LINEAR_ATTENTION, e))


_NORM = r"norm_[0-9a-f]{10}_rows"
_LINEAR_ATTENTION = r"linear_attention_[0-9a-f]{10}_(?:tokens|heads)"
_ROTATED, _RESAMPLED = r"rotate_\w+_rows", r"resample_\w+_planes"
_TOP_K, _INDEXED = r"top_k_\w+_rows", r"indexed_[0-9a-f]{10}_heads"
_LINEAR = r"(?:linear|conv)_[0-9a-f]{10}_[a-z]+|bits\d_\w+_(?:product|round(?:_zeros)?)"


def is_linear(export: str) -> bool:
    """Whether a dispatch of that name is the kernel of a linear site."""
    return re.fullmatch(_LINEAR, export) is not None


def inspect_vmfb(path: Path) -> VmfbFacts:
    """Reads a compiled module with iree-dump-module. Raises RunError when it is not one."""
    from onnx_fa.iree.run import tool_path

    with tempfile.TemporaryDirectory(prefix="onnx_fa-") as tmp:
        command = [tool_path("iree-dump-module"), str(Path(path).resolve())]
        done = limits.run_limited(command, timeout_s=120, memory_bytes=4 << 30, cwd=Path(tmp))
    if done.ending != "ok":
        raise RunError(f"{path}: not a compiled IREE module ({done.describe(120, 4 << 30)})")
    functions = re.findall(r"^\s*\[\s*\d+\]\s+([\w$.]+)\s*\(", done.stdout, re.M)
    # Dispatch symbols are stored as strings in the executables, which the dump does not list.
    data = Path(path).read_bytes()
    names = re.findall(
        rb"(?:fa_[0-9a-f]{10}[\w$]*|%s|%s|[\w$]+_dispatch_\d+[\w$]*)"
        % (_LINEAR.encode(), "|".join((_NORM, _ROTATED, _RESAMPLED, _LINEAR_ATTENTION, _TOP_K, _INDEXED)).encode()),
        data,
    )
    return VmfbFacts(tuple(functions), tuple(dict.fromkeys(n.decode() for n in names)))
