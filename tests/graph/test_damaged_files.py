"""Files that are broken or hostile: each is refused in one line that names the tensor or node, or handled. See `damage.py`."""

from __future__ import annotations

import itertools
import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto as T
from onnx import helper as h

from onnx_fa.errors import ModelError
from onnx_fa.forms.rewrite import explain, rewrite
from onnx_fa.graph.io import load, save
from onnx_fa.graph.view import GraphView
from tests.damage import damaged, try_one
from tests.support import spelling_table
from tests.support.damage_bases import few
from tests.support.spellings import Spelling, build

CASES = 2000


@pytest.mark.parametrize("part", range(4))
def test_damaged_models_are_handled_or_refused(part: int, tmp_path: Path) -> None:
    """No traceback, no crash, no hang, no file left behind, and what is written loads in onnxruntime."""
    endings = Counter[str]()
    for number in range(part, CASES, 4):
        case = damaged(0, number, few())
        ending, message = try_one(case, number, tmp_path)
        assert ending != "failed", f"case {number}: {case.what}: {message}"
        endings[ending] += 1
    assert min(endings["done"], endings["refused"]) > CASES // 50  # else the cases test nothing


def _base() -> onnx.ModelProto:
    return build(Spelling(mask="add"))


def _named(model: onnx.ModelProto, op: str) -> onnx.NodeProto:
    return next(n for n in model.graph.node if n.op_type == op)


def _constant(model: onnx.ModelProto, tensor: onnx.TensorProto) -> None:
    model.graph.node.insert(0, h.make_node("Constant", [], ["unread"], name="held", value=tensor))


def _huge(model: onnx.ModelProto) -> None:
    model.graph.initializer[0].dims[:] = [2**40, 2**40]


def _negative(model: onnx.ModelProto) -> None:
    model.graph.initializer[0].dims[:] = [-1]


def _of_kind(kind: int) -> Callable[[onnx.ModelProto], None]:
    def edit(model: onnx.ModelProto) -> None:
        model.graph.initializer[0].data_type = kind

    return edit


def _short(model: onnx.ModelProto) -> None:
    model.graph.initializer[0].raw_data = model.graph.initializer[0].raw_data[:-1]


def _input_of_no_type(model: onnx.ModelProto) -> None:
    model.graph.input[0].type.tensor_type.elem_type = 0


def _input_of_unknown_type(model: onnx.ModelProto) -> None:
    model.graph.input[0].type.tensor_type.elem_type = 99


def _in_a_constant(model: onnx.ModelProto) -> None:
    _constant(model, T(name="t", data_type=99, dims=[1], raw_data=b"\0"))


def _sparse(model: onnx.ModelProto) -> None:
    values, index = h.make_tensor("few", T.FLOAT, [1], [1.0]), h.make_tensor("at", T.INT64, [1], [0])
    model.graph.sparse_initializer.append(h.make_sparse_tensor(values, index, [4]))


def _attribute_of_wrong_type(model: onnx.ModelProto) -> None:
    _named(model, "Softmax").attribute[0].CopyFrom(h.make_attribute("axis", 0.5))


def _attribute_that_is_none(model: onnx.ModelProto) -> None:
    _named(model, "MatMul").attribute.append(h.make_attribute("is_causal", 1))


def _reference(model: onnx.ModelProto) -> None:
    _named(model, "Softmax").attribute[0].ref_attr_name = "outer"


def _no_inputs(model: onnx.ModelProto) -> None:
    del _named(model, "Softmax").input[:]


def _metadata_no_utf8(model: onnx.ModelProto) -> None:
    model.metadata_props.add(key="by", value="BROKEN")


def _strings_twice(model: onnx.ModelProto) -> None:
    model.graph.initializer.append(T(name="words", data_type=T.STRING, dims=[3], string_data=[b"a", b"b"]))


def _several_transposed(model: onnx.ModelProto) -> None:
    model.CopyFrom(_spelled("layout-fused_matmul_over_rows"))
    node = [n for n in model.graph.node if n.op_type == "FusedMatMul"][-1]
    node.name = "fused"
    del node.attribute[:]
    node.attribute.append(h.make_attribute("transA", [0, 1]))


def _no_utf8(model: onnx.ModelProto) -> None:
    model.graph.node[0].name = "BROKEN"


def _function(model: onnx.ModelProto, nodes: list[onnx.NodeProto], name: str = "F") -> None:
    imports = [h.make_opsetid("", 18), h.make_opsetid("my", 1)]
    model.functions.append(h.make_function("my", name, ["x"], ["y"], nodes, imports))
    if len(model.functions) == 1:
        model.opset_import.append(imports[1])
        model.graph.node.append(h.make_node("F", ["q"], ["unread"], domain="my"))


def _calls_itself(model: onnx.ModelProto) -> None:
    _function(model, [h.make_node("F", ["x"], ["y"], domain="my")])


def _calls_that_explode(model: onnx.ModelProto) -> None:
    names = ["F", *(f"F{i}" for i in range(40))]
    for name, inner in itertools.pairwise(names):
        _function(
            model, [h.make_node(inner, ["x"], ["a"], domain="my"), h.make_node(inner, ["a"], ["y"], domain="my")], name
        )
    _function(model, [h.make_node("Neg", ["x"], ["y"])], names[-1])


def _endless_range(model: onnx.ModelProto) -> None:
    ends = [h.make_tensor(n, T.INT64, [], [v]) for n, v in (("from", 0), ("to", 2**60), ("by", 1))]
    model.graph.initializer.extend(ends)
    model.graph.node.append(h.make_node("Range", ["from", "to", "by"], ["positions"], name="endless"))


def _no_outputs(model: onnx.ModelProto) -> None:
    del model.graph.output[:]


def _many_parts(model: onnx.ModelProto) -> None:
    model.graph.node.append(h.make_node("Split", ["q"], ["a", "b"], name="cut", num_outputs=2**31))


def _newer(model: onnx.ModelProto) -> None:
    model.opset_import[0].version = 2**20


EDITS: dict[str, tuple[Callable[[onnx.ModelProto], None], str]] = {
    "a tensor of 2^80 elements": (_huge, "initializer 'c0' has 1099511627776x1099511627776 elements"),
    "a tensor of -1 elements": (_negative, "initializer 'c0' has a dim of -1"),
    "data type 0": (_of_kind(0), "initializer 'c0' has data type 0"),
    "data type 2": (_of_kind(2), "initializer 'c0' has 4 bytes of data, but"),
    "data type 99": (_of_kind(99), "initializer 'c0' has data type 99"),
    "a byte too few": (_short, "initializer 'c0' has 3 bytes of data, but .* are 4"),
    "an input of data type 0": (_input_of_no_type, "graph input 'q' has data type 0"),
    "an input of data type 99": (_input_of_unknown_type, "graph input 'q' has data type 99"),
    "a constant of data type 99": (_in_a_constant, "attribute 'value' of node 'held' has data type 99"),
    "a sparse initializer": (_sparse, "sparse initializer 'few' is not supported"),
    "an axis of 0.5": (_attribute_of_wrong_type, "'axis' of node 'n.*_Softmax' is a FLOAT, but Softmax takes a INT"),
    "an attribute that MatMul does not have": (
        _attribute_that_is_none,
        "node 'n.*_MatMul' has an attribute 'is_causal'",
    ),
    "a reference outside of a function": (_reference, "'axis' of node 'n.*_Softmax' refers to 'outer'"),
    "a Softmax without inputs": (_no_inputs, "node 'n.*_Softmax' has 0 inputs, but Softmax has 1"),
    "a name that is no text": (_no_utf8, "is not UTF-8 text"),
    "metadata that is no text": (_metadata_no_utf8, "the model: metadata: .* is not UTF-8 text"),
    "a string too few": (_strings_twice, "initializer 'words' has 2 entries of data, but 3 elements of STRING need 3"),
    "a transA of several numbers": (_several_transposed, "attribute 'transA' of node 'fused' is a INTS, not a INT"),
    "a function that calls itself": (_calls_itself, "function 'F' calls itself"),
    "2^40 calls of functions": (_calls_that_explode, "comes to more than 1000000 nodes"),
    "a Range of 2^60": (_endless_range, "node 'endless' makes 1.15e.18 numbers"),
    "no outputs": (_no_outputs, "graph 'g' has no outputs"),
    "a Split into 2^31 parts": (_many_parts, "node 'cut': num_outputs is 2147483648, but it has 2 outputs"),
    "a newer opset": (_newer, "the model imports opset 1048576"),
}


@pytest.mark.parametrize("name", EDITS)
def test_a_refusal_names_what_is_broken(name: str, tmp_path: Path) -> None:
    edit, words = EDITS[name]
    model = _base()
    edit(model)
    path = tmp_path / "m.onnx"
    path.write_bytes(model.SerializeToString().replace(b"BROKEN", b"\xff\xfe\xff\xfe\xff\xfe"))
    with pytest.raises(ModelError, match=words) as e:
        rewrite(path)
    assert str(e.value).startswith(str(path)) or any(node in str(e.value) for node in ("endless", "fused"))
    assert str(e.value).isprintable()


def test_sizes_below_0_are_unknown_as_onnxruntime_takes_them() -> None:
    model = _base()
    for info in (*model.graph.input, *model.graph.output):
        info.type.tensor_type.shape.dim[0].dim_value = -1
    assert [i.shape[0] for i in load(model).graph.inputs if i.shape] != [-1] * 4
    explain(model)


def test_value_info_does_not_say_what_an_initializer_is() -> None:
    model = _base()
    model.graph.value_info.append(h.make_tensor_value_info("c0", T.INT8, [7]))
    value = load(model).graph.initializers["c0"]
    assert str(value.dtype) == "FLOAT" and value.shape is not None and value.shape.dims == (1,)


# External data.


def _outside(path: Path, **info: str) -> Path:
    """A model of which the 16x16 weight is external data, as `info` says."""
    g = h.make_graph(
        [h.make_node("Add", ["x", "w"], ["y"])],
        "g",
        [h.make_tensor_value_info("x", T.FLOAT, [16, 16])],
        [h.make_tensor_value_info("y", T.FLOAT, [16, 16])],
        [T(name="w", data_type=T.FLOAT, dims=[16, 16], data_location=T.EXTERNAL)],
    )
    for key, value in info.items():
        g.initializer[0].external_data.add(key=key, value=value)
    path.parent.mkdir(exist_ok=True)
    onnx.save(h.make_model(g, opset_imports=[h.make_opsetid("", 18)], ir_version=10), path)
    return path


@pytest.mark.parametrize(
    ("info", "words"),
    [
        ({"location": "../w.bin"}, "outside of the model's folder"),
        ({"location": "../../../../../../etc/passwd"}, "outside of the model's folder"),
        ({"location": "sub/../../w.bin"}, "outside of the model's folder"),
        ({"location": "link.bin"}, "goes through a link"),
        ({"location": "folder/w.bin"}, "goes through a link"),
        ({"location": "twin.bin"}, "has other names"),
        ({"location": "."}, "is not a file"),
        ({"location": ""}, "is not a file name"),
        ({"location": "nul\0"}, "is not a file name"),
        ({"location": "a" * 5000}, "cannot be read"),
        ({"location": "none.bin"}, "missing: no file"),
        ({"location": "short.bin"}, "truncated: .* has 10 bytes, 1024 are needed"),
        ({"location": "own.bin", "offset": "1"}, "truncated: .* has 1024 bytes, 1025 are needed"),
        ({"location": "own.bin", "offset": "-1"}, "offset '-1' is not a number"),
        ({"location": "own.bin", "offset": "0x0"}, "offset '0x0' is not a number"),
        ({"location": "own.bin", "length": "10"}, "length 10, but 16x16 elements are 1024 bytes"),
    ],
)
def test_external_data_is_the_models_own(info: dict[str, str], words: str, tmp_path: Path) -> None:
    path = _outside(tmp_path / "model" / "m.onnx", **info)
    for place in (tmp_path / "w.bin", path.parent / "own.bin", path.parent / "once.bin"):
        place.write_bytes(bytes(1024))
    (path.parent / "short.bin").write_bytes(bytes(10))
    (path.parent / "link.bin").symlink_to(path.parent / "own.bin")
    (path.parent / "folder").symlink_to(tmp_path)
    os.link(path.parent / "once.bin", path.parent / "twin.bin")
    with pytest.raises(ModelError, match=words) as e:
        load(path)
    assert "initializer 'w'" in str(e.value) and str(e.value).isprintable()
    (path.parent / "own.bin").chmod(0o600)
    load(_outside(path, location="own.bin", offset="0", length="1024"))


@pytest.mark.parametrize("perm", [[1, 1], [1, 2], [-1, 0]])
def test_a_perm_that_is_none_is_refused(perm: list[int]) -> None:
    values = [h.make_tensor_value_info(n, T.FLOAT, [2, 2]) for n in "xy"]
    graph = h.make_graph([h.make_node("Transpose", ["x"], ["y"], name="t", perm=perm)], "g", values[:1], values[1:])
    with pytest.raises(ModelError, match=r"'t'.* its perm \[.*\] does not name every axis once"):
        explain(h.make_model(graph, opset_imports=[h.make_opsetid("", 18)], ir_version=9))


def test_axes_that_are_no_whole_numbers_are_unknown() -> None:
    """A damaged file may give Unsqueeze its axes as floats, among them infinity."""
    nodes = [h.make_node("Unsqueeze", ["x", "axes"], ["y"], name="u")]
    axes = [h.make_tensor("axes", T.FLOAT, [1], [float("inf")])]
    values = [h.make_tensor_value_info("x", T.FLOAT, [2]), h.make_tensor_value_info("y", T.FLOAT, None)]
    graph = h.make_graph(nodes, "g", values[:1], values[1:], axes)
    assert not explain(h.make_model(graph, opset_imports=[h.make_opsetid("", 18)], ir_version=9)).sites


@pytest.mark.parametrize(
    ("op", "axes"), [("ReduceSum", [-1]), ("ReduceSum", [0]), ("Squeeze", [0]), ("Unsqueeze", [2])]
)
def test_axes_that_a_scalar_does_not_have_are_unknown(op: str, axes: list[int]) -> None:
    values = [h.make_tensor_value_info("x", T.BFLOAT16, []), h.make_tensor_value_info("y", T.BFLOAT16, None)]
    held = [h.make_tensor("axes", T.INT64, [len(axes)], axes)]
    graph = h.make_graph([h.make_node(op, ["x", "axes"], ["y"])], "g", values[:1], values[1:], held)
    model = ir.from_proto(h.make_model(graph, opset_imports=[h.make_opsetid("", 13)]))
    assert GraphView(model).shape(model.graph.outputs[0]) is None


def test_a_zero_point_of_another_shape_than_its_scale_is_not_read() -> None:
    """onnxruntime finds out only when it runs."""
    model = _spelled("ops-quant-int4-cache")
    node = next(n for n in model.graph.node if n.name == "k_dequantize")
    assert explain(model).sites[0].spec.k_quant is not None
    node.input.append("k4")
    assert explain(model).sites[0].spec.k_quant is None


def _spelled(name: str) -> onnx.ModelProto:
    return next(e for e in spelling_table.entries() if e.id == name).build()


def test_a_concat_of_scores_along_no_axis_is_none() -> None:
    model = _spelled("layout-parts_by_split")
    _named(model, "Concat").attribute[0].i = 99
    assert not explain(model).sites


def test_a_split_of_probabilities_along_no_axis_is_none() -> None:
    model = _spelled("layout-parts_by_split")
    _named(model, "Split").attribute[0].i = 99
    assert not explain(model).sites


@pytest.mark.parametrize("ends", [[0], [0, 0]])
def test_probabilities_cut_along_no_axis_are_not_read(ends: list[int]) -> None:
    """By an axis that there is not, and by as many starts as there are axes but other ends."""
    model = _spelled("layout-cut_at_run_time_in_perhaps_two_places")
    for node in model.graph.node:
        if node.op_type == "Slice":
            node.input[3] = "axes"
    model.graph.initializer.append(h.make_tensor("axes", T.INT64, [len(ends)], [99, 3][: len(ends)]))
    assert not explain(model).sites


def test_a_bias_of_another_rank_is_refused() -> None:
    """onnxruntime looks at it only when it runs."""
    model = onnx.ModelProto.FromString(next(b for b in few() if b.name == "contrib").data)
    (node,) = model.graph.node
    assert len(explain(model).sites) == 1
    node.input.append("q")
    report = explain(model)
    assert not report.sites and "the bias of the projections" in report.misses[0].reason


def test_whether_a_value_depends_on_a_node_is_told_in_a_cycle_too() -> None:
    """Graphs in graphs may hide a cycle from the check of the order of nodes."""
    x = ir.Value(name="x")
    first, second, third = (ir.node("Add", [x, x], name=name) for name in ("first", "second", "third"))
    first.replace_input_with(0, second.outputs[0])
    second.replace_input_with(0, first.outputs[0])
    graph = ir.Graph([x], [second.outputs[0]], nodes=[third, first, second], opset_imports={"": 18})
    view = GraphView(ir.Model(graph, ir_version=10))
    assert view.depends(second.outputs[0], first)
    assert not view.depends(second.outputs[0], third)


def test_an_absolute_location_is_refused(tmp_path: Path) -> None:
    (tmp_path / "w.bin").write_bytes(bytes(1024))
    with pytest.raises(ModelError, match=r"initializer 'w'.*outside of the model's folder"):
        load(_outside(tmp_path / "m.onnx", location=str(tmp_path / "w.bin")))


def test_external_data_of_a_constant_is_read(tmp_path: Path) -> None:
    """Its file lies beside the model, wherever the program runs and the result goes."""
    base = next(b for b in few() if b.name == "external_constants")
    (tmp_path / "in").mkdir()
    (tmp_path / "out").mkdir()
    path = tmp_path / "in" / "m.onnx"
    path.write_bytes(base.data)
    for name, data in base.beside.items():
        (path.parent / name).write_bytes(data)
    assert len(rewrite(path)[1].sites) == 1
    save(load(path), tmp_path / "out" / "m.onnx")
    assert os.listdir(tmp_path / "out") == ["m.onnx"]
    load(tmp_path / "out" / "m.onnx")
