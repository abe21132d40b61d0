"""Images as rows: a value (batch, channels, height, width) as (batch, height * width, channels), in which a convolution of one tap
is a product and needs no transposes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import onnx
from onnx import TensorProto

from onnx_fa.iree.legalise.writer import GraphWriter
from onnx_fa.spec.terms import Dim


@dataclass(frozen=True)
class Image:
    """The shape of a value whose channels come first, of which only the batch may be unknown."""

    batch: Dim | None
    channels: int
    height: int
    width: int

    @property
    def places(self) -> int:
        return self.height * self.width

    @property
    def numbers(self) -> int:
        """Of an image; what turning it moves. An image of one place lies the same in both orders."""
        return self.channels * self.places if self.places > 1 and self.channels > 1 else 0

    @property
    def rows(self) -> list[Dim | None]:
        """Its shape as rows."""
        return [self.batch, self.places, self.channels]


@dataclass
class RowsWriter:
    """A graph in which some images are written as rows. `images` are the shapes of all values that are images, `rows` the names of
    those that are there as rows; `absent` are those that are there as rows alone."""

    g: GraphWriter
    images: dict[str, Image]
    rows: dict[str, str] = field(default_factory=dict)
    absent: set[str] = field(default_factory=set)
    joined: dict[tuple[str, ...], str] = field(default_factory=dict)
    """Images, by those whose channels they have behind each other."""

    def read(self, x: str, hint: str) -> str:
        """An image as rows: (batch, places, channels)."""
        if x not in self.rows:
            image = self.images[x]
            if image.numbers:
                flat = self._typed_image(
                    self.g.reshape(x, [0, image.channels, image.places], hint),
                    [image.batch, image.channels, image.places],
                )
                made = self.g.add("Transpose", [flat], hint, perm=[0, 2, 1])
            else:
                made = self.g.reshape(x, [0, image.places, image.channels], hint)
            self.rows[x] = self._typed_image(made, image.rows)
        return self.rows[x]

    def read_plane(self, x: str, hint: str) -> str:
        """An image as (batch, height, width, channels)."""
        image = self.images[x]
        made = self.g.reshape(self.read(x, hint), [0, image.height, image.width, image.channels], hint)
        return self._typed_image(made, [image.batch, image.height, image.width, image.channels])

    def give(self, y: str, rows: str) -> None:
        """Says that an image has been made as rows."""
        self.rows[y] = self._typed_image(rows, self.images[y].rows)
        self.absent.add(y)

    def give_plane(self, y: str, plane: str, hint: str) -> None:
        """Says that an image has been made as (batch, height, width, channels)."""
        image = self.images[y]
        self._typed_image(plane, [image.batch, image.height, image.width, image.channels])
        self.give(y, self.g.reshape(plane, [0, image.places, image.channels], hint))

    def need(self, x: str) -> None:
        """Writes an image with channels first where it is there as rows alone: something else reads it."""
        if x not in self.absent:
            return
        self.absent.remove(x)
        image, rows, g = self.images[x], self.rows[x], self.g
        if image.numbers:
            rows = self._typed_image(
                g.add("Transpose", [rows], x, perm=[0, 2, 1]), [image.batch, image.channels, image.places]
            )
        shape = g.shape(x) or []
        g.reshape(rows, [0, *(d for d in shape[1:] if isinstance(d, int))], x, out=x)

    def step(self, op: str, inputs: Sequence[str], shape: Sequence[Dim | None], hint: str, **attributes: Any) -> str:
        """A node in between, whose type is said."""
        return self._typed_image(self.g.add(op, inputs, hint, **attributes), shape)

    def _typed_image(self, value: str, shape: Sequence[Dim | None]) -> str:
        return value if value in self.g.types else self.g.typed(value, TensorProto.FLOAT, shape)


@dataclass(frozen=True)
class RowsForm:
    """How a node is written where its images are rows: it reads `images`, makes `results`, and `saved` numbers need not be turned
    that would be else. What it has beside those stays as it is. A node that `takes_both` reads its images as they are there."""

    images: tuple[str, ...]
    results: tuple[str, ...]
    write: Callable[[RowsWriter, onnx.NodeProto], None]
    saved: int = 0
    takes_both: bool = False
