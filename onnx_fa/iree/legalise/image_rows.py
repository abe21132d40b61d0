"""Images and sequences as rows: a value (batch, channels, height, width) as (batch, height * width, channels), or (batch, channels,
length) as (batch, length, channels), in which a convolution of one tap is a product and needs no transposes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import onnx
from onnx import TensorProto

from onnx_fa.iree.legalise.writer import GraphWriter
from onnx_fa.spec.terms import Dim


@dataclass(frozen=True)
class Places(ABC):
    """The shape of a value whose channels come first and can come last."""

    batch: Dim | None
    channels: int

    @property
    @abstractmethod
    def where(self) -> tuple[Dim, ...]:
        """The dims of its places."""

    @property
    @abstractmethod
    def numbers(self) -> int:
        """What turning it moves, of an element of the batch."""

    @property
    @abstractmethod
    def rows(self) -> list[Dim | None]:
        """Its shape as rows."""

    @property
    def rank(self) -> int:
        return 2 + len(self.where)


@dataclass(frozen=True)
class Image(Places):
    """Of known sizes; only the batch may be unknown."""

    height: int
    width: int

    @property
    def where(self) -> tuple[Dim, ...]:
        return self.height, self.width

    @property
    def places(self) -> int:
        return self.height * self.width

    @property
    def numbers(self) -> int:
        """An image of one place lies the same in both orders."""
        return self.channels * self.places if self.places > 1 and self.channels > 1 else 0

    @property
    def rows(self) -> list[Dim | None]:
        return [self.batch, self.places, self.channels]


_P = TypeVar("_P", bound=Places)


@dataclass
class RowsWriter(ABC, Generic[_P]):
    """A graph in which some images, or sequences, of one `kind` of element are written as rows. `images` are the shapes of all of
    them, `rows` the names of those that are there as rows; `absent` are those that are there as rows alone."""

    g: GraphWriter
    images: dict[str, _P]
    kind: int = TensorProto.FLOAT
    rows: dict[str, str] = field(default_factory=dict)
    absent: set[str] = field(default_factory=set)
    joined: dict[tuple[str, ...], str] = field(default_factory=dict)
    """Images, by those whose channels they have behind each other."""

    def read(self, x: str, hint: str) -> str:
        """An image as rows: (batch, places, channels)."""
        if x not in self.rows:
            self.rows[x] = self._typed_image(self._turned(x, hint), self.images[x].rows)
        return self.rows[x]

    @abstractmethod
    def _turned(self, x: str, hint: str) -> str:
        """An image that is there with channels first, as rows."""

    @abstractmethod
    def _turned_back(self, x: str) -> None:
        """Writes an image that is there as rows alone."""

    def give(self, y: str, rows: str) -> None:
        """Says that an image has been made as rows."""
        self.rows[y] = self._typed_image(rows, self.images[y].rows)
        self.absent.add(y)

    def need(self, x: str) -> None:
        """Writes an image with channels first where it is there as rows alone: something else reads it."""
        if x in self.absent:
            self.absent.remove(x)
            self._turned_back(x)

    def step(self, op: str, inputs: Sequence[str], shape: Sequence[Dim | None], hint: str, **attributes: Any) -> str:
        """A node in between, whose type is said."""
        return self._typed_image(self.g.add(op, inputs, hint, **attributes), shape)

    def _typed_image(self, value: str, shape: Sequence[Dim | None]) -> str:
        return value if value in self.g.types else self.g.typed(value, self.kind, shape)


class ImageWriter(RowsWriter[Image]):
    """Of images of known sizes."""

    def _turned(self, x: str, hint: str) -> str:
        image, g = self.images[x], self.g
        if not image.numbers:
            return g.reshape(x, [0, image.places, image.channels], hint)
        dims = [image.batch, image.channels, image.places]
        flat = self._typed_image(g.reshape(x, [0, image.channels, image.places], hint), dims)
        return g.add("Transpose", [flat], hint, perm=[0, 2, 1])

    def _turned_back(self, x: str) -> None:
        image, rows, g = self.images[x], self.rows[x], self.g
        if image.numbers:
            dims = [image.batch, image.channels, image.places]
            rows = self._typed_image(g.add("Transpose", [rows], x, perm=[0, 2, 1]), dims)
        shape = g.shape(x) or []
        g.reshape(rows, [0, *(d for d in shape[1:] if isinstance(d, int))], x, out=x)

    def read_plane(self, x: str, hint: str) -> str:
        """An image as (batch, height, width, channels)."""
        image = self.images[x]
        made = self.g.reshape(self.read(x, hint), [0, image.height, image.width, image.channels], hint)
        return self._typed_image(made, [image.batch, image.height, image.width, image.channels])

    def give_plane(self, y: str, plane: str, hint: str) -> None:
        """Says that an image has been made as (batch, height, width, channels)."""
        image = self.images[y]
        self._typed_image(plane, [image.batch, image.height, image.width, image.channels])
        self.give(y, self.g.reshape(plane, [0, image.places, image.channels], hint))


@dataclass(frozen=True)
class RowsForm:
    """How a node is written where its images are rows: it reads `images`, makes `results`, and `saved` numbers need not be turned
    that would be else. What it has beside those stays as it is. A node that `takes_both` reads its images as they are there."""

    images: tuple[str, ...]
    results: tuple[str, ...]
    write: Callable[[Any, onnx.NodeProto], None]
    saved: int = 0
    takes_both: bool = False
