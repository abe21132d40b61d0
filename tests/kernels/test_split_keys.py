"""Keys split among workgroups and combined: against the reference, when it is done, and what inspection says of it."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import onnx_ir as ir
import pytest

from onnx_fa.errors import UnsupportedError
from onnx_fa.forms.plain import plain_model
from onnx_fa.iree.compile import compile_model
from onnx_fa.kernels.choose import emit_kernel
from onnx_fa.kernels.cpu.combine import PARTS, splits_of
from onnx_fa.kernels.cpu.few import emit_few
from onnx_fa.kernels.cpu.vector import VectorConfig, emit_vector
from onnx_fa.spec import target as targets
from onnx_fa.spec.attention import AttentionSpec
from onnx_fa.spec.switches import Switch
from onnx_fa.spec.target import parse_target
from onnx_fa.spec.terms import AddMask, BoolMask, Causal, SlidingWindow, TensorArg
from tests import fuzz
from tests.support.cases import FLOAT_MIN, draw_operands
from tests.support.kernel_harness import HOST, Kernels, indices_to_run, mismatch
from tests.support.random_specs import draw_specs

ANYWHERE = parse_target("cpu-avx512")
_FEW = AttentionSpec("f32", 2, 2, 2, 700, 32, 40, scale=0.2)
_MANY = dataclasses.replace(_FEW, Sq=70, Skv=333)


def _with(spec: AttentionSpec, **changes: object) -> AttentionSpec:
    layouts = dict.fromkeys(("q_layout", "k_layout", "v_layout", "o_layout"), ())
    return dataclasses.replace(spec, **layouts | changes)  # type: ignore[arg-type]


_SPECS = [
    _FEW,
    _with(_FEW, Skv=100, sink=TensorArg((2, 1, 1)), batch=(2,), q_layout=(0, 2, 1, 3), o_layout=(0, 2, 1, 3)),
    _with(_FEW, Hq=8, Sq=1, dtype="f16", masks=(SlidingWindow(300, 0, "end"),)),
    _with(_FEW, masks=(BoolMask((2, 1, 700)),), empty_row="guarded"),
    _with(_FEW, masks=(Causal(-1, FLOAT_MIN),), empty_row="mean"),
    _with(_FEW, Skv="t"),
    _MANY,
    _with(_MANY, masks=(Causal("end"),), sink=TensorArg((2, 1, 1))),
    _with(_MANY, masks=(Causal(-40, FLOAT_MIN), AddMask((70, 333))), empty_row="mean"),
    _with(_MANY, masks=(SlidingWindow(9, 3, 150),), empty_row="zero"),
    _with(_MANY, Sq=9, dtype="bf16", Hq=2, masks=(BoolMask((9, 333)),), empty_row="zero"),
    _with(_MANY, Sq=11, Skv="t"),
]
_SMALL_TILES = VectorConfig(4, 8, 16, 4, 2, 2)
_TILES = {11: VectorConfig(4, 12, 16, 4, 1, 1)}
"""By Sq: tiles of several vectors of queries of which the last reaches over the last query."""


@pytest.fixture(scope="module")
def compiled(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Kernels:
    emitted = []
    for i, spec in enumerate(_SPECS):
        emit = emit_few if spec.Sq in (1, 2) else emit_vector
        tiles = _TILES.get(spec.Sq, _SMALL_TILES if emit is emit_vector else None)  # type: ignore[call-overload]
        emitted.append(emit(spec, HOST, f"fa_case{i}", tiles, 3))  # type: ignore[operator]
    assert all(k.config["splits"] == 3 and k.text.count("_combine {") == 1 for k in emitted)
    return Kernels(emitted, tmp_path_factory.mktemp("split"), only=indices_to_run(request))


@pytest.mark.parametrize("index", range(len(_SPECS)))
def test_split(index: int, compiled: Kernels) -> None:
    for size in (1, 129, 700) if _SPECS[index].symbols else (0,):
        spec = _SPECS[index].bind({"t": size})
        for seed in range(2):
            operands = draw_operands(spec, seed, adversarial=seed == 1)
            assert mismatch(spec, operands, compiled.run(index, operands)) is None


@pytest.mark.parametrize(
    ("changes", "wanted"),
    [
        ({"Hq": 1, "Hkv": 1}, PARTS),
        ({"Hq": 255, "Hkv": 255}, PARTS),
        ({"Hq": 256, "Hkv": 256}, 1),
        ({"Hq": 64, "Hkv": 64, "Sq": 32}, 1),
        ({"Skv": 2048}, PARTS),
        ({"Skv": 2047}, 1),
        ({"Skv": "t"}, PARTS),
        ({"batch": ("b",)}, 1),
    ],
)
def test_when(changes: dict[str, object], wanted: int | str) -> None:
    assert splits_of(_with(_FEW, **{"Skv": 1 << 16} | changes), 8, ANYWHERE) == wanted


def test_when_for_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """A program for the machine at hand splits no keys that would be one part there, and so runs no second dispatch."""
    monkeypatch.setattr(targets.os, "cpu_count", lambda: 2)
    found = [splits_of(_with(_FEW, Hq=heads, Hkv=heads, Skv="t"), 8, HOST) for heads in (1, 7, 8, 64)]
    assert found == [PARTS, PARTS, 1, 1] and HOST.cores == 2 and ANYWHERE.cores is None
    off = dataclasses.replace(ANYWHERE, off=frozenset({Switch.SPLITTING}))
    assert splits_of(_with(_FEW, Hq=1, Hkv=1, Skv="t"), 8, off) == 1


def test_blocks_of_many_queries_are_split_where_they_are_few() -> None:
    specs = [_with(_FEW, Hq=8, Hkv=8, Sq=sq, Skv="t") for sq in (128, 3 * 128, 4 * 128, 2048)]
    assert [splits_of(spec, 128, ANYWHERE) for spec in specs] == [PARTS, PARTS, 1, 1]


def test_refused_where_parts_cannot_be_combined() -> None:
    for changes in ({"stats": ("lse",)}, {"batch": ("b",)}, {"Sq": "n"}):
        with pytest.raises(UnsupportedError, match="not split"):
            emit_vector(_with(_FEW, **changes), HOST, "fa", VectorConfig(4, 8, 16, 4, 1, 1), splits=2)


def test_random_attentions_split_keys() -> None:
    """Both with a known and with a dynamic number of keys, and with vectors of queries that reach over the last one."""
    made = []
    for chunk in range(6):
        for i, drawn in enumerate(draw_specs(fuzz.CHUNK, start=chunk)):
            if (i + chunk) % 3 == 1 and drawn.spec.Skv != 0:
                made += fuzz.kernels(i + chunk, fuzz.splittable(drawn).spec)
    split = [k for k in made if k.config.get("splits", 1) != 1]
    assert len(split) >= 20 and {k.body for k in split} == {"few", "vector"}
    assert sum(isinstance(k.spec.Skv, str) for k in split) >= 8
    assert any(k.config["BM"] > max(k.config["lanes"], k.spec.Sq) for k in split if k.body == "vector")  # type: ignore[operator, type-var]


def test_inspection_tells_the_second_dispatch(tmp_path: Path) -> None:
    spec = AttentionSpec("f32", 1, 1, 1, 4096, 16, 16, (1,), scale=0.25)
    assert emit_kernel(spec, HOST).config["splits"] == "by cores"
    model = tmp_path / "model.onnx"
    ir.save(plain_model(spec), model)
    done = compile_model(str(model), tmp_path / "model.vmfb", HOST)
    (site,) = done.sites
    assert (site.fused, site.dispatches) == (True, 2)
    assert site.largest_buffer_bytes is not None and site.largest_buffer_bytes < 4 * 4096 * 16
