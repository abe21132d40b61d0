"""Runs Triton source in Triton's interpreter (NumPy, no GPU): `python -m tests.support.triton_interpreter NAME...` prints, as
JSON, what is wrong with each case of `tests.support.cases`; `--part NAME...` tries both sizes and two kernels of a case, but not
each with each, and one kind of operands where it has one size and one kernel. A process of its own, since Triton decides when it is
imported."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
import os
import sys
import tempfile
import zlib
from pathlib import Path
from typing import Any

os.environ["TRITON_INTERPRET"] = "1"

import numpy as np
import torch

from onnx_fa.kernels.mlir.stored import operand_shapes
from onnx_fa.kernels.plan.folding import fold_queries
from onnx_fa.kernels.triton import cluster as cluster_form
from onnx_fa.kernels.triton import held as held_form
from onnx_fa.kernels.triton import reciprocals, widening
from onnx_fa.kernels.triton.cluster import ClusterSource, is_cluster
from onnx_fa.kernels.triton.combine import combine_program
from onnx_fa.kernels.triton.config import CLUSTER, HELD, TritonConfig, padded
from onnx_fa.kernels.triton.held import HeldSource, can_hold, rows_of_workgroup
from onnx_fa.kernels.triton.program import Program, combines_itself, loop_in
from onnx_fa.kernels.triton.ptx import load_function
from onnx_fa.kernels.triton.source import AttentionSource
from onnx_fa.spec.accuracy import expect
from onnx_fa.spec.attention import AttentionSpec
from onnx_fa.spec.cases import packed
from tests.support.cases import BY_NAME, draw_operands
from tests.support.quick_interpreter import quicken

quicken()
# The interpreter executes no inline assembly, which tests/kernels/test_triton_reciprocals.py does.
reciprocals.shared_reciprocal = lambda divisor, inverses: f"1.0 / {divisor}"
widening.halves_of = widening.converted
held_form._WORKGROUPS = 2
# What workgroups of a cluster send lies in the parts' memory, as much of it for each. Programs run one after the other, so
# that all of it is there in a second launch.
_ROOM = 1 << 13
_RECEIVED = f"part + (pid * tl.num_programs(1) + {{}}) * {_ROOM} + {{}}".format
cluster_form.pass_barrier = lambda t, what: None
cluster_form.send = lambda t, to, at, value, kept: t.do(
    f"tl.store({_RECEIVED(to, at)}, {value}, mask=({kept}).to(tl.int1))"
)
cluster_form.receive = lambda t, at: t.let(f"tl.load({_RECEIVED('split', at)})")
IN_CLUSTER = TritonConfig(16, 32, 4, 1, order=1, overlap=CLUSTER, splits=4)

TYPES = {"f32": torch.float32, "f16": torch.float16}


def run(
    spec: AttentionSpec, sizes: dict[str, int], operands: list[Any], *, split: bool = False, form: str = "plain"
) -> list[Any]:
    """The kernel of a spec with small tiles, its constants set to `sizes`. A few queries take split keys, all with `split`. Of the
    forms "hold" is that whose workgroups hold all keys for several blocks of queries."""
    folded = fold_queries(spec)
    few = isinstance(folded.Sq, int) and folded.Sq <= 32
    config = TritonConfig(
        16 if few else 32, 32, 4, 1, order=int(few), splits=4 if split or (few and spec.rounding is None) else 1
    )
    source = AttentionSource
    if form == "hold":
        config, source = TritonConfig(32, padded(int(folded.Skv)), 4, 1, overlap=HELD), HeldSource
    if form == "cluster":
        config, source = IN_CLUSTER, ClusterSource
    bound = folded.bind(sizes)
    inputs = [
        torch.from_numpy(np.ascontiguousarray(_as_bytes(packed(x)))).reshape(shape)
        for x, shape in zip(operands, operand_shapes(bound), strict=True)
    ]
    outs = [torch.full(shape, math.nan, dtype=TYPES[element]) for shape, element in bound.results]
    heads = math.prod((*bound.batch, bound.Hq))
    blocks = -(-bound.Sq // rows_of_workgroup(folded, config))
    rows = heads * bound.Sq
    with tempfile.TemporaryDirectory() as folder:

        def launch(program: Program, grid: tuple[int, ...], *tensors: Any) -> None:
            function = load_function(program, Path(folder))
            function[grid](*tensors, *(sizes[s] for s in program.constants))

        main = source(folded, config, "main").program()
        if config.splits == 1:
            launch(main, (heads * blocks,), *inputs, *outs)
        else:
            room = heads * blocks * _ROOM if form == "cluster" else rows * bound.Dv
            part = torch.full((config.splits * room,), math.nan)
            stat = torch.full((2 * config.splits * rows,), math.nan)
            if combines_itself(folded, config):
                count = torch.zeros(heads * blocks, dtype=torch.int32)
                for _ in range(2):  # the counters are ready for another call
                    for out in outs:
                        out.fill_(math.nan)
                    launch(main, (heads * blocks, config.splits), *inputs, count, part, stat, *outs)
            else:
                launch(main, (heads * blocks, config.splits), *inputs, part, stat)
                launch(combine_program(folded, config, "combine", loop_in(folded)), (rows,), part, stat, *outs)
    return [x.reshape(shape).numpy() for x, (shape, _) in zip(outs, spec.bind(sizes).results, strict=True)]


def _as_bytes(x: Any) -> Any:
    """Booleans and small integers as the kernel sees them."""
    if x.dtype == bool:
        return x.astype(np.int8)
    return x.view(np.int8) if x.dtype == np.uint8 else x


def problem(name: str, part: bool = False) -> str:
    """The first thing that is wrong with a case; "" when nothing is. `part`: of sizes, operands and kernels two
    combinations, or one, always the same, where sizes and kernel are given: of those cases half have operands of either kind."""
    case = BY_NAME[name]
    folded, sizes = fold_queries(case.spec), case.sizes[:2]
    forms = ["plain", *["hold"] * can_hold(folded), *["cluster"] * is_cluster(folded, IN_CLUSTER)]
    combinations = list(itertools.product(sizes, (False, True), forms))
    if part:
        ends = combinations[0], combinations[-1]
        combinations = list(ends) if len(combinations) > 2 else [ends[zlib.crc32(name.encode()) % 2]]
    for size, adversarial, form in combinations:
        bound = case.spec.bind(dict(size))
        operands = draw_operands(bound, 3, adversarial=adversarial)
        expected = expect(bound, operands)
        made = run(case.spec, dict(size), operands, split="split_keys" in case.tags, form=form)
        for found in expected.compare_all(made):
            if found.problem:
                where = f"{dataclasses.asdict(case)['sizes']} adversarial={adversarial} {form}"
                return f"{where}: {found.problem}"
    return ""


if __name__ == "__main__":
    with np.errstate(all="ignore"):
        part = sys.argv[1] == "--part"
        print(json.dumps({name: problem(name, part) for name in sys.argv[1 + part :]}))
