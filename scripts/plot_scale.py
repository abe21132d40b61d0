"""How attention over more devices scales, from what was measured on two: the formula of docs/guide/scale.md, as a table and a plot.

python scripts/plot_scale.py [--csv benchmarks/devices-h100.csv] [--png benchmarks/scale.png]
"""

from __future__ import annotations

import argparse
import csv
import sys
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from statistics import median

H, HKV, D, BYTES = 8, 8, 128, 2
"""Heads of queries, of keys and values, their size, and bytes of a number: those that were measured."""
LENGTHS = {"64k": 1 << 16, "256k": 1 << 18, "1M": 1 << 20, "16M": 1 << 24}
DEVICES = (1, 2, 4, 8, 16, 32, 64)
_PREFILL = {1: "onnx_fa, one device", 2: "onnx_fa, ring of K and V"}
_DECODE = {1: "onnx_fa, one device, bound, in a row", 2: "onnx_fa, cache in parts, bound, in a row"}
"""What was measured on so many devices."""


@dataclass(frozen=True)
class Rates:
    """What one device does: `flops` a second of a causal ring as a whole, `link` and `cache` bytes a second, and the seconds that a
    decoding step takes besides: its `call`, and exchange and `merge` where there are several devices."""

    flops: float
    link: float
    cache: float
    call: float
    merge: float


def read_medians(path: Path) -> dict[tuple[str, str], float]:
    """Median seconds by case and by what was run."""
    found: dict[tuple[str, str], list[float]] = defaultdict(list)
    with path.open(newline="") as file:
        for row in csv.DictReader(file):
            found[row["case"], row["what"]].append(float(row["ms"]) / 1e3)
    return {key: median(times) for key, times in found.items()}


def causal_flops(S: int) -> float:
    """Multiplications and additions of both products, of what a causal mask leaves."""
    return 2.0 * S * S * D * H


def cache_bytes(S: int) -> float:
    """K and V of so many tokens."""
    return 2.0 * S * HKV * D * BYTES


def rates_of(times: dict[tuple[str, str], float]) -> Rates:
    """The rates behind the measurements on two devices. The longest sequence counts: clocks fall under a load of seconds."""
    part = "onnx_fa, a part alone, bound, in a row"
    short, long = times["decode-64k", part], times["decode-1M", part]
    cache = (cache_bytes(LENGTHS["1M"]) - cache_bytes(LENGTHS["64k"])) / 2 / (long - short)
    call = long - cache_bytes(LENGTHS["1M"]) / 2 / cache
    return Rates(
        causal_flops(LENGTHS["1M"]) / 2 / times["1M", "onnx_fa, ring of K and V"],
        (1 << 29) / times["link", "ring, 512 MiB each way"],
        cache,
        call,
        times["decode-1M", _DECODE[2]] - long,
    )


def prefill(rates: Rates, S: int, devices: int) -> tuple[float, float]:
    """Seconds of products, and of what goes over the links, of a ring; the longer of the two is the time, as they overlap."""
    sent = (devices - 1) * cache_bytes(S) / devices
    return causal_flops(S) / devices / rates.flops, sent / rates.link


def decode(rates: Rates, S: int, devices: int) -> float:
    """Seconds of one token's attention."""
    return rates.call + cache_bytes(S) / devices / rates.cache + (rates.merge if devices > 1 else 0.0)


def least_tokens(rates: Rates, link: float) -> float:
    """Tokens per device from which on a ring is bound by products: link time = product time of one step."""
    return BYTES * rates.flops * HKV / (H * link)


def held_bytes(S: int, devices: int) -> float:
    """A device's q, k, v and output, the keys and values on their way, and another's partial output."""
    return (H + 2 * HKV + H + 2 * HKV + H) * S / devices * D * BYTES


def lines_of(rates: Rates, times: dict[tuple[str, str], float]) -> list[str]:
    """The rates, and a table: what the formula says, and what was measured."""
    lines = [
        f"{rates.flops / 1e12:.0f} TFLOP/s, link {rates.link / 1e9:.0f} GB/s, cache {rates.cache / 1e12:.2f} TB/s, "
        f"call {rates.call * 1e3:.2f} ms, merge {rates.merge * 1e3:.2f} ms; bound by products from "
        f"{least_tokens(rates, rates.link):.0f} tokens per device on",
        "",
        "| tokens | devices | products, s | links, s | memory of a device | a token, ms | measured: prefill s, a token ms |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for name, S in LENGTHS.items():
        for n in (1, 2, 8, 64):
            products, link = prefill(rates, S, n)
            seen = times.get((name, _PREFILL.get(n, ""))), times.get((f"decode-{name}", _DECODE.get(n, "")))
            measured = f"{seen[0]:.3f}, {seen[1] * 1e3:.2f}" if seen[0] and seen[1] else ""
            lines.append(
                f"| {name} | {n} | {products:.3g} | {link:.2g} | {held_bytes(S, n) / 1e9:.2g} GB | "
                f"{decode(rates, S, n) * 1e3:.2f} | {measured} |"
            )
    return lines


def plot(rates: Rates, times: dict[tuple[str, str], float], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(11, 4.5), layout="constrained")
    for color, (name, S) in zip(("C0", "C1", "C2", "C3"), LENGTHS.items(), strict=True):
        both = [prefill(rates, S, n) for n in DEVICES]
        left.plot(DEVICES, [max(x) for x in both], color=color, label=f"{name} tokens")
        left.plot(DEVICES[1:], [link for _, link in both[1:]], color=color, linestyle=":")
        right.plot(DEVICES, [decode(rates, S, n) * 1e3 for n in DEVICES], color=color, label=f"{name} tokens")
        for n in (1, 2):
            if (name, _PREFILL[n]) in times:
                left.plot(n, times[name, _PREFILL[n]], "o", color=color)
                right.plot(n, times[f"decode-{name}", _DECODE[n]] * 1e3, "o", color=color)
    left.set(xscale="log", yscale="log", xlabel="devices", ylabel="s", title="causal prefill (dotted: the links alone)")
    right.set(xscale="log", yscale="log", xlabel="devices", ylabel="ms", title="decoding a token")
    for axes in (left, right):
        axes.set_xticks(DEVICES, map(str, DEVICES))
        axes.minorticks_off()
        axes.grid(alpha=0.3)
        axes.legend()
    figure.suptitle("Lines: the formula; points: measured on H100s (8 heads of 128, f16)")
    figure.savefig(path, dpi=110)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--csv", type=Path, default=Path("benchmarks/devices-h100.csv"))
    parser.add_argument("--png", type=Path, default=Path("benchmarks/scale.png"))
    args = parser.parse_args()
    times = read_medians(args.csv)
    rates = rates_of(times)
    print("\n".join(lines_of(rates, times)))
    plot(rates, times, args.png)
    return 0


if __name__ == "__main__":
    sys.exit(main())
