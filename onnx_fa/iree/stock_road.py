"""The stock road: a transform-dialect spec that puts our kernels in place of decomposed sites in stock iree-compile.

The matcher of the transform dialect compares linalg op by op, so a pattern written by hand would break with every
release of IREE. Here each site's own ONNX nodes are imported and lowered alone, by the installed IREE, to the point
where the spec will run; what comes out is the pattern. Reshapes and transposes at the edges of a site may fold with
their neighbours in a whole model, so they are cut off the pattern and undone in the replacement, where they fold away.
"""

from __future__ import annotations

import json
import re
import shlex
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import onnx
import onnx_ir as ir

from onnx_fa.errors import CompileError, UnsupportedError
from onnx_fa.forms.replace import Site
from onnx_fa.iree.compiler import find_compiler
from onnx_fa.iree.site_pattern import SpecSite, make_replacement
from onnx_fa.iree.transform_text import Replacement, module_text
from onnx_fa.kernels.choose import emit_kernel
from onnx_fa.kernels.mlir.kernel import Kernel
from onnx_fa.processes import run_limited
from onnx_fa.spec.attention import AttentionSpec
from onnx_fa.spec.dtypes import ONNX
from onnx_fa.spec.target import Target

EmitKernel = Callable[[AttentionSpec, Target], Kernel]

_TIMEOUT_S = 120
_MEMORY_BYTES = 8 << 30


def emit_stateless(spec: AttentionSpec, target: Target) -> Kernel:
    """The kernel of a site without memory that a program keeps. Raises as `emit_kernel` does."""
    kernel = emit_kernel(spec, target)
    return emit_kernel(spec, target, body="vector") if kernel.body == "split" else kernel


def emit_transform_spec(
    model: ir.Model,
    sites: Sequence[SpecSite],
    target: Target,
    *,
    emit: EmitKernel = emit_stateless,
    left_out: Callable[[SpecSite, UnsupportedError], None] | None = None,
) -> str:
    """The text of a spec for `iree-compile --iree-preprocessing-transform-spec-filename`.

    `emit` makes a site's kernel. Equal sites share one pattern. The first lines name the further iree-compile flags
    that the kernels need (`spec_flags` reads them). A site that no pattern or kernel can stand for raises
    UnsupportedError, or is left out of the spec and passed to `left_out`. Raises CompileError when the installed IREE
    refuses a site's nodes.
    """
    seen: set[bytes] = set()
    kernels: dict[str, Kernel] = {}
    of_text: dict[str, Kernel] = {}
    replacements: list[Replacement] = []
    for site in sites:
        try:
            if site.spec.stats:
                raise UnsupportedError("row statistics as outputs: a pattern of the stock road has one result")
            proto = site_model(model, site)
            key = json.dumps(site.spec.to_dict()).encode() + proto.SerializeToString(deterministic=True)
            if key in seen:
                continue
            kernel = emit(site.spec, target)
            kernel = replace(kernel, text=_without_state(kernel.text))
            # Kernels of free lengths with other names are one, as the compiler makes one of them.
            kernel = of_text.setdefault(kernel.text.replace(kernel.name, ""), kernel)
            replacement = make_replacement(site, _lower(proto, site.name), kernel, f"onnx_fa_{len(replacements)}")
        except UnsupportedError as error:
            if left_out is None:
                raise
            left_out(site, error)
            continue
        seen.add(key)
        kernels[kernel.name] = kernel
        replacements.append(replacement)
    return module_text(replacements, kernels.values())


def spec_sites(sites: Iterable[Site]) -> list[SpecSite]:
    """The sites of `rewrite_in_place(model, "decomposed")`."""
    return [
        SpecSite(s.name, s.spec, tuple(str(v.name) for v in s.operands), str(s.nodes[-1].outputs[0].name), s.nodes)
        for s in (site.plain or site for site in sites)  # patterns begin behind a dequantisation
    ]


def spec_for_model(
    model: ir.Model,
    sites: Iterable[Site],
    target: Target,
    left_out: Callable[[SpecSite, UnsupportedError], None] | None = None,
) -> str:
    """`emit_transform_spec` for a model and what `rewrite_in_place(model, "decomposed")` said of its sites."""
    return emit_transform_spec(model, spec_sites(sites), target, left_out=left_out)


def spec_flags(text: str) -> tuple[str, ...]:
    """The iree-compile flags that a spec's first lines ask for."""
    return tuple(re.findall(r"^// and (--\S+)$", text, re.MULTILINE))


def site_model(model: ir.Model, site: SpecSite) -> onnx.ModelProto:
    """A model of the site alone: inputs are the operands (once each), values are renamed by their order."""
    names = {name: f"operand{i}" for i, name in reversed(list(enumerate(site.operands)))}
    inputs = []
    operands = zip(site.operands, site.spec.operand_dtypes, site.spec.operand_shapes, strict=True)
    for i, (name, dtype, shape) in enumerate(operands):
        if names[name] == f"operand{i}":
            inputs.append(onnx.helper.make_tensor_value_info(names[name], ONNX[dtype], shape))
    produced = {out.name for node in site.nodes for out in node.outputs}
    initializers: list[onnx.TensorProto] = []

    def rename(value: ir.Value | None) -> str:
        if value is None or not value.name:
            return ""
        if value.name in names:
            return names[value.name]
        constant = ir.convenience.get_const_tensor(value)
        if constant is None and value.name not in produced:
            raise UnsupportedError(f"site {site.name} reads {value.name}, which is neither an operand nor a constant")
        names[value.name] = f"value{len(names)}"
        if value.name not in produced and constant is not None:
            tensor = ir.serde.serialize_tensor(ir.tensor(constant.numpy()))
            tensor.name = names[value.name]
            initializers.append(tensor)
        return names[value.name]

    nodes: list[onnx.NodeProto] = []
    infos: list[onnx.ValueInfoProto] = []
    for node in site.nodes:
        proto = ir.serde.serialize_node(node)
        renamed = [rename(v) for v in node.inputs], [rename(v) for v in node.outputs]
        for old, new in zip((proto.input, proto.output), renamed, strict=True):
            del old[:]
            old.extend(new)
        proto.ClearField("metadata_props")
        proto.name, proto.doc_string = f"node{len(nodes)}", ""
        nodes.append(proto)
        for value in node.outputs:
            if value.name != site.output and value.shape is not None and value.type is not None:
                info = ir.serde.serialize_value(value)
                info.name = names[str(value.name)]
                info.ClearField("metadata_props")
                infos.append(info)
    if site.output not in names:
        raise UnsupportedError(f"site {site.name}: none of its nodes yields its output {site.output}")
    output = onnx.helper.make_tensor_value_info(names[site.output], ONNX[site.spec.dtype], site.spec.out_shape)
    graph = onnx.helper.make_graph(nodes, "site", inputs, [output], initializers, value_info=infos)
    opsets = [onnx.helper.make_opsetid(domain, version) for domain, version in model.opset_imports.items()]
    return onnx.helper.make_model(graph, opset_imports=opsets, ir_version=model.ir_version)


def _lower(proto: onnx.ModelProto, name: str) -> str:
    """The MLIR that preprocessing sees of a model, from the installed IREE."""
    with tempfile.TemporaryDirectory(prefix="onnx_fa_") as folder:
        source, imported, lowered = (Path(folder, f) for f in ("site.onnx", "site.mlir", "input.mlir"))
        onnx.save(proto, source)
        _run(name, [sys.executable, "-m", "iree.compiler.tools.import_onnx", str(source), "-o", str(imported)])
        # Device flags play no part before preprocessing; some device has to be named.
        flags = ["--iree-hal-target-device=local", "--iree-hal-local-target-device-backends=llvm-cpu"]
        compiler = str(find_compiler())
        _run(name, [compiler, "--compile-to=input", *flags, str(imported), "-o", str(lowered)])
        return lowered.read_text()


def _run(name: str, command: list[str]) -> None:
    done = run_limited(command, timeout_s=_TIMEOUT_S, memory_bytes=_MEMORY_BYTES)
    if done.ending != "ok":
        with tempfile.NamedTemporaryFile("w", prefix="onnx_fa_", suffix=".log", delete=False) as log:
            log.write(f"{shlex.join(command)}\n{done.stderr}")
        how = done.describe(_TIMEOUT_S, _MEMORY_BYTES)
        raise CompileError(f"site {name}: {command[0]} {how} on the site's nodes alone; see {log.name}")


_STATE = re.compile(r"util\.global private mutable @([\w$.]+) = dense<0> : (.*)\n")


def _without_state(text: str) -> str:
    """A kernel's text with buffers of zeros made anew in each call instead of those that the module keeps: a transform spec imports
    no variables."""
    for name, type_ in _STATE.findall(text):
        text = re.sub(
            rf"(%[\w$.]+) = util\.global\.load @{re.escape(name)} : .*\n",
            rf"\1_zero = arith.constant 0 : i32\n\1 = flow.tensor.splat \1_zero : {type_}\n",
            text,
        )
        text = re.sub(rf"util\.global\.store .*@{re.escape(name)} : .*\n", "", text)
    return _STATE.sub("", text)
