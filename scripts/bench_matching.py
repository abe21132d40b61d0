"""How long matching and rewriting take, and how much memory: a decoder of 5,000 nodes, and one with 10 GB of external weights.

    python scripts/bench_matching.py [--out benchmarks/matching.csv] [--repeat 5]

Each case runs in a process of its own. Times are the median of `--repeat` runs in it; memory is the growth of the process's
resident set (peak, as the kernel counts it) from before the model is read until after the rewritten one is saved. The weights are
a sparse file: they take no disk space, and whoever reads them gets zeros.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto as T
from onnx import helper as h
from onnx import numpy_helper as nh

FIELDS = ("case", "nodes", "sites", "weights_gb", "read_s", "rewrite_s", "save_s", "peak_growth_mb")


class Decoder:
    """A decoder as exporters write it: grouped K/V heads repeated by Expand, reshapes with computed shapes, a mask from Range."""

    def __init__(self, hidden: int, heads: int, kv_heads: int, external: str | None) -> None:
        self.hidden, self.heads, self.kv_heads = hidden, heads, kv_heads
        self.head_dim = hidden // heads
        self.external = external
        self.offset = 0
        self.nodes: list[onnx.NodeProto] = []
        self.inits: list[onnx.TensorProto] = []
        self._ints: dict[tuple[int, ...] | int, str] = {}

    def op(self, kind: str, *inputs: str, **attrs: Any) -> str:
        name = f"{kind}_{len(self.nodes)}"
        self.nodes.append(h.make_node(kind, list(inputs), [f"{name}_out"], name=name, **attrs))
        return f"{name}_out"

    def ints(self, value: tuple[int, ...] | int) -> str:
        if value not in self._ints:
            self._ints[value] = self.const(np.asarray(value, np.int64))
        return self._ints[value]

    def const(self, array: Any) -> str:
        name = f"const_{len(self.inits)}"
        self.inits.append(nh.from_array(np.asarray(array), name))
        return name

    def weight(self, *shape: int) -> str:
        if self.external is None:
            return self.const(np.zeros(shape, np.float32))
        name, length = f"weight_{len(self.inits)}", 4 * int(np.prod(shape))
        tensor = T(name=name, data_type=T.FLOAT, dims=shape, data_location=T.EXTERNAL)
        for key, value in (("location", self.external), ("offset", str(self.offset)), ("length", str(length))):
            tensor.external_data.add(key=key, value=value)
        self.offset += length
        self.inits.append(tensor)
        return name

    def _linear(self, x: str, width: int, out: int) -> str:
        return self.op("Add", self.op("MatMul", x, self.weight(width, out)), self.weight(out))

    def _split(self, x: str, heads: int, shape: str) -> str:
        """(B, S, heads * D) to (B, heads, S, D), B and S read from the run-time shape."""
        dims = [self.op("Unsqueeze", self.op("Gather", shape, self.ints(i)), self.ints((0,))) for i in (0, 1)]
        to = self.op("Concat", *dims, self.ints((heads,)), self.ints((self.head_dim,)), axis=0)
        return self.op("Transpose", self.op("Reshape", x, to), perm=[0, 2, 1, 3])

    def _repeat(self, x: str) -> str:
        """Every K/V head as often as there are query heads for it."""
        shape = self.op("Shape", x)
        batch, length = (self.op("Slice", shape, self.ints((i,)), self.ints((i + 1,))) for i in (0, 2))
        group, dim = self.ints((self.heads // self.kv_heads,)), self.ints((self.head_dim,))
        wide = self.op("Concat", batch, self.ints((self.kv_heads,)), group, length, dim, axis=0)
        flat = self.op("Concat", batch, self.ints((self.heads,)), length, dim, axis=0)
        return self.op("Reshape", self.op("Expand", self.op("Unsqueeze", x, self.ints((2,))), wide), flat)

    def mask(self, x: str) -> str:
        """Causal, and padded keys, as a float mask of (B, 1, S, S)."""
        length = self.op("Gather", self.op("Shape", x), self.ints(1))
        position = self.op("Range", self.ints(0), length, self.ints(1))
        rows, columns = (self.op("Unsqueeze", position, self.ints((a,))) for a in (1, 0))
        padding = self.op("Unsqueeze", "attention_mask", self.ints((1, 2)))
        keep = self.op("And", self.op("LessOrEqual", columns, rows), self.op("Cast", padding, to=T.BOOL))
        low = self.const(np.asarray(np.finfo(np.float32).min, np.float32))
        return self.op("Where", keep, self.const(np.asarray(0, np.float32)), low)

    def layer(self, x: str, mask: str) -> str:
        normed = self.op("LayerNormalization", x, self.weight(self.hidden), self.weight(self.hidden), axis=-1)
        shape, kv = self.op("Shape", normed), self.kv_heads * self.head_dim
        q = self._split(self._linear(normed, self.hidden, self.hidden), self.heads, shape)
        k = self._repeat(self._split(self._linear(normed, self.hidden, kv), self.kv_heads, shape))
        v = self._repeat(self._split(self._linear(normed, self.hidden, kv), self.kv_heads, shape))
        score = self.op("MatMul", q, self.op("Transpose", k, perm=[0, 1, 3, 2]))
        score = self.op("Mul", score, self.const(np.asarray(self.head_dim**-0.5, np.float32)))
        p = self.op("Softmax", self.op("Add", score, mask), axis=-1)
        out = self.op("Transpose", self.op("MatMul", p, v), perm=[0, 2, 1, 3])
        out = self.op("Reshape", out, self.ints((0, 0, self.hidden)))
        x = self.op("Add", x, self._linear(out, self.hidden, self.hidden))
        normed = self.op("LayerNormalization", x, self.weight(self.hidden), self.weight(self.hidden), axis=-1)
        wide = self._linear(normed, self.hidden, 4 * self.hidden)
        erf = self.op("Erf", self.op("Div", wide, self.const(np.asarray(2**0.5, np.float32))))
        gelu = self.op(
            "Mul",
            self.op("Mul", wide, self.op("Add", erf, self.const(np.asarray(1, np.float32)))),
            self.const(np.asarray(0.5, np.float32)),
        )
        return self.op("Add", x, self._linear(gelu, 4 * self.hidden, self.hidden))


def decoder(
    nodes: int = 0, weight_bytes: int = 0, hidden: int = 64, external: str | None = None
) -> tuple[onnx.ModelProto, int]:
    """A model of at least so many nodes and bytes of weights, and the bytes of its external data."""
    d = Decoder(hidden, 16, 4, external)
    x, mask = "x", d.mask("x")
    while len(d.nodes) < nodes or d.offset < weight_bytes:
        x = d.layer(x, mask)
    d.nodes.append(h.make_node("Identity", [x], ["y"], name="last"))
    inputs = [
        h.make_tensor_value_info("x", T.FLOAT, ["batch", "length", hidden]),
        h.make_tensor_value_info("attention_mask", T.INT64, ["batch", "length"]),
    ]
    outputs = [h.make_tensor_value_info("y", T.FLOAT, ["batch", "length", hidden])]
    graph = h.make_graph(d.nodes, "decoder", inputs, outputs, d.inits)
    return h.make_model(graph, opset_imports=[h.make_opsetid("", 18)], ir_version=10), d.offset


def write(folder: Path, nodes: int, weight_bytes: int) -> Path:
    """The model as a file; its weights as a sparse file beside it where there are any."""
    external = "weights.bin" if weight_bytes else None
    model, size = decoder(nodes, weight_bytes, 2048 if weight_bytes else 64, external)
    path = folder / "model.onnx"
    path.write_bytes(model.SerializeToString())
    if external:
        with open(folder / external, "wb") as f:
            f.truncate(size)
    return path


def measure(path: Path, repeat: int) -> dict[str, Any]:
    """Runs in a process of its own: read, rewrite, save beside the original."""
    from onnx_fa.forms.rewrite import rewrite
    from onnx_fa.graph.io import load, save

    def peak() -> float:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024

    before = peak()
    times: dict[str, list[float]] = {"read_s": [], "rewrite_s": [], "save_s": []}
    for _ in range(repeat):
        started = time.perf_counter()
        model = load(path)
        read = time.perf_counter()
        new, report = rewrite(model)
        rewritten = time.perf_counter()
        save(new, path.with_name("rewritten.onnx"))  # type: ignore[arg-type]
        saved = time.perf_counter()
        for name, taken in zip(times, (read - started, rewritten - read, saved - rewritten), strict=True):
            times[name].append(taken)
    row: dict[str, Any] = {name: round(statistics.median(taken), 3) for name, taken in times.items()}
    weights = sum(f.stat().st_size for f in path.parent.glob("weights.bin"))
    return {
        "nodes": sum(1 for _ in model.graph.all_nodes()),
        "sites": len(report.sites),
        "weights_gb": round(weights / 1e9, 2),
        **row,
        "peak_growth_mb": round(peak() - before),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--out", type=Path, default=Path(__file__).parent.parent / "benchmarks" / "matching.csv")
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--measure", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.measure:
        print(json.dumps(measure(args.measure, args.repeat)))
        return
    rows = []
    for case, nodes, weight_bytes in (("5,000 nodes", 5000, 0), ("10 GB of weights", 0, 10 * 10**9)):
        with tempfile.TemporaryDirectory() as folder:
            path = write(Path(folder), nodes, weight_bytes)
            command = [sys.executable, __file__, "--measure", os.fspath(path), "--repeat", str(args.repeat)]
            done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=True)
        rows.append({"case": case, **json.loads(done.stdout)})
        print(rows[-1])
    with open(args.out, "w", newline="") as f:
        writer = csv.DictWriter(f, FIELDS)
        writer.writeheader()
        writer.writerows(rows)


if __name__ == "__main__":
    main()
