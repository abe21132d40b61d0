"""One plan of a model: matched once, its sites the same objects until the report, and what becomes of kernels that are refused."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest

from onnx_fa.errors import CompileError, ModelError
from onnx_fa.forms.plain import plain_model
from onnx_fa.graph.site_op import DOMAIN, SPEC_ATTRIBUTE
from onnx_fa.iree.compile import compile_model, import_model
from onnx_fa.iree.inspect import Inspection, SiteFacts
from onnx_fa.iree.kernels import PlannedSite, plan_kernels, replace_refused
from onnx_fa.spec.attention import AttentionSpec
from onnx_fa.verifier.verifier import verify
from tests.support.cases import BY_NAME
from tests.support.kernel_harness import HOST

_REASON = "the compiler refuses the kernel: iree-compile failed"


def _two_attentions() -> onnx.ModelProto:
    """The second has another scale, and so another kernel."""
    return onnx.parser.parse_model("""<ir_version: 9, opset_import: ["": 18]>
        g (float[1,2,64,16] q, float[1,2,64,16] k, float[1,2,64,16] v) => (float[1,2,64,16] y)
        <float half = {0.5}> {
            kt = Transpose <perm = [0, 1, 3, 2]> (k)
            s = MatMul (q, kt)
            [first] p = Softmax <axis = -1> (s)
            x = MatMul (p, v)
            t = MatMul (x, kt)
            u = Mul (t, half)
            [second] r = Softmax <axis = -1> (u)
            y = MatMul (r, v)
        }""")


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often a model is loaded, matched and imported, and kernels are emitted."""
    counts: Counter[str] = Counter()

    def count(module: str, name: str) -> None:
        target = f"onnx_fa.{module}.{name}"
        wanted: Callable[..., Any] = getattr(import_module(f"onnx_fa.{module}"), name)

        def counted(*args: Any, **kwargs: Any) -> Any:
            counts[name] += 1
            return wanted(*args, **kwargs)

        monkeypatch.setattr(target, counted)

    count("iree.kernels", "load")
    count("forms.rewrite", "find_sites")
    count("iree.kernels", "emit_kernel")
    count("iree.importer", "import_mlir")
    return counts


@pytest.fixture
def compiler(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], list[str]]:
    """An iree-compile that refuses programs with one kernel, and makes one dispatch of every other; gives the list of programs."""

    def install(refused: str) -> list[str]:
        programs: list[str] = []

        def compile_text(source: str, output: Path, *_: Any, **__: Any) -> None:
            programs.append(source)
            if refused in source:
                raise CompileError("iree-compile failed; command and messages are in a.log")
            output.write_bytes(b"module")

        def inspect(folder: Path, sites: Sequence[PlannedSite]) -> Inspection:
            return Inspection({s.kernel.name: SiteFacts(1, 1, 0, 0, ()) for s in sites if s.kernel is not None})

        monkeypatch.setattr("onnx_fa.iree.compile.iree_compile", compile_text)
        monkeypatch.setattr("onnx_fa.iree.alone.iree_compile", compile_text)
        monkeypatch.setattr("onnx_fa.iree.compile.inspect_phases", inspect)
        return programs

    return install


def test_a_refused_kernel_takes_its_own_site_only(
    calls: Counter[str], compiler: Callable[[str], list[str]], tmp_path: Path
) -> None:
    """The model is loaded and matched once, no kernel is emitted again, the other site stays fused; only the import is repeated."""
    onnx.save(_two_attentions(), tmp_path / "m.onnx")
    kept, lost = (site.kernel for site in plan_kernels(tmp_path / "m.onnx", HOST).sites)
    assert kept is not None and lost is not None and kept.name != lost.name
    programs = compiler(lost.name)
    calls.clear()
    done = compile_model(tmp_path / "m.onnx", tmp_path / "m.vmfb", HOST)
    assert calls == {"load": 1, "find_sites": 1, "emit_kernel": 2, "import_mlir": 2}
    assert [(site.name, site.fused) for site in done.sites] == [("first", True)]
    (miss,) = done.misses
    assert miss.node == "second" and miss.reason.startswith(f"{_REASON}; it is left in the decomposed form")
    assert done.refused.keys() == {lost.name}
    assert lost.name not in programs[-1] and kept.text in programs[-1] and programs[-1].count("util.call @fa_") == 1


def test_a_model_is_matched_once_by_compile(
    calls: Counter[str], compiler: Callable[[str], list[str]], tmp_path: Path
) -> None:
    """What is kept of the way has the specs as JSON, for whoever reads it; it is no model that could be compiled."""
    compiler("no such kernel")
    done = compile_model(_two_attentions(), tmp_path / "m.vmfb", HOST, keep_intermediates=tmp_path / "kept")
    assert calls == {"load": 1, "find_sites": 1, "emit_kernel": 2, "import_mlir": 1}
    nodes = [n for n in onnx.load(tmp_path / "kept" / "site.onnx").graph.node if n.domain == DOMAIN]
    specs = {n.name: AttentionSpec.from_dict(json.loads(a.s)) for n in nodes for a in n.attribute}
    assert specs == {site.name: site.spec for site in done.sites} and len(specs) == 2
    assert [a.name for n in nodes for a in n.attribute] == [SPEC_ATTRIBUTE] * 2
    with pytest.raises(
        ModelError, match="'first', 'second': operator AttentionSite of domain 'onnx_fa' has no definition"
    ):
        import_model(tmp_path / "kept" / "site.onnx", HOST)


def test_verify_compiles_and_tries_one_plan(
    calls: Counter[str], compiler: Callable[[str], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One match for what is compiled and one for what `rewrite` writes; a kernel that the compiler refused is not tried alone."""
    kept, lost = (site.kernel for site in plan_kernels(_two_attentions(), HOST).sites)
    assert kept is not None and lost is not None
    programs = compiler(lost.name)
    zeros = np.zeros((1, 2, 64, 16), np.float32)
    monkeypatch.setattr("onnx_fa.iree.run.load_module", lambda *_, **__: lambda *arrays: [zeros])
    calls.clear()
    report = verify(_two_attentions(), HOST, seeds=1)
    assert calls == {"find_sites": 2, "emit_kernel": 2, "import_mlir": 2}
    # The model; each kernel alone, to find which it is; the model without it; the kernel that is left, to be tried alone.
    assert [("@main" in p or "@g(" in p, lost.name in p) for p in programs] == [
        (True, True), (False, False), (False, True), (True, False), (False, False)
    ]  # fmt: skip
    assert any(note.startswith(f"no kernel for second: {_REASON}") for note in report.notes)
    assert {c.what for c in report.checks if c.note == "no kernel"} == {"site second: kernel"}


def test_refused_twice() -> None:
    """A kernel of integers gives way to one of numbers, which ops in front of it make, and that to standard ops."""
    first = plan_kernels(plain_model(BY_NAME["quant_token"].spec), HOST)
    (integers,) = first.sites
    assert integers.kernel is not None and integers.spec.k_quant is not None
    second = replace_refused(first, {integers.kernel.name: "too large"})
    (numbers,) = second.sites
    assert numbers.kernel is not None and numbers.spec == numbers.kernel.spec == integers.spec.plain
    assert numbers.node is integers.node and not second.report.misses
    third = replace_refused(second, {numbers.kernel.name: "too slow"})
    (site,), (miss,) = third.sites, third.report.misses
    assert site.kernel is None and not third.report.sites and not third.kernels
    assert miss.reason.startswith("the compiler refuses the kernel: too slow; it is left in the decomposed form")
    assert not [node for node in third.model.graph if node.domain == DOMAIN]
    assert replace_refused(third, {numbers.kernel.name: "too slow"}) == third
