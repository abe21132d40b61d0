"""What times is not looked at in tests: nobody waits for processors to be idle."""

from __future__ import annotations

import pytest

from onnx_fa.benchmark import models


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(models, "SETTLE_S", 0.0)
