"""Linear attention by Triton: numbers in Triton's interpreter, its code, and the function that programs call (no GPU needed)."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from onnx_fa.errors import UnsupportedError
from onnx_fa.iree.compiler import iree_compile
from onnx_fa.kernels.linear_attention import emit_linear_attention, kept_why
from onnx_fa.kernels.triton.linear_attention import emit_tokens
from onnx_fa.kernels.triton.token_chunks import LEAST_TOKENS, chunks_of
from onnx_fa.spec.linear_attention import LinearAttentionSpec
from onnx_fa.spec.target import parse_target
from tests.kernels.test_linear_attention import function_text
from tests.support.linear_attention_cases import CASES, TOLERANCE

ROOT = Path(__file__).parents[2]
CUDA = parse_target("cuda")


OTHERS = ["gated", "delta", "gated_delta"]
"""Cases whose decays, rates, sizes and groups smaller ones have too."""


@pytest.mark.parametrize(
    "names",
    [
        pytest.param([name for name in CASES if name not in OTHERS], id="every_run"),
        pytest.param(OTHERS, id="others", marks=pytest.mark.whole),
    ],
)
def test_numbers(names: list[str]) -> None:
    """Of all cases, from token to token and in chunks; sequences without tokens and batches without sequences too."""
    command = [sys.executable, "-m", "tests.support.linear_attention_interpreter", *names]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert set(found) == set(names)
    assert {n: errors for n, errors in found.items() if not max(errors) < TOLERANCE} == {}


def test_module(tmp_path: Path) -> None:
    """One dispatch a call from token to token, two in chunks, of code for both architectures."""
    spec = CASES["gated_delta"]
    text = "\n".join([*emit_linear_attention(spec, CUDA).values(), function_text("gated_delta", spec)])
    iree_compile(text, tmp_path / "m.stream", CUDA, phase="stream", timeout_s=120)
    stream = (tmp_path / "m.stream").read_text()
    assert len(re.findall(r"stream\.cmd\.dispatch", stream)) == 3 and "arith.maxui" in text
    iree_compile(text, tmp_path / "m.vmfb", CUDA, timeout_s=120)
    data = (tmp_path / "m.vmfb").read_bytes()
    assert b".target sm_90a" in data and b".target sm_80" in data


def test_what_is_cut_into_chunks() -> None:
    """Not few tokens, as a step of a decoder has, decays of each key dim, and keys that leave no registers."""
    gated = CASES["gated_delta"]
    assert chunks_of(gated) is not None and chunks_of(replace(gated, T=LEAST_TOKENS)) is not None
    assert chunks_of(replace(gated, T=LEAST_TOKENS - 1)) is None
    assert chunks_of(CASES["gated_keys"]) is None and chunks_of(replace(gated, D=512)) is None


def test_what_stays_a_loop() -> None:
    wide = LinearAttentionSpec(1, 1, 1, 1, 1, 1, 4096, 64, 1.0)
    with pytest.raises(UnsupportedError, match="keys of 4096 numbers, whose states registers do not hold"):
        emit_tokens(wide)
    assert kept_why(CASES["gated"], parse_target("cuda", "iree")) == "a loop over tokens (--kernels iree)"
    assert "scf.for" in "".join(emit_linear_attention(wide, CUDA).values())
