"""The form that holds all keys of a head: which queries each workgroup takes, what is loaded once, what it declines, its PTX and
the module around it. Its numbers are held to the reference in Triton's interpreter (tests/support/triton_interpreter.py)."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import pytest

from onnx_fa.errors import UnsupportedError
from onnx_fa.kernels.plan.folding import fold_queries
from onnx_fa.kernels.triton import emit_triton
from onnx_fa.kernels.triton.config import HELD, TritonConfig
from onnx_fa.kernels.triton.held import MOST_HELD, blocks_together, can_hold, rows_of_workgroup, with_all_keys
from onnx_fa.kernels.triton.module import program_of
from onnx_fa.kernels.triton.tiles import can_run, smaller, tuned
from onnx_fa.spec.attention import AttentionSpec
from onnx_fa.spec.cases import case, document
from onnx_fa.spec.switches import Switch
from onnx_fa.spec.target import parse_target
from onnx_fa.spec.terms import Causal, Quantized, Rounding
from tests.support.cases import CASES


def half(**changes: Any) -> AttentionSpec:
    sizes = {"dtype": "f16", "Sq": 1000, "Skv": 100, "D": 64, "Dv": 64, "batch": (2,), "Hq": 8}
    return fold_queries(case("x", **sizes | changes).spec)


def tiles(BN: int = 128, stages: int = 1, BM: int = 64, warps: int = 4) -> TritonConfig:
    return TritonConfig(BM, BN, warps, stages, overlap=HELD)


def first_queries(spec: AttentionSpec, config: TritonConfig) -> list[tuple[int, int]]:
    """The head, and the first query of each block that is computed, over all workgroups, by the source's own whole numbers."""
    lines = program_of(spec, config, "fa", 90).text.splitlines()
    numbers = [
        x.strip() for x in lines if re.match(r"    x\d+ = (pid|x\d+) (%|//|\*) \d+$|    x\d+ = tl\.minimum\(", x)
    ]
    head = numbers[1].split(" = ")[0]
    count = next(m[1] for x in lines if (m := re.match(r"    for n in range\((\w+)\):", x)))
    first = next(m[1] for x in lines if (m := re.match(r"        x\d+ = (x\d+ \+ n \* \d+)$", x)))
    workgroups = int(spec.batch[0]) * int(spec.Hq) * -(-int(spec.Sq) // rows_of_workgroup(spec, config))
    found = []
    for pid in range(workgroups):
        known: dict[str, Any] = {"pid": pid, "tl": SimpleNamespace(minimum=min, cdiv=lambda a, b: -(-a // b))}
        for line in numbers:
            name, value = line.split(" = ")
            known[name] = eval(value, known)
        found += [(known[head], eval(first, known | {"n": n})) for n in range(eval(count, known))]
    return found


@pytest.mark.parametrize(
    ("Sq", "Hq", "stages"), [(1000, 8, 1), (4096, 16, 1), (4100, 40, 3), (64, 8, 1), (65, 500, 1), (9000, 6, 3)]
)
def test_every_query_once(Sq: int, Hq: int, stages: int) -> None:
    """Each block of queries of each head is one workgroup's."""
    spec, config = half(Sq=Sq, Hq=Hq), tiles(stages=stages)
    found = first_queries(spec, config)
    assert sorted(found) == [(head, first) for head in range(2 * Hq) for first in range(0, Sq, 64)]


def test_how_many_together() -> None:
    """Few workgroups stay what they are, many become fewer, with about as many blocks in each, and more where loads go ahead."""
    assert blocks_together(8, 16, 1) == 1 and blocks_together(16, 64, 1) == 3
    assert blocks_together(256, 27, 1) == 14  # of 27 blocks not 26 and one
    assert blocks_together(10000, 5, 1) == 5
    assert blocks_together(256, 27, 3) == 6
    assert rows_of_workgroup(half(), TritonConfig(64, 64, 4, 2)) == 64
    assert rows_of_workgroup(half(Sq=4096, Hq=16), tiles()) == 7 * 64


def test_keys_are_loaded_once() -> None:
    """Before the loop over queries; without a sink nothing is corrected, as nothing comes before."""
    text = program_of(half(Hq=80), tiles(), "fa", 90).text
    before, inside = text.split("for n in range(")
    assert before.count("tl.load(") == 2 and inside.count("tl.load(") == 1 and "alpha" not in text
    with_sink = next(c.spec for c in CASES if c.name == "sink_1")
    spec = fold_queries(with_sink)
    assert "alpha" in program_of(spec, tiles(with_all_keys({"overlap": HELD}, spec.Skv)["BN"], BM=32), "fa", 90).text


def test_what_is_held() -> None:
    """Every case that can be has source; others are refused with the reason."""
    some = 0
    for item in CASES:
        spec = fold_queries(item.spec)
        if not can_hold(spec) or "f64" in spec.operand_dtypes:
            continue
        some += 1
        BN = with_all_keys({"overlap": HELD}, spec.Skv)["BN"]
        compile(program_of(spec, tiles(BN), "fa_0", 90).text, item.name, "exec")
    assert some > 60
    assert can_hold(half()) and can_hold(half(masks=(Causal(),), Skv=MOST_HELD)) and can_hold(half(dtype="f32"))
    for changes in (
        {"Sq": "s"},
        {"Skv": "s"},
        {"batch": ("b",)},
        {"Skv": MOST_HELD + 1},
        {"Skv": 0},
        {"Sq": 16},
        {"rounding": Rounding(1 / 255)},
        {"k_quant": Quantized("i8", ()), "v_quant": Quantized("i8", ())},
    ):
        assert not can_hold(half(**changes)), changes
        with pytest.raises(UnsupportedError, match="keys are held in attentions of known sizes"):
            program_of(half(**changes), tiles(), "fa", 90)
    with pytest.raises(UnsupportedError, match="100 keys that are held are a block of 128, not 64"):
        program_of(half(), tiles(64), "fa", 90)


def test_tiles() -> None:
    """The block is of all keys, whatever a table says of it; what does not fit becomes smaller."""
    assert with_all_keys({"BM": 64, "BN": 16, "overlap": HELD}, 77) == {"BM": 64, "BN": 128, "overlap": HELD}
    assert with_all_keys({"BM": 64, "BN": 16, "overlap": 0}, 77)["BN"] == 16
    assert can_run(half(), tiles(), 90) and can_run(half(), tiles(), 80)
    assert not can_run(half(), tiles(64), 90) and not can_run(half(Skv="s"), tiles(), 90)
    assert not can_run(half(D=256, Dv=256, Skv=256), tiles(256), 90)  # keys and values alone are 256 KiB
    tried = list(smaller(tiles(stages=3)))
    assert [c.stages for c in tried[:3]] == [3, 2, 1] and {c.overlap for c in tried[:3]} == {HELD}
    assert tried[3] == TritonConfig(64, 64, 4, 2) and len(tried) == len(set(tried))


def test_who_gets_it() -> None:
    """Narrow heads of many queries and few keys, as of cross attention, unless the plain form alone is wanted."""
    spec = half(Sq=4096, Skv=80, Hq=160, D=32, Dv=32)
    config, reason = tuned(spec, 90)
    assert config.overlap == HELD and config.BN == 128 and "cuda-shapes" in reason
    assert tuned(spec, 90, frozenset({Switch.OVERLAPPING}))[0].overlap == 0
    assert tuned(half(masks=(document(2, 1000),), Skv=1000), 90)[0].overlap == 0


def test_module() -> None:
    """The grid has as many workgroups as there are groups of blocks; both architectures compute the same with their own tiles."""
    kernel = emit_triton(
        half(Sq=4096, Hq=16, stats=("lse",)), parse_target("cuda"), "fa_0000000000", tiles(stages=3, BM=128, warps=8)
    )
    assert (kernel.config["overlap"], kernel.config["overlap_sm_80"]) == (HELD, HELD)
    assert kernel.text.count("flow.dispatch {") == 1
    hopper, ampere = (bytes.fromhex(x).decode() for x in re.findall(r'dense<"0x([0-9a-f]+)"', kernel.text))
    assert "wgmma" in hopper and ".target sm_80" in ampere and "mma.sync" in ampere
    alone = emit_triton(half(Sq=4096, Hq=16), parse_target("cuda"), "fa_0000000000", tiles())
    assert re.search(rf"arith\.constant {-(-64 // 7)} : index", alone.text)
