"""docs/reference/variants.md says what is."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from onnx_fa.iree.alone import entry_text
from onnx_fa.iree.compiler import find_compiler
from onnx_fa.kernels.choose import emit_kernel
from tests.support import variant_table
from tests.support.cases import BY_NAME, select
from tests.support.kernel_harness import HOST


def test_the_page_is_current() -> None:
    assert variant_table.PAGE.read_text() == variant_table.page(), "run python -m tests.support.variant_table"


def test_every_case_is_one_dispatch_of_the_compiler(tmp_path: Path) -> None:
    """After dispatches are formed: nothing around a kernel became one of its own, and nothing large is held between them. Of the
    vector body's cases test_vector_kernel.py shows it, and test_split_body.py of those whose numbers are split."""
    names = {n for group in variant_table.VARIANTS.values() for cases in group.values() for n in cases}
    chosen = {n: emit_kernel(BY_NAME[n].spec, HOST) for n in sorted(names)}
    few = {n: kernel for n, kernel in chosen.items() if kernel.body not in ("vector", "split")}
    assert few and names - set(few) <= {case.name for case in select()}
    kernels = list(few.values())
    text = "".join({k.name: k.text for k in kernels}.values())
    source = tmp_path / "variants.mlir"
    source.write_text(text + "".join(entry_text(k, f"call{i}") for i, k in enumerate(kernels)))
    command = [str(find_compiler()), str(source), "--compile-to=flow", *HOST.flags]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[:2000]
    functions = done.stdout.split("util.func public @")[1:]
    for name, function in zip(few, functions, strict=True):
        assert function.count("flow.dispatch @") == 1, name


@pytest.mark.parametrize("where", sorted({w for w, _ in variant_table.GRAPHS.values()}))
def test_graphs_are_shown_by_a_test(where: str) -> None:
    assert (variant_table.PAGE.parents[2] / where).is_file()
