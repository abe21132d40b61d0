"""Compiles many kernels as one module and runs them against the reference."""

from __future__ import annotations

import resource
import subprocess
import tempfile
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy.typing as npt
import pytest
from iree import runtime

from onnx_fa.iree.alone import entry_text
from onnx_fa.iree.compiler import find_compiler
from onnx_fa.kernels.mlir.kernel import Kernel
from onnx_fa.spec.accuracy import expect
from onnx_fa.spec.attention import AttentionSpec
from onnx_fa.spec.cases import packed
from onnx_fa.spec.target import Target, parse_target

HOST = parse_target("cpu-host")
UNVERIFIED = "--verify=false"
FLAGS = (UNVERIFIED, "--mlir-disable-threading", "--iree-llvmcpu-debug-symbols=false")
"""A quarter of the time goes without the verification of what the compiler makes between its passes, and without symbols that
nobody reads. Our text is verified in any case, when it is parsed, and the code that comes out is the same."""
Array = npt.NDArray[Any]


def run_iree_compile(text: str, output: Path, flags: Sequence[str], target: Target = HOST, timeout: int = 600) -> None:
    """Compiles the text within so many seconds of the processor's time, and six times as many by the clock."""
    source = output.with_suffix(".mlir")
    source.write_text(text)

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (8 << 30, 8 << 30))
        resource.setrlimit(resource.RLIMIT_CPU, (timeout, timeout))

    done = subprocess.run(
        [str(find_compiler()), str(source), "-o", str(output), *target.flags, *flags],
        capture_output=True,
        text=True,
        timeout=6 * timeout,
        preexec_fn=limit,
    )
    assert done.returncode == 0, f"{source}: exit code {done.returncode}: {done.stderr[:2000]}"


def asked_for(
    request: pytest.FixtureRequest, parameter: str, of_others: Iterable[Any] | None = None
) -> list[Any] | None:
    """The values that the tests of this session that use the fixture have as `parameter`, in order, so that a fixture compiles
    nothing for tests that were not selected. `of_others`: what tests without it use; None: all, and where there is one the
    result is None."""
    found: dict[Any, None] = {}
    for item in request.session.items:
        if not isinstance(item, pytest.Function) or item.getparent(pytest.Module) is not request.node:
            continue
        if request.fixturename in item.fixturenames:
            parameters = item.callspec.params if hasattr(item, "callspec") else {}
            if parameter in parameters:
                found[parameters[parameter]] = None
            elif of_others is None:
                return None
            else:
                found |= dict.fromkeys(of_others)
    return list(found)


def cases_asked_for(request: pytest.FixtureRequest, *parameters: str) -> set[tuple[Any, ...]]:
    """`asked_for` of several parameters at once, which all tests that use the fixture have."""
    tests = [i for i in request.session.items if isinstance(i, pytest.Function) and hasattr(i, "callspec")]
    using = [i for i in tests if i.getparent(pytest.Module) is request.node and request.fixturename in i.fixturenames]
    return {tuple(i.callspec.params[p] for p in parameters) for i in using}


def indices_to_run(request: pytest.FixtureRequest, of_others: Iterable[int] | None = None) -> list[int] | None:
    """`asked_for` of `index`, sorted."""
    found = asked_for(request, "index", of_others)
    return None if found is None else sorted(found)


class Kernels:
    """Kernels compiled some at a time, by two compilers; `run(i, operands)` runs the i-th. `only`: the indices of those that
    are compiled, instead of all. `flows`, only where they are asked for (writing the IR of every phase takes a tenth as long as
    compiling), are (kernels, IR of the phase "flow", where dispatches have been formed) of every module."""

    PART = 20

    def __init__(
        self,
        kernels: Sequence[Kernel],
        folder: Path,
        target: Target = HOST,
        flows: bool = False,
        only: Sequence[int] | None = None,
    ) -> None:
        chosen = range(len(kernels)) if only is None else only
        self._places = {index: place for place, index in enumerate(chosen)}
        kernels = [kernels[index] for index in chosen]
        parts = [kernels[i : i + self.PART] for i in range(0, len(kernels), self.PART)]
        outputs = [folder / f"kernels{i}.vmfb" for i in range(len(parts))]
        with ThreadPoolExecutor(2) as pool:
            found = list(pool.map(lambda part, output: self._compile(part, output, target, flows), parts, outputs))
        self.flows = list(zip(parts, found, strict=True)) if flows else []
        self._modules = []
        for output in outputs:
            config = runtime.Config(target.device)
            loaded = runtime.VmModule.mmap(config.vm_instance, str(output))
            self._modules.append(runtime.load_vm_module(loaded, config))

    @staticmethod
    def _compile(kernels: Sequence[Kernel], output: Path, target: Target, flows: bool) -> str:
        names = {k.name: k for k in kernels}
        text = "".join(k.text for k in names.values())
        text += "".join(entry_text(k, f"call{i}") for i, k in enumerate(kernels))
        flags = dict.fromkeys(f for k in kernels for f in k.flags)
        if not flows:
            run_iree_compile(text, output, (*flags, *FLAGS), target)
            return ""
        with tempfile.TemporaryDirectory(dir=output.parent) as phases:
            run_iree_compile(text, output, (*flags, *FLAGS, f"--dump-compilation-phases-to={phases}"), target)
            (flow,) = Path(phases).glob("*.flow.mlir")
            return flow.read_text()

    def run(self, index: int, operands: Sequence[Array]) -> list[Array]:
        """Every result of the kernel."""
        part, place = divmod(self._places[index], self.PART)
        results = self._modules[part][f"call{place}"](*map(packed, operands))
        return [r.to_host() for r in (results if isinstance(results, tuple) else (results,))]


def mismatch(spec: AttentionSpec, operands: Sequence[Array], results: Sequence[Array], lossy: str = "") -> str | None:
    """What is wrong with the results, or None; `lossy` as in Kernel."""
    assert len(results) == len(spec.results)
    problems = [c.problem for c in replace(expect(spec, operands), lossy=lossy).compare_all(results)]
    return "; ".join(p for p in problems if p) or None
