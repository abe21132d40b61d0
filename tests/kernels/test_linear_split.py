"""Products of f32 by AMX, of numbers that are split into three of bf16: their numbers, beside float64 and the definition, also
where a split does not hold, and where the processor gives no tiles."""

from __future__ import annotations

import itertools
import re
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from onnx_fa.iree.run import load_module, tool_path
from onnx_fa.kernels.cpu import amx, linear_share, split_products, workgroups
from onnx_fa.kernels.cpu.linear import body_name, emit_linear, tiles_for
from onnx_fa.kernels.cpu.linear_share import LEAST_ROWS, MOST_PANELS, MOST_ROWS, can_split, panels_by_blocks, share_of
from onnx_fa.kernels.cpu.split_products import PARTS, split_pair
from onnx_fa.kernels.cpu.workgroups import busiest
from onnx_fa.kernels.mlir.vectors import Lanes
from onnx_fa.spec.linear import LinearSpec, biased, multiply
from onnx_fa.spec.linear_accuracy import tolerance
from onnx_fa.spec.linear_cases import GELU, in_panels
from onnx_fa.spec.rounding_bounds import UNIT
from onnx_fa.spec.target import foreign_cpu, parse_target
from onnx_fa.spec.terms import TensorArg
from tests.kernels.test_cpu_linear import check_rows, compile_site, packed
from tests.support.linear_cases import bound, draw
from tests.support.linear_modules import compile_sites

AMX = parse_target("cpu-amx")
here = pytest.mark.skipif(bool(foreign_cpu(AMX)), reason=foreign_cpu(AMX))
ROWS = LEAST_ROWS
SPECS = {
    "least": LinearSpec((ROWS,), 128, 64, "f32"),
    "one_tile_more": LinearSpec((ROWS + 17,), 160, 72, "f32"),
    "vit": biased(LinearSpec((197,), 192, 160, "f32")),
    "odd": biased(LinearSpec((ROWS + 2,), 128 + 13, 53, "f32", transposed=True)),
    "half_a_step": LinearSpec((ROWS + 3,), 128 + 16, 64, "f32"),
    "more_than_half": LinearSpec((ROWS + 3,), 128 + 25, 64, "f32"),
    "blocks": biased(LinearSpec((ROWS + 5,), 1600, 96, "f32")),
    "blocks_and_a_rest": LinearSpec((ROWS + 33,), 1600 + 21, 416, "f32"),
    "groups_of_rows": LinearSpec((2 * MOST_ROWS + 37,), 128, 96, "f32"),
    "gelu": LinearSpec((2, ROWS), 128, 100, "f32", then=GELU, tensors=(TensorArg((100,)),)),
    "parts": biased(LinearSpec((ROWS + 21,), 128, 192, "f32", parts=(96, 64, 32))),
    "parts_of_blocks": LinearSpec((ROWS,), 900, 128, "f32", parts=(64, 64)),
    "free": biased(LinearSpec(("b", "s"), 160, 96, "f32")),
    "free_blocks": LinearSpec(("n",), 1700, 64, "f32"),
}
"""Of few products: `every_size` lets them be split."""
GAINS = linear_share._gains
SIZES = ({"b": 1, "s": 3, "n": 1}, {"b": 3, "s": 67, "n": 257}, {"b": 2, "s": 300, "n": 49})


@pytest.fixture(scope="module")
def every_size() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(linear_share, "LEAST_PRODUCTS", 0)
        patch.setattr(linear_share, "MOST_WORKERS", 16)
        patch.setattr(linear_share, "_gains", lambda *_: True)
        yield


@pytest.fixture(scope="module")
def module(every_size: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("split") / "m.vmfb"
    compile_sites({name: (packed(spec, AMX), None) for name, spec in SPECS.items()}, output, AMX)
    return output


def call(module: Path, name: str, operands: Sequence[npt.NDArray[Any]]) -> list[npt.NDArray[Any]]:
    spec = SPECS[name]
    w = operands[1].T if spec.transposed else operands[1]
    panel = packed(spec, AMX).panel
    if spec.parts:
        ends = np.cumsum((0, *spec.parts))
        w = np.concatenate([in_panels(w[:, a:b], panel) for a, b in itertools.pairwise(ends)])
    else:
        w = in_panels(w, panel)
    return list(load_module(module, function=name)(operands[0], w, *operands[2:]))


def whole(parts: list[npt.NDArray[Any]]) -> npt.NDArray[np.float64]:
    return np.concatenate(parts, -1).astype(np.float64)


@here
@pytest.mark.parametrize("name", SPECS)
def test_numbers(name: str, module: Path) -> None:
    """Each number lies as near float64's as sums of f32 do: K roundings at most, of what the products add up to."""
    plain = SPECS[name]
    for sizes in SIZES if plain.symbols else SIZES[:1]:
        operands = draw(plain, bound(plain, sizes))
        want, got = multiply(plain, operands), whole(call(module, name, operands))
        w = operands[1].T if plain.transposed else operands[1]
        much = np.abs(operands[0]).astype(np.float64) @ np.abs(w).astype(np.float64)
        much = much + sum(np.abs(t).max() for t in operands[2:])
        assert (np.abs(got - want) <= UNIT * (np.sqrt(plain.K) + 8) * much).all()
        assert np.linalg.norm(got - want) <= tolerance(plain) * np.linalg.norm(want)


@here
def test_whole_numbers_are_exact(module: Path) -> None:
    """Products of numbers that take two or three parts, whose sums f32 holds."""
    rng = np.random.default_rng(0)
    for most in (2**8, 2**9, 2**23):
        x, w = np.zeros((197, 192), np.float32), np.zeros((192, 160), np.float32)
        x[:, :8] = rng.integers(-most, most, (197, 8))
        w[:8] = rng.integers(-2, 3, (8, 160)) if most < 2**23 else np.eye(8, 160)
        (y,) = call(module, "vit", [x, w, np.zeros(160, np.float32)])
        assert np.array_equal(y, x.astype(np.float64) @ w)


@here
def test_numbers_of_all_sizes(module: Path) -> None:
    """Rows and columns from 1e-15 to 1e15, each as near as before, and a weight that is all but nothing."""
    rng, spec = np.random.default_rng(1), SPECS["vit"]
    x, w = rng.standard_normal((197, 192)), rng.standard_normal((192, 160))
    x, w = x * 10.0 ** rng.integers(-15, 16, (197, 1)), w * 10.0 ** rng.integers(-15, 16, (1, 160))
    x, w = x.astype(np.float32), w.astype(np.float32)
    x[5], w[:, 7] = 0, 0
    (y,) = call(module, "vit", [x, w, np.zeros(160, np.float32)])
    much = np.abs(x).astype(np.float64) @ np.abs(w).astype(np.float64)
    off = np.abs(y - x.astype(np.float64) @ w.astype(np.float64))
    assert (off <= UNIT * (np.sqrt(spec.K) + 8) * much).all()


@here
@pytest.mark.parametrize("name", ["vit", "blocks"])
@pytest.mark.parametrize(("of_x", "of_w"), [(-36, 0), (0, -36), (-36, 34), (34, -36), (-20, -16), (20, 15), (-30, 25)])
def test_what_is_small_or_large(name: str, of_x: int, of_w: int, module: Path) -> None:
    """Numbers whose parts AMX takes for zeros, and such as make these count, in some rows and columns: as near as in f32."""
    rng, spec = np.random.default_rng(4), SPECS[name]
    assert spec.rows
    x, w = rng.standard_normal((spec.rows, spec.K)), rng.standard_normal((spec.K, spec.N))
    x[5:40] *= 10.0**of_x
    w[:, 3:50] *= 10.0**of_w
    # Workers take subnormal numbers for zeros, whoever multiplies.
    x, w = (np.where(np.abs(a) < 2.0**-126, 0, a).astype(np.float32) for a in (x, w))
    (y,) = call(module, name, [x, w, np.zeros(spec.N, np.float32)])
    much = np.abs(x).astype(np.float64) @ np.abs(w).astype(np.float64)
    off = np.abs(y - x.astype(np.float64) @ w.astype(np.float64))
    # Below the least normal number f32 has fewer places, or none.
    assert (off <= UNIT * (np.sqrt(spec.K) + 8) * much + spec.K * 2.0**-126).all()


@here
@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan, 3.4028235e38, -3.4e38])
@pytest.mark.parametrize("name", ["vit", "blocks", "parts", "half_a_step"])
def test_what_has_no_parts(name: str, bad: float, module: Path) -> None:
    """Numbers that are not finite, and such as are so large that bf16's next is not: what IEEE's sums of them are."""
    rng, spec = np.random.default_rng(2), SPECS[name]
    x = rng.standard_normal((spec.rows, spec.K)).astype(np.float32)
    w = (rng.standard_normal((spec.K, spec.N)) / 64).astype(np.float32)
    x[3, 5], x[9, spec.K - 1], w[7, 11] = bad, bad, bad
    x[4, 7] = 0
    b = [np.zeros(spec.N, np.float32)] * len(spec.tensors)
    with np.errstate(all="ignore"):
        want = (x.astype(np.float64) @ w.astype(np.float64)).astype(np.float32)
        got = whole(call(module, name, [x, w, *b])).astype(np.float32)
    assert np.array_equal(np.isnan(got), np.isnan(want))
    known = np.isfinite(want)
    assert np.array_equal(got[~known], want[~known], equal_nan=True)
    # Of huge terms the others' are roundings.
    scale = np.maximum(1, np.abs(want[known]))
    assert (np.abs(got[known] - want[known]) <= 1e-5 * scale).all()


@here
@pytest.mark.usefixtures("every_size")
@pytest.mark.parametrize("rows", [*range(ROWS, ROWS + 4), 63, 64, 65, 80, 81, "n"])
def test_rows(rows: int | str, tmp_path: Path) -> None:
    """No tile reads or writes past the last row, and infinities stay in their rows."""
    spec = packed(LinearSpec((rows,), 64, 72, "f32"), AMX)
    compile_site(spec, tmp_path / "m.vmfb", AMX)
    free = (1, 5, ROWS - 1, ROWS, ROWS + 1, 64, 79, 97, 256, 257, 300)
    for n in [rows] if isinstance(rows, int) else free:
        check_rows(tmp_path / "m.vmfb", spec.panel, n)


@here
@pytest.mark.parametrize("name", ["blocks_and_a_rest", "groups_of_rows"])
def test_any_number_of_workers_makes_the_same(name: str, module: Path, tmp_path: Path) -> None:
    """Workgroups that run at once have memory of their own, call after call; more workers than there are slots wait for one."""
    spec = SPECS[name]
    operands = draw(spec, bound(spec, {}))
    (want,) = call(module, name, operands)
    given = [operands[0], in_panels(operands[1], packed(spec, AMX).panel)]
    for i, x in enumerate(given):
        np.save(tmp_path / f"{i}.npy", x)
    flags = [f"--module={module}", f"--function={name}", *(f"--input=@{tmp_path}/{i}.npy" for i in range(len(given)))]
    for workers in (1, 3, 16, 16, 40):
        where = ["--device=local-task", f"--task_topology_group_count={workers}", f"--output=@{tmp_path}/y.npy"]
        subprocess.run([tool_path("iree-run-module"), *flags, *where], check=True, timeout=60)
        assert np.array_equal(np.load(tmp_path / "y.npy"), want)
    for _ in range(10):
        assert np.array_equal(call(module, name, operands)[0], want)


@here
@pytest.mark.usefixtures("every_size")
def test_without_tiles(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Where Linux refuses tiles the products are those of vectors, to the bit what they are where nothing is split."""
    spec, refused = packed(SPECS["vit"], AMX), 99
    monkeypatch.setattr(amx, "_XTILEDATA", refused)
    compile_site(spec, tmp_path / "refused.vmfb", AMX)
    compile_site(spec, tmp_path / "plain.vmfb", replace(AMX, amx=False))
    operands = draw(SPECS["vit"], bound(SPECS["vit"], {}))
    moved = [operands[0], in_panels(operands[1], spec.panel), operands[2]]
    one, other = (load_module(tmp_path / f"{n}.vmfb", function="site")(*moved)[0] for n in ("refused", "plain"))
    assert np.array_equal(one, other)


class Numbers(Lanes):
    """Computes what it would write, of vectors of NumPy's."""

    def __init__(self) -> None:
        super().__init__(16)

    def dense(self, literal: str, element: str) -> Any:
        return np.full(16, int(literal), np.int32)

    def let(self, operation: Any) -> Any:
        return operation

    def arith(self, op: str, a: Any, b: Any, type_: str = "") -> Any:
        made = {
            "addi": lambda: a + b,
            "andi": lambda: a & b,
            "ori": lambda: a | b,
            "shrui": lambda: (a.view(np.uint32) >> b.view(np.uint32)).view(np.int32),
        }[op]()
        return made

    def vop(self, op: str, a: Any, b: Any) -> Any:
        assert op == "arith.subf"
        return a - b


def test_three_parts_are_the_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of any f32 whose parts are no subnormal numbers, to the bit; each part is as small as the bound of what is left out needs."""
    monkeypatch.setattr(split_products, "bits_of", lambda t, x: x.view(np.int32))
    monkeypatch.setattr(split_products, "_floats", lambda t, x: x.view(np.float32))
    rng = np.random.default_rng(3)
    bits = rng.integers(0, 2**32, (4000, 16), dtype=np.uint64).astype(np.uint32)
    for row in bits:
        x = row.view(np.float32)
        fits = (np.abs(x) > 2.0**-100) & (np.abs(x) < 2.0**127)
        x = np.where(fits, x, np.float32(1.5))
        words = split_pair(Numbers(), x, x[::-1].copy())  # type: ignore[arg-type]
        assert len(words) == PARTS
        low = [(w.view(np.uint32) << 16).view(np.float32).astype(np.float64) for w in words]  # type: ignore[attr-defined]
        high = [(w.view(np.uint32) & 0xFFFF0000).view(np.float32).astype(np.float64) for w in words]  # type: ignore[attr-defined]
        assert np.array_equal(sum(low), x.astype(np.float64)) and np.array_equal(sum(high), x[::-1].astype(np.float64))
        assert (np.abs(low[1]) <= 2.0**-8 * np.abs(x)).all() and (np.abs(low[2]) <= 2.0**-16 * np.abs(x)).all()


def test_who_is_split(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linear_share, "LEAST_PRODUCTS", 20e6)
    monkeypatch.setattr(linear_share, "MOST_WORKERS", 4)
    monkeypatch.setattr(linear_share, "_gains", GAINS)
    monkeypatch.setattr(workgroups, "WORKERS", (2,))
    many = LinearSpec((512,), 768, 768, "f32")
    assert can_split(many, (4,)) and not can_split(many, (2, 8))
    assert body_name(many, AMX) == "linear_split"
    for other in (
        LinearSpec((ROWS - 1,), 768, 768, "f32"),
        LinearSpec((512,), 32, 4096, "f32"),
        LinearSpec((197,), 192, 384, "f32"),
        LinearSpec((512,), 768, 768, "f16"),
        LinearSpec((512,), 768, 768, "f32", stored="f16"),
    ):
        assert body_name(other, AMX) != "linear_split"
    assert body_name(many, parse_target("cpu-avx512")) == "linear"
    assert body_name(replace(many, lead=("n",)), AMX) == "linear_split"
    assert [linear_share.least_rows(LinearSpec(("n",), 768, n, "f32"), (2,)) for n in (192, 3072)] == [160, ROWS]


@pytest.mark.parametrize(
    ("rows", "K", "N", "gains"),
    [
        (3136, 96, 384, True),
        (784, 576, 192, True),
        (256, 640, 160, True),
        (12544, 64, 64, False),  # too few products of each row for what becomes of their sums
        (4096, 128, 48, False),  # a third of the tiles' columns would be nothing
        (4096, 192, 80, False),
    ],
)
def test_who_gains(monkeypatch: pytest.MonkeyPatch, rows: int, K: int, N: int, gains: bool) -> None:
    """Whether the places of one image are known or those of a batch."""
    monkeypatch.setattr(linear_share, "LEAST_PRODUCTS", 20e6)
    monkeypatch.setattr(linear_share, "_gains", GAINS)
    for lead in ((1, rows), ("b", rows)):
        assert can_split(LinearSpec(lead, K, N, "f32"), (2,)) is gains


def test_shares_of_an_image() -> None:
    """Where the batch is free, workgroups have what those of one image would have, and no more panels than may double."""
    free, known = (share_of(LinearSpec((b, 256), 640, 160, "f32"), (2,)) for b in ("b", 1))
    assert free == known and free.rows == 128
    assert share_of(LinearSpec(("b", 197), 768, 3072, "f32"), (2,)).panels <= MOST_PANELS // 2
    assert share_of(LinearSpec(("b", "s"), 768, 3072, "f32"), (2,)).rows == MOST_ROWS


@pytest.mark.parametrize("workers", [(1,), (2,), (16,), (2, 4, 8, 16)])
def test_shares(every_size: None, workers: tuple[int, ...]) -> None:
    """Whole pairs of tiles, as many as a slot holds; several workers have alike, and one splits nothing twice."""
    for rows, K, N in ((64, 768, 768), (197, 768, 3072), (512, 768, 768), (3136, 96, 384), (1000, 3072, 768)):
        spec = packed(LinearSpec((rows,), K, N, "f32"), AMX)
        share = share_of(spec, workers)
        assert share.rows % 32 == 0 and share.rows <= MOST_ROWS and 1 <= share.panels <= MOST_PANELS
        parts, across = -(-rows // share.rows), -(-spec.panels // share.panels)
        assert parts * share.rows - rows < 32 * parts
        if len(workers) == 1:
            groups = parts * across
            assert groups >= 0.7 * workers[0] and busiest(groups, workers[0]) <= 1.5 * groups / workers[0] + 0.5
    assert share_of(packed(LinearSpec(("n",), 768, 768, "f32"), AMX), (2,)).rows == MOST_ROWS


@pytest.mark.parametrize("image", [(256, 640, 160), (256, 160, 640), (197, 768, 3072), (196, 1536, 384)])
def test_panels_of_a_call(image: tuple[int, int, int]) -> None:
    """The rows of one image are split for as many panels as the share that was chosen for it has, or more."""
    rows, K, N = image
    spec = LinearSpec(("b", rows), K, N, "f32")
    share = share_of(spec, (2,))
    found = panels_by_blocks(spec, share, (2,))
    assert [most for most, _ in found] == sorted({most for most, _ in found})
    blocks = -(-rows // share.rows)
    assert next(panels for most, panels in found if blocks <= most) >= share.panels
    assert found[-1][1] == min(share.panels, -(-N // 32))
    assert all(1 <= panels <= 2 * share.panels for _, panels in found)


@pytest.mark.usefixtures("every_size")
def test_what_is_written() -> None:
    """Six products of tiles for each pair of them, a claim of memory, and the loop of f32 for where there are no tiles."""
    spec = packed(LinearSpec((512,), 768, 768, "f32"), AMX)
    assert tiles_for(spec, AMX).vectors * tiles_for(spec, AMX).lanes == 32
    executable, memory, function = emit_linear(spec, AMX).values()
    steps = [line for line in executable.splitlines() if "tdpbf16ps" in line]
    assert [line.count("tdpbf16ps") for line in steps] == [6 * 4, 6 * 2]
    assert [line.count("tileloadd") for line in steps] == [14, 11]
    assert "vector.fma" in executable and "_claim" in executable
    assert len(re.findall(r"flow\.dispatch ", function)) == 1
    assert re.findall(r"global\.\w+ .*@(\w+)", function) == ["worker_slots", "worker_memory"] * 2
    assert memory.count("util.global private mutable") == 2
