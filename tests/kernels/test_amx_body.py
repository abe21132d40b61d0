"""Products by AMX's tiles, and by AVX512_BF16 in the same dispatch where the processor gives none: what this machine has runs."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from onnx_fa.errors import UnsupportedError
from onnx_fa.iree.alone import entry_text
from onnx_fa.kernels.choose import emit_kernel
from onnx_fa.kernels.cpu import amx
from onnx_fa.kernels.cpu.amx_products import key_bytes
from onnx_fa.kernels.cpu.tiled import emit_tiled, tiled_config, tiled_stack_bytes
from onnx_fa.kernels.cpu.tiles import VectorConfig
from onnx_fa.kernels.cpu.vector import STACK_BYTES
from onnx_fa.kernels.mlir.kernel import Kernel
from onnx_fa.kernels.mlir.text import Text
from onnx_fa.kernels.mlir.vectors import ROUGH_EXP2_POWERS, WHOLE_EXP2_POWERS
from onnx_fa.spec import processor
from onnx_fa.spec.attention import AttentionSpec
from onnx_fa.spec.target import foreign_cpu, parse_target
from onnx_fa.spec.terms import AddMask, Causal, Quantized, SlidingWindow
from tests import fuzz
from tests.support.cases import draw_operands
from tests.support.kernel_harness import FLAGS, Kernels, indices_to_run, mismatch, run_iree_compile
from tests.support.sampled import parameters

AMX = parse_target("cpu-amx")
here = pytest.mark.skipif(bool(foreign_cpu(AMX)), reason=foreign_cpu(AMX))


def _spec(**changes: object) -> AttentionSpec:
    fields: dict[str, object] = {
        "dtype": "bf16",
        "Hq": 2,
        "Hkv": 2,
        "Sq": 128,
        "Skv": 256,
        "D": 64,
        "Dv": 64,
        "scale": 0.125,
    }
    return AttentionSpec(**{**fields, **changes})  # type: ignore[arg-type]


CASES = {
    "whole tiles": _spec(),
    "nothing divides": _spec(Sq=100, Skv=133, D=80, Dv=48),
    "causal": _spec(Skv=128, masks=(Causal(),)),
    "window": _spec(Sq=150, Skv=150, masks=(SlidingWindow(20, 0),)),
    "mask": _spec(Sq=70, Skv=90, masks=(AddMask((1, 70, 90)),)),
    "groups": _spec(Hq=4, Hkv=2, Sq=60),
    "few queries": _spec(Sq=20, Skv=40),
    "split": _spec(Hq=1, Hkv=1, Sq=32, Skv=4096),
    "wide": _spec(D=128, Dv=128, Sq=96, Skv=64),
    "any length": _spec(Sq="s", Skv="t"),
    "statistic": _spec(stats=("lse",), Sq=64, Skv=64),
}
MORE = ("whole tiles", "window", "wide", "statistic")
"""Cases of which every run tries another with the same parts: two bodies for two processors take seconds each."""
USERS = "causal"
"""The case that has the tiles that users get, with `--whole` as all others. Small ones compile in a fifth of the time and have more
edges."""
SMALL = VectorConfig(16, 32, 32, 32, 32, 4), VectorConfig(16, 64, 64, 32, 32, 4)
KEPT = [i for i, name in enumerate(CASES) if name not in MORE]


@pytest.fixture(scope="module")
def compiled(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Kernel], Kernels]:
    whole = request.config.getoption("whole")
    kernels = [
        emit_tiled(spec, AMX, f"fa_amx{i}", None if whole or name == USERS else SMALL[i % 5 == 1])
        for i, (name, spec) in enumerate(CASES.items())
    ]
    return kernels, Kernels(kernels, tmp_path_factory.mktemp("amx"), AMX, only=indices_to_run(request))


@here
@pytest.mark.parametrize("adversarial", [False, True])
@pytest.mark.parametrize("index", parameters(range(len(CASES)), list(CASES), KEPT))
def test_case(compiled: tuple[list[Kernel], Kernels], index: int, adversarial: bool) -> None:
    """Within bf16's own tolerance: nothing is asked for that changes results."""
    spec, kernel = list(CASES.values())[index], compiled[0][index]
    assert kernel.body == "amx" and not kernel.lossy
    sizes = [{"s": 1, "t": 3}, {"s": 200, "t": 133}] if spec.symbols else [{}]
    for size in sizes:
        bound = spec.bind(size)
        operands = draw_operands(bound, 1, adversarial=adversarial)
        assert mismatch(bound, operands, compiled[1].run(index, operands)) is None


@here
def test_an_infinite_value_of_the_last_key(tmp_path: Path) -> None:
    """It shows as it is; what lies past it in the tile is multiplied by 0."""
    for i, keys in enumerate((33, 64)):
        spec = _spec(Sq=40, Skv=keys, D=32, Dv=16)
        run = Kernels([emit_tiled(spec, AMX, f"fa_last{i}")], tmp_path, AMX)
        operands = draw_operands(spec, 0)
        operands[2][:, -1, 3] = np.inf
        assert mismatch(spec, operands, run.run(0, operands)) is None


@here
def test_random_specs() -> None:
    """More by hand: `python -m tests.fuzz --products amx`."""
    done = fuzz.run_chunk(0, 1, products="amx")
    assert done["wrong"] == [] and done["refused"] == [] and done["kernels"] == 1


def test_compiles_to_both(tmp_path: Path) -> None:
    """One dispatch with the tiles' instructions and those of vectors, for a processor that this machine need not be; no buffer of
    Sq x Skv."""
    kernel = emit_kernel(_spec(Sq=30, Skv=200, D=32, Dv=32, masks=(Causal(),)), AMX)
    assert kernel.body == "amx"
    flags = (*kernel.flags, *FLAGS, f"--iree-hal-dump-executable-intermediates-to={tmp_path}")
    run_iree_compile(kernel.text + entry_text(kernel, "main"), tmp_path / "m.vmfb", flags, AMX)
    assert kernel.text.count("flow.executable private") == 1 and "30x200x" not in kernel.text
    code = "".join(f.read_text() for f in tmp_path.glob("*.s"))
    for instruction in ("syscall", "ldtilecfg", "tdpbf16ps", "tilestored", "tilerelease", "vdpbf16ps"):
        assert instruction in code, instruction


def test_who_has_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """A processor is taken as its features say, whatever its name; what is not bf16 is multiplied so only where that is asked."""
    flags = "avx2 avx512f avx512_bf16 avx512_vnni amx_tile amx_int8".split()
    monkeypatch.setattr(processor, "cpu_features", lambda: frozenset({*flags, "amx_bf16"}))
    host = parse_target("cpu-host")
    assert host.amx and emit_kernel(_spec(), host).body == "amx"
    monkeypatch.setattr(processor, "cpu_features", lambda: frozenset(flags))
    assert not parse_target("cpu-host").amx and emit_kernel(_spec(), parse_target("cpu-host")).body == "vector"
    f32 = _spec(dtype="f32")
    assert emit_kernel(f32, AMX).body == "vector"
    asked = emit_kernel(f32, parse_target("cpu-amx", bf16_dot=True))
    assert asked.body == "amx" and asked.lossy == "bf16 dot"
    assert emit_kernel(_spec(), parse_target("cpu-amx", "iree")).body == "vector"
    assert emit_kernel(_spec(Sq=1), AMX).body == "few"


def test_foreign(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processor, "cpu_features", lambda: frozenset("avx2 avx512f".split()))
    assert foreign_cpu(AMX) == "this machine's processor has no AVX512_BF16"


@pytest.mark.parametrize(
    ("spec", "why"),
    [
        (_spec(D=16), "do not fill tiles"),
        (_spec(Dv=40), "do not fill tiles"),
        (_spec(v_layout=(0, 2, 1)), "transposed"),
        (_spec(k_quant=Quantized("i8", (1, 1, 1))), "integers"),
        (_spec(D=512, Dv=512), "bytes of stack"),
    ],
)
def test_refused(spec: AttentionSpec, why: str) -> None:
    with pytest.raises(UnsupportedError, match=why):
        emit_tiled(spec, AMX, "fa_x")
    assert emit_kernel(spec, AMX).body != "amx"


def test_tiles() -> None:
    """The largest that fit, of no more queries than there are; tiles that need more are refused."""
    for D in (32, 64, 80, 96, 128, 192, 256):
        spec = _spec(D=D, Dv=D, Sq=512)
        config = tiled_config(spec)
        assert tiled_stack_bytes(spec, config) <= STACK_BYTES and config.BM % 32 == config.BK % 32 == 0
    assert [tiled_config(_spec(Sq=n)).BM for n in (512, 100, 64, 33, 8)] == [128, 128, 64, 64, 32]
    with pytest.raises(UnsupportedError, match="bytes of stack"):
        emit_tiled(_spec(), AMX, "fa_x", VectorConfig(16, 256, 128, 32, 32, 4))


def test_exponentials() -> None:
    """Those that become bf16 need no more than its accuracy; a statistic is f32."""
    texts = [emit_tiled(_spec(stats=stats), AMX, "fa_x").text for stats in ((), ("lse",))]
    rough, exact = (f"{x:.9e}" for x in (ROUGH_EXP2_POWERS[-1], WHOLE_EXP2_POWERS[-1]))
    assert [rough in text for text in texts] == [True, False] and [exact in text for text in texts] == [False, True]
    x = np.linspace(0.0, 1.0, 10001)
    power = sum(c * x**n for n, c in enumerate(ROUGH_EXP2_POWERS))
    assert np.max(np.abs(power / 2**x - 1)) < 1.1e-4


def test_keys_are_read_in_place() -> None:
    """Where rows of bf16 fill tiles, at a distance that is known, K's address is asked for, and rows are as far from each other as
    they are stored; else K is copied, a block at a time."""
    by_heads = (0, 2, 1, 3)
    shape = {"batch": (1,), "Skv": 333}
    assert key_bytes(_spec()) == 128 and key_bytes(_spec(**shape, k_layout=by_heads)) == 256
    assert key_bytes(_spec(D=80, Dv=48)) is key_bytes(_spec(dtype="f32")) is None
    assert key_bytes(_spec(Hq="h", Hkv="h", k_layout=(1, 0, 2))) is None
    for spec, pairs in ((_spec(D=128, Dv=128), 64), (_spec(D=80, Dv=48), 48)):
        text, in_place = emit_tiled(spec, AMX, "fa_x").text, spec.D == 128
        assert ("fa_x_attention_address" in text) == in_place
        assert f"memref<{32 if in_place else tiled_config(spec).BK}x{pairs}xf32>" in text


def test_the_units_text() -> None:
    """Permission is asked for once; factors are where they are said to be; every use is behind the question."""
    t = Text()
    unit = amx.TileUnit(t)
    unit.clear(2, 1)
    unit.add_product(amx.Tile("%a", 128, 64).below(2), amx.Tile("%b", 256, 8192), 2)
    unit.add_product([amx.Tile("%d", 128, 64)], amx.Tile("%b", 256), 1)
    unit.store(amx.Tile("%c", 256), 1, 2)
    unit.release()
    text = "\n".join(t.render())
    assert text.count('att "syscall"') == 1
    assert 'att "tilezero %tmm0; tilezero %tmm2"' in text
    assert "tileloadd 64($0,$3,1), %tmm4; tileloadd 2112($1,$3,1), %tmm5" in text
    assert "tileloadd 8192($2,$4,1), %tmm6; tileloadd 8256($2,$4,1), %tmm7" in text
    assert "tileloadd 64($0,$2,1), %tmm4; tileloadd 0($1,$3,1), %tmm6; tdpbf16ps %tmm6, %tmm4, %tmm0" in text
    assert "tdpbf16ps %tmm7, %tmm5, %tmm3" in text
    assert "tilestored %tmm0, 0($0,$1,1); tilestored %tmm1, 64($0,$1,1)" in text
    (config,) = re.findall(r"dense<\[([\d, ]+)\]> : vector<64xi8>", text)
    numbers = [int(x) for x in config.split(",")]
    assert numbers[0] == 1 and numbers[16:32:2] == [64] * 8 and numbers[48:56] == [16] * 8 and sum(numbers) == 641
    guarded = re.findall(r"scf\.if (%\w+) \{\n[^\n]*(ldtilecfg|tilerelease)", text)
    assert guarded == [(unit.granted, "ldtilecfg"), (unit.granted, "tilerelease")]
