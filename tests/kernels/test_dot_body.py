"""Products of bf16 in the vector kernel: of operands of bf16, and of others where they are asked for (`--bf16-dot`)."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from onnx_fa.cli.command import main
from onnx_fa.errors import TargetError, UnsupportedError
from onnx_fa.forms.plain import plain_model
from onnx_fa.iree.alone import entry_text
from onnx_fa.kernels.choose import emit_kernel, kernel_name
from onnx_fa.kernels.cpu.body import lane_body
from onnx_fa.kernels.cpu.vector import (
    STACK_BYTES,
    VectorConfig,
    default_config,
    emit_vector,
    multiplies_bf16,
    stack_bytes,
)
from onnx_fa.kernels.mlir.kernel import Kernel
from onnx_fa.spec import processor
from onnx_fa.spec.accuracy import BF16_PRODUCT, expect
from onnx_fa.spec.attention import AttentionSpec
from onnx_fa.spec.target import Target, parse_target
from onnx_fa.spec.terms import AddMask, Causal, Quantized
from tests import fuzz
from tests.support.cases import BY_NAME, draw_operands
from tests.support.kernel_harness import FLAGS, HOST, Kernels, indices_to_run, mismatch, run_iree_compile

AVX512 = parse_target("cpu-avx512", bf16_dot=True)
CASES = (
    "causal", "window_both", "gqa_mask_per_head", "softcap_window_gqa", "sink", "empty_zero_bool", "head_dim_40",
    "k_bhds_from_bshd", "all_transposed", "bf16_causal_gqa", "f16_mask", "lse_max_causal", "gathered", "dyn_all",
)  # fmt: skip


def _host() -> Target:
    try:
        return parse_target("cpu-host", bf16_dot=True)
    except TargetError as why:
        pytest.skip(str(why))


def _spec(**changes: object) -> AttentionSpec:
    fields: dict[str, object] = {
        "dtype": "f32",
        "Hq": 2,
        "Hkv": 2,
        "Sq": 40,
        "Skv": 70,
        "D": 32,
        "Dv": 32,
        "scale": 0.18,
    }
    return AttentionSpec(**{**fields, **changes})  # type: ignore[arg-type]


def _emit(index: int) -> Kernel:
    """One in seven has the tiles that users get: the others compile in a third of the time, and have more edges."""
    spec, host = BY_NAME[CASES[index]].spec, _host()
    users = default_config(spec, host)
    tiles = VectorConfig(users.lanes, users.lanes, 16, 4, min(3, spec.Dv), 2)
    return emit_vector(spec, host, f"fa_dot{index}", tiles if index % 7 else None)


@pytest.fixture(scope="module")
def compiled(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Kernel], Kernels]:
    kernels = list(map(_emit, range(len(CASES))))
    return kernels, Kernels(kernels, tmp_path_factory.mktemp("dot"), only=indices_to_run(request))


@pytest.mark.parametrize("adversarial", [False, True])
@pytest.mark.parametrize("index", range(len(CASES)), ids=CASES)
def test_case(compiled: tuple[list[Kernel], Kernels], index: int, adversarial: bool) -> None:
    case, kernel = BY_NAME[CASES[index]], compiled[0][index]
    assert kernel.lossy == ("" if case.spec.dtype == "bf16" else "bf16 dot") and "dpbf16ps" in kernel.text
    assert kernel.config["products"] == "bf16"
    for spec in case.bound():
        operands = draw_operands(spec, 1, adversarial=adversarial)
        assert mismatch(spec, operands, compiled[1].run(index, operands), kernel.lossy) is None


def test_only_rounds_to_bf16(tmp_path: Path) -> None:
    """Operands that bf16 holds, and probabilities that it holds, are multiplied exactly; what f32 would show is rounded."""
    spec = _spec(Sq=32, Skv=64)
    run = Kernels([emit_vector(spec, _host(), "fa_dot")], tmp_path)
    rng = np.random.default_rng(0)
    q, k = np.zeros((2, 2, 32, 32), np.float32)[:, :, :32], rng.standard_normal((2, 64, 32), dtype=np.float32)
    v = rng.integers(-128, 128, (2, 64, 32)).astype(np.float32)
    np.testing.assert_allclose(
        run.run(0, [q[0], k, v])[0], np.broadcast_to(v.mean(1, keepdims=True), v[:, :32].shape), 0, 2e-5
    )
    operands = draw_operands(spec, 0)
    error = expect(spec, operands).compare(run.run(0, operands)[0]).error
    assert 1e-4 < error < BF16_PRODUCT


def test_an_infinite_value_of_the_last_key(tmp_path: Path) -> None:
    """It shows as it is, in whichever half of a pair it lies and in each layout; rows of the tile past it are multiplied by 0."""
    small = _spec(Sq=5, Skv=7, D=8, Dv=8)
    specs = (small, _spec(Sq=5, Skv="t", D=8, Dv=8), dataclasses.replace(small, v_layout=(0, 2, 1)))
    specs += (dataclasses.replace(small, dtype="bf16"),)
    tiles = VectorConfig(4, 4, 4, 4, 1, 1)
    run = Kernels([emit_vector(spec, _host(), f"fa_dot_last{i}", tiles) for i, spec in enumerate(specs)], tmp_path)
    for i, spec in enumerate(specs):
        for keys in (6, 7) if spec.Skv == "t" else (7,):
            bound = spec.bind({"t": keys})
            operands = draw_operands(bound, 0)
            np.moveaxis(operands[2], spec.v_layout.index(1), 0)[-1, :, 3] = np.inf
            assert mismatch(bound, operands, run.run(i, operands), "bf16 dot") is None


def test_random_specs() -> None:
    """More by hand: `python -m tests.fuzz --products bf16`."""
    _host()
    done = fuzz.run_chunk(0, 3, products="bf16")
    assert done["wrong"] == [] and done["refused"] == [] and done["kernels"] == 3


def test_compiles_to_the_instruction(tmp_path: Path) -> None:
    """For a processor that this machine need not be."""
    kernel = emit_kernel(_spec(dtype="bf16", masks=(Causal(),)), AVX512)
    flags = (*kernel.flags, *FLAGS, f"--iree-hal-dump-executable-intermediates-to={tmp_path}")
    run_iree_compile(kernel.text + entry_text(kernel, "main"), tmp_path / "m.vmfb", flags, AVX512)
    code = "".join(f.read_text() for f in tmp_path.glob("*.s"))
    assert code.count("vdpbf16ps") > 30 and "vcvtne2ps2bf16" in code


def test_who_has_them(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("cpu-avx2", "cpu-neon", "cuda", "vulkan"):
        with pytest.raises(TargetError, match=f"the target {name} has none"):
            parse_target(name, bf16_dot=True)
    monkeypatch.setattr(processor, "cpu_features", lambda: frozenset("avx2 avx512f".split()))
    with pytest.raises(TargetError, match="this processor has no AVX512_BF16"):
        parse_target("cpu-host", bf16_dot=True)
    monkeypatch.setattr(processor, "cpu_features", lambda: frozenset("avx2 avx512f avx512_bf16".split()))
    assert parse_target("cpu-host", bf16_dot=True).lossy == "bf16 dot"
    half, single = _spec(dtype="bf16"), _spec()
    assert multiplies_bf16(half, parse_target("cpu-host")) and not multiplies_bf16(single, parse_target("cpu-host"))
    assert not multiplies_bf16(dataclasses.replace(half, D=33), parse_target("cpu-host"))
    for slow in ("avx2 avx512f", "avx2 avx512f avx512_bf16 avx512_vnni amx_tile amx_bf16 amx_int8"):
        monkeypatch.setattr(processor, "cpu_features", lambda slow=slow: frozenset(slow.split()))
        assert not multiplies_bf16(half, parse_target("cpu-host"))


@pytest.mark.parametrize(
    "spec",
    [_spec(D=33), _spec(D=6), _spec(Dv=3), _spec(k_quant=Quantized("i8", (1, 1, 1)))],
    ids=["odd", "narrow", "narrow v", "int8"],
)
def test_what_has_none_is_computed_as_ever(spec: AttentionSpec) -> None:
    asked, plain = emit_vector(spec, AVX512, "fa_x"), emit_vector(spec, parse_target("cpu-avx512"), "fa_x")
    assert asked == plain and asked.lossy == ""


def test_few_queries_stay_f32() -> None:
    kernel = emit_kernel(_spec(Sq=1), AVX512)
    assert (kernel.body, kernel.lossy) == ("few", "")
    assert kernel_name(_spec(), AVX512) != kernel_name(_spec(), parse_target("cpu-avx512"))


def test_tiles() -> None:
    with pytest.raises(UnsupportedError, match="do not fit head dims 16 and 32"):
        lane_body(_spec(D=16), VectorConfig(16, 32, 64, 8, 8, 4), bf16=True)
    with pytest.raises(UnsupportedError, match="do not fit"):
        lane_body(_spec(), VectorConfig(16, 32, 63, 3, 3, 4), bf16=True)
    for d in (8, 16, 40, 64, 128, 256, 512):
        spec = _spec(D=d, Dv=d, masks=(AddMask((40, 70)),))
        config = default_config(spec, AVX512)
        assert stack_bytes(spec, config, dots=True) <= STACK_BYTES and d // 2 >= config.lanes


def test_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    onnx.save(ir.to_proto(plain_model(_spec())), tmp_path / "m.onnx")
    report = tmp_path / "r.json"
    command = ["import", str(tmp_path / "m.onnx"), "-o", str(tmp_path / "m.mlir"), "--report", str(report)]
    for more, lossy in (([], ""), (["--bf16-dot"], "bf16 dot")):
        assert main([*command, "--target", "cpu-avx512", *more]) == 0
        assert [s["lossy"] for s in json.loads(report.read_text())["sites"]] == [lossy]
    assert "bf16 dot in 1 sites; `onnx-fa verify --bf16-dot` says" in capsys.readouterr().err
    assert main([*command, "--target", "cpu-avx2", "--bf16-dot"]) == 2
    shown = capsys.readouterr().err
    assert "the target cpu-avx2 has none" in shown and shown.count("\n") == 1


def test_verify(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The compiled model has a tolerance of its own, the rewritten one that of f32; how far outputs move is said."""
    _host()
    onnx.save(ir.to_proto(plain_model(_spec())), tmp_path / "m.onnx")
    assert main(["verify", str(tmp_path / "m.onnx"), "--seeds", "1", "--bf16-dot", "-q"]) == 0
    shown = capsys.readouterr().out
    assert "bf16 dot in 1 sites: output out differs by" in shown
    rewritten = next(line for line in shown.splitlines() if line.startswith("rewritten: output"))
    assert float(rewritten.split()[5]) < 2e-4


def test_host_without_asking_is_exact() -> None:
    assert "bf16" not in emit_vector(_spec(), HOST, "fa_x").text
