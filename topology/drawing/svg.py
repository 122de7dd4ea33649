# SPDX-License-Identifier: Apache-2.0
"""SVG text, piece by piece: just what the pictures need, and every text escaped."""

from html import escape

FONT = "Inter, 'Helvetica Neue', Helvetica, Arial, 'DejaVu Sans', sans-serif"

#: A wider picture is shown smaller, so that a window of 1,200 pixels does not cut it off.
MOST_WIDTH = 1180.0

#: Width of a letter over the size of the font, on the wide side so that text stays inside its box in any font.
_LETTER = 0.6


def text_width(text: str, size: float) -> float:
    """Estimates the greatest width of a text."""
    return len(text) * size * _LETTER


def fit(text: str, width: float, size: float, *, keep_end: bool = False) -> str:
    """Cuts a text that is too wide, with an ellipsis; names of nodes keep their end, where the number is."""
    most = max(1, int(width / (size * _LETTER)))
    if len(text) <= most:
        return text
    return f"\u2026{text[1 - most :]}" if keep_end and most > 1 else f"{text[: most - 1]}\u2026"


def _number(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")


class Canvas:
    """Collects shapes; `done` makes the file, with a title and a description for readers that cannot see it."""

    def __init__(self) -> None:
        self._shapes: list[str] = []

    def rect(
        self,
        x: float,
        y: float,
        width: float,
        height: float,
        *,
        fill: str,
        stroke: str = "",
        radius: float = 6,
        dash: str = "",
        thickness: float = 1,
        tip: str = "",
    ) -> None:
        """Adds a box; `tip` is shown when the pointer rests on it."""
        line = f' stroke="{stroke}" stroke-width="{_number(thickness)}"' if stroke else ""
        line += f' stroke-dasharray="{dash}"' if dash else ""
        round_ = f' rx="{_number(radius)}"' if radius else ""
        shape = f'<rect x="{_number(x)}" y="{_number(y)}" width="{_number(width)}" height="{_number(height)}"'
        self._add(f'{shape}{round_} fill="{fill}"{line}', "rect", tip)

    def path(
        self, data: str, *, stroke: str = "none", width: float = 1, fill: str = "none", dash: str = "", tip: str = ""
    ) -> None:
        """Adds any line or shape in SVG's path syntax."""
        line = f' stroke="{stroke}" stroke-width="{_number(width)}" stroke-linecap="round"' if stroke != "none" else ""
        line += f' stroke-dasharray="{dash}"' if dash else ""
        self._add(f'<path d="{data}" fill="{fill}"{line}', "path", tip)

    def line(self, x1: float, y1: float, x2: float, y2: float, *, stroke: str, width: float, tip: str = "") -> None:
        """Adds a straight line."""
        self.path(
            f"M{_number(x1)} {_number(y1)}L{_number(x2)} {_number(y2)}",
            stroke=stroke,
            width=width,
            fill="none",
            tip=tip,
        )

    def text(
        self,
        x: float,
        y: float,
        text: str,
        *,
        size: float = 12,
        fill: str,
        bold: bool = False,
        anchor: str = "start",
    ) -> None:
        """Adds a line of text; y is its base line."""
        weight = ' font-weight="600"' if bold else ""
        place = f' text-anchor="{anchor}"' if anchor != "start" else ""
        self._shapes.append(
            f'<text x="{_number(x)}" y="{_number(y)}" font-size="{_number(size)}" fill="{fill}"{weight}{place}>'
            f"{_safe(text)}</text>"
        )

    def done(self, width: float, height: float, *, title: str, description: str, background: str, key: str = "") -> str:
        """Returns the whole file; several in one page each need a key of their own."""
        size = f"{_number(width)} {_number(height)}"
        scale = min(1.0, MOST_WIDTH / width)
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {size}" width="{_number(scale * width)}" '
            f'height="{_number(scale * height)}" role="img" aria-labelledby="{key}title {key}description" '
            f'font-family="{escape(FONT)}">\n'
            f'<title id="{key}title">{_safe(title)}</title>\n'
            f'<desc id="{key}description">{_safe(description)}</desc>\n'
            f'<rect width="{_number(width)}" height="{_number(height)}" rx="14" fill="{background}"/>\n'
        )
        return head + "\n".join(self._shapes) + "\n</svg>\n"

    def _add(self, start: str, tag: str, tip: str) -> None:
        end = f"><title>{_safe(tip)}</title></{tag}>" if tip else "/>"
        self._shapes.append(start + end)


def _safe(text: str) -> str:
    """Escapes the text and drops control characters, which XML does not allow."""
    # Tips have several lines.
    return escape("".join(letter if letter.isprintable() or letter == "\n" else " " for letter in text), quote=False)
