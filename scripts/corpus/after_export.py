"""What people do to a file once it is exported: each takes its path, a folder and inputs to measure with, and gives a model."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import onnx

from corpus.case import Feeds

Runs = Mapping[str, Feeds]
Change = Callable[[Path, Path, Runs], onnx.ModelProto]


class Reader:
    """What onnxruntime's static quantiser measures ranges on."""

    def __init__(self, runs: Runs) -> None:
        self._feeds: Iterator[Feeds] = iter(runs.values())

    def get_next(self) -> Feeds | None:
        return next(self._feeds, None)


def dynamic(model: Path, folder: Path, runs: Runs, **options: Any) -> onnx.ModelProto:
    """Weights of 8 bits, activations in integers of a range that each run measures."""
    from onnxruntime.quantization import quantize_dynamic

    out = folder / "dynamic.onnx"
    quantize_dynamic(model, out, **options)
    return onnx.load(out)


def static(
    model: Path,
    folder: Path,
    runs: Runs,
    kinds: tuple[str, str],
    form: str = "QDQ",
    prepared: bool = False,
    **options: Any,
) -> onnx.ModelProto:
    """Activations and weights of these types, in ranges measured on the runs. `prepared`: onnxruntime optimises the file first."""
    from onnxruntime.quantization import QuantFormat, QuantType, quantize_static
    from onnxruntime.quantization.shape_inference import quant_pre_process

    if prepared:
        quant_pre_process(os.fspath(model), os.fspath(folder / "prepared.onnx"), skip_symbolic_shape=True)
        model = folder / "prepared.onnx"
    activations, weights = (QuantType[kind] for kind in kinds)
    out = folder / "static.onnx"
    quantize_static(
        model,
        out,
        Reader(runs),
        quant_format=QuantFormat[form],
        activation_type=activations,
        weight_type=weights,
        extra_options=options,
    )
    return onnx.load(out)


def four_bits(model: Path, folder: Path, runs: Runs, form: str, symmetric: bool) -> onnx.ModelProto:
    """Weights of 4 bits in blocks of 16."""
    from onnxruntime.quantization import QuantFormat
    from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer

    quantizer = MatMulNBitsQuantizer(
        onnx.load(model), block_size=16, is_symmetric=symmetric, quant_format=QuantFormat[form]
    )
    quantizer.process()
    done: onnx.ModelProto = quantizer.model.model
    return done


def half(model: Path, folder: Path, runs: Runs, keep: bool, blocked: tuple[str, ...] = ()) -> onnx.ModelProto:
    """onnxconverter-common's float16. `keep`: inputs and outputs stay f32; `blocked`: ops that do."""
    from onnxconverter_common import float16

    return _without(float16, model, keep, blocked)


def ort_half(model: Path, folder: Path, runs: Runs, blocked: tuple[str, ...] = ()) -> onnx.ModelProto:
    """onnxruntime's float16, which is another."""
    from onnxruntime.transformers import float16

    return _without(float16, model, True, blocked)


def _without(float16: Any, model: Path, keep: bool, blocked: tuple[str, ...]) -> onnx.ModelProto:
    """The file in f16 by a converter, which leaves some ops in f32 by itself."""
    options = {"op_block_list": [*float16.DEFAULT_OP_BLOCK_LIST, *blocked]}
    done: onnx.ModelProto = float16.convert_float_to_float16(onnx.load(model), keep_io_types=keep, **options)
    return done


def mixed(model: Path, folder: Path, runs: Runs) -> onnx.ModelProto:
    """The same with every third node in f32."""
    from onnxconverter_common import float16

    source = onnx.load(model)
    kept = [node.name for node in source.graph.node][::3]
    done: onnx.ModelProto = float16.convert_float_to_float16(source, keep_io_types=True, node_block_list=kept)
    return done


def slim(model: Path, folder: Path, runs: Runs) -> onnx.ModelProto:
    """onnxslim."""
    import onnxslim

    done: onnx.ModelProto = onnxslim.slim(onnx.load(model))
    return done


def simple(model: Path, folder: Path, runs: Runs, fixed: bool = False) -> onnx.ModelProto:
    """onnxsim. `fixed`: with the sizes of the first run."""
    import onnxsim

    shapes = {name: list(array.shape) for name, array in next(iter(runs.values())).items()} if fixed else None
    done, _ = onnxsim.simplify(onnx.load(model), overwrite_input_shapes=shapes)
    return done


def fused(model: Path, folder: Path, runs: Runs, kind: str) -> onnx.ModelProto:
    """onnxruntime's optimiser for transformers."""
    from onnxruntime.transformers import optimizer

    out = folder / "fused.onnx"
    optimizer.optimize_model(os.fspath(model), kind, 4, 48, opt_level=0).save_model_to_file(os.fspath(out))
    done = onnx.load(out)
    if all(opset.domain != "com.microsoft" for opset in done.opset_import):  # what comes next asks for it
        done.opset_import.append(onnx.helper.make_opsetid("com.microsoft", 1))
    return done


def one_after_another(*changes: Change) -> Change:
    """These, each on what the one before it gives."""

    def change(model: Path, folder: Path, runs: Runs) -> onnx.ModelProto:
        for number, each in enumerate(changes):
            done = each(model, folder, runs)
            model = folder / f"after{number}.onnx"
            onnx.save(done, model)
        return onnx.load(model)

    return change


CHANGES: dict[str, Change] = {
    "dynamic": partial(dynamic, per_channel=True),
    "qdq": partial(static, kinds=("QUInt8", "QInt8")),
    "qdq-signed-prepared": partial(
        static, kinds=("QInt8", "QInt8"), prepared=True, ActivationSymmetric=True, QuantizeBias=False
    ),
    "qdq-16": partial(static, kinds=("QUInt16", "QInt8"), AddQDQPairToWeight=True, DedicatedQDQPair=True),
    "qoperator": partial(static, kinds=("QUInt8", "QUInt8"), form="QOperator"),
    "4bit": partial(four_bits, form="QOperator", symmetric=False),
    "4bit-qdq": partial(four_bits, form="QDQ", symmetric=True),
    "half": partial(half, keep=False),
    "half-inside": partial(half, keep=True, blocked=("Softmax", "LayerNormalization", "Pow", "ReduceMean")),
    "ort-half": ort_half,
    "ort-half-softmax": partial(ort_half, blocked=("Softmax", "Add")),
    "mixed": mixed,
    "slim": slim,
    "simple": simple,
    "simple-fixed": partial(simple, fixed=True),
    "slim-qdq": one_after_another(slim, partial(static, kinds=("QInt8", "QInt8"))),
    "half-slim": one_after_another(partial(half, keep=True), slim),
    "simple-half": one_after_another(simple, partial(half, keep=False)),
}
