"""Every compiler bug that has a reproducer is still there. A test that fails here is good news:
docs/developer/iree-bugs.md names the guard that can go."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from onnx_fa.errors import CompileError, RunError
from onnx_fa.iree.compile import KEEP_F64, MODEL_FLAGS
from onnx_fa.iree.compiler import iree_compile
from onnx_fa.iree.passed_numbers import LESS_JOINED
from onnx_fa.iree.run import load_module
from onnx_fa.iree.unordered import IN_ORDER, find_unordered, print_flags
from onnx_fa.spec.target import foreign_cpu, parse_target
from tests.support.iree_bugs import FOLDER, REPAIRED, compiled
from tests.support.kernel_harness import HOST

AVX2 = parse_target("cpu-avx2")
PAGE = FOLDER.parents[1] / "docs" / "developer" / "iree-bugs.md"


def _error(vmfb: Path, *shapes: tuple[int, ...], scale: float) -> float:
    """The relative error of attention on random operands."""
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal(s).astype(np.float32) for s in shapes)
    s: Any = (q.astype(np.float64) @ k.swapaxes(-1, -2)) * scale
    p = np.exp(s - s.max(axis=-1, keepdims=True))
    want = (p / p.sum(axis=-1, keepdims=True)) @ v
    return float(np.linalg.norm(load_module(vmfb)(q, k, v)[0] - want) / np.linalg.norm(want))


def test_unit_dim_config(tmp_path: Path) -> None:
    vmfb = compiled("unit_dim_config", tmp_path, "--iree-llvmcpu-max-allowed-number-of-native-vectors=8192")
    assert not _error(vmfb, (4, 1, 48), (4, 72, 48), (4, 72, 32), scale=0.25) < 1e-4, REPAIRED


def test_default_tiles(tmp_path: Path) -> None:
    vmfb = compiled("default_tiles", tmp_path)
    assert not _error(vmfb, (2, 64, 256), (2, 96, 256), (2, 96, 256), scale=0.0625) < 1e-4, REPAIRED


def test_merged_dynamic_dims(tmp_path: Path) -> None:
    run = load_module(compiled("merged_dynamic_dims", tmp_path))
    assert run(np.ones((2, 1, 4, 32), np.float32))[0].shape == (2, 128)
    with pytest.raises(RunError, match="the module takes 2x1x4x32"):
        run(np.ones((2, 3, 4, 32), np.float32))
        pytest.fail(REPAIRED)


def test_computed_minus_one(tmp_path: Path) -> None:
    run = load_module(compiled("computed_minus_one", tmp_path))
    with pytest.raises(RunError, match=r"OUT_OF_RANGE|RESOURCE_EXHAUSTED"):
        run(np.ones((6, 4), np.float32), np.ones(3, np.float32))
        pytest.fail(REPAIRED)


def test_free_broadcast(tmp_path: Path) -> None:
    a, b = (np.ones((n, 4), np.float32) for n in (1, 2))
    added, product = load_module(compiled("free_broadcast", tmp_path))(
        a, b, np.ones((2, 2, 4), np.float32), np.ones((1, 4, 2), np.float32)
    )
    assert added.shape == (1, 4), REPAIRED
    assert not (product[1] == 4).all(), REPAIRED


def test_slice_beside_update(tmp_path: Path) -> None:
    """Once in some ten thousand calls its result is what was in memory before: the region is read instead."""
    compiled("slice_beside_update", tmp_path, *print_flags(tmp_path / "regions"))
    assert find_unordered(tmp_path / "regions"), REPAIRED
    compiled("slice_beside_update", tmp_path, *print_flags(tmp_path / "ordered"), *IN_ORDER)
    assert not find_unordered(tmp_path / "ordered")


def test_crowded_dispatch(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="66 constants exceeds limit of 64"):
        load_module(compiled("crowded_dispatch", tmp_path))
        pytest.fail(REPAIRED)
    (y,) = load_module(compiled("crowded_dispatch", tmp_path, *LESS_JOINED))(np.full((4, 8), 2, np.float32))
    assert (y == 2 * sum(range(1, 34))).all()


def test_last_place(tmp_path: Path) -> None:
    (places,) = load_module(compiled("last_place", tmp_path))(np.array([[2, 2, 1], [3, 10, 4]], np.float32))
    assert places.tolist() != [[1], [1]], REPAIRED


def test_max_places(tmp_path: Path) -> None:
    (places,) = load_module(compiled("max_places", tmp_path))(np.array([[[[1, 2]], [[1, 2]]]], np.float32))
    assert places.ravel().tolist() == [1, 1], REPAIRED  # the second is 3


def test_expand_dynamic_unit(tmp_path: Path) -> None:
    run = load_module(compiled("expand_dynamic_unit", tmp_path))
    with pytest.raises(RunError, match="not statically 1"):
        run(np.ones((1, 4), np.float32), np.array([3, 4]))
        pytest.fail(REPAIRED)


def test_free_einsum(tmp_path: Path) -> None:
    run, w = load_module(compiled("free_einsum", tmp_path)), np.ones((32, 4, 8), np.float32)
    assert run(np.ones((1, 3, 32), np.float32), w)[0].shape == (1, 3, 4, 8)
    with pytest.raises(RunError, match="the module takes 1x3x32"):
        run(np.ones((2, 3, 32), np.float32), w)
        pytest.fail(REPAIRED)


def test_old_split(tmp_path: Path) -> None:
    x = np.arange(6, dtype=np.float32)[None]
    assert load_module(compiled("old_split", tmp_path))(x)[1][0, 0] == 3, REPAIRED


def test_instance_norm_free(tmp_path: Path) -> None:
    x = np.array([[[1, 2, 3, 4], [5, 6, 7, 9]]], np.float32)
    assert np.isnan(load_module(compiled("instance_norm_free", tmp_path))(x)[0]).all(), REPAIRED


def test_rows_left_over(tmp_path: Path) -> None:
    x = np.arange(18, dtype=np.float32).reshape(2, 1, 3, 3)
    assert load_module(compiled("rows_left_over", tmp_path))(x)[0].ravel().tolist() != [4, 13], REPAIRED


def test_half_sums(tmp_path: Path) -> None:
    x = np.full((2, 768), 100, np.float32)
    assert np.isinf(load_module(compiled("half_sums", tmp_path))(x)[0]).all(), REPAIRED


def test_pixel_shuffle(tmp_path: Path) -> None:
    x = np.arange(48, dtype=np.float32).reshape(1, 12, 2, 2)
    right = x.reshape(1, 3, 2, 2, 2, 2).transpose(0, 1, 4, 2, 5, 3).reshape(1, 3, 4, 4)
    assert (load_module(compiled("pixel_shuffle", tmp_path))(x)[0] != right).any(), REPAIRED


@pytest.mark.parametrize(
    ("name", "message", "flags"),
    [
        ("packed_bool", "expected padding_value has 'i8' but got: 'i1'", ("--iree-opt-data-tiling",)),
        ("blocked_dequantize", 'name = "onnx.DequantizeLinear"', ()),
        (
            "resize_free",
            "failed to resolve workgroup count hint in terms of workload ordinals",
            ("--iree-opt-data-tiling",),
        ),
        ("cast_to_int4", 'name = "onnx.Cast"', ()),
        ("loop_without_condition", 'name = "onnx.Loop"', ()),
        ("uneven_pads", 'name = "onnx.ConvInteger"', ()),
        ("old_operator", 'name = "onnx.Erf"', ()),
        ("double_cos", "undefined symbol: cos", ("--iree-input-demote-f64-to-f32=false",)),
        ("argsort", "'memref.alloca' op expected no unbounded stack allocations", ()),
        ("strided_gather", "LLVM Translation failed for operation: builtin.unrealized_conversion_cast", ()),
        ("global_behind", "failed to legalize operation 'util.global.store'", ()),
    ],
)
def test_refused(name: str, message: str, flags: tuple[str, ...], tmp_path: Path) -> None:
    with pytest.raises(subprocess.CalledProcessError) as caught:
        compiled(name, tmp_path, *flags)
        pytest.fail(REPAIRED)
    assert message in caught.value.stderr


def test_unsigned_division(tmp_path: Path) -> None:
    run = load_module(compiled("unsigned_division", tmp_path))
    x, y = np.array([200, 37, 129, 255], np.uint8), np.array([10, 16, 7, 100], np.uint8)
    quotient, rest = (np.asarray(found).view(np.uint8) for found in run(x, y))
    assert (quotient != x // y).any() and (rest != x % y).any(), REPAIRED


def test_unsigned_order(tmp_path: Path) -> None:
    run = load_module(compiled("unsigned_order", tmp_path))
    x, low, high = np.array([200, 3, 130], np.uint8), np.array(4, np.uint8), np.array(220, np.uint8)
    first, update = np.zeros((1, 1), np.int64), np.array([3], np.uint8)
    clipped, absolute, most, least = (np.asarray(found).view(np.uint8) for found in run(x, low, high, first, update))
    assert (clipped != x.clip(low, high)).any() and (absolute != x).any() and most != x.max(), REPAIRED
    assert least[0] != 3, REPAIRED


def test_power_of_negative(tmp_path: Path) -> None:
    (found,) = load_module(compiled("power_of_negative", tmp_path))(np.arange(3, dtype=np.float32))
    assert np.asarray(found).tolist() != [1, -1, 1], REPAIRED


def test_equal_fills(tmp_path: Path) -> None:
    run = load_module(compiled("equal_fills", tmp_path))
    x = np.array([[1, -1, -1, 1], [-1, 1, 1, 1]], np.float32)
    a, b, _, less = map(np.asarray, run(x, np.array([[0]]), np.array([[1]]), np.ones((1, 4), np.float32)))
    assert a[1].any() or b[0].any(), REPAIRED
    assert less.tolist() != [[0, 0, 1], [1, 2, 0]], REPAIRED


def test_recurrent_lengths(tmp_path: Path) -> None:
    x = np.random.default_rng(0).standard_normal((4, 2, 3)).astype(np.float32)
    (found,) = load_module(compiled("recurrent_lengths", tmp_path))(x, np.array([4, 1], np.int32))
    assert np.asarray(found)[1:, 0, 1].any(), REPAIRED


def test_wrong_numbers(tmp_path: Path) -> None:
    run = load_module(compiled("wrong_numbers", tmp_path))
    image, square = np.arange(16, dtype=np.float32).reshape(1, 1, 4, 4), np.array([[0, 1], [2, 3]], np.float32)
    mean, gelu, norm, det = map(np.asarray, run(image, np.array([-2.65, 0], np.float32), square))
    x = -2.65
    right = x / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))
    assert mean[0, 0, 0, 0] == 4 * 2.5 and abs(gelu[0] / right - 1) > 1e-4 and np.isnan(det), REPAIRED
    assert np.isnan(np.asarray(run(image, np.zeros(2, np.float32), square)[2])).all() and norm[1] == 0, REPAIRED


def test_local_norm(tmp_path: Path) -> None:
    x = np.random.default_rng(0).standard_normal((1, 8, 3, 4)).astype(np.float32)
    (found,) = load_module(compiled("local_norm", tmp_path))(x)
    square = np.pad(x**2, ((0, 0), (1, 1), (0, 0), (0, 0)))
    right = x / (1 + square[:, :-2] + square[:, 1:-1] + square[:, 2:])
    assert not np.abs(np.asarray(found) - right).max() < 0.1, REPAIRED


def test_empty_gather(tmp_path: Path) -> None:
    with pytest.raises(subprocess.CalledProcessError) as caught:
        compiled("empty_gather", tmp_path)
        pytest.fail(REPAIRED)
    assert caught.value.returncode < 0, REPAIRED  # killed by a signal


def test_product_of_nothing(tmp_path: Path) -> None:
    with pytest.raises(subprocess.CalledProcessError) as caught:
        compiled("product_of_nothing", tmp_path)
        pytest.fail(REPAIRED)
    assert caught.value.returncode < 0, REPAIRED  # killed by a signal


def test_recurrent_free(tmp_path: Path) -> None:
    x = np.random.default_rng(1).standard_normal((5, 3, 5)).astype(np.float32)
    first, *_, second, _, _ = load_module(compiled("recurrent_free", tmp_path, *MODEL_FLAGS["llvm-cpu"]))(x, x)
    assert np.abs(first - second).max() > 1e-3, REPAIRED


def test_equal_choice(tmp_path: Path) -> None:
    with pytest.raises(subprocess.CalledProcessError) as caught:
        compiled("equal_choice", tmp_path)
        pytest.fail(REPAIRED)
    assert "doesn't match function result type" in caught.value.stderr


def test_integer_product(tmp_path: Path) -> None:
    x = np.full((1, 1), 200, np.uint8)
    (found,) = load_module(compiled("integer_product", tmp_path))(x, x)
    assert found.tolist() != [[40000]], REPAIRED


@pytest.mark.skipif(bool(foreign_cpu(AVX2)), reason="no x86-64 with AVX2")
def test_cast_to_bytes(tmp_path: Path) -> None:
    x = np.arange(100, 132, dtype=np.float32)
    (found,) = load_module(compiled("cast_to_bytes", tmp_path, *AVX2.flags))(x)
    assert np.asarray(found).view(np.uint8).tolist() != x.tolist(), REPAIRED


@pytest.mark.skipif(bool(foreign_cpu(AVX2)), reason="no x86-64 with AVX2")
def test_integer_to_bf16(tmp_path: Path) -> None:
    with pytest.raises(subprocess.CalledProcessError) as caught:
        compiled("integer_to_bf16", tmp_path, *AVX2.flags)
        pytest.fail(REPAIRED)
    assert "undefined symbol: __truncsfbf2" in caught.value.stderr


@pytest.mark.skipif(bool(foreign_cpu(AVX2)), reason="no x86-64 with AVX2")
def test_double_to_f16(tmp_path: Path) -> None:
    (found,) = load_module(compiled("double_to_f16", tmp_path, *AVX2.flags, *KEEP_F64))(np.full(3, 3e-5))
    assert found.tolist() == [0.0] * 3, REPAIRED


def test_float8(tmp_path: Path) -> None:
    x = np.array([0.015, 0.0155, 500, 1], np.float32)
    (found,) = load_module(compiled("float8", tmp_path))(x)
    assert found[3] == 1
    assert found[:2].tolist() == [0, 0] and np.isnan(found[2]), REPAIRED


def test_negative_pads(tmp_path: Path) -> None:
    x = np.arange(1, 6, dtype=np.float32)[None]
    (found,) = load_module(compiled("negative_pads", tmp_path))(x)
    assert found.tolist() != [[0, 1, 2, 3, 4]], REPAIRED


def test_packed_rows(tmp_path: Path) -> None:
    run = load_module(compiled("packed_rows", tmp_path, "--iree-opt-data-tiling"))
    rng = np.random.default_rng(0)
    a, v = rng.random((2, 7, 64), np.float32) + 1, rng.standard_normal((2, 64, 48)).astype(np.float32)
    _assert_first_batch_alone(run(a, v)[0], (a / a.sum(-1, keepdims=True)) @ v)


def test_packed_products(tmp_path: Path) -> None:
    run = load_module(compiled("packed_products", tmp_path, "--iree-opt-data-tiling"))
    rng = np.random.default_rng(0)
    a, w, z = (rng.standard_normal(s).astype(np.float32) for s in ((2, 7, 24), (24, 48), (2, 48, 16)))
    _assert_first_batch_alone(run(a, w, z)[0], a @ w @ z)


def test_turned_twice(tmp_path: Path) -> None:
    x = np.random.default_rng(0).standard_normal((6, 7)).astype(np.float32)
    (y,) = load_module(compiled("turned_twice", tmp_path))(x)
    want = x.sum(1)[:, None] + x.sum(1)
    np.testing.assert_allclose(y.diagonal(), want.diagonal(), rtol=1e-5)
    assert np.abs(y - want).max() > 0.1, REPAIRED


def test_loop_start(tmp_path: Path) -> None:
    x = np.random.default_rng(0).standard_normal((5, 4, 7)).astype(np.float32)
    (y,) = load_module(compiled("loop_start", tmp_path))(x)
    assert np.abs(y - (x.min(1) + x.sum(1))).max() > 0.1, REPAIRED


def test_one_place(tmp_path: Path) -> None:
    large = (1 << 24) + 1
    y, z = load_module(compiled("one_place", tmp_path))(np.zeros(4, np.float32), np.full(4, large))
    assert y[1] != 4 and z[0] != -large, REPAIRED


def test_pooled_fill(tmp_path: Path) -> None:
    (y,) = load_module(compiled("pooled_fill", tmp_path))(np.zeros((5, 3, 4), np.float32))
    assert (y == 0.5).all(), REPAIRED


def test_packed_turned(tmp_path: Path) -> None:
    run = load_module(compiled("packed_turned", tmp_path, "--iree-opt-data-tiling"))
    rng = np.random.default_rng(0)
    x, z = (rng.standard_normal(s).astype(np.float32) for s in ((7, 2, 5), (2, 7, 9)))
    _assert_first_batch_alone(run(x, z)[0], x.transpose(1, 2, 0) @ z)


def _assert_first_batch_alone(got: np.ndarray, want: np.ndarray) -> None:
    np.testing.assert_allclose(got[0], want[0], rtol=1e-3, atol=1e-3)
    assert np.abs(got[1] - want[1]).max() > 0.1, REPAIRED


def test_slice_by_scalars(tmp_path: Path) -> None:
    source = (FOLDER / "slice_by_scalars").with_suffix(".mlir")
    with pytest.raises(CompileError, match="killed by signal SIGSEGV"):
        iree_compile(source, tmp_path / "bug.vmfb", HOST, timeout_s=60, memory_bytes=4 << 30)
        pytest.fail(REPAIRED)


def test_write_over_the_end(tmp_path: Path) -> None:
    x = np.arange(1, 8, dtype=np.float32)
    (copied,) = load_module(compiled("write_over_the_end", tmp_path))(x)
    assert (copied[:4] == x[:4]).all() and not (copied == x).all(), REPAIRED


def test_bf16_round_trip(tmp_path: Path) -> None:
    x = np.full(8, 1.01, np.float32)
    assert load_module(compiled("bf16_round_trip", tmp_path))(x)[0][0] == x[0], REPAIRED


def test_devices_alike(tmp_path: Path) -> None:
    kept = [f for f in HOST.flags if not f.startswith("--iree-hal-target-device=")]
    found = []
    for first, second in (("local", "local"), ("local[0]", "local[1]")):
        devices = (f"--iree-hal-target-device=a={first}", f"--iree-hal-target-device=b={second}")
        out = compiled("devices_alike", tmp_path, "--compile-to=stream", device=(*devices, *kept))
        found.append("#hal.device.affinity<@b>" in out.read_text())
    assert found[1]
    assert not found[0], REPAIRED


def test_every_reproducer_is_run_and_on_the_page() -> None:
    text = "".join(path.read_text() for path in Path(__file__).parent.glob("test_iree_bugs*.py"))
    for path in FOLDER.iterdir():
        assert f'"{path.stem}"' in text, path
        assert f"`{path.name}`" in PAGE.read_text()


def test_filled_twice(tmp_path: Path) -> None:
    """In front of the dispatches' own code, which there is none of."""
    with pytest.raises(subprocess.CalledProcessError) as refused:
        compiled("filled_twice", tmp_path, "--compile-to=stream")
    assert "'stream.async.splat' op : streamable op expected to be in an execution region" in refused.value.stderr, (
        REPAIRED
    )
