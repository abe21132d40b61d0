"""Several models as one, so that one compilation makes all of them."""

from __future__ import annotations

from collections.abc import Sequence

import onnx
from onnx import compose, helper


def join_models(models: Sequence[onnx.ModelProto], *, own_dims: bool = False) -> onnx.ModelProto:
    """A model of one opset whose inputs and outputs are those of all `models`, one after the other; the names of
    the i-th begin with `m{i}_`. Symbolic dims of one name are one dim, but with `own_dims`, where they are named as values are.
    Raises ValueError for models of several opsets."""
    opsets = {(o.domain, o.version) for model in models for o in model.opset_import}
    if len({domain for domain, _ in opsets}) != len(opsets):
        raise ValueError(f"models of one opset can be joined, not of {sorted(opsets)}")
    graphs = [compose.add_prefix(model, f"m{i}_").graph for i, model in enumerate(models)]
    if own_dims:
        for i, g in enumerate(graphs):
            for value in (*g.input, *g.output, *g.value_info):
                for dim in value.type.tensor_type.shape.dim:
                    if dim.dim_param:
                        dim.dim_param = f"m{i}_{dim.dim_param}"
    nodes, inputs, outputs, constants, types = (
        [x for g in graphs for x in getattr(g, field)]
        for field in ("node", "input", "output", "initializer", "value_info")
    )
    graph = helper.make_graph(nodes, "g", inputs, outputs, constants, value_info=types)
    version = max(model.ir_version for model in models)
    return helper.make_model(
        graph, opset_imports=[helper.make_opsetid(*opset) for opset in sorted(opsets)], ir_version=version
    )
