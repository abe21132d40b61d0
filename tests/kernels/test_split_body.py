"""Attention of f32 by AMX, whose numbers are split into three of bf16, and by vectors in the same dispatch where they have no such
parts, and where the processor gives no tiles: what this machine has runs."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from onnx_fa.errors import UnsupportedError
from onnx_fa.iree.alone import entry_text
from onnx_fa.iree.stock_road import emit_stateless
from onnx_fa.kernels.choose import emit_kernel
from onnx_fa.kernels.cpu.split import emit_with, split_config, split_stack_bytes
from onnx_fa.kernels.cpu.tiles import VectorConfig
from onnx_fa.kernels.cpu.vector import STACK_BYTES, emit_vector
from onnx_fa.kernels.mlir.kernel import Kernel
from onnx_fa.kernels.mlir.vectors import WHOLE_EXP2_POWERS
from onnx_fa.spec import processor
from onnx_fa.spec.attention import AttentionSpec
from onnx_fa.spec.reference import attention
from onnx_fa.spec.target import foreign_cpu, parse_target
from onnx_fa.spec.terms import AddMask, Causal, Quantized, SlidingWindow, TensorArg
from tests import fuzz
from tests.support.cases import draw_operands
from tests.support.kernel_harness import FLAGS, Array, Kernels, indices_to_run, mismatch, run_iree_compile

AMX = parse_target("cpu-amx")
here = pytest.mark.skipif(bool(foreign_cpu(AMX)), reason=foreign_cpu(AMX))


def _spec(**changes: object) -> AttentionSpec:
    fields: dict[str, object] = {
        "dtype": "f32",
        "Hq": 2,
        "Hkv": 2,
        "Sq": 64,
        "Skv": 96,
        "D": 32,
        "Dv": 32,
        "scale": 0.18,
    }
    return AttentionSpec(**{**fields, **changes})  # type: ignore[arg-type]


PLAIN, LONGER = "whole tiles", "any length"
CASES = {
    PLAIN: _spec(),
    LONGER: _spec(Sq="s", Skv="t", D=48, Dv=16),
    "nothing divides": _spec(Sq=100, Skv=133, D=80, Dv=48),
    "causal": _spec(Sq=150, Skv=150, masks=(Causal(),)),
    "window": _spec(Sq=150, Skv=150, masks=(SlidingWindow(20, 0),)),
    "mask": _spec(Sq=70, Skv=90, masks=(AddMask((1, 70, 90)),)),
    "groups": _spec(Hq=4, Hkv=2),
    "keys in parts": _spec(Hq=1, Hkv=1, Sq=32, Skv=4096),
    "statistic": _spec(stats=("lse",)),
    "wide": _spec(D=128, Dv=128),
}
SMALL = VectorConfig(16, 64, 64, 32, 32, 4), VectorConfig(16, 32, 32, 32, 32, 4), VectorConfig(16, 96, 32, 32, 32, 4)
"""Of several parts and whole blocks, of one part, and of blocks that one part works at while another's are multiplied."""
SIZES = ({"s": 1, "t": 3}, {"s": 33, "t": 64}, {"s": 64, "t": 128}, {"s": 197, "t": 133})


@pytest.fixture(scope="module")
def compiled(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Kernel], Kernels]:
    kernels = [emit_with(spec, AMX, f"fa_split{i}", SMALL[i % 3]) for i, spec in enumerate(CASES.values())]
    return kernels, Kernels(kernels, tmp_path_factory.mktemp("split"), AMX, only=indices_to_run(request))


@here
@pytest.mark.parametrize("index", range(len(CASES)), ids=list(CASES))
def test_case(compiled: tuple[list[Kernel], Kernels], index: int) -> None:
    """Within f32's tolerance, adversarial operands too."""
    spec, kernel = list(CASES.values())[index], compiled[0][index]
    assert kernel.body == "split" and not kernel.lossy and kernel.tuning.startswith("built in: ")
    for size in SIZES if spec.symbols else [{}]:
        bound = spec.bind(size)
        for adversarial in (False, True):
            operands = draw_operands(bound, 1, adversarial=adversarial)
            assert mismatch(bound, operands, compiled[1].run(index, operands)) is None


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Kernels:
    """The plain case by tiles and by vectors alone."""
    kernels = [emit_with(CASES[PLAIN], AMX, "fa_tiles", SMALL[0]), emit_vector(CASES[PLAIN], AMX, "fa_vectors")]
    return Kernels(kernels, tmp_path_factory.mktemp("both"), AMX)


def _operands(seed: int) -> list[npt.NDArray[np.float32]]:
    rng = np.random.default_rng(seed)
    return [rng.standard_normal(shape).astype(np.float32) for shape in CASES[PLAIN].operand_shapes]


@here
def test_as_near_as_sums_of_f32(both: Kernels) -> None:
    """To float64, over several draws: products of split numbers leave out less than sums of f32 round."""
    errors: list[list[float]] = [[], []]
    for seed in range(8):
        operands = _operands(seed)
        want = attention(CASES[PLAIN], *operands)
        for found, index in zip(errors, range(2), strict=True):
            found.append(float(np.abs(_first(both.run(index, operands)) - want).max()))
    assert max(errors[0]) < 1.5 * max(errors[1]) and max(errors[0]) < 1e-6


def _first(results: Array | list[Array]) -> npt.NDArray[np.float64]:
    return np.asarray(results[0] if isinstance(results, list) else results, np.float64)


@here
@pytest.mark.parametrize("operand", range(3), ids=["q", "k", "v"])
@pytest.mark.parametrize("number", [np.inf, -np.inf, np.nan, 3e38, 2.0**25, 2.0**-110, 2.0**-140])
def test_numbers_without_parts(both: Kernels, operand: int, number: float) -> None:
    """Blocks that have them are multiplied by vectors: the result is theirs, whatever that is."""
    operands = _operands(3)
    operands[operand][1, 40, 5] = number
    if abs(number) < 1:  # alone in a column it is all that there is
        operands[operand][1, :, 5] = number
    tiles, vectors = (_first(both.run(i, operands)) for i in range(2))
    np.testing.assert_allclose(tiles, vectors, rtol=2e-5, atol=1e-6, equal_nan=True)
    if operand == 2 and abs(number) < 1:
        column = np.s_[1, :, 5]
        np.testing.assert_allclose(tiles[column], vectors[column], rtol=1e-6)


@here
def test_an_infinite_value_of_the_last_key(tmp_path: Path) -> None:
    """It shows as it is; what lies past it in the tile is multiplied by 0."""
    for i, keys in enumerate((65, 96)):
        spec = _spec(Skv=keys)
        run = Kernels([emit_with(spec, AMX, f"fa_last{i}", SMALL[1])], tmp_path, AMX)
        operands = draw_operands(spec, 0)
        operands[2][:, -1, 3] = np.inf
        assert mismatch(spec, operands, run.run(0, operands)) is None


@here
def test_random_specs() -> None:
    """More by hand: `python -m tests.fuzz --products split`."""
    done = fuzz.run_chunk(0, 2, products="split")
    assert done["wrong"] == [] and done["refused"] == [] and done["kernels"] == 2


def test_compiles_to_both(tmp_path: Path) -> None:
    """One dispatch with the tiles' instructions and those of vectors, for a processor that this machine need not be; no buffer of
    Sq x Skv. What workers keep belongs to the site."""
    kernel = emit_with(_spec(Sq=90, Skv=200, masks=(Causal(),)), AMX, "fa_both", SMALL[1])
    flags = (*kernel.flags, *FLAGS, f"--iree-hal-dump-executable-intermediates-to={tmp_path}")
    run_iree_compile(kernel.text + entry_text(kernel, "main"), tmp_path / "m.vmfb", flags, AMX)
    assert kernel.text.count("flow.executable private") == 1 and "90x200x" not in kernel.text
    assert set(re.findall(r"util\.global private mutable @(\w+)", kernel.text)) == {"fa_both_slots", "fa_both_memory"}
    code = "".join(f.read_text() for f in tmp_path.glob("*.s"))
    for instruction in ("syscall", "ldtilecfg", "tdpbf16ps", "tilestored", "tilerelease", "vfmadd"):
        assert instruction in code, instruction


@here
@pytest.mark.parametrize("cores", [2, 3])
def test_workgroups_are_spread(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, cores: int) -> None:
    """Some of the workgroups are empty, so that workers have alike: the others have each query once, whoever runs them."""
    monkeypatch.setattr("os.cpu_count", lambda: cores)
    host = replace(AMX, name="cpu-host")
    free = _spec(batch=("b",), Hq=3, Hkv=3, Sq="s", Skv="s", masks=(Causal(),))
    known = _spec(Hq=3, Hkv=3, Sq=197 if cores == 2 else 320)
    kernels = [emit_with(spec, host, f"fa_spread{i}", SMALL[1]) for i, spec in enumerate((free, known))]
    assert all("%blocks: index" in x.text for x in kernels), "the known lengths are such that it pays"
    alike = emit_with(_spec(Hq=4, Hkv=4, Sq=256), host, "fa_alike", SMALL[1])
    assert cores != 2 or "%blocks: index" not in alike.text, "32 workgroups of two workers"
    run = Kernels(kernels, tmp_path, AMX)
    for b, s in ((1, 30), (1, 150), (1, 197), (4, 100), (2, 400)):
        bound = free.bind({"b": b, "s": s})
        operands = draw_operands(bound, 1)
        assert mismatch(bound, operands, run.run(0, operands)) is None, (b, s)
    operands = draw_operands(known, 1)
    assert mismatch(known, operands, run.run(1, operands)) is None
    nothing = [x[:0] for x in draw_operands(free.bind({"b": 1, "s": 30}), 1)]
    assert _first(run.run(0, nothing)).shape == (0, 3, 30, 32)


def test_who_has_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs for a processor with tiles and a few cores. Others, whose tiles may be another's, multiply by vectors."""
    flags = ["avx2", "avx512f", "avx512_bf16", "avx512_vnni", "amx_tile", "amx_int8", "amx_bf16"]
    monkeypatch.setattr(processor, "cpu_features", lambda: frozenset(flags))
    spec = _spec(Sq=128, Skv=128)
    for cores, body in ((2, "split"), (4, "split"), (16, "vector")):
        monkeypatch.setattr("os.cpu_count", lambda cores=cores: cores)
        assert emit_kernel(spec, parse_target("cpu-host")).body == body
    assert emit_kernel(spec, AMX).body == "vector"
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    assert emit_kernel(spec, parse_target("cpu-host", "iree")).body == "vector"
    assert emit_kernel(spec, parse_target("cpu-host", bf16_dot=True)).body == "amx"
    assert emit_stateless(spec, parse_target("cpu-host")).body == "vector"
    assert emit_stateless(_spec(Sq=1), parse_target("cpu-host")).body == "few"
    for lengths in ({"Sq": 60}, {"Skv": 50}, {"Skv": 77}):
        assert emit_kernel(_spec(**{"Sq": 512, "Skv": 512, **lengths}), parse_target("cpu-host")).body == "vector"


@pytest.mark.parametrize(
    ("spec", "why"),
    [
        (_spec(D=40), "do not fill tiles"),
        (_spec(Dv=40), "do not fill tiles"),
        (_spec(D=256, Dv=256), "bytes of stack"),
        (_spec(v_layout=(0, 2, 1)), "transposed"),
        (_spec(q_layout=(0, 2, 1)), "transposed"),
        (_spec(k_quant=Quantized("i8", (1, 1, 1))), "integers"),
        (_spec(dtype="f16"), "are f16"),
        (_spec(weights=TensorArg((1, 64, 96))), "multiplied"),
    ],
)
def test_refused(spec: AttentionSpec, why: str) -> None:
    with pytest.raises(UnsupportedError, match=why):
        emit_with(spec, AMX, "fa_x")


def test_tiles() -> None:
    """The largest that fit, and such that workers get done first: of 24 workgroups one of two workers would have 16."""
    for D in (32, 64, 80, 96, 128):
        config = split_config(_spec(D=D, Dv=D, Sq=512), (2,))
        assert split_stack_bytes(_spec(D=D, Dv=D), config) <= STACK_BYTES and config.BM % 32 == config.BK % 32 == 0
    heads = {"Hq": 12, "Hkv": 12, "D": 64, "Dv": 64, "Skv": 512}
    assert [split_config(_spec(Sq=n, **heads), (2,)).BM for n in (197, 256, 512, 64)] == [224, 256, 256, 64]
    assert split_config(_spec(Sq="s"), (2,)).BM == 128
    with pytest.raises(UnsupportedError, match="bytes of stack"):
        emit_with(_spec(D=64, Dv=64), AMX, "fa_x", VectorConfig(16, 512, 64, 32, 32, 4))


def test_exponentials() -> None:
    """A polynomial between two instructions of AVX-512 is exact at whole numbers, and as near as f32 is elsewhere."""
    assert f"{WHOLE_EXP2_POWERS[-1]:.9e}" in emit_with(_spec(), AMX, "fa_x", SMALL[1]).text
    x = np.linspace(0.0, 1.0, 100001, dtype=np.float32)
    power = np.full_like(x, WHOLE_EXP2_POWERS[-1])
    for c in WHOLE_EXP2_POWERS[-2::-1]:
        power = (power.astype(np.float64) * x + np.float32(c)).astype(np.float32)
    assert power[0] == 1 and np.max(np.abs(power / 2.0 ** x.astype(np.float64) - 1)) < 1.6e-7
