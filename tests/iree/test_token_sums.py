"""Attention without a function of the score, divided by its sum: which spellings a kernel takes, and that they are the same."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from onnx_fa.graph.ops import op_of
from onnx_fa.iree.compile import compile_model
from onnx_fa.iree.inference import infer_types
from onnx_fa.iree.legalise.rules import legalize
from onnx_fa.iree.legalise.token_sums import TOKEN_SUMS
from onnx_fa.iree.run import load_module
from onnx_fa.iree.vmfb_facts import inspect_vmfb
from onnx_fa.spec.target import Target, parse_target
from onnx_fa.spec.token_sums import token_sums
from tests.support.joined_models import join_models
from tests.support.kernel_harness import asked_for
from tests.support.ort_run import run
from tests.support.sampled import parameters

F32 = npt.NDArray[np.float32]
NARROW, WIDE, HOST = (parse_target(name) for name in ("cpu-avx2", "cpu-avx512", "cpu-host"))


@dataclass(frozen=True)
class Summed:
    """Heads of D by Dv numbers, of Sq queries and Skv keys, as they are spelled. `image`: q, k and v are parts of one value
    (B, H columns, S), side by side for each head, or three values (B, S, H D). `turned`: tokens are along the last axis. `free`
    sizes are known in a run only. `back`: what is made becomes channels again. `wrong`: what makes it another meaning."""

    B: int = 2
    H: int = 3
    Sq: int = 13
    D: int = 16
    Dv: int = 16
    Skv: int = 13
    image: bool = True
    turned: bool = False
    relu: tuple[bool, bool] = (True, True)
    epsilon: float | None = 1e-5
    split: bool = False
    casts: bool = False
    free: bool = True
    back: bool = False
    wrong: str = ""

    def feeds(self, scale: float = 1.0) -> dict[str, F32]:
        """Factors that no ReLU makes zero are positive, so that nothing is divided by what cancels to 0."""
        rng = np.random.default_rng(1)
        q, k, v = (
            np.asarray(scale * rng.standard_normal((self.B, self.H, s, d)), np.float32)
            for s, d in ((self.Sq, self.D), (self.Skv, self.D), (self.Skv, self.Dv))
        )
        q, k = (x if positive else np.abs(x) + np.float32(0.1) for x, positive in zip((q, k), self.relu, strict=True))
        if self.image:
            x = np.concatenate([q, k, v], axis=3).transpose(0, 1, 3, 2)
            return {"x": x.reshape(self.B, -1, self.Sq)}
        return {
            n: x.transpose(0, 2, 1, 3).reshape(self.B, x.shape[2], self.H * x.shape[3])
            for n, x in zip("qkv", (q, k, v), strict=True)
        }

    def factors(self, feeds: dict[str, F32]) -> tuple[npt.NDArray[np.float64], ...]:
        B, H, D, Dv = self.B, self.H, self.D, self.Dv
        if self.image:
            x = feeds["x"].astype(np.float64).reshape(B, H, -1, feeds["x"].shape[2]).transpose(0, 1, 3, 2)
            return tuple(np.split(x, [D, 2 * D], axis=3))
        return tuple(
            feeds[n].astype(np.float64).reshape(B, feeds[n].shape[1], H, d).transpose(0, 2, 1, 3)
            for n, d in zip("qkv", (D, D, Dv), strict=True)
        )

    def meant(self, feeds: dict[str, F32]) -> npt.NDArray[np.float64]:
        y = token_sums(*self.factors(feeds), relu=self.relu, epsilon=self.epsilon or 0.0)
        y = y.transpose(0, 1, 3, 2) if self.turned or self.back else y
        return y.reshape(self.B, self.H * self.Dv, self.Sq) if self.back else y

    def model(self) -> onnx.ModelProto:
        nodes, constants = list[onnx.NodeProto](), list[onnx.TensorProto]()
        H, D, Dv, axis, wrong = self.H, self.D, self.Dv, 2 if self.turned else 3, self.wrong

        def const(array: Any) -> str:
            constants.append(numpy_helper.from_array(np.asarray(array), f"c{len(constants)}"))
            return constants[-1].name

        def add(op: str, *inputs: str, outputs: int = 1, **attrs: object) -> Any:
            made = [f"{op}_{len(nodes)}_{i}" for i in range(outputs)]
            nodes.append(helper.make_node(op, inputs, made, made[0], **attrs))
            return made[0] if outputs == 1 else made

        def cut(x: str, first: int, behind: int, along: int) -> Any:
            return add("Slice", x, const([first]), const([behind]), const([along]))

        def turn(x: str) -> Any:
            return add("Transpose", x, perm=[0, 1, 3, 2])

        if self.image:
            whole = add("Reshape", "x", const([0, H, 2 * D + Dv, -1 if self.free else self.Sq]))
            whole = whole if self.turned else turn(whole)
            if self.split:
                q, k, v = add("Split", whole, const([D, D, Dv]), outputs=3, axis=axis)
            else:
                q, k, v = (cut(whole, a, b, axis) for a, b in ((0, D), (D, 2 * D), (2 * D, 2**31)))
        else:
            split = [add("Reshape", n, const([0, 0, H, d])) for n, d in zip("qkv", (D, D, Dv), strict=True)]
            q, k, v = (add("Transpose", x, perm=[0, 2, 3, 1] if self.turned else [0, 2, 1, 3]) for x in split)
        q, k = (add("Relu", x) if positive else x for x, positive in zip((q, k), self.relu, strict=True))
        if wrong == "function of v":
            v = add("Relu", v)
        pads, ones = [0] * 8, 2.0 if wrong == "twos" else 1.0
        pads[axis if wrong == "ones in front" else 4 + axis] = 2 if wrong == "two columns" else 1
        v = add("Pad", v, const(pads), const(np.float32(ones)))
        if self.casts:
            q, k, v = (add("Cast", x, to=TensorProto.FLOAT) for x in (q, k, v))
        state = add("MatMul", v, turn(k)) if self.turned else add("MatMul", turn(k), v)
        if wrong == "softmax":
            state = add("Softmax", state, axis=-1)
        o = add("MatMul", state, q) if self.turned else add("MatMul", q, state)
        above, below = cut(o, 0, -1, axis), cut(o, -1, 2**31, axis)
        if wrong == "another divisor":
            below = cut(o, 0, 1, axis)
        if wrong == "another part":
            above = cut(o, 1, 2**31, axis)
        elsewhere = {"product read elsewhere": o, "dividend read elsewhere": above, "divisor read elsewhere": below}
        if wrong in elsewhere:
            nodes.append(helper.make_node("Relu", [elsewhere[wrong]], ["other"], "other"))
        if self.epsilon is not None:
            added = (
                np.full(self.Sq if self.turned else (self.Sq, 1), self.epsilon)
                if wrong == "many numbers"
                else self.epsilon
            )
            below = add("Add", below, const(np.float32(added)))
        ratio = (below, above) if wrong == "upside down" else (above, below)
        if self.back:
            made = add("Cast", add("Div", *ratio), to=TensorProto.FLOAT)
            made = made if self.turned else turn(made)
            nodes.append(helper.make_node("Reshape", [made, const([0, H * Dv, -1])], ["y"], "channels"))
        else:
            nodes.append(helper.make_node("Mul" if wrong == "times" else "Div", ratio, ["y"], "quotients"))
        feeds = self.feeds()
        dims: dict[str, list[Any]] = {n: list(x.shape) for n, x in feeds.items()}
        if self.free:
            dims = {
                n: ["b", d[1], "s"] if self.image else ["b", "s" if n == "q" else "t", d[2]] for n, d in dims.items()
            }
        inputs = [helper.make_tensor_value_info(n, TensorProto.FLOAT, dims[n]) for n in feeds]
        results = ["y", "other"] if wrong in elsewhere else ["y"]
        given = [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in results]
        graph = helper.make_graph(nodes, "summed", inputs, given, constants)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


CASES = {
    "efficientvit": Summed(2, 16, 196, 16, 16, 196),
    "ragged": Summed(B=1, Sq=7, Skv=7),
    "known": Summed(free=False, casts=True, back=True),
    "known_turned": Summed(free=False, turned=True, back=True),
    "back": Summed(B=1, back=True),
    "split": Summed(split=True, D=32, Dv=32),
    "turned": Summed(turned=True),
    "turned_split": Summed(turned=True, split=True, epsilon=1e-15, D=8, Dv=48),
    "apart": Summed(image=False, Sq=5, Skv=29),
    "apart_turned": Summed(image=False, turned=True, Sq=20, Skv=3),
    "plain": Summed(relu=(False, False), epsilon=None),
    "one_relu": Summed(relu=(False, True), D=5, Dv=24),
    "narrow": Summed(D=3, Dv=8, casts=True),
    "wide": Summed(B=1, H=1, D=64, Dv=64, Sq=30, Skv=30),
    "one_token": Summed(Sq=1, Skv=1),
}

REFUSED = {
    **{
        word: Summed(wrong=word)
        for word in (
            "function of v",
            "twos",
            "ones in front",
            "two columns",
            "softmax",
            "another divisor",
            "another part",
            "product read elsewhere",
            "dividend read elsewhere",
            "divisor read elsewhere",
            "many numbers",
            "upside down",
            "times",
        )
    },
    "columns that no vector has": Summed(Dv=10),
    "sums beyond the stack": Summed(D=128, Dv=64),
}
"""What stays in standard operators."""


def written(model: onnx.ModelProto, target: Target = NARROW) -> list[str]:
    """The ops of the legalised model."""
    made = onnx.ModelProto.FromString(model.SerializeToString())
    infer_types(made, {})
    return [op_of(node) for node in legalize(made, target=target).graph.node]


@pytest.mark.parametrize("target", [NARROW, WIDE], ids=["avx2", "avx512"])
@pytest.mark.parametrize("name", CASES)
def test_is_written(name: str, target: Target) -> None:
    ops = written(CASES[name].model(), target)
    assert ops.count(TOKEN_SUMS) == 1
    assert "MatMul" not in ops


@pytest.mark.parametrize("name", REFUSED)
def test_stays_as_it_is(name: str) -> None:
    assert TOKEN_SUMS not in written(REFUSED[name].model())


@pytest.mark.parametrize("target", [replace(NARROW, kernels="iree"), parse_target("cpu-neon")], ids=["iree", "neon"])
def test_is_left_to_the_compiler(target: Target) -> None:
    assert TOKEN_SUMS not in written(CASES["ragged"].model(), target)


def test_images_and_tokens_are_as_many() -> None:
    """Keys of another number of tokens than values, as a run may have them, are onnxruntime's to refuse."""
    model = CASES["apart"].model()
    del model.graph.input[2].type.tensor_type.shape.dim[:]
    for size in ("b", "u"):
        model.graph.input[2].type.tensor_type.shape.dim.add().dim_param = size
    model.graph.input[2].type.tensor_type.shape.dim.add().dim_value = 48
    assert TOKEN_SUMS not in written(model)


def test_one_value_read_both_ways(tmp_path: Path) -> None:
    """Queries and values have their tokens along one axis of x, keys along the other."""
    nodes = [
        helper.make_node("Pad", ["x", "pads", "one"], ["v"]),
        helper.make_node("MatMul", ["x", "v"], ["s"]),
        helper.make_node("MatMul", ["x", "s"], ["o"]),
        helper.make_node("Slice", ["o", "first", "last", "axis"], ["above"]),
        helper.make_node("Slice", ["o", "last", "end", "axis"], ["below"]),
        helper.make_node("Div", ["above", "below"], ["y"]),
    ]
    numbers = {"pads": [0] * 7 + [1], "first": [0], "last": [16], "end": [17], "axis": [3]}
    constants = [numpy_helper.from_array(np.array(x), name) for name, x in numbers.items()]
    constants.append(numpy_helper.from_array(np.array(1, np.float32), "one"))
    values = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [2, 3, 16, 16]) for n in "xy"]
    graph = helper.make_graph(nodes, "square", values[:1], values[1:], constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    assert TOKEN_SUMS in written(model)
    x = np.random.default_rng(3).random((2, 3, 16, 16)).astype(np.float32)
    compile_model(model, tmp_path / "m.vmfb", HOST)
    got = np.asarray(load_module(tmp_path / "m.vmfb")(x)[0])
    np.testing.assert_allclose(got, run(model, {"x": x})[0], rtol=2e-5)


COMPILED = (
    "known",
    "known_turned",
    "ragged",
    "turned_split",
    "apart",
    "apart_turned",
    "one_relu",
    "narrow",
    "wide",
    "plain",
)
"""In every run: layouts, sizes that nothing divides, one and two vectors."""


@pytest.fixture(scope="module")
def together(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, float], Any]:
    """(case, scale) -> the result of one module of all cases that are asked for."""
    names = asked_for(request, "name") or []
    path = tmp_path_factory.mktemp("sums") / "m.vmfb"
    compile_model(join_models([CASES[name].model() for name in names], own_dims=True), path, HOST)
    assert bool(inspect_vmfb(path).linear_attentions()) == HOST.has_avx2
    module = load_module(path)
    found = {s: module(*(x for n in names for x in CASES[n].feeds(s).values())) for s in (1.0, 1e-3, 1e6)}
    return lambda name, scale: np.asarray(found[scale][names.index(name)])


@pytest.mark.parametrize("name", parameters(list(CASES), list(CASES), [list(CASES).index(name) for name in COMPILED]))
def test_is_what_it_means(name: str, together: Callable[[str, float], Any]) -> None:
    case = CASES[name]
    for scale in (1.0, 1e-3, 1e6):
        feeds = case.feeds(scale)
        want, got = case.meant(feeds), together(name, scale)
        for optimise in (False, True):
            np.testing.assert_allclose(
                run(case.model(), feeds, optimise=optimise)[0], want, rtol=2e-5, atol=2e-5 * scale
            )
        np.testing.assert_allclose(got, want, rtol=2e-5, atol=2e-5 * scale)


@pytest.mark.parametrize("lanes", [8, 16])
def test_sizes_infinities_and_nothing(lanes: int, tmp_path: Path) -> None:
    """Of one module: none, one, whatever is drawn; NaN and infinities are where onnxruntime has them. The compiler halves vectors
    that a processor lacks."""
    case = Summed(image=False, D=16, Dv=16)
    compile_model(case.model(), tmp_path / "m.vmfb", replace(HOST, lanes=lanes))
    module, rng = load_module(tmp_path / "m.vmfb"), np.random.default_rng(4)
    sizes = [
        (0, 3, 3),
        (1, 0, 4),
        (1, 4, 0),
        (1, 1, 1),
        (3, 8, 16),
        *(map(tuple, rng.integers(1, (3, 40, 40), (8, 3)))),
    ]
    for B, Sq, Skv in sizes:
        one = replace(case, B=int(B), Sq=int(Sq), Skv=int(Skv))
        got = np.asarray(module(*one.feeds().values())[0])
        assert got.shape == (B, case.H, Sq, case.Dv)
        np.testing.assert_allclose(got, one.meant(one.feeds()), rtol=2e-5, atol=2e-5)
    feeds = case.feeds()
    for name, value in (("q", np.nan), ("q", np.inf), ("k", np.nan), ("k", -np.inf), ("v", np.inf)):
        bad = {n: x.copy() for n, x in feeds.items()}
        bad[name][1, 2, 20] = value
        want = run(case.model(), bad)[0]
        np.testing.assert_allclose(np.asarray(module(*bad.values())[0]), want, rtol=2e-5, atol=2e-5)
