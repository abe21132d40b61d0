"""The formula of docs/guide/scale.md, and its table."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


def _script() -> Any:
    spec = importlib.util.spec_from_file_location("plot_scale", ROOT / "scripts" / "plot_scale.py")
    assert spec is not None and spec.loader is not None
    module = sys.modules["plot_scale"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_table_is_the_scripts() -> None:
    script = _script()
    rows = script.read_rows(ROOT / "benchmarks" / "devices-h200.csv")
    made = "\n".join(script.lines_of(script.rates_of(rows), script.medians_of(rows)))
    page = (ROOT / "docs" / "guide" / "scale.md").read_text()
    assert page.partition("<!-- scale -->\n")[2].partition("\n<!-- /scale -->")[0] == made


def test_products_and_links_meet_where_the_bound_says() -> None:
    script = _script()
    rates = script.Rates("a card", 4, 5e14, 3e11, 2e12, 1e-4, 1e-4)
    devices = 1000  # of many devices all but one of N steps take keys of others
    products, link = script.prefill(rates, int(script.least_tokens(rates, rates.link) * devices), devices)
    assert products == pytest.approx(link, rel=0.01)
    assert script.prefill(rates, 4096, 1)[1] == 0 and script.decode(rates, 1 << 20, 1) == pytest.approx(
        1e-4 + 2 * (1 << 20) * 8 * 128 * 2 / 2e12
    )
