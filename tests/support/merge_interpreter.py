"""`python -m tests.support.merge_interpreter`: the kernel that merges parts, in Triton's interpreter, against torch's."""

from __future__ import annotations

import os

os.environ["TRITON_INTERPRET"] = "1"

import torch

from onnx_fa.distributed.merge import merge
from onnx_fa.distributed.merge_kernel import merge_at_once


def main() -> None:
    torch.manual_seed(0)
    half, full = torch.float16, torch.float32
    for N, B, Sq, Hq, Dv, dtype in ((2, 1, 1, 32, 128, half), (3, 2, 5, 3, 20, full), (1, 1, 2, 1, 1, full)):
        # Each part's numbers lie in a row of bytes, as an exchange leaves them: strides between parts are larger than a part.
        outs = torch.randn(N, B * Sq * Hq * Dv + 8, dtype=dtype)[:, : B * Sq * Hq * Dv].view(N, B, Sq, Hq, Dv)
        tops, totals = (x[:, : B * Hq * Sq].view(N, B, Hq, Sq) for x in (20 * torch.randn(N, 999), torch.rand(N, 999)))
        tops[0, 0, 0], totals[0, 0, 0] = -torch.inf, 0.0  # rows without keys in one part, then in all
        outs[0, 0, :, 0] = 0
        tops[:, -1, -1], totals[:, -1, -1] = -torch.inf, 0.0
        outs[:, -1, :, -1] = 0
        made, want = merge_at_once(outs, tops, totals), merge(outs, tops, totals)
        assert made.dtype == dtype and bool((made[-1, :, -1] == 0).all())
        torch.testing.assert_close(made, want, **({"rtol": 1e-3, "atol": 1e-3} if dtype == half else {}))


if __name__ == "__main__":
    main()
