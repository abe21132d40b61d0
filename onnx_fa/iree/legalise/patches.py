"""Windows that lie side by side (stride = kernel, no padding) as rows of a product: how a ViT embeds its image. IREE's direct
convolution takes about eight times as long, and a product's constant weight is packed at compile time."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx

from onnx_fa.iree.legalise.writer import GraphWriter, attr_of
from onnx_fa.spec.terms import Dim


@dataclass(frozen=True)
class Patches:
    """An image (batch, channels, down * height, across * width), whose patches are `height` by `width`."""

    batch: Dim
    channels: int
    down: int
    across: int
    height: int
    width: int

    @property
    def rows(self) -> int:
        """Of an image."""
        return self.down * self.across

    @property
    def K(self) -> int:
        """Numbers of a patch."""
        return self.channels * self.height * self.width


def patches_of(g: GraphWriter, node: onnx.NodeProto, x: str, weight: tuple[int, ...]) -> Patches | None:
    """Those of a 2-D convolution of x with a weight of that shape (M, channels, height, width), if it has nothing else."""
    shape = g.shape(x)
    if shape is None or len(shape) != 4 or len(weight) != 4:
        return None
    kernel = list(weight[2:])
    plain = (
        attr_of(node, "strides", [1, 1]) == kernel
        and not any(attr_of(node, "pads", [0]))
        and attr_of(node, "auto_pad", b"NOTSET") in (b"NOTSET", b"VALID")
        and all(d == 1 for d in attr_of(node, "dilations", [1]))
        and attr_of(node, "group", 1) == 1
    )
    batch, channels, height, width = shape
    if not plain or not (isinstance(channels, int) and isinstance(height, int) and isinstance(width, int)):
        return None
    kh, kw = kernel
    if height % kh or width % kw or channels != weight[1]:
        return None
    return Patches("N" if batch is None else batch, channels, height // kh, width // kw, kh, kw)


def write_rows(g: GraphWriter, x: str, p: Patches, hint: str) -> str:
    """The image as (batch, rows, K)."""
    # Rows of patches before patches: one transposition of all six dims fails to compile where the batch is free.
    strips = g.reshape(x, [0, p.channels, p.down, p.height, p.across * p.width], hint)
    strips = g.add("Transpose", [strips], hint, perm=[0, 2, 1, 3, 4])
    each = g.reshape(strips, [0, p.down, p.channels * p.height, p.across, p.width], hint)
    rows = g.reshape(g.add("Transpose", [each], hint, perm=[0, 1, 3, 2, 4]), [0, p.rows, p.K], hint)
    g.types[rows] = (g.kind(x), [p.batch, p.rows, p.K])
    return rows


def write_image(g: GraphWriter, result: str, p: Patches, columns: int, hint: str, *, out: str | None = None) -> str:
    """(batch, rows, columns) as an image, channels first."""
    turned = g.add("Transpose", [result], hint, perm=[0, 2, 1])
    return g.reshape(turned, [0, columns, p.down, p.across], hint, out=out)


def patches(g: GraphWriter, node: onnx.NodeProto) -> bool:
    """A Conv of patches as one MatMul."""
    weight = g.array(node.input[1])
    found = None if weight is None else patches_of(g, node, node.input[0], weight.shape)
    if weight is None or found is None:
        return False
    hint, columns = node.name or "Conv", weight.shape[0]
    matrix = g.const(np.ascontiguousarray(weight.reshape(columns, -1).T), hint)
    result = g.add("MatMul", [write_rows(g, node.input[0], found, hint), matrix], hint)
    if len(node.input) > 2 and node.input[2]:
        result = g.add("Add", [result, node.input[2]], hint)
    write_image(g, result, found, columns, hint, out=node.output[0])
    return True
