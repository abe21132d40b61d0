"""Decoders with caches in every layout generate onnxruntime's tokens, and write their caches in place."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from onnx_fa.errors import RunError
from onnx_fa.generate.greedy import generate
from onnx_fa.generate.layout import DecoderFiles, find_files
from onnx_fa.generate.modules import Module, _join_archives, build_modules, describe_to, read_described
from onnx_fa.generate.ort_decoder import OrtDecoder
from onnx_fa.generate.resident import IreeDecoder
from onnx_fa.spec.target import parse_target
from tests.support import tiny_decoders
from tests.support.sampled import parameters
from tests.support.tiny_decoders import HKV, D

PROMPT, COUNT = (3, 14, 15, 9, 2), 12


def built(model: onnx.ModelProto, folder: Path) -> tuple[DecoderFiles, tuple[Module, Module]]:
    onnx.save(model, folder / "model.onnx")
    files = find_files(folder)
    return files, build_modules(files, parse_target("cpu-host"), folder)


KINDS = sorted(tiny_decoders.IN_PLACE, key=lambda kind: kind != "grouped")
KEPT = [i for i, kind in enumerate(KINDS) if kind != "grouped_window"]
"""Every run tries the operator of groups, whose modules other tests use too, and of the two with it one."""


@pytest.mark.parametrize("kind", parameters(KINDS, KINDS, KEPT))
def test_tokens_are_those_of_onnxruntime(kind: str, tmp_path: Path) -> None:
    files, modules = built(tiny_decoders.IN_PLACE[kind](), tmp_path)
    assert [cache.grown for cache in modules[1].caches] == [True, True]
    decoder = IreeDecoder(*modules, "local-task", len(PROMPT) + COUNT)
    ours, theirs = (generate(d, PROMPT, COUNT) for d in (decoder, OrtDecoder(files, len(PROMPT) + COUNT)))
    assert len(set(theirs.tokens)) > 2  # else it would tell nothing
    assert ours.tokens == theirs.tokens
    assert generate(decoder, PROMPT, COUNT).tokens == theirs.tokens  # a second text starts anew


@pytest.fixture(scope="module")
def grouped(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, tuple[Module, Module]]:
    folder = tmp_path_factory.mktemp("grouped")
    return folder, built(tiny_decoders.grouped(), folder)[1]


def test_a_prompt_in_two_parts_is_the_whole_prompt(grouped: tuple[Path, tuple[Module, Module]]) -> None:
    """The module for prompts takes a chunk behind a past, too."""
    decoder = IreeDecoder(*grouped[1], "local-task", 16)
    decoder.start()
    whole = decoder.run(PROMPT)
    decoder.start()
    decoder.run(PROMPT[:2])
    np.testing.assert_allclose(decoder.run(PROMPT[2:]), whole, rtol=1e-4, atol=1e-5)


def test_modules_are_described_and_read_again(grouped: tuple[Path, tuple[Module, Module]], tmp_path: Path) -> None:
    describe_to(tmp_path / "modules.json", grouped[1])
    assert read_described(tmp_path / "modules.json") == grouped[1]


def test_more_tokens_than_there_is_room_for(grouped: tuple[Path, tuple[Module, Module]]) -> None:
    decoder = IreeDecoder(*grouped[1], "local-task", 4)
    decoder.start()
    with pytest.raises(RunError, match="5 tokens for caches of 4"):
        decoder.run(PROMPT)


def test_a_step_allocates_no_cache(grouped: tuple[Path, tuple[Module, Module]]) -> None:
    """Caches of 16 MiB, and a call that takes less than one of them from the device."""
    rows = 1 << 17
    decoder = IreeDecoder(*grouped[1], "local-task", rows)
    decoder.start()
    decoder.run(PROMPT)
    decoder.run([1])
    before = decoder.device.allocated()
    decoder.run([1])
    assert before > 32 << 20
    assert decoder.device.allocated() - before < 1 << 20
    cache = grouped[1][1].caches[0]
    assert cache.grown and rows * HKV * D * 4 == 16 << 20


def test_cache_kept_in_a_copy(tmp_path: Path) -> None:
    """A cache that more than the attention writes is passed on as it is."""
    model = tiny_decoders.concat()
    for node in model.graph.node:
        for i, name in enumerate(node.output):
            if name == "present.0.key":
                node.output[i] = "key"
        node.input[:] = ["key" if name == "present.0.key" else name for name in node.input]
    model.graph.node.append(onnx.helper.make_node("Abs", ["key"], ["present.0.key"], "abs"))
    files, modules = built(model, tmp_path)
    assert [cache.grown for cache in modules[1].caches] == [False, True]
    assert "made by Abs" in modules[1].copied["past_key_values.0.key"]
    decoder = IreeDecoder(*modules, "local-task", len(PROMPT) + COUNT)
    ours, theirs = (generate(d, PROMPT, COUNT) for d in (decoder, OrtDecoder(files, len(PROMPT) + COUNT)))
    assert ours.tokens == theirs.tokens


def test_states_go_from_call_to_call(tmp_path: Path) -> None:
    """They are as large behind every token, so that nothing grows, and a prompt in two parts is the whole prompt."""
    files, modules = built(tiny_decoders.states(), tmp_path)
    assert [cache.shape for cache in modules[1].caches] == [(1, 32, 2), (1, HKV, D, D)]
    assert modules[1].copied["past.0.recurrent"] == "it is a state, which every token changes as a whole"
    decoder = IreeDecoder(*modules, "local-task", len(PROMPT) + COUNT)
    ours, theirs = (generate(d, PROMPT, COUNT) for d in (decoder, OrtDecoder(files, len(PROMPT) + COUNT)))
    assert len(set(theirs.tokens)) > 2
    assert ours.tokens == theirs.tokens
    decoder.start()
    whole = decoder.run(PROMPT)
    decoder.start()
    decoder.run(PROMPT[:2])
    np.testing.assert_allclose(decoder.run(PROMPT[2:]), whole, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("same", [True, False])
def test_equal_archives_become_one_file(same: bool, tmp_path: Path) -> None:
    prompt, step = tmp_path / "prompt.irpa", tmp_path / "step.irpa"
    prompt.write_bytes(b"weights")
    step.write_bytes(b"weights" if same else b"other")
    _join_archives(prompt, step)
    assert prompt.samefile(step) == same and step.read_bytes() == (b"weights" if same else b"other")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["prompt.irpa", "step.irpa"]
