"""How attention over more devices scales, from what a few took: the formula of docs/guide/scale.md, as a table and a plot.

python scripts/plot_scale.py [--csv benchmarks/devices-h200.csv] [--png benchmarks/scale.png]
"""

from __future__ import annotations

import argparse
import csv
import sys
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median

H, HKV, D, BYTES = 8, 8, 128, 2
"""Heads of queries, of keys and values, their size, and bytes of a number: those that were measured."""
LENGTHS = {"64k": 1 << 16, "256k": 1 << 18, "1M": 1 << 20, "16M": 1 << 24}
DEVICES = (1, 2, 4, 8, 16, 32, 64)
ROWS = (1, 8, 64)
"""Numbers of devices in the table, besides what was measured."""
_PREFILL = "onnx_fa, one device", "onnx_fa, ring of K and V"
_DECODE = "onnx_fa, one device, bound, in a row", "onnx_fa, cache in parts, bound, in a row"
"""What was measured on one device and on several."""


@dataclass(frozen=True)
class Rates:
    """What one device does: `flops` a second of a causal ring as a whole, `link` and `cache` bytes a second, and the seconds that a
    decoding step takes besides: its `call`, and exchange and `merge` where there are several devices. `devices` of the `card` were
    measured."""

    card: str
    devices: int
    flops: float
    link: float
    cache: float
    call: float
    merge: float


def read_rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def medians_of(rows: list[dict[str, str]]) -> dict[tuple[str, str], float]:
    """Median seconds by case and by what was run."""
    found: dict[tuple[str, str], list[float]] = defaultdict(list)
    for row in rows:
        found[row["case"], row["what"]].append(float(row["ms"]) / 1e3)
    return {key: median(times) for key, times in found.items()}


def causal_flops(S: int) -> float:
    """Multiplications and additions of both products, of what a causal mask leaves."""
    return 2.0 * S * S * D * H


def cache_bytes(S: int) -> float:
    """K and V of so many tokens."""
    return 2.0 * S * HKV * D * BYTES


def rates_of(rows: list[dict[str, str]]) -> Rates:
    """The rates behind the measurements. The longest sequence counts: clocks fall under a load of seconds."""
    times, devices = medians_of(rows), max(int(row["devices"]) for row in rows)
    part = "onnx_fa, a part alone, bound, in a row"
    short, long = times["decode-64k", part], times["decode-1M", part]
    cache = (cache_bytes(LENGTHS["1M"]) - cache_bytes(LENGTHS["64k"])) / devices / (long - short)
    call = long - cache_bytes(LENGTHS["1M"]) / devices / cache
    return Rates(
        rows[0]["card"].split()[1],
        devices,
        causal_flops(LENGTHS["1M"]) / devices / times["1M", _PREFILL[1]],
        (1 << 29) / times["link", "ring, 512 MiB each way"],
        cache,
        call,
        times["decode-1M", _DECODE[1]] - long,
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


def seen(rates: Rates, times: dict[tuple[str, str], float]) -> Iterator[tuple[tuple[str, int], tuple[float, float]]]:
    """Length and devices, and seconds of prefill and of a token there, of all that was measured."""
    for name in LENGTHS:
        for which, n in enumerate((1, rates.devices)):
            keys = (name, _PREFILL[which]), (f"decode-{name}", _DECODE[which])
            if all(key in times for key in keys):
                yield (name, n), (times[keys[0]], times[keys[1]])


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
    measurements = dict(seen(rates, times))
    for name, S in LENGTHS.items():
        for n in sorted({*ROWS, rates.devices}):
            products, link = prefill(rates, S, n)
            found = measurements.get((name, n))
            measured = f"{found[0]:.4f}, {found[1] * 1e3:.3f}" if found else ""
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
        for (at, n), (whole, token) in seen(rates, times):
            if at == name:
                left.plot(n, whole, "o", color=color)
                right.plot(n, token * 1e3, "o", color=color)
    left.set(xscale="log", yscale="log", xlabel="devices", ylabel="s", title="causal prefill (dotted: the links alone)")
    right.set(xscale="log", yscale="log", xlabel="devices", ylabel="ms", title="decoding a token")
    for axes in (left, right):
        axes.set_xticks(DEVICES, map(str, DEVICES))
        axes.minorticks_off()
        axes.grid(alpha=0.3)
        axes.legend()
    figure.suptitle(f"Lines: the formula; points: measured on {rates.card}s (8 heads of 128, f16)")
    figure.savefig(path, dpi=110)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--csv", type=Path, default=Path("benchmarks/devices-h200.csv"))
    parser.add_argument("--png", type=Path, default=Path("benchmarks/scale.png"))
    args = parser.parse_args()
    rows = read_rows(args.csv)
    times, rates = medians_of(rows), rates_of(rows)
    print("\n".join(lines_of(rates, times)))
    plot(rates, times, args.png)
    return 0


if __name__ == "__main__":
    sys.exit(main())
