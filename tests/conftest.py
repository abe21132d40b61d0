"""What holds in every test: one thread in the libraries that compute references, no state of torch left behind, and few walks of
the garbage collector."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterator

import pytest

# Read when NumPy's BLAS and torch are loaded. Their threads would wait, spinning, for the cores that the other tests use, and how
# many there are must not decide what a reference is.
os.environ.setdefault("OMP_NUM_THREADS", "1")


def pytest_collection_finish() -> None:
    """What has been imported stays to the end. With torch, that is a million objects, and an eighth of the time of an export is
    spent walking over them."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)


def _torch_state() -> dict[str, object]:
    """The settings of torch that change what it computes; nothing where it is not loaded."""
    torch = sys.modules.get("torch")
    if torch is None:
        return {}
    return {
        "threads": torch.get_num_threads(),
        "dtype": torch.get_default_dtype(),
        "grad": torch.is_grad_enabled(),
        "matmul": torch.get_float32_matmul_precision(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "fast transformers": torch.backends.mha.get_fastpath_enabled(),
    }


@pytest.fixture(autouse=True)
def torch_state_stays() -> Iterator[None]:
    """Fails a test that leaves torch computing in another way: those after it in the same process would depend on it."""
    before = _torch_state()
    yield
    if before:
        assert _torch_state() == before
