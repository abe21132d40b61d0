"""The form whose parts of the keys are a cluster of workgroups: who sends what where, its PTX, what it declines, where it is
chosen, and the module around it. Its numbers are held to the reference in Triton's interpreter
(tests/support/triton_interpreter.py)."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from onnx_fa.errors import UnsupportedError
from onnx_fa.iree.alone import compile_alone
from onnx_fa.kernels.plan.folding import fold_queries
from onnx_fa.kernels.tiles.shapes import Shape
from onnx_fa.kernels.triton import emit_triton
from onnx_fa.kernels.triton.cluster import MOST_IN_CLUSTER, can_cluster, is_cluster, received_bytes
from onnx_fa.kernels.triton.config import CLUSTER, TritonConfig, padded
from onnx_fa.kernels.triton.decode_time import reckon_time
from onnx_fa.kernels.triton.module import program_of
from onnx_fa.kernels.triton.program import RECEIVED
from onnx_fa.kernels.triton.ptx import as_cluster, compile_program
from onnx_fa.kernels.triton.tiles import can_run, smaller, tuned
from onnx_fa.spec.attention import AttentionSpec
from onnx_fa.spec.cases import case
from onnx_fa.spec.target import parse_target
from onnx_fa.spec.terms import Rounding


def one_query(**changes: Any) -> AttentionSpec:
    sizes = {"dtype": "f16", "Sq": 1, "Skv": 1024, "D": 128, "Dv": 128, "batch": (1,), "Hq": 32, "Hkv": 8}
    return fold_queries(case("x", **sizes | changes).spec)


def tiles(splits: int = 8, BN: int = 64, warps: int = 4, stages: int = 2) -> TritonConfig:
    return TritonConfig(16, BN, warps, stages, overlap=CLUSTER, splits=splits)


def sent(text: str) -> list[tuple[str, str]]:
    """To which workgroups, and to which of their numbers, as source: the output's columns, maxima and sums."""
    return re.findall(r'"=r,r,r,f,r", \[(.+?), 4 \* \((.+?)\), \w+(?:\[:, None\])?, kept', text)


@pytest.mark.parametrize(("rows", "Dv", "splits"), [(4, 128, 8), (1, 16, 8), (7, 80, 4), (16, 40, 2)])
def test_every_number_has_its_place(rows: int, Dv: int, splits: int) -> None:
    """Each workgroup is sent its columns of each part, and the maxima and sums of all rows, and no two to one place."""
    spec = one_query(Hq=2 * rows, Hkv=2, D=64, Dv=Dv)
    program = program_of(spec, tiles(splits), "fa", 90)
    widths = [int(n) for n in re.findall(r"acc\w* = tl.zeros\(\[16, (\d+)\]", program.text)]
    found: dict[int, set[int]] = {to: set() for to in range(splits)}
    om = np.arange(16)[: spec.Sq]
    for split in range(splits):
        starts = np.cumsum([0, *widths])
        for i, (to, at) in enumerate(sent(program.text)):
            known = {"split": split, "om": om, "others": np.arange(splits)}
            if i < len(widths):
                name = re.search(r"\((ov\w*) //", to)
                assert name is not None
                known[name[1]] = np.arange(starts[i], starts[i] + widths[i])
            where, place = np.broadcast_arrays(eval(to, {"None": None}, known), eval(at, {"None": None}, known))
            for w, p in zip(where.ravel().tolist(), place.ravel().tolist(), strict=True):
                assert p not in found[w]
                found[w].add(p)
    assert sum(map(len, found.values())) == splits * rows * (sum(widths) + 2 * splits)
    assert all(max(places) < program.received // 4 for places in found.values())
    assert program.received == received_bytes(rows, padded(Dv), splits) and program.cluster == splits


def test_order_of_barriers() -> None:
    """Nothing is sent before all have begun, nor read before all have sent; what is sent is read by nobody else."""
    text = program_of(one_query(), tiles(), "fa", 90).text
    order = re.findall(
        r"cluster\.arrive\.relaxed|for j in|cluster\.wait\.acquire|st\.shared::cluster|ld\.shared|tl\.store", text
    )
    arrive, loop, wait, *rest = order
    assert (arrive, loop, wait) == ("cluster.arrive.relaxed", "for j in", "cluster.wait.acquire")
    assert rest == [*["st.shared::cluster"] * 3, "cluster.wait.acquire", *["ld.shared"] * 3, "tl.store"]
    assert "count" not in text.split("):", 1)[1] and "part" not in text.split("):", 1)[1]


def test_ptx() -> None:
    """Says how many workgroups are a cluster, and keeps what is received behind what Triton keeps."""
    program = program_of(one_query(), tiles(), "fa", 90)
    made = compile_program(program, 90, 4, 2)
    assert ".explicitcluster\n.reqnctapercluster 1, 8, 1\n" in made.text and str(RECEIVED) not in made.text
    start = made.shared - program.received
    assert start % 16 == 0 and made.text.count(f"add.u32 a, a, {start};") == made.text.count(
        "global_smem; add.u32 a, a,"
    )
    assert made.text.count("barrier.cluster.arrive") == made.text.count("barrier.cluster.wait") == 2
    text, shared = as_cluster(f".reqntid 64\nadd.u32 a, a, {RECEIVED};", 100, program)
    assert text == ".reqntid 64\n.explicitcluster\n.reqnctapercluster 1, 8, 1\nadd.u32 a, a, 112;"
    assert shared == 112 + program.received


def test_what_it_declines() -> None:
    assert can_cluster(one_query()) and is_cluster(one_query(), tiles())
    for spec in (one_query(Sq=5), one_query(rounding=Rounding(1 / 255, 255)), one_query(Sq="sq")):
        assert not can_cluster(spec)
        with pytest.raises(UnsupportedError, match="a cluster is of two to 8 parts"):
            program_of(spec, tiles(), "fa", 90)
    for splits in (1, 2 * MOST_IN_CLUSTER):
        assert not is_cluster(one_query(), tiles(splits)) and not can_run(one_query(), tiles(splits), 90)
    # Code for other GPUs would combine its parts in a dispatch of its own, of other operands.
    assert not is_cluster(one_query(Hq=16, Hkv=1, D=256, Dv=256), tiles())
    assert can_run(one_query(), tiles(), 90) and not can_run(one_query(), tiles(), 80)
    with pytest.raises(UnsupportedError, match="Hopper"):
        program_of(one_query(), tiles(), "fa", 80)
    assert [c.overlap for c in smaller(tiles())][:2] == [CLUSTER, 0]


def test_where_it_is_chosen() -> None:
    """Of few keys that several heads share, not of so many that eight workgroups for a head are too few."""
    config, reason = tuned(one_query(), 90)
    assert config.overlap == CLUSTER and 1 < config.splits <= MOST_IN_CLUSTER and "cuda-shapes" in reason
    assert tuned(one_query(Skv=32768), 90)[0].overlap == 0
    assert tuned(one_query(), 80)[0].overlap == 0
    shape = Shape(128, 128, 0, 8, 4, 1024)
    one = {"BM": 16, "BN": 64, "warps": 4, "stages": 2, "splits": 8}
    assert reckon_time(one | {"overlap": CLUSTER}, shape) < reckon_time(one | {"overlap": 0}, shape)


def test_module(tmp_path: Path) -> None:
    """Hopper's code is a cluster's; all others' splits the keys into as many parts, of the same operands."""
    site = case("x", dtype="f16", Sq=1, Skv=1000, D=64, Dv=64, batch=(2,), Hq=8, Hkv=2).spec
    kernel = emit_triton(site, parse_target("cuda"), "fa", tiles())
    assert (kernel.config["overlap"], kernel.config["overlap_sm_80"]) == (CLUSTER, 0)
    assert (kernel.config["splits"], kernel.config["splits_sm_80"]) == (8, 8)
    codes = [bytes.fromhex(x).decode() for x in re.findall(r'dense<"0x([0-9a-f]+)"', kernel.text)]
    assert [".reqnctapercluster" in code for code in codes] == [True, False]
    compile_alone(kernel, tmp_path / "fa.vmfb", parse_target("cuda"))
    assert kernel.into is not None
    (launch,) = kernel.into.plan.launches
    assert [code.workgroups for code in launch.codes] == [(4, 8), (4, 8)]
