"""Runs every Attention node test of the onnx package and writes the table docs/results/node-tests.md.

python scripts/node_tests.py [-o docs/results/node-tests.md]
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from onnx_fa.forms.rewrite import explain  # noqa: E402
from tests.support.node_cases import NodeCase, cases, run_compiled, run_rewritten  # noqa: E402

HEAD = """# Node tests

The {count} node tests of the ONNX `Attention` op in onnx {onnx} (without the `_expanded` variants, which spell out the op's
function body), within the tolerances of onnx's own test runner. *rewritten*: the decomposed form in onnxruntime. *compiled*: the
artifact for this machine (`cpu-host`), run; a site that is not fused runs as ordinary operators, and the reason is given.

{passed} pass rewritten, {compiled} pass compiled, {fused} of those fused.

| test | variant | rewritten | compiled | fused |
| --- | --- | --- | --- | --- |
"""


def outcome(run: object) -> str:
    """ "pass", or the first line of what went wrong."""
    try:
        run()  # type: ignore[operator]
    except Exception as e:  # any failure is a row of the table
        return " ".join(str(e).split())[:120] or type(e).__name__
    return "pass"


def row(case: NodeCase, folder: Path) -> tuple[str, str, str, str, str]:
    report = explain(case.model)
    variant = report.sites[0].variant if report.sites else f"refused: {report.misses[0].reason}"
    state = ["-"]

    def compiled() -> None:
        results, state[0] = run_compiled(case, folder)
        case.check(results)

    rewritten = outcome(lambda: case.check(run_rewritten(case)))
    return case.name, variant, rewritten, outcome(compiled), "yes" if state[0] == "fused" else state[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path, default=ROOT / "docs" / "results" / "node-tests.md")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as tmp:
        rows = [row(case, Path(tmp)) for _, case in sorted(cases().items())]
    head = HEAD.format(
        count=len(rows),
        onnx=version("onnx"),
        passed=sum(r[2] == "pass" for r in rows),
        compiled=sum(r[3] == "pass" for r in rows),
        fused=sum(r[4] == "yes" for r in rows),
    )
    lines = ["| " + " | ".join(cell.replace("|", "/") for cell in r) + " |" for r in rows]
    args.output.write_text(head + "\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
