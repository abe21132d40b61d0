"""Functions whose every buffer is the caller's: dispatches alone in the compiled program, and the bytes that they need."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from onnx_fa.iree.alone import module_text
from onnx_fa.iree.compiler import iree_compile
from onnx_fa.kernels.choose import emit_kernel
from onnx_fa.kernels.mlir.launches import plan_of_json
from onnx_fa.kernels.triton import ptx
from onnx_fa.spec.attention import AttentionSpec
from onnx_fa.spec.target import parse_target
from tests.support.triton_sources import triton_sources

pytestmark = pytest.mark.skipif(not ptx.available(), reason="Triton is not installed")
CUDA = parse_target("cuda")


def _spec(Sq: int, Skv: int) -> AttentionSpec:
    """Split keys, with row statistics: a few queries, whose parts the kernel combines, and many, whose parts another does."""
    return AttentionSpec("f16", 4, 2, Sq, Skv, 32, 48, batch=(1,), scale=0.2, empty_row="zero", stats=("max", "sum"))


@pytest.mark.parametrize(("Sq", "dispatches"), [(1, 1), (40, 2)])
def test_nothing_is_allocated_or_copied(Sq: int, dispatches: int, tmp_path: Path) -> None:
    with triton_sources():
        kernel = emit_kernel(_spec(Sq, 1 << 15), CUDA)
    splits = kernel.config["splits"]
    assert isinstance(splits, int) and splits > 1 and kernel.into is not None
    assert kernel.into.workspace == tuple(4 * 4 * Sq * splits * n for n in (48, 2))
    iree_compile(module_text(kernel, into=True), tmp_path / "m.mlir", CUDA, phase="stream")
    text = (tmp_path / "m.mlir").read_text()
    into = text[text.index("util.func public @site_into(") :]
    into = into[: into.index("\n  }\n")]
    assert into.count("stream.cmd.dispatch") == dispatches
    assert not any(word in into for word in ("alloca", "stream.cmd.copy", "stream.cmd.fill"))
    assert "timepoint.await" not in into and "timepoint.chain_external" in into  # the caller waits, how it likes
    sizes = text[text.index("util.func public @site_workspace()") :]
    assert all(f"{size} : i64" in sizes for size in kernel.into.workspace)


_PLACES = ("q", "k", "v", "out", "row_max", "row_sum", "count", "part", "stat")
"""The names that a kernel's source has for a plan's operands, results, counters and workspaces."""


@pytest.mark.parametrize(("Sq", "combining"), [(1, []), (40, [160])])
def test_the_plan_gives_each_parameter_its_buffer(Sq: int, combining: list[int]) -> None:
    with triton_sources():
        kernel = emit_kernel(_spec(Sq, 1 << 15), CUDA)
    assert kernel.into is not None
    plan, splits = kernel.into.plan, kernel.config["splits"]
    assert plan.operands[1] == ((1, 2, 1 << 15, 32), "f16")
    assert plan.results == (((1, 4, Sq, 48), "f16"), ((1, 4, Sq), "f32"), ((1, 4, Sq), "f32"))
    assert plan.workspace == kernel.into.workspace and plan.counters == (8 if Sq == 1 else 0)
    blocks = -(-2 * Sq // int(kernel.config["BM"]))  # the two heads of a key head are one, with twice the queries
    for launch, groups in zip(plan.launches, [2 * blocks, *combining], strict=True):
        for code in launch.codes:
            found = re.search(rf"def {launch.entry}\(([^)]*)\)", code.text)
            assert found and [_PLACES[n] for n in launch.arguments] == found[1].split(", ")
        assert launch.codes[0].workgroups == (groups, splits if launch is plan.launches[0] else 1)
        assert f"@{launch.entry}" in kernel.text
    assert plan_of_json(plan.to_json()) == plan
    assert [plan.launches[0].code_of(major).arch for major in (9, 8, 12)] == [90, 80, 80]


def test_sizes_that_are_not_known_have_none() -> None:
    with triton_sources():
        assert emit_kernel(AttentionSpec("f16", 4, 4, "N", "M", 32, 32, batch=(1,), scale=0.2), CUDA).into is None
