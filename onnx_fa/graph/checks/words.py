"""What is said of things in a model that may not have a name, or not one that is text."""

from __future__ import annotations

from collections.abc import Iterable

import onnx

from onnx_fa.errors import ModelError


def node_label(node: onnx.NodeProto) -> str:
    return f"node {node.name or node.op_type!r}"


def check_text(what: str, *values: object) -> None:
    """Raises ModelError where a string of the file is not UTF-8: protobuf gives it as bytes then."""
    for value in values:
        if not isinstance(value, str):
            raise ModelError(f"{what}: {value!r} is not UTF-8 text; repair the export")


def check_metadata(what: str, entries: Iterable[onnx.StringStringEntryProto]) -> None:
    """Raises ModelError as `check_text` does."""
    for entry in entries:
        check_text(f"{what}: metadata", entry.key, entry.value)
