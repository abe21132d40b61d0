"""Kernels for GPUs: what is emitted, and what the compiler makes of it (no GPU needed)."""

from __future__ import annotations

import dataclasses
import re
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

from onnx_fa.errors import TargetError, UnsupportedError
from onnx_fa.forms import blocked
from onnx_fa.forms.plain import finished, input_names, operand_values, plain_model
from onnx_fa.forms.score import narrowest
from onnx_fa.graph.builder import OnnxBuilder
from onnx_fa.iree import drivers, kernels
from onnx_fa.iree.alone import FUNCTION, module_text
from onnx_fa.iree.compile import compile_model, import_model
from onnx_fa.iree.compiler import find_compiler, iree_compile
from onnx_fa.iree.drivers import find_gpu, require_device
from onnx_fa.iree.run import load_module
from onnx_fa.kernels.choose import emit_kernel
from onnx_fa.kernels.iree_gpu.gpu import emit_gpu
from onnx_fa.kernels.iree_gpu.tiles import GpuConfig, default_config, problem
from onnx_fa.kernels.mlir.kernel import Kernel
from onnx_fa.spec.accuracy import compare
from onnx_fa.spec.attention import AttentionSpec
from onnx_fa.spec.cases import case
from onnx_fa.spec.expr import SCORE, Apply, Float, K, Q
from onnx_fa.spec.target import TARGET_NAMES, Target, parse_target
from onnx_fa.spec.terms import BoolMask, Causal, Elementwise, SlidingWindow, Softcap
from tests.support.cases import BY_NAME, CASES, Case, draw_operands
from tests.support.gpu_on_cpu import host_text
from tests.support.ort_run import run as run_ort

GPUS = [n for n in TARGET_NAMES if n.startswith(("cuda", "rocm"))]
MATRIX = {"cuda": "mma.sync", "rocm-gfx942": "v_mfma", "rocm-gfx950": "v_mfma", "rocm-gfx1100": "v_wmma"}


def small(name: str, **changes: object) -> Case:
    return case(name, **{"dtype": "f16", "Sq": 256, "Skv": 256, "D": 64, "Dv": 64} | changes)


def compiled(item: Case, target: str, folder: Path) -> str:
    """The code of a kernel's attention: PTX, or AMD assembly."""
    wanted = parse_target(target)
    source = folder / "k.mlir"
    source.write_text(module_text(emit_gpu(item.spec, wanted, "fa_0")))
    command = [find_compiler(), source, "-o", folder / "k.vmfb", *wanted.flags]
    command += [
        f"--iree-hal-dump-executable-intermediates-to={folder}",
        f"--iree-hal-dump-executable-binaries-to={folder}",
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[:2000]
    return "".join(p.read_text() for end in ("ptx", "rocmasm") for p in folder.glob(f"*.{end}"))


@pytest.mark.parametrize("target", MATRIX)
def test_matrix_instructions(target: str, tmp_path: Path) -> None:
    """One dispatch whose matmuls both are matrix instructions, for a causal GQA attention of BSHD operands with a softcap."""
    bshd = (0, 2, 1, 3)
    item = small(
        "x", Hq=4, masks=(Causal(),), mods=(Softcap(20.0),), q_layout=bshd, k_layout=bshd, v_layout=bshd, o_layout=bshd
    )
    code = compiled(item, target, tmp_path)
    assert code.count(MATRIX[target]) >= 16


def test_bf16_and_f32(tmp_path: Path) -> None:
    for dtype, found in (("bf16", "m16n8k16.row.col.f32.bf16.bf16.f32"), ("f32", "fma.rn")):
        folder = tmp_path / dtype
        folder.mkdir()
        code = compiled(small("x", dtype=dtype, Sq=64, Skv=64, D=32, Dv=32), "cuda", folder)
        assert found in code and "tf32" not in code


@pytest.mark.parametrize("target", ["cuda", "rocm-gfx1100"])
def test_dynamic_lengths(target: str, tmp_path: Path) -> None:
    item = small("x", Sq="s", Skv="t", masks=(Causal("end"), BoolMask((2, 1, 1, "t"))))
    assert MATRIX[target] in compiled(item, target, tmp_path)


@pytest.mark.parametrize(
    "name", ["f16_causal_gqa", "odd_lengths", "document", "softcap_window_gqa", "sink_1", "decode_gqa", "dyn_add_mask"]
)
def test_text_computes_attention(name: str, tmp_path: Path) -> None:
    """The same ops as a host program, on ordinary and on adversarial operands (on an H200: benchmarks/gpu/h200-check.csv)."""
    spec = dataclasses.replace(BY_NAME[name].spec, dtype="f16")
    kernel = emit_gpu(
        spec, parse_target("cuda"), "fa_0", GpuConfig(32, 32, 1, transpose_v=1) if name == "document" else None
    )
    iree_compile(host_text(module_text(kernel)), tmp_path / "k.vmfb", parse_target("cpu-host"))
    call = load_module(tmp_path / "k.vmfb", function=FUNCTION)
    for bound in (spec.bind(dict(sizes)) for sizes in BY_NAME[name].sizes):
        for adversarial in (False, True):
            operands = [np.ascontiguousarray(x) for x in draw_operands(bound, 0, adversarial=adversarial)]
            assert not compare(bound, operands, call(*operands)[0]).problem


def test_text() -> None:
    """The loop's bounds follow the mask, blocks are never padded where the last can start earlier."""
    text = emit_gpu(
        small("x", Sq=100, Skv=200, masks=(Causal(),)).spec, parse_target("cuda"), "fa_0", GpuConfig(32, 32, 2)
    ).text
    loop = re.search(r"scf.for (%\w+) = (%\w+) to (%\w+) step", text)
    assert loop and re.search(rf"{loop[3]} = arith.maxsi", text)
    assert "tensor.pad" not in text and text.count("scf.forall (") == 1
    assert not re.search(r"tensor<(\d+x)*100x200x", text)
    padded = emit_gpu(
        small("x", Sq=100, Skv=200).spec, parse_target("cuda"), "fa_0", GpuConfig(32, 32, 2, transpose_v=1)
    ).text
    assert "tensor.pad" in padded and "tensor<2x2x224x64xf16>" in padded


def test_skips() -> None:
    """Blocks of index masks are left out; where a finite fill may count after all, a second loop can visit them."""

    def loops(**changes: object) -> tuple[object, int]:
        kernel = emit_gpu(small("x", **changes).spec, parse_target("cuda"), "fa_0")
        return kernel.config["skips"], kernel.text.count("scf.for ")

    assert loops() == (0, 1)
    assert loops(masks=(Causal(),)) == (1, 1)
    assert loops(masks=(SlidingWindow(16, 0, fill=-3.4e38),)) == (1, 1)  # every row keeps a key
    assert loops(masks=(Causal(-300, fill=-3.4e38),)) == (1, 2)  # a row without a key is the mean of all values
    assert loops(masks=(Causal(0, fill=-65504.0),)) == (1, 2)  # a score could be lower than that


@pytest.mark.parametrize("target", GPUS)
def test_every_case_is_emitted_or_refused(target: str) -> None:
    """With tiles that fit; only what no GPU kernel carries is refused."""
    refused = (
        "head dims above",
        "row statistics",
        "K or V kept as integers",
        "second sweep",
        "gathered",
        "multiplied by a tensor",
    )
    wanted = parse_target(target)
    for item in CASES:
        try:
            kernel = emit_gpu(item.spec, wanted, "fa_0")
        except UnsupportedError as e:
            assert any(r in str(e) for r in refused), (item.name, str(e))
            continue
        assert kernel.text.count("scf.forall (") == 1 and "func.func @fa_0_attention" in kernel.text


@pytest.mark.parametrize(
    "dims", [(8, 8), (40, 40), (72, 72), (96, 96), (112, 112), (160, 160), (192, 128), (256, 256), (19, 37)]
)
def test_default_tiles_fit(dims: tuple[int, int]) -> None:
    for target in GPUS:
        for dtype in ("f16", "f32"):
            spec = small("x", D=dims[0], Dv=dims[1], dtype=dtype).spec
            assert not problem(spec, parse_target(target), default_config(spec, parse_target(target)))


def test_tiles_that_do_not_fit() -> None:
    target, spec = parse_target("cuda"), small("x").spec
    for config, why in (
        (GpuConfig(48, 32, 4), "multiple of 16 rows"),
        (GpuConfig(64, 512, 4), "BN=512 for 256 keys"),
        (GpuConfig(48, 32, 3), "divide among 96 threads"),
    ):
        assert why in problem(spec, target, config)
        with pytest.raises(UnsupportedError, match=re.escape(why)):
            emit_gpu(spec, target, "fa_0", config)


def test_providers() -> None:
    spec = small("x").spec
    assert emit_kernel(spec, parse_target("cuda", "iree")).body == "gpu"
    with pytest.raises(TargetError, match="--kernels triton: "):
        emit_kernel(spec, parse_target("cpu-host", "triton"))
    assert emit_kernel(spec, parse_target("vulkan")).body == "spirv"
    with pytest.raises(UnsupportedError, match="no lowering for vulkan"):
        emit_gpu(spec, parse_target("vulkan"), "fa_0")


@pytest.mark.parametrize("name", ["causal_end_empty_rows", "decode_sink_window", "softcap_window_gqa", "alibi_gqa"])
def test_blocks_without_a_kernel(name: str) -> None:
    """What no kernel of a GPU takes is written by blocks of keys: the same numbers, no tensor of all scores, and it is said."""
    spec = dataclasses.replace(BY_NAME[name].spec, Skv=1100, D=288, Dv=288)
    graph = ir.Graph(values := operand_values(spec), [], nodes=[], opset_imports={"": 18}, name="attention")
    builder = OnnxBuilder(graph, 18, "attention", set(input_names(spec)), {})
    written = finished(builder, spec, *blocked.emit_unrolled(builder, spec, values))
    operands = draw_operands(spec, 0, adversarial=True)
    (out,) = run_ort(ir.to_proto(written), dict(zip(input_names(spec), operands, strict=True)))
    assert not compare(spec, operands, out).problem
    imported = import_model(ir.to_proto(plain_model(dataclasses.replace(spec, empty_row="nan"))), "vulkan")
    (miss,) = imported.misses
    assert "head dims above 256" in miss.reason and "in blocks of 512 keys" in miss.reason
    assert f"{spec.Sq},1100]" not in imported.text and f"{spec.Sq},512]" in imported.text


@pytest.mark.parametrize("length", [64, "s"])
def test_vulkan_compiles_a_mask_by_positions(length: int | str, tmp_path: Path) -> None:
    """What is left in standard ops has positions of int32, where lengths are known."""
    dims = {"Sq": length, "Skv": length, "D": 264, "Dv": 8}
    spec = AttentionSpec("f32", batch=(1,), Hq=2, Hkv=2, scale=0.5, masks=(Causal(),), **dims)  # type: ignore[arg-type]
    imported = import_model(ir.to_proto(plain_model(spec)), "vulkan")
    (miss,) = imported.misses
    assert "head dims above 256" in miss.reason
    types = {t for line in imported.text.splitlines() if '"onnx.Range"' in line for t in re.findall(r"si\d+", line)}
    assert types == ({"si32"} if length == 64 else {"si64"})
    iree_compile(imported.text, tmp_path / "m.vmfb", parse_target("vulkan"), flags=imported.flags, timeout_s=120)


@pytest.mark.parametrize(
    ("masks", "kind"),
    [
        ((), np.int32),
        ((Causal("end"), SlidingWindow(3, 4, 5)), np.int32),
        ((Causal(-(2**29)),), np.int64),
        ((SlidingWindow(None, 2**28, 2**28),), np.int64),
        ((Elementwise(Apply("Where", Apply("LessOrEqual", K, Q), SCORE, Float(0.0))),), np.int64),
    ],
)
def test_positions_are_narrow_only_where_nothing_can_wrap_around(masks: tuple[Any, ...], kind: type) -> None:
    spec = AttentionSpec("f32", batch=(1,), Hq=2, Hkv=2, Sq=64, Skv=64, D=8, Dv=8, scale=0.5, masks=masks)
    assert narrowest(spec) is kind
    assert narrowest(dataclasses.replace(spec, Skv="s")) is np.int64
    assert narrowest(dataclasses.replace(spec, Sq=2**29)) is np.int64


def test_a_kernel_that_the_compiler_refuses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The model is compiled all the same, with that attention in standard ops, and the report says why."""

    def broken(spec: AttentionSpec, target: Target) -> Kernel:
        kernel = emit_kernel(spec, target)
        return dataclasses.replace(kernel, text=kernel.text.replace("util.return", "util.nothing"))

    monkeypatch.setattr(kernels, "emit_kernel", broken)
    model = ir.to_proto(plain_model(small("x", Sq=64, Skv=64).spec))
    report = compile_model(model, tmp_path / "m.vmfb", "cuda")
    (miss,) = report.misses
    assert not report.sites and "the compiler refuses the kernel: iree-compile failed" in miss.reason
    assert "in blocks of 512 keys" in miss.reason and [p.name for p in tmp_path.iterdir()] == ["m.vmfb"]


def test_targets() -> None:
    assert "sm_80" in parse_target("cuda").note and parse_target("cuda-sm_90").arch == "sm_80"
    assert not parse_target("cuda-sm_89").note
    for name in ("cuda-sm_70", "rocm", "rocm-gfx906", "vulkan-x"):
        with pytest.raises(TargetError, match="unknown target"):
            parse_target(name)


def test_absent_device() -> None:
    require_device("local-task")
    for device in ("hip", "metal", "cuda://7"):
        with pytest.raises(TargetError, match=f"^device {device}: "):
            require_device(device)


def test_device_by_its_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver finds two GPUs: their numbers are taken, a third is refused, and what is known of one is that one's."""
    devices = [{"device_id": n, "name": f"GPU {n}"} for n in range(2)]
    info = {n: f"gpu-compute-capability: {8 + n}.0" for n in range(2)}
    driver = SimpleNamespace(query_available_devices=lambda: devices, dump_device_info=info.__getitem__)
    fake = SimpleNamespace(query_available_drivers=lambda: ["cuda"], get_driver=lambda name: driver)
    monkeypatch.setattr(drivers, "runtime", lambda: fake)
    for device in ("cuda", "cuda://0", "cuda://1"):
        require_device(device)
    assert find_gpu("cuda").capability == 80 and find_gpu("cuda://1").capability == 90
    with pytest.raises(TargetError, match=r"^device cuda://2: .* finds 2, numbered from 0$"):
        require_device("cuda://2")
    devices.clear()
    with pytest.raises(TargetError, match="finds none"):
        require_device("cuda")
