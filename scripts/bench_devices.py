"""Causal attention of a long sequence, and decoding over a long cache, on several GPUs with a process for each, against one GPU and
PyTorch's context parallelism.

    python scripts/bench_devices.py build DIR [--ranks 2]   # here: compiles the modules; needs onnx_fa with its compiler
    python scripts/bench_devices.py run DIR -o FILE.csv     # where the GPUs are: torch, iree-base-runtime and onnx_fa/

8 K/V heads of 128 in f16; 8 query heads in prefill, 32 in decoding. Every sample is the wall time of a call on the slowest process,
in ms, from a barrier on; of what is "in a row" a sample is a call's part of 30 after a barrier. `used_gb` is what a device holds
after a call, with operands and result (all of it: CUDA's context and NCCL's buffers too). Every result is held against float64 on
some rows.
"""

from __future__ import annotations

import argparse
import csv
import os
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

H, HQ_DECODE, D = 8, 32, 128
LENGTHS = {"64k": 1 << 16, "256k": 1 << 18, "1M": 1 << 20}
SAMPLES = {"64k": 9, "256k": 9, "1M": 5, "decode": 30, "in a row": 10}
CALLS = 30
"""Of a sample of calls in a row."""
CHECKED_ROWS = 8
TOLERANCE = 2e-3
"""Relative norm error of f16 results, as the package's own checks allow."""


def build(folder: Path, ranks: int, only: list[str]) -> None:
    """Compiles the modules that `run` calls, for `ranks` processes; of `only` these cases, where it names any."""
    from onnx_fa.distributed.modules import Heads, build, decode_spec, prefill_specs
    from onnx_fa.spec.target import parse_target
    from onnx_fa.spec.terms import Causal

    folder.mkdir(parents=True, exist_ok=True)
    heads, many = Heads(H, H, D, D), Heads(HQ_DECODE, H, D, D)
    specs = {}
    for name, S in LENGTHS.items():
        specs |= {f"{name}-{kind}": spec for kind, spec in prefill_specs(heads, S, ranks).items()}
        specs[f"{name}-one"] = heads.spec(S, S, masks=(Causal(),))
        specs[f"decode-{name}-one"] = many.spec(1, S)
        specs[f"decode-{name}"] = decode_spec(many, 1, S // ranks)
    wanted = {n: s for n, s in specs.items() if not only or n.removesuffix("-one") in only}
    for name, kernel in build(wanted, parse_target("cuda"), folder).items():
        print(name, kernel.body, kernel.config, kernel.tuning)


def run(folder: Path, output: Path, ranks: int, only: list[str], again: list[str]) -> int:
    """Starts a process for each GPU."""
    started = []
    for rank in range(ranks):
        env = {**os.environ, "CUDA_VISIBLE_DEVICES": str(rank), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29517"}
        command = [sys.executable, __file__, "process", str(folder), "-o", str(output), "--ranks", str(ranks)]
        command += ["--only", *only] if only else []
        command += ["--again", *again] if again else []
        started.append(subprocess.Popen([*command, "--rank", str(rank)], env=env))
    return max(abs(p.wait()) for p in started)


class Bench:
    """What one process measures."""

    def __init__(self, folder: Path, rank: int, ranks: int) -> None:
        import torch
        import torch.distributed as dist

        self.torch, self.dist, self.folder, self.rank, self.ranks = torch, dist, folder, rank, ranks
        self.device = torch.device("cuda", 0)
        torch.cuda.set_device(self.device)
        options = dist.ProcessGroupNCCL.Options(is_high_priority_stream=True)
        meet: dict[str, Any] = {"rank": rank, "world_size": ranks, "device_id": self.device, "pg_options": options}
        dist.init_process_group("nccl", **meet)
        dist.all_reduce(torch.ones(1, device=self.device))
        self.rows: list[list[Any]] = []
        self.launch, self.words = True, ""

    def use_runtime(self) -> None:
        """From now on IREE's runtime runs the modules."""
        self.launch, self.words = False, ", IREE's runtime"

    def share(self) -> None:
        """From now on that, and the thread that calls shares a processor with the one of IREE's that starts work."""
        from onnx_fa.distributed.module import share_processor

        own = sorted(os.sched_getaffinity(0))
        first = len(own) // self.ranks * self.rank
        share_processor(self.device, own[first + 2], own[first + 3])
        self.launch, self.words = False, ", IREE's runtime, a processor shared"

    def module(self, name: str) -> Any:
        from onnx_fa.distributed.module import TorchModule

        return TorchModule(self.folder / f"{name}.vmfb", self.device, launch=self.launch)

    def chunk(self, name: str, n: int, size: int, heads: int = H) -> Any:
        """The n-th chunk (1, size, heads, D) of an operand, the same in every process."""
        generator = self.torch.Generator(self.device).manual_seed(1000 * "qkv".index(name) + n)
        return self.torch.randn(1, size, heads, D, generator=generator, device=self.device, dtype=self.torch.float16)

    def operands(self, S: int, chunks: list[int], names: str = "qkv") -> list[Any]:
        size = S // (2 * self.ranks)
        return [self.torch.cat([self.chunk(x, c, size) for c in chunks], 1) for x in names]

    def time(
        self, what: str, case: str, samples: int, call: Callable[[], Any], *, alone: bool = False, calls: int = 1
    ) -> Any:
        """Times a call, or one of several in a row, of all processes or of the first alone. Returns its result."""
        torch, dist = self.torch, self.dist
        from onnx_fa.distributed.module import release_memory

        out, times = None, []
        what += self.words if what.startswith("onnx_fa") else ""
        torch.cuda.empty_cache()
        release_memory(self.device)
        for i in range(samples + 1):
            dist.barrier()
            torch.cuda.synchronize()
            start = time.perf_counter()
            if not alone or self.rank == 0:
                for _ in range(calls):
                    out = call()
                torch.cuda.synchronize()
            took = torch.tensor([(time.perf_counter() - start) / calls], device=self.device)
            if not alone:
                dist.all_reduce(took, dist.ReduceOp.MAX)
            if i:  # the first call is a warm-up
                times.append(1e3 * float(took))
        free, total = torch.cuda.mem_get_info()
        used = torch.tensor([(total - free) / 1e9], device=self.device)
        if not alone:
            dist.all_reduce(used, dist.ReduceOp.MAX)
        if self.rank == 0:
            middle = sorted(times)[len(times) // 2]
            print(f"{case:12} {what:36} {middle:10.3f} ms  {float(used):6.2f} GB", flush=True)
            self.rows += [[case, what, 1 if alone else self.ranks, f"{t:.4f}", f"{float(used):.2f}"] for t in times]
        return out

    def attempt(
        self, what: str, case: str, samples: int, call: Callable[[], Any], *, alone: bool = False, calls: int = 1
    ) -> Any:
        """As `time`, for a contestant that may refuse."""
        try:
            return self.time(what, case, samples, call, alone=alone, calls=calls)
        except (RuntimeError, ValueError, NotImplementedError, AssertionError) as e:
            if self.rank == 0:
                print(f"{case:12} {what:36} refused: {str(e)[:200]}", flush=True)
            self.torch.cuda.synchronize()
            return None

    def check(self, what: str, case: str, out: Any, places: Any, q: Any, S: int) -> None:
        """Some rows of a result (1, n, H, D), whose queries stand at `places`, against float64."""
        torch = self.torch
        _, k, v = self.operands(S, list(range(2 * self.ranks)))
        at = torch.linspace(0, out.shape[1] - 1, CHECKED_ROWS).long()
        wrong = norm = 0.0
        for i in at.tolist():
            seen = int(places[i]) + 1
            keys, values = (x[0, :seen].transpose(0, 1).double() for x in (k, v))
            s = torch.matmul(keys, q[0, i].double().unsqueeze(-1)).squeeze(-1) * D**-0.5
            want = torch.matmul(torch.softmax(s, -1).unsqueeze(1), values).squeeze(1)
            wrong += float(((out[0, i].double() - want) ** 2).sum())
            norm += float((want**2).sum())
        error = (wrong / norm) ** 0.5
        print(f"{case:12} {what:36} process {self.rank}: error {error:.1e} on {len(at)} rows", flush=True)
        if not error <= TOLERANCE:
            raise SystemExit(f"{case} {what}: wrong results, error {error}")
        torch.cuda.empty_cache()

    def measure(self, cases: list[str]) -> None:
        for name in cases:
            (self.decode if name.startswith("decode-") else self.prefill)(name.removeprefix("decode-"))

    def link(self) -> None:
        """What a ring of all processes moves, in GB/s per direction."""
        torch, dist = self.torch, self.dist
        x = torch.ones(1 << 28, dtype=torch.float16, device=self.device)
        y = torch.empty_like(x)

        def turn() -> None:
            ops = [
                dist.P2POp(dist.isend, x, (self.rank + 1) % self.ranks),
                dist.P2POp(dist.irecv, y, (self.rank - 1) % self.ranks),
            ]
            for work in dist.batch_isend_irecv(ops):
                work.wait()

        self.time("ring, 512 MiB each way", "link", 10, turn)
        small = torch.ones(HQ_DECODE * (D + 2), device=self.device)
        parts = torch.empty(self.ranks * small.numel(), device=self.device)
        self.time("all-gather of a decoding step", "link", 30, lambda: dist.all_gather_into_tensor(parts, small))

    def prefill(self, name: str) -> None:
        from onnx_fa.distributed.ring import RingPrefill
        from onnx_fa.distributed.zigzag import chunks_of, share

        torch, S, samples = self.torch, LENGTHS[name], SAMPLES[name]
        sites = {k: self.module(f"{name}-{k}") for k in ("causal", "early", "late")}
        ring = RingPrefill(sites)  # type: ignore[arg-type]
        q, k, v = self.operands(S, list(chunks_of(self.rank, self.ranks)))
        out = self.time("onnx_fa, ring of K and V", name, samples, partial(ring, q, k, v))
        places = share(torch.arange(S).unsqueeze(0), self.rank, self.ranks)[0]
        self.check("onnx_fa, ring of K and V", name, out, places, q, S)
        if name != "1M":
            half, later = q.shape[1] // 2, self.rank < self.ranks - 1
            rest = (q[:, half:], k, v) if later else (q, k[:, :half], v[:, :half])
            self.time("onnx_fa, own keys alone", name, 5, partial(sites["causal"], q, k, v))
            self.time("onnx_fa, another's keys alone", name, 5, partial(sites["late" if later else "early"], *rest))
            del rest
        del q, k, v, out, sites, ring
        if self.launch:
            self.context_parallel(name, S, samples)
        self.dist.barrier()
        one = self.module(f"{name}-one")
        operands = self.operands(S, list(range(2 * self.ranks))) if self.rank == 0 else []
        out = self.time("onnx_fa, one device", name, samples, partial(one, *operands), alone=True)
        if self.rank == 0:
            self.check("onnx_fa, one device", name, out[0], torch.arange(S), operands[0], S)
        del out
        if self.launch:
            self.sdpa(name, samples, operands)

    def backends(self, name: str) -> list[Any]:
        """PyTorch's kernels; of the longest sequence the faster ones alone."""
        from torch.nn.attention import SDPBackend

        return [SDPBackend.CUDNN_ATTENTION, *([SDPBackend.FLASH_ATTENTION] if name != "1M" else [])]

    def sdpa(self, name: str, samples: int, operands: list[Any]) -> None:
        from torch.nn.attention import sdpa_kernel

        turned = [x.transpose(1, 2).contiguous() for x in operands]
        operands.clear()
        attention = self.torch.nn.functional.scaled_dot_product_attention
        for backend in self.backends(name):
            with sdpa_kernel(backend):
                what = f"torch SDPA, {backend.name.split('_')[0].lower()}, one device"
                self.attempt(what, name, samples, partial(attention, *turned, is_causal=True), alone=True)

    def context_parallel(self, name: str, S: int, samples: int) -> None:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.tensor.experimental import context_parallel
        from torch.nn.attention import sdpa_kernel

        from onnx_fa.distributed.zigzag import share

        functional, places = (
            self.torch.nn.functional,
            share(self.torch.arange(S).unsqueeze(0), self.rank, self.ranks)[0],
        )
        mesh = init_device_mesh("cuda", (self.ranks,))
        for backend in self.backends(name):
            what = f"torch context_parallel, {backend.name.split('_')[0].lower()}"
            q, k, v = (x.transpose(1, 2).contiguous() for x in self.operands(S, list(range(2 * self.ranks))))
            with sdpa_kernel(backend):
                buffers: dict[str, Any] = {"buffers": [q, k, v], "buffer_seq_dims": [2, 2, 2]}
                with context_parallel(mesh, no_restore_buffers={q, k, v}, **buffers):
                    # The function is another one in here.
                    call = partial(functional.scaled_dot_product_attention, q, k, v, is_causal=True)
                    out = self.attempt(what, name, samples, call)
                    if out is not None:
                        self.check(what, name, out.transpose(1, 2), places, q.transpose(1, 2), S)
            del q, k, v, buffers, call, out

    def decode(self, name: str) -> None:
        from onnx_fa.distributed.decode import SplitDecode

        torch, S, case = self.torch, LENGTHS[name], f"decode-{name}"
        (one,) = (self.chunk("q", 99, 1, HQ_DECODE),)
        part = self.module(f"decode-{name}")
        step = SplitDecode(part)
        k, v = self.operands(S, [2 * self.rank, 2 * self.rank + 1], "kv")
        out = self.time("onnx_fa, cache in parts", case, SAMPLES["decode"], partial(step, one, k, v))
        self.time("onnx_fa, a part alone", case, SAMPLES["decode"], partial(part, one, k, v))
        self.follow(case, step, one, k, v)
        bound = self.bound("onnx_fa, cache in parts", case, step.bind(one, k, v)).clone()
        results = part(one, k, v)
        self.bound("onnx_fa, a part alone", case, part.bind((one, k, v), results))
        del k, v, results
        k, v = self.operands(S, list(range(2 * self.ranks)), "kv")
        whole = self.module(f"decode-{name}-one")
        single = self.time("onnx_fa, one device", case, SAMPLES["decode"], partial(whole, one, k, v), alone=True)
        made = [self.torch.empty_like(one)]
        self.bound("onnx_fa, one device", case, whole.bind((one, k, v), made), alone=True)
        groups = one[0, 0].view(H, HQ_DECODE // H, D).double()
        s = torch.matmul(groups, k[0].permute(1, 2, 0).double()) * D**-0.5
        want = torch.matmul(torch.softmax(s, -1), v[0].transpose(0, 1).double()).view(1, 1, HQ_DECODE, D)
        results = {"parts": out, "parts, bound": bound}
        if single is not None:
            results |= {"one device": single[0], "one device, bound": made[0]}
        for what, have in results.items():
            error = float((have.double() - want).norm() / want.norm())
            print(f"{case:12} {what:36} process {self.rank}: error {error:.1e}", flush=True)
            if not error <= TOLERANCE:
                raise SystemExit(f"{case} {what}: wrong results, error {error}")
        q, k, v = (x.transpose(1, 2).contiguous() for x in (one, k, v))
        del s, want
        attention = torch.nn.functional.scaled_dot_product_attention
        what = "torch SDPA, one device"
        call = partial(attention, q, k, v, enable_gqa=True)
        if not self.launch:
            return
        self.attempt(what, case, 10, call, alone=True)
        self.attempt(f"{what}, in a row", case, SAMPLES["in a row"], call, alone=True, calls=CALLS)

    def follow(self, case: str, step: Any, one: Any, k: Any, v: Any) -> None:
        """Holds each call of a bound step, from the first on, each with another query, against one that is not bound."""
        q = self.torch.zeros_like(one)
        bound = step.bind(q, k, v)
        for n in range(8):
            new = one * (0.5 - n)
            # Work that is not done yet when the call is made, before the query changes.
            self.torch.cuda._sleep(1_000_000 * (n % 2))
            q.copy_(new)
            have, want = bound().clone(), step(new, k, v)
            error = float((have.double() - want.double()).norm() / want.double().norm())
            if not error <= TOLERANCE:
                raise SystemExit(f"{case}: wrong results of call {n} of a bound step, error {error}")
        print(f"{case:12} process {self.rank}: all calls of a bound step are right", flush=True)

    def bound(self, what: str, case: str, call: Callable[[], Any], *, alone: bool = False) -> Any:
        """Times a bound call: after a barrier, and in a row. Returns its result."""
        self.time(f"{what}, bound", case, SAMPLES["decode"], call, alone=alone)
        return self.time(f"{what}, bound, in a row", case, SAMPLES["in a row"], call, alone=alone, calls=CALLS)


def process(folder: Path, output: Path, rank: int, ranks: int, only: list[str], again: list[str]) -> None:
    bench = Bench(folder, rank, ranks)
    card = bench.torch.cuda.get_device_name(0)
    try:
        bench.link()
        bench.measure(names := only or [f"decode-{n}" for n in LENGTHS] + list(LENGTHS))
        for way in again:
            (bench.share if way == "shared" else bench.use_runtime)()
            bench.measure([n for n in names if n.startswith("decode-") or way == "runtime"])
    finally:
        if rank == 0:
            with output.open("w", newline="") as file:
                writer = csv.writer(file)
                writer.writerow(["case", "what", "devices", "ms", "used_gb", "card"])
                writer.writerows([*row, card] for row in bench.rows)
    bench.dist.destroy_process_group()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=("build", "run", "process"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("-o", "--output", type=Path, default=Path("devices.csv"))
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rank", type=int, default=0, help="of `process`, which `run` starts")
    parser.add_argument("--only", nargs="*", default=[], help="these cases: 64k, decode-1M, ...")
    parser.add_argument(
        "--again",
        nargs="*",
        default=[],
        choices=("runtime", "shared"),
        help="all again, run by IREE's runtime; decoding again, by it, with a processor for two threads",
    )
    args = parser.parse_args()
    if args.action == "build":
        build(args.folder, args.ranks, args.only)
    elif args.action == "process":
        process(args.folder, args.output, args.rank, args.ranks, args.only, args.again)
    else:
        return run(args.folder, args.output, args.ranks, args.only, args.again)
    return 0


if __name__ == "__main__":
    sys.exit(main())
