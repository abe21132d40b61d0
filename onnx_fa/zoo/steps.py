"""The steps of one entry, each in a process of its own: `python -m onnx_fa.zoo.steps STEP FOLDER`.

FOLDER has the entry (`entry.json`) and what earlier steps left; a step writes `<step>.json`, and nothing when it fails.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from onnx_fa.errors import ModelError, OnnxFaError, RunError
from onnx_fa.files import write_whole
from onnx_fa.spec.target import Target, parse_target
from onnx_fa.zoo import suite_steps
from onnx_fa.zoo.archives import is_archive, unpack
from onnx_fa.zoo.entries import Entry
from onnx_fa.zoo.sizes import runnable_sizes
from onnx_fa.zoo.sources import package_weights

Json = dict[str, Any]
SENTENCES = (
    "A man is eating food.",
    "Someone is having a meal.",
    "The girl plays the violin beautifully.",
    "IREE compiles machine learning models for many kinds of hardware.",
    "What is the capital of France?",
)
"""What the model with real weights is given; the first two mean nearly the same."""
SEEDS = 1
ROAD = "stock road"
STOCK_FLAGS = (("--iree-opt-data-tiling", "--iree-llvmcpu-stack-allocation-limit=131072"),)
"""Stock IREE's best flags for whole models on CPU, as measured (docs/results/performance.md)."""


def main(argv: list[str]) -> int:
    """Runs one step. An OnnxFaError becomes one line on standard error and exit code 1."""
    step, folder = argv[0], Path(argv[1])
    given = json.loads((folder / "entry.json").read_text())
    entry, target = Entry.from_dict(given["entry"]), parse_target(given["target"])
    try:
        done = STEPS[step](entry, target, folder, given["settings"])
    except OnnxFaError as e:
        print(" ".join(str(e).split()), file=sys.stderr)
        return 1
    write_whole(folder / f"{step}.json", json.dumps(done, allow_nan=False))
    return 0


def _model(folder: Path) -> Path:
    return Path(json.loads((folder / "export.json").read_text())["model"])


def export(entry: Entry, _: Target, folder: Path, settings: Json) -> Json:
    """The model as a file: exported (or from the cache of exports), quantised, fetched, or the user's own."""
    path = folder / "model.onnx"
    match entry.source:
        case "family" | "variant" | "model":
            from onnx_fa.models.export import export_path

            shutil.copyfile(export_path(_of_zoo(entry), entry.exporter, entry.opset, attn=entry.attn), path)
        case "package":
            _from_package(entry, path)
        case "path":
            path = Path(entry.base) / entry.of
            if not path.is_file():
                raise ModelError(f"{path}: no such file")
            if is_archive(path):
                path = unpack(path, folder / "unpacked")
        case "url":
            _fetch(entry, path)
        case "missing":
            raise ModelError(f"not found: {entry.of}")
    if entry.sha256 and (digest := hashlib.sha256(path.read_bytes()).hexdigest()) != entry.sha256:
        raise ModelError(f"{path}: its sha256 is {digest}, the zoo says {entry.sha256}")
    if entry.quantize:
        path = _quantised(entry, path, folder)
    if not path.name.endswith(".onnx"):  # a suite's test as MLIR
        return {"model": str(path.resolve()), "bytes": path.stat().st_size, "nodes": None}
    from onnx_fa.graph import io

    nodes = sum(1 for _ in io.load(path).graph.all_nodes())
    return {"model": str(path.resolve()), "bytes": path.stat().st_size, "nodes": nodes}


def _of_zoo(entry: Entry) -> Any:
    from onnx_fa.models import build, families
    from onnx_fa.models.variants import VARIANTS

    if entry.source == "model":
        return build.find(entry.of)
    if entry.source == "family":
        return families.find(entry.of)
    if entry.of not in VARIANTS:
        raise OnnxFaError(f"no variant {entry.of!r}: use one of {', '.join(VARIANTS)}")
    return VARIANTS[entry.of]


def _fetch(entry: Entry, path: Path) -> None:
    from urllib.error import URLError
    from urllib.request import urlopen

    if not entry.of.startswith("https://"):
        raise OnnxFaError(f"{entry.of}: only https is fetched")
    try:
        with urlopen(entry.of, timeout=60) as source, path.open("wb") as target:
            shutil.copyfileobj(source, target)
    except (URLError, OSError) as e:
        raise OnnxFaError(f"{entry.of}: cannot be fetched: {e}") from e


def _from_package(entry: Entry, path: Path) -> None:
    """A sentence encoder from a Python package that holds its weights and its tokenizer, with SENTENCES as inputs."""
    weights = package_weights(entry.of)
    if weights is None:
        raise OnnxFaError(f"{entry.of}: no model.safetensors in the package")
    from onnx_fa.models.sentences import export_sentence_encoder

    arrays = export_sentence_encoder(weights.parent, SENTENCES, path, entry.exporter, entry.opset)
    np.savez(path.parent / "inputs.npz", **arrays)  # type: ignore[arg-type]


def _quantised(entry: Entry, path: Path, folder: Path) -> Path:
    from onnx_fa.models.quantized import quantise

    target = folder / f"model.{entry.quantize}.onnx"
    quantise(path, target, entry.quantize == "static")
    return target


def explain(entry: Entry, _: Target, folder: Path, settings: Json) -> Json:
    """The sites with their passes, what was left alone, and the pictures for the page."""
    from onnx_fa.explainer.page import pictures, template

    report, sites = pictures(_model(folder))
    macro: Any = template("site.html").module  # its stubs do not know the macros of a template
    rendered = [str(macro.site(*s.context(), heading="h3")) for s in sites]
    write_whole(folder / "sites.html", "\n".join(rendered))
    shown = [
        {"name": s.name, "op": s.op, "variant": s.variant, "passes": s.passes.words if s.passes else "?"}
        for s in report.sites
    ]
    return {"sites": shown, "misses": [m.to_dict() for m in report.misses]}


def rewrite(entry: Entry, _: Target, folder: Path, settings: Json) -> Json:
    """The decomposed form, held to ONNX's rules, and its own rewrite, which must change nothing."""
    from onnx_fa.forms.rewrite import rewrite_in_place
    from onnx_fa.graph import io

    model = io.load(_model(folder))
    report = rewrite_in_place(model, "decomposed")[0]
    io.check_valid(model)
    io.save(model, folder / "model.fa.onnx")
    again = io.load(folder / "model.fa.onnx")
    changed = rewrite_in_place(again, "decomposed")[1]
    return {"sites": len(report.sites), "misses": len(report.misses), "again": len(changed)}


def compile_(entry: Entry, target: Target, folder: Path, settings: Json) -> Json:
    """The direct road, inspected."""
    from onnx_fa.iree.compile import compile_model

    vmfb = folder / "model.vmfb"
    done = compile_model(
        _model(folder), vmfb, target, flags=suite_steps.flags_for_any_device(entry), timeout_s=settings["timeout_s"] * 0.9,
        memory_bytes=6 << 30,
    )  # fmt: skip
    names = ("name", "variant", "fused", "dispatches", "largest_buffer_bytes", "lossy")
    return {
        "sites": [{n: getattr(s, n) for n in names} | {"body": (s.tiles or {}).get("body")} for s in done.sites],
        "misses": [m.to_dict() for m in done.misses],
        "dispatches": len(done.inspection.dispatches),
        "buffers": [str(b) for b in done.inspection.buffers],
        "vmfb_bytes": done.vmfb_bytes,
        "seconds": done.seconds,
    }


def stock(entry: Entry, target: Target, folder: Path, settings: Json) -> Json:
    """The stock road: the rewritten model through unmodified IREE tools with the transform spec; which kernels arrived."""
    from onnx_fa.benchmark.stock import stock_import
    from onnx_fa.forms.rewrite import rewrite_in_place
    from onnx_fa.graph import io
    from onnx_fa.iree.compile import MODEL_FLAGS
    from onnx_fa.iree.compiler import iree_compile as compile_mlir
    from onnx_fa.iree.compiler import merge_flags
    from onnx_fa.iree.stock_road import spec_flags, spec_for_model
    from onnx_fa.iree.vmfb_facts import inspect_vmfb

    model = io.load(_model(folder))
    _, sites = rewrite_in_place(model, "decomposed")
    left_out: list[str] = []
    text = spec_for_model(model, sites, target, left_out=lambda s, e: left_out.append(f"{s.name}: {e}"))
    write_whole(folder / "spec.mlir", text)
    io.save(model, folder / "stock.onnx")
    imported = stock_import(folder / "stock.onnx", folder)
    if isinstance(imported, str):
        raise OnnxFaError(imported)
    vmfb = folder / "stock.vmfb"
    spec = f"--iree-preprocessing-transform-spec-filename={folder / 'spec.mlir'}"
    flags = merge_flags(
        MODEL_FLAGS.get(target.backend, ()), spec_flags(text), suite_steps.flags_for_any_device(entry), (spec,)
    )
    compile_mlir(imported, vmfb, target, flags=flags, timeout_s=settings["timeout_s"] * 0.9, memory_bytes=6 << 30)
    wanted = set(re.findall(r"fa_[0-9a-f]{10}", text))
    arrived = set(inspect_vmfb(vmfb).kernels())
    return {"kernels": len(wanted), "arrived": len(wanted & arrived), "left_out": left_out}


def iree_import(entry: Entry, _: Target, folder: Path, settings: Json) -> Json:
    return suite_steps.import_(_model(folder), folder, settings)


def iree_compile(entry: Entry, _: Target, folder: Path, settings: Json) -> Json:
    mlir = Path(json.loads((folder / "iree-import.json").read_text())["mlir"])
    return suite_steps.compile_(entry, mlir, folder, settings)


def iree_run(entry: Entry, _: Target, folder: Path, settings: Json) -> Json:
    return suite_steps.run(entry, _model(folder), folder, settings)


def check(entry: Entry, target: Target, folder: Path, settings: Json) -> Json:
    """The compiled module once on random inputs beside onnxruntime, as `compile --check` runs it."""
    from onnx_fa.graph import io
    from onnx_fa.verifier.once import check_once

    sites = json.loads((folder / "compile.json").read_text())["sites"]
    dims = runnable_sizes(_model(folder), dict(entry.dims))
    check_once(io.load(_model(folder)), folder / "model.vmfb", target, [s["lossy"] for s in sites], dims)
    return {"dims": dims}


def verify(entry: Entry, target: Target, folder: Path, settings: Json) -> Json:
    """Original against rewritten against compiled against float64; on given inputs too, where the entry has some."""
    from onnx_fa.verifier.verifier import verify as compare

    dims = runnable_sizes(_model(folder), dict(entry.dims))
    report = compare(_model(folder), target, seeds=SEEDS, dims=dims, module=folder / "model.vmfb")
    checks = [c.to_dict() for c in report.checks]
    if (folder / "inputs.npz").is_file():
        checks += _on_given(folder, target)
    if entry.suite and entry.suite.flagfile:
        checks.append(_on_flagfile(entry, target, folder, settings))
    worst: dict[str, Json] = {}
    for c in checks:
        kind = "model" if "output" in c["what"] else "site"
        if c["ok"] is None or not isinstance(c["error"], (int, float)):
            continue
        if kind not in worst or c["error"] / (c["allowed"] or 1) > worst[kind]["error"] / (worst[kind]["allowed"] or 1):
            worst[kind] = c
    limit = entry.tolerance
    bad = [c for c in checks if c["ok"] is False]
    if limit is not None:
        judged = [c for c in checks if c["ok"] is not None]
        bad += [c for c in judged if "output" in c["what"] and isinstance(c["error"], float) and c["error"] > limit]
    return {"checks": len(checks), "worst": worst, "bad": bad[:20], "notes": list(report.notes)}


def _on_given(folder: Path, target: Target) -> list[Json]:
    """The compiled module on the entry's own inputs against onnxruntime; and for sentences, that the two alike stay the nearest."""
    from onnx_fa.iree.run import load_module
    from onnx_fa.ort_session import ort_session
    from onnx_fa.verifier.verifier import MODEL_TOLERANCE

    with np.load(folder / "inputs.npz") as archive:
        arrays = {n: archive[n] for n in archive.files}
    (got,) = load_module(folder / "model.vmfb", target.device)(*arrays.values())
    wanted = [
        ort_session(_model(folder), optimise=optimise, exact=True).run(None, arrays)[0] for optimise in (True, False)
    ]
    error = max(float(np.max(np.abs(got - want)) / np.max(np.abs(want))) for want in wanted)
    allowed = MODEL_TOLERANCE["f32"]
    checks: list[Json] = [
        {"inputs": "sentences", "what": "IREE: output 0", "against": "original", "error": error, "allowed": allowed,
         "ok": error <= allowed, "note": ""}
    ]  # fmt: skip
    keep = arrays["attention_mask"][:, :, None].astype(np.float32)
    mean = (got * keep).sum(1) / keep.sum(1)
    unit = mean / np.linalg.norm(mean, axis=1, keepdims=True)
    near = int(np.argmax((unit @ unit.T)[0, 1:])) + 1
    checks.append(
        {"inputs": "sentences", "what": "nearest to the first", "against": "its paraphrase", "error": float(near != 1),
         "allowed": 0.0, "ok": near == 1, "note": f"sentence {near}"}
    )  # fmt: skip
    return checks


def _on_flagfile(entry: Entry, target: Target, folder: Path, settings: Json) -> Json:
    """Our module on the inputs of a suite's test, against the outputs that the suite expects."""
    flags, where = suite_steps.flags_of_file(entry)
    note = ""
    try:
        suite_steps.run_module(folder / "model.vmfb", [f"--device={target.device}", *flags], where, settings)
    except RunError as e:
        note = str(e)
    return {"inputs": flags[0].partition("=")[2], "what": "IREE: outputs", "against": "the suite's", "error": float(bool(note)),
            "allowed": 0.0, "ok": not note, "note": note}  # fmt: skip


def bench(entry: Entry, target: Target, folder: Path, settings: Json) -> Json:
    """onnx_fa against stock IREE and onnxruntime, interleaved; ratios per round. What the stock road made is timed among them."""
    from onnx_fa.benchmark.models import ORT, STOCK
    from onnx_fa.benchmark.models import bench as measure
    from onnx_fa.benchmark.plot import OURS

    result = measure(
        _model(folder),
        target,
        rounds=settings["rounds"],
        calls=settings["calls"],
        threads=settings["threads"],
        dims=runnable_sizes(_model(folder), dict(entry.dims)),
        stock_flags=(suite_steps.flags_for_any_device(entry),) if entry.suite else STOCK_FLAGS,
        compiled=folder / "model.vmfb",
        others={ROAD: folder / "stock.vmfb"} if "stock" in settings.get("uses", ()) else {},
        timeout_s=settings["timeout_s"] / 2,
        memory_bytes=6 << 30,
    )
    of: Json = {}
    for name, what in (("ours", OURS), ("stock", STOCK), ("ort", ORT), ("road", ROAD)):
        best = result.best(what)
        problem = next((c.problem for c in result.contestants if c.what == what and c.problem), "")
        if best is None:
            of[name] = {"ms": None, "problem": problem or "not run"}
            continue
        of[name] = {
            "ms": best.median_ms,
            "samples": [ms for _, ms in best.samples],
            "rounds": [median(ms for n, ms in best.samples if n == r) for r in sorted({n for n, _ in best.samples})],
            "peak_bytes": best.peak_bytes,
        }
    if of["ours"]["ms"] is None:
        raise OnnxFaError(f"cannot be timed: {of['ours']['problem']}")
    return of | {"ratios": {n: ratio(of["ours"], of[n]) for n in ("stock", "ort") if of[n]["ms"]}}


def ratio(ours: Json, other: Json) -> Json:
    """Our time over theirs, round by round (both are in every round): least, median, most."""
    each = [a / b for a, b in zip(ours["rounds"], other["rounds"], strict=False)]
    return {"low": min(each), "mid": median(each), "high": max(each)}


Step = Callable[[Entry, Target, Path, Json], Json]
STEPS: dict[str, Step] = {
    "export": export,
    "explain": explain,
    "rewrite": rewrite,
    "compile": compile_,
    "stock": stock,
    "iree-import": iree_import,
    "iree-compile": iree_compile,
    "iree-run": iree_run,
    "check": check,
    "verify": verify,
    "bench": bench,
}

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
