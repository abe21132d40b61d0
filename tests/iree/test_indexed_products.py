"""Elements that are picked out of products of heads: which ones a kernel takes, and that they are the same."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from onnx_fa.graph.ops import op_of
from onnx_fa.iree.compile import compile_model
from onnx_fa.iree.inference import infer_types
from onnx_fa.iree.legalise.indexed_products import INDEXED_PRODUCT
from onnx_fa.iree.legalise.rules import legalize
from onnx_fa.iree.run import load_module
from onnx_fa.iree.vmfb_facts import inspect_vmfb
from onnx_fa.spec.indexed import indexed_product
from onnx_fa.spec.target import Target, parse_target
from tests.support.joined_models import join_models
from tests.support.kernel_harness import asked_for
from tests.support.ort_run import run
from tests.support.sampled import parameters

NARROW, WIDE, HOST = (parse_target(name) for name in ("cpu-avx2", "cpu-avx512", "cpu-host"))


@dataclass(frozen=True)
class Picked:
    """a (batch, rows, K) by the product's columns of `heads`, of which places (rows, J) are picked. `free` dims of a and places
    are known in a run only. `single`: all rows have the places of one. `read`: who else reads the product.
    `projected`: a lies in rows of all heads, which a Reshape and a Transpose take apart before a Reshape puts heads into the batch,
    to as many rows as a Gather or a Slice of their shape says, or the shape of the places, which only a run knows to be as many."""

    batch: int
    heads: int
    rows: int
    K: int
    N: int
    J: int
    free: bool = True
    tiled: bool = True
    turned: bool = True
    expanded: bool = True
    constant: bool = True
    axis: int = 2
    single: bool = False
    projected: str = ""
    read: str = ""

    @property
    def w(self) -> np.ndarray:
        heads = self.heads if self.tiled else self.batch * self.heads
        return np.random.default_rng(2).standard_normal((heads, self.N, self.K)).astype(np.float32)

    def feeds(self, wide: bool = False) -> dict[str, np.ndarray]:
        """Places are distances between rows and columns, or with `wide` anything from -N on."""
        rng = np.random.default_rng(1)
        a = rng.standard_normal((self.batch * self.heads, self.rows, self.K)).astype(np.float32)
        distance = np.arange(self.rows)[:, None] - np.arange(self.J)[None, :]
        at = np.clip(distance + self.N // 2, 0, self.N - 1)[None]
        if wide:
            at = rng.integers(-self.N, self.N, (1, self.rows, self.J))
        if self.single:
            at = at[:, :1]
        if not self.expanded:
            at = np.repeat(at, self.batch * self.heads, axis=0)
        if self.projected:
            a = a.reshape(self.batch, self.heads, self.rows, self.K).transpose(0, 2, 1, 3)
            a = np.ascontiguousarray(a).reshape(self.batch, self.rows, self.heads * self.K)
        feeds = {"a": a, "at": at.astype(np.int64)}
        return feeds if self.constant else feeds | {"w": self.w.transpose(0, 2, 1) if not self.turned else self.w}

    def heads_of(self, a: str, const: Callable[[str, np.ndarray], str], add: Callable[..., str]) -> str:
        """(batch heads, rows, K) of projected rows."""
        parts = add("Reshape", a, const("parts", np.array([0, 0, self.heads, self.K])))
        turned = add("Transpose", parts, perm=[0, 2, 1, 3])
        first, second, one = (const(f"at_{n}", np.array([n])) for n in (1, 2, -1))
        if self.projected == "gather":
            number = add("Gather", add("Shape", parts), const("one", np.array(1)))
            rows = add("Unsqueeze", number, const("front", np.array([0])))
        else:
            rows = add("Slice", add("Shape", "at" if self.projected == "places" else a), first, second)
        target = add("Concat", one, rows, const("depth", np.array([self.K])), axis=0)
        return add("Reshape", turned, target)

    def model(self) -> onnx.ModelProto:
        nodes, constants = list[onnx.NodeProto](), list[onnx.TensorProto]()

        def const(name: str, array: np.ndarray) -> str:
            constants.append(numpy_helper.from_array(array, name))
            return name

        def add(op: str, *inputs: str, **attrs: object) -> str:
            nodes.append(helper.make_node(op, inputs, [f"{op}_{len(nodes)}"], f"{op}_{len(nodes)}", **attrs))
            return nodes[-1].output[0]

        w = self.w if self.turned else self.w.transpose(0, 2, 1)
        value = const("w", w) if self.constant else "w"
        a = self.heads_of("a", const, add) if self.projected else "a"
        size = add("Shape", a)
        if self.tiled:
            batches = add(
                "Div",
                add("Slice", size, const("0", np.array([0])), const("1", np.array([1]))),
                const("heads", np.array([self.heads])),
            )
            value = add("Tile", value, add("Concat", batches, const("ones", np.array([1, 1])), axis=0))
        if self.turned:
            value = add("Transpose", value, perm=[0, 2, 1])
        at = "at"
        if self.expanded:
            lead = add("Slice", size, const("from", np.array([0])), const("to", np.array([2])))
            last = add("Slice", add("Shape", "at"), const("2", np.array([2])), const("3", np.array([3])))
            at = add("Expand", at, add("Concat", lead, last, axis=0))
        product = add("MatMul", a, value)
        nodes.append(helper.make_node("GatherElements", [product, at], ["y"], "picks", axis=self.axis))
        if self.read:
            nodes.append(helper.make_node("Relu" if self.read == "elsewhere" else "Identity", [product], ["other"]))
        dims = {
            "a": ["images", "m", self.heads * self.K] if self.projected else ["b", "m", self.K],
            "at": [1, 1 if self.single else "r", "j"] if self.expanded else ["b", "m", "j"],
            "y": ["b", "m", "j"],
        }
        if not self.free:
            dims = {name: list(x.shape) for name, x in self.feeds().items()}
            dims["y"] = [self.batch * self.heads, self.rows, self.J]
        types = {"a": TensorProto.FLOAT, "at": TensorProto.INT64, "w": TensorProto.FLOAT, "y": TensorProto.FLOAT}
        dims["w"] = list(w.shape) if self.tiled or not self.free else ["b", *w.shape[1:]]
        values = [helper.make_tensor_value_info(n, types[n], dims[n]) for n in self.feeds()]
        y = helper.make_tensor_value_info("y", types["y"], dims["y"])
        given = [y, helper.make_tensor_value_info("other", 1, None)] if self.read else [y]
        graph = helper.make_graph(nodes, "picked", values, given, constants)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


CASES = {
    "deberta": Picked(1, 12, 128, 64, 512, 128),
    "batch": Picked(3, 2, 19, 16, 64, 23),
    "known": Picked(2, 3, 9, 24, 48, 11, free=False),
    "ragged": Picked(2, 2, 7, 5, 27, 9),  # K, N and rows that nothing divides
    "few_columns": Picked(1, 2, 6, 8, 3, 5),
    "one_row": Picked(1, 1, 1, 8, 32, 1),
    "many_columns": Picked(1, 2, 10, 8, 1700, 10, free=False),
    "plain": Picked(2, 2, 13, 12, 40, 8, tiled=False, turned=False, expanded=False, constant=False),
    "turned": Picked(2, 2, 13, 12, 40, 8, tiled=False, expanded=False, constant=False),
    "single": Picked(2, 2, 13, 8, 32, 11, single=True),
    "gather": Picked(2, 3, 13, 12, 40, 8, projected="gather"),
    "slice": Picked(2, 3, 13, 12, 40, 8, projected="slice"),
    "places": Picked(2, 3, 13, 12, 40, 8, projected="places"),
    "computed": Picked(2, 2, 13, 12, 40, 8, constant=False),
}


REFUSED = {
    "along rows": Picked(1, 2, 8, 8, 16, 4, axis=1),
    "product read elsewhere": Picked(1, 2, 8, 8, 16, 4, read="elsewhere"),
    "product given out": Picked(1, 2, 8, 8, 16, 4, read="output"),
    "columns beyond the stack": Picked(1, 2, 8, 8, 2000, 4),
}
"""What stays in standard operators."""


def written(model: onnx.ModelProto, target: Target = NARROW) -> list[str]:
    """The ops of the legalised model."""
    made = onnx.ModelProto.FromString(model.SerializeToString())
    infer_types(made, {})
    return [op_of(node) for node in legalize(made, target=target).graph.node]


def meant(case: Picked, feeds: dict[str, np.ndarray]) -> np.ndarray:
    a = feeds["a"]
    if case.projected:
        a = a.reshape(case.batch, case.rows, case.heads, case.K).transpose(0, 2, 1, 3)
        a = a.reshape(case.batch * case.heads, case.rows, case.K)
    at = np.broadcast_to(feeds["at"], (*a.shape[:2], feeds["at"].shape[2]))
    return indexed_product(a.astype(np.float64), case.w.astype(np.float64), at)


def called(case: Picked, path: Path, target: Target = HOST) -> Callable[[dict[str, np.ndarray]], np.ndarray]:
    """The compiled model of a case, which has the kernel where this processor has vectors for it."""
    compile_model(case.model(), path, target)
    kernels = [name for name in inspect_vmfb(path).exports if name.startswith("indexed_")]
    assert len(kernels) == HOST.has_avx2
    module = load_module(path)
    return lambda feeds: np.asarray(module(*feeds.values())[0])


@pytest.mark.parametrize("target", [NARROW, WIDE], ids=["avx2", "avx512"])
@pytest.mark.parametrize("name", CASES)
def test_is_written(name: str, target: Target) -> None:
    assert written(CASES[name].model(), target).count(INDEXED_PRODUCT) == 1


@pytest.mark.parametrize(("name", "maker"), [("gather", "Reshape_0"), ("slice", "Reshape_0"), ("places", "Reshape_5")])
def test_reads_rows_where_they_lie(name: str, maker: str) -> None:
    """Where as many rows as there are were asked for."""
    made = CASES[name].model()
    infer_types(made, {})
    (node,) = [node for node in legalize(made, target=NARROW).graph.node if op_of(node) == INDEXED_PRODUCT]
    assert node.input[0] == maker


@pytest.mark.parametrize("target", [replace(NARROW, kernels="iree"), parse_target("cpu-neon")], ids=["iree", "neon"])
def test_is_left_to_the_compiler(target: Target) -> None:
    assert INDEXED_PRODUCT not in written(CASES["ragged"].model(), target)


@pytest.mark.parametrize("name", REFUSED)
def test_stays_as_it_is(name: str) -> None:
    assert INDEXED_PRODUCT not in written(REFUSED[name].model())


COMPILED = ("few_columns", "many_columns", "single", "slice", "computed")
"""In every run. The others differ from these, and from what is compiled below (rows of a Gather, sizes that nothing divides, places
and products of the run), in sizes alone, and all are held to be written as kernels."""


@pytest.fixture(scope="module")
def together(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., np.ndarray]:
    """(case, wide) -> the result of one module of all cases that are asked for."""
    names = asked_for(request, "name") or []
    path = tmp_path_factory.mktemp("indexed") / "m.vmfb"
    compile_model(join_models([CASES[name].model() for name in names], own_dims=True), path, HOST)
    kernels = [name for name in inspect_vmfb(path).exports if name.startswith("indexed_")]
    assert bool(kernels) == HOST.has_avx2
    module = load_module(path)
    found = {wide: module(*(x for name in names for x in CASES[name].feeds(wide).values())) for wide in (False, True)}
    return lambda name, wide: np.asarray(found[wide][names.index(name)])


@pytest.mark.parametrize("name", parameters(list(CASES), list(CASES), [list(CASES).index(name) for name in COMPILED]))
def test_is_what_it_means(name: str, together: Callable[..., np.ndarray]) -> None:
    case = CASES[name]
    for wide in (False, True):
        feeds = case.feeds(wide)
        want, got = meant(case, feeds), together(name, wide)
        for optimise in (False, True):
            np.testing.assert_allclose(run(case.model(), feeds, optimise=optimise)[0], want, rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("lanes", [8, 16])
def test_sizes_that_only_the_run_knows(lanes: int, tmp_path: Path) -> None:
    """Of one module: none, one, those of tiles, and whatever is drawn. The compiler halves vectors that a processor lacks."""
    case = Picked(2, 3, 9, 20, 70, 7, projected="gather" if lanes == 8 else "")
    call, rng = called(case, tmp_path / "m.vmfb", replace(HOST, lanes=lanes)), np.random.default_rng(5)
    sizes = [(0, 4, 4), (1, 0, 4), (1, 4, 0), (1, 1, 1), (2, 6, 8), (1, 12, 16), (2, 13, 17)]
    sizes += [tuple(map(int, rng.integers((1, 1, 1), (4, 60, 90)))) for _ in range(25)]
    for batch, rows, J in sizes:
        one = replace(case, batch=batch, rows=rows, J=J)
        for wide in (False, True):
            feeds = one.feeds(wide)
            got = call(feeds)
            if one.projected and not rows:  # what a -1 stands for beside a 0 is anyone's guess
                assert got.size == 0
                continue
            assert got.shape == (batch * case.heads, rows, J)
            np.testing.assert_allclose(got, meant(one, feeds), rtol=1e-5, atol=1e-5)


def test_infinities_and_nan(tmp_path: Path) -> None:
    """They are where the sums that are picked have them, and nowhere else."""
    case = CASES["plain"]
    call = called(case, tmp_path / "m.vmfb")
    feeds = case.feeds(wide=True)
    feeds["a"][0, 3, 2], feeds["a"][1, 5, 0], feeds["a"][2, 1, 1] = np.nan, np.inf, -np.inf
    feeds["w"] = feeds["w"].copy()
    feeds["w"][3, 1, 5], feeds["w"][2, 0, 7], feeds["w"][2, 1, 4] = np.nan, np.inf, 0
    (want,) = run(case.model(), feeds)
    assert np.isnan(want).any() and np.isinf(want).any() and np.isfinite(want).any()
    np.testing.assert_allclose(call(feeds), want, rtol=1e-5, atol=1e-5)


def test_places_outside_read_nothing_else(tmp_path: Path) -> None:
    """onnxruntime refuses them; here they are some column's number, and no other memory."""
    case = CASES["ragged"]
    call = called(case, tmp_path / "m.vmfb")
    feeds = case.feeds()
    feeds["at"][0, :, ::2] = 2**31 - 1
    feeds["at"][0, :, 1::2] = -(2**31)
    with pytest.raises(Exception, match="Out of range"):
        run(case.model(), feeds)
    assert np.isfinite(call(feeds)).all()
