"""Tiles of Triton's attention kernels over many shapes: what kernels/triton/tiles.py and its database rest on.

    python scripts/search_tiles.py build FOLDER     # anywhere, no GPU: a kernel for each set of tiles, for any length
    python scripts/search_tiles.py run FOLDER OUT   # on a Hopper GPU, with torch and CuPy: OUT/tiles.csv
    python scripts/search_tiles.py report OUT       # anywhere: the best tiles of each shape, beside the others
    python scripts/search_tiles.py table OUT        # anywhere: OUT/tiles.csv as the table that kernels take their tiles from

A kernel is compiled for a head dim, a mask and a set of tiles, and takes batch and lengths when it is launched, so that one serves
all shapes. Each is held against float32 on some heads, and timed beside FlashAttention-2 and cuDNN, in graphs of launches that take
turns on other keys and values, as many as the cache does not hold.
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
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from gpu_loading import load_kernels, start_slices

from onnx_fa.spec.attention import AttentionSpec
from onnx_fa.spec.terms import Causal

DIMS = ((64, 64), (80, 80), (128, 128), (192, 128), (96, 96), (256, 256), (160, 160), (32, 32))
DECODED = ((128, 4), (64, 1), (128, 1), (256, 1))
"""Head dim, and queries that share keys."""
MANY = (
    *[
        (64, 64, 4, 3, 0),
        (64, 64, 4, 2, 0),
        (64, 32, 4, 3, 0),
        (128, 64, 8, 3, 0),
        (128, 64, 4, 2, 0),
        (128, 32, 4, 3, 0),
    ],
    *[(64, 64, 4, 2, 1), (64, 128, 4, 2, 1), (128, 128, 4, 2, 2), (128, 64, 4, 2, 2), (128, 64, 4, 3, 2)],
)
"""BM, BN, warps, stages, overlap."""
FEW = ((64, 2, 4), (128, 2, 3), (128, 4, 2), (32, 1, 4), (128, 4, 1), (64, 4, 1), (64, 4, 2))
"""BN, warps, stages, each with all SPLITS."""
SPLITS = (1, 2, 4, 8, 16, 32)
CAPACITY = 1024
"""Heads of all batch rows, for which a kernel of few queries is compiled; fewer can be launched."""
SHAPES, SHAPES_OF_DECODE = 24, 28
LEFT_OUT, KEPT_BELOW = "128x64/8/3/0/", 768
"""Tiles that are fast for lengths known at run time alone: with them in the kernel, 64x64 and 64x128 of four warps were faster, but
for plain attention with fewer keys than that."""
LEFT_OUT_OF_FEW = "16x128/8/"
"""Of a few queries, tiles that are the fastest of three in a hundred shapes, by 6% at the most, and slower by more beside these."""
LARGE = ((32, 1024), (32, 2048), (32, 4096), (8, 8192), (64, 512), (256, 1024))
"""Heads and lengths that fill a GPU, which are seldom drawn."""
GFLOP, TURNS = 150, 256 << 20
LEAST_MS, REPLAYS = 1.0, 5
ALLOWED = 3e-3


def spec_of(D: int, Dv: int, causal: bool, rows: int = 0) -> AttentionSpec:
    """Batch and lengths known when it is launched; with `rows`, so many queries of each of CAPACITY heads."""
    lengths: dict[str, Any] = {"Sq": "s" if causal else "q", "Skv": "s" if causal else "k", "batch": ("b",)}
    if rows:
        lengths = {"Sq": rows, "Skv": "k", "batch": (CAPACITY,)}
    masks = (Causal(),) if causal else ()
    return AttentionSpec(dtype="f16", Hq=1, Hkv=1, D=D, Dv=Dv, scale=D**-0.5, masks=masks, **lengths)


def kernels() -> Iterator[tuple[AttentionSpec, Any]]:
    """Specs and configurations."""
    from onnx_fa.kernels.triton.config import TritonConfig
    from onnx_fa.kernels.triton.tiles import can_run

    yield from _few_kernels()
    for D, Dv in DIMS:
        for causal in (False, True):
            for BM, BN, warps, stages, overlap in MANY:
                spec = spec_of(D, Dv, causal)
                for order in (1, 0) if causal else (0,):
                    config = TritonConfig(BM, BN, warps, stages, order=order, overlap=overlap)
                    if can_run(spec, config, 90):
                        yield spec, config


def _few_kernels() -> Iterator[tuple[AttentionSpec, Any]]:
    from onnx_fa.kernels.triton.config import TritonConfig, few_parts
    from onnx_fa.kernels.triton.tiles import can_run

    for D, rows in DECODED:
        for BN, warps, stages in FEW:
            for splits in SPLITS:
                spec, config = spec_of(D, D, False, rows), TritonConfig(16, BN, warps, stages, splits=splits)
                if can_run(spec, config, 90) and few_parts(splits, rows, D):
                    yield spec, config


def label(config: dict[str, int]) -> str:
    """BM x BN, then warps, stages, overlap, splits and order."""
    rest = "/".join(str(config[k]) for k in ("warps", "stages", "overlap", "splits", "order"))
    return f"{config['BM']}x{config['BN']}/{rest}"


def build(folder: Path, only: str) -> None:
    from onnx_fa.errors import UnsupportedError
    from onnx_fa.kernels.triton import ptx
    from onnx_fa.kernels.triton.module import program_of

    folder.mkdir(parents=True, exist_ok=True)

    def made(work: tuple[int, tuple[AttentionSpec, Any]]) -> dict[str, Any] | None:
        n, (spec, config) = work
        try:
            code = ptx.compile_program(program_of(spec, config, "fa", 90), 90, config.warps, config.stages)
        except UnsupportedError as e:
            print(f"{n} {config}: {e}", flush=True)
            return None
        (folder / f"k{n}.ptx").write_text(code.text)
        print(n, label(asdict(config)), flush=True)
        facts = {"file": f"k{n}.ptx", "threads": 32 * code.warps, "shared": code.shared, "scratch": code.scratch}
        return {"spec": spec.to_dict(), "config": asdict(config), **facts}

    wanted = [k for k in enumerate(kernels()) if re.search(only, f"D{k[1][0].D} {label(asdict(k[1][1]))}")]
    with ThreadPoolExecutor(2) as pool:
        found = [x for x in pool.map(made, wanted) if x]
    (folder / "kernels.json").write_text(json.dumps(found))


# There, with torch. Imports of what only that machine has stay inside.


def shapes(few: int, D: int, Dv: int, causal: bool) -> list[tuple[int, int, int]]:
    """Heads of all batch rows, queries and keys."""
    rng, found = random.Random(f"{few} {D} {Dv} {causal}"), list[tuple[int, int, int]]()
    found += [(8, few, keys) for keys in (1024, 2048, 4096, 8192)] if few else [(n, s, s) for n, s in LARGE]
    most = len(found) + (SHAPES_OF_DECODE - 4 if few else SHAPES)
    while len(found) < most:
        heads = rng.choice((4, 8, 16, 32, 64, 128, 256, 512, 1000))
        Skv = int(64 * 512 ** rng.random())
        Sq = few or (int(64 * 512 ** rng.random()) if not causal and rng.random() < 0.25 else Skv)
        gflop = 2e-9 * heads * Sq * Skv * (D + Dv) / (1 + causal)
        if gflop <= GFLOP and heads * (Sq + Skv) * (D + Dv) <= 1 << 28:
            found.append((heads, Sq, Skv))
    return found


def launch(item: dict[str, Any], folder: Path, heads: int, Sq: int, Skv: int, out: Any) -> Callable[..., None]:
    """A call that launches a kernel on q, k and v."""
    import cupy
    import numpy as np
    import torch

    spec, config = AttentionSpec.from_dict(item["spec"]), item["config"]
    function = cupy.RawModule(path=str(folder / item["file"])).get_function("fa")
    if item["shared"] > 48 * 1024:
        function.max_dynamic_shared_size_bytes = item["shared"]
    behind = [out]
    if config["splits"] > 1:
        rows = CAPACITY * Sq
        part = torch.empty(config["splits"] * rows * spec.Dv, device="cuda")
        stat = torch.empty(2 * config["splits"] * rows, device="cuda")
        behind = [torch.zeros(CAPACITY, device="cuda", dtype=torch.int32), part, stat, out]
    grid = (heads * -(-Sq // config["BM"]), config["splits"])
    if item["scratch"]:
        behind.append(torch.empty(item["scratch"] * grid[0] + 128, device="cuda", dtype=torch.uint8))
    sizes = {"b": heads, "s": Skv, "q": Sq, "k": Skv}
    constants = [np.int32(sizes[s]) for s in spec.symbols]

    def call(*operands: Any) -> None:
        pointers = [np.uint64(x.data_ptr()) for x in (*operands, *behind)]
        with cupy.cuda.ExternalStream(torch.cuda.current_stream().cuda_stream):
            function(grid, (item["threads"],), (*pointers, *constants), shared_mem=item["shared"])

    return call


def timed(call: Callable[..., Any], turns: list[tuple[Any, ...]]) -> float:
    """Milliseconds of a launch: the median over graphs, each of launches that take turns, for LEAST_MS at the least."""
    import torch

    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        call(*turns[0])
    torch.cuda.synchronize()
    events = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
    events[0].record()
    call(*turns[-1])
    events[1].record()
    torch.cuda.synchronize()
    guess = max(0.003, events[0].elapsed_time(events[1]) - 0.01)
    many = max(1, min(200, int(LEAST_MS / guess)))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for n in range(many):
            call(*turns[n % len(turns)])
    found = []
    for _ in range(REPLAYS):
        events[0].record()
        graph.replay()
        events[1].record()
        torch.cuda.synchronize()
        found.append(events[0].elapsed_time(events[1]) / many)
    return statistics.median(found[1:])


def run(folder: Path, out: Path) -> None:
    import torch
    from torch.nn.attention import SDPBackend

    started = time.monotonic()
    for process in start_slices(__file__, "load", str(folder)):
        process.wait()
    print(f"driver: {time.monotonic() - started:.0f} s", flush=True)
    groups = defaultdict(list)
    for item in json.loads((folder / "kernels.json").read_text()):
        s = item["spec"]
        groups[s["Sq"] if isinstance(s["Sq"], int) else 0, s["D"], s["Dv"], bool(s["masks"])].append(item)
    out.mkdir(parents=True, exist_ok=True)
    with (out / "tiles.csv").open("w", newline="") as file:
        file.write(f"# device: {torch.cuda.get_device_name()}\n# torch: {torch.__version__}\n")
        file.write(f"# date: {time.strftime('%Y-%m-%d')}\n")
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("D", "Dv", "causal", "heads", "Sq", "Skv", "what", "ms"))
        for (few, D, Dv, causal), items in groups.items():
            for heads, Sq, Skv in shapes(few, D, Dv, causal):
                torch.manual_seed(0)
                size = 2 * heads * Skv * (D + Dv)
                copies = max(1, min(64, -(-TURNS // size))) if few else 1
                q = torch.randn(heads, 1, Sq, D, device="cuda", dtype=torch.half)
                ks, vs = (torch.randn(copies, heads, 1, Skv, d, device="cuda", dtype=torch.half) for d in (D, Dv))
                turns = [(q, k, v) for k, v in zip(ks, vs, strict=True)]
                want = reference(q[:4], ks[0, :4], vs[0, :4], causal)
                row = (D, Dv, int(causal), heads, Sq, Skv)
                for name, backend in (("FA2", SDPBackend.FLASH_ATTENTION), ("cuDNN", SDPBackend.CUDNN_ATTENTION)):
                    try:
                        ms = timed(partial(peer, backend, few, causal), turns)
                        writer.writerow((*row, name, f"{ms:.5f}"))
                    except RuntimeError as e:
                        print(row, name, " ".join(str(e).split())[:80], flush=True)
                for item in items:
                    c = item["config"]
                    what = label(c)
                    if c["splits"] > 1 and c["splits"] * 32 > Skv:
                        continue
                    result = torch.full((heads, 1, Sq, Dv), math.nan, device="cuda", dtype=torch.half)
                    call = launch(item, folder, heads, Sq, Skv, result)
                    call(*turns[0])
                    off = float((result[:4].float() - want).norm() / want.norm())
                    if off <= ALLOWED:
                        writer.writerow((*row, what, f"{timed(call, turns):.5f}"))
                    else:
                        print("WRONG", row, what, off, flush=True)
            file.flush()
            print(few, D, Dv, causal, f"{time.monotonic() - started:.0f} s", flush=True)


def peer(backend: Any, few: int, causal: bool, q: Any, k: Any, v: Any) -> None:
    import torch
    from torch.nn.attention import sdpa_kernel

    q = q.transpose(1, 2) if few else q  # as heads that share keys
    with sdpa_kernel(backend):
        torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=few > 1)


def reference(q: Any, k: Any, v: Any, causal: bool) -> Any:
    import torch

    found = []
    for i in range(len(q)):
        s = (q[i].float() @ k[i].float().transpose(-1, -2)) * q.shape[-1] ** -0.5
        if causal:
            s = s.masked_fill(~torch.ones(s.shape[-2:], device="cuda", dtype=torch.bool).tril(), -math.inf)
        found.append(torch.softmax(s, -1) @ v[i].float())
    return torch.stack(found)


Times = dict[tuple[int, ...], dict[str, float]]
"""ms by D, Dv, causal, heads, Sq and Skv, then by tiles or peer."""


def read(out: Path) -> tuple[Times, list[str]]:
    """The times, and the comments."""
    lines = (out / "tiles.csv").read_text().splitlines()
    times: Times = defaultdict(dict)
    for r in csv.DictReader(x for x in lines if not x.startswith("#")):
        shape = tuple(int(r[c]) for c in ("D", "Dv", "causal", "heads", "Sq", "Skv"))
        times[shape][r["what"]] = float(r["ms"])
    return times, [x[2:] for x in lines if x.startswith("#")]


def report(out: Path) -> None:
    for shape, found in read(out)[0].items():
        own = sorted((ms, what) for what, ms in found.items() if "/" in what)
        peers = {w: ms for w, ms in found.items() if "/" not in w}
        to_peer = own[0][0] / min(peers.values()) if peers else math.nan
        best = ", ".join(f"{w} {ms / own[0][0]:.2f}" for ms, w in own[:4])
        D, Dv, causal, heads, Sq, Skv = shape
        where = f"D{D} Dv{Dv}{' causal' * causal} heads {heads} Sq{Sq} Skv{Skv}"
        print(where, f"{own[0][0]:.4f} ms, {to_peer:.2f} of the best peer: {best}")


def is_left_out(what: str, shape: tuple[int, ...]) -> bool:
    """Whether what tiles took on a shape of kernels that take lengths when they are launched says nothing of others: `launch` knows
    no dispatch that combines parts, and the last workgroup did that where it no longer does."""
    from onnx_fa.kernels.triton.config import few_parts

    _, Dv, causal, _, Sq, Skv = shape
    size, *rest = what.split("/")
    if rest and size.startswith("16x") and not few_parts(int(rest[3]), Sq, Dv):
        return True
    return what.startswith(LEFT_OUT_OF_FEW) or (what.startswith(LEFT_OUT) and (bool(causal) or Skv >= KEPT_BELOW))


def fastest_order(found: dict[str, float]) -> dict[str, float]:
    """ms by tiles without their order: of both orders the faster."""
    fastest: dict[str, float] = {}
    for what, ms in found.items():
        if "/" in what:
            tiles = what.rpartition("/")[0]
            fastest[tiles] = min(ms, fastest.get(tiles, ms))
    return fastest


def without_left_out(shape: tuple[int, ...], found: dict[str, float]) -> dict[str, float]:
    """What was taken, without the tiles that are left out."""
    return {what: ms for what, ms in found.items() if not is_left_out(what, shape)}


def table_text(out: Path) -> str:
    """What kernels take their tiles from (onnx_fa/kernels/tiles/shapes.py): of a folder with tiles.csv, with
    tiles-known.csv of kernels that knew their sizes, and tiles-cluster.csv of those that are clusters (search_known.py)."""
    from search_known import read_known

    from onnx_fa.kernels.triton.columns import columns_computed

    times, heads = read(out)
    # The order of the workgroups follows from a rule (by_shape.py), and of both the faster counts.
    fastest = [(shape, fastest_order(without_left_out(shape, found))) for shape, found in times.items()]
    known, apart = (
        [(shape, fastest_order(found)) for shape, found in read_known(out / f"tiles-{name}.csv").items()]
        for name in ("known", "cluster")
    )
    # A head of columns that kernels do not have so is nobody's neighbour.
    known = [(shape, found) for shape, found in known if all(columns_computed(d) == d for d in shape[:2])]
    labels = sorted({w for _, found in [*fastest, *known, *apart] for w in found})
    names = ("warps", "stages", "overlap", "splits")
    tiles = []
    for x in labels:
        size, *rest = x.split("/")
        tiles.append(
            dict(zip(("BM", "BN"), map(int, size.split("x")), strict=True))
            | dict(zip(names, map(int, rest), strict=True))
        )

    def rows(measured: list[tuple[tuple[int, ...], dict[str, float]]]) -> str:
        found = [[*shape, *(ms.get(w) for w in labels)] for shape, ms in measured if ms]
        return ",\n".join("  " + json.dumps(row) for row in found)

    facts = dict(h.split(": ", 1) for h in heads if ": " in h)
    measured = {"machine": facts["device"], "date": facts["date"], "by": "scripts/search_tiles.py"}
    listed = ",\n".join("  " + json.dumps(t) for t in tiles)
    lists_of = {"tiles": listed, "shapes": rows(fastest), "known": rows(known), "apart": rows(apart)}
    lists = ",\n".join(f' "{name}": [\n{text}\n ]' for name, text in lists_of.items())
    return f'{{\n "measured": {json.dumps(measured)},\n{lists}\n}}\n'


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("step", choices=("build", "run", "load", "report", "table"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("out", type=Path, nargs="?", default=Path("benchmarks"))
    parser.add_argument("--only", default="", help="build: a regular expression for kernels, as `D80 64x64/4/3/0/1/0`")
    parser.add_argument("--slice", default="0:1", help=argparse.SUPPRESS)
    args = parser.parse_args()
    match args.step:
        case "build":
            build(args.folder, args.only)
        case "run":
            run(args.folder, args.out)
        case "load":
            load_kernels(args.folder, args.slice)
        case "report":
            report(args.folder)
        case "table":
            from onnx_fa.kernels.tiles.database import package_path, shape_table

            package_path(shape_table(90)).write_text(table_text(args.folder))


if __name__ == "__main__":
    main()
