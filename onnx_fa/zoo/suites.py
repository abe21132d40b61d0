"""Configs of iree-test-suites: which tests there are, the flags of stock IREE, and which of them it is expected to fail."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

from onnx_fa.errors import OnnxFaError
from onnx_fa.zoo.entries import Entry, Outcome, Suite
from onnx_fa.zoo.jsonc import read_jsonc
from onnx_fa.zoo.lists import check_name, missing, of_file
from onnx_fa.zoo.places import find_model
from onnx_fa.zoo.stages import ALL_STEPS, RUNNING

FLAGFILE = "run_module_io_flags.txt"
OUTCOMES = "tests_and_expected_outcomes"
REQUIRED = ("config_name", "iree_compile_flags", "iree_run_module_flags")
SKIPS = ("skip_compile_tests", "skip_run_tests")
FAILURES = ("expected_compile_failures", "expected_run_failures")


def read_config(path: Path, models: Path | None) -> list[Entry]:
    """The tests of a config, in the order of their names; `models` is the folder that their names are relative to.

    A config of `onnx_ops` names folders with a flagfile, one of `onnx_models` tests with their outcomes. Raises OnnxFaError for a
    key that is missing or unknown, for a value of another type, and where there is no test.
    """
    config = _checked(path, read_jsonc(path))
    if models is None:
        raise OnnxFaError(f"{path}: names tests; --models DIR says where they are")
    for key in (*SKIPS, *FAILURES, OUTCOMES):
        for name in config.get(key, ()):
            check_name(f"{path}: {key}", name.split("::")[0])
    entries = _of_models(config, models) if OUTCOMES in config else _of_ops(config, models)
    if not entries:
        what = "no test with an outcome other than skip" if OUTCOMES in config else f"no {FLAGFILE} under {models}"
        raise OnnxFaError(f"{path}: {what}")
    return [_with_skips(e, config) for e in sorted(entries, key=lambda e: e.name)]


def _checked(path: Path, config: Any) -> dict[str, Any]:
    if not isinstance(config, dict):
        raise OnnxFaError(f"{path}: not a config of iree-test-suites: it is no object")
    if lacking := [k for k in REQUIRED if k not in config]:
        raise OnnxFaError(f"{path}: not a config of iree-test-suites: it has no {lacking[0]!r}")
    lists = (*REQUIRED[1:], *SKIPS, *(() if OUTCOMES in config else FAILURES))
    known = (REQUIRED[0], *lists, *((OUTCOMES,) if OUTCOMES in config else ()))
    if unknown := [k for k in config if k not in known]:
        raise OnnxFaError(f"{path}: unknown key {unknown[0]!r}; such a config has {', '.join(known)}")
    if not isinstance(config[REQUIRED[0]], str):
        raise OnnxFaError(f"{path}: {REQUIRED[0]!r} is no string")
    for key in lists:
        value = config.get(key, [])
        if not isinstance(value, list) or not all(isinstance(x, str) for x in value):
            raise OnnxFaError(f"{path}: {key!r} is no list of strings")
    outcomes = config.get(OUTCOMES, {})
    if not isinstance(outcomes, dict):
        raise OnnxFaError(f"{path}: {OUTCOMES!r} is no object")
    for name, outcome in outcomes.items():
        if outcome not in ("skip", *get_args(Outcome)):
            allowed = ", ".join(("skip", *get_args(Outcome)))
            raise OnnxFaError(f"{path}: the outcome {outcome!r} of {name!r} is none of {allowed}")
    return config


def _suite(config: Mapping[str, Any], outcome: Outcome, flagfile: str = "") -> Suite:
    compile_flags, run_flags = (tuple(config[k]) for k in REQUIRED[1:])
    return Suite(config["config_name"], compile_flags, run_flags, outcome, flagfile)


def _of_ops(config: Mapping[str, Any], models: Path) -> list[Entry]:
    """Each folder with a flagfile, and each name of the config without one, which is missing."""
    entries = {}
    for flagfile in sorted(models.rglob(FLAGFILE)):
        name = flagfile.parent.relative_to(models).as_posix()
        entries[name] = _of_folder(name, models)
    for key in (*SKIPS, *FAILURES):
        for name in config.get(key, ()):
            entries.setdefault(name, missing(name, f"no {name}/{FLAGFILE} under {models}"))
    compiling, running = (set(config.get(k, ())) for k in FAILURES)
    made = []
    for name, entry in entries.items():
        # What fails to compile is not run: as in the suite, that comes first.
        outcome: Outcome = "fail-run" if name in running else "pass"
        if name in compiling:
            outcome = "fail-compile"
        made.append(replace(entry, suite=_suite(config, outcome, f"{name}/{FLAGFILE}")))
    return made


def _of_folder(name: str, models: Path) -> Entry:
    """The test's ONNX file where there is one, for our road needs it, else its MLIR, which the suite has for all."""
    folder = models / name
    for pattern in ("*.onnx", "*.mlir*"):
        found = sorted(p for p in folder.glob(pattern) if p.is_file())
        if len(found) == 1:
            return of_file(name, found[0].relative_to(models).as_posix(), models)
        if found:
            return missing(name, f"{len(found)} files {pattern} in {folder}, not one")
    return missing(name, f"neither an ONNX nor an MLIR file in {folder}")


def _of_models(config: Mapping[str, Any], models: Path) -> list[Entry]:
    """Each test with an outcome; where tests without one are not skipped, also every other ONNX file."""
    outcomes = dict(config[OUTCOMES])
    default = outcomes.pop("default", "skip")
    files = sorted(p.relative_to(models).as_posix() for p in models.rglob("*.onnx") if p.is_file())
    entries = []
    for name, outcome in outcomes.items():
        entry = _of_test(name, models, files)
        if outcome == "skip":
            entries.append(_skipped(entry, ALL_STEPS, f"skipped by {config['config_name']}"))
        else:
            entries.append(replace(entry, suite=_suite(config, outcome)))
    if default != "skip":
        named = {e.of for e in entries}
        entries += [
            replace(of_file(f, f, models), suite=_suite(config, default))
            for f in files
            if f not in named | set(outcomes)
        ]
    return entries if any(e.suite for e in entries) else []


def _of_test(test: str, models: Path, files: list[str]) -> Entry:
    """The model of a test such as `tests/model_zoo/vision/some_models_test.py::test_models[mnist/model/mnist-12.onnx]`: the file of
    its parameter, or of its name, anywhere under the folder. Of several, the one in a folder that the test's file names."""
    where, _, function = test.partition("::")
    found = re.fullmatch(r"(\w+)\[(.*)\]", function)
    wanted = found[2] if found else function.removeprefix("test_")
    if not wanted or wanted.startswith("/") or ".." in wanted.split("/"):
        return missing(test, f"{test!r} names no model under {models}")
    ending = wanted if wanted.endswith(".onnx") else f"{wanted}.onnx"
    fitting = [f for f in files if f"/{f}".endswith(f"/{ending}")]
    if len(fitting) > 1:
        folder = re.sub(r"^(tests/)?(model_zoo/)?", "", re.sub(r"(_models)?_test\.py$", "", where))
        fitting = [f for f in fitting if f"/{folder}/" in f"/{f}"]
        if len(fitting) != 1:
            return missing(test, f"several files {ending} under {models}, and not one in {folder}")
    if fitting:
        return of_file(test, fitting[0], models)
    place = find_model(models, (wanted,))
    return of_file(test, place.path, models) if place.path else missing(test, place.why)


def _with_skips(entry: Entry, config: Mapping[str, Any]) -> Entry:
    for key, steps in zip(SKIPS, (ALL_STEPS, RUNNING), strict=True):
        if entry.name in config.get(key, ()):
            return _skipped(entry, steps, f"skipped by {config['config_name']} ({key})")
    return entry


def _skipped(entry: Entry, steps: tuple[str, ...], why: str) -> Entry:
    return replace(entry, skip=tuple((step, why) for step in steps))
