"""The process that compiles one Triton program: what it writes, and what it does not read to name what it keeps."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest

from onnx_fa.kernels.triton import ptx, worker
from onnx_fa.kernels.triton.combine import combine_program
from onnx_fa.kernels.triton.config import TritonConfig
from onnx_fa.kernels.triton.program import loop_in
from onnx_fa.spec.attention import AttentionSpec

WATCHED = """
import runpy, sys
opened = []
sys.addaudithook(lambda event, details: opened.append(str(details[0])) if event == "open" else None)
file = sys.argv.pop(1)
runpy.run_path(file, run_name="__main__")
print("\\n".join(opened))
"""


@pytest.mark.skipif(not ptx.available(), reason="Triton is not installed")
def test_the_library_is_not_read_to_be_hashed(tmp_path: Path) -> None:
    """Nor is the package loaded: either takes longer than compiling this program."""
    spec = AttentionSpec("f32", 2, 2, 1, 4096, 32, 32)
    program = combine_program(spec, TritonConfig(16, 64, 4, 2, splits=4), "combine", loop_in(spec))
    job = tmp_path / "job.json"
    job.write_text(json.dumps({"program": asdict(program), "arch": 80, "warps": 4, "stages": 1}))
    command = [sys.executable, "-P", "-c", WATCHED, worker.__file__, job]
    environment = {**os.environ, "TRITON_CACHE_DIR": str(tmp_path / "cache")}
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment, check=True)
    made, *opened = done.stdout.splitlines()
    assert ".target sm_80" in json.loads(made)["ptx"]
    assert any("/triton/" in name for name in opened)
    assert [name for name in opened if "libtriton" in name] == []
    assert {name for name in opened if "/onnx_fa/" in name} == {worker.__file__}


def test_installations_have_hashes_of_their_own(tmp_path: Path) -> None:
    """A file that is there, or longer, or newer, is another Triton; what Python keeps beside it is not."""
    source, library = tmp_path / "compiler" / "code.py", tmp_path / "_C" / "libtriton.so"
    for path in (source, library):
        path.parent.mkdir()
        path.write_text("x")
    seen = [worker.hash_files(tmp_path)]
    library.write_text("yx")
    seen.append(worker.hash_files(tmp_path))
    os.utime(source, (1, 1))
    seen.append(worker.hash_files(tmp_path))
    (tmp_path / "language").mkdir()
    (tmp_path / "language" / "core.py").write_text("")
    seen.append(worker.hash_files(tmp_path))
    assert len(set(seen)) == 4
    (tmp_path / "compiler" / "__pycache__").mkdir()
    (tmp_path / "compiler" / "__pycache__" / "code.pyc").write_text("")
    assert worker.hash_files(tmp_path) == seen[-1]
