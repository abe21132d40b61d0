"""Kernels started by CUDA's driver, of which this is one that computes on the CPU."""

from __future__ import annotations

import contextlib
import ctypes
import json
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from onnx_fa.distributed.launched import Launched, read_plan  # noqa: E402
from onnx_fa.distributed.module import TorchModule  # noqa: E402
from onnx_fa.errors import RunError  # noqa: E402
from onnx_fa.kernels.mlir.launches import Code, Launch, Plan, plan_file  # noqa: E402

CPU = torch.device("cpu")
N = 4


def _code(arch: int, shared: int = 0) -> Code:
    return Code(arch, f"// sm_{arch}", (N, 2), 64, shared)


PLAN = Plan(
    (((2, N), "f32"), ((N,), "f32")),
    (((N,), "f32"),),
    16,
    (4 * N,),
    # The first adds rows to the workspace and counts; the second multiplies that into the result.
    (Launch("add", (0, 4, 3), (_code(90, 60_000), _code(80))), Launch("multiply", (4, 1, 2), (_code(90), _code(80)))),
)


class Driver:
    """Does with the addresses that it is given what the kernels are called; every call fails if `code` is not 0."""

    def __init__(self, code: int = 0) -> None:
        self.code, self.texts, self.names = code, list[bytes](), dict[int, str]()
        self.started: list[tuple[Any, ...]] = []
        self.shared: dict[str, int] = {}

    def cuModuleLoadData(self, module: Any, text: bytes) -> int:
        self.texts.append(text)
        return self.code

    def cuModuleGetFunction(self, function: Any, module: Any, name: bytes) -> int:
        self.names[len(self.names) + 1] = name.decode()
        function._obj.value = len(self.names)
        return self.code

    def cuFuncSetAttribute(self, function: ctypes.c_void_p, attribute: int, value: int) -> int:
        assert attribute == 8 and function.value
        self.shared[self.names[function.value]] = value
        return self.code

    def cuLaunchKernel(self, function: ctypes.c_void_p, *given: Any) -> int:
        *grid, shared, stream, arguments, extra = given
        assert function.value and extra is None
        name = self.names[function.value]
        self.started.append((name, *grid, shared, stream.value))
        addresses = [ctypes.c_void_p.from_address(a).value for a in arguments]
        sizes = (2 * N, N, N) if name == "add" else (N, N, N)
        a, b, c = (
            torch.frombuffer((ctypes.c_float * n).from_address(x or 0), dtype=torch.float32)
            for n, x in zip(sizes, addresses, strict=True)
        )
        if name == "add":
            assert not c.view(torch.int32).any()  # the counters
            b.copy_(a.view(2, N).sum(0))
        else:
            c.copy_(a * b)
        return self.code


@pytest.fixture
def stream(monkeypatch: pytest.MonkeyPatch) -> Any:
    class Stream:
        cuda_stream = 77

        def synchronize(self) -> None: ...

    monkeypatch.setattr(torch.cuda, "device", lambda _: contextlib.nullcontext())
    monkeypatch.setattr(torch.cuda, "current_stream", lambda *_: Stream)
    monkeypatch.setattr(Stream, "synchronize", staticmethod(lambda: None))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (9, 0))
    return Stream


def test_launches(stream: Any) -> None:
    driver = Driver()
    launched = Launched(PLAN, CPU, driver)
    assert driver.texts == [b"// sm_90\0"] * 2 and driver.shared == {"add": 60_000}
    x, y, (out,) = torch.randn(2, N), torch.randn(N), launched.results()
    call = launched.bind((x, y), [out])
    for _ in range(2):
        x.normal_()
        call()
        torch.testing.assert_close(out, x.sum(0) * y)
    assert driver.started[:2] == [("add", N, 2, 1, 64, 1, 1, 60_000, 77), ("multiply", N, 2, 1, 64, 1, 1, 0, 77)]


def test_other_tensors_are_refused(stream: Any) -> None:
    launched = Launched(PLAN, CPU, Driver())
    good = torch.zeros(2, N), torch.zeros(N)
    (out,) = launched.results()
    with pytest.raises(ValueError, match=r"2 operands and results, and not 3"):
        launched.bind(good, [])
    with pytest.raises(
        ValueError, match=r"operand 1: torch.float32 \(5,\) on cpu, and not a contiguous torch.float32 \(4,\)"
    ):
        launched.bind((good[0], torch.zeros(5)), [out])
    with pytest.raises(ValueError, match=r"result 0: torch.float16"):
        launched.bind(good, [out.half()])
    with pytest.raises(ValueError, match=r"operand 0: .*, not contiguous"):
        launched.bind((torch.zeros(N, 2).T, good[1]), [out])


def test_what_the_driver_refuses(stream: Any) -> None:
    with pytest.raises(RunError, match="CUDA's driver: cuModuleLoadData of add fails with 218"):
        Launched(PLAN, CPU, Driver(218))


def test_plans_beside_modules(tmp_path: Path) -> None:
    vmfb = tmp_path / "m.vmfb"
    assert read_plan(vmfb) is None
    plan_file(vmfb).write_text(PLAN.to_json())
    assert read_plan(vmfb) == PLAN
    for text in ("{", "[]", json.dumps({"launches": [{}]})):
        plan_file(vmfb).write_text(text)
        with pytest.raises(RunError, match=r"m.launches.json: no plan of a module: .*; build the module again"):
            read_plan(vmfb)


def test_a_module_starts_its_kernels(stream: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a device that is called CUDA, without the module's file or IREE's runtime."""

    class Device:
        type, index = "cuda", 0

    plan_file(tmp_path / "m.vmfb").write_text(PLAN.to_json())
    monkeypatch.setattr("onnx_fa.distributed.module.Launched", lambda plan, _: Launched(plan, CPU, Driver()))
    module = TorchModule(tmp_path / "m.vmfb", Device())  # type: ignore[arg-type]
    x, y = torch.randn(N, 2).T, torch.randn(N)
    torch.testing.assert_close(module(x, y), [x.sum(0) * y])
    with pytest.raises(RunError, match=r"the module failed on operand 1: torch.float32 \(2,\)"):
        module(x, y[:2])
    with pytest.raises(RunError, match="cannot be loaded"):
        TorchModule(tmp_path / "m.vmfb", CPU)
