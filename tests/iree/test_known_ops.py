"""What is refused before iree-compile starts: every operator that it does not know, and no other."""

from __future__ import annotations

import mmap
from pathlib import Path

import iree.compiler
import onnx
import pytest
from onnx import helper as h

from onnx_fa.errors import ModelError
from onnx_fa.iree.known_ops import KNOWN_CONTRIB, UNKNOWN, check_known


def graph(*nodes: onnx.NodeProto) -> onnx.GraphProto:
    return h.make_graph(nodes, "g", [], [])


def node(op: str, name: str, domain: str = "") -> onnx.NodeProto:
    return h.make_node(op, ["x"], [f"{name}_y"], name=name, domain=domain)


def test_all_of_them_are_named() -> None:
    branch = h.make_node("If", ["c"], ["z"], name="if", then_branch=graph(node("QMoE", "inside", "com.microsoft")))
    nodes = [node("Relu", "fine"), *(node("BifurcationDetector", f"b{i}", "com.microsoft") for i in range(4))]
    with pytest.raises(ModelError) as caught:
        check_known(graph(*nodes, node("CumProd", "c"), node("Foo", "f", "acme"), branch), ())
    told = str(caught.value)
    assert told.startswith("7 nodes cannot be compiled: ")
    assert (
        "BifurcationDetector of com.microsoft is unknown to IREE, and not written out for it (node 'b0', 'b1' and 2 more)"
        in told
    )
    assert "CumProd is unknown to IREE (node 'c')" in told and "'fine'" not in told
    assert (
        "operator Foo of domain 'acme' has no definition" in told
        and "QMoE of com.microsoft" in told
        and "'inside'" in told
    )


def test_one_is_a_plain_sentence() -> None:
    with pytest.raises(
        ModelError, match=r"^node 'a': GroupQueryAttention of com.microsoft could not be written in standard"
    ):
        check_known(graph(node("GroupQueryAttention", "a", "com.microsoft")), ())


def test_a_layout_of_onnxruntimes_is_one_line() -> None:
    nodes = [node(op, f"n{i}", "com.microsoft.nchwc") for i, op in enumerate(("Conv", "MaxPool", "ReorderOutput"))]
    with pytest.raises(ModelError, match=r"^node 'n0', 'n1' and 1 more: what onnxruntime .* \(ORT_ENABLE_EXTENDED\)$"):
        check_known(graph(*nodes), ())


def test_sites_are_known_by_their_names() -> None:
    site = node("AttentionSite", "here", "onnx_fa")
    check_known(graph(site), ["here"])
    with pytest.raises(ModelError, match="'here'"):
        check_known(graph(site), ["there"])


def test_the_lists_are_those_of_the_installed_compiler() -> None:
    (path,) = (Path(iree.compiler.__file__).parent / "_mlir_libs").glob("libIREECompiler*")
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as library:
        known = {name for name in (*KNOWN_CONTRIB, *UNKNOWN) if library.find(b"\0" + name.encode() + b"\0") >= 0}
    assert known == KNOWN_CONTRIB


def test_a_name_that_onnx_does_not_have() -> None:
    """As tf2onnx writes what it has no name for."""
    with pytest.raises(
        ModelError, match="'gelu/Erfc': Erfc is no operator of ONNX, and no model-local function either"
    ):
        check_known(graph(node("Erfc", "gelu/Erfc")), ())
