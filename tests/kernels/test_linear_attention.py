"""Linear attention: its meaning, the CPU's kernel and the loop of any target against float64, and what the kernel is made of."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from onnx_fa.errors import UnsupportedError
from onnx_fa.iree.compile import MODEL_FLAGS
from onnx_fa.iree.compiler import iree_compile
from onnx_fa.kernels.cpu.linear_attention import emit_tokens
from onnx_fa.kernels.linear_attention import emit_linear_attention, kept_why
from onnx_fa.kernels.mlir.linear_attention import emit_loop
from onnx_fa.kernels.mlir.text import tensor_type
from onnx_fa.spec.linear_attention import LinearAttentionSpec, attend_linearly, linear_attention_name, rule_words
from onnx_fa.spec.target import foreign_cpu, parse_target
from tests.support.check_text import check_text
from tests.support.cpu_targets import cpu_targets
from tests.support.kernel_harness import UNVERIFIED
from tests.support.linear_attention_cases import CASES, SIZES, TOLERANCE, distance, draw

HOST = parse_target("cpu-host")


def function_text(name: str, spec: LinearAttentionSpec) -> str:
    """A function of this name, which is the site."""
    types = [tensor_type(shape, "f32") for shape in spec.operand_shapes]
    results = ", ".join(tensor_type(shape, "f32") for shape, _ in spec.results)
    names = [f"%a{i}" for i in range(len(types))]
    arguments = ", ".join(f"{n}: {t}" for n, t in zip(names, types, strict=True))
    call = f"util.call @{linear_attention_name(spec)}({', '.join(names)}) : ({', '.join(types)}) -> ({results})"
    return f"func.func @{name}({arguments}) -> ({results}) {{\n%r:2 = {call}\nreturn %r#0, %r#1 : {results}\n}}"


def compile_cases(texts: dict[str, dict[str, str]], target: str, folder: Path) -> Any:
    """A module whose functions are the cases, of what was emitted for each."""
    import iree.runtime as rt

    on = parse_target(target)
    if why := foreign_cpu(on):
        pytest.skip(why)
    parts = [text for emitted in texts.values() for text in emitted.values()]
    whole = "\n".join([*parts, *(function_text(name, CASES[name]) for name in texts)])
    iree_compile(whole, folder / "m.vmfb", on, flags=(*MODEL_FLAGS["llvm-cpu"], UNVERIFIED), timeout_s=300)
    return rt.load_vm_flatbuffer_file(str(folder / "m.vmfb"), driver="local-task")


def check_numbers(module: Any, names: list[str]) -> None:
    for name in names:
        spec = CASES[name]
        for sizes in SIZES:
            operands = draw(spec, sizes)
            made = module[name](*operands)
            for want, have in zip(attend_linearly(spec, operands), made, strict=True):
                assert distance(want, have.to_host()) < TOLERANCE, (name, sizes)


@pytest.mark.parametrize("target", cpu_targets("cpu-host", "cpu-avx2"))
def test_kernel_numbers(target: str, tmp_path: Path) -> None:
    on = parse_target(target)
    taken = {n: emit_tokens(s, on) for n, s in CASES.items() if not kept_why(s, on)}
    assert on.lanes < 8 or set(CASES) - set(taken) == {"odd"}
    if taken:
        check_numbers(compile_cases(taken, target, tmp_path), list(taken))


def test_loop_numbers(tmp_path: Path) -> None:
    check_numbers(compile_cases({n: emit_loop(s) for n, s in CASES.items()}, "cpu-host", tmp_path), list(CASES))


def test_an_infinity_goes_where_the_recurrence_takes_it(tmp_path: Path) -> None:
    """Not to earlier tokens, nor to other columns of the state."""
    spec = CASES["gated_delta"]
    module = compile_cases({"gated_delta": emit_linear_attention(spec, HOST)}, "cpu-host", tmp_path)
    operands = draw(spec, {"B": 1, "T": 9})
    operands[2][0, 4, 1, 3] = np.inf
    made = [x.to_host() for x in module["gated_delta"](*operands)]
    with np.errstate(invalid="ignore"):
        wanted = attend_linearly(spec, operands)
    for want, have in zip(wanted, made, strict=True):
        assert (np.isfinite(want) == np.isfinite(have)).all()
    assert np.isfinite(made[0][:, :4]).all() and np.isfinite(made[0][..., :3]).all()
    assert not np.isfinite(made[0]).all()


def test_meaning_of_the_rules() -> None:
    """Of one token: without a delta rule k v^T, with a rate of one and a key of length one the state gives v for its key."""
    rng = np.random.default_rng(0)
    q, v = rng.standard_normal((1, 1, 1, 1, 4)), rng.standard_normal((1, 1, 1, 3))
    k, state = np.eye(4)[None, None, :1], rng.standard_normal((1, 1, 4, 3))
    plain = LinearAttentionSpec(1, 1, 1, 1, 1, 1, 4, 3, 0.5)
    read, last = attend_linearly(plain, [q, k, v, state])
    assert np.allclose(last, state + k[0, 0, 0][:, None] * v[0, 0, 0])
    assert np.allclose(read, 0.5 * q[0, 0, 0] @ last[0, 0])
    delta = LinearAttentionSpec(1, 1, 1, 1, 1, 1, 4, 3, 0.5, "head", "head")
    ones = np.ones((1, 1, 1, 1)), np.ones((1, 1, 1))
    _, last = attend_linearly(delta, [q, k, v, state, *ones])
    assert np.allclose(last[0, 0, 0], v[0, 0, 0]) and np.allclose(last[0, 0, 1:], state[0, 0, 1:])
    assert rule_words(delta) == "decay of each head, delta rule" and rule_words(plain) == "no decay, sum"


def test_no_tokens() -> None:
    spec = CASES["gated_delta"]
    operands = draw(spec, {"B": 2, "T": 0})
    read, last = attend_linearly(spec, operands)
    assert read.shape == (2, 0, 4, 1, 64) and np.array_equal(last, operands[3])


def test_what_has_no_kernel() -> None:
    with pytest.raises(UnsupportedError, match="heads of 7 values, which no vector divides"):
        emit_tokens(CASES["odd"], parse_target("cpu-avx2"))
    assert kept_why(CASES["gated"], parse_target("cpu-neon")).startswith("a loop over tokens (")
    assert kept_why(CASES["gated"], parse_target("vulkan")) == "a loop over tokens (Triton's kernels are for CUDA)"
    assert kept_why(CASES["gated"], None) == "a loop over tokens (for no target)"
    wide = LinearAttentionSpec(1, 1, 1, 1, 1, 1, 4096, 64, 1.0)
    assert "keys of 4096 numbers" in kept_why(wide, parse_target("cpu-avx2"))
    many = LinearAttentionSpec(1, 1, 1, 1, 1, 9, 64, 64, 1.0)
    assert "9 queries of each state" in kept_why(many, parse_target("cpu-avx2"))


@pytest.mark.parametrize("sizes", [(0, 1, 1), (2, 1, 3), (1, 2, 3)])
def test_specs_that_there_are_not(sizes: tuple[int, int, int]) -> None:
    with pytest.raises(ValueError, match=r"linear attention of [13] states"):
        LinearAttentionSpec(1, 1, sizes[0], sizes[1], max(sizes[2], 1), 1, 4, 4, 1.0)


def test_kernel_text() -> None:
    """One dispatch, with the workgroups of all heads' columns; the state in memory of its own."""
    texts = emit_tokens(CASES["gated_delta"], parse_target("cpu-avx512"))
    assert [name.rpartition("_")[2] == "tokens" for name in texts] == [True, False]
    check_text("cpu_linear_attention.mlir", "\n".join(texts.values()))
