"""PTX of several architectures as one executable of an IREE module, which the device chooses from when the module is loaded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, get_args

from onnx_fa.kernels.triton import ptx
from onnx_fa.kernels.triton.program import Program
from onnx_fa.spec.attention import Stat

_TARGET = '#hal.executable.target<"cuda", "cuda-nvptx-fb", {{target_arch = "{}"{}}}>'


class Code(Protocol):
    """One architecture's code of a dispatch."""

    @property
    def arch(self) -> int: ...

    @property
    def code(self) -> ptx.Compiled: ...


@dataclass(frozen=True)
class ArchCode:
    """Code and no more."""

    arch: int
    code: ptx.Compiled


def executable_text(symbol: str, program: Program, variants: Sequence[Code], splits: Sequence[int] | None) -> list[str]:
    """The executable of one dispatch. Its workload is the number of workgroups, one number per variant; each of them has so many
    `splits`, the grid's second axis. Of None the workload says that too, behind each number."""
    scratch = any(v.code.scratch for v in variants)
    written = {"count", "part", "stat", *(f"row_{which}" for which in get_args(Stat))}
    bindings = [
        "#hal.pipeline.binding<storage_buffer" + (">" if name in written or name.startswith("out") else ", ReadOnly>")
        for name, _ in program.pointers
    ] + ["#hal.pipeline.binding<storage_buffer>"] * scratch
    layout = f"#hal.pipeline.layout<constants = {len(program.constants)}, bindings = [{', '.join(bindings)}]>"
    lines = [f"hal.executable private @{symbol} {{"]
    workload = ", ".join(f"%n{v.arch}: index" + f", %y{v.arch}: index" * (splits is None) for v in variants)
    for i, v in enumerate(variants):
        target = _TARGET.format("sm_80", f", onnx_fa.arch = {v.arch} : i32")
        data = v.code.text.encode()
        code = f'dense<"0x{data.hex()}"> : vector<{len(data)}xi8>'
        object_ = f'#hal.executable.object<{{path = "{symbol}_sm_{v.arch}.ptx", data = {code}}}>'
        lines.append(f"hal.executable.variant public @sm_{v.arch} target({target}) objects([{object_}]) {{")
        if v.arch != variants[-1].arch:
            lines += [
                "hal.executable.condition(%device: !hal.device) -> i1 {",
                '%known, %major = hal.device.query<%device : !hal.device> key("cuda.device" :: "compute_capability_major") '
                ": i1, i32 = 0 : i32",
                f"%wanted = arith.constant {v.arch // 10} : i32",
                "%same = arith.cmpi eq, %major, %wanted : i32",
                "hal.return %same : i1",
                "}",
            ]
        sizes = (
            f"workgroup_size = [{32 * v.code.warps} : index, 1 : index, 1 : index], subgroup_size = 32 : index, "
            f"workgroup_local_memory = {v.code.shared} : index"
        )
        lines += [
            f"hal.executable.export public @{symbol} ordinal(0) layout({layout}) "
            f"count(%device: !hal.device, {workload}) -> (index, index, index) {{",
            *([] if splits is None else [f"%y{v.arch} = arith.constant {splits[i]} : index"]),
            "%z = arith.constant 1 : index",
            f"hal.return %n{v.arch}, %y{v.arch}, %z : index, index, index",
            f"}} <{{{sizes}}}>",
            "}",
        ]
    return [*lines, "}"]
