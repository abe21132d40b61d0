"""The texts that the project emits for its tables of cases, as digests: whether a change moves any of them by a letter.

    python scripts/texts.py --out before.json          # on one state of the code
    python scripts/texts.py --compare before.json      # on another: names what differs, exit code 1 if anything does

Covered are the MLIR of every kernel case for every family of targets, the source of Triton's kernels (their compilation is left
out: it is Triton's), and the ONNX of every spelling in every form.
"""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from onnx_fa.errors import OnnxFaError  # noqa: E402
from onnx_fa.forms.rewrite import FORMS, rewrite  # noqa: E402
from onnx_fa.kernels.choose import emit_kernel  # noqa: E402
from onnx_fa.kernels.triton import ptx  # noqa: E402
from onnx_fa.spec.target import Kernels, parse_target  # noqa: E402
from tests.support.cases import CASES  # noqa: E402
from tests.support.spelling_table import entries  # noqa: E402

TARGETS: tuple[tuple[str, Kernels], ...] = (
    ("cpu-avx512", "auto"),
    ("cpu-avx2", "auto"),
    ("cpu-neon", "auto"),
    ("cuda-sm_80", "iree"),
    ("cuda-sm_80", "triton"),
    ("rocm-gfx942", "auto"),
)


def digest(text: str | bytes) -> str:
    """Sixteen hex digits."""
    return hashlib.sha256(text.encode() if isinstance(text, str) else text).hexdigest()[:16]


def keep_triton_source() -> None:
    """Puts the digest of a program where its PTX would be, so that no kernel is compiled."""

    def digested(program: Any, arch: int, warps: int, stages: int, limits: Any = None) -> ptx.Compiled:
        source = json.dumps([dataclasses.asdict(program), arch, warps, stages], sort_keys=True)
        return ptx.Compiled(program.entry, f"// {digest(source)}\n", warps, 0, 0)

    vars(ptx)["compile_program"] = digested


def kernel_texts() -> Iterator[tuple[str, str]]:
    """(name, digest) of each case's kernel on each target; a refusal is a text too."""
    for case in CASES:
        for name, kernels in TARGETS:
            try:
                kernel = emit_kernel(case.spec, parse_target(name, kernels))
                text = "\n".join([kernel.text, *kernel.flags])
            except OnnxFaError as error:
                text = str(error)
            yield f"kernel {name} {kernels} {case.name}", digest(text)


def form_texts() -> Iterator[tuple[str, str]]:
    """(name, digest) of each spelling in each form, with what the report says of it."""
    for row in entries():
        for form in FORMS:
            model, report = rewrite(row.build(), form)
            said = json.dumps(report.to_dict(), sort_keys=True)
            yield f"form {form} {row.id}", digest(model.SerializeToString(deterministic=True) + said.encode())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    group = parser.add_mutually_exclusive_group(required=True)
    group.add_argument("--out", type=Path, help="write the digests to this file")
    group.add_argument("--compare", type=Path, help="compare with the digests in this file")
    args = parser.parse_args()
    keep_triton_source()
    texts = dict([*kernel_texts(), *form_texts()])
    if args.out:
        args.out.write_text(json.dumps(texts, indent=0, sort_keys=True) + "\n")
        print(f"{len(texts)} texts")
        return 0
    before = json.loads(args.compare.read_text())
    changed = [name for name in sorted({*before, *texts}) if before.get(name) != texts.get(name)]
    for name in changed:
        both = name in texts and name in before
        print("changed" if both else f"only {'now' if name in texts else 'before'}", name)
    print(f"{len(texts)} texts, {len(changed)} differ")
    return 1 if changed else 0


if __name__ == "__main__":
    sys.exit(main())
