"""One contestant in a process of its own: `python -m onnx_fa.generate.worker JOB.json` prints what it generated, as JSON.

The job: `kind` (KINDS), `path` (the model or folder), `modules` (what modules.py described), `device`, `prompt`, `count`, `rounds`,
`threads` (None: all).
"""

from __future__ import annotations

import json
import resource
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from onnx_fa.errors import OnnxFaError
from onnx_fa.generate.greedy import Decoder, Generation, generate
from onnx_fa.generate.layout import find_files

OURS, ORT, GENAI = "onnx_fa", "onnxruntime", "onnxruntime-genai"
KINDS = (OURS, ORT, GENAI)
EXACT = "onnxruntime, activations not rounded"
"""onnxruntime on the same file, but for products that round what they multiply: what tokens are compared with where it differs."""


def main(arguments: Sequence[str]) -> int:
    job = json.loads(Path(arguments[0]).read_text())
    try:
        made, said = _generate(job)
    except OnnxFaError as e:
        print(json.dumps({"problem": str(e)}))
        return 0
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(json.dumps({"runs": [asdict(run) for run in made], "peak_bytes": peak, "note": said}))
    return 0


def _generate(job: dict[str, Any]) -> tuple[list[Generation], str]:
    """The runs, and what is to be said of them."""
    prompt, count, files = job["prompt"], job["count"], find_files(Path(job["path"]))
    if job["kind"] == GENAI:
        from onnx_fa.generate.genai_decoder import generate_by_genai, load_genai

        model = load_genai(files)
        return [generate_by_genai(model, prompt, count) for _ in range(job["rounds"])], ""
    decoder = _decoder(job)
    runs = [generate(decoder, prompt, count, files.end_tokens) for _ in range(job["rounds"])]
    return runs, decoder.note


def _decoder(job: dict[str, Any]) -> Decoder:
    room = len(job["prompt"]) + job["count"]
    if job["kind"] in (ORT, EXACT):
        from onnx_fa.generate.ort_decoder import OrtDecoder

        return OrtDecoder(find_files(Path(job["path"])), room, job["threads"], exact=job["kind"] == EXACT)
    from onnx_fa.generate.modules import read_described
    from onnx_fa.generate.resident import IreeDecoder
    from onnx_fa.iree.drivers import limit_threads

    if job["threads"] is not None:
        limit_threads(job["threads"])
    prompt, step = read_described(Path(job["modules"]))
    return IreeDecoder(prompt, step, job["device"], room)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
