"""Linear sites as modules of their own, several in one: starting a compiler costs as much as most kernels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from onnx_fa.iree.compile import MODEL_FLAGS
from onnx_fa.iree.compiler import iree_compile
from onnx_fa.kernels.cpu.linear import emit_with, tiles_for
from onnx_fa.kernels.cpu.linear_body import LinearTiles
from onnx_fa.kernels.mlir.text import element_type, tensor_type
from onnx_fa.spec.linear import LinearSpec, linear_name
from onnx_fa.spec.target import Target
from tests.support.kernel_harness import UNVERIFIED


def compile_sites(
    sites: Mapping[str, tuple[LinearSpec, LinearTiles | None]],
    output: Path,
    target: Target,
    flags: Sequence[str] = (),
    **options: Any,
) -> None:
    """A module with a function for each site, with the tiles given, or those that a model would have. Raises CompileError."""
    texts = [_texts(function, *site, target) for function, site in sites.items()]
    # What they share is there once.
    text = "\n".join({name: text for made in texts for name, text in made.items()}.values())
    iree_compile(text, output, target, flags=(*MODEL_FLAGS["llvm-cpu"], UNVERIFIED, *flags), timeout_s=120, **options)


def _texts(function: str, spec: LinearSpec, tiles: LinearTiles | None, target: Target) -> dict[str, str]:
    types = [tensor_type(s, element_type(d)) for s, d in zip(spec.operand_shapes, spec.operand_dtypes, strict=True)]
    results, names = [tensor_type(*r) for r in spec.results], [f"%a{i}" for i in range(len(types))]
    arguments, made = ", ".join(f"{n}: {t}" for n, t in zip(names, types, strict=True)), ", ".join(results)
    called = f"util.call @{linear_name(spec)}({', '.join(names)}) : ({', '.join(types)}) -> ({made})"
    values = ", ".join(f"%r#{i}" for i in range(len(results)))
    call = f"%r:{len(results)} = {called}"
    lines = [f"func.func @{function}({arguments}) -> ({made}) {{", call, f"return {values} : {made}", "}"]
    made = {**emit_with(spec, target, tiles or tiles_for(spec, target)), function: "\n".join(lines)}
    # The same site may be there with other tiles.
    own, apart = linear_name(spec), f"{linear_name(spec)}_{function}"
    return {name.replace(own, apart): text.replace(own, apart) for name, text in made.items()}
