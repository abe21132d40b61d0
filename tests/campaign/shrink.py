"""The smallest graph that still breaks the same promise: `python -m tests.campaign --only SEED --shrink`."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Iterator
from dataclasses import replace

import onnx
from onnx import helper as h

from onnx_fa.iree.legalise.writer import all_nodes

from .check import Outcome, check
from .draw import Drawn
from .mutations import _known, _readers

Try = Callable[[onnx.ModelProto], bool]


def outcome_of(drawn: Drawn, seed: int) -> Outcome:
    """`check` in a process of its own: a crash is the verdict "crash"."""
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        with os.fdopen(writer, "wb") as file:
            steps: list[str] = []
            outcome = check(drawn, seed, steps.append)
            pickle.dump(outcome, file)
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as file:
        data = file.read()
    os.waitpid(child, 0)
    return pickle.loads(data) if data else Outcome("crash")


def shrink(drawn: Drawn, seed: int) -> Drawn:
    """Takes out nodes, outputs and constants for as long as the verdict stays what it was."""
    verdict = outcome_of(drawn, seed).verdict

    def remade(model: onnx.ModelProto) -> Drawn:
        # A graph that has been changed is compared with fewer inputs, which is right for some faults only.
        return replace(drawn, model=model, fixed=model)

    def fails(model: onnx.ModelProto) -> bool:
        return outcome_of(remade(model), seed).verdict == verdict

    model = drawn.fixed
    if not fails(model):
        return drawn
    smaller = True
    while smaller:
        smaller = False
        for candidate in _candidates(model):
            if len(candidate.SerializeToString()) < len(model.SerializeToString()) and fails(candidate):
                model, smaller = candidate, True
                break
    return remade(model)


def _copied(model: onnx.ModelProto) -> onnx.ModelProto:
    made = onnx.ModelProto()
    made.CopyFrom(model)
    return made


def _swept(model: onnx.ModelProto) -> onnx.ModelProto:
    """Without the nodes, constants and inputs that nobody reads."""
    graph = model.graph
    while True:
        read = {o.name for o in graph.output} | {x for n in all_nodes(graph) for x in n.input}
        dead = [n for n in graph.node if not read & set(n.output)]
        if not dead:
            break
        for node in dead:
            graph.node.remove(node)
    for items in (graph.initializer, graph.input):
        for item in [i for i in items if i.name not in read]:
            items.remove(item)
    ops = {(n.domain, n.op_type) for n in all_nodes(graph)}
    for function in [f for f in model.functions if (f.domain, f.name) not in ops]:
        model.functions.remove(function)
    return model


def _candidates(model: onnx.ModelProto) -> Iterator[onnx.ModelProto]:
    """Smaller graphs: an output less; a value that becomes an input; a node that is left out."""
    for i in range(len(model.graph.output)):
        if len(model.graph.output) > 1:
            made = _copied(model)
            del made.graph.output[i]
            yield _swept(made)
    known = _known(model)
    outputs = {o.name for o in model.graph.output}
    for i, node in enumerate(model.graph.node):
        for out in node.output:
            for x in node.input:
                if x and known.get(x) == known.get(out):
                    made = _copied(model)
                    del made.graph.node[i]
                    for reader, at in _readers(made):
                        if reader.input[at] == out:
                            reader.input[at] = x
                    if out in outputs:
                        made.graph.node.append(h.make_node("Identity", [x], [out], name="last"))
                    yield _swept(made)
    for i, node in enumerate(model.graph.node):
        kind, shape = known.get(node.output[0], (0, None)) if node.output else (0, None)
        if kind and shape is not None and node.output[0] not in outputs and len(node.output) == 1:
            made = _copied(model)
            del made.graph.node[i]
            made.graph.input.append(h.make_tensor_value_info(node.output[0], kind, list(shape)))
            yield _swept(made)
