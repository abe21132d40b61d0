"""One program over several devices: every part of a site on a device of its own, and the result that of one device."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Literal

import onnx
import pytest

from onnx_fa.errors import TargetError
from onnx_fa.iree.compile import compile_model
from onnx_fa.iree.kernels import plan_kernels
from onnx_fa.iree.placed import devices_of
from onnx_fa.iree.run import load_module
from onnx_fa.spec.accuracy import expect
from onnx_fa.spec.target import parse_target, spread
from onnx_fa.spec.terms import Causal
from tests.cli.test_cli import cli, error_line
from tests.match.test_keys_in_parts import model_of
from tests.support.cases import BY_NAME, draw_operands

GQA = dataclasses.replace(BY_NAME["gqa"].spec, batch=(1,), Sq=20, Skv=33, masks=(Causal("end"),))


@pytest.mark.parametrize("along", ["keys", "queries"])
def test_parts_on_their_devices(along: Literal["keys", "queries"], tmp_path: Path) -> None:
    output = tmp_path / "two.vmfb"
    done = compile_model(model_of(GQA), output, "cpu-host", devices=2, split=along)
    assert [(s.device, s.fused) for s in done.sites] == [("device_0", True), ("device_1", True)] and not done.misses
    operands = draw_operands(GQA, 0)
    (out,) = load_module(output, "local-task,local-task")(*operands)
    assert not expect(GQA, operands).compare(out).problem


def test_devices_are_read_off_the_program() -> None:
    lines = [
        "%7 = stream.cmd.execute on(#hal.device.affinity<@device_0>) await(%6) => with(...) {",
        "  stream.cmd.dispatch @a_attention::@a_attention_fill[%c2] {",
        "%8 = stream.cmd.execute on(#hal.device.affinity<@device_1>) await(%6) => with(...) {",
        "  stream.cmd.dispatch @b_attention::@b_attention_fill[%c2] {",
        "  stream.cmd.dispatch @a_attention::@a_attention_fill[%c2] {",
    ]
    assert devices_of(lines) == {"a_attention": {"device_0", "device_1"}, "b_attention": {"device_1"}}


def test_targets_of_several_devices() -> None:
    target = spread(parse_target("cpu-avx512"), 3)
    assert [f for f in target.flags if "target-device=" in f] == [
        f"--iree-hal-target-device=device_{i}=local[{i}]" for i in range(3)
    ]
    with pytest.raises(TargetError, match="a process for each device"):
        spread(parse_target("cuda"), 2)


def test_what_cannot_be_cut_is_on_the_first_device() -> None:
    planned = plan_kernels(model_of(BY_NAME["rounded_u8"].spec), spread(parse_target("cpu-avx512"), 2))
    (site,) = planned.sites
    assert site.device == 0 and site.kernel is not None
    assert site.report.beside.startswith(
        "not cut along its keys, on the first device alone: probabilities that are rounded"
    )


def test_command(tmp_path: Path) -> None:
    onnx.save(model_of(GQA), tmp_path / "a.onnx")
    done = cli("compile", "a.onnx", "-o", "a.vmfb", "--devices", "2", "--split", "heads", "--check", cwd=tmp_path)
    assert "part0: on device_0" in done.stderr and "part1: on device_1" in done.stderr
    assert done.stderr.count("--device=local-task --device=local-task") == 2
    both = ("--device", "local-task", "--device", "local-task")
    assert "output 0" in cli("run", "a.vmfb", "--random-inputs", "a.onnx", *both, cwd=tmp_path).stdout
    wrong = cli("run", "a.vmfb", "--random-inputs", "a.onnx", cwd=tmp_path, code=1)
    assert "compiled for 2 devices or more" in error_line(wrong)
    for args, word in (
        (("--split", "heads"), "give --devices N"),
        (("--devices", "2", "--target", "cuda"), "IREE 3.13"),
    ):
        assert word in error_line(cli("compile", "a.onnx", "-o", "b.vmfb", *args, cwd=tmp_path, code=2))
