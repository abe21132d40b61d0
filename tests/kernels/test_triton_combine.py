"""Who combines the parts of split keys, and what that is reckoned to take (nothing is compiled)."""

from __future__ import annotations

from onnx_fa.derive.loop import loop_of
from onnx_fa.kernels.plan.folding import fold_queries
from onnx_fa.kernels.tiles.shapes import Shape
from onnx_fa.kernels.triton.combine import combine_program
from onnx_fa.kernels.triton.config import TritonConfig
from onnx_fa.kernels.triton.decode_time import reckon_time
from onnx_fa.kernels.triton.module import program_of
from onnx_fa.kernels.triton.program import combines_itself
from onnx_fa.spec.attention import AttentionSpec


def _decode(Hq: int, D: int) -> AttentionSpec:
    """One query of heads that share one key head."""
    return fold_queries(AttentionSpec(dtype="f16", batch=(1,), Hq=Hq, Hkv=1, Sq=1, Skv=20626, D=D, Dv=D, scale=D**-0.5))


def _split(parts: int) -> TritonConfig:
    return TritonConfig(16, 64, 2, 4, splits=parts)


def test_large_parts_are_left_to_a_dispatch() -> None:
    """Of 32 KiB: four queries of 128 numbers in 16 parts are as many, in 32 they are more."""
    assert combines_itself(_decode(4, 128), _split(16)) and not combines_itself(_decode(4, 128), _split(32))
    assert not combines_itself(_decode(8, 112), _split(64)) and combines_itself(_decode(1, 112), _split(64))
    assert not combines_itself(_decode(4, 128), _split(1))


def test_a_counter_is_for_the_last_workgroup_alone() -> None:
    few, many = (program_of(_decode(4, 128), _split(parts), "f", 90) for parts in (16, 32))
    assert "atomic_add" in few.text and [p for p, _ in few.pointers if p == "count"]
    assert "atomic_add" not in many.text and [p for p, _ in many.pointers][-2:] == ["part", "stat"]
    spec = _decode(4, 128)
    combined = combine_program(spec, _split(32), "c", loop_of(spec, narrow=True, bounded=True))
    assert "tl.arange(0, 32)" in combined.text and [p for p, _ in combined.pointers] == ["part", "stat", "out"]


def test_reckoned_time_knows_who_combines() -> None:
    """From one part less than 32 KiB on, as many more bytes cost a dispatch less than they cost one workgroup."""

    def combining(parts: int, rows: int) -> float:
        tiles = {"BM": 16, "BN": 64, "warps": 2, "stages": 4, "splits": parts, "overlap": 0, "order": 0}
        alone, together = (reckon_time(tiles, Shape(128, 128, 0, 1, r, 64 * parts)) for r in (1, rows))
        return together - alone

    # Four times the rows of 16 parts are read by one workgroup, four times those of 128 by as many as there are rows.
    per_byte = combining(16, 4) / (3 * 16 * 512), combining(128, 4) / (3 * 128 * 512)
    assert per_byte[0] > 3 * per_byte[1] > 0
