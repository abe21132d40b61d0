"""`onnx-fa tune`: the search over a list of cases, and the database that it writes."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path

from onnx_fa.errors import OnnxFaError, TargetError, UnsupportedError
from onnx_fa.files import check_writable, scratch_folder, write_whole
from onnx_fa.iree.drivers import Gpu, find_gpu
from onnx_fa.kernels.providers import emitters
from onnx_fa.kernels.tiles.database import (
    Database,
    Entry,
    database_name,
    package_path,
    parse,
    triton_database,
)
from onnx_fa.kernels.tiles.families import SiteFamily, family
from onnx_fa.kernels.triton.config import code_for
from onnx_fa.spec.processor import AVX2_LANES, AVX512_LANES
from onnx_fa.spec.site_case import ALL, SiteCase, find_case
from onnx_fa.spec.target import Target, parse_target
from onnx_fa.tuning.journal import Journal
from onnx_fa.tuning.search import Search, Settings, journal_head
from onnx_fa.tuning.spaces import body_of, has_space, space

TABLE_TAG, GPU_TAG = "tune", "tune_gpu"
"""Cases with this tag are tuned when none is named, on CPUs and on GPUs."""
QUIET = 0.1
"""A larger spread of an entry's samples says that the machine was not idle."""


def table_cases(names: Sequence[str], target: Target) -> list[SiteCase]:
    """The cases of those names, or all that are meant for tuning a target. Raises OnnxFaError for an unknown name."""
    tag = GPU_TAG if target.is_gpu else TABLE_TAG
    return [find_case(n) for n in names] or [c for c in ALL if tag in c.tags]


def check_runs_here(target: Target) -> Gpu | None:
    """The GPU that a target is measured on. Raises TargetError when this machine cannot run what is compiled for the target."""
    if target.is_gpu:
        return find_gpu(target.device)
    host = parse_target("cpu-host")
    widths = {"cpu-avx2": AVX2_LANES, "cpu-avx512": AVX512_LANES}
    wanted, have = database_name(target), database_name(host)
    if wanted != have and widths.get(wanted, 99) > widths.get(have, 0):
        raise TargetError(f"{target.name} cannot be measured here: this machine runs {have}")
    return None


def database_of(target: Target, body: str, gpu: Gpu | None) -> str:
    """Where a body's tiles are kept; Triton's by the code that the GPU runs. Raises TargetError where it runs none."""
    if body != "triton" or gpu is None:
        return database_name(target)
    arch = code_for(gpu.capability)
    if not arch:
        raise TargetError(f"{gpu.name}: Triton's kernels are for compute capability 8.0 and above")
    return triton_database(arch)


def _families(
    wanted: Sequence[SiteCase], target: Target, body: str, settings: Settings, gpu: Gpu | None
) -> tuple[dict[SiteFamily, SiteCase], list[str]]:
    """The first case of each family, and what is left out and why."""
    plan: dict[SiteFamily, SiteCase] = {}
    left_out = []
    for case in wanted:
        try:
            # Triton's tiles have a database of their own, so one run is for Triton's kernels alone, or for all others.
            tried = body if body == "triton" else "auto"
            if settings.body and not isinstance(case.spec, space(settings.body).kind):
                raise UnsupportedError(f"{settings.body} is the body of another kind of sites")
            own = body_of(case.spec, target, settings.body or tried)
            if not has_space(own):
                raise UnsupportedError(
                    f"its kernel is {own}, which has its tiles by a rule; --body vector tunes that of vectors"
                )
            key = family(space(own).seen(case.spec), own)
        except UnsupportedError as e:
            left_out.append(f"{case.name}: {e}" + "; try --kernels iree" * (body == "triton" and gpu is not None))
            continue
        if key in plan:
            left_out.append(f"{case.name}: of the same family as {plan[key].name}")
        plan.setdefault(key, case)
    return plan, left_out


def tune(
    wanted: Sequence[SiteCase],
    target: Target,
    out: Path | None = None,
    settings: Settings | None = None,
    *,
    fresh: bool = False,
    note: Callable[[str], None] = lambda message: None,
    advance: Callable[[int, int], None] = lambda done, of: None,
) -> tuple[Path, list[Entry], list[str]]:
    """Measures every case and puts the entries into the database `out` (the package's own for the target, if None), whole or
    not at all; entries of other families stay.

    Returns the path, the new entries, and what was left out and why. After an interruption the same call goes on where it
    stopped, unless `fresh`. Raises OnnxFaError.
    """
    settings = settings or Settings()
    gpu = check_runs_here(target)
    body = settings.body or next(iter(emitters(target)))
    name = database_of(target, body, gpu)
    path = out or package_path(name)
    check_writable(path)
    base = parse(path.read_text(), str(path)) if path.is_file() else Database(name)
    if base.target != name:
        raise OnnxFaError(f"{path}: a database of {base.target}, not of {name}")
    plan, left_out = _families(wanted, target, body, settings, gpu)
    if not plan:
        raise OnnxFaError(f"nothing to tune: {'; '.join(left_out)}")
    journal_path = path.with_name(f".{path.name}.journal")
    if fresh:
        journal_path.unlink(missing_ok=True)
    journal = Journal(journal_path, journal_head(target, settings))
    if journal.resumed:
        note(f"{journal.resumed} results of an interrupted run are used; --fresh measures them again")
    entries = []
    for n, case in enumerate(plan.values()):
        advance(n, len(plan))
        try:
            with scratch_folder() as folder:
                entries.append(Search(case, target, settings, folder, journal, note, gpu=gpu).run())
        except OnnxFaError as e:
            left_out.append(str(e))
    if not entries:
        raise OnnxFaError(f"nothing could be tuned: {'; '.join(left_out)}")
    advance(len(plan), len(plan))
    write_whole(path, dataclasses.replace(base.with_entries(tuple(entries))).to_json())
    journal_path.unlink()
    return path, entries, left_out
