"""`explain --html`: what the page says, that it is whole, and that it needs nothing else."""

from __future__ import annotations

import re
from html import escape
from html.parser import HTMLParser
from pathlib import Path
from random import Random

import pytest

import tests.support.tiny as tiny
from onnx_fa.cli.command import main
from onnx_fa.explainer.graph_picture import MAX_BOXES, Box, svg
from onnx_fa.explainer.page import page, pictures, size_words
from onnx_fa.forms.rewrite import explain
from onnx_fa.spec.words import einsums, sentence

VOID = {"meta", "link", "path", "polyline", "rect", "br"}


class Balanced(HTMLParser):
    """Every element that is opened is closed, in order; nothing is fetched."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: set[str] = set()
        self.links: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        assert tag != "script" and "src" not in given
        self.ids |= {i for i in [given.get("id")] if i}
        href = given.get("href") or ""
        assert href == "" or href.startswith(("#", "data:")), href
        self.links |= {href[1:]} if href.startswith("#") else set()
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag in VOID

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag, tag


def checked(html: str) -> Balanced:
    parser = Balanced()
    parser.feed(html)
    assert not parser.open and parser.links <= parser.ids
    return parser


def test_page(tmp_path: Path) -> None:
    path = tiny.attention(tmp_path / "a.onnx", wrong=True)
    report, html = page(path, "a <model>")
    assert checked(html).ids == {"softmax"}
    assert "a &lt;model&gt;" in html and "3 → 1" in html and "router_softmax" in html
    assert "einsum(&#39;bhsd,bhtd-&gt;bhst&#39;, Q, K)" in html
    # Before: all ops from Q, K and V; after: the ops of the dispatch.
    before, after = html.split("<summary>Before</summary>")[1].split("After: these ops")
    assert all(f">{op}</text>" in before for op in ("Transpose", "MatMul", "Mul", "Add", "Softmax"))
    assert all('<g class="site"><rect' in after and f">{op}</text>" in after for op in ("ReduceMax", "Exp", "Div"))
    assert {"p0", "p2"} <= set(re.findall(r'<g class="(\w+)">', before))
    assert [m.node for m in report.misses] == ["router_softmax"]


def test_command_writes_it(tmp_path: Path) -> None:
    path = tiny.standard(tmp_path / "a.onnx")
    assert main(["explain", str(path), "--html", str(tmp_path / "a.html")]) == 0
    checked((tmp_path / "a.html").read_text())
    assert main(["explain", str(path), "--html", str(tmp_path / "no" / "a.html")]) == 2


def test_what_is_computed_beside_a_site(tmp_path: Path) -> None:
    """Probabilities that are an output cost their scores a second time: the page says what the report says."""
    tiny.attention(tmp_path / "a.onnx", probabilities=True)
    report, html = page(tmp_path / "a.onnx", "a")
    (site,) = report.sites
    assert site.beside and escape(site.beside) in html
    tiny.attention(tmp_path / "plain.onnx")
    assert "Beside it" not in page(tmp_path / "plain.onnx", "plain")[1]


def test_a_model_without_sites(tmp_path: Path) -> None:
    from onnx import TensorProto, helper

    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, [2, 3]) for n in "xy")
    path = tiny.save(tmp_path / "a.onnx", [helper.make_node("Relu", ["x"], ["y"])], [x], [y])
    report, html = page(path, "a")
    checked(html)
    assert not report.sites and "0 attention sites found" in html


def test_pictures_leave_the_report_as_it_is(tmp_path: Path) -> None:
    path = tiny.encoder(tmp_path / "a.onnx")
    assert pictures(path)[0] == explain(path, passes=True)


def test_words(tmp_path: Path) -> None:
    (site,) = explain(tiny.standard(tmp_path / "a.onnx")).sites
    assert "20 queries and as many keys" in sentence(site.spec) and "causal" in sentence(site.spec)
    assert einsums(site.spec)[-1] == "O = einsum('bhst,bhte->bhse', P, V)"
    assert [size_words(n) for n in (5, 2048, 3 << 20, None)] == ["5 B", "2 KiB", "3 MiB", "?"]


def test_picture_of_a_graph() -> None:
    boxes = [
        Box("a", "a<b", "f32 2x3", "input"),
        Box("n", "Add", "", "op", ("a",)),
        Box("m", "Mul", "", "p0", ("n", "a")),
    ]
    picture = svg(boxes)
    assert picture.count("<rect") == 3 and "a&lt;b" in picture
    long = [Box(str(i), "Add", "", "op", (str(i - 1),) if i else ()) for i in range(MAX_BOXES)]
    assert svg(long).count("<rect") == MAX_BOXES and svg([]).startswith("<svg")


@pytest.mark.parametrize("seed", range(20))
def test_no_arrow_runs_through_a_box(seed: int) -> None:
    """Boxes do not overlap, arrows pass a row between its boxes, and bend only between rows."""
    random = Random(seed)
    boxes: list[Box] = []
    for n in range(40):
        read = random.sample(range(n), min(n, random.choice((0, 1, 1, 2, 2, 3))))
        boxes.append(Box(str(n), "Add", "", "op", tuple(map(str, read))))
    picture = svg(boxes)
    rects = [tuple(map(int, found)) for found in re.findall(r'<rect x="(-?\d+)" y="(\d+)" width="(\d+)"', picture)]
    paths = re.findall(r'd="M(\d+) (\d+)(?:V(\d+)|C[^"]* (\d+) (\d+))"/>', picture)
    assert len(rects) == len(boxes) and paths
    for n, (x, y, width) in enumerate(rects):
        assert all(y != other_y or x + width < other or other + width < x for other, other_y, _ in rects[:n])
    rows = {y for _, y, _ in rects}
    for at, start, end, _, bent_end in paths:
        if end:
            passed = [(x, width) for x, y, width in rects if y == int(start)]
            assert passed and not any(x <= int(at) <= x + width for x, width in passed)
        else:
            assert not any(int(start) <= y < int(bent_end) for y in rows)
