"""The stock importer with the sizes that a program compares, in the main graph and in the bodies of If, Loop and Scan."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import onnx

from onnx_fa.errors import MissingDependencyError
from onnx_fa.graph.ops import op_of
from onnx_fa.iree.checked_sizes import check_sizes
from onnx_fa.iree.legalise.broadcasts import SAME_SIZES
from onnx_fa.iree.legalise.writer import attributes_of

try:
    from iree.compiler import ir as mlir
    from iree.compiler.extras import onnx_importer as stock
except ImportError as _error:
    raise MissingDependencyError("the MLIR importer is not installed: pip install iree-base-compiler") from _error


class CheckedImporter(stock.NodeImporter):  # type: ignore[misc]
    """The stock importer plus SameSizes."""

    __slots__: list[str] = []

    def import_regions(self, onnx_attrs: Iterable[onnx.AttributeProto], op: Any) -> None:
        """Fills the regions of `op` with the graphs among its attributes, by their names. The stock importer, which this is like,
        imports what is in them by itself."""
        graphs = sorted((a for a in onnx_attrs if a.type == onnx.AttributeProto.GRAPH), key=lambda a: a.name)
        for attribute, region in zip(graphs, op.regions, strict=True):
            inputs = attribute.g.input
            types = [self._cc.type_proto_to_type(i.type) for i in inputs]
            region.blocks.append(*types, arg_locs=[op.location] * len(types))
            block = region.blocks[0]
            graph = stock.GraphInfo(self._gi.model_info, attribute.g, is_subgraph=True)
            # It asks for the types of what a function reads, which may stand around the body.
            graph.value_info_map = _infos(self._gi) | graph.value_info_map
            inner = CheckedImporter(
                graph,
                parent_op=op,
                block=block,
                context_cache=self._cc,
                module_op=self._m,
                module_cache=self._mc,
            )
            inner._nv_map.update(self._nv_map)
            inner._nv_map.update(zip((i.name for i in inputs), block.arguments, strict=True))
            inner.import_all(False)

    def _handle_node_SameSizes(self, node: onnx.NodeProto) -> bool:
        if op_of(node) != SAME_SIZES:
            return False
        with mlir.InsertionPoint(self._b), mlir.Location.name(node.name):
            attributes = attributes_of(node)
            told = attributes.pop("otherwise").decode(errors="replace")
            check_sizes([self._nv_map[name] for name in node.input], otherwise=told, **attributes)
        return True


def _infos(graph: Any) -> dict[str, onnx.ValueInfoProto]:
    """The types of a graph's values and of those around it, by their names."""
    weights = {
        name: onnx.helper.make_tensor_value_info(name, tensor.data_type, tensor.dims)
        for name, tensor in graph.initializer_map.items()
    }
    found: dict[str, onnx.ValueInfoProto] = {
        **weights, **graph.declared_input_map, **graph.output_map, **graph.value_info_map
    }  # fmt: skip
    return found
