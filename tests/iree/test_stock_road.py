"""The stock road: decomposed ONNX through unmodified iree-import-onnx and iree-compile with our transform spec."""

from __future__ import annotations

import dataclasses
import re
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import onnxruntime as ort
import pytest
from iree.compiler.tools import binaries
from iree.compiler.tools.import_onnx.__main__ import main as import_main
from iree.compiler.tools.import_onnx.__main__ import parse_arguments
from onnx import TensorProto, helper, numpy_helper

from onnx_fa.errors import UnsupportedError
from onnx_fa.forms.rewrite import rewrite_in_place
from onnx_fa.graph.io import load, to_proto
from onnx_fa.iree import stock_road
from onnx_fa.iree.site_pattern import SpecSite
from onnx_fa.iree.stock_road import emit_transform_spec, spec_flags, spec_for_model
from onnx_fa.kernels.choose import emit_kernel, kernel_name
from onnx_fa.kernels.cpu.vector import VectorConfig, emit_vector
from onnx_fa.kernels.mlir.kernel import Kernel
from onnx_fa.spec.attention import AttentionSpec
from onnx_fa.spec.target import Target, parse_target
from onnx_fa.spec.terms import AddMask, BoolMask, Causal, SlidingWindow, Softcap

TARGET = parse_target("cpu-host")
LIMITS = "ulimit -v 8000000; exec timeout 120 "


@pytest.fixture(autouse=True)
def imports_in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """iree-import-onnx on a site alone is called here, where its libraries are loaded: a process of its own takes as long as the
    compiler does. `rewrite --spec` starts one in tests of the command."""
    run_process = stock_road._run

    def run(name: str, command: list[str]) -> None:
        if command[1:3] == ["-m", "iree.compiler.tools.import_onnx"]:
            import_main(parse_arguments(command[3:]))
        else:
            run_process(name, command)

    monkeypatch.setattr(stock_road, "_run", run)


@dataclass
class Graph:
    """ONNX nodes under construction, and the sites among them."""

    nodes: list[onnx.NodeProto] = field(default_factory=list)
    initializers: dict[str, onnx.TensorProto] = field(default_factory=dict)
    inputs: list[onnx.ValueInfoProto] = field(default_factory=list)
    sites: list[tuple[AttentionSpec, tuple[str, ...], str, range]] = field(default_factory=list)

    def input(self, name: str, shape: tuple[int | str, ...], type_: int = TensorProto.FLOAT) -> str:
        self.inputs.append(helper.make_tensor_value_info(name, type_, shape))
        return name

    def const(self, value: Any) -> str:
        name = f"c{len(self.initializers)}"
        self.initializers[name] = numpy_helper.from_array(np.asarray(value), name)
        return name

    def op(self, op_type: str, *inputs: str, **attributes: Any) -> str:
        name = f"x{len(self.nodes)}"
        self.nodes.append(helper.make_node(op_type, inputs, [name], name=f"n{len(self.nodes)}", **attributes))
        return name

    def attention(self, spec: AttentionSpec, *operands: str) -> str:
        """The decomposed form of `spec`."""
        start = len(self.nodes)
        rank, out = spec.rank, ""
        q, k, v = (
            self.to_canonical(x, p)
            for x, p in zip(operands, (spec.q_layout, spec.k_layout, spec.v_layout), strict=False)
        )
        kt = self.op("Transpose", k, perm=[*range(rank - 2), rank - 1, rank - 2])
        if spec.group > 1:
            axis = self.const(np.array([len(spec.batch) + 1]))
            q = self.op("Reshape", q, self.const([*spec.batch, spec.Hkv, spec.group, spec.Sq, spec.D]))
            kt, v = self.op("Unsqueeze", kt, axis), self.op("Unsqueeze", v, axis)
        s = self.op("MatMul", self.op("Mul", q, self.const(np.float32(spec.scale))), kt)
        for mod in spec.mods:
            cap = self.const(np.float32(mod.cap))
            s = self.op("Mul", self.op("Tanh", self.op("Div", s, cap)), cap)
        tensors = iter(operands[3:])
        for mask in spec.masks:
            if isinstance(mask, AddMask):
                s = self.op("Add", s, next(tensors))
            else:
                keep = next(tensors) if isinstance(mask, BoolMask) else self.index_mask(spec, mask)
                s = self.op("Where", keep, s, self.const(np.float32(mask.fill)))
        axes = self.const(np.array([-1]))
        p = self.op("Exp", self.op("Sub", s, self.op("ReduceMax", s, axes, keepdims=1)))
        total = self.op("ReduceSum", p, axes, keepdims=1)
        out = self.op("Div", self.op("MatMul", p, v), total)
        if spec.empty_row == "zero":
            zero = self.const(np.float32(0))
            out = self.op("Where", self.op("Greater", total, zero), out, zero)
        if spec.group > 1:
            out = self.op("Reshape", out, self.const([*spec.batch, spec.Hq, spec.Sq, spec.Dv]))
        if spec.o_layout != tuple(range(rank)):
            out = self.op("Transpose", out, perm=spec.o_layout)
        self.sites.append((spec, operands, out, range(start, len(self.nodes))))
        return out

    def to_canonical(self, x: str, layout: tuple[int, ...]) -> str:
        perm = [layout.index(a) for a in range(len(layout))]
        return x if perm == sorted(perm) else self.op("Transpose", x, perm=perm)

    def index_mask(self, spec: AttentionSpec, mask: Causal | SlidingWindow) -> str:
        zero, one = self.const(np.int64(0)), self.const(np.int64(1))
        offset = spec.Skv - spec.Sq if mask.offset == "end" else mask.offset
        rows = self.op("Unsqueeze", self.op("Range", zero, self.const(np.int64(spec.Sq)), one), self.const([-1]))
        i = self.op("Add", rows, self.const(np.int64(offset)))
        j = self.op("Range", zero, self.const(np.int64(spec.Skv)), one)
        if isinstance(mask, Causal):
            return self.op("LessOrEqual", j, i)
        low = self.op("GreaterOrEqual", j, self.op("Sub", i, self.const(np.int64(mask.left))))
        return self.op("And", low, self.op("LessOrEqual", j, self.op("Add", i, self.const(np.int64(mask.right)))))

    def operands(self, spec: AttentionSpec, prefix: str = "") -> list[str]:
        types = {"f32": TensorProto.FLOAT, "bool": TensorProto.BOOL}
        shapes = zip(spec.operand_dtypes, spec.operand_shapes, strict=True)
        return [self.input(f"{prefix}{i}", shape, types[dtype]) for i, (dtype, shape) in enumerate(shapes)]

    def model(self, output: str, shape: tuple[int | str, ...]) -> onnx.ModelProto:
        return self.model_of({output: shape})

    def model_of(self, shapes: dict[str, tuple[int | str, ...]]) -> onnx.ModelProto:
        """With these outputs, of f32."""
        outputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in shapes.items()]
        graph = helper.make_graph(self.nodes, "g", self.inputs, outputs, list(self.initializers.values()))
        proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
        onnx.checker.check_model(proto, full_check=True)
        return proto

    def spec_sites(self, model: ir.Model) -> list[SpecSite]:
        nodes = list(model.graph)
        return [
            SpecSite(f"site{i}", spec, tuple(operands), out, tuple(nodes[n] for n in span))
            for i, (spec, operands, out, span) in enumerate(self.sites)
        ]


def random_inputs(model: onnx.ModelProto, sizes: dict[str, int] | None = None) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    arrays = []
    for value in model.graph.input:
        shape = [(sizes or {})[d.dim_param] if d.dim_param else d.dim_value for d in value.type.tensor_type.shape.dim]
        if value.type.tensor_type.elem_type == TensorProto.BOOL:
            mask = rng.random(shape) < 0.7
            mask[..., 0] = True
            arrays.append(mask)
        else:
            arrays.append(rng.standard_normal(shape, dtype=np.float32))
    return arrays


def run_tool(*command: str) -> str:
    done = subprocess.run(
        ["bash", "-c", LIMITS + '"$@"', "run", *command], capture_output=True, text=True, timeout=150, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stderr


def stock_compile(
    tmp_path: Path, model: onnx.ModelProto, spec_text: str, flags: Sequence[str] = ()
) -> tuple[Path, str]:
    """(the compiled module, its flow-level IR), by the stock tools; the first in this process, which has its libraries."""
    source, imported, spec, out = (tmp_path / f for f in ("m.onnx", "m.mlir", "m.spec.mlir", "m.vmfb"))
    onnx.save(model, source)
    spec.write_text(spec_text)
    import_main(parse_arguments([str(source), "-o", str(imported)]))
    run_tool(
        binaries.find_tool("iree-compile"),
        str(imported),
        *TARGET.flags,
        *spec_flags(spec_text),
        *flags,
        "--mlir-disable-threading",
        "--iree-llvmcpu-debug-symbols=false",
        f"--iree-preprocessing-transform-spec-filename={spec}",
        f"--dump-compilation-phases-to={tmp_path}",
        "-o",
        str(out),
    )
    return out, next(tmp_path.glob("*.flow.mlir")).read_text()


def run_module(path: Path, inputs: list[np.ndarray]) -> list[np.ndarray]:
    """All results."""
    import iree.runtime as rt

    config = rt.Config("local-task")
    module = rt.VmModule.mmap(config.vm_instance, str(path))
    bound = rt.load_vm_module(module, config)
    name = next(n for n in module.function_names if not n.endswith("$async") and n != "__init")
    results = bound[name](*inputs)
    return [np.asarray(x) for x in (results if isinstance(results, tuple) else (results,))]


_SMALL = VectorConfig(8, 8, 16, 4, 3, 2)


def with_small_tiles(spec: AttentionSpec, target: Target) -> Kernel:
    """A kernel that compiles in a third of the time: what a pattern finds does not depend on tiles. A single query has another
    body."""
    if spec.Sq == 1:
        return emit_kernel(spec, target)
    config = dataclasses.replace(_SMALL, lanes=min(_SMALL.lanes, target.lanes))
    return emit_vector(spec, target, kernel_name(spec, target), config)


def check(
    tmp_path: Path,
    graph: Graph,
    model: onnx.ModelProto,
    patterns: int | None = None,
    sizes: dict[str, int] | None = None,
    flags: tuple[str, ...] = (),
    emit: Callable[[AttentionSpec, Target], Kernel] = with_small_tiles,
) -> str:
    """Every site is one dispatch of its kernel, and the numbers of all results are onnxruntime's."""
    loaded = ir.from_proto(model)
    sites = graph.spec_sites(loaded)
    text = emit_transform_spec(loaded, sites, TARGET, emit=emit)
    path, flow = stock_compile(tmp_path, model, text, flags)
    calls = re.findall(r"flow\.dispatch @([\w$]+)::", flow)
    ours = [c for c in calls if re.fullmatch(r"fa_\w+_attention", c)]
    assert len(ours) == len(sites), f"{ours} of {calls}"
    assert "math.exp " not in flow  # nothing is left of the decomposed softmax
    if patterns is not None:
        assert text.count("cast_compatible_dag_from_root") == patterns
    inputs = random_inputs(model, sizes)
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    wanted = session.run(None, {v.name: x for v, x in zip(model.graph.input, inputs, strict=True)})
    for want, got in zip(wanted, run_module(path, inputs), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)
    return flow


BASE: dict[str, Any] = dict(dtype="f32", batch=(2,), Hq=4, Hkv=4, Sq=32, Skv=48, D=16, Dv=16, scale=0.25)
SPECS = {
    "plain": AttentionSpec(**BASE),
    "add-mask": AttentionSpec(**BASE, masks=(AddMask((2, 1, 1, 48)),)),
    "full-add-mask": AttentionSpec(**BASE, masks=(AddMask((2, 4, 32, 48)),)),
    "bool-mask": AttentionSpec(**BASE, masks=(BoolMask((2, 1, 1, 48)),)),
    "causal": AttentionSpec(**BASE, masks=(Causal("end"),)),
    "window": AttentionSpec(**BASE, masks=(SlidingWindow(8, 3, 4),)),
    "softcap": AttentionSpec(**BASE, mods=(Softcap(2.0),)),
    "zero": AttentionSpec(**BASE, masks=(BoolMask((2, 1, 32, 48)),), empty_row="zero"),
    "gqa": AttentionSpec(**{**BASE, "Hkv": 2}, masks=(Causal(16),)),
    "bshd": AttentionSpec(
        **BASE, q_layout=(0, 2, 1, 3), k_layout=(0, 2, 1, 3), v_layout=(0, 2, 1, 3), o_layout=(0, 2, 1, 3)
    ),
    "3d": AttentionSpec(**{**BASE, "batch": (), "Hq": 6, "Hkv": 6}),
    "unit-batch": AttentionSpec(**{**BASE, "batch": (1,)}),
    "decode": AttentionSpec(**{**BASE, "Sq": 1}, masks=(AddMask((2, 1, 1, 48)),)),
}


@pytest.mark.parametrize("names", [tuple(SPECS)[i::3] for i in range(3)], ids="-".join)
def test_sites_of_each_kind(tmp_path: Path, names: tuple[str, ...]) -> None:
    """Sites with operands of their own, some in a model."""
    graph = Graph()
    shapes = {graph.attention(SPECS[n], *graph.operands(SPECS[n], f"{n}_")): SPECS[n].out_shape for n in names}
    check(tmp_path, graph, graph.model_of(shapes), patterns=len(names))


def linear(graph: Graph, x: str, rng: np.random.Generator, rows: int, columns: int) -> str:
    return graph.op("MatMul", x, graph.const((rng.standard_normal((rows, columns)) / rows**0.5).astype(np.float32)))


def layer(graph: Graph, x: str, mask: str, rng: np.random.Generator, masks: tuple[Any, ...], **fields: Any) -> str:
    """A transformer block over x (1, 24, 32) with 4 heads of 8."""
    spec = AttentionSpec("f32", 4, 4, 24, 24, 8, 8, (1,), scale=0.35, masks=masks, **fields)
    heads = [
        graph.op(
            "Transpose",
            graph.op("Reshape", linear(graph, x, rng, 32, 32), graph.const([0, 24, 4, 8])),
            perm=[0, 2, 1, 3],
        )
        for _ in range(3)
    ]
    out = graph.attention(spec, *heads, *([mask] if spec.tensor_masks else []))
    out = graph.op("Reshape", graph.op("Transpose", out, perm=[0, 2, 1, 3]), graph.const([0, 24, 32]))
    x = graph.op("Add", x, linear(graph, out, rng, 32, 32))
    ones = graph.const(np.ones(32, np.float32))
    x = graph.op("LayerNormalization", x, ones, axis=-1)
    return graph.op("Add", x, linear(graph, graph.op("Relu", linear(graph, x, rng, 32, 64)), rng, 64, 32))


def test_equal_sites_share_a_pattern(tmp_path: Path) -> None:
    graph, rng = Graph(), np.random.default_rng(0)
    x, mask = graph.input("x", (1, 24, 32)), graph.input("mask", (1, 1, 1, 24))
    for _ in range(2):
        x = layer(graph, x, mask, rng, (AddMask((1, 1, 1, 24)),))
    check(tmp_path, graph, graph.model(x, (1, 24, 32)), patterns=1)


def test_different_sites_in_one_model(tmp_path: Path) -> None:
    """The second is the first with an epilogue, so the first's pattern is part of the second's."""
    graph, rng = Graph(), np.random.default_rng(0)
    x, mask = graph.input("x", (1, 24, 32)), graph.input("mask", (1, 1, 24, 24), TensorProto.BOOL)
    bools = (BoolMask((1, 1, 24, 24)),)
    x = layer(graph, x, mask, rng, bools)
    x = layer(graph, x, mask, rng, bools, empty_row="zero")
    x = layer(graph, x, mask, rng, (Causal(),))
    x = layer(graph, x, mask, rng, ())
    check(tmp_path, graph, graph.model(x, (1, 24, 32)), patterns=4)


def test_another_site_is_left_alone(tmp_path: Path) -> None:
    """A spec made for one scale and one mask must not catch others."""
    spec = SPECS["causal"]
    made_for, model_of = Graph(), Graph()
    made_for.attention(spec, *made_for.operands(spec))
    others = [
        AttentionSpec(**{**BASE, "scale": 0.5}, masks=(Causal("end"),)),
        AttentionSpec(**BASE, masks=(Causal(3),)),
        AttentionSpec(**BASE),
    ]
    outs = [model_of.attention(other, *model_of.operands(other, f"s{i}_")) for i, other in enumerate(others)]
    total = model_of.op("Sum", *outs)
    donor = ir.from_proto(made_for.model(made_for.sites[0][2], spec.out_shape))
    text = emit_transform_spec(donor, made_for.spec_sites(donor), TARGET)
    _, flow = stock_compile(tmp_path, model_of.model(total, spec.out_shape), text, ["--compile-to=flow"])
    assert "flow.dispatch @" in flow
    assert "flow.dispatch @fa_" not in flow


DYNAMIC = {
    "batch": AttentionSpec(**{**BASE, "batch": ("B",)}, masks=(AddMask(("B", 1, 1, 48)),)),
    "lengths": AttentionSpec(**{**BASE, "batch": (1,), "Sq": "Sq", "Skv": "Skv"}),
    "all": AttentionSpec(**{**BASE, "batch": ("B",), "Sq": "S", "Skv": "S"}, masks=(AddMask(("B", 1, 1, "S")),)),
}


@pytest.mark.parametrize("spec", DYNAMIC.values(), ids=DYNAMIC)
def test_lengths_known_at_run_time(tmp_path: Path, spec: AttentionSpec) -> None:
    graph = Graph()
    out = graph.attention(spec, *graph.operands(spec))
    check(tmp_path, graph, graph.model(out, spec.out_shape), sizes={"B": 3, "Sq": 20, "Skv": 28, "S": 36})


def test_reshapes_next_to_a_site(tmp_path: Path) -> None:
    """They fold with those of the site."""
    graph, shapes = Graph(), dict[str, tuple[int | str, ...]]()
    for name in ("plain", "gqa", "bshd"):
        spec = SPECS[name]
        operands = [
            graph.op("Reshape", graph.input(f"{name}{i}", (2, int(np.prod(shape[1:])))), graph.const(np.array(shape)))
            for i, shape in enumerate(spec.operand_shapes)
        ]
        out = graph.op("Transpose", graph.attention(spec, *operands), perm=[0, 3, 1, 2])
        shapes[graph.op("Reshape", out, graph.const(np.array([2, -1])))] = (2, spec.Hq * spec.Sq * spec.Dv)
    check(tmp_path, graph, graph.model_of(shapes))


@pytest.mark.parametrize("flags", [("--iree-opt-data-tiling",), ("--iree-opt-level=O2",)], ids=["tiling", "O2"])
def test_other_compiler_flags(tmp_path: Path, flags: tuple[str, ...]) -> None:
    graph, rng = Graph(), np.random.default_rng(0)
    x = layer(graph, graph.input("x", (1, 24, 32)), "", rng, (Causal(),))
    check(tmp_path, graph, graph.model(x, (1, 24, 32)), flags=flags)


def test_an_operand_used_twice_and_a_constant_query(tmp_path: Path) -> None:
    """Keys that are also the values, as in a shared latent."""
    spec, graph = SPECS["plain"], Graph()
    q, kv, _ = graph.operands(spec, "twice")
    graph.inputs.pop()
    out = graph.attention(spec, q, kv, kv)
    _, k, v = graph.operands(spec, "constant")
    graph.inputs.pop(2)
    query = np.random.default_rng(1).standard_normal(spec.operand_shapes[0]).astype(np.float32)
    other = graph.attention(spec, graph.const(query), k, v)
    check(tmp_path, graph, graph.model_of({out: spec.out_shape, other: spec.out_shape}))


def test_a_site_that_reads_something_else_is_refused() -> None:
    spec, graph = SPECS["add-mask"], Graph()
    out = graph.attention(spec, *graph.operands(spec))
    graph.sites[0] = (spec, (*graph.sites[0][1][:3], graph.sites[0][1][0]), *graph.sites[0][2:])
    model = ir.from_proto(graph.model(out, spec.out_shape))
    with pytest.raises(UnsupportedError, match="site0 reads 3, which is neither an operand nor a constant"):
        emit_transform_spec(model, graph.spec_sites(model), TARGET)


def test_a_site_without_a_kernel_is_left_out() -> None:
    graph = Graph()
    for name in ("plain", "causal"):
        graph.attention(SPECS[name], *graph.operands(SPECS[name], name))
    out = graph.op("Sum", *(site[2] for site in graph.sites))
    model = ir.from_proto(graph.model(out, SPECS["plain"].out_shape))
    sites = graph.spec_sites(model)

    def emit(spec: AttentionSpec, target: Target) -> Kernel:
        if spec.masks:
            raise UnsupportedError("no masks today")
        return emit_kernel(spec, target)

    with pytest.raises(UnsupportedError, match="no masks today"):
        emit_transform_spec(model, sites, TARGET, emit=emit)
    left: list[str] = []
    text = emit_transform_spec(model, sites, TARGET, emit=emit, left_out=lambda site, error: left.append(site.name))
    assert left == ["site1"]
    assert text.count("cast_compatible_dag_from_root") == 1


@pytest.mark.parametrize("name", ["tiny_llama", "tiny_vit"])
def test_exported_models(tmp_path: Path, name: str) -> None:
    pytest.importorskip("torch")
    from onnx_fa.models import build as zoo
    from onnx_fa.models.export import export_onnx

    entry = zoo.find(name)
    original = export_onnx(name)
    model = load(original)
    _, sites = rewrite_in_place(model, "decomposed")
    assert len(sites) == entry.sites
    path, flow = stock_compile(tmp_path, to_proto(model), spec_for_model(model, sites, TARGET))
    assert len(re.findall(r"flow\.dispatch @fa_\w+_attention::", flow)) == entry.sites
    feeds = zoo.inputs(entry)
    session = ort.InferenceSession(original.SerializeToString(), providers=["CPUExecutionProvider"])
    want = session.run(None, feeds)[0]
    got = run_module(path, [feeds[v.name] for v in original.graph.input])[0]
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


def test_the_attention_op_with_heads_in_the_last_dim(tmp_path: Path) -> None:
    """The rewrite adds a Reshape after the site's own nodes, which the pattern must not take in."""
    node = helper.make_node("Attention", ["q", "k", "v"], ["o"], q_num_heads=4, kv_num_heads=2, is_causal=1)
    shapes = {"q": (2, 32, 64), "k": (2, 32, 32), "v": (2, 32, 32), "o": (2, 32, 64)}
    *inputs, output = (helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in shapes.items())
    graph = helper.make_graph([node], "g", inputs, [output])
    original = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=10)
    model = load(original)
    _, sites = rewrite_in_place(model, "decomposed")
    path, flow = stock_compile(tmp_path, to_proto(model), spec_for_model(model, sites, TARGET))
    assert len(re.findall(r"flow\.dispatch @fa_\w+_attention::", flow)) == len(sites) == 1
    arrays = random_inputs(original)
    session = ort.InferenceSession(original.SerializeToString(), providers=["CPUExecutionProvider"])
    want = session.run(None, dict(zip("qkv", arrays, strict=True)))[0]
    (got,) = run_module(path, arrays)
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


def test_a_mask_from_integers(tmp_path: Path) -> None:
    """Ids of documents are an operand of the site."""
    model = load(
        onnx.parser.parse_model(
            """<ir_version: 9, opset_import: ["": 18]>
            g (float[2,3,20,16] q, float[2,3,20,16] k, float[2,3,20,16] v, int64[2,20] ids) => (float[2,3,20,16] o)
            <int64[2] rows = {1, 3}, int64[2] columns = {1, 2}, float low = {-inf}> {
              kt = Transpose <perm=[0,1,3,2]> (k)
              s = MatMul (q, kt)
              a = Unsqueeze (ids, rows)
              b = Unsqueeze (ids, columns)
              same = Equal (a, b)
              m = Where (same, s, low)
              p = Softmax <axis=-1> (m)
              o = MatMul (p, v)
            }"""
        )
    )
    original = to_proto(model).SerializeToString()
    _, sites = rewrite_in_place(model, "decomposed")
    assert "i64" in sites[0].spec.operand_dtypes
    path, flow = stock_compile(tmp_path, to_proto(model), spec_for_model(model, sites, TARGET))
    assert len(re.findall(r"flow\.dispatch @fa_\w+_attention::", flow)) == 1
    rng = np.random.default_rng(0)
    feeds = {n: rng.standard_normal((2, 3, 20, 16)).astype(np.float32) for n in "qkv"}
    feeds["ids"] = np.repeat([[0, 1, 2, 3], [4, 5, 6, 7]], 5, axis=1)
    want = ort.InferenceSession(original, providers=["CPUExecutionProvider"]).run(None, feeds)[0]
    (got,) = run_module(path, [feeds[v.name] for v in model.graph.inputs if v.name])
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)
