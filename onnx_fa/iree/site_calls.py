"""Calls of kernels in the place of nodes of ours that stand for them, apart from attention's."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import onnx

from onnx_fa.errors import MissingDependencyError
from onnx_fa.graph.ops import op_of
from onnx_fa.iree.bodies import CheckedImporter
from onnx_fa.iree.kernel_calls import called_kernel
from onnx_fa.iree.kernel_report import LinearReport
from onnx_fa.iree.legalise.channel_norm import CHANNEL_STATISTICS, channel_statistics_of
from onnx_fa.iree.legalise.convolutions import CONV_SITE, window_of
from onnx_fa.iree.legalise.few_rows import FUSED_LINEAR
from onnx_fa.iree.legalise.recurrent_steps import RECURRENT_STEPS, recurrent_steps_of
from onnx_fa.iree.legalise.rotated_rows import ROTATED_ROWS, rotated_spec_of
from onnx_fa.iree.legalise.top_k import TOP_K_SITE
from onnx_fa.iree.legalise.writer import attributes_of
from onnx_fa.iree.mlir_values import (
    builtin_of,
    call_function,
    cast_to,
    dims_of,
    element_of,
    make_op,
    tensor_of,
    to_builtin,
)
from onnx_fa.iree.parameters import WeightImporter
from onnx_fa.kernels.cpu.channel_norm import ChannelStatistics
from onnx_fa.kernels.cpu.joined_product import JoinedProduct
from onnx_fa.kernels.cpu.recurrent import RecurrentSteps
from onnx_fa.kernels.cpu.sequence import SequenceConv
from onnx_fa.kernels.cpu.token_sums import TokenSums
from onnx_fa.kernels.cpu.top_k import TopK
from onnx_fa.kernels.cpu.window import emit_window
from onnx_fa.kernels.cpu.window_body import y_of
from onnx_fa.kernels.mlir.entry import Site
from onnx_fa.kernels.tiles.origin import BY_RULE
from onnx_fa.spec.fused_linear import FusedLinear, fused_name
from onnx_fa.spec.rotated import rotated_name
from onnx_fa.spec.target import Target
from onnx_fa.spec.terms import Dim

try:
    from iree.compiler import ir as mlir
except ImportError as _error:
    raise MissingDependencyError("the MLIR importer is not installed: pip install iree-base-compiler") from _error


class _Kernel(Protocol):
    """A kernel for CPUs, of which some are for CUDA too."""

    def texts(self, target: Target) -> dict[str, str]: ...


def _texts_of(kernel: _Kernel, target: Target) -> dict[str, str]:
    """The texts of a kernel for the target, by their symbols."""
    if target.is_gpu:  # modules for CUDA alone
        if isinstance(kernel, TokenSums):
            from onnx_fa.kernels.triton.token_sums import emit_token_sums

            return emit_token_sums(kernel)
        if isinstance(kernel, SequenceConv):
            from onnx_fa.kernels.triton.sequence import emit_sequence

            return emit_sequence(kernel.spec)
        if isinstance(kernel, ChannelStatistics):
            from onnx_fa.kernels.triton.channel_norm import emit_channels

            return emit_channels(kernel)
        if isinstance(kernel, RecurrentSteps):
            from onnx_fa.kernels.triton.recurrent import emit_steps

            return emit_steps(kernel.spec)
    return kernel.texts(target)


class CallingImporter(CheckedImporter):
    """The importer plus ChannelStatistics, ConvSite, FusedLinear, JoinedProduct, IndexedProduct, RecurrentSteps, RotatedHeads,
    RotatedRows,
    ResampledPlanes, SequenceSite, TokenSums, TopKSite, and what a call of any kernel takes."""

    __slots__ = ["functions", "reports", "target", "weights"]
    weights: WeightImporter
    functions: dict[str, str]
    """The texts of functions that are called and are no attention's, and of their executables, by their symbols."""
    target: Target | None
    reports: list[LinearReport]
    """Of products that become calls here, beside those that `find_linear_sites` returns."""

    def _handle_node_ConvSite(self, node: onnx.NodeProto) -> bool:
        if op_of(node) != CONV_SITE:
            return False
        assert self.target is not None  # else no such node is written
        spec = window_of(self._dims_and_types(node), attributes_of(node))
        if self.target.is_gpu:
            from onnx_fa.kernels.triton import window  # for CUDA alone

            self.functions.update(window.emit_window(spec))
        else:
            self.functions.update(emit_window(spec, self.target))
        self.reports.append(LinearReport(node.name, spec.product, spec.name, origin=BY_RULE))
        self._call_site(node, spec.name, [mlir.Type.parse(y_of(spec).type)])
        return True

    def _handle_called(self, node: onnx.NodeProto) -> bool:
        spec = called_kernel(node, self._types(node))
        if spec is None:
            return False
        assert self.target is not None  # else no such node is written
        self.functions.update(_texts_of(spec, self.target))
        if isinstance(spec, JoinedProduct | SequenceConv):
            self.reports.append(LinearReport(node.name, spec.product, spec.name, origin=BY_RULE))
        self._call_site(node, spec.name, [mlir.Type.parse(spec.y.type)])
        return True

    _handle_node_JoinedProduct = _handle_node_IndexedProduct = _handle_called
    _handle_node_RotatedHeads = _handle_node_ResampledPlanes = _handle_called
    _handle_node_SequenceSite = _handle_node_TokenSums = _handle_called

    def _handle_node_RotatedRows(self, node: onnx.NodeProto) -> bool:
        if op_of(node) != ROTATED_ROWS:
            return False
        from onnx_fa.kernels.triton.rotate import emit_rotated  # for CUDA alone

        spec = rotated_spec_of(self._dims_and_types(node), attributes_of(node))
        return self._call_spec(node, spec, rotated_name(spec), emit_rotated(spec))

    def _handle_node_FusedLinear(self, node: onnx.NodeProto) -> bool:
        if op_of(node) != FUSED_LINEAR:
            return False
        from onnx_fa.kernels.triton.fused_linear import emit_fused  # for CUDA alone

        spec = FusedLinear.from_dict(json.loads(attributes_of(node)["spec"]))
        return self._call_spec(node, spec, fused_name(spec), emit_fused(spec))

    def _handle_node_TopKSite(self, node: onnx.NodeProto) -> bool:
        if op_of(node) != TOP_K_SITE:
            return False
        (((rows, n), element),) = self._dims_and_types(node)
        assert isinstance(n, int)
        attributes = attributes_of(node)
        lead = rows if isinstance(rows, int) else None
        spec = TopK(lead, n, attributes["k"], element, bool(attributes["largest"]))
        return self._call_kernel(node, spec)

    def _handle_node_RecurrentSteps(self, node: onnx.NodeProto) -> bool:
        if op_of(node) != RECURRENT_STEPS:
            return False
        kernel = recurrent_steps_of([dims for dims, _ in self._dims_and_types(node)], attributes_of(node))
        return self._call_kernel(node, kernel)

    def _handle_node_ChannelStatistics(self, node: onnx.NodeProto) -> bool:
        if op_of(node) != CHANNEL_STATISTICS:
            return False
        kernel = channel_statistics_of(self._dims_and_types(node), attributes_of(node))
        return self._call_kernel(node, kernel)

    def _call_kernel(self, node: onnx.NodeProto, kernel: TopK | RecurrentSteps | ChannelStatistics) -> bool:
        """A call of a kernel of several results."""
        assert self.target is not None  # else no such node is written
        self.functions.update(_texts_of(kernel, self.target))
        self._call_site(node, kernel.name, [mlir.Type.parse(result.type) for result in kernel.results])
        return True

    def _call_spec(self, node: onnx.NodeProto, spec: Site, name: str, texts: Mapping[str, str]) -> bool:
        """A call of the function of that name, which stands for a spec and is among the texts; the program has each once."""
        self.functions.update(texts)
        self._call_site(node, name, [tensor_of(shape, dtype) for shape, dtype in spec.results])
        return True

    def _types(self, node: onnx.NodeProto) -> list[Any]:
        """Of a node's operands, as builtin tensors."""
        return [builtin_of(x.type, element_of(x.type)) for x in map(self._nv_map.__getitem__, node.input)]

    def _dims_and_types(self, node: onnx.NodeProto) -> list[tuple[tuple[Dim, ...], str]]:
        """Of a node's operands."""
        return [(dims_of(x), str(x.element_type)) for x in self._types(node)]

    def _call_site(self, node: onnx.NodeProto, name: str, results: Sequence[Any]) -> None:
        """A call of a function by the node's operands, whose results are the node's."""
        with mlir.InsertionPoint(self._b), mlir.Location.name(node.name):
            operands = zip(node.input, self._types(node), strict=True)
            values = [self.weights.keep(x, to_builtin(self._nv_map[x], have)) for x, have in operands]
            values = self.weights.keep_for_run(node.input, values)
            for output, value in zip(node.output, call_function(name, values, results), strict=True):
                self._give(output, value)

    def _give(self, name: str, result: Any) -> None:
        """What a function returned is the value of that name, in the type that the graph says."""
        torch_type = self._cc.type_proto_to_type(self._gi.find_type_proto_for_name(name))
        cast = cast_to(result, builtin_of(torch_type, str(result.type.element_type)))
        self._nv_map[name] = make_op("torch_c.from_builtin_tensor", cast, torch_type)
