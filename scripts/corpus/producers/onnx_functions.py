"""onnx's own function body of Attention, from the node tests of the onnx package: spelled out, inlined by onnx.inliner (also with
symbols for the batch and the lengths), and as a function of the model."""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import inliner

from corpus.case import Case, Feeds, Made

DOMAIN = "local"


@cache
def node_tests() -> dict[str, Any]:
    """The node tests of Attention by name, the spelled-out ones with the suffix "_expanded"."""
    from onnx.backend.test.case import node

    # A module of cases appends its own when it is imported; collecting those of every op takes ten times as long.
    importlib.import_module(f"{node.__name__}.attention")
    return {case.name.removeprefix("test_"): case for case in node._NodeTestCases}


def cases() -> Iterator[Case]:
    plain = [name for name in node_tests() if not name.endswith("_expanded")]
    for name in plain:
        yield Case(f"expanded-{name}", partial(expanded, name))
    for name in plain[::4]:
        yield Case(f"function-{name}", partial(as_function, name))
    # onnx.inliner refuses a call that leaves out an input before its last.
    full = [name for name in plain if "" not in node_tests()[name].model.graph.node[0].input]
    for name in full[2::5]:
        yield Case(f"inlined-{name}", partial(inlined, name, False))
    for name in full[1::3]:
        yield Case(f"inlined-symbols-{name}", partial(inlined, name, True))


def feeds_of(name: str) -> dict[str, Feeds]:
    """The inputs of the node test."""
    case = node_tests()[name]
    names = [value.name for value in case.model.graph.input]
    (inputs, _), *_ = case.data_sets
    return {"node test": {key: np.asarray(array) for key, array in zip(names, inputs, strict=True)}}


def expanded(name: str, folder: Path) -> Iterable[Made]:
    """The node test's own spelled-out variant."""
    model = onnx.ModelProto.FromString(node_tests()[f"{name}_expanded"].model.SerializeToString())
    yield Made(f"expanded-{name}", model, 1, "one Attention", feeds_of(name))


def as_function(name: str, folder: Path) -> Iterable[Made]:
    """A model that calls its own function, whose body is the spelled-out variant."""
    source = node_tests()[f"{name}_expanded"].model
    graph = source.graph
    inputs, outputs = [value.name for value in graph.input], [value.name for value in graph.output]
    body = onnx.helper.make_function(DOMAIN, "Attention", inputs, outputs, graph.node, source.opset_import)
    call = onnx.helper.make_node("Attention", inputs, outputs, domain=DOMAIN)
    model = onnx.helper.make_model(
        onnx.helper.make_graph([call], "main", graph.input, graph.output),
        opset_imports=[*source.opset_import, onnx.helper.make_opsetid(DOMAIN, 1)],
        functions=[body],
        ir_version=source.ir_version,
    )
    yield Made(f"function-{name}", model, 1, "one Attention", feeds_of(name))


def inlined(name: str, symbols: bool, folder: Path) -> Iterable[Made]:
    """The op inlined by onnx.inliner. `symbols`: Q's batch and length are symbols, as are the length of keys and of the past."""
    model = onnx.ModelProto.FromString(node_tests()[name].model.SerializeToString())
    if symbols:
        name_dims(model)
    made = inliner.inline_selected_functions(model, [("", "Attention")], inline_schema_functions=True)
    title = "inlined-symbols" if symbols else "inlined"
    yield Made(f"{title}-{name}", made, 1, "one Attention", feeds_of(name))


def name_dims(model: onnx.ModelProto) -> None:
    """Puts symbols in place of the sizes of the inputs' batch and lengths, and removes the outputs' sizes."""
    lengths = ("length", "keys", "keys")
    for index, value in enumerate(model.graph.input):
        dims = value.type.tensor_type.shape.dim
        length = lengths[index] if index < 3 else "past"
        if index < 3 or value.name.startswith("past"):
            dims[0].dim_param = "batch"
            dims[len(dims) - 2].dim_param = length
        else:
            for axis, dim in enumerate(dims):
                dim.dim_param = f"{value.name}_{axis}"
    for value in model.graph.output:
        for axis, dim in enumerate(value.type.tensor_type.shape.dim):
            dim.dim_param = f"{value.name}_{axis}"
