"""The chooser, and both bodies against the reference on random small attentions."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from onnx_fa.emit.kernel import emit_kernel, kernel_name
from onnx_fa.emit.kernel_text import Kernel
from onnx_fa.errors import UnsupportedError
from onnx_fa.spec import AddMask, AttentionSpec, BoolMask, Causal, SlidingWindow, Softcap
from onnx_fa.target import parse_target
from tests.cases import BY_NAME, draw_operands, select
from tests.kernel_harness import HOST, Kernels, mismatch

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


def test_falls_back_to_the_op() -> None:
    assert emit_kernel(BY_NAME["bench_decode_gqa"].spec, HOST).body == "op"


def test_refusals_name_every_body() -> None:
    spec = dataclasses.replace(BASE, Sq=1, masks=(BoolMask((1, 64), -5.0),))
    with pytest.raises(UnsupportedError, match=r"vector: .*; op: .*competes"):
        emit_kernel(spec, HOST)
    with pytest.raises(UnsupportedError, match="f64"):
        emit_kernel(dataclasses.replace(BASE, dtype="f64"), HOST)
    with pytest.raises(UnsupportedError, match="backend vulkan"):
        emit_kernel(BASE, dataclasses.replace(HOST, backend="vulkan"))


@st.composite
def specs(draw: st.DrawFn) -> AttentionSpec:
    sq, skv = draw(st.integers(1, 70)), draw(st.integers(1, 70))
    hkv, group = draw(st.integers(1, 3)), draw(st.sampled_from((1, 1, 2, 3)))
    batch = draw(st.sampled_from(((), (1,), (2,), (2, 2))))
    rank = len(batch) + 3
    score = (*batch, hkv * group, sq, skv)
    offset = st.one_of(st.just("end"), st.integers(-5, 40))

    def tensor() -> tuple[int, ...]:
        shape = tuple(1 if draw(st.booleans()) and a < rank - 1 else n for a, n in enumerate(score))
        return shape[draw(st.integers(0, rank - 1)) :]

    masks: list[Any] = []
    for kind in draw(st.lists(st.sampled_from("cwba"), max_size=3)):
        fill = draw(st.sampled_from((float("-inf"), -3e38)))
        match kind:
            case "c":
                masks.append(Causal(draw(offset), fill))
            case "w":
                left, right = draw(st.none() | st.integers(0, 20)), draw(st.none() | st.integers(0, 9))
                masks.append(SlidingWindow(left, right, draw(offset), fill))
            case "b":
                masks.append(BoolMask(tensor(), fill))
            case _:
                masks.append(AddMask(tensor(), factor=draw(st.sampled_from((1.0, 0.5)))))
    swap = (*range(rank - 3), rank - 2, rank - 3, rank - 1)
    layouts = {n: draw(st.sampled_from(((), swap))) for n in ("q_layout", "k_layout", "v_layout", "o_layout")}
    dims = st.integers(8, 70)
    return AttentionSpec(
        "f32",
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
        empty_row=draw(st.sampled_from(("nan", "zero", "guarded"))),
        **layouts,
    )


def _dynamic(spec: AttentionSpec) -> AttentionSpec:
    """The spec with its lengths and first batch dim unknown."""
    data = spec.to_dict()
    names = ["b", *spec.batch[1:], spec.Hq, "s", "t"] if spec.batch else [spec.Hq, "s", "t"]
    for mask in data["masks"]:
        if "shape" in mask:
            shape = mask["shape"]
            tail = list(zip(shape, names[len(names) - len(shape) :], strict=True))
            mask["shape"] = [1 if size == 1 else name for size, name in tail]
    data |= {"Sq": "s", "Skv": "t", "batch": names[: len(spec.batch)]}
    return AttentionSpec.from_dict(data)


def test_random_specs(tmp_path: Path) -> None:
    """Both bodies, static and dynamic, agree with the reference. Specs are drawn first and compiled together."""
    drawn: list[AttentionSpec] = []

    @settings(
        max_examples=14,
        phases=[Phase.generate],
        derandomize=True,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(specs())
    def collect(spec: AttentionSpec) -> None:
        drawn.append(spec)

    collect()
    kernels: list[Kernel] = []
    sizes: list[AttentionSpec] = []
    for i, spec in enumerate(dict.fromkeys(drawn)):
        form = _dynamic(spec) if i % 3 == 0 else spec
        for body in ("op", "vector"):
            try:
                kernels.append(emit_kernel(form, HOST, body=body))  # type: ignore[arg-type]
            except UnsupportedError:
                assert body == "vector", f"the op body refused {form}"
                continue
            sizes.append(spec)
    assert sum(k.body == "vector" for k in kernels) >= 5
    compiled = Kernels(kernels, tmp_path)
    for i, (kernel, spec) in enumerate(zip(kernels, sizes, strict=True)):
        for seed in range(2):
            operands = draw_operands(spec, seed, adversarial=seed == 1)
            wrong = mismatch(spec, operands, compiled.run(i, operands))
            assert wrong is None, f"{kernel.body}: {wrong}: {kernel.spec} at {spec}"
