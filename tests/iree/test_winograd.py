"""Convolutions of 3 x 3 taps by 16 products for four places: the sums are those of the definition, and stay so for what is not
finite or passes the largest number, for any number of workers."""

from __future__ import annotations

import itertools
import subprocess
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any, cast

import numpy as np
import onnx
import pytest

import onnx_fa
from onnx_fa.iree.legalise import row_parts
from onnx_fa.iree.run import load_module
from onnx_fa.kernels.cpu import window
from onnx_fa.kernels.cpu.window import emit_window, panel_of, winograd_tiles
from onnx_fa.kernels.cpu.winograd_turns import MADE, SEEN, TAPS, make_places, turn_seen, turn_taps, turn_twice
from onnx_fa.kernels.mlir.vectors import Lanes
from onnx_fa.spec.rounding_bounds import UNIT
from onnx_fa.spec.target import Target, parse_target
from onnx_fa.spec.windows import WindowSpec, slide
from tests.support.image_nets import Net
from tests.support.joined_models import join_models
from tests.support.kernel_harness import FLAGS, HOST, run_iree_compile
from tests.support.ort_run import assert_same, run

NARROW, WIDE = parse_target("cpu-avx2"), parse_target("cpu-avx512")


class Numbers:
    """Stands for `Lanes`: its values are Python's numbers, which fractions keep exact."""

    def splat(self, value: float) -> Any:
        return Fraction(value)

    def vop(self, op: str, a: Any, b: Any) -> Any:
        return {"arith.addf": a + b, "arith.subf": a - b, "arith.mulf": a * b}[op]


T = cast(Lanes, Numbers())


def by_turns(d: Any, g: Any) -> Any:
    """The places of a tile by its sums, for a square that it sees and its taps."""
    seen, taps = turn_twice(T, turn_seen, d), turn_twice(T, turn_taps, g)
    return turn_twice(
        T, make_places, [[a * b for a, b in zip(*rows, strict=True)] for rows in zip(seen, taps, strict=True)]
    )


def square(size: int, one: tuple[int, int]) -> list[list[Any]]:
    return [[Fraction(int((a, b) == one)) for b in range(size)] for a in range(size)]


def test_the_sums_are_those_of_the_definition() -> None:
    """Both are linear in what is seen and in the taps: they are equal for all if they are for ones in single places."""
    for seen, tap in itertools.product(
        itertools.product(range(SEEN), repeat=2), itertools.product(range(TAPS), repeat=2)
    ):
        own = {(seen[0] - tap[0], seen[1] - tap[1])}
        want = [[int((a, b) in own) for b in range(MADE)] for a in range(MADE)]
        assert by_turns(square(SEEN, seen), square(TAPS, tap)) == want


def test_no_window_gets_a_number_that_it_does_not_see() -> None:
    for seen in itertools.product(range(SEEN), repeat=2):
        d = [[float("nan") if (a, b) == seen else 1.0 for b in range(SEEN)] for a in range(SEEN)]
        made = by_turns(d, [[0.5] * TAPS] * TAPS)
        for place in itertools.product(range(MADE), repeat=2):
            sees = all(0 <= s - p < TAPS for s, p in zip(seen, place, strict=True))
            assert np.isnan(made[place[0]][place[1]]) == sees


# (height, width), channels, columns, and what the Conv says
CASES: list[tuple[tuple[int, int], int, int, dict[str, Any]]] = [
    ((12, 9), 16, 33, {"residual": True}),  # odd lines, columns that panels do not divide
    ((11, 10), 32, 32, {"group": 2, "pads": [0, 1, 2, 0], "batch": 3}),
    ((9, 12), 32, 48, {"pads": [0] * 4}),
    ((10, 24), 16, 64, {}),
]
EVERY_RUN = (0, 1)
"""What the others have alone these have together."""
IDS = [f"{h}x{w}-{c}x{n}" + "".join(f"-{a}" for a in more) for (h, w), c, n, more in CASES]


def network(case: int) -> onnx.ModelProto:
    """A convolution of 3 x 3 between others of one tap, with what its kernel makes too."""
    (height, width), channels, columns, attributes = CASES[case]
    attributes = dict(attributes)
    batch, residual = attributes.pop("batch", "N"), attributes.pop("residual", False)
    n = Net(16, height, width, batch=batch, seed=case)
    x = n.conv("x", 16, channels)
    w = n.weight(columns, channels // attributes.get("group", 1), 3, 3)
    y = n.add("Conv", x, w, *[n.weight(columns)] * (case % 2), **{"pads": [1] * 4, **attributes})
    y = n.silu(n.add("Add", y, n.conv("x", 16, columns))) if residual else n.add("Relu", y)
    return n.model(n.conv(y, columns, 16))


def feeds_of(models: Sequence[onnx.ModelProto]) -> dict[str, np.ndarray]:
    rng, feeds = np.random.default_rng(5), {}
    for i, model in enumerate(models):
        dims = [d.dim_value if d.HasField("dim_value") else 4 for d in model.graph.input[0].type.tensor_type.shape.dim]
        feeds[f"m{i}_x"] = rng.standard_normal(dims).astype(np.float32)
    return feeds


@pytest.fixture(autouse=True)
def all_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_parts, "_saved", lambda *_: 1)


@pytest.mark.parametrize(
    "cases",
    [
        pytest.param(EVERY_RUN, id="every_run"),
        pytest.param([i for i in range(len(CASES)) if i not in EVERY_RUN], id="others", marks=pytest.mark.whole),
    ],
)
def test_networks_are_onnxruntimes(cases: Sequence[int], tmp_path: Path) -> None:
    """Of four images, where the batch is free: the second has infinities and NaN, and the others none of these. And of none."""
    models = [network(i) for i in cases]
    joined, feeds = join_models(models, own_dims=True), feeds_of(models)
    for x in feeds.values():
        if len(x) == 4:
            x[1, 3, 0, 0], x[1, 5, -1, 2], x[1, 7, 4, 4], x[1, 2, 4, 3] = np.inf, np.nan, -np.inf, np.inf
    onnx_fa.compile(joined, tmp_path / "m.vmfb")
    call = load_module(tmp_path / "m.vmfb")
    want = run(joined, feeds)
    assert any(np.isnan(y).any() for y in want)
    assert_same(want, call(*feeds.values()), 1e-5)
    for y, x in zip(call(*(x[: 0 if len(x) == 4 else 3] for x in feeds.values())), feeds.values(), strict=True):
        assert len(y) == (0 if len(x) == 4 else 3)


def spec_of(sizes: tuple[int, int], channels: int, columns: int, target: Target, **more: Any) -> WindowSpec:
    window, panel = ((3, 3), (1, 1), (1, 1)), panel_of(columns, target)
    options = {"x_last": True, "last": True, "pads": (1,) * 4, **more}
    return WindowSpec(more.pop("images", 2), 1, channels, columns, sizes, *window, panel, **options)


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> tuple[WindowSpec, Path]:
    """A module of one convolution of more blocks than it has workgroups, and of several times as many channels as are turned at
    once, and some."""
    target = HOST
    spec = spec_of((61, 47), 80, 64, target, bias=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(window, "_CHUNK", 32)
        tiles, texts = winograd_tiles(spec, target), emit_window(spec, target)
    assert tiles is not None and spec.channels > 2 * tiles.chunk and spec.channels % tiles.chunk
    types = ["tensor<2x229360xf32>", f"tensor<{spec.panels}x{spec.K}x{spec.panel}xf32>", "tensor<1x64xf32>"]
    listed, y = ", ".join(types), f"tensor<2x{61 * 47}x64xf32>"
    text = "".join(texts.values()) + (
        f"util.func public @call({', '.join(f'%{i}: {type_}' for i, type_ in zip('xwb', types, strict=True))}) -> {y} {{\n"
        f"%y = util.call @{spec.name}(%x, %w, %b) : ({listed}) -> {y}\nutil.return %y : {y}\n}}\n"
    )
    output = tmp_path_factory.mktemp("winograd") / "m.vmfb"
    run_iree_compile(text, output, ("--iree-llvmcpu-stack-allocation-limit=131072", *FLAGS))
    return spec, output


def operands(spec: WindowSpec, seed: int, spread: float = 0) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    shapes = [(2, spec.numbers), (spec.panels, spec.K, spec.panel), (1, spec.N)]
    made = [rng.standard_normal(s) * np.exp(spread * rng.standard_normal(s)) for s in shapes]

    return [x.astype(np.float32) for x in made]


def bound(spec: WindowSpec, x: np.ndarray, w: np.ndarray, b: np.ndarray) -> np.ndarray:
    """How far f32 may lie from the sums, for each place and column: with u the unit roundoff, numbers that are turned twice carry
    4 u of the sums of their terms' magnitudes, those of taps 6 u, C products in any order C u, and places 4 u, all of sums of
    magnitudes, in which a minus is a plus (Higham, Accuracy and Stability of Numerical Algorithms, 2002, chapter 3)."""

    def seen(d: np.ndarray) -> np.ndarray:
        return np.stack([d[0] + d[2], d[1] + d[2], d[2] + d[1], d[1] + d[3]])

    def taps(g: np.ndarray) -> np.ndarray:
        middle = (g[0] + g[1] + g[2]) / 2
        return np.stack([g[0], middle, middle, g[2]])

    def twice(turn: Any, a: np.ndarray) -> np.ndarray:
        return np.asarray(np.moveaxis(turn(np.moveaxis(turn(a), 1, 0)), 0, 1))

    height, width = spec.places
    image = np.abs(x.astype(np.float64)).reshape(2, *spec.sizes, spec.channels)
    image = np.pad(image, [(0, 0), (1, 2), (1, 2), (0, 0)])
    lines, columns = (height + 1) // 2, (width + 1) // 2
    d = np.array(
        [[image[:, a : a + 2 * lines : 2, c : c + 2 * columns : 2] for c in range(4)] for a in range(4)]
    )  # (4, 4, image, line, column, channel)
    g = np.abs(w.astype(np.float64)).reshape(spec.panels, 3, 3, spec.channels, spec.panel)
    g = np.concatenate(list(g), axis=-1)
    m = np.einsum("abiyxc,abcn->abiyxn", twice(seen, d), twice(taps, g))
    made = twice(lambda v: np.stack([v[0] + v[1] + v[2], v[1] + v[2] + v[3]]), m)
    placed = np.moveaxis(made, (0, 1), (2, 4)).reshape(2, 2 * lines, 2 * columns, spec.N)[:, :height, :width]
    return (spec.channels + 16) * UNIT * (placed.reshape(2, -1, spec.N) + np.abs(b))


def call(program: tuple[WindowSpec, Path], given: list[np.ndarray], tmp_path: Path, *flags: str) -> np.ndarray:
    for i, array in enumerate(given):
        np.save(tmp_path / f"{i}.npy", array)
    done = subprocess.run(
        [
            *("iree-run-module", f"--module={program[1]}", "--function=call", *flags, f"--output=@{tmp_path}/y.npy"),
            *(f"--input=@{tmp_path}/{i}.npy" for i in range(len(given))),
        ],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return np.asarray(np.load(tmp_path / "y.npy"))


@pytest.mark.parametrize("spread", [0, 3])
def test_sums_lie_within_their_bound(spread: float, program: tuple[WindowSpec, Path], tmp_path: Path) -> None:
    given = operands(program[0], 1, spread)
    have = call(program, given, tmp_path, "--device=local-task")
    error = np.abs(have.astype(np.float64) - slide(program[0], *given))
    assert (error <= bound(program[0], *given)).all()


def test_whole_numbers_are_exact(program: tuple[WindowSpec, Path], tmp_path: Path) -> None:
    rng = np.random.default_rng(2)
    given = [rng.integers(-9, 10, x.shape).astype(np.float32) for x in operands(program[0], 0)]
    np.testing.assert_array_equal(call(program, given, tmp_path, "--device=local-sync"), slide(program[0], *given))


def test_huge_numbers_are_the_definitions(program: tuple[WindowSpec, Path], tmp_path: Path) -> None:
    """Sums of what is seen pass the largest number where products of single numbers do not, and weights of zero meet infinities."""
    spec = program[0]
    x, w, b = operands(spec, 3)
    image = x.reshape(2, *spec.sizes, spec.channels)
    image[0, 5:9, 7:30], image[0, 7, ::3] = 3e38, -3e38
    image[1, 20, 11, 3], image[1, 0, 0, 0], image[1, -1, -1, 5] = np.inf, -np.inf, np.nan
    w = np.where(np.abs(w) < 0.3, 0, w * np.float32(1e-4)).astype(np.float32)
    have = call(program, [x, w, b], tmp_path, "--device=local-task")
    with np.errstate(all="ignore"):
        want = slide(spec, x, w, b).astype(np.float32)
    assert np.isfinite(want[0]).all() and np.isnan(want[1]).any() and np.isinf(want[1]).any()
    np.testing.assert_array_equal(np.isnan(have), np.isnan(want))
    np.testing.assert_array_equal(np.isinf(have), np.isinf(want))
    finite = np.isfinite(want)
    np.testing.assert_allclose(have[0], want[0], rtol=1e-4, atol=1e-5 * np.abs(want[0]).max())
    np.testing.assert_allclose(have[1][finite[1]], want[1][finite[1]], atol=1e-4)


def test_any_number_of_workers_makes_the_same(program: tuple[WindowSpec, Path], tmp_path: Path) -> None:
    """Workgroups that run at once have memory of their own, to the bit, call after call."""
    given = operands(program[0], 4)
    want = call(program, given, tmp_path, "--device=local-sync")
    for workers in (1, 3, 16, 16, 16):
        have = call(program, given, tmp_path, "--device=local-task", f"--task_topology_group_count={workers}")
        np.testing.assert_array_equal(have, want)
    again = load_module(program[1], function="call")
    for _ in range(20):
        np.testing.assert_array_equal(again(*given)[0], want)


PLAIN = spec_of((28, 28), 32, 32, NARROW)


@pytest.mark.parametrize(
    ("spec", "target", "takes"),
    [
        pytest.param(PLAIN, NARROW, True, id="plain"),
        pytest.param(spec_of((28, 28), 32, 32, WIDE), WIDE, True, id="avx512"),
        pytest.param(replace(PLAIN, images=None), NARROW, True, id="free batch"),
        pytest.param(replace(PLAIN, pads=()), NARROW, True, id="no pads"),
        pytest.param(replace(PLAIN, strides=(2, 1)), NARROW, False, id="strides"),
        pytest.param(replace(PLAIN, dilations=(1, 2)), NARROW, False, id="dilations"),
        pytest.param(replace(PLAIN, kernel=(3, 1)), NARROW, False, id="fewer taps"),
        pytest.param(replace(PLAIN, kernel=(5, 5)), NARROW, False, id="more taps"),
        pytest.param(replace(PLAIN, sizes=(6, 6)), NARROW, False, id="nine tiles"),
        pytest.param(replace(PLAIN, channels=20), NARROW, False, id="channels that fill no vectors"),
        pytest.param(replace(PLAIN, depthwise=True), NARROW, False, id="depthwise"),
        pytest.param(replace(PLAIN, dtype="f16"), NARROW, False, id="f16"),
        pytest.param(replace(PLAIN, pads=(), x_last=False), NARROW, False, id="channels first"),
    ],
)
def test_which_are_taken(spec: WindowSpec, target: Target, takes: bool) -> None:
    assert (winograd_tiles(spec, target) is not None) == takes
    texts = "".join(emit_window(spec, target).values())
    assert ("_claim" in texts) == takes and texts.count("= flow.dispatch @") == 1
