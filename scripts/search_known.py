"""Tiles of Triton's attention kernels with all sizes known, on drawn shapes: what search_tiles.py, whose kernels take lengths
when they are launched, does not tell.

    python scripts/search_known.py build FOLDER --drawn 2:90   # anywhere, no GPU: 90 attentions drawn with seed 2
    python scripts/search_known.py build FOLDER --drawn 6:100,7:100 --kind decode   # those with one query alone
    python scripts/search_known.py build FOLDER --drawn 6:100 --kind short   # many queries and few keys; cross: not as many
    python scripts/search_known.py build FOLDER                # those of seed 0 that took longer than the fastest other
    python scripts/search_known.py run FOLDER OUT              # on a Hopper GPU, with torch and CuPy: OUT/tiles-known.csv
    python scripts/search_known.py report OUT                  # anywhere: the best tiles of each shape, beside the others

Each slow case of seed 0 has a neighbour: the same heads and head dims, other lengths. That shows how far tiles carry. All times go
into the table that kernels take their tiles from (`search_tiles.py table` reads both files); benchmarks report another seed. Tried
are the tiles that the table ranks first, in both orders of workgroups where a mask is causal, and some that it does not have.
`run` takes the slowest cases first, and ends by itself when its seconds are over.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import random
import re
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parent.parent))

import bench_gpu
from gpu_loading import load_kernels, start_slices
from search_tiles import Times, label

from onnx_fa.kernels.plan.folding import fold_queries
from onnx_fa.kernels.triton.config import FEW, HELD, MULTIPROCESSORS
from onnx_fa.spec.attention import AttentionSpec
from onnx_fa.spec.drawn_cases import REPORTED_SEED, draw_cases, title_of

MEASURED, SEED = Path("benchmarks/drawn-0-h100.csv"), 0
"""What the drawn cases of that seed took before anything was searched with known sizes."""
SLOW = 1.005
"""Above that a case counts as slower than the fastest other."""
RANKED, REORDERED, SPLIT = 4, 1, 1
"""So many tiles of the table are tried, so many of them in the other order of workgroups, and of those for a few queries so many
with twice and half as many parts."""
STAY = {
    64: ((192, 128, 4, 2, 3), (256, 64, 4, 3, 3), (192, 64, 4, 3, 3)),
    128: ((128, 128, 4, 2, 3), (192, 64, 4, 2, 3), (192, 64, 4, 3, 3)),
    256: ((128, 64, 4, 2, 3),),
}
FURTHER = {
    64: ((128, 64, 8, 3, 0), (128, 128, 8, 2, 0), (64, 128, 4, 3, 1), *STAY[64]),
    128: ((128, 64, 8, 3, 0), (128, 64, 8, 2, 1), (128, 128, 4, 3, 2), *STAY[128]),
    256: ((128, 64, 8, 2, 1), *STAY[256]),
}
"""By the most columns: BM, BN, warps, stages and overlap of tiles that the table does not have, or has for few shapes, as those of
workgroups that STAY."""
FURTHER_FEW = ((64, 2, 4), (32, 1, 4), (128, 4, 2), (64, 4, 1))
"""For a few queries: BN, warps and stages that are tried with as many parts as the tiles in use have."""
FURTHER_ONE = ((64, 2, 4), (64, 4, 2), (32, 1, 4), (128, 4, 2), (128, 2, 3))
NOVEL, NOVEL_KEYS, SPLIT_ONE = ((64, 4, 3), (32, 2, 3), (128, 8, 2)), 512, 3
"""The same where one query alone is searched; with up to NOVEL_KEYS also those of NOVEL, which the table does not have. Of
SPLIT_ONE are twice and half as many parts tried."""
RANKED_SHORT = 2
"""Tiles of the table that are tried beside those of all keys in one block, WHOLE."""
ANY_KEYS = 16
"""Keys of a block, in the table, where a block is of all keys."""
WHOLE = ((64, 4, 1, 0), (64, 4, 1, HELD), (64, 4, 3, HELD), (128, 8, 3, HELD))
"""BM, warps, stages and overlap where all keys are one block."""
CLUSTERED = ((64, 2, 3), (128, 4, 3), (64, 4, 3), (128, 4, 2))
"""BN, warps and stages of workgroups that are a cluster."""
CLUSTER_KEYS, CLUSTER_SHARED, CLUSTER_GROUPS, CLUSTER_ONE = 8192, 3, 1100, 100
"""Keys up to which clusters are tried, heads that share them, most workgroups, and fewest of less than eight parts."""
IDLE_KEYS, IDLE_PARTS = 1024, (2, 4, 8)
"""Of many queries in less workgroups than multiprocessors, from so many keys on, so many parts of the keys are tried."""
OF_ONE_TILE = {64: 4, 128: 2}
"""Heads whose columns are two tiles are tried as one tile of so many columns, too, with so many tiles of the table."""
SIZES = ("D", "Dv", "causal", "heads", "Sq", "Skv")
PEERS = ("FlashAttention-2", "cuDNN")


def slow_cases() -> list[tuple[float, AttentionSpec]]:
    """The drawn cases that took longer than the fastest other, by how much, the slowest first."""
    from onnx_fa.benchmark.plot import medians, read_csv

    found, times = [], medians(read_csv(MEASURED))
    for case in draw_cases("gpu", SEED, 100):
        ms = times[case.title]
        ratio = ms[bench_gpu.KERNEL] / min(ms[p] for p in PEERS if p in ms)
        if ratio > SLOW:
            found.append((ratio, case.spec))
    return sorted(found, key=lambda x: -x[0])


def neighbour(spec: AttentionSpec) -> AttentionSpec:
    """The same attention with lengths that are up to a third longer or shorter, multiples of 64 where they were."""
    rng = random.Random(f"beside {title_of(spec)}")

    def moved(length: int, by: float) -> int:
        found = max(64, int(length * by))
        return max(64, (found + 32) // 64 * 64) if length % 64 == 0 else found

    keys, queries = 2 ** rng.uniform(-0.4, 0.4), 2 ** rng.uniform(-0.4, 0.4)
    Skv = moved(int(spec.Skv), keys)
    Sq = {spec.Skv: Skv, 1: 1}.get(spec.Sq) or moved(int(spec.Sq), queries)
    if Skv == spec.Skv:  # the shortest length
        Skv += 64
        Sq = Skv if spec.Sq == spec.Skv else Sq
    return replace(spec, Sq=Sq, Skv=Skv)


@contextmanager
def one_tile() -> Iterator[None]:
    """Within it, the columns of every head are one tile."""
    from onnx_fa.kernels.triton import columns

    least, columns.LEAST_CUT = columns.LEAST_CUT, columns.WIDEST_TILE
    try:
        yield
    finally:
        columns.LEAST_CUT = least


def candidates(
    spec: AttentionSpec, ranked: int = RANKED, *, decode: bool = False, further: bool = True
) -> Iterator[Any]:
    """The configurations that are tried for a spec (already folded), the one in use first, and so many of the table. `decode`: more
    of those for a few queries, as one query alone is searched; `further`: those for many that the table has for few shapes."""
    from onnx_fa.kernels.tiles.database import shape_table
    from onnx_fa.kernels.tiles.shapes import read_shapes
    from onnx_fa.kernels.triton.by_shape import expected, order_of, shape_of
    from onnx_fa.kernels.triton.columns import columns_computed
    from onnx_fa.kernels.triton.config import MOST_SPLITS, PERSISTENT, TritonConfig, padded, power_of_two
    from onnx_fa.kernels.triton.held import with_all_keys
    from onnx_fa.kernels.triton.tiles import can_run, forms_of, is_few, tuned

    table, shape = read_shapes(shape_table(90)), shape_of(spec)
    assert table is not None and shape is not None
    forms, few = forms_of(spec), is_few(spec)
    used = tuned(spec, 90)[0]

    def ordered(BM: int, BN: int, warps: int, stages: int, overlap: int, splits: int = 1) -> TritonConfig:
        order = order_of(spec, tile=BM if overlap == PERSISTENT else 0)
        BN = padded(int(spec.Skv)) if overlap == HELD else BN
        return TritonConfig(BM, BN, warps, stages, order=order, overlap=overlap, splits=splits)

    def fits(tiles: Any) -> bool:
        config = TritonConfig(**with_all_keys(tiles, shape.Skv))
        parts = config.splits <= power_of_two(-(-shape.Skv // config.BN))
        return (config.BM <= 16) == few and forms[config.overlap] and parts and can_run(spec, config, 90)

    found = [used, *(ordered(**t) for t in table.ranked(shape, fits, expected)[:ranked])]
    if few:
        further_few = FURTHER_ONE + NOVEL * (shape.Skv <= NOVEL_KEYS) if decode else FURTHER_FEW
        found += [replace(used, BN=BN, warps=warps, stages=stages) for BN, warps, stages in further_few]
        found = [c for c in dict.fromkeys(found) if fits(asdict(c))]
        for first in found[: SPLIT_ONE if decode else SPLIT]:
            for splits in (first.splits * 2, first.splits // 2, 1):
                if 1 <= splits <= MOST_SPLITS and fits(asdict(first) | {"splits": splits}):
                    found.append(replace(first, splits=splits))
    elif further:
        columns = columns_computed(max(spec.D, spec.Dv))
        rest = FURTHER[next(most for most in FURTHER if columns <= most)]
        further = [ordered(*x) for x in rest]
        found += [c for c in further if forms[c.overlap] and can_run(spec, c, 90)]
        if spec.masks:
            found += [replace(c, order=1 - min(c.order, 1)) for c in list(dict.fromkeys(found))[:REORDERED]]
    yield from dict.fromkeys(found)


def short_candidates(spec: AttentionSpec) -> Iterator[Any]:
    """The same for many queries and few keys: what is in use, some of the table, and all keys in one block."""
    from onnx_fa.kernels.triton.config import TritonConfig, padded
    from onnx_fa.kernels.triton.tiles import can_run

    yield from candidates(spec, RANKED_SHORT, further=False)
    for BM, warps, stages, overlap in WHOLE:
        config = TritonConfig(BM, padded(int(spec.Skv)), warps, stages, overlap=overlap)
        if can_run(spec, config, 90) and 2 * int(spec.Sq) > BM:
            yield config


def is_short(spec: AttentionSpec) -> bool:
    """Whether a spec has many queries and few keys."""
    from onnx_fa.kernels.triton.held import can_hold

    folded = fold_queries(spec)
    return can_hold(folded) and int(folded.Sq) > 2 * FEW


def is_idle(spec: AttentionSpec) -> bool:
    """Whether a spec without a mask has many queries in less workgroups than multiprocessors, and not few keys."""
    folded = fold_queries(spec)
    blocks = -(-int(folded.Sq) // 64) * math.prod(int(d) for d in (*folded.batch, folded.Hq))
    return not spec.masks and int(folded.Sq) > 2 * FEW and blocks < MULTIPROCESSORS and int(folded.Skv) >= IDLE_KEYS


def idle_candidates(spec: AttentionSpec) -> Iterator[Any]:
    """The same where workgroups leave multiprocessors idle: what is in use, some of the table, and keys in parts."""
    from onnx_fa.kernels.triton.by_shape import SPLIT_TILES
    from onnx_fa.kernels.triton.config import TritonConfig

    yield from candidates(spec, RANKED_SHORT, further=False)
    yield from (TritonConfig(**SPLIT_TILES, splits=parts) for parts in IDLE_PARTS)


def is_clustered(spec: AttentionSpec) -> bool:
    """Whether a spec has one query, and few keys that several heads share."""
    return spec.Sq == 1 and int(spec.Skv) <= CLUSTER_KEYS and spec.group >= CLUSTER_SHARED


def cluster_candidates(spec: AttentionSpec) -> Iterator[Any]:
    """The same for few keys of one query: what is in use, some of the table, and clusters of parts."""
    from onnx_fa.kernels.triton.config import CLUSTER, TritonConfig
    from onnx_fa.kernels.triton.tiles import can_run

    yield from list(candidates(spec, RANKED_SHORT, further=False))[:RANKED_SHORT]
    heads = math.prod(int(d) for d in (*spec.batch, spec.Hq))
    for splits in (8, 4, 2):
        if heads * splits > CLUSTER_GROUPS or (splits < 8 and heads * splits < CLUSTER_ONE):
            continue
        for BN, warps, stages in CLUSTERED[: None if splits == 8 else 2]:
            config = TritonConfig(16, BN, warps, stages, overlap=CLUSTER, splits=splits)
            if BN * splits < 2 * int(spec.Skv) and can_run(spec, config, 90):
                yield config


KINDS: dict[str, Callable[[AttentionSpec], bool]] = {
    "all": lambda spec: True,
    "decode": lambda spec: spec.Sq == 1,
    "short": is_short,
    "cross": lambda spec: is_short(spec) and spec.Sq != spec.Skv,
    "idle": is_idle,
    "cluster": is_clustered,
}
"""Which of the drawn cases are searched."""
CANDIDATES = {
    "short": short_candidates,
    "cross": short_candidates,
    "idle": idle_candidates,
    "cluster": cluster_candidates,
}
"""What is tried for them, if not what is tried for all."""


def wanted_cases(drawn: str) -> Iterator[tuple[float, dict[str, AttentionSpec]]]:
    """Specs that are given the same candidates, by what they are, and how slow they were; `drawn` is SEED:COUNT, or some with
    commas between them, or empty for the slow cases of MEASURED, each with its neighbour."""
    if not drawn:
        yield from ((ratio, {"drawn": slow, "neighbour": neighbour(slow)}) for ratio, slow in slow_cases())
        return
    for said in drawn.split(","):
        seed, count = map(int, said.split(":"))
        yield from ((1.0, {"drawn": case.spec}) for case in draw_cases("gpu", seed, count))


def build(folder: Path, only: str, drawn: str, kind: str) -> None:
    """Compiles the candidates of the wanted cases of a kind, and writes manifest.json after each."""
    from onnx_fa.errors import UnsupportedError
    from onnx_fa.kernels.triton import emit_exactly
    from onnx_fa.kernels.triton.by_shape import shape_of
    from onnx_fa.kernels.triton.columns import columns_computed
    from onnx_fa.kernels.triton.config import power_of_two
    from onnx_fa.processes import DEFAULT
    from onnx_fa.spec.target import parse_target

    target, items = parse_target("cuda"), list[dict[str, Any]]()
    folder.mkdir(parents=True, exist_ok=True)
    versions = bench_gpu._versions()
    for ratio, pair in wanted_cases(drawn):
        slow = pair["drawn"]
        if not re.search(only, title_of(slow)) or not KINDS[kind](slow):
            continue
        tried = CANDIDATES.get(kind) or partial(candidates, decode=kind == "decode")
        wanted = {False: [c for spec in pair.values() for c in tried(fold_queries(spec))]}
        width, one = columns_computed(slow.D), power_of_two(slow.D)
        if width < one and one in OF_ONE_TILE and kind == "all":
            with one_tile():
                wanted[True] = [c for x in pair.values() for c in candidates(fold_queries(x), OF_ONE_TILE[one])]
        for what, spec in pair.items():
            kernels, n = [], len(items)

            def made(work: tuple[str, Any], spec: AttentionSpec = spec) -> Any:
                try:
                    return emit_exactly(spec, target, "fa", work[1], 90, DEFAULT)
                except UnsupportedError as e:
                    print(f"{title_of(spec)}: {work[1]}: {e}", flush=True)
                    return None

            for whole, configs in wanted.items():
                named = [(label(asdict(c)) + f" {one} columns" * whole, c) for c in dict.fromkeys(configs)]
                with one_tile() if whole else nullcontext(), ThreadPoolExecutor(2) as pool:
                    found = list(pool.map(made, named))
                for (name, _), kernel in zip(named, found, strict=True):
                    if kernel is not None:
                        entry = bench_gpu.entry_of(kernel, folder, f"k{n}_{len(kernels)}")
                        kernels.append(entry | {"what": name})
            shape = shape_of(fold_queries(spec))
            assert shape is not None
            sizes = [getattr(shape, name) for name in SIZES]
            items.append({"what": what, "ratio": ratio, "spec": spec.to_dict(), "shape": sizes, "kernels": kernels})
            print(f"{title_of(spec)} ({what}): {', '.join(k['what'] for k in kernels)}", flush=True)
            (folder / "manifest.json").write_text(json.dumps({"versions": versions, "cases": items}))


def run(folder: Path, out: Path, seconds: float) -> None:
    """Checks and times the candidates and the others of each case, until `seconds` are over."""
    started, loading = time.monotonic(), start_slices(__file__, "load", str(folder))
    import torch

    torch.zeros(1, device="cuda")
    manifest = json.loads((folder / "manifest.json").read_text())
    out.mkdir(parents=True, exist_ok=True)
    for process in loading:
        process.wait()
    print(f"driver: {time.monotonic() - started:.0f} s", flush=True)
    with (out / "tiles-known.csv").open("w", newline="") as file:
        file.write(f"# device: {torch.cuda.get_device_name()}\n# torch: {torch.__version__}\n")
        file.write(f"# cuDNN: {torch.backends.cudnn.version()}\n# date: {time.strftime('%Y-%m-%d')}\n")
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("case", "kind", *SIZES, "what", "ms"))
        for n, item in enumerate(manifest["cases"]):
            if time.monotonic() - started > seconds:
                print(f"{seconds} s are over: {len(manifest['cases']) - n} cases are left out", flush=True)
                break
            spec = AttentionSpec.from_dict(item["spec"])
            samples = bench_gpu.Samples(title_of(spec), spec)
            for what, make in bench_gpu.torch_contestants(samples.kind, spec, False):
                if what in PEERS:
                    samples.contestant(what, make)
            for kernel in item["kernels"]:
                samples.contestant(kernel["what"], partial(bench_gpu.own_kernel, kernel, spec, folder))
            for what in dict.fromkeys(r[1] for r in samples.rows):
                ms = " ".join(f"{r[4]:.5f}" for r in samples.rows if r[1] == what)
                writer.writerow((samples.name, item["what"], *item["shape"], what, ms))
            file.flush()
            print(f"{time.monotonic() - started:.0f} s", item["what"], samples.name, samples.medians(), flush=True)
            print(*samples.notes, sep="\n", flush=True)


def read_known(path: Path) -> Times:
    """Medians of attentions whose sizes are known, of a file that `run` wrote; none where there is no such file. Tiles that were
    tried for heads in one tile of columns are those of such heads."""
    times = defaultdict[tuple[int, ...], dict[str, float]](dict)
    for r in _measured(path) if path.is_file() else ():
        D, Dv, *rest = (int(r[c]) for c in SIZES)
        what, _, columns = r["what"].partition(" ")
        if columns:
            D = Dv = int(columns.split()[0])
        times[D, Dv, *rest][_with_any_keys(what)] = float(r["ms"])
    return times


def _with_any_keys(what: str) -> str:
    """Tiles whose block of keys is all of them, as the table has them: the same for any number of keys (held.py)."""
    size, *rest = what.split("/")
    return "/".join([f"{size.partition('x')[0]}x{ANY_KEYS}", *rest]) if rest and rest[2] == str(HELD) else what


def _measured(path: Path) -> list[dict[str, str]]:
    """The rows of what `run` wrote, with medians in place of samples."""
    lines = path.read_text().splitlines()
    rows = csv.DictReader(x for x in lines if not x.startswith("#"))
    return [r | {"ms": str(statistics.median(map(float, r["ms"].split())))} for r in rows]


def report(out: Path) -> None:
    """Each shape: the tiles, the fastest first, as multiples of the time of the fastest other; the first of a case are in use."""
    times: dict[tuple[str, str], dict[str, float]] = defaultdict(dict)
    for r in _measured(out / "tiles-known.csv"):
        times[r["kind"], r["case"]][r["what"]] = float(r["ms"])
    for (kind, case), found in times.items():
        least = min(ms for what, ms in found.items() if what in PEERS)
        own = [(ms, what) for what, ms in found.items() if what not in PEERS]
        listed = ", ".join(f"{what} {ms / least:.2f}" for ms, what in sorted(own))
        print(f"{kind} {case}: {least:.4f} ms; in use {own[0][1]} {own[0][0] / least:.2f}: {listed}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("step", choices=("build", "run", "load", "report"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("out", type=Path, nargs="?", default=Path("benchmarks"))
    parser.add_argument("--only", default="", help="build: a regular expression for names of cases")
    parser.add_argument("--drawn", default="", metavar="SEED:COUNT,...", help="build: attentions drawn at random")
    parser.add_argument("--kind", choices=tuple(KINDS), default="all", help="build: of the drawn ones")
    parser.add_argument("--seconds", type=float, default=600, help="run: begin no case after so many")
    parser.add_argument("--slice", default="0:1", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if str(REPORTED_SEED["gpu"]) in (said.partition(":")[0] for said in args.drawn.split(",")):
        parser.error(f"--drawn {args.drawn}: benchmarks report that seed; tiles are searched on others")
    match args.step:
        case "build":
            build(args.folder, args.only, args.drawn, args.kind)
        case "run":
            run(args.folder, args.out, args.seconds)
        case "load":
            load_kernels(args.folder, args.slice)
        case "report":
            report(args.folder)


if __name__ == "__main__":
    main()
