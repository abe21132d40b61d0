"""ONNX to the MLIR that iree-compile takes, with a kernel in the place of every AttentionSite node.

Everything but the sites is done by the importer of the installed iree.compiler, so the result is what iree-import-onnx
writes: the same function name, the same operators, weights as resources at the end of the text.
"""

from __future__ import annotations

import contextlib
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import onnx
import onnx_ir as ir

from onnx_fa.errors import MissingDependencyError, ModelError
from onnx_fa.graph.builder import names_in
from onnx_fa.graph.growing import APPEND_ROWS
from onnx_fa.graph.io import ModelLike, load
from onnx_fa.graph.ops import op_of
from onnx_fa.graph.site_op import DOMAIN, SITE
from onnx_fa.graph.view import GraphView
from onnx_fa.iree.apart import apart_name, apart_text
from onnx_fa.iree.appended import append_rows_text, declare, function_name, rows_type
from onnx_fa.iree.bits_calls import bits_call
from onnx_fa.iree.caller_thread import thread_fact
from onnx_fa.iree.inference import infer_types
from onnx_fa.iree.joined_rows import JOINED_ROWS, join_rows, joined_name, joined_text, joined_type
from onnx_fa.iree.kernel_report import LinearAttentionReport, LinearReport, NormReport
from onnx_fa.iree.kernels import PlannedSite
from onnx_fa.iree.known_ops import check_known
from onnx_fa.iree.known_ranks import check_ranks
from onnx_fa.iree.legalise.bits_fused import BITS_NODES, fuse_rounded
from onnx_fa.iree.legalise.bodies_alone import prepare_bodies
from onnx_fa.iree.legalise.broadcasts import doubtful_sizes, write_checks
from onnx_fa.iree.legalise.channels_last import put_channels_last
from onnx_fa.iree.legalise.collected import kept_in_loops, write_collected
from onnx_fa.iree.legalise.conv_epilogues import fuse_epilogues
from onnx_fa.iree.legalise.conv_transpose import write_shuffled
from onnx_fa.iree.legalise.few_rows import join_few_rows
from onnx_fa.iree.legalise.input_sizes import named_sizes
from onnx_fa.iree.legalise.joined_products import join_products
from onnx_fa.iree.legalise.known_operands import (
    known_bounds,
    known_parts,
    write_known_operands,
    write_known_parts,
)
from onnx_fa.iree.legalise.known_targets import known_targets, write_known_targets
from onnx_fa.iree.legalise.linear_attention import LINEAR_ATTENTION_SITE, linear_attention_spec_of
from onnx_fa.iree.legalise.linear_sites import LINEAR_SITE, find_linear_sites, spec_of
from onnx_fa.iree.legalise.loop_starts import keep_starts_apart
from onnx_fa.iree.legalise.norm_sites import NORM_SITE, find_norm_sites, norm_spec_of
from onnx_fa.iree.legalise.nothing import write_nothing
from onnx_fa.iree.legalise.packed_rows import APART, keep_rows_apart
from onnx_fa.iree.legalise.pooled_fills import keep_pooled_fills_apart
from onnx_fa.iree.legalise.rotations import find_rotations
from onnx_fa.iree.legalise.rules import legalize
from onnx_fa.iree.legalise.sequences_last import put_sequences_last
from onnx_fa.iree.legalise.sliced_rows import copy_sliced_rows
from onnx_fa.iree.legalise.turned_twice import keep_reductions_apart
from onnx_fa.iree.legalise.wide_sums import widen_sums
from onnx_fa.iree.legalise.writer import attributes_of, values_of_constants
from onnx_fa.iree.mlir_values import (
    builtin_of,
    call_function,
    cast_to,
    element_of,
    make_op,
    tensor_of,
    to_builtin,
)
from onnx_fa.iree.opsets import raise_opset
from onnx_fa.iree.parameters import WeightImporter
from onnx_fa.iree.placed import placed_call, placed_name
from onnx_fa.iree.site_calls import CallingImporter
from onnx_fa.iree.unsigned_results import unsigned_fact
from onnx_fa.iree.weights import Externalize, Parameter, hold_weights, take_inputs
from onnx_fa.kernels.linear_attention import emit_linear_attention, kept_why
from onnx_fa.kernels.mlir.kernel import Kernel
from onnx_fa.kernels.mlir.text import element_type, tensor_type
from onnx_fa.kernels.row_sites import emit_site
from onnx_fa.match.prepare.branches import with_sure_branches
from onnx_fa.spec.linear import LinearSpec, linear_name
from onnx_fa.spec.linear_attention import linear_attention_name
from onnx_fa.spec.norm import NormSpec, norm_name
from onnx_fa.spec.target import Target

try:
    from iree.compiler import ir as mlir
    from iree.compiler.extras import onnx_importer as stock
except ImportError as _error:
    raise MissingDependencyError("the MLIR importer is not installed: pip install iree-base-compiler") from _error


class Imported(NamedTuple):
    """MLIR `text`, the weights that are not in it, and what became of products with weights, norms and linear attentions; and
    whether packed layouts would make it wrong."""

    text: str
    parameters: list[Parameter]
    linear: list[LinearReport]
    norms: list[NormReport]
    linear_attention: list[LinearAttentionReport]
    is_packed_wrongly: bool


def import_mlir(
    model: ModelLike,
    sites: Mapping[str, PlannedSite],
    externalize: Externalize | None = None,
    *,
    target: Target | None = None,
    verify: bool = True,
    data_prop: bool = True,
) -> Imported:
    """MLIR text of `model`, whose AttentionSite nodes call the kernel of the site that `sites` holds under the node's name; and the
    weights that are not in it, which `externalize` chooses; its linear sites; and its norms.

    The model is legalized for IREE on the way; with a `target` that is a CPU, products by weights of a few bits call kernels too.
    Without `verify` the result is not looked at; without `data_prop` shape inference does not follow numbers. Raises ModelError
    naming the node for an operator of a domain that IREE does not know, and for what the importer cannot express.
    """
    work = with_sure_branches(load(model))
    typed, held = hold_weights(work)
    prepare_bodies(typed)
    write_checks(typed, doubtful_sizes(work), named_sizes(work, names_in(work)))
    view = GraphView(work)
    write_known_operands(typed, known_bounds(view))
    write_known_parts(typed, known_parts(view))
    write_known_targets(typed, known_targets(view))
    infer_types(typed, sites, data_prop=data_prop)
    raised = raise_opset(typed)
    if raised is not typed:
        typed = raised
        infer_types(typed, sites, data_prop=data_prop)
    if write_collected(typed, kept_in_loops(view)):
        infer_types(typed, sites, data_prop=data_prop)
    write_nothing(typed, held)
    facts = thread_fact(typed, {name: site.spec for name, site in sites.items()}, target), unsigned_fact(typed)
    write_shuffled(typed, held, target=target)
    put_channels_last(typed, held, target=target)
    put_sequences_last(typed, held, target=target)
    keep_pooled_fills_apart(typed, target=target)
    proto = legalize(typed, held, target=target)
    check_known(proto.graph, sites)
    infer_types(proto, sites, data_prop=data_prop)
    check_ranks(proto.graph)
    join_products(proto, held, target=target)
    linear = find_linear_sites(proto, held, target=target)
    fuse_epilogues(proto, held, target=target)
    fuse_rounded(proto, held, target=target)  # takes norms of its own
    norms = find_norm_sites(proto, held, target=target)
    linear, norms = join_few_rows(proto, held, target=target, linear=linear, norms=norms)
    find_rotations(proto, held, target=target)
    widen_sums(proto, held)
    keep_reductions_apart(proto, held, target=target)
    packed_wrongly = keep_rows_apart(proto, held, target=target)
    join_rows(proto, target=target)
    copy_sliced_rows(proto, target=target)
    keep_starts_apart(proto, target=target)
    info = stock.ModelInfo(proto)
    module = info.create_module(mlir.Context()).operation
    importer = _SiteImporter.define(info.main_graph, module, sites, held, externalize)
    importer.target = target
    importer.weights.branches = target is not None and target.backend == "cuda"
    if target is not None and target.is_gpu:
        importer.weights.computed = values_of_constants(proto.graph)
    if any(facts):
        told = f"{{{', '.join(filter(None, facts))}}}"
        importer._p.attributes["iree.reflection"] = mlir.Attribute.parse(told, module.context)
    called = [sites[node.name].kernel for node in proto.graph.node if op_of(node) == SITE]
    kernels = list({k.name: k for k in called if k is not None}.values())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # outputs nobody reads may have no type
        try:
            importer.import_all()
        except stock.OnnxImportError as e:
            raise ModelError(f"the model cannot be imported: {' '.join(str(e).split())[:300]}") from e
    if verify:
        _verify(module, [*map(_declaration, kernels), *filter(None, map(declare, importer.functions.values()))])
    text: str = module.get_asm(assume_verified=True)
    # Kernels come first: IREE lowers no store to a global that is defined behind the function (docs/developer/iree-bugs.md).
    start = re.search(r"^module.*\{\n", text, re.M)
    assert start is not None
    added = [*(k.text for k in kernels), *importer.functions.values()]
    whole = text[: start.end()] + "\n".join(added) + "\n" + text[start.end() :]
    linear += importer.reports
    return Imported(whole, importer.weights.parameters, linear, norms, importer.attentions, packed_wrongly)


def _verify(module: Any, declarations: Sequence[str]) -> None:
    """Raises ModelError where the module is not one. `declarations` are of functions whose text joins it later."""
    with _declared(module, declarations):
        try:
            module.verify()
        except mlir.MLIRError as e:
            raise ModelError(f"the model cannot be imported: {' '.join(str(e).split())[:300]}") from e


@contextlib.contextmanager
def _declared(module: Any, declarations: Sequence[str]) -> Iterator[None]:
    """Declares functions for the time of a verification."""
    made = []
    with module.context, mlir.Location.unknown(), mlir.InsertionPoint(module.regions[0].blocks[0]):
        for text in declarations:
            made.append(mlir.Operation.parse(text))
            mlir.InsertionPoint(module.regions[0].blocks[0]).insert(made[-1])
    try:
        yield
    finally:
        for declaration in made:
            declaration.operation.erase()


def _declaration(kernel: Kernel) -> str:
    spec = kernel.spec
    args, results = (
        ", ".join(tensor_type(shape, element_type(dtype)) for shape, dtype in types)
        for types in (zip(spec.operand_shapes, spec.operand_dtypes, strict=True), spec.results)
    )
    return f"util.func private @{kernel.name}({args}) -> ({results})"


class _SiteImporter(CallingImporter):
    """The stock importer plus one operator. `sites` maps the name of an AttentionSite node to its site."""

    __slots__ = ["attentions", "sites"]
    sites: Mapping[str, PlannedSite]
    attentions: list[LinearAttentionReport]

    @classmethod
    def define(
        cls,
        graph: Any,
        module: Any,
        sites: Mapping[str, PlannedSite],
        held: Mapping[str, ir.TensorProtocol],
        externalize: Externalize | None,
    ) -> _SiteImporter:
        parameters = take_inputs(graph, externalize)
        base = stock.NodeImporter.define_function(graph, module)
        # define_function makes a NodeImporter whatever class it is called on.
        self = cls(
            graph,
            parent_op=base._p,
            block=base._b,
            context_cache=base._cc,
            module_op=base._m,
            module_cache=base._mc,
        )
        self._nv_map = base._nv_map
        self.sites = sites
        self.functions, self.reports, self.attentions = {}, [], []
        self.weights = WeightImporter(base._p, base._cc, held, externalize)
        for name, info in parameters.items():
            self._nv_map[name] = self.weights.load_input(info, self._b)
        return self

    def import_initializer(self, initializer: onnx.TensorProto, extern_name: str | None = None) -> Any:
        name = extern_name or initializer.name
        value = self.weights.load(initializer, name, self._b)
        if value is None:
            return super().import_initializer(initializer, extern_name)
        self._nv_map[name] = value
        return value

    def _handle_node_AttentionSite(self, node: onnx.NodeProto) -> bool:
        if node.domain != DOMAIN:
            return False
        kernel, device = self.sites[node.name].kernel, self.sites[node.name].device
        assert kernel is not None  # a site without one is written in standard ops
        spec, function = kernel.spec, kernel.name
        if device is not None:
            function = placed_name(kernel, device)
            self.functions[function] = placed_call(kernel, device)
        with mlir.InsertionPoint(self._b), mlir.Location.name(node.name):
            operands = []
            for name, shape, dtype in zip(node.input, spec.operand_shapes, spec.operand_dtypes, strict=True):
                value = self._nv_map[name]
                have = builtin_of(value.type, element_type(dtype))
                want = tensor_of(shape, dtype)
                operands.append(cast_to(to_builtin(value, have), want))
            operands = self.weights.keep_for_run(node.input, operands)
            results = call_function(function, operands, [tensor_of(shape, dtype) for shape, dtype in spec.results])
            for name, result in zip(node.output, results, strict=True):
                self._give(name, result)
        return True

    def _handle_node_Apart(self, node: onnx.NodeProto) -> bool:
        if op_of(node) != APART:
            return False
        ((dims, element),) = self._dims_and_types(node)
        name = apart_name(dims, element)
        self.functions[name] = apart_text(dims, element)
        self._call_site(node, name, self._types(node))
        return True

    def _handle_node_JoinedRows(self, node: onnx.NodeProto) -> bool:
        if op_of(node) != JOINED_ROWS:
            return False
        (first, element), (second, _) = self._dims_and_types(node)
        dims = [a if isinstance(a, int) else b for a, b in zip(first, second, strict=True)]
        axis = attributes_of(node)["axis"]
        with mlir.InsertionPoint(self._b), mlir.Location.name(node.name):
            name, want = joined_name(dims, axis, element), mlir.Type.parse(joined_type(dims, axis, element))
            self.functions[name] = joined_text(dims, axis, element)
            values = zip(node.input, self._types(node), strict=True)
            operands = [cast_to(to_builtin(self._nv_map[x], have), want) for x, have in values]
            self._give(node.output[0], call_function(name, operands, [want])[0])
        return True

    def _handle_node_AppendRows(self, node: onnx.NodeProto) -> bool:
        if op_of(node) != APPEND_ROWS:
            return False
        with mlir.InsertionPoint(self._b), mlir.Location.name(node.name):
            cache, new = (self._nv_map[name] for name in node.input)
            element = element_of(cache.type)
            whole = builtin_of(cache.type, element)
            dims = [None if whole.is_dynamic_dim(i) else whole.get_dim_size(i) for i in range(1, whole.rank)]
            name, rows = function_name(dims, element), mlir.Type.parse(rows_type(dims, element))
            self.functions[name] = append_rows_text(dims, element)
            operands = [cast_to(to_builtin(x, builtin_of(x.type, element)), rows) for x in (cache, new)]
            (made,) = call_function(name, operands, [rows])
            self._nv_map[node.output[0]] = make_op("torch_c.from_builtin_tensor", cast_to(made, whole), cache.type)
        return True

    def _handle_bits(self, node: onnx.NodeProto) -> bool:
        if op_of(node) not in BITS_NODES:
            return False
        assert self.target is not None  # else no such node is written
        with mlir.InsertionPoint(self._b), mlir.Location.name(node.name):
            values, types = [self._nv_map[name] for name in node.input], self._types(node)
            call = bits_call(node, types, self.target)
            self.functions.update(call.texts)
            self.reports.extend(call.reports)
            operands = [
                cast_to(to_builtin(value, have), mlir.Type.parse(want))
                for value, have, want in zip(values, types, call.operands, strict=True)
            ]
            results = call_function(call.name, operands, [mlir.Type.parse(result) for result in call.results])
            for name, made in zip(node.output, results, strict=True):
                self._give(name, made)
        return True

    _handle_node_BitsProduct = _handle_node_RoundedProduct = _handle_bits
    _handle_node_RoundedRows = _handle_node_GatedProduct = _handle_bits

    def _handle_node_LinearSite(self, node: onnx.NodeProto) -> bool:
        if op_of(node) != LINEAR_SITE:
            return False
        spec = spec_of(self._dims_and_types(node), attributes_of(node))
        return self._call_row_site(node, spec, linear_name(spec))

    def _handle_node_NormSite(self, node: onnx.NodeProto) -> bool:
        if op_of(node) != NORM_SITE:
            return False
        spec = norm_spec_of(self._dims_and_types(node), attributes_of(node), len(node.output))
        return self._call_row_site(node, spec, norm_name(spec))

    def _handle_node_LinearAttentionSite(self, node: onnx.NodeProto) -> bool:
        if op_of(node) != LINEAR_ATTENTION_SITE:
            return False
        spec = linear_attention_spec_of([dims for dims, _ in self._dims_and_types(node)], attributes_of(node))
        self.functions.update(emit_linear_attention(spec, self.target))
        name, why = linear_attention_name(spec), kept_why(spec, self.target)
        self.attentions.append(LinearAttentionReport(node.name, spec, "" if why else name, why))
        results = [tensor_of(shape, dtype) for shape, dtype in spec.results]
        self._call_site(node, name, results)
        return True

    def _call_row_site(self, node: onnx.NodeProto, spec: LinearSpec | NormSpec, name: str) -> bool:
        """A call of the kernel of a product with a weight, or of a norm, which the program has once for all of that name."""
        assert self.target is not None  # else no such node is written
        return self._call_spec(node, spec, name, emit_site(spec, self.target))
