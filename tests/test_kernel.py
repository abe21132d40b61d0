"""The chooser, and both bodies against the reference on random small attentions."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from onnx_fa.emit.kernel import emit_kernel, kernel_name
from onnx_fa.emit.kernel_text import Kernel
from onnx_fa.errors import UnsupportedError
from onnx_fa.expr import SCORE, K, Q, ScoreExpr, leaves, substitute
from onnx_fa.spec import (
    AddMask,
    AttentionSpec,
    BoolMask,
    Causal,
    Dim,
    Elementwise,
    SlidingWindow,
    Softcap,
    TensorArg,
    with_shapes,
)
from onnx_fa.target import parse_target
from tests.cases import BY_NAME, CASES, Case, draw_operands, select
from tests.kernel_harness import HOST, Array, Kernels, mismatch

BASE = AttentionSpec("f32", 2, 2, 64, 64, 32, 32, scale=0.2)
_TESTED = select("smoke")


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Kernels:
    return Kernels([emit_kernel(case.spec, HOST) for case in _TESTED], tmp_path_factory.mktemp("auto"))


@pytest.mark.parametrize("index", range(len(_TESTED)), ids=[c.name for c in _TESTED])
def test_case(compiled: Kernels, index: int) -> None:
    for seed, spec in enumerate(_TESTED[index].bound()):
        for adversarial in (False, True):
            operands = draw_operands(spec, seed, adversarial=adversarial)
            assert mismatch(spec, operands, compiled.run(index, operands)) is None, (spec, adversarial)


def test_names() -> None:
    kernel = emit_kernel(BASE, HOST)
    assert kernel.name == kernel_name(BASE, HOST) and kernel.name.startswith("fa_") and len(kernel.name) == 13
    assert kernel == emit_kernel(BASE, HOST)
    others = {
        kernel_name(dataclasses.replace(BASE, scale=0.3), HOST),
        kernel_name(BASE, parse_target("cpu-neon")),
        kernel_name(BASE, HOST, "op"),
    }
    assert len(others | {kernel.name}) == 4


def test_prefers_the_vector_body() -> None:
    assert emit_kernel(BY_NAME["bench_s1024"].spec, HOST).body == "vector"
    assert emit_kernel(BY_NAME["bench_s1024"].spec, HOST, body="op").body == "op"


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_every_case_has_a_kernel(case: Case) -> None:
    assert emit_kernel(case.spec, HOST).spec == case.spec


def test_refusals_name_every_body() -> None:
    spec = dataclasses.replace(BASE, D=4096, Dv=4096, masks=(BoolMask((1, 64), -5.0),))
    with pytest.raises(UnsupportedError, match=r"vector: .*stack; op: .*competes"):
        emit_kernel(spec, HOST)
    with pytest.raises(UnsupportedError, match="f64"):
        emit_kernel(dataclasses.replace(BASE, dtype="f64"), HOST)
    with pytest.raises(UnsupportedError, match="backend vulkan"):
        emit_kernel(BASE, dataclasses.replace(HOST, backend="vulkan"))


def _bool(draw: st.DrawFn, tensors: Sequence[TensorArg], depth: int) -> ScoreExpr:
    own = [("tensor", i) for i, t in enumerate(tensors) if t.kind == "bool"]
    kinds = ["compare"] * 4 + ["leaf"] * bool(own) + ["And", "Or", "Xor", "Not", "Equal", "ToBool"] * (depth > 0)
    match draw(st.sampled_from(kinds)):
        case "leaf":
            return draw(st.sampled_from(own))
        case "compare":
            op = draw(st.sampled_from(("Less", "LessOrEqual", "Greater", "GreaterOrEqual", "LessOrEqual", "Equal")))
            return (op, _int(draw, tensors, depth - 1), _int(draw, tensors, depth - 1))
        case "Not":
            return ("Not", _bool(draw, tensors, depth - 1))
        case "ToBool":
            return ("ToBool", _int(draw, tensors, depth - 1))
        case op:
            return (op, _bool(draw, tensors, depth - 1), _bool(draw, tensors, depth - 1))


def _int(draw: st.DrawFn, tensors: Sequence[TensorArg], depth: int) -> ScoreExpr:
    own: list[ScoreExpr] = [("tensor", i) for i, t in enumerate(tensors) if t.kind == "int"]
    kinds = ["leaf"] * 2 + ["Add", "Sub", "Min", "Max", "unary", "Mul", "Div", "Mod", "Where", "ToInt"] * (depth > 0)
    constant: st.SearchStrategy[ScoreExpr] = st.tuples(st.just("i"), st.integers(-3, 70))
    match draw(st.sampled_from(kinds)):
        case "leaf":
            named: list[ScoreExpr] = [Q, K, Q, K, ("Skv",), ("Sq",), *own, *own]
            return draw(st.one_of(st.sampled_from(named), constant))
        case "unary":
            return (draw(st.sampled_from(("Neg", "Abs", "Sign", "Relu"))), _int(draw, tensors, depth - 1))
        case "Mul" | "Div" | "Mod" as op:
            by = draw(st.one_of(constant, st.sampled_from(own) if own else constant))
            return (op, _int(draw, tensors, depth - 1), by)
        case "ToInt":
            return ("ToInt", _bool(draw, tensors, depth - 1))
        case "Where":
            condition = _bool(draw, tensors, depth - 1)
            return ("Where", condition, _int(draw, tensors, depth - 1), _int(draw, tensors, depth - 1))
        case op:
            return (op, _int(draw, tensors, depth - 1), _int(draw, tensors, depth - 1))


def _float(draw: st.DrawFn, tensors: Sequence[TensorArg], depth: int) -> ScoreExpr:
    """A small number: what is rounded in f32 must not be large, or the reference would be far away by right."""
    own: list[ScoreExpr] = [("tensor", i) for i, t in enumerate(tensors) if t.kind == "float"]
    kinds = (
        ["position"] * 2
        + ["constant"]
        + ["leaf"] * 3 * bool(own)
        + ["Add", "Sub", "Max", "unary", "Where"] * (depth > 0)
    )
    match draw(st.sampled_from(kinds)):
        case "leaf":
            return draw(st.sampled_from(own))
        case "constant":
            return ("f", draw(st.sampled_from((0.5, -1.0, 2.0))))
        case "position":
            place: ScoreExpr = ("ToFloat", ("Mod", _int(draw, tensors, 1), ("i", 64)))
            return ("Mul", ("f", draw(st.sampled_from((0.05, -0.1)))), place)
        case "unary":
            x = _float(draw, tensors, depth - 1)
            op = draw(
                st.sampled_from(("Tanh", "Sigmoid", "Sin", "Cos", "Erf", "Softplus", "Exp", "Log", "Neg", "Abs", "Pow"))
            )
            safe: dict[str, ScoreExpr] = {"Exp": ("Neg", ("Abs", x)), "Log": ("Add", ("Abs", x), ("f", 0.1))}
            if op == "Pow":
                return ("Pow", ("Add", ("Abs", x), ("f", 0.1)), ("f", draw(st.sampled_from((0.5, 1.5, -0.3)))))
            return (op, safe.get(op, x))
        case "Where":
            a, b = _float(draw, tensors, depth - 1), _float(draw, tensors, depth - 1)
            return ("Where", _bool(draw, tensors, depth - 1), a, b)
        case op:
            return (op, _float(draw, tensors, depth - 1), _float(draw, tensors, depth - 1))


def _function(draw: st.DrawFn, tensors: Sequence[TensorArg]) -> ScoreExpr:
    """More than a mask or a bias."""
    bounded: ScoreExpr = ("Sigmoid", _float(draw, tensors, 1))
    cap: ScoreExpr = ("f", draw(st.sampled_from((3.0, 20.0))))
    choices: list[ScoreExpr] = [
        ("Mul", cap, ("Tanh", ("Div", SCORE, cap))),
        ("Softplus", SCORE),
        ("Mul", SCORE, bounded),
        ("Max", SCORE, _float(draw, tensors, 1)),
        ("Sub", _float(draw, tensors, 1), SCORE),
        ("Where", ("Greater", SCORE, ("f", -1e30)), ("Erf", SCORE), SCORE),
    ]
    return draw(st.sampled_from(choices))


@st.composite
def specs(draw: st.DrawFn, expressions: bool = True, few: bool = False) -> AttentionSpec:
    length = st.one_of(st.integers(1, 70), st.integers(1, 70), st.sampled_from((1, 1, 3, 129, 300)))
    sq, skv = draw(st.integers(1, 4) if few else length), draw(length)
    hkv, group = draw(st.integers(1, 3)), draw(st.sampled_from((1, 1, 2, 3)))
    batch = draw(st.sampled_from(((), (1,), (2,), (2, 2))))
    dtype: Any = draw(st.sampled_from(("f32", "f32", "f32", "f16", "bf16"))) if expressions else "f32"
    rank = len(batch) + 3
    score = (*batch, hkv * group, sq, skv)
    offset = st.one_of(st.just("end"), st.integers(-5, 40))
    fills = st.sampled_from((float("-inf"), -3e38))

    def tensor(shape: tuple[int, ...] = score) -> tuple[int, ...]:
        chosen = tuple(1 if draw(st.booleans()) and a < rank - 1 else n for a, n in enumerate(shape))
        return chosen[draw(st.integers(0, rank - 1)) :]

    def tensors() -> list[TensorArg]:
        types = ("bool", "i32", "i64", "i64", "f32", "f32", "f16", "bf16")
        shapes = (score, (*score[:-1], 1), (*score[:-2], 1, 1), (*score[:-2], 1, skv))
        count = draw(st.integers(0, 2))
        return [TensorArg(tensor(draw(st.sampled_from(shapes))), draw(st.sampled_from(types))) for _ in range(count)]

    masks: list[Any] = []
    nonlinear = expressions and draw(st.integers(0, 2)) == 0
    if nonlinear:
        given_tensors = tensors()
        masks.append(_used(_function(draw, given_tensors), given_tensors))
    for kind in draw(st.lists(st.sampled_from("cwbawhereadd" if expressions else "cwba"), max_size=3)):
        fill = draw(fills)
        given_tensors = tensors() if kind in "herd" else []
        match kind:
            case "c":
                masks.append(Causal(draw(offset), fill))
            case "w":
                left, right = draw(st.none() | st.integers(0, 20)), draw(st.none() | st.integers(0, 9))
                masks.append(SlidingWindow(left, right, draw(offset), fill))
            case "b":
                masks.append(BoolMask(tensor(), fill))
            case "h" | "e":
                expr: ScoreExpr = ("Where", _bool(draw, given_tensors, 3), SCORE, ("f", fill))
                masks.append(_used(expr, given_tensors))
            case "r" | "d":
                masks.append(_used(("Add", SCORE, _float(draw, given_tensors, 3)), given_tensors))
            case _:
                masks.append(AddMask(tensor(), factor=draw(st.sampled_from((1.0, 0.5)))))
    swap = (*range(rank - 3), rank - 2, rank - 3, rank - 1)
    turned = (*range(rank - 2), rank - 1, rank - 2)
    known = ((), swap, turned) if expressions else ((), swap)
    layouts = {n: draw(st.sampled_from(known)) for n in ("q_layout", "k_layout", "v_layout", "o_layout")}
    dims = st.one_of(st.integers(1, 70), st.integers(8, 64)) if expressions else st.integers(8, 70)
    sink = None
    if expressions and draw(st.integers(0, 3)) == 0:
        sink = TensorArg((*tensor((*score[:-1], 1))[:-1], 1), draw(st.sampled_from(("f32", "f16"))))
    return AttentionSpec(
        dtype,
        hkv * group,
        hkv,
        sq,
        skv,
        draw(dims),
        draw(dims),
        batch,
        scale=draw(st.sampled_from((1.0, 0.125, -0.3))),
        mods=(Softcap(3.0),) if draw(st.booleans()) else (),
        masks=tuple(masks),
        sink=sink,
        empty_row=draw(st.sampled_from(("nan", "zero", "guarded"))),
        **layouts,
    )


def _used(expr: ScoreExpr, tensors: Sequence[TensorArg]) -> Elementwise:
    """The term, without the tensors that its expression turned out not to read."""
    read = sorted({leaf[1] for leaf in leaves(expr) if leaf[0] == "tensor"})
    renumbered = substitute(expr, lambda x: ("tensor", read.index(x[1])) if x[0] == "tensor" else x)
    return Elementwise(renumbered, tuple(tensors[i] for i in read))


def _dynamic(spec: AttentionSpec) -> AttentionSpec:
    """The spec with its lengths (few queries stay) and first batch dim unknown."""
    sq: Dim = "s" if spec.Sq > 4 else spec.Sq  # type: ignore[operator]
    names = ["b", *spec.batch[1:], spec.Hq, sq, "t"] if spec.batch else [spec.Hq, sq, "t"]

    def shape(old: tuple[Dim, ...]) -> tuple[Dim, ...]:
        tail = zip(old, names[len(names) - len(old) :], strict=True)
        return tuple(1 if size == 1 else name for size, name in tail)

    masks = tuple(with_shapes(m, shape) for m in spec.masks)
    sink = spec.sink and dataclasses.replace(spec.sink, shape=shape(spec.sink.shape))
    batch = tuple(names[: len(spec.batch)])
    return dataclasses.replace(spec, Sq=sq, Skv="t", batch=batch, masks=masks, sink=sink)


def _draw_specs(count: int, expressions: bool, few: bool = False) -> list[AttentionSpec]:
    drawn: list[AttentionSpec] = []

    @settings(
        max_examples=count,
        phases=[Phase.generate],
        derandomize=True,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(specs(expressions, few))
    def collect(spec: AttentionSpec) -> None:
        drawn.append(spec)

    collect()
    return list(dict.fromkeys(drawn))


def test_random_specs(tmp_path: Path) -> None:
    """Both bodies, static and dynamic, agree with the reference. Specs are drawn first and compiled together."""
    kernels: list[Kernel] = []
    sizes: list[AttentionSpec] = []
    for i, spec in enumerate(_draw_specs(14, expressions=False)):
        form = _dynamic(spec) if i % 3 == 0 else spec
        for body in ("op", "vector"):
            kernels.append(emit_kernel(form, HOST, body=body))  # type: ignore[arg-type]
            sizes.append(spec)
    compiled = Kernels(kernels, tmp_path)
    for i, (kernel, spec) in enumerate(zip(kernels, sizes, strict=True)):
        assert not _compare(kernel, spec, lambda operands, i=i: compiled.run(i, operands))


def _compare(kernel: Kernel, spec: AttentionSpec, run: Callable[[list[Array]], Array]) -> list[str]:
    """What is wrong, for ordinary and for adversarial operands."""
    wrong = []
    for seed in range(2):
        operands = draw_operands(spec, seed, adversarial=seed == 1)
        found = mismatch(spec, operands, run(operands))
        wrong += [f"{kernel.body}: {found}: {kernel.spec} at {spec}, seed {seed}"] if found else []
    return wrong


def test_random_few_queries(tmp_path: Path) -> None:
    """The body for a few queries, static and dynamic, every kind of term. ONNX_FA_FUZZ is the number of specs."""
    cases: list[tuple[Kernel, AttentionSpec]] = []
    for i, spec in enumerate(_draw_specs(int(os.environ.get("ONNX_FA_FUZZ", "25")), expressions=True, few=True)):
        with contextlib.suppress(UnsupportedError):  # a head dim stored before the length
            cases.append((emit_kernel(_dynamic(spec) if i % 3 == 0 else spec, HOST, body="few"), spec))
    assert cases
    compiled = Kernels([kernel for kernel, _ in cases], tmp_path)
    wrong: list[str] = []
    for i, (kernel, spec) in enumerate(cases):
        wrong += _compare(kernel, spec, lambda operands, i=i: compiled.run(i, operands))
    assert not wrong, "\n".join(wrong)


@pytest.mark.slow
def test_random_expressions(tmp_path: Path) -> None:
    """Every kind of term, every layout and narrow heads: the chosen body agrees with the reference, and the op body on some of
    those that it takes. ONNX_FA_FUZZ is the number of specs."""
    cases: list[tuple[Kernel, AttentionSpec]] = []
    for i, spec in enumerate(_draw_specs(int(os.environ.get("ONNX_FA_FUZZ", "60")), expressions=True)):
        form = _dynamic(spec) if i % 3 == 0 else spec
        cases.append((emit_kernel(form, HOST), spec))
        if i % 4 == 1:
            with contextlib.suppress(UnsupportedError):
                cases.append((emit_kernel(form, HOST, body="op"), spec))
    assert any(kernel.body == "op" for kernel, _ in cases)
    compiled = Kernels([kernel for kernel, _ in cases], tmp_path)
    wrong: list[str] = []
    for i, (kernel, spec) in enumerate(cases):
        wrong += _compare(kernel, spec, lambda operands, i=i: compiled.run(i, operands))
    assert not wrong, f"{len(wrong)} of {len(cases)}:\n" + "\n".join(wrong)
