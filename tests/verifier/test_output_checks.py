"""How the outputs of a model are judged with onnxruntime's optimiser and without; no compiler takes part."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from onnx_fa.forms.rewrite import rewrite_in_place
from onnx_fa.verifier.comparisons import Check
from onnx_fa.verifier.output_checks import AT_FAULT, TIES, OutputChecks, Results, SiteOutput
from onnx_fa.verifier.runners import OptimisedRunner, Runner
from tests.support.quantised_graphs import PLACES, Drawn, build, feeds

ALLOWED = 1e-4
Change = Callable[[dict[str, Any]], dict[str, Any]]


def _checks(
    original: onnx.ModelProto, folder: Path, *, change: Change = dict, rewritten: ir.Model | None = None, seed: int = 0
) -> dict[str, Check]:
    """The checks by their first words. `change` is done to the results of the rewritten model without the optimiser."""
    model = ir.from_proto(original)
    work = rewritten or model.clone()
    _, sites = rewrite_in_place(work, "decomposed") if rewritten is None else (None, [])
    names = [str(s.output.name) for s in sites]
    checks = OutputChecks(model, work, names, folder)
    work.graph.outputs.extend(s.output for s in sites if s.output.name != "o")
    arrays = feeds(original, seed)
    want = Runner(model, folder / "want.onnx")(arrays)
    got = change(Runner(work, folder / "got.onnx")(arrays))
    values = [SiteOutput(n, got[n], 2e-6, None) for n in names]
    found = checks.compare(Results("seed 0", arrays, want, got, None, ALLOWED, ALLOWED, values))
    return {c.what.partition(":")[0]: c for c in found}


def test_the_optimiser_is_said_to_be_at_fault(tmp_path: Path) -> None:
    """The original is changed by it, or not loaded; the rewritten model is not."""
    found = _checks(build(Drawn(PLACES, np.int8, None, 17)), tmp_path)
    original = found["original (optimiser on)"]
    assert original.ok is None and original.note == AT_FAULT and original.error is not None and original.error > 0.1
    assert found["rewritten"].ok and found["rewritten (optimiser on)"].ok
    found = _checks(build(Drawn(PLACES, np.int8, -3, 21, layout="flat")), tmp_path)
    assert found["original (optimiser on)"].error is None and "output_dtype" in found["original (optimiser on)"].note
    assert found["rewritten (optimiser on)"].ok


def test_a_rewritten_model_that_the_optimiser_changes_is_a_mismatch(tmp_path: Path) -> None:
    """Its original has a zero point, and is as right with the optimiser as without."""
    original = build(Drawn(PLACES, np.int8, 0, 17))
    broken = onnx.ModelProto()
    broken.CopyFrom(original)
    for node in broken.graph.node:
        if node.op_type == "DequantizeLinear":
            del node.input[2]
    found = _checks(original, tmp_path, rewritten=ir.from_proto(broken))
    assert found["original (optimiser on)"].ok and found["rewritten"].ok
    assert found["rewritten (optimiser on)"].ok is False


def test_ties_behind_a_site(tmp_path: Path) -> None:
    """A site's output next to a step of the rounding behind it may move the output by that step. A step that the sites' outputs do
    not explain is a mismatch."""
    original = build(Drawn(PLACES, np.int8, 0, 17, layout="tokens"))
    names = {o for n in original.graph.node for o in n.output}
    (site,) = rewrite_in_place(ir.from_proto(original), "decomposed")[1]
    assert site.output.name in names

    def moved(results: dict[str, Any]) -> dict[str, Any]:
        """One element of the site's output on the other side of a step, and what comes of it."""
        value = results[str(site.output.name)].copy()
        value.flat[0] = (np.floor(value.flat[0] * 32) + 0.5) / 32 + 1e-6
        step = np.float32(0.03125)
        out = np.clip(np.round(value / step), -128, 127).astype(np.float32) * step
        return {**results, str(site.output.name): value, "o": out if out.shape == results["o"].shape else results["o"]}

    found = _checks(original, tmp_path, change=moved)
    assert found["rewritten"].ok and TIES in found["rewritten"].note

    def unexplained(results: dict[str, Any]) -> dict[str, Any]:
        out = results["o"].copy()
        out.flat[0] += 0.03125
        return {**results, "o": out}

    assert _checks(original, tmp_path, change=unexplained)["rewritten"].ok is False


def test_a_model_that_ends_the_process(tmp_path: Path) -> None:
    text = (Path(__file__).parents[1] / "onnxruntime_bugs" / "moved_into_a_loop.onnxtxt").read_text()
    model = ir.from_proto(onnx.parser.parse_model(text))
    assert OptimisedRunner(model, tmp_path / "a.onnx").refused == "the process ends by signal 6"


@pytest.mark.parametrize("places", [(), PLACES])
def test_plain_models_have_no_spread(places: tuple[str, ...], tmp_path: Path) -> None:
    found = _checks(build(Drawn(places, np.uint8, 0, 18)), tmp_path)
    assert [c.ok for c in found.values()] == [True] * 3
    assert all(c.allowed == ALLOWED for c in found.values() if not places)
