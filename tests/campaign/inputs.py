"""What goes into a drawn graph, and what runs it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto as T
from onnx import helper as h
from onnx.reference import ReferenceEvaluator

from tests.support.ort_run import session

Array = np.ndarray[Any, np.dtype[Any]]
Inputs = dict[str, Array]


class Engine:
    """onnxruntime; ONNX's reference evaluator for bf16, of which onnxruntime has few kernels, and where the two differ."""

    def __init__(self, model: onnx.ModelProto, *, optimise: bool = False, by_definition: bool = False) -> None:
        self.by_definition = by_definition or has_bfloat16(model)
        # Of a bf16 some ops of the evaluator make a f32.
        self._kinds = [i.type.tensor_type.elem_type for i in model.graph.output] if self.by_definition else []
        if self.by_definition:
            self._run = ReferenceEvaluator(model).run
        else:
            # This step makes a float32 of a float64 next to a product (docs/developer/onnxruntime-bugs.md).
            without = ("MatMulScaleFusion",) if T.DOUBLE in kinds_at_edges(model) else ()
            self._session = partial(session, model, optimise=optimise, without=without)
            self._run = self._session().run

    def run(self, inputs: Inputs) -> list[Array]:
        with np.errstate(all="ignore"):
            try:
                made = self._run(None, inputs)
            except Exception as error:  # onnxruntime's exceptions share no base class
                # Of no keys, a sum has another shape than its buffer, which a later value gets: docs/developer/onnxruntime-bugs.md.
                if "attempting to re-use buffer" not in str(error) or all(x.size for x in inputs.values()):
                    raise
                made = self._session(reuse=False).run(None, inputs)
            results = [np.asarray(x) for x in made]
            for i, kind in enumerate(self._kinds):
                if kind == T.BFLOAT16 and results[i].dtype == np.float32:
                    results[i] = results[i].astype(h.tensor_dtype_to_np_dtype(kind))
        return results


def has_bfloat16(model: onnx.ModelProto) -> bool:
    """Inside, a cast there and back is no difficulty."""
    return T.BFLOAT16 in kinds_at_edges(model)


def kinds_at_edges(model: onnx.ModelProto) -> set[int]:
    """The element types of inputs, outputs and constants."""
    kinds = {i.type.tensor_type.elem_type for i in (*model.graph.input, *model.graph.output)}
    return kinds | {i.data_type for i in model.graph.initializer}


def _draw(info: onnx.ValueInfoProto, rng: np.random.Generator, *, large: bool, empty_rows: bool) -> Array:
    shape = [d.dim_value for d in info.type.tensor_type.shape.dim]
    kind, hint = info.type.tensor_type.elem_type, info.doc_string
    dtype = h.tensor_dtype_to_np_dtype(kind)
    if kind == T.BOOL:
        keep = rng.random(shape) < 0.7
        if keep.ndim and keep.size:
            keep[..., 0] = True
            if empty_rows:
                keep[0] = False
        return np.asarray(keep)
    if hint == "ids":
        few = rng.choice(np.asarray([0, 1, 2, 256, 257, 65537, -1, -255, 2**31 - 1, 3]), shape)
        return np.asarray(few if large or rng.random() < 0.6 else few % 3).astype(dtype)
    if hint == "length":
        return np.asarray(rng.integers(0 if empty_rows else 1, 8, shape)).astype(dtype)
    if dtype.kind in "iu":
        return np.asarray(rng.integers(0, 3, shape)).astype(dtype)
    x = np.asarray(rng.standard_normal(shape))
    if hint.startswith("mask "):
        x = np.where(rng.random(shape) < 0.3, float(hint.split()[1]), x)
        if x.ndim and x.size:
            x[..., 0] = 0
            if empty_rows:
                x[0] = float(hint.split()[1])
    elif large and info.name[0] in "qk":
        x = x * (30 if dtype.itemsize > 2 else 5)  # f16 and bf16 have few digits for a score of a thousand
    with np.errstate(over="ignore"):
        return x.astype(dtype)


def _sketched(model: onnx.ModelProto, seed: int = 0, *, large: bool = False, empty_rows: bool = False) -> Inputs:
    rng = np.random.default_rng(seed)
    return {i.name: _draw(i, rng, large=large, empty_rows=empty_rows) for i in model.graph.input}


class Feeds:
    """Inputs for a graph by their kinds: plain, large scores, rows without any key, a NaN or an infinity in Q, V or a mask."""

    def __init__(self, draw: Callable[..., Inputs] = _sketched) -> None:
        self.draw = draw

    def plain(self, model: onnx.ModelProto) -> Inputs:
        return self.draw(model, 1)

    def kinds(self, model: onnx.ModelProto, seed: int, *, changed: bool) -> dict[str, Inputs]:
        """By name. In a graph that was changed Q or V may be K as well, so that no NaN is put into it."""
        kinds = {
            "plain": self.draw(model, 1),
            "large": self.draw(model, seed, large=True),
            "empty rows": self.draw(model, seed, empty_rows=True),
        }
        quantised = any(n.domain or n.op_type in ("QuantizeLinear", "Attention") for n in model.graph.node)
        if changed or quantised:
            return kinds
        every = (np.nan, np.inf, -np.inf)
        poked = {"m": every, "q": every[:1], "v": every}
        for i, (name, value) in enumerate(kinds["plain"].items()):
            if value.dtype.kind == "f" and value.size and (name[0] in "qv" or name.startswith("mask")):
                bad = poked[name[0]][seed % len(poked[name[0]])]
                inputs = dict(kinds["plain"])
                inputs[name] = value.copy()
                inputs[name].reshape(-1)[(seed * 7 + i) % value.size] = bad
                kinds[f"{bad} in {name}"] = inputs
        return kinds

    def runs(self, model: onnx.ModelProto, fixed: onnx.ModelProto | None = None) -> bool:
        """Whether the model is valid and runs; its outputs then get the ranks that they turn out to have. `fixed` has the sizes of
        the inputs, where the model has symbols."""
        try:
            results = Engine(model).run(self.plain(fixed or model))
            for info, result in zip(model.graph.output, results, strict=True):
                kind = info.type.tensor_type.elem_type
                info.CopyFrom(
                    h.make_tensor_value_info(info.name, kind, [f"{info.name}_{i}" for i in range(result.ndim)])
                )
            onnx.checker.check_model(model)
        except Exception:  # every engine raises kinds of its own; such a graph asks nothing of the rewrite
            return False
        return True


feeds_of = Feeds()
