"""One call of a compiled module on random inputs, beside onnxruntime: what `compile --check` asks."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx_ir as ir

from onnx_fa.errors import RunError
from onnx_fa.graph.accuracy_levels import clear_levels, rounds_activations
from onnx_fa.graph.determined import determined_sizes
from onnx_fa.graph.free_dims import ODD_LENGTH, OTHER_LENGTHS, free_sizes
from onnx_fa.graph.view import DTYPES
from onnx_fa.spec.target import Target
from onnx_fa.verifier.calls import decoder_calls
from onnx_fa.verifier.comparisons import as_declared, compare_outputs
from onnx_fa.verifier.inputs import Array, random_inputs
from onnx_fa.verifier.rounded_activations import judge_rounded
from onnx_fa.verifier.rounded_to_bf16 import judge_bf16
from onnx_fa.verifier.rounding_noise import judge_noise, outputs_apart
from onnx_fa.verifier.runners import Runner, rounds
from onnx_fa.verifier.verifier import MODEL_TOLERANCE

LEVEL_0 = "that at accuracy_level 0, without roundings of activations to 8 bits"


def check_once(
    model: ir.Model, module: Path, target: Target, lossy: Sequence[str] = (), dims: Mapping[str, int] | None = None
) -> str:
    """Words for what the result was compared with where that is not the model as given in onnxruntime op by op: accuracy_level 4
    may be 0 there, and bf16 f32. Raises RunError where a result of the module is NaN or infinite and onnxruntime's is not, or
    differs from it by more than the tolerance of `verify` for the narrowest type and what makes sites less exact (`lossy`), or than
    roundings explain; or where one of them does not run. `dims` are sizes of free dims."""
    from onnx_fa.iree.run import load_module

    allowed, notes = model_tolerance(model, lossy), dict[str, None]()
    with tempfile.TemporaryDirectory(prefix="onnx_fa-") as folder:
        given = None
        if rounds_activations(model):
            given, model = Runner(model, Path(folder) / "given.onnx"), model.clone()
            clear_levels(model)
        original = Runner(model, Path(folder) / "model.onnx")
        arrays, want = _first_run(original, model, determined_sizes(model) | dict(dims or {}))
        rounded = None if given is None else given(arrays)
        several = ",".join([target.device] * target.devices) if target.devices > 1 else None
        got = load_module(module, several, usual=target.device)(*arrays.values())
        if original.refused:
            notes[original.note("the original")] = None
        if original.in_f32:
            allowed = max(allowed, MODEL_TOLERANCE["bf16"])
        in_bf16: dict[str, Array] | None = None
        apart: dict[str, float] | None = None
        for (name, expected), result in zip(want.items(), got, strict=True):
            result = as_declared(result, original.declared(name, expected))
            check = compare_outputs("random", name, "onnxruntime", result, np.asarray(expected), allowed)
            if rounded is not None:
                check = judge_rounded(check, result, np.asarray(expected), rounded[name])
                notes[check.note or LEVEL_0] = None
            elif original.in_f32 and not check.ok:
                in_bf16 = in_bf16 or Runner(model, Path(folder) / "rounded.onnx", rounded=True)(arrays)
                check = judge_bf16(check, np.asarray(expected), in_bf16[name])
                notes[check.note] = None
            elif not check.ok and rounds(model):
                apart = apart or outputs_apart(model, arrays, want, Path(folder))
                check = judge_noise(check, apart[name])
                notes |= dict.fromkeys([check.note] if check.ok else [])
            if not check.ok:
                why = f" ({check.note})" if check.note else ""
                raise RunError(
                    f"{module}: output {name!r} is not what onnxruntime computes on random inputs: it differs by {check.error:.2g} "
                    f"of the largest number, and {check.allowed:g} is allowed{why}; `onnx-fa verify` says where"
                )
    return "".join(f"; {note}" for note in notes)


def model_tolerance(model: ir.Model, lossy: Sequence[str] = ()) -> float:
    """What `verify` allows for the narrowest float type of a model, and for what makes its sites less exact (`lossy`)."""
    return max(MODEL_TOLERANCE[kind] for kind in (_narrowest_type(model), *lossy) if kind in MODEL_TOLERANCE)


def _first_run(original: Runner, model: ir.Model, dims: Mapping[str, int]) -> tuple[dict[str, Array], dict[str, Array]]:
    """A decoder's chunk of tokens behind its caches, or random inputs of the first length of the other free dims with which
    onnxruntime runs the model, and what it makes of them. Raises the RunError of the usual length where there is none."""
    failed: RunError | None = None
    calls, _ = decoder_calls(model, dims)
    for arrays in reversed(calls.values()):
        try:
            return arrays, original(arrays)
        except RunError:
            continue  # what names say of inputs may be wrong: any inputs do
    for length in (ODD_LENGTH, *OTHER_LENGTHS):
        arrays = random_inputs(model, dims=dims, default=length)
        try:
            return arrays, original(arrays)
        except RunError as e:
            failed = failed or e
            if free_sizes(model, dims, ODD_LENGTH) == dict(dims):
                break  # no length is left open
    assert failed is not None
    raise failed


def _narrowest_type(model: ir.Model) -> str:
    """Of the floats among inputs, outputs and weights."""
    values = (*model.graph.inputs, *model.graph.outputs, *model.graph.initializers.values())
    seen = {DTYPES[v.dtype] for v in values if v.dtype in DTYPES}
    return next((kind for kind in ("bf16", "f16", "f32") if kind in seen), "f32")
