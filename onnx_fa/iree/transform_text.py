"""The text of a transform-dialect spec, from patterns and what replaces them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from onnx_fa.kernels.mlir.kernel import Kernel


@dataclass(frozen=True)
class Replacement:
    """`pattern` is the matcher's body, of `size` ops; `function` the util.func @`symbol`; both take `arguments`."""

    symbol: str
    arguments: tuple[tuple[str, str], ...]
    pattern: str
    size: int
    function: str
    imports: tuple[str, ...]


def module_text(replacements: Sequence[Replacement], kernels: Iterable[Kernel]) -> str:
    kernels = list(kernels)
    flags = dict.fromkeys(flag for kernel in kernels for flag in kernel.flags)
    parts = [
        "// Made by onnx-fa for iree-compile --iree-preprocessing-transform-spec-filename=THIS FILE",
        *(f"// and {flag}" for flag in flags),
        "module attributes {transform.with_named_sequence} {",
        *(kernel.text for kernel in kernels),
        *(r.function for r in replacements),
        *map(_matcher, replacements),
        *map(_replacer, replacements),
        "transform.named_sequence @__transform_main(%module: !transform.any_op) {",
    ]
    # One pass per pattern, the largest first: a pattern may be part of a larger one.
    for i, r in enumerate(sorted(replacements, key=lambda r: -r.size)):
        parts += [
            f'%functions{i} = transform.structured.match ops{{["util.func"]}} in %module'
            " : (!transform.any_op) -> !transform.any_op",
            f"transform.foreach %functions{i} : !transform.any_op {{",
            "^bb1(%function: !transform.any_op):",
            f"transform.foreach_match in %function @match_{r.symbol} -> @replace_{r.symbol}"
            " : (!transform.any_op) -> (!transform.any_op)",
            "}",
            "transform.apply_dce to %module : !transform.any_op",
        ]
    return "\n".join([*parts, "transform.yield", "}", "}", ""])


_OP, _VALUE = "!transform.any_op", "!transform.any_value"


def _matcher(r: Replacement) -> str:
    arguments = ", ".join(f"{name}: {type_}" for name, type_ in r.arguments)
    return "\n".join(
        [
            f"transform.named_sequence @match_{r.symbol}(%root: {_OP} {{transform.readonly}})",
            f"-> ({_VALUE}, {_VALUE}) {{",
            "%ins, %outs = transform.iree.match.cast_compatible_dag_from_root %root {",
            f"^bb0({arguments}):",
            r.pattern,
            f"}} : ({_OP}) -> ({_VALUE}, {_VALUE})",
            f"transform.yield %ins, %outs : {_VALUE}, {_VALUE}",
            "}",
        ]
    )


def _replacer(r: Replacement) -> str:
    read = f"{_VALUE} {{transform.readonly}}"
    return "\n".join(
        [
            f"transform.named_sequence @replace_{r.symbol}(%ins: {read}, %out: {read}) {{",
            f"%root = transform.get_defining_op %out : ({_VALUE}) -> {_OP}",
            f"%module = transform.util.get_nearest_symbol_table %root : ({_OP}) -> {_OP}",
            *(
                f"%import{i} = transform.util.import_symbol @{name} into %module if undefined : ({_OP}) -> {_OP}"
                for i, name in enumerate(r.imports)
            ),
            f"transform.util.cast_and_call inline_call %import{len(r.imports) - 1}(%ins) -> %out after %root {{",
            "transform.type_conversion.tensor.cast_shape_dynamic_dims",
            f"}} : ({_OP}, {_VALUE}, {_VALUE}, {_OP}) -> ()",
            "transform.yield",
            "}",
        ]
    )
