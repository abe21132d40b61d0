"""The package as users install it: a wheel with everything inside, a command on the path."""

from __future__ import annotations

import re
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", str(out), str(ROOT)]
    subprocess.run(command, check=True, timeout=300, capture_output=True)
    (path,) = out.glob("*.whl")
    return path


def test_wheel_holds_the_package_and_nothing_at_the_top(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert {n.split("/")[0] for n in names if ".dist-info/" not in n} == {"onnx_fa"}
    for need in (
        "py.typed",
        "patterns/softmax/spellings.py",
        "models/build.py",
        "kernels/tiles/data/cpu-avx512.json",
        "iree/compile.py",
        "models/zoo.toml",
        "models/zoo-baseline.json",
        "explainer/pages/base.html",
    ):
        assert f"onnx_fa/{need}" in names


def test_installed_command_works_from_any_folder(wheel: Path, tmp_path: Path) -> None:
    # The dependencies come from the environment that runs the tests; only the package itself is installed anew.
    home = tmp_path / "env"
    venv.create(home, with_pip=False)
    site = next((home / "lib").glob("python*/site-packages"))
    own = next(Path(p) for p in sys.path if p.endswith("site-packages"))
    install = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(site), str(wheel)]
    subprocess.run(install, check=True, timeout=300)
    (site / "dependencies.pth").write_text(f"{own}\n")
    code = "import onnx_fa, onnx_fa.patterns, onnx_fa.cli.command; print(onnx_fa.__file__); print(onnx_fa.patterns.__file__)"
    python = home / "bin" / "python"
    done = subprocess.run([python, "-P", "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    first, second = done.stdout.split()
    assert first.startswith(str(site)) and second.startswith(str(site))
    done = subprocess.run(
        [python, "-P", "-m", "onnx_fa", "--version"], cwd=tmp_path, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0 and re.search(r"\d+\.\d+", done.stdout)


def test_constraints_pin_every_direct_dependency() -> None:
    lines = (ROOT / "constraints.txt").read_text().split()
    pins = {line.split("==")[0].lower().replace("_", "-") for line in lines if "==" in line}
    text = (ROOT / "pyproject.toml").read_text()
    asked = {m.lower().replace("_", "-") for m in re.findall(r'"([A-Za-z_-]+)>=', text)}
    assert asked - {"setuptools"} <= pins
    assert "torch==2.13.0" in (ROOT / "constraints.txt").read_text()
