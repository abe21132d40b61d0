"""Products of one row by weights of 4 bits, on an NVIDIA GPU: tiles of the kernel beside each other, with the norm in front and the
gate beside it.

    python scripts/bench_few_bits.py FILE.csv      # where the GPU is: torch and triton

f32, blocks of 32, no zero points. Each is a CUDA graph of as many products as have 200 MB of weights, so that none is in a cache;
a sample is four replays. Results are held against float64 first. `chosen`: whether these are the kernel's own tiles.
"""

from __future__ import annotations

import csv
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent.parent))

from onnx_fa.kernels.triton.few_source import FewConfig
from onnx_fa.kernels.triton.linear_bits import FewBitsSource, few_bits_config
from onnx_fa.kernels.triton.ptx import load_function
from onnx_fa.spec.expr import SCORE, Apply, Tensor
from onnx_fa.spec.fused_linear import FusedLinear, multiply_fused
from onnx_fa.spec.linear import Bits, LinearSpec
from onnx_fa.spec.norm import NormSpec
from onnx_fa.spec.terms import TensorArg

SIZES = (
    (1536, 1536),
    (1536, 2560),
    (1536, 4096),
    (4096, 1536),
    (4096, 4096),
    (4096, 12800),
    (12800, 4096),
    (1536, 32000),
)
"""K and N."""
TILES = ((8, 1024, 4), (8, 512, 2), (8, 256, 1), (4, 1024, 4))
"""Columns, bytes of a row in a step, and warps."""
BYTES, SAMPLES, REPLAYS = 2e8, 9, 4
_SILU = Apply("Mul", SCORE, Apply("Sigmoid", SCORE))
Row = tuple[str, int, int, int, int, int, bool, float]


def specs_of(K: int, N: int) -> dict[str, FusedLinear]:
    plain = LinearSpec((1,), K, N, "f32", True, Bits(4, 32, "f32"))
    norm = NormSpec((1,), K, "f32", "f32", 1e-5, False, "f32")
    gated = replace(plain, then=Apply("Mul", SCORE, Tensor(0)), tensors=(TensorArg((N,)),))
    found = {"plain": FusedLinear(plain), "normed": FusedLinear(plain, norm)}
    if N > K:
        found["normed pair"] = FusedLinear(gated, norm, replace(plain, then=_SILU))
    return found


def draw(spec: FusedLinear, seed: int) -> list[np.ndarray[Any, Any]]:
    rng = np.random.default_rng(seed)
    return [
        rng.integers(-128, 128, shape).astype(np.int8)
        if dtype == "u8"
        else (rng.standard_normal(shape) * (0.02 if "scale" in name else 1)).astype(np.float32)
        for name, shape, dtype in spec.operands
    ]


def time_graph(run: Callable[[], None], many: int) -> list[float]:
    """us of one product, each sample a mean."""
    import torch

    run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    found = []
    for _ in range(SAMPLES):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(REPLAYS):
            graph.replay()
        end.record()
        torch.cuda.synchronize()
        found.append(begin.elapsed_time(end) / REPLAYS / many * 1e3)
    return found


def measure(name: str, K: int, N: int, spec: FusedLinear) -> Iterator[Row]:
    import torch

    weights = 2 if spec.gate else 1
    many = max(2, int(BYTES / (N * K * 0.625 * weights)))
    own = few_bits_config(spec.product)
    tiles = dict.fromkeys([own, *(FewConfig(BN, 2 * along, 1, warps) for BN, along, warps in TILES)])
    given = draw(spec, 0)
    want = multiply_fused(spec, [x.view(np.uint8) if x.dtype == np.int8 else x for x in given])
    sets = [[torch.from_numpy(x).cuda() for x in given] for _ in range(many)]
    out = torch.empty((1, N), device="cuda")
    for config in tiles:
        program = FewBitsSource(spec, config, "few").program()
        with tempfile.TemporaryDirectory() as folder:
            function = load_function(program, Path(folder))[(-(-N // config.BN),)]

            def run(function: Any = function, warps: int = config.warps) -> None:
                for operands in sets:
                    function(*operands, out, 1, num_warps=warps)

            samples = time_graph(run, many)
        error = float(np.abs(out.cpu().numpy() - want).max() / np.abs(want).max())
        assert error < 1e-6, (name, K, N, config, error)
        bytes_along = config.BK // 2
        print(name, K, N, config.BN, bytes_along, config.warps, config == own, f"{statistics.median(samples):.2f} us")
        for sample in samples:
            yield name, K, N, config.BN, bytes_along, config.warps, config == own, sample


def main() -> None:
    with open(sys.argv[1], "w", newline="") as file:
        out = csv.writer(file)
        out.writerow(["kernel", "K", "N", "columns", "bytes", "warps", "chosen", "us"])
        for K, N in SIZES:
            for name, spec in specs_of(K, N).items():
                out.writerows(measure(name, K, N, spec))


if __name__ == "__main__":
    main()
