"""Real exports of the model families: every attention found, nothing else touched, every result the same."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from onnx_fa.models import families
from onnx_fa.models.family_check import CASES, Case, Outcome, evaluate_all
from tests.support.sampled import parameters, sampled

RATE = 0.97
"""Of the attentions in all exports tried here, so many must be rewritten."""

KNOWN_MISSES: dict[tuple[str, str, str], tuple[int, str]] = {}
"""(family, attn, exporter) -> how many attentions stay, and why."""

NO_EXPORT = {
    ("falcon_alibi", "torchscript"): "the exporter takes bfloat16 for complex128",
    ("cohere", "torchscript"): "the exporter trips over its own shape inference",
    ("xlnet", "dynamo"): "the exporter cannot subtract an integer tensor from 1.0",
    ("diffllama", "torchscript"): "the exporter has no RMS norm in opset 17",
    ("prophetnet", "dynamo"): "the exporter cannot subtract an integer tensor from 1.0",
}
"""What no exporter writes: (family, exporter) -> why."""


ATTENTION_OPTIONS = (
    "alibi attention_type attention_types attn_logit_softcapping global_attn_indexes kv_lora_rank layer_types local_attention "
    "multi_query num_key_value_heads position_embedding_type position_embeddings_type query_pre_attn_scalar relative_attention "
    "relative_attention_num_buckets rotary_dim sliding_window sr_ratios use_qk_norm use_relative_position_bias window_size"
).split()
"""Options of a config that change what an attention computes."""


def _chosen(case: Case) -> bool:
    """Every family in one spelling, every fifth by the exporter that takes three times as long; some by both in both spellings, and
    some at a later opset. scripts/families.py does all."""
    first = case.attn == families.find(case.family).attns[0]
    if case.opset == 23:
        return first and case.family in OPSET_23_TOO
    if case.family in EAGER_TOO:
        return True
    if any((case.family, exporter) in NO_EXPORT for exporter in EXPORTERS):
        return first
    by_dynamo = list(families.FAMILIES).index(case.family) % 5 == 0
    return first and case.exporter == EXPORTERS[not by_dynamo]


def _kinds(case: Case) -> set[str]:
    """What an export has in common with others: what makes it and from which spelling, and of what kind of family it is, with which
    inputs and options. That the newer exporter still cannot write a family is left to --whole: it tries for long."""
    family = families.find(case.family)
    kinds = {
        f"{case.exporter}{case.opset} of {case.attn}",
        family.kind,
        f"output {family.output}",
        *(f"{family.kind} {i.fill}" for i in family.inputs),
        *(f"option {name}" for name in ATTENTION_OPTIONS if name in family.options),
    }
    if case.exporter == "torchscript":
        kinds.add("no export" if (case.family, case.exporter) in NO_EXPORT else "an export")
    return kinds


EXPORTERS = ("dynamo", "torchscript")
EAGER_TOO = ("bert", "t5")
OPSET_23_TOO = ("bert", "llama_step", "gpt_oss")
CHOSEN = tuple(filter(_chosen, CASES))
KEPT = sampled([_kinds(case) for case in CHOSEN], None, costs=[2.0 if c.exporter == "dynamo" else 1.0 for c in CHOSEN])
"""Places in CHOSEN of what every run tries; --whole tries all of it. An export by the newer exporter takes twice as long."""


def _tried(config: pytest.Config) -> list[Case]:
    return list(CHOSEN) if config.getoption("whole") else [CHOSEN[i] for i in KEPT]


def _cores() -> int:
    """Each process of tests has its share of the machine's."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@pytest.fixture(scope="module")
def outcomes(request: pytest.FixtureRequest) -> Callable[[Case], Outcome]:
    """Outcomes of the selected cases, from as many processes as this one has cores, but from two at most."""
    wanted: dict[Case, None] = {}
    for item in request.session.items:
        if isinstance(item, pytest.Function) and item.module is request.module:
            params = item.callspec.params if hasattr(item, "callspec") else {}
            wanted |= dict.fromkeys([params["case"]] if "case" in params else _tried(request.config))
    found = dict(zip(wanted, evaluate_all(wanted, min(2, _cores())), strict=True))
    return found.__getitem__


@pytest.mark.parametrize("case", parameters(CHOSEN, [str(case) for case in CHOSEN], KEPT))
def test_attentions_are_rewritten_and_nothing_else(case: Case, outcomes: Callable[[Case], Outcome]) -> None:
    outcome = outcomes(case)
    if (case.family, case.exporter) in NO_EXPORT:
        assert outcome.failure, "this can be exported now: take it off the table"
        return
    assert not outcome.failure
    family = families.find(case.family)
    missed, _ = KNOWN_MISSES.get((case.family, case.attn, case.exporter), (0, ""))
    assert outcome.sites == family.sites - missed, outcome.misses
    for form, error in outcome.errors:
        assert error <= family.tolerance, f"form {form}: {error:.1e}"


def test_most_are_rewritten(outcomes: Callable[[Case], Outcome], pytestconfig: pytest.Config) -> None:
    usable = [o for o in map(outcomes, _tried(pytestconfig)) if not o.failure]
    want = sum(families.find(o.case.family).sites for o in usable)
    have = sum(o.sites for o in usable)
    assert have >= RATE * want, f"{have} of {want}"


def test_tables_name_what_exists() -> None:
    known = {(c.family, c.attn, c.exporter) for c in CHOSEN}
    assert set(KNOWN_MISSES) <= known
    assert set(NO_EXPORT) <= {(c.family, c.exporter) for c in CHOSEN}
    assert {*EAGER_TOO, *OPSET_23_TOO} <= set(families.FAMILIES)
    assert set(ATTENTION_OPTIONS) <= {name for family in families.FAMILIES.values() for name in family.options}
    assert all(reason for _, reason in KNOWN_MISSES.values()) and all(NO_EXPORT.values())
