# SPDX-License-Identifier: Apache-2.0
"""Draws the legend of the colours in rows under a picture."""

import textwrap

from topology.drawing.style import INK, PROBLEM
from topology.drawing.svg import Canvas, fit, text_width

_ROW, _SIZE = 22, 12


class Legend:
    """Places samples and words from left to right, and goes on in the next row where one is full."""

    def __init__(self, canvas: Canvas, x: float, y: float, width: float) -> None:
        self._canvas = canvas
        self._left, self._x, self._width = x, x, width
        self.y = y
        """Base line of the row that comes next."""

    def line(self, colour: str, width: float, words: str) -> None:
        """Adds a sample of a line."""
        x = self._place(38 + 0.92 * text_width(words, _SIZE))
        # The ends are round and stand out by half the width.
        self._canvas.line(x + width / 2, self.y - 4, x + 28 - width / 2, self.y - 4, stroke=colour, width=width)
        self._canvas.text(x + 38, self.y, words, size=_SIZE, fill=INK)

    def box(self, colour: str, words: str) -> None:
        """Adds a sample of a fill."""
        words = fit(words, self._width - 22, _SIZE)
        x = self._place(22 + 0.92 * text_width(words, _SIZE))
        self._canvas.rect(x, self.y - 11, 14, 14, fill=colour, radius=4)
        self._canvas.text(x + 22, self.y, words, size=_SIZE, fill=INK)

    def outline(self, colour: str, words: str, dash: str = "") -> None:
        """Adds a sample of an outline."""
        x = self._place(26 + 0.92 * text_width(words, _SIZE))
        self._canvas.rect(x, self.y - 11, 18, 14, fill="none", stroke=colour, thickness=1.6, radius=4, dash=dash)
        self._canvas.text(x + 26, self.y, words, size=_SIZE, fill=INK)

    def warning(self, words: str) -> None:
        """Adds a row for a problem."""
        self.end_row()
        self._canvas.text(self._left + 4, self.y, "!", size=13, fill=PROBLEM, bold=True)
        for line in textwrap.wrap(words, int((self._width - 22) / text_width("x", _SIZE))):
            self._canvas.text(self._left + 22, self.y, line, size=_SIZE, fill=PROBLEM)
            self.y += _ROW - 4
        self.y += 4

    def end_row(self) -> None:
        """Starts a new row."""
        if self._x > self._left:
            self._x = self._left
            self.y += _ROW

    def _place(self, width: float) -> float:
        if self._x > self._left and self._x + width > self._left + self._width:
            self.end_row()
        x = self._x
        self._x += width + 24
        return x
