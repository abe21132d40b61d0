"""What a decoder with caches is tried on: a prompt, a step behind it, and a chunk."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

from onnx_fa.graph.determined import determined_sizes
from onnx_fa.graph.io import load
from onnx_fa.verifier.calls import CALLS, decoder_calls
from onnx_fa.verifier.runners import Runner
from onnx_fa.verifier.verifier import verify
from tests.support import tiny, tiny_decoders
from tests.support.tiny_decoders import IN_PLACE

Arrays = dict[str, np.ndarray[tuple[int, ...], np.dtype[np.generic]]]


def calls(model: ir.Model, **sizes: int) -> tuple[dict[str, Arrays], list[str]]:
    return decoder_calls(model, determined_sizes(model) | sizes)


@pytest.mark.parametrize("name", IN_PLACE)
def test_each_layout_takes_them(name: str, tmp_path: Path) -> None:
    model = load(IN_PLACE[name]())
    found, notes = calls(model)
    assert list(found) == ["prompt", "step", "chunk"] and not notes
    run = Runner(model, tmp_path / "m.onnx")
    for call in CALLS:
        arrays = found[call.name]
        assert arrays["input_ids"].shape == (call.batch, call.new)
        assert run(arrays)["logits"].shape[:2] == (call.batch, call.new)
        caches = [a for n, a in arrays.items() if n.startswith("past_key_values")]
        assert {a.shape[2] for a in caches} == {call.past + call.new + 6 if name == "scatter" else call.past}
        assert not call.past or all(a.std() > 0.5 for a in caches)


def test_rooms_that_are_fixed(tmp_path: Path) -> None:
    """A prompt of 23 tokens has no room in 16 rows; a step and a chunk come behind fewer tokens."""
    model = load(tiny_decoders.scatter(16))
    found, notes = calls(model)
    assert list(found) == ["step", "chunk"] and "has 16 rows, and the call takes 23" in notes[0] and len(notes) == 1
    assert [int(a["write_indices"].flat[0]) for a in found.values()] == [15, 11]
    run = Runner(model, tmp_path / "m.onnx")
    assert all(run(arrays)["present.0.key"].shape[2] == 16 for arrays in found.values())


def test_sizes_that_are_given() -> None:
    found, notes = calls(load(tiny_decoders.grouped()), batch=1)
    assert list(found) == ["chunk"] and len(notes) == 2


def test_inputs_of_which_nothing_is_known() -> None:
    model = load(IN_PLACE["concat"]())
    value = next(v for v in model.graph.inputs if v.name == "attention_mask")
    value.name = "unheard_of"
    found, notes = calls(model)
    assert not found and "'unheard_of'" in notes[0]


def test_models_without_caches(tmp_path: Path) -> None:
    assert decoder_calls(load(tiny.attention(tmp_path / "a.onnx")), {}) == ({}, [])


def test_verify_tries_them() -> None:
    report = verify(tiny_decoders.grouped(), seeds=1)
    report.check()
    assert {c.inputs for c in report.checks} & {"prompt", "step", "chunk"}
