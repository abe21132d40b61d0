"""The form whose workgroups stay: which tiles each takes, which blocks each part visits, its PTX, and the module around it."""

from __future__ import annotations

import math
import re
from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest

from onnx_fa.errors import UnsupportedError
from onnx_fa.kernels.plan.folding import fold_queries
from onnx_fa.kernels.triton import emit_triton
from onnx_fa.kernels.triton.by_shape import order_of
from onnx_fa.kernels.triton.config import MULTIPROCESSORS, PERSISTENT, TritonConfig
from onnx_fa.kernels.triton.module import program_of
from onnx_fa.kernels.triton.persistent import can_persist
from onnx_fa.kernels.triton.tiles import can_run, smaller
from onnx_fa.spec.attention import AttentionSpec
from onnx_fa.spec.cases import case, document
from onnx_fa.spec.target import parse_target
from onnx_fa.spec.terms import Causal, SlidingWindow
from tests.support.cases import CASES

INTEGERS = SimpleNamespace(
    where=lambda condition, a, b: a if condition else b,
    minimum=min,
    maximum=max,
    cdiv=lambda a, b: -(-a // b),
)
"""What the generated source computes with whole numbers, in Python."""


def half(**changes: Any) -> AttentionSpec:
    found = case("x", **{"dtype": "f16", "Sq": 1000, "Skv": 1000, "D": 64, "Dv": 64, "batch": (2,)} | changes).spec
    return fold_queries(found)


def tiles(BM: int = 192, BN: int = 64, stages: int = 3, order: int = 0) -> TritonConfig:
    return TritonConfig(BM, BN, 4, stages, order=order, overlap=PERSISTENT)


def function_of(text: str, name: str) -> list[str]:
    """The lines of a function of the source."""
    return text.split(f"\ndef {name}(")[1].split("\n\n\n")[0].splitlines()[1:]


def calls_of(text: str, own: int, many: int) -> list[int]:
    """The numbers of the tiles that a workgroup takes."""
    taken: list[int] = []

    def take(part: int, pid: int, base: int, tile: int) -> int:
        assert tile == len(taken) and base == 3 * tile
        taken.append(pid)
        return 3

    lines = [re.sub(r"fa_rows\(.*", "take(0, pid, base, tile)", x) for x in function_of(text, "fa_rows_0")]
    tl = SimpleNamespace(**vars(INTEGERS), program_id=lambda axis: own, num_programs=lambda axis: many)
    exec("def all_tiles():\n" + "\n".join(lines) + "\nall_tiles()", {"tl": tl, "take": take})
    return taken


def scalars_of(text: str, spec: AttentionSpec, pid: int, part: int) -> dict[str, Any]:
    """What the function of a part computes of a tile before its first product."""
    found: dict[str, Any] = {"tl": INTEGERS, "pid": pid, "part": part, "base": 0, "q": 0}
    for line in function_of(text, "fa_rows"):
        if line.startswith("    if ") or line.startswith("    for "):
            break
        simple = re.fullmatch(r"    (\w+) = ((?:[\w+*/%(),. -]|==|<)+)", line)
        used = set(re.findall(r"\b[a-z]\w*", simple[2])) if simple else {"?"}
        if simple and used <= found.keys() | vars(INTEGERS).keys():
            found[simple[1]] = eval(simple[2], found)
            if simple[2].startswith("q + "):
                found["head_at"] = found[simple[1]]
            if re.fullmatch(r"x\d+ \* 192", simple[2]):
                found["first_row"] = found[simple[1]]
    return found


@pytest.mark.parametrize("order", [0, 1, 5])
@pytest.mark.parametrize("many", [1, 7, 132])
def test_every_tile_is_taken_once(order: int, many: int) -> None:
    """By one workgroup each, and every block of every head is one of them; causal ones are dealt out fairly."""
    spec = half(Hq=8, Hkv=8, masks=(Causal(),))
    text = program_of(spec, tiles(order=order), "fa", 90).text
    blocks = -(-1000 // 192)
    taken = [calls_of(text, own, many) for own in range(many)]
    assert Counter(x for pids in taken for x in pids) == Counter(range(16 * blocks))
    found = {pid: scalars_of(text, spec, pid, 0) for pid in range(16 * blocks)}
    places = {(f["head_at"], f["first_row"]) for f in found.values()}
    assert places == {(head * 64000, block * 192) for head in range(16) for block in range(blocks)}
    if order and many == 7:
        work = [sum(found[pid]["visited"] for pid in pids) for pids in taken]
        assert max(work) - min(work) <= 2 * -(-1000 // 64)  # that of two tiles, of 14


@pytest.mark.parametrize(
    ("masks", "Sq"),
    [((), 1000), ((Causal(),), 1000), ((Causal("end"),), 640), ((SlidingWindow(100, 30),), 1000), ((Causal(),), 65)],
)
def test_blocks_of_parts(masks: tuple[Any, ...], Sq: int) -> None:
    """Each part visits the blocks that its own queries see, and no others; with those before and after they are the tile's."""
    spec = half(Sq=Sq, masks=masks, Hq=1, Hkv=1, batch=(1,))
    text = program_of(spec, tiles(), "fa", 90).text
    offset = 1000 - Sq if masks == (Causal("end"),) else 0

    def sees(q: int, k: int) -> bool:
        low, high = {(): (-math.inf, math.inf)}.get(masks, (-math.inf, 0))
        if masks and isinstance(masks[0], SlidingWindow):
            low, high = -100, 30
        return low <= k - q - offset <= high

    pids = range(-(-Sq // 192))
    blocks = -(-1000 // 64)
    for pid in pids:
        all_seen: set[int] = set()
        parts = []
        for part in range(3):
            found = scalars_of(text, spec, pid, part)
            block = len(pids) - 1 - pid if masks and not isinstance(masks[0], SlidingWindow) else pid
            rows = [q for q in range(block * 192 + part * 64, block * 192 + part * 64 + 64) if q < Sq]
            seen = {b for b in range(blocks) if any(sees(q, k) for q in rows for k in (b * 64, min(b * 64 + 63, 999)))}
            seen |= {
                b
                for b in range(blocks)
                for q in rows
                if b == min(max(q + offset, 0), 999) // 64 and sees(q, q + offset)
            }
            visited = {found["last"] - n for n in range(found["total"])}
            assert visited == seen, (pid, part)
            all_seen |= seen
            parts.append(found)
        for found in parts:
            assert found["visited"] == len(all_seen)
            if masks or Sq % 192:
                assert found["before"] + found["total"] + found["after"] == found["visited"]
                if found["total"]:
                    assert found["last"] + found["before"] == max(all_seen)


def test_what_has_the_form() -> None:
    """All cases of known sizes that follow from positions have source that parses; the rest is refused."""
    some = 0
    for item in CASES:
        spec = fold_queries(item.spec)
        if not can_persist(spec):
            continue
        some += 1
        for config in (tiles(128), tiles(order=2)):
            text = program_of(spec, config, "fa_0", 90).text
            compile(text, item.name, "exec")
            assert text.count("@gluon.jit") == 4 + config.BM // 64
    assert some > 20
    for changes in ({"Sq": "s"}, {"batch": ("b",)}, {"masks": (document(2, 1000),)}, {"dtype": "f32"}, {"Sq": 16}):
        assert not can_persist(half(**changes))
        with pytest.raises(UnsupportedError, match="workgroups that stay are for"):
            program_of(half(**changes), tiles(128), "fa", 90)
    with pytest.raises(UnsupportedError, match="no such tiles"):
        program_of(half(), tiles(64), "fa", 90)
    with pytest.raises(UnsupportedError, match="is Hopper's"):
        program_of(half(), tiles(128), "fa", 80)


def test_tiles() -> None:
    """Three groups of 64 queries are this form's alone, and so are heads in groups; registers bound the blocks."""
    for bad in ({"BM": 192}, {"order": 2}, {"BM": 192, "overlap": 2}, {"BM": 320, "overlap": PERSISTENT}):
        with pytest.raises(ValueError, match=r"power of two|workgroups that stay"):
            TritonConfig(**({"BM": 128, "BN": 64, "warps": 4, "stages": 2} | bad))
    assert can_run(half(), tiles(), 90) and not can_run(half(), tiles(), 80)
    assert can_run(half(), tiles(256), 90) and not can_run(half(D=128, Dv=128), tiles(256), 90)
    assert not can_run(half(), tiles(64), 90)
    tried = list(smaller(tiles(order=7)))
    assert tried[1] == TritonConfig(128, 64, 4, 3, order=1, overlap=2) and len(tried) == len(set(tried))


def test_order() -> None:
    """Causal, heads take turns, those together whose keys and values the cache holds, in groups of about a size, but with some
    rounds of tiles."""

    def order(**changes: Any) -> int:
        base = {"masks": (Causal(),), "Sq": 4096, "Skv": 4096, "Hq": 32, "Hkv": 32, "D": 128, "Dv": 128, "batch": (1,)}
        return order_of(half(**base | changes), tile=192)

    assert (order(masks=()), order(Hq=8, Hkv=8)) == (0, 1)
    assert order() == 16 and order(Hkv=8) == 1  # 2 MiB of each of 32 heads; 8 are shared by four each
    assert order(batch=(4,)) == 13  # nine would have tiles for fewer than two rounds
    assert order(batch=(4,), Hkv=8) == 32 and order(Sq=1 << 17, Skv=1 << 17) == 2


def test_ptx() -> None:
    """Descriptors of all heads, loads of four coordinates, as many warps and registers as there are parts; as many workgroups as
    there are multiprocessors."""
    bshd = (0, 2, 1, 3)
    layouts = {f"{x}_layout": bshd for x in "qkvo"}
    spec = half(Hq=40, Hkv=8, D=72, Dv=96, masks=(Causal(),), stats=("lse",), **layouts)
    kernel = emit_triton(spec, parse_target("cuda"), "fa_0000000000", tiles(order=5))
    assert (kernel.config["overlap"], kernel.config["overlap_sm_80"]) == (PERSISTENT, 0)
    hopper, ampere = (bytes.fromhex(x).decode() for x in re.findall(r'dense<"0x([0-9a-f]+)"', kernel.text))
    assert "cp.async.bulk.tensor.4d" in hopper and ".target sm_80" in ampere
    assert ".reqntid 512" in hopper
    assert set(re.findall(r"setmaxnreg\.\w+\.sync\.aligned\.u32 \t(\d+)", hopper)) >= {"160", "32"}
    assert {int(n) for n in re.findall(r"wgmma.mma_async.sync.aligned.m64n(\d+)k16", hopper)} == {64, 32}
    assert re.search(rf"arith\.constant {MULTIPROCESSORS} : index", kernel.text) and "arith.minui" in kernel.text
    whole = half(Sq=960)
    assert "before" not in program_of(whole, tiles(), "fa", 90).text  # all parts visit all blocks
