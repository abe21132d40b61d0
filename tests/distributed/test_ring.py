"""Attention over several processes: shares of a sequence, merges, and two processes with gloo against float64."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import weakref
from importlib.util import find_spec
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from onnx_fa.distributed.decode import Graph  # noqa: E402
from onnx_fa.distributed.merge import Partial, add, merge  # noqa: E402
from onnx_fa.distributed.module import TorchModule, share_processor  # noqa: E402
from onnx_fa.distributed.modules import Heads, build, decode_spec, prefill_specs  # noqa: E402
from onnx_fa.distributed.zigzag import chunks_of, share, visit, whole  # noqa: E402
from onnx_fa.errors import RunError  # noqa: E402
from onnx_fa.spec.target import parse_target  # noqa: E402
from tests.support.ring_process import EDGES  # noqa: E402

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("ranks", [1, 2, 3, 8])
def test_every_key_once_and_the_same_work(ranks: int) -> None:
    seen: list[tuple[int, int]] = []
    work = []
    for rank in range(ranks):
        mine, before = chunks_of(rank, ranks), len(seen)
        for source in range(ranks):
            theirs = chunks_of(source, ranks)
            pairs = {
                "causal": [(a, b) for a in mine for b in theirs if b <= a],
                "early": [(a, theirs[0]) for a in mine],
                "late": [(mine[1], b) for b in theirs],
            }[visit(rank, source)]
            seen += pairs
        work.append(len(seen) - before)
    assert sorted(seen) == [(a, b) for a in range(2 * ranks) for b in range(a + 1)] and len(set(work)) == 1
    x = torch.arange(24 * ranks).reshape(1, -1, 2)
    assert torch.equal(whole([share(x, r, ranks) for r in range(ranks)]), x)
    with pytest.raises(ValueError, match="equal chunks"):
        share(x[:, :-1], 0, ranks)


def _partial(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, keep: torch.Tensor) -> Partial:
    s = torch.einsum("bqhd,bkhd->bhqk", q, k).masked_fill(~keep, -torch.inf)
    top = s.amax(-1)
    e = torch.exp(s - torch.where(top == -torch.inf, 0.0, top)[..., None])
    total = e.sum(-1)
    p = e / torch.where(total == 0, 1.0, total)[..., None]
    return Partial(torch.einsum("bhqk,bkhd->bqhd", p, v), top, total)


def test_merge_of_rows() -> None:
    """Rows that see keys in both parts, in one, and in none; of the second part only the last rows are there."""
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, n, 3, 4) * scale for n, scale in ((6, 9.0), (10, 9.0), (10, 1.0)))
    keep = torch.rand(2, 3, 6, 10) < 0.5
    keep[:, :, :2, 7:] = False
    keep[0, 0, 3], keep[0, 1, 4, 7:], keep[0, 2, 5, :7] = False, False, False
    want = _partial(q.double(), k.double(), v.double(), keep)
    made = _partial(q, k[:, :7], v[:, :7], keep[..., :7])
    add(made, _partial(q[:, 2:], k[:, 7:], v[:, 7:], keep[:, :, 2:, 7:]), slice(2, None))
    torch.testing.assert_close(made.out.double(), want.out, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(made.top.double(), want.top, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(made.total.double(), want.total, rtol=1e-4, atol=1e-6)


def test_merge_of_parts_side_by_side() -> None:
    """Of three parts, of which the second has no key of some rows; rows without keys in any are zeros."""
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, n, 3, 4) * scale for n, scale in ((5, 3.0), (12, 3.0), (12, 1.0)))
    keep = torch.rand(2, 3, 5, 12) < 0.5
    keep[:, 0, :, 4:8], keep[1, 2, 3] = False, False
    want = _partial(q.double(), k.double(), v.double(), keep)
    parts = [_partial(q, *(x[:, n : n + 4] for x in (k, v)), keep[..., n : n + 4]) for n in (0, 4, 8)]
    made = merge(*(torch.stack([getattr(p, name) for p in parts]) for name in ("out", "top", "total")))
    torch.testing.assert_close(made.double(), want.out, rtol=1e-5, atol=1e-6)
    assert torch.equal(made[1, 3, 2], torch.zeros(4))


@pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed")
def test_merge_by_a_kernel() -> None:
    command = [sys.executable, "-m", "tests.support.merge_interpreter"]
    done = subprocess.run(command, cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_no_processor_to_share() -> None:
    with pytest.raises(RunError, match="local-task: no threads that start its work and wait for it are known"):
        share_processor(torch.device("cpu"), 0, 1)


def test_a_graph_keeps_what_it_writes_to(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory that torch gives to others, were it free."""

    class Nothing(contextlib.AbstractContextManager[None]):
        def __init__(self, *_: object, **__: object) -> None: ...
        def __exit__(self, *_: object) -> None: ...
        def wait_stream(self, _: object) -> None: ...
        def replay(self) -> None: ...

    for name in ("Stream", "stream", "current_stream", "synchronize", "CUDAGraph", "graph"):
        monkeypatch.setattr(torch.cuda, name, Nothing)

    class Exchange:
        def __init__(self) -> None:
            self.gathered = torch.zeros(2)

        def exchange(self) -> torch.Tensor:
            return self.gathered.add_(1).sum(0)

    parts = Exchange()
    gone = weakref.ref(parts.gathered)
    finish = Graph(parts.exchange)
    del parts
    assert finish() == 4 and gone() is not None


def test_two_processes(tmp_path: Path) -> None:
    heads, S = Heads(Hq=4, Hkv=2, D=16, Dv=16, dtype="f32"), 48
    lengths = EDGES[0], S - EDGES[0]
    specs = {**prefill_specs(heads, S, 2), **{f"decode-{n}": decode_spec(heads, 1, n) for n in lengths}}
    build(specs, parse_target("cpu-host"), tmp_path)
    torch.manual_seed(0)
    q, k, v, one = (torch.randn(1, n, h, 16) for n, h in ((S, 4), (S, 2), (S, 2), (1, 4)))
    torch.save((q, k, v, one), tmp_path / "operands.pt")
    env = {**os.environ, "PYTHONPATH": str(ROOT), "GLOO_SOCKET_IFNAME": "lo"}
    command = [sys.executable, "-m", "tests.support.ring_process"]
    started = [
        subprocess.Popen([*command, str(r), "2", str(tmp_path)], cwd=ROOT, env=env, stderr=subprocess.PIPE, text=True)
        for r in range(2)
    ]
    said = [p.communicate(timeout=120)[1] for p in started]
    assert [p.returncode for p in started] == [0, 0], said
    shares, steps, behind = zip(*(torch.load(tmp_path / f"{r}.pt") for r in range(2)), strict=True)
    wide = [x.double().transpose(1, 2) for x in (q, k, v, one)]
    attention = torch.nn.functional.scaled_dot_product_attention
    want = attention(*wide[:3], is_causal=True, enable_gqa=True).transpose(1, 2)
    torch.testing.assert_close(whole(list(shares)).double(), want, rtol=1e-5, atol=2e-6)
    for first, found in ((0, steps), (EDGES[0], behind)):
        want = attention(wide[3], *(x[..., first:, :] for x in wide[1:3]), enable_gqa=True).transpose(1, 2)
        for step in (x for of_process in found for x in of_process):
            torch.testing.assert_close(step.double(), want, rtol=1e-5, atol=2e-6)
    module = TorchModule(tmp_path / f"decode-{lengths[0]}.vmfb", torch.device("cpu"))
    with pytest.raises(RunError, match="the module failed on operands 1x3x4x16"):
        module(one.expand(1, 3, 4, 16), k, v)
    with pytest.raises(ValueError, match="must be contiguous"):
        module.bind((one, k.transpose(1, 2), v), [])
    with pytest.raises(RunError, match="cannot be loaded"):
        TorchModule(b"no module", torch.device("cpu"))
    with pytest.raises(ValueError, match="equal chunks"):
        prefill_specs(heads, 50, 2)
