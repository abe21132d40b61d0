"""The shape of what an If makes: of the branch that its condition picks, or of both."""

from __future__ import annotations

import onnx
import pytest
from onnx import TensorProto as T
from onnx import helper as h

from onnx_fa.graph.dims import Shape
from tests.graph.test_symbolic import shape, view_of


def shape_of_if(condition: list[onnx.NodeProto], then: onnx.NodeProto, other: onnx.NodeProto) -> Shape | None:
    """The shape of what an If makes of x, [b, s, 1], where `condition` ends in a truth value."""
    branches = [
        h.make_graph([node], node.output[0], [], [h.make_tensor_value_info(node.output[0], T.FLOAT, None)])
        for node in (then, other)
    ]
    picks = h.make_node("If", [condition[-1].output[0]], ["y"], then_branch=branches[0], else_branch=branches[1])
    return shape(view_of([*condition, picks], ["b", "s", 1], first=0, second=1, last=[-1])[0], "y")


def dims_are_equal(a: str, b: str) -> list[onnx.NodeProto]:
    """Whether two dims of x are equal, as TorchScript writes it."""
    return [
        h.make_node("Shape", ["x"], ["dims"]),
        h.make_node("Gather", ["dims", a], ["a"]),
        h.make_node("Gather", ["dims", b], ["b"]),
        h.make_node("Equal", ["a", "b"], ["same"]),
        h.make_node("Cast", ["same"], ["c"], to=T.BOOL),
    ]


SHORTER = h.make_node("Squeeze", ["x", "last"], ["shorter"])
KEPT = h.make_node("Identity", ["x"], ["kept"])
SWAPPED = h.make_node("Transpose", ["x"], ["swapped"], perm=[2, 1, 0])


def test_an_equality_that_always_holds_picks_the_branch() -> None:
    same = dims_are_equal("second", "second")
    assert shape_of_if(same, SHORTER, KEPT) == ("b", "s")
    assert shape_of_if([*same, h.make_node("Not", ["c"], ["never"])], SHORTER, KEPT) == ("b", "s", 1)


@pytest.mark.parametrize(("number", "want"), [(1, ("b", "s")), (0, ("b", "s", 1)), (3, ("b", "s"))])
def test_a_number_as_a_condition(number: int, want: Shape) -> None:
    constant = h.make_node("Constant", [], ["number"], value_int=number)
    assert shape_of_if([constant, h.make_node("Cast", ["number"], ["c"], to=T.BOOL)], SHORTER, KEPT) == want


def test_a_constant_condition() -> None:
    constant = h.make_node("Constant", [], ["c"], value=h.make_tensor("", T.BOOL, [], [True]))
    assert shape_of_if([constant], SHORTER, KEPT) == ("b", "s")


def test_what_only_a_run_tells_leaves_what_both_branches_share() -> None:
    perhaps = dims_are_equal("first", "second")
    assert shape_of_if(perhaps, SHORTER, KEPT) is None
    assert shape_of_if(perhaps, SWAPPED, KEPT) == (None, "s", None)


def test_sizes_that_an_if_picks_are_followed() -> None:
    sizes = [h.make_node("Shape", ["x"], ["all"]), h.make_node("Identity", ["last"], ["flat"])]
    branches = [
        h.make_graph([node], node.output[0], [], [h.make_tensor_value_info(node.output[0], T.INT64, None)])
        for node in sizes
    ]
    condition = dims_are_equal("second", "second")
    nodes = [
        *condition,
        h.make_node("If", ["c"], ["to"], then_branch=branches[0], else_branch=branches[1]),
        h.make_node("Reshape", ["x", "to"], ["y"]),
    ]
    assert shape(view_of(nodes, ["b", "s", 1], second=1, last=[-1])[0], "y") == ("b", "s", 1)
