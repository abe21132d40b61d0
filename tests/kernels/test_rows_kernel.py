"""A few queries of heads that lie side by side in K and V: against the reference, and when that body is chosen."""

from __future__ import annotations

import dataclasses

import pytest

from onnx_fa.errors import UnsupportedError
from onnx_fa.kernels.choose import emit_kernel
from onnx_fa.kernels.cpu.rows import emit_rows, heads_of_rows
from onnx_fa.spec.attention import AttentionSpec
from onnx_fa.spec.switches import Switch
from onnx_fa.spec.target import parse_target
from onnx_fa.spec.terms import AddMask, BoolMask, Causal, Quantized, SlidingWindow, TensorArg
from tests.support.cases import draw_operands
from tests.support.kernel_harness import HOST, Kernels, indices_to_run, mismatch

_ROWS = (2, 0, 1, 3)
_SPEC = AttentionSpec("f32", 6, 2, 1, "t", 32, 16, batch=(1,), k_layout=_ROWS, v_layout=_ROWS)


def _with(**changes: object) -> AttentionSpec:
    layouts = dict.fromkeys(("q_layout", "o_layout"), ())
    return dataclasses.replace(_SPEC, **layouts | changes)  # type: ignore[arg-type]


def _integers(k: Quantized, v: Quantized, **changes: object) -> AttentionSpec:
    return _with(**{"Hq": 4, "D": 64, "Dv": 32, "k_quant": k, "v_quant": v} | changes)


_CASES = [
    (_SPEC, None),
    (_with(masks=(SlidingWindow(100, 0, "end"),), batch=(2,), k_layout=(0, 2, 1, 3), v_layout=(0, 2, 1, 3)), 3),
    (_with(Hq=4, Sq=2, masks=(Causal("end"), BoolMask((1, 1, 1, "t"))), empty_row="zero"), 3),
    (_with(dtype="f16", masks=(AddMask((1, 6, 1, "t")),), sink=TensorArg((6, 1, 1))), 2),
    (_with(dtype="bf16", Hq=16, Hkv=16, Skv=200), None),
    (_with(Skv=70), 1),
    (_with(batch=(32,)), 2),  # each key in a page of its own
    (_integers(Quantized("i8", ("t", 1, 2, 1)), Quantized("u8", ("t", 1, 2, 2), True)), None),
    (_integers(Quantized("u4", ("t", 1, 2, 2), True), Quantized("i8", (1, 1, 2, 1), True), dtype="f16"), 2),
    (_integers(Quantized("i8", ()), Quantized("i4", ("t", 1, 1, 1)), Sq=2, masks=(Causal("end"),)), 3),
]


@pytest.fixture(scope="module")
def compiled(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Kernels:
    emitted = [emit_rows(spec, HOST, f"fa_case{i}", splits) for i, (spec, splits) in enumerate(_CASES)]
    return Kernels(emitted, tmp_path_factory.mktemp("rows"), only=indices_to_run(request))


@pytest.mark.parametrize("index", range(len(_CASES)))
def test_it_is_the_reference(index: int, compiled: Kernels) -> None:
    for size in (1, 63, 65, 300) if _CASES[index][0].symbols else (0,):
        spec = _CASES[index][0].bind({"t": size})
        for seed in range(2):
            operands = draw_operands(spec, seed, adversarial=seed == 1)
            assert mismatch(spec, operands, compiled.run(index, operands)) is None


def test_when_it_is_chosen() -> None:
    kernel = emit_kernel(_SPEC, HOST)
    assert kernel.body == "rows" and kernel.config["heads"] == 2 and kernel.config["splits"] == "by cores"
    assert emit_kernel(_with(k_layout=(), v_layout=()), HOST).body == "few"
    assert emit_kernel(_with(D=33), HOST).body == "few"
    assert emit_kernel(_SPEC, dataclasses.replace(HOST, off=frozenset({Switch.SPLITTING}))).body == "few"


@pytest.mark.parametrize("operand", ["q_layout", "o_layout"])
@pytest.mark.parametrize("layout", [(3, 0, 1, 2), (0, 3, 1, 2)])
def test_head_dims_before_heads(operand: str, layout: tuple[int, ...]) -> None:
    """With one query a head that lies so has no rows to read: the queries of all heads are those of one."""
    spec = _with(Hq=2, **{operand: layout})
    with pytest.raises(UnsupportedError, match=f"rows kernel: {operand[0]} has its head dim before its length"):
        emit_rows(spec, HOST, "fa_x")
    assert emit_kernel(spec, HOST).body == "few"


def test_how_many_heads() -> None:
    assert heads_of_rows(_with(Hq=12, Hkv=4, D=128, Dv=128)) == 4
    assert heads_of_rows(_with(Hq=32, Hkv=32, D=128, Dv=128)) == 8  # a page of memory
    assert heads_of_rows(_with(Hq=32, Hkv=8, D=128, Dv=128)) == 4  # 16 queries
    with pytest.raises(UnsupportedError, match="rows of 4096 bytes"):
        heads_of_rows(_with(D=1024, Dv=1024))
    with pytest.raises(UnsupportedError, match="8 queries of each of 3 heads"):
        heads_of_rows(_with(Hq=24, Hkv=3))
    with pytest.raises(UnsupportedError, match="cannot be split"):
        heads_of_rows(_with(batch=("b",)))


def test_integers_in_rows() -> None:
    spec = _integers(Quantized("i4", ("t", 1, 8, 2)), Quantized("i8", ("t", 1, 8, 1)), Hq=16, Hkv=8)
    assert emit_kernel(spec, HOST).config["heads"] == 8
    with pytest.raises(UnsupportedError, match="64 scales for each of 8 heads of 64 integers"):
        emit_rows(dataclasses.replace(spec, k_quant=Quantized("i8", (1, 1, 8, 64))), HOST, "fa_x")
    with pytest.raises(UnsupportedError, match="2 scales for each of 8 heads"):  # the same two for all heads
        emit_rows(dataclasses.replace(spec, k_quant=Quantized("i8", ("t", 1, 1, 2))), HOST, "fa_x")
    eighths = dataclasses.replace(spec, k_quant=Quantized("i8", ("t", 1, 8, 8)))  # eight integers have a scale
    assert emit_rows(eighths, parse_target("cpu-avx2"), "fa_x").body == "rows"
    with pytest.raises(UnsupportedError, match="a scale's groups"):
        emit_rows(eighths, parse_target("cpu-avx512"), "fa_x")
