"""Runs the node tests of the onnx package, of every operator, compiled for this CPU, and writes docs/results/operators.md.

    python scripts/operator_tests.py [--only TEXT] [--free | --branch] [--jobs N] [--journal FILE] [--again] [-o PAGE]

What surrounds attention in a model is compiled as well, and a compiler that computes an operator wrongly says nothing. Tests of
other domains are left out, those whose inputs or outputs are no tensors of numbers, and those that spell out an operator's body.
`--free`: the sizes of what is no weight are names, equal sizes one name, as in models that take any batch and length;
those of Attention are left out. The module runs on other sizes too, 0 and 1 among them, wherever onnxruntime runs. `--branch`: the
operator stands in a branch of an If that only a run chooses.
The journal keeps what came of each test until it is deleted (`--again`: only while a test passed). Exits with 1 where a result
differs.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper
from onnx.reference import ReferenceEvaluator

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from onnx_fa.errors import CompileError, ModelError  # noqa: E402
from onnx_fa.graph.ops import STANDARD, op_of  # noqa: E402
from onnx_fa.iree.compile import compile_model  # noqa: E402
from onnx_fa.iree.run import load_module  # noqa: E402
from onnx_fa.ort_session import ort_session  # noqa: E402
from onnx_fa.tables import markdown_table  # noqa: E402
from tests.support.branches import TAKEN, in_branch  # noqa: E402
from tests.support.node_cases import NodeCase  # noqa: E402
from tests.support.other_sizes import draw_sizes, resized, sizes_of  # noqa: E402

HEAD = """# {title}

Written by `python scripts/operator_tests.py{option}`: {count} node tests of onnx {onnx}, of {operators} operators, compiled for a
CPU and run on the tests' inputs ({sizes}), within the tolerances of onnx's
own test runner; random numbers are not compared. *pass*: all results are as the test has them. *onnxruntime*: they are what
onnxruntime gives, which the test does not have. *rounding*: all are off by less than four units in the last place of the largest
number, where the test holds small ones to less. *differs*: they are none of that. *bug*: onnx_fa ended without a line that says
why. *refused*: onnx_fa says what it does not take, before anything is compiled. *compiler*: iree-compile failed. *run*: the module
does not run, or does not take the inputs.

**{passed} pass, {differs} differ.**

"""
CONSTANTS = "sizes, axes and the like are constants, as exporters write them"
SIZES = {
    "": {"title": "Operators", "option": "", "sizes": CONSTANTS},
    "free": {
        "title": "Operators of free sizes",
        "option": " --free",
        "sizes": f"{CONSTANTS}; all sizes above 1 of inputs that are no layer's weights are names, equal ones one name",
    },
    "branch": {
        "title": "Operators in branches",
        "option": " --branch",
        "sizes": f"{CONSTANTS}; the operator stands in a branch of an If that the run takes, beside one that makes zeros",
    },
}
"""The words of the page, for operators as they are, of free sizes, and in branches."""
KINDS = ("pass", "onnxruntime", "rounding", "differs", "bug", "refused", "compiler", "run")
_RANDOM = ("Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike")
_HELD = frozenset(
    "axes axis starts ends steps shape repeats pads K k sizes scales roi split depth output_shape dft_length frame_length "
    "frame_step image_shape block_shape trilu_k max_output_boxes_per_class iou_threshold score_threshold size training_mode".split()
)
"""Names that ONNX gives to inputs which models have as constants."""
_WEIGHTS = frozenset(
    "W R B P w bias scale mean var input_mean input_var w_scale w_zero_point y_scale y_zero_point x_scale x_zero_point a_scale "
    "a_zero_point b_scale b_zero_point weight slope".split()
)
"""Names that ONNX gives to inputs which are weights of layers, and numbers beside them."""
_SECONDS, _BYTES = 120, 6 << 30
_LENGTH = 160
_NOT_OF_NONE = frozenset(
    "ArgMax ArgMin ConvTranspose GRU LSTM NegativeLogLikelihoodLoss RNN SoftmaxCrossEntropyLoss".split()
)
"""Operators that end onnxruntime's process where there are no elements, or whose results then mean nothing."""
_STOPS = ("to be of one size, and they are not", "and the module takes", "rows or more; it has fewer")
"""What a module says that would broadcast what is 1 in a run alone, beside another size or a number, or that needs more rows."""


@cache
def cases() -> dict[str, NodeCase]:
    """All tests by name, without the prefix "test_"."""
    from onnx.backend.test.case import node

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        np.seterr(all="ignore")
        made = node.collect_testcases(None)  # type: ignore[arg-type]
    found = {}
    for case in made:
        (inputs, outputs), *_ = case.data_sets
        arrays = [x for x in (*inputs, *outputs) if isinstance(x, np.ndarray | np.generic)]
        plain = len(arrays) == len(inputs) + len(outputs) and all(np.asarray(x).dtype.kind in "biufV" for x in arrays)
        standard = all(opset.domain in STANDARD for opset in case.model.opset_import)
        drawn = any(op_of(node) in _RANDOM for node in case.model.graph.node)
        if "_expanded" in case.name or not plain or not standard or drawn or len(case.data_sets) > 1:
            continue
        names = [i.name for i in case.model.graph.input]
        feeds = {n: np.asarray(x) for n, x in zip(names, inputs, strict=True)}
        name = case.name.removeprefix("test_")
        model = _hold(case.model, feeds)
        found[name] = NodeCase(name, model, feeds, tuple(map(np.asarray, outputs)), case.rtol, case.atol)
    return found


def _hold(model: onnx.ModelProto, feeds: dict[str, Any]) -> onnx.ModelProto:
    """The model with constants in the place of the inputs that say sizes and places, as exporters write them; taken of `feeds`."""
    (node, *more) = model.graph.node
    try:
        formal = onnx.defs.get_schema(node.op_type, node.domain).inputs
    except onnx.defs.SchemaError:
        formal = []
    held = {given for given, f in zip(node.input, formal, strict=False) if f.name in _HELD and given in feeds}
    if more or not held:
        return model
    made = onnx.ModelProto()
    made.CopyFrom(model)
    made.graph.initializer.extend(numpy_helper.from_array(feeds.pop(name), name) for name in sorted(held))
    left = [i for i in made.graph.input if i.name not in held]
    del made.graph.input[:]
    made.graph.input.extend(left)
    return made


def freed(case: NodeCase) -> NodeCase:
    """The test with names for the sizes above 1 of its inputs, but of those that are a layer's weights, which are constants."""
    model = onnx.ModelProto()
    model.CopyFrom(case.model)
    feeds, (node, *more) = dict(case.inputs), model.graph.node
    formal = [] if more else onnx.defs.get_schema(node.op_type, node.domain).inputs
    for given, f in zip(node.input, formal, strict=False):
        if f.name in _WEIGHTS and given in feeds and given != node.input[0]:
            model.graph.initializer.append(numpy_helper.from_array(feeds.pop(given), given))
    left = [i for i in model.graph.input if i.name in feeds]
    del model.graph.input[:]
    model.graph.input.extend(left)
    for info in model.graph.input:
        for dim in info.type.tensor_type.shape.dim:
            if dim.dim_value > 1:
                dim.dim_param = f"n{dim.dim_value}"
    for info in model.graph.output:
        for place, dim in enumerate(info.type.tensor_type.shape.dim):
            dim.dim_param = f"{info.name}_{place}"
    del model.graph.value_info[:]
    return replace(case, model=model, inputs=feeds)


def branched(case: NodeCase) -> NodeCase:
    """The test in a branch of an If, which is taken."""
    return replace(case, model=in_branch(case.model, case.want), inputs={TAKEN: np.array(True), **case.inputs})


FORMS = {"": lambda case: case, "free": freed, "branch": branched}


def _attends(case: NodeCase) -> bool:
    """An attention's head dim is a number in every model; its lengths are tried free elsewhere."""
    return any(op_of(node) == "Attention" for node in case.model.graph.node)


def outcome(name: str, form: str = "") -> tuple[str, str]:
    """One of KINDS and the reason."""
    case = FORMS[form](cases()[name])
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "m.vmfb"
        try:
            compile_model(case.model, out, timeout_s=_SECONDS, memory_bytes=_BYTES)
        except ModelError as e:
            return "refused", _line(e)
        except CompileError as e:
            return "compiler", _line(e)
        except Exception as e:  # no line for the user: a bug of ours
            return "bug", _line(e)
        try:
            module = load_module(out)
            results = module(*case.inputs.values())
        except Exception as e:  # whatever ends the run is its outcome
            return "run", _line(e)
        if form == "free" and (said := _with_other_sizes(case, module)):
            return said
    try:
        have = [_as(x, want.dtype) for x, want in zip(results, case.want, strict=True)]
    except ValueError as e:  # more results than the test has, or fewer
        return "differs", _line(e)
    try:
        case.check(have)
    except AssertionError as e:
        if _is_onnxruntimes(case, have):
            return "onnxruntime", _line(e)
        return "rounding" if _is_rounded(case, have) else "differs", _line(e)
    return "pass", ""


def _with_other_sizes(case: NodeCase, module: Callable[..., list[Any]]) -> tuple[str, str] | None:
    """What comes of sizes on which onnxruntime runs and the module gives other numbers, or none but for a size that it compares."""
    try:
        session = ort_session(case.model, optimise=False)
    except Exception:  # it does not know the operator, or the opset
        return None
    only_some = any(op_of(node) in _NOT_OF_NONE for node in case.model.graph.node)
    for sizes in draw_sizes(sizes_of(case.model, case.inputs)):
        if only_some and 0 in sizes.values():
            continue
        feeds = resized(case.model, case.inputs, sizes)
        try:
            want = session.run(None, feeds)
        except Exception:  # these sizes do not fit
            continue
        try:
            have = [_as(x, w.dtype) for x, w in zip(module(*feeds.values()), want, strict=True)]
        except Exception as e:  # whatever ends the run is its outcome
            if any(words in str(e) for words in _STOPS):
                continue
            return "run", f"with {sizes}: {_line(e)}"
        if not _are_close(have, want, case) and not _is_references(case, feeds, have):
            shapes = " and ".join(f"{x.shape} beside {w.shape}" for x, w in zip(have, want, strict=True))
            return "differs", f"with {sizes}: {shapes}"
    return None


def _are_close(have: Sequence[Any], want: Sequence[Any], case: NodeCase) -> bool:
    return all(
        x.shape == w.shape and np.allclose(x, w, case.rtol, max(case.atol, 1e-6), equal_nan=True)
        for x, w in zip(have, want, strict=True)
    )


def _is_references(case: NodeCase, feeds: dict[str, Any], have: Sequence[Any]) -> bool:
    """Whether onnx's own evaluator gives these: onnxruntime's results of no elements are not always as ONNX says."""
    try:
        return _are_close(have, ReferenceEvaluator(case.model).run(None, feeds), case)
    except Exception:  # it takes no such sizes
        return False


def _is_rounded(case: NodeCase, have: list[Any]) -> bool:
    """Whether floats are off by less than four units in the last place of the largest number, and all else is the test's."""

    def near(a: Any, b: Any) -> bool:
        if a.shape != b.shape or a.dtype.kind != "f" or not (np.isfinite(a).all() and np.isfinite(b).all()):
            return np.array_equal(a, b)
        return bool(np.abs(a - b).max(initial=0) < 4 * np.spacing(np.abs(b).max(initial=0)))

    return all(near(a, b) for a, b in zip(have, case.want, strict=True))


def _is_onnxruntimes(case: NodeCase, have: list[Any]) -> bool:
    try:
        theirs = ort_session(case.model, optimise=False).run(None, case.inputs)
    except Exception:  # it does not know the operator, or the opset
        return False
    return all(np.allclose(a, b, case.rtol, case.atol, equal_nan=True) for a, b in zip(theirs, have, strict=True))


def _as(result: Any, dtype: np.dtype[Any]) -> Any:
    """The runtime gives unsigned integers and bfloat16 as signed ones of the same bytes."""
    same_bytes = result.dtype != dtype and result.dtype.itemsize == dtype.itemsize
    return result.view(dtype) if same_bytes else result


def _line(error: BaseException) -> str:
    words = " ".join(str(error).split()).partition("; command and messages")[0]
    return words[:_LENGTH] or type(error).__name__


def run_all(names: list[str], jobs: int, form: str) -> Iterator[tuple[str, str, str]]:
    """Name, kind and reason of each; where a test ends its process, those that are left have one each."""
    left = set(names)
    with ProcessPoolExecutor(jobs) as pool:
        waiting = {pool.submit(outcome, name, form): name for name in names}
        with contextlib.suppress(BrokenProcessPool):
            for future in as_completed(waiting):
                error = future.exception()
                if isinstance(error, BrokenProcessPool):
                    raise error
                yield waiting[future], *(future.result() if error is None else ("bug", _line(error)))
                left.remove(waiting[future])
    for name in sorted(left):
        with ProcessPoolExecutor(1) as alone:
            try:
                yield name, *alone.submit(outcome, name, form).result()
            except BrokenProcessPool:
                yield name, "run", "the process was ended"


def page(rows: dict[str, dict[str, Any]], form: str) -> str:
    """The counts of each operator that does not pass all of its tests, and every result that differs."""
    by_operator: dict[str, Counter[str]] = {}
    for row in rows.values():
        by_operator.setdefault(row["operator"], Counter())[row["kind"]] += 1
    head = HEAD.format(
        **SIZES[form],
        count=len(rows),
        onnx=version("onnx"),
        operators=len(by_operator),
        passed=sum(r["kind"] == "pass" for r in rows.values()),
        differs=sum(r["kind"] == "differs" for r in rows.values()),
    )
    counts = [[name, *(c[kind] for kind in KINDS)] for name, c in sorted(by_operator.items()) if set(c) != {"pass"}]
    whole = [name for name, c in sorted(by_operator.items()) if set(c) == {"pass"}]
    table = markdown_table(["operator", *KINDS], counts)
    reasons = [
        [name, row["kind"], row["reason"].replace("|", "/")]
        for name, row in sorted(rows.items())
        if row["kind"] != "pass"
    ]
    return (
        f"{head}All tests pass of {', '.join(whole)}.\n\n{table}\n\n## What does not pass\n\n"
        + markdown_table(["test", "outcome", "reason"], reasons)
        + "\n"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="only tests with this in their names")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--free", dest="form", action="store_const", const="free", help="with names for sizes")
    form.add_argument("--branch", dest="form", action="store_const", const="branch", help="in a branch of an If")
    parser.set_defaults(form="")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--journal", type=Path, default=Path("operator-tests.jsonl"))
    parser.add_argument("--again", action="store_true", help="also what is in the journal and did not pass")
    parser.add_argument("-o", "--output", type=Path)
    args = parser.parse_args()
    lines = args.journal.read_text().splitlines() if args.journal.exists() else []
    done = {row["name"]: row for row in map(json.loads, lines)}
    wanted = [n for n in sorted(cases()) if args.only in n and not (args.form and _attends(cases()[n]))]
    todo = [n for n in wanted if n not in done or (args.again and done[n]["kind"] != "pass")]
    for name, kind, reason in run_all(todo, args.jobs, args.form):
        row = {"name": name, "operator": op_of(cases()[name].model.graph.node[-1]), "kind": kind, "reason": reason}
        done[name] = row
        with args.journal.open("a") as out:
            out.write(json.dumps(row) + "\n")
        if kind != "pass":
            print(f"{name}  {kind}  {reason}", flush=True)
    rows = {name: done[name] for name in wanted if name in done}
    print(Counter(row["kind"] for row in rows.values()))
    if args.output:
        args.output.write_text(page(rows, args.form))
    return int(any(row["kind"] == "differs" for row in rows.values()))


if __name__ == "__main__":
    sys.exit(main())
