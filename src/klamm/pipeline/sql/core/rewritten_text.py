"""A text made of pieces of another one, which maps positions back. Pure."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from typing import NamedTuple


class Edit(NamedTuple):
    """Text between two positions, and what is written instead."""

    start: int
    end: int
    text: str


class Piece(NamedTuple):
    """A part of the new text; `origin` is its position in the old one."""

    text: str
    origin: int
    verbatim: bool = False
    """Whether the old text has the same length, so that every character has a position of its own."""


class RewrittenText:
    """The new text and its pieces."""

    def __init__(self, pieces: Iterable[Piece]) -> None:
        self._pieces: list[Piece] = []
        self._starts: list[int] = []
        length = 0
        for piece in pieces:
            if piece.text:
                self._pieces.append(piece)
                self._starts.append(length)
                length += len(piece.text)
        self.text = "".join(piece.text for piece in self._pieces)

    def original(self, offset: int) -> int:
        """Return the position in the old text of a position in this one; inside of an edit, where the edit is."""
        if not self._pieces:
            return 0
        index = max(bisect_right(self._starts, offset) - 1, 0)
        piece = self._pieces[index]
        return piece.origin + (offset - self._starts[index] if piece.verbatim else 0)

    def find(self, origin: int) -> int:
        """Return the position in this text of a position in the old one; 0 for a part that was left out."""
        for start, piece in zip(self._starts, self._pieces, strict=True):
            if piece.verbatim and piece.origin <= origin <= piece.origin + len(piece.text):
                return start + origin - piece.origin
        return 0


def apply_edits(text: str, start: int, end: int, edits: Sequence[Edit]) -> list[Piece]:
    """Return the pieces of a part of a text. Of edits at one position the first added comes first."""
    pieces: list[Piece] = []
    copied = start
    for edit in sorted(edits, key=_edit_start):
        pieces.append(Piece(text[copied : edit.start], copied, True))
        pieces.append(Piece(edit.text, edit.start))
        copied = edit.end
    pieces.append(Piece(text[copied:end], copied, True))
    return pieces


def _edit_start(edit: Edit) -> int:
    return edit.start
