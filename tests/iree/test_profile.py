"""Where the time of calls goes: what is made of the runtime's events."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from onnx_fa.benchmark.time_parts import TimeParts, read, write
from onnx_fa.errors import RunError
from onnx_fa.iree.profile import Call, Event, Share, calls_of, read_events

RECORDED = Path(__file__).parent / "profiles" / "layer.jsonl"
"""Four calls of a layer with five linear sites, an attention and a softmax, with two workers; without the rows of other records."""
MS = [5.23, 0.121, 3.83, 0.089]
NAME = "linear_0123456789_tiles"


def test_recorded_calls() -> None:
    with RECORDED.open() as lines:
        events = read_events(lines)
    calls = calls_of(events, MS)
    assert len(events) == 28 and [c.ms for c in calls] == MS
    for call in calls:
        assert [(s.kind, s.count) for s in call.shares] == [
            ("linear", 3),
            ("attention", 1),
            ("linear", 1),
            ("linear", 1),
            ("rest", 1),
        ]
        assert 0 < call.between < call.ms
        assert call.between + sum(map(call.of, ("attention", "linear", "rest"))) == pytest.approx(call.ms)  # type: ignore[arg-type]
    attention = sum(s.ms for c in calls for s in c.shares if s.kind == "attention")
    assert attention == pytest.approx(0.045942)  # what `iree-profile statistics` says of them
    products = sum(s.ms for c in calls for s in c.shares if s.name == "linear_f04f49470a_tiles")
    assert products <= 0.079350  # three of them run at the same time


def test_dispatches_that_run_at_the_same_time_share_it() -> None:
    """From 0 to 10 and 4 to 6, from 12 to 14; in microseconds."""
    events = [Event(NAME, 0, 10_000, 12_000), Event("fa_x", 4_000, 6_000, 2_000), Event("other", 12_000, 14_000, 4_000)]
    (call,) = calls_of(events, [0.02])
    parts = [call.of(kind) for kind in ("linear", "attention", "rest")]  # type: ignore[arg-type]
    assert parts == pytest.approx([0.009, 0.001, 0.002]) and call.between == pytest.approx(0.008)
    assert [s.worker_ms for s in call.shares] == pytest.approx([0.012, 0.002, 0.004])


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "no dispatch was recorded"),
        ("not json\n", "not as expected: 'not json'"),
        ('{"record_type": "host_execution_event", "op": "dispatch", "valid": true}\n', "not as expected"),
        ('{"record_type": "host_execution_event", "op": "dispatch", "valid": false}\n', "without times"),
        ('{"record_type": "diagnostic", "dropped_records": 3}\n', "some of the events were lost"),
        ("[]\n", "not as expected"),
    ],
)
def test_what_cannot_be_read(text: str, words: str) -> None:
    with pytest.raises(RunError, match=words):
        read_events(text.splitlines(keepends=True))


def test_calls_that_differ() -> None:
    with pytest.raises(RunError, match="3 dispatches in 2 calls"):
        calls_of([Event("a", i, i + 1, 1) for i in range(3)], [1.0, 1.0])


def test_the_files_say_the_same(tmp_path: Path) -> None:
    def call(ms: float) -> Call:
        return Call(ms, (Share("fa_x", "attention", 2, 1.0, 1.5), Share(NAME, "linear", 4, 2.0, 4.0)))

    machine = {"cpu": "a CPU", "cores": 2, "threads": 2, "date": "today", "versions": {"onnx-fa": "1"}}
    made = TimeParts("m", tuple(map(call, (9.0, 4.0, 5.0, 100.0))), (4.0, 5.0, 9.0), 2, machine)
    paths = write([made], tmp_path / "p")
    (again,) = read(paths[0])
    assert (again.calls, again.plain, again.threads) == (made.calls, made.plain, 2)
    assert made.ms == 7.0 and made.between == 4.0 and made.plain_ms == 5.0
    assert made.row() == again.row() == ("m", "7.00", "1 (14%)", "2 (29%)", "0 (0%)", "4 (57%)", "5.00")
    (data,) = json.loads(paths[1].read_text())
    assert data["call_ms"] == 7.0 and data["linear_ms"] == 2.0 and data["between_ms"] == 4.0
    assert [d["name"] for d in data["dispatches"]] == [NAME, "fa_x"]
    line = next(line for line in made.table().splitlines() if line.startswith("attention"))
    assert line.split() == ["attention", "1", "14%", "2", "75%"]
