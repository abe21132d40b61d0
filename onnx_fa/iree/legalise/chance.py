"""Draws of random numbers by a seed, which IREE's compiler does not take."""

from __future__ import annotations

import onnx

from onnx_fa.errors import ModelError
from onnx_fa.graph.ops import op_of
from onnx_fa.graph.twins import CHANCE
from onnx_fa.iree.legalise.writer import all_nodes


def drop_seeds(model: onnx.ModelProto) -> None:
    """In place, takes the seeds of draws away: no runtime draws the numbers of another by the same seed, and IREE's start from one
    of their own in every module that is loaded. Raises ModelError where two draws have one seed, by which onnxruntime draws the
    same numbers for both."""
    by_seed: dict[float, str] = {}
    for node in all_nodes(model.graph):
        given = [a for a in node.attribute if a.name == "seed"] if op_of(node) in CHANCE else []
        for attribute in given:
            if attribute.f in by_seed:
                raise ModelError(
                    f"nodes {by_seed[attribute.f]!r} and {node.name!r} draw random numbers by one seed ({attribute.f:g}), "
                    "the same ones twice; no module draws these: export the model without seeds"
                )
            by_seed[attribute.f] = node.name
            node.attribute.remove(attribute)
