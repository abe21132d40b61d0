"""What the processor is read to be, from the one file that says it."""

from __future__ import annotations

from pathlib import Path

import pytest

from onnx_fa import machine as machines
from onnx_fa.machine import cpu_features, cpu_name, is_arm, is_x86

ZEN = """processor\t: 0
model name\t: AMD EPYC
cpu family\t: 25
model\t\t: 1
flags\t\t: fma avx2

processor\t: 1
model name\t: another
flags\t\t: avx512f
"""


@pytest.mark.parametrize(
    ("said", "name", "features"),
    [
        (ZEN, "AMD EPYC (family 25 model 1)", {"fma", "avx2"}),
        (
            "processor\t: 0\nmodel name\t: avx2 of all kinds\nflags\t: fma\n",
            "avx2 of all kinds (family ? model ?)",
            {"fma"},
        ),
        ("processor\t: 0\nFeatures\t: asimd\n", "machine", set()),
        (None, "a processor", set()),
    ],
    ids=["x86", "feature in a name", "arm", "no file"],
)
def test_what_linux_says(monkeypatch: pytest.MonkeyPatch, said: str | None, name: str, features: set[str]) -> None:
    def read(path: Path) -> str:
        assert str(path) == "/proc/cpuinfo"
        if said is None:
            raise FileNotFoundError(path)
        return said

    monkeypatch.setattr(machines, "_cpu_facts", machines._cpu_facts.__wrapped__)
    monkeypatch.setattr(Path, "read_text", read)
    monkeypatch.setattr("platform.machine", lambda: "machine")
    monkeypatch.setattr("platform.processor", lambda: "a processor")
    assert (cpu_name(), cpu_features()) == (name, features)


def test_architectures(monkeypatch: pytest.MonkeyPatch) -> None:
    found = {}
    for machine in ("x86_64", "AMD64", "aarch64", "arm64", "riscv64"):
        monkeypatch.setattr("platform.machine", lambda machine=machine: machine)
        found[machine] = is_x86(), is_arm()
    x86, arm, other = (True, False), (False, True), (False, False)
    assert found == {"x86_64": x86, "AMD64": x86, "aarch64": arm, "arm64": arm, "riscv64": other}
