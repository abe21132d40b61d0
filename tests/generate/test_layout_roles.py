"""Which files a decoder has, which caches, and what its inputs stand for."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto as T
from onnx import helper as h

from onnx_fa.errors import ModelError
from onnx_fa.generate.layout import find_files
from onnx_fa.graph.caches import CachePair, find_cache_pairs
from onnx_fa.graph.io import load
from onnx_fa.graph.roles import Input, call_arrays, read_roles
from tests.support import tiny_decoders

KEY, VALUE = (CachePair(f"past_key_values.0.{x}", f"present.0.{x}", 2) for x in ("key", "value"))


@pytest.mark.parametrize("kind", tiny_decoders.IN_PLACE)
def test_caches_are_found_by_their_ops(kind: str) -> None:
    assert find_cache_pairs(load(tiny_decoders.IN_PLACE[kind]())) == (KEY, VALUE)


@pytest.mark.parametrize(
    ("past", "present"),
    [
        ("past_key_values.3.key", "present.3.key"),
        ("past_key_3", "present_key_3"),
        ("past_3", "present_3"),
        ("past_key_values.0.decoder.key", "present_key_values.0.decoder.key"),
    ],
)
def test_caches_are_found_by_their_names(past: str, present: str) -> None:
    assert find_cache_pairs(_passing(past, present)) == (CachePair(past, present, None),)


@pytest.mark.parametrize(
    ("past", "present"), [("past_1", "present_2"), ("passed_1", "passed_1_out"), ("mask", "logits")]
)
def test_other_names_are_no_caches(past: str, present: str) -> None:
    assert find_cache_pairs(_passing(past, present)) == ()


def _passing(past: str, present: str) -> ir.Model:
    """An output that is an input times itself."""
    value, made = (h.make_tensor_value_info(n, T.FLOAT, [1, 2, "n", 4]) for n in (past, present))
    graph = h.make_graph([h.make_node("Mul", [past, past], [present])], "g", [value], [made])
    return load(h.make_model(graph, opset_imports=[h.make_opsetid("", 17)], ir_version=10))


def roles(**shapes: list[int | str]) -> dict[str, Input]:
    kinds = {"attention_mask": T.FLOAT, "use_cache_branch": T.BOOL}
    inputs = [h.make_tensor_value_info(n, kinds.get(n, T.INT64), s) for n, s in shapes.items()]
    node = h.make_node("Identity", [next(iter(shapes))], ["logits"])
    graph = h.make_graph([node], "g", inputs, [h.make_tensor_value_info("logits", T.INT64, ["b", "s"])])
    model = load(h.make_model(graph, opset_imports=[h.make_opsetid("", 17)], ir_version=10))
    return {i.name: i for i in read_roles(model, ())}


def test_arrays_of_a_call() -> None:
    given = roles(
        input_ids=["b", "s"],
        attention_mask=["b", 1, "s", "t"],
        position_ids=["b", "s"],
        cache_position=["s"],
        seqlens_k=["b"],
        total_sequence_length=[],
        past_length=[1],
        use_cache_branch=[1],
    )
    arrays = call_arrays(tuple(given.values()), np.array([[7, 8]]), 3, 9)
    assert arrays["input_ids"].tolist() == [[7, 8]]
    assert (arrays["attention_mask"][0, 0] == 0).tolist() == [[True] * 4 + [False], [True] * 5]
    assert arrays["position_ids"].tolist() == [[3, 4]]
    assert arrays["cache_position"].tolist() == [3, 4]
    assert arrays["seqlens_k"].tolist() == [4]
    assert arrays["total_sequence_length"].tolist() == 5
    assert arrays["past_length"].tolist() == [3]
    assert arrays["use_cache_branch"].tolist() == [True]


def test_mask_over_the_room_of_a_cache() -> None:
    given = Input("attention_mask", "mask", (1, None), ir.DataType.INT64, over_room=True)
    tokens = Input("input_ids", "tokens", (1, None), ir.DataType.INT64)
    arrays = call_arrays((tokens, given), np.array([[7, 8]]), 1, 5)
    assert arrays["attention_mask"].tolist() == [[1, 1, 1, 0, 0]]


def test_an_unknown_input_is_named() -> None:
    with pytest.raises(ModelError, match="input 'encoder_states': nothing tells what a decoder takes there"):
        roles(input_ids=["b", "s"], encoder_states=["b", 4])


def test_a_decoder_takes_tokens() -> None:
    with pytest.raises(ModelError, match="no input takes tokens"):
        roles(position_ids=["b", "s"])


def test_files_of_folders(tmp_path: Path) -> None:
    for name in ("decoder_model.onnx", "decoder_with_past_model.onnx"):
        (tmp_path / name).touch()
    assert [p.name for p in (find_files(tmp_path).prompt, find_files(tmp_path).step)] == [
        "decoder_model.onnx",
        "decoder_with_past_model.onnx",
    ]
    (tmp_path / "decoder_model_merged.onnx").touch()
    assert find_files(tmp_path).step.name == "decoder_model_merged.onnx"
    config = {"model": {"eos_token_id": [2, 3], "decoder": {"filename": "d.onnx", "head_size": 16}}}
    (tmp_path / "genai_config.json").write_text(json.dumps(config))
    with pytest.raises(ModelError, match=r"names a decoder that is not there: 'd\.onnx'"):
        find_files(tmp_path)
    (tmp_path / "d.onnx").touch()
    files = find_files(tmp_path)
    assert (files.step.name, files.end_tokens, files.head_size) == ("d.onnx", (2, 3), 16)
    (tmp_path / "genai_config.json").write_text("{}")
    with pytest.raises(ModelError, match=r"genai_config\.json: names no model\.decoder\.filename"):
        find_files(tmp_path)


def test_no_files(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"no decoder: neither genai_config\.json"):
        find_files(tmp_path)
    with pytest.raises(ModelError, match="no such file or folder"):
        find_files(tmp_path / "other")


def test_a_model_without_caches_generates_nothing(tmp_path: Path) -> None:
    from onnx_fa.generate.modules import build_modules
    from onnx_fa.spec.target import parse_target

    model = tiny_decoders.concat()
    del model.graph.output[1:]
    onnx.save(model, tmp_path / "model.onnx")
    with pytest.raises(ModelError, match="no cache: a decoder that generates"):
        build_modules(find_files(tmp_path), parse_target("cpu-host"), tmp_path)
