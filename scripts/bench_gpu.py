"""Attention on an NVIDIA GPU: this project's modules against torch (FlashAttention-2, cuDNN, FlexAttention, eager, torch.compile)
and against what stock IREE makes of the same attention.

    python scripts/bench_gpu.py build FOLDER              # anywhere, no GPU: compiles every case to FOLDER
    python scripts/bench_gpu.py run FOLDER OUT [--iree BIN]   # on the GPU: needs torch, CuPy and IREE's runtime binaries (in BIN)
    python scripts/bench_gpu.py report OUT                # anywhere: OUT/gpu.csv again as gpu.md and gpu.png

With `--drawn SEED:COUNT` the cases are attentions drawn at random (onnx_fa/spec/drawn_cases.py), of which the kernel alone is built
and timed, and OUT has drawn-gpu.csv, .md and .png; with `--tiles`, also with the sets of tiles that it names.

Two times are taken of this project's modules: of the kernel (CUDA events around graphs of at least 20 launches of the module's own
code), which is what torch's contestants are timed by too, and of a whole call of the IREE runtime (iree-benchmark-module: real time
of invoking the function and waiting for it); stock IREE's unfused code has only the latter. Differential attention is a model of
two sites: its kernel time is that of two launches and a subtraction. Before anything is timed, results are compared with float64
on up to 768 rows of every head: relative norm error at most 2e-3 (bf16: 1e-2). gpu.csv holds every timed graph (ms per launch) and
call.
"""

from __future__ import annotations

import argparse
import csv
import dataclasses
import json
import math
import platform
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from gpu_loading import load_kernels, slice_of, start_slices

from onnx_fa.iree.run import BUFFERS_KEPT
from onnx_fa.kernels.plan.folding import fold_queries
from onnx_fa.kernels.triton.config import MULTIPROCESSORS, PERSISTENT, TritonConfig
from onnx_fa.kernels.triton.held import rows_of_workgroup
from onnx_fa.spec.attention import AttentionSpec
from onnx_fa.spec.cases import alibi, document, prefix
from onnx_fa.spec.drawn_cases import draw_cases
from onnx_fa.spec.terms import AddMask, Causal, SlidingWindow, Softcap

ALLOWED = {"f16": 2e-3, "bf16": 1e-2}
LAUNCHES, WARM, WARM_S = 12, 2, 0.03
"""Timed launches, and untimed ones before: at least so many, and so many seconds, in which the clocks rise."""
TURNS = 256 << 20
"""Bytes that decode walks through before it sees the same again: several times the cache."""
MOST_TURNS = 64
"""Operands of short decodes are so many at the most: those stay in the cache."""
DOCUMENTS = 12
SHAPES = ((32, 512), (16, 1024), (8, 2048), (4, 4096), (2, 8192), (1, 16384))
KERNEL = "onnx_fa"
KEPT = BUFFERS_KEPT["cuda"]
CALLS = {"onnx_fa, call": (), "onnx_fa, call, buffers kept": KEPT}
"""Ways to call the runtime: a program that allocates its output anew for each call, and one that keeps buffers."""
STOCK = "stock IREE, call, buffers kept"
LAMBDA = 0.8
"""The factor of differential attention's second softmax."""


def _spec(B: int, H: int, S: int, D: int, Hkv: int = 0, **changes: Any) -> AttentionSpec:
    base = {
        "dtype": "f16",
        "Hq": H,
        "Hkv": Hkv or H,
        "Sq": S,
        "Skv": S,
        "D": D,
        "Dv": D,
        "batch": (B,),
        "scale": D**-0.5,
    }
    return AttentionSpec(**(base | changes))  # type: ignore[arg-type]


def cases() -> Iterator[tuple[str, AttentionSpec]]:
    """(name, spec); the name's first word is the kind."""
    yield "plain B1 H32 S4096 D128", _spec(1, 32, 4096, 128)
    yield "causal B1 H32 S4096 D128", _spec(1, 32, 4096, 128, masks=(Causal(),))
    for S in (512, 1024, 2048, 4096, 8192, 16384):
        yield f"plain B1 H32 S{S} D64", _spec(1, 32, S, 64)
    yield "causal B1 H32 S4096 D128 bf16", _spec(1, 32, 4096, 128, masks=(Causal(),), dtype="bf16")
    yield "plain B1 H32 S4096 D64 bf16", _spec(1, 32, 4096, 64, dtype="bf16")
    for S in (1024, 2048, 4096):
        yield f"differential B1 H16 S{S} D64", _spec(1, 16, S, 64, Dv=128)
    for B, S in SHAPES:
        where = f"B{B} H16 S{S} D64"
        yield f"alibi {where}", _spec(B, 16, S, 64, masks=(alibi(16),))
        yield f"softcap {where}", _spec(B, 16, S, 64, mods=(Softcap(20.0),))
        yield f"window {where}", _spec(B, 16, S, 64, masks=(SlidingWindow(256, 0),))
        yield f"prefix {where}", _spec(B, 16, S, 64, masks=(prefix(256),))
        yield f"document {where}", _spec(B, 16, S, 64, masks=(document(B, S),))
        yield f"gqa {where}", _spec(B, 16, S, 64, Hkv=2, masks=(Causal(),))
    for B in (1, 4, 16):
        masks = AddMask((B, 256, 1, 1, 256), "f16"), AddMask((B, 1, 4, 256, 256), "f16")
        yield f"evoformer B{B} N256 H4 S256 D64", _spec(B, 4, 256, 64, batch=(B, 256), masks=masks)
    for S in (2048, 8192, 32768, 65536):
        yield f"decode B1 H32:8 Skv{S} D128", _spec(1, 32, S, 128, Hkv=8, Sq=1)


def wide_cases() -> Iterator[tuple[str, AttentionSpec]]:
    """Head dims above 256, which FlashAttention-2 and cuDNN do not take: prompts, and one token with DeepSeek's absorbed heads."""
    yield "wide B1 H16 S2048 D320", _spec(1, 16, 2048, 320)
    yield "wide B1 H16 S2048 D512", _spec(1, 16, 2048, 512)
    for B in (1, 16):
        yield f"wide B{B} H16:1 Sq1 Skv8192 D576 Dv512", _spec(B, 16, 8192, 576, Hkv=1, Sq=1, Dv=512)


# Here, without a GPU.


_VARIANT = re.compile(
    r'@sm_90 target.*?dense<"0x([0-9a-f]+)".*?workgroup_size = \[(\d+).*?workgroup_local_memory = (\d+)', re.S
)


def drawn(said: str) -> Iterator[tuple[str, AttentionSpec]]:
    """The drawn cases of SEED:COUNT; "wide" are those with wide heads."""
    if said == "wide":
        yield from wide_cases()
        return
    seed, count = map(int, said.split(":"))
    for case in draw_cases("gpu", seed, count):
        yield case.title, case.spec


def build_drawn(folder: Path, said: str, only: str, tiles: str) -> None:
    """Compiles the kernels of drawn cases, with `tiles` also those of these tiles, and writes manifest.json."""
    from onnx_fa.spec.target import parse_target

    target = parse_target("cuda")
    folder.mkdir(parents=True, exist_ok=True)

    def item(n: int, name: str, spec: AttentionSpec) -> dict[str, Any]:
        kernels = {KERNEL: hopper_kernel(spec, target)}
        if tiles:
            kernels |= kernels_by_tiles(spec, target, tiles)
        found = [entry_of(k, folder, f"c{n}_{i}") | {"what": what} for i, (what, k) in enumerate(kernels.items())]
        print(f"{n:3d} {name}: {kernels[KERNEL].tuning}, {len(found)} kernels", flush=True)
        return {"id": n, "name": name, "spec": spec.to_dict(), "functions": {}, **found[0], "others": found[1:]}

    chosen = [(n, name, spec) for n, (name, spec) in enumerate(drawn(said)) if re.search(only, name)]
    with ThreadPoolExecutor(2) as pool:
        items = list(pool.map(lambda c: item(*c), chosen))
    (folder / "manifest.json").write_text(json.dumps({"versions": _versions(), "drawn": said, "cases": items}))


def hopper_kernel(spec: AttentionSpec, target: Any) -> Any:
    """The kernel that a program has, without its code for other GPUs."""
    from onnx_fa.errors import UnsupportedError
    from onnx_fa.kernels.choose import emit_kernel
    from onnx_fa.kernels.triton import emit_exactly
    from onnx_fa.kernels.triton.tiles import tuned
    from onnx_fa.processes import DEFAULT

    config, reason = tuned(fold_queries(spec), 90)
    try:
        return dataclasses.replace(emit_exactly(spec, target, "fa", config, 90, DEFAULT), tuning=reason)
    except UnsupportedError:  # then a program has smaller tiles
        return emit_kernel(spec, target)


def kernels_by_tiles(spec: AttentionSpec, target: Any, tiles: str) -> dict[str, Any]:
    """Kernels for sm_90 by those of some tiles that are for a spec. `tiles`: BMxBN/warps/stages/overlap, for a few queries
    BMxBN/warps/stages/workgroups, with commas between them."""
    from onnx_fa.errors import UnsupportedError
    from onnx_fa.kernels.triton import emit_exactly
    from onnx_fa.kernels.triton import tiles as triton_tiles
    from onnx_fa.kernels.triton.config import FEW
    from onnx_fa.processes import DEFAULT

    folded, found = fold_queries(spec), {}
    few = triton_tiles.is_few(folded)
    for words in tiles.split(","):
        size, *numbers = words.split("/")
        (rows, keys), (warps, stages, last) = map(int, size.split("x")), map(int, numbers)
        wanted = {
            "BM": rows,
            "BN": keys,
            "warps": warps,
            "stages": stages,
            "order": int(bool(spec.masks)),
            "overlap": 0,
        }
        wanted |= {"order": 0, triton_tiles.WORKGROUPS: last} if few else {"overlap": last}
        config = triton_tiles.config_of(folded, wanted)
        if (rows <= FEW) != few or not triton_tiles.can_run(folded, config, 90):
            continue
        try:
            found[f"{KERNEL} {words}"] = emit_exactly(spec, target, "fa", config, 90, DEFAULT)
        except UnsupportedError as e:
            print(f"{words}: {e}", flush=True)
    return found


def entry_of(kernel: Any, folder: Path, entry: str) -> dict[str, Any]:
    """What a manifest says of a kernel, whose PTX goes to files that begin with `entry`; `rows`: queries of a workgroup."""
    codes = []
    for i, m in enumerate(_VARIANT.finditer(kernel.text)):
        code = bytes.fromhex(m[1]).decode()
        function = re.search(r"\.entry (\w+)", code)
        assert function is not None
        (folder / f"{entry}_{i}.ptx").write_text(code)
        codes.append({"entry": function[1], "file": f"{entry}_{i}.ptx", "threads": int(m[2]), "shared": int(m[3])})
    config = TritonConfig(**{f.name: kernel.config[f.name] for f in dataclasses.fields(TritonConfig)})
    rows = rows_of_workgroup(fold_queries(kernel.spec), config)
    scratch = re.search(r"tensor<(\d+)xi8>\)", kernel.text)
    size = int(scratch[1]) if scratch else 0
    return {"config": kernel.config, "tuning": kernel.tuning, "codes": codes, "scratch": size, "rows": rows}


def build(folder: Path, only: str) -> None:
    """Compiles every case: NAME.vmfb, the PTX in it, and manifest.json."""
    from onnx_fa.iree.alone import compile_alone
    from onnx_fa.iree.compile import compile_model
    from onnx_fa.iree.run import function_of
    from onnx_fa.kernels.choose import emit_kernel
    from onnx_fa.spec.target import parse_target

    target = parse_target("cuda")
    folder.mkdir(parents=True, exist_ok=True)
    manifest = []
    for n, (name, spec) in enumerate(cases()):
        if not re.search(only, name):
            continue
        started = time.monotonic()
        kernel = emit_kernel(spec, target)
        assert kernel.body == "triton", kernel.body
        if name.startswith("differential"):
            assert len(compile_model(written_model(spec, True), folder / f"{n}.vmfb", target).sites) == 2
        else:
            compile_alone(kernel, folder / f"{n}.vmfb", target)
        if name.startswith("plain") and 2048 <= int(spec.Sq) <= 8192 and spec.dtype == "f16":
            compile_unfused(spec, folder / f"{n}.stock.vmfb", target)
        item = {
            "id": n,
            "functions": {x.name: function_of(x) for x in folder.glob(f"{n}.*vmfb")},
            "name": name,
            "spec": spec.to_dict(),
            "others": [],
        }
        manifest.append(item | entry_of(kernel, folder, f"c{n}"))
        (folder / "manifest.json").write_text(json.dumps({"versions": _versions(), "cases": manifest}))
        print(f"{n:3d} {name}: {time.monotonic() - started:.0f} s, {kernel.tuning}", flush=True)


def compile_unfused(spec: AttentionSpec, output: Path, target: Any) -> None:
    """What stock IREE makes of the attention as a model."""
    import tempfile

    import onnx

    from onnx_fa.benchmark.models import compile_stock, stock_import

    with tempfile.TemporaryDirectory() as scratch:
        onnx.save(written_model(spec), Path(scratch) / "plain.onnx")
        imported = stock_import(Path(scratch) / "plain.onnx", Path(scratch))
        assert isinstance(imported, Path), imported
        compile_stock(imported, target, {}, output)


def written_model(spec: AttentionSpec, differential: bool = False) -> Any:
    """softmax(Q1 K1^T) V in f16, of the inputs q1, k1, v; or (softmax(Q1 K1^T) - LAMBDA softmax(Q2 K2^T)) V, of q2, k2 as well."""
    import numpy as np
    import onnx

    op, of = onnx.helper.make_node, onnx.helper.make_tensor_value_info
    constants = [
        onnx.numpy_helper.from_array(np.array(x, np.float16), n) for n, x in (("scale", spec.scale), ("lambda", LAMBDA))
    ]
    nodes, pairs = [], "12" if differential else "1"
    for i in pairs:
        nodes += [
            op("Transpose", [f"k{i}"], [f"kt{i}"], perm=[0, 1, 3, 2]),
            op("MatMul", [f"q{i}", f"kt{i}"], [f"s{i}"]),
            op("Mul", [f"s{i}", "scale"], [f"scaled{i}"]),
            op("Softmax", [f"scaled{i}"], [f"p{i}"], axis=-1),
        ]
    if differential:
        nodes += [op("Mul", ["p2", "lambda"], ["less"]), op("Sub", ["p1", "less"], ["p"])]
    nodes.append(op("MatMul", ["p" if differential else "p1", "v"], ["out"]))
    shapes = dict(zip("qkv", spec.operand_shapes, strict=True))
    names = [n for i in pairs for n in (f"q{i}", f"k{i}", *(["v"] if i == "1" else []))]
    half = onnx.TensorProto.FLOAT16
    graph = onnx.helper.make_graph(
        nodes,
        "attention",
        [of(n, half, shapes[n[0]]) for n in names],
        [of("out", half, spec.out_shape)],
        constants[: len(pairs)],
    )
    return onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 18)], ir_version=9)


def _versions() -> dict[str, str]:
    from importlib.metadata import version

    return {p: version(p) for p in ("iree-base-compiler", "iree-base-runtime", "triton")}


# There, with torch. Imports of what only that machine has stay inside.


def _torch() -> Any:
    import torch

    return torch


def draw(kind: str, spec: AttentionSpec) -> list[Any]:
    """Operands on the GPU: q, k, v and floats ~ N(0, 1) (slopes as in ALiBi), documents of equal length. Of differential attention
    also the second q and k."""
    torch = _torch()
    generator = torch.Generator(device="cuda").manual_seed(0)
    types = {"f16": torch.float16, "bf16": torch.bfloat16, "f32": torch.float32, "i32": torch.int32}
    operands = []
    for shape, dtype in zip(spec.operand_shapes, spec.operand_dtypes, strict=True):
        if dtype == "i32":
            ids = (torch.arange(max(shape[1:]), device="cuda") * DOCUMENTS // max(shape[1:])).reshape(shape[1:])
            operands.append(ids.expand(shape).contiguous().to(types[dtype]))
        elif len(shape) == 3:
            operands.append((2.0 ** -(8.0 * torch.arange(1, shape[0] + 1, device="cuda") / shape[0])).reshape(shape))
        else:
            operands.append(torch.randn(shape, generator=generator, device="cuda").to(types[dtype]))
    if kind == "differential":
        operands += [torch.randn(x.shape, generator=generator, device="cuda").to(x.dtype) for x in operands[:2]]
    return operands


def score(kind: str, s: Any, q: Any, k: Any, rest: list[Any]) -> Any:
    """What a kind of case does to scores at the positions q and k."""
    torch = _torch()
    if kind == "softcap":
        return 20.0 * torch.tanh(s / 20.0)
    if kind == "alibi":
        return s + rest[0] * (k - q)
    if kind == "evoformer":
        return s + rest[0] + (rest[1][..., q[:, 0], :] if len(q) != s.shape[-1] else rest[1])
    keep = {
        "causal": lambda: k <= q,
        "gqa": lambda: k <= q,
        "window": lambda: (k <= q) & (q - k <= 256),
        "prefix": lambda: (k <= q) | (k < 256),
        "document": lambda: rest[0][..., q[:, 0], :] == rest[1],
    }
    return s.masked_fill(~keep[kind](), -math.inf) if kind in keep else s


def reference(kind: str, spec: AttentionSpec, operands: list[Any], most: int = 256) -> tuple[Any, list[Any]]:
    """Rows, and their outputs in float64 for each of the batch: all rows, or the first, the last and others, `most` of each."""
    torch = _torch()
    rows = torch.arange(spec.Sq, device="cuda")
    if spec.Sq > 3 * most:
        rows = torch.unique(
            torch.cat([rows[:most], rows[-most:], torch.linspace(0, spec.Sq - 1, most, device="cuda").long()])
        )
    wanted = []
    for b in range(spec.batch[0]):
        q, k, v = (x[b].double() for x in operands[:3])
        if kind == "differential":
            p, less = (
                torch.softmax(spec.scale * (q[b].double()[:, rows] @ k[b].double().transpose(-1, -2)), -1)
                for q, k in (operands[:2], operands[3:])
            )
            wanted.append((p - LAMBDA * less) @ v)
            continue
        rest = [x if x.dim() == 3 else x[b] for x in operands[3:]]
        k, v = (x.repeat_interleave(spec.group, -3) for x in (k, v))
        s = spec.scale * (q[..., rows, :] @ k.transpose(-1, -2))
        s = score(kind, s, rows[:, None], torch.arange(spec.Skv, device="cuda")[None], rest)
        wanted.append(torch.softmax(s, -1) @ v)
    return rows, wanted


def error(found: tuple[Any, list[Any]], out: Any) -> float:
    """The relative norm error of an output to a reference."""
    rows, wanted = found
    wrong = sum(((out[b][..., rows, :].double() - want) ** 2).sum() for b, want in enumerate(wanted))
    return math.sqrt(float(wrong / sum((want**2).sum() for want in wanted)))  # NaN anywhere is NaN here


def launches(call: Callable[[], Any]) -> list[float]:
    """Milliseconds of single launches, by CUDA events."""
    torch = _torch()
    until, warmed = time.monotonic() + WARM_S, 0
    while warmed < WARM or time.monotonic() < until:
        call()
        torch.cuda.synchronize()
        warmed += 1
    events = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(LAUNCHES)]
    for start, end in events:
        start.record()
        call()
        end.record()
    torch.cuda.synchronize()
    return [start.elapsed_time(end) for start, end in events]


def replays(calls: list[Callable[[], Any]], in_graph: int = 20) -> list[float]:
    """Milliseconds per call, each the mean over a graph of `in_graph` calls or more that take turns: no host's launches are in
    them."""
    torch = _torch()
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for call in calls:
            call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    count = len(calls) * -(-in_graph // len(calls))
    with torch.cuda.graph(graph):
        for n in range(count):
            calls[n % len(calls)]()
    return [ms / count for ms in launches(graph.replay)]


@cache
def loaded(path: Path, entry: str, shared: int) -> Any:
    """A function of a file of PTX, which may have so much shared memory."""
    import cupy

    function = cupy.RawModule(path=str(path)).get_function(entry)
    if shared > 48 * 1024:
        function.max_dynamic_shared_size_bytes = shared
    return function


def own_kernel(item: dict[str, Any], spec: AttentionSpec, folder: Path, operands: list[Any]) -> Callable[[], Any]:
    """A call that launches the module's own code, and returns the tensor that it writes."""
    import cupy
    import numpy as np

    torch = _torch()
    if len(operands) == 5 and not spec.tensors and not spec.quantized:
        first, second = (own_kernel(item, spec, folder, x) for x in (operands[:3], [*operands[3:], operands[2]]))
        return lambda: torch.sub(first(), second(), alpha=LAMBDA)
    folded, config = fold_queries(spec), item["config"]
    out = torch.full(spec.out_shape, math.nan, device="cuda", dtype=operands[0].dtype)
    rows = math.prod(folded.batch) * folded.Hq * folded.Sq
    heads = rows // folded.Sq
    tiles = heads * -(-folded.Sq // item["rows"])
    groups = min(tiles, MULTIPROCESSORS) if config["overlap"] == PERSISTENT else tiles
    grids = [(groups, config["splits"]), (rows, 1)]
    kept: list[Any] = [out]
    if config["splits"] > 1:
        part = torch.empty(config["splits"] * rows * folded.Dv, device="cuda")
        stat = torch.empty(2 * config["splits"] * rows, device="cuda")
        lists = [[*operands, part, stat], [part, stat, out]]
        if len(item["codes"]) == 1:
            count = torch.zeros(rows, device="cuda", dtype=torch.int32)
            lists = [[*operands, count, part, stat, out]]
    else:
        lists = [[*operands, out]]
        if item["scratch"]:
            lists[0].append(torch.empty(item["scratch"], device="cuda", dtype=torch.uint8))
    kept += lists
    calls = []
    for code, grid, tensors in zip(item["codes"], grids, lists, strict=False):
        function = loaded(folder / code["file"], code["entry"], code["shared"])
        calls.append(
            (function, grid, (code["threads"],), tuple(np.uint64(x.data_ptr()) for x in tensors), code["shared"])
        )

    def call() -> Any:
        with cupy.cuda.ExternalStream(torch.cuda.current_stream().cuda_stream):
            for function, grid, block, arguments, shared in calls:
                function(grid, block, arguments, shared_mem=shared)
        return kept[0]  # and with it lives what the launches write to

    return call


def torch_contestants(
    kind: str, spec: AttentionSpec, flexible: bool
) -> Iterator[tuple[str, Callable[[list[Any]], Callable[[], Any]]]]:
    """(name, what makes the call from the operands); FlexAttention, whose compiler takes seconds, where it is asked for."""
    from torch.nn.attention import SDPBackend

    if written := {"evoformer": evoformer, "differential": differential}.get(kind):
        yield "torch eager", lambda x: partial(written, spec.scale, *x)
        yield "torch.compile", lambda x: partial(_torch().compile(written, dynamic=False), spec.scale, *x)
    if kind in ("plain", "causal", "gqa", "decode"):
        yield "FlashAttention-2", partial(sdpa, SDPBackend.FLASH_ATTENTION, kind, spec)
        yield "cuDNN", partial(sdpa, SDPBackend.CUDNN_ATTENTION, kind, spec)
    if kind == "wide":
        yield "torch eager", lambda x: partial(plain_ops, spec, *x)
        yield "torch.compile", lambda x: partial(_torch().compile(partial(plain_ops, spec), dynamic=False), *x)
    if kind == "decode":
        yield "copy", copy_as_many
    if flexible and kind != "differential":
        yield "FlexAttention", partial(flex, kind, spec)


def plain_ops(spec: AttentionSpec, q: Any, k: Any, v: Any) -> Any:
    """Two products and a softmax; heads that share keys are repeated as a user would."""
    k, v = (x.repeat_interleave(spec.group, -3) if spec.group > 1 else x for x in (k, v))
    return _torch().softmax(q @ k.transpose(-1, -2) * spec.scale, -1) @ v


def evoformer(scale: float, q: Any, k: Any, v: Any, padding: Any, pairs: Any) -> Any:
    """As a user writes it."""
    return _torch().softmax(q @ k.transpose(-1, -2) * scale + padding + pairs, -1) @ v


def differential(scale: float, q1: Any, k1: Any, v: Any, q2: Any, k2: Any) -> Any:
    """The same of differential attention."""
    p, less = (_torch().softmax(q @ k.transpose(-1, -2) * scale, -1) for q, k in ((q1, k1), (q2, k2)))
    return (p - LAMBDA * less) @ v


def sdpa(backend: Any, kind: str, spec: AttentionSpec, operands: list[Any]) -> Callable[[], Any]:
    from torch.nn.attention import sdpa_kernel

    q, k, v = operands

    def call() -> Any:
        with sdpa_kernel(backend):
            return _torch().nn.functional.scaled_dot_product_attention(
                q, k, v, is_causal=kind in ("causal", "gqa"), scale=spec.scale, enable_gqa=spec.group > 1
            )

    return call


def copy_as_many(operands: list[Any]) -> Callable[[], Any]:
    """A copy that reads and writes as many bytes together as decode reads of K and V: it reads V and writes as much."""
    target = _torch().empty_like(operands[2])
    return lambda: target.copy_(operands[2])


def flex(kind: str, spec: AttentionSpec, operands: list[Any]) -> Callable[[], Any]:
    """FlexAttention, compiled; its block mask is made beforehand and not timed."""
    torch = _torch()
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    q, k, v, *rest = operands
    masks = {
        "causal": lambda b, h, i, j: i >= j,
        "gqa": lambda b, h, i, j: i >= j,
        "window": lambda b, h, i, j: (i >= j) & (i - j <= 256),
        "prefix": lambda b, h, i, j: (i >= j) | (j < 256),
    }
    if kind == "document":
        ids = rest[0][0].reshape(-1)
        masks["document"] = lambda b, h, i, j: ids[i] == ids[j]
    score_mod = None
    if kind == "softcap":
        score_mod = lambda s, b, h, i, j: 20.0 * torch.tanh(s / 20.0)  # noqa: E731
    if kind == "alibi":
        slopes = rest[0].reshape(-1)
        score_mod = lambda s, b, h, i, j: s + slopes[h] * (j - i)  # noqa: E731
    block_mask = create_block_mask(masks[kind], None, None, spec.Sq, spec.Skv) if kind in masks else None
    call = torch.compile(flex_attention, dynamic=False)
    return lambda: call(
        q, k, v, score_mod=score_mod, block_mask=block_mask, scale=spec.scale, enable_gqa=spec.group > 1
    )


@dataclass(frozen=True)
class Module:
    """A compiled function, the folder of the runtime's programs, and one for files."""

    vmfb: Path
    function: str
    iree: Path
    scratch: Path

    def call(
        self, spec: AttentionSpec, operands: list[Any], ways: dict[str, tuple[str, ...]]
    ) -> tuple[Any, dict[str, list[float]]]:
        """The output, and the times of calls in some ways, by IREE's own programs."""
        import numpy as np

        torch = _torch()
        types = {torch.float16: "f16", torch.bfloat16: "bf16", torch.float32: "f32", torch.int32: "i32"}
        arguments = [f"--module={self.vmfb}", "--device=cuda", f"--function={self.function}"]
        for n, x in enumerate(operands):
            path = self.scratch / f"{n}.bin"
            path.write_bytes(x.cpu().contiguous().view(torch.uint8).numpy().tobytes())
            arguments.append(f"--input={'x'.join(map(str, x.shape))}x{types[x.dtype]}=@{path}")
        output = self.scratch / "out.bin"
        command = [self.iree / "iree-run-module", *arguments, f"--output=@{output}"]
        subprocess.run(command, check=True, capture_output=True, timeout=120)
        times = {}
        for what, flags in ways.items():
            command = [self.iree / "iree-benchmark-module", *arguments, *flags, "--benchmark_format=json"]
            command += ["--benchmark_repetitions=10", "--benchmark_min_time=20x"]
            done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=120)
            runs = json.loads(done.stdout[done.stdout.index("{") :])["benchmarks"]
            unit = {"ns": 1e-6, "us": 1e-3, "ms": 1.0, "s": 1e3}
            times[what] = [r["real_time"] * unit[r["time_unit"]] for r in runs if r["run_type"] == "iteration"]
        result = torch.from_numpy(np.fromfile(output, np.uint8)).view(operands[0].dtype)
        return result.reshape(spec.out_shape).cuda(), times


def has_flex(item: dict[str, Any], every: int) -> bool:
    """Whether FlexAttention is timed with a case: of the table, 16 heads of 64; of drawn ones, each `every`-th (0: none)."""
    if every:
        return bool(item["id"] % every == 0)
    return bool(item["functions"]) and item["spec"]["D"] == 64 and item["spec"]["Hq"] == 16


def warm_compilers(folder: Path, only: str, flex_every: int) -> None:
    """Compiles FlexAttention and torch.compile's code, and the driver's of our kernels, in processes of their own, side by side,
    into the caches on disk."""
    started, options = time.monotonic(), ["--only", only, "--flex-every", str(flex_every)]
    for process in start_slices(__file__, "warm", str(folder), *options, quiet=True):
        process.wait()
    print(f"compilers: {time.monotonic() - started:.0f} s", flush=True)


def warm(folder: Path, only: str, flex_every: int, part: str) -> None:
    """Compiles what cases take that are first, first + many, ..., as `part` says: FIRST:MANY."""
    load_kernels(folder, part)
    chosen = [c for c in json.loads((folder / "manifest.json").read_text())["cases"] if re.search(only, c["name"])]
    wanted = [
        c for c in chosen if has_flex(c, flex_every) or c["name"].split()[0] in ("evoformer", "differential", "wide")
    ]
    for item in wanted[slice_of(part)]:
        spec, kind = AttentionSpec.from_dict(item["spec"]), item["name"].split()[0]
        for what, make in torch_contestants(kind, spec, has_flex(item, flex_every)):
            if what in ("FlexAttention", "torch.compile"):
                make(draw(kind, spec))()
    _torch().cuda.synchronize()


def copy_bandwidth() -> float:
    """Of a gibibyte within the device, in GB/s, read and written bytes together."""
    source = _torch().empty(1 << 30, device="cuda", dtype=_torch().uint8)
    target = _torch().empty_like(source)
    return 2 * source.numel() / statistics.median(launches(lambda: target.copy_(source))) / 1e6


class Samples:
    """The times of one case: `rows` (case, contestant, flags, number, ms), and `notes` on whatever has none."""

    def __init__(self, name: str, spec: AttentionSpec) -> None:
        self.name, self.kind, self.spec = name, name.split()[0], spec
        self.operands = draw(self.kind, spec)
        self.wanted = reference(self.kind, spec, self.operands)
        self.rows: list[tuple[str, str, str, int, float]] = []
        self.notes: list[str] = []

    def keep(self, what: str, result: Any, times: Callable[[], list[float]]) -> None:
        """Adds the times of a contestant whose result is right."""
        off = 0.0 if what == "copy" else error(self.wanted, result)
        if off <= ALLOWED[self.spec.dtype]:
            self.rows += [(self.name, what, "", n, ms) for n, ms in enumerate(times())]
        else:
            self.notes.append(f"{self.name}: {what}: relative error {off:.1e}: not timed")

    def contestant(self, what: str, make: Callable[[list[Any]], Callable[[], Any]]) -> None:
        """One that is launched from here. Its failure is a note. Decode takes turns on more operands than the cache holds."""
        try:
            calls = [make(self.operands)]
            if self.kind == "decode":
                copies = min(MOST_TURNS, -(-TURNS // sum(x.numel() * x.element_size() for x in self.operands)))
                calls += [make([x.clone() for x in self.operands]) for _ in range(copies)]
            self.keep(what, calls[0](), lambda: replays(calls, self.in_graph()))
        except Exception as e:  # whatever another project raises is its result
            self.notes.append(f"{self.name}: {what}: {' '.join(str(e).split())[:160]}")

    def in_graph(self) -> int:
        """How many launches a graph has: 20, fewer of such as take long by the number of their products."""
        dims = (*self.spec.batch, self.spec.Hq, self.spec.Sq, self.spec.Skv, self.spec.D)
        return max(4, min(20, int(1e12 / math.prod(int(d) for d in dims))))

    def medians(self) -> dict[str, float]:
        found = dict.fromkeys(r[1] for r in self.rows)
        return {w: round(statistics.median(r[4] for r in self.rows if r[1] == w), 4) for w in found}


def run(folder: Path, out: Path, iree: Path, only: str, flex_every: int) -> None:
    """Checks and times every case, and writes gpu.csv, or drawn-gpu.csv."""
    import tempfile

    torch = _torch()
    torch._dynamo.config.recompile_limit = 200
    manifest = json.loads((folder / "manifest.json").read_text())
    chosen = [c for c in manifest["cases"] if re.search(only, c["name"])]
    out.mkdir(parents=True, exist_ok=True)
    bandwidth = copy_bandwidth()
    versions = manifest["versions"] | {"torch": torch.__version__, "cuDNN": str(torch.backends.cudnn.version())}
    driver = subprocess.run(
        ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"], capture_output=True, text=True
    )
    head = {
        "device": torch.cuda.get_device_name(),
        "driver": driver.stdout.strip(),
        "copy bandwidth": f"{bandwidth:.0f} GB/s",
        "date": time.strftime("%Y-%m-%d"),
        "python": platform.python_version(),
    } | versions
    path = out / ("drawn-gpu.csv" if "drawn" in manifest else "gpu.csv")
    if "drawn" in manifest:
        head["drawn"] = f"seed and number {manifest['drawn']}"
    warm_compilers(folder, only, flex_every)
    rows: list[tuple[str, str, str, int, float]] = []
    notes: list[str] = []
    for item in chosen:
        samples = Samples(item["name"], AttentionSpec.from_dict(item["spec"]))
        samples.contestant(KERNEL, partial(own_kernel, item, samples.spec, folder))
        for what, make in torch_contestants(samples.kind, samples.spec, has_flex(item, flex_every)):
            samples.contestant(what, make)
        for other in item["others"]:
            samples.contestant(other["what"], partial(own_kernel, other, samples.spec, folder))
        modules = {folder / f"{item['id']}.vmfb": CALLS, folder / f"{item['id']}.stock.vmfb": {STOCK: KEPT}}
        for vmfb, ways in modules.items():
            if not vmfb.exists():
                continue
            try:
                with tempfile.TemporaryDirectory() as scratch:
                    program = Module(vmfb, item["functions"][vmfb.name], iree, Path(scratch))
                    result, times = program.call(samples.spec, samples.operands, ways)
                for what, samples_ms in times.items():
                    samples.keep(what, result, partial(list, samples_ms))
            except (subprocess.SubprocessError, OSError, ValueError, RuntimeError) as e:
                said = " ".join(str(getattr(e, "stderr", "") or e).split())[-300:]
                samples.notes.append(f"{samples.name}: {next(iter(ways))}: {said}")
        rows += samples.rows
        notes += samples.notes
        with path.open("w", newline="") as file:
            file.writelines(f"# {k}: {v}\n" for k, v in head.items())
            file.writelines(f"# note: {n}\n" for n in notes)
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(("model", "what", "flags", "round", "ms"))
            writer.writerows((*r[:4], f"{r[4]:.5f}") for r in rows)
        print(samples.name, samples.medians(), *samples.notes, flush=True)


def report_drawn(out: Path) -> None:
    """drawn-gpu.md and drawn-gpu.png from drawn-gpu.csv."""
    from onnx_fa.benchmark.histogram import of_drawn, write_histogram
    from onnx_fa.benchmark.plot import medians, read_csv

    path = out / "drawn-gpu.csv"
    heads = [line[2:] for line in path.read_text().splitlines() if line.startswith("# ")]
    facts, notes = ([h for h in heads if h.startswith("note: ") == note] for note in (False, True))
    # A sentence of a library on why it takes no such attention is not a result.
    wrong = [n.removeprefix("note: ") for n in notes if "No available kernel" not in n]
    text = of_drawn(medians(read_csv(path)), wrong)
    (out / "drawn-gpu.md").write_text(f"Kernels alone. {'; '.join(facts)}.\n\n{text}\n")
    write_histogram(path, out / "drawn-gpu.png")


def report(out: Path) -> None:
    """gpu.md and gpu.png from gpu.csv."""
    from PIL import Image

    from onnx_fa.benchmark.plot import medians, plot, read_csv

    path = out / "gpu.csv"
    heads = [line[2:] for line in path.read_text().splitlines() if line.startswith("# ")]
    facts = [h for h in heads if not h.startswith("note: ")]
    found = medians(read_csv(path))
    others = list(dict.fromkeys(w for m in found.values() for w in m if w not in (KERNEL, *CALLS, STOCK)))
    columns = [KERNEL, *CALLS, STOCK, *others]
    lines = [
        "Medians, ms. " + "; ".join(facts) + ".",
        "",
        "| case | " + " | ".join(columns) + " | onnx_fa to the fastest other |",
    ]
    lines.append("| --- " * (len(columns) + 2) + "|")
    for name, times in found.items():
        rivals = [ms for w, ms in times.items() if w in others and w != "copy"]
        ratio = f"{times[KERNEL] / min(rivals):.2f}" if rivals and KERNEL in times else "-"
        cells = [f"{times[c]:.4f}" if c in times else "-" for c in columns]
        lines.append(f"| {name} | " + " | ".join(cells) + f" | {ratio} |")
    lines += ["", *(f"* {h.removeprefix('note: ')}" for h in heads if h.startswith("note: "))]
    (out / "gpu.md").write_text("\n".join(lines).rstrip() + "\n")
    plot(path, out / "gpu.png", baseline="FlexAttention")
    Image.open(out / "gpu.png").quantize(32).save(out / "gpu.png", optimize=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("step", choices=("build", "run", "warm", "report"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("out", type=Path, nargs="?", default=Path("benchmarks"))
    parser.add_argument(
        "--iree", type=Path, default=Path("."), help="the folder of iree-run-module and iree-benchmark-module"
    )
    parser.add_argument("--only", default="", help="a regular expression for names of cases")
    parser.add_argument(
        "--drawn",
        default="",
        metavar="SEED:COUNT",
        help="build, report: attentions drawn at random; wide: heads of more than 256",
    )
    parser.add_argument("--tiles", default="", metavar="BMxBN/warps/stages/overlap,...", help="build: these tiles, too")
    parser.add_argument(
        "--flex-every", type=int, default=0, metavar="N", help="run: FlexAttention with each N-th drawn one"
    )
    parser.add_argument("--slice", default="0:1", help=argparse.SUPPRESS)
    args = parser.parse_args()
    match args.step:
        case "build" if args.drawn:
            build_drawn(args.folder, args.drawn, args.only, args.tiles)
        case "build":
            build(args.folder, args.only)
        case "run":
            run(args.folder, args.out, args.iree.resolve(), args.only, args.flex_every)
        case "warm":
            warm(args.folder, args.only, args.flex_every, args.slice)
        case "report" if args.drawn:
            report_drawn(args.folder)
        case "report":
            report(args.folder)


if __name__ == "__main__":
    main()
