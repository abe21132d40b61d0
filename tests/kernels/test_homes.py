"""Workgroups that stay with a core: each is taken once, by however many workers, and by which dispatches they are."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import onnx_fa
from onnx_fa.iree.run import load_module
from onnx_fa.kernels.cpu.homes import Homes, ranges_of
from onnx_fa.kernels.cpu.linear import emit_linear
from onnx_fa.kernels.cpu.row_dispatch import call_dispatch, joined, load, make_executable, store
from onnx_fa.kernels.cpu.window import emit_window, panel_of
from onnx_fa.kernels.mlir.operand import Operand
from onnx_fa.kernels.mlir.vectors import Lanes
from onnx_fa.spec.linear import LinearSpec
from onnx_fa.spec.target import parse_target
from onnx_fa.spec.windows import WindowSpec
from tests.kernels.test_cpu_linear import packed
from tests.support.image_nets import Net
from tests.support.kernel_harness import FLAGS, run_iree_compile
from tests.support.ort_run import assert_same, run

HOST = parse_target("cpu-host")
x86 = pytest.mark.skipif(not HOST.has_avx2, reason="processors are asked for their number as those with AVX2 tell it")
GROUPS, RANGES = (1, 2, 3, 7, 64, 301), (2, 4, 16)


def counting(groups: int, ranges: int) -> str:
    """A function of so many workgroups, each of which adds 1 to a number of its own."""
    symbol = f"count_{groups}_{ranges}"
    homes, t = Homes(symbol, ranges), Lanes(8)
    y = Operand("%y", (groups,), "f32")
    own = homes.workgroup(t, t.index(groups))
    part, type_ = load(t, y, "readwrite", [own], [1])
    total = t.arith("addf", t.extract(part, type_, t.index(0)), t.f32(1.0), "f32")
    made = t.let(f"tensor.insert {total} into {part}[{t.index(0)}] : {type_}")
    store(t, made, type_, y, [own], [1], access="readwrite")
    changed = [homes.operand, y]
    count = [f"%x = arith.constant {groups} : index"]
    body = make_executable(symbol, [], [], count, t.render(), helper=homes, changed=changed)
    entry = Lanes(8)
    values = [homes.take(entry), "%y"]
    *_, result = call_dispatch(entry, symbol, changed, values, [], changed=2)
    lines = [
        f"util.func public @of_{groups}_{ranges}(%y: {y.type}) -> {y.type} {{",
        *entry.render(),
        f"util.return {result} : {y.type}",
        "}",
    ]
    return joined(body) + joined(lines)


@pytest.fixture(scope="module")
def counted(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int, int, str], np.ndarray]:
    output = tmp_path_factory.mktemp("homes") / "m.vmfb"
    run_iree_compile("".join(counting(g, r) for g in GROUPS for r in RANGES), output, FLAGS)

    def call(groups: int, ranges: int, device: str) -> np.ndarray:
        function = load_module(output, device=device, function=f"of_{groups}_{ranges}")
        return np.asarray(function(np.zeros(groups, np.float32)))

    return call


@x86
@pytest.mark.parametrize("ranges", RANGES)
@pytest.mark.parametrize("groups", GROUPS)
def test_each_is_taken_once(groups: int, ranges: int, counted: Callable[[int, int, str], np.ndarray]) -> None:
    """By several workers, and by one, whose own range is one of many; as often as it is called."""
    for device in ("local-task", "local-task", "local-sync"):
        assert (counted(groups, ranges, device) == 1).all()


@pytest.mark.parametrize("count", [0, 1, 3, 12])
def test_other_numbers_of_ranges_are_refused(count: int) -> None:
    with pytest.raises(ValueError, match=f"{count} ranges"):
        Homes("x", count)


def test_which_have_ranges(monkeypatch: pytest.MonkeyPatch) -> None:
    """Convolutions, where the cores are known to be several."""
    images = WindowSpec(
        1, 1, 32, 32, (9, 9), (3, 3), (1, 1), (1, 1), panel_of(32, HOST), x_last=True, last=True, pads=(1,) * 4
    )
    depthwise = replace(images, depthwise=True, channels=32)
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    there = 4 if HOST.has_avx2 else 0
    assert ranges_of(HOST) == there and ranges_of(parse_target("cpu-avx512")) == 0
    for cores, wanted in ((1, 0), (6, 2 * there), (64, 16 * there), (96, 0), (4, there)):
        monkeypatch.setattr(os, "cpu_count", lambda cores=cores: cores)
        assert ranges_of(HOST) == wanted
    for spec in (images, depthwise):
        assert ("_home" in emit_window(spec, HOST)[f"{spec.name}_tiles"]) is bool(there)
    site = packed(LinearSpec((1, 196), 192, 192, "f32"), HOST)
    assert not any("_home" in text for text in emit_linear(site, HOST).values())


@pytest.mark.parametrize("cores", [2, 5])
def test_a_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cores: int) -> None:
    """Convolutions of each kind between each other, as for another number of cores than there are, of one image and of several."""
    monkeypatch.setattr(os, "cpu_count", lambda: cores)
    n = Net(32, 18, 18, batch="N")
    a = n.add("Relu", n.conv("x", 32, 48))
    b = n.add("Relu", n.add("Conv", a, n.weight(48, 1, 5, 5), group=48, pads=[2, 2, 2, 2], strides=[2, 2]))
    c = n.add("Relu", n.conv(b, 48, 48, 3))
    model = n.model(n.add("Relu", n.add("Add", n.conv(c, 48, 48), b)))
    onnx_fa.compile(model, tmp_path / "m.vmfb")
    call = load_module(tmp_path / "m.vmfb")
    for batch in (1, 3, 0):
        x = np.random.default_rng(batch).standard_normal((batch, 32, 18, 18)).astype(np.float32)
        for _ in range(3):
            assert_same(run(model, {"x": x}), call(x), 1e-5)
