# SPDX-License-Identifier: Apache-2.0
"""Writes tables, as text and as pages of HTML that need no network, script or other file and are valid XML too."""

from collections.abc import Container, Iterable, Sequence
from html import escape

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #1d2433; background: #fff; max-width: 74rem; margin: 2rem auto;
  padding: 0 1rem; }
h1 { font-size: 1.5rem; margin-bottom: .2rem } h2 { font-size: 1.1rem; margin: 2rem 0 .3rem }
p, li { color: #465065; margin: .2rem 0 } .scroll { overflow-x: auto }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; margin: .8rem 0 }
th, td { padding: .3rem .7rem; text-align: right; border-bottom: 1px solid #dfe3ea; white-space: nowrap }
th { color: #465065; font-weight: 600; border-bottom-width: 2px }
th.name, td.name { text-align: left; white-space: normal; min-width: 6rem }
.verdict { font-size: 1.15rem; color: inherit; margin: .6rem 0 }
svg { width: 100%; max-width: 58rem; height: auto; color: #465065 }
@media (prefers-color-scheme: dark) {
  body { color: #e8ebf1; background: #14181f } p, li, th { color: #aab4c5 }
  th, td { border-color: #2c3442 } svg { color: #aab4c5; filter: brightness(1.2) }
}
@media print { body { margin: 0; max-width: none } h2 { break-after: avoid } svg { break-inside: avoid } }
"""


def document(title: str, parts: Iterable[str]) -> str:
    """Returns a whole page; empty parts are left out."""
    body = "\n".join(filter(None, parts))
    return (
        '<!DOCTYPE html>\n<html xmlns="http://www.w3.org/1999/xhtml" lang="en"><head><meta charset="utf-8"/>'
        '<meta name="viewport" content="width=device-width, initial-scale=1"/>'
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head>\n<body>\n{body}\n</body></html>\n"
    )


def paragraph(text: str, kind: str = "") -> str:
    """Returns a paragraph; an empty text if there is nothing to say."""
    kind = f' class="{kind}"' if kind else ""
    return text and f"<p{kind}>{escape(text)}</p>"


def section(title: str, picture: str, text: str = "") -> str:
    """Returns a picture or a table below its title."""
    return f"<h2>{escape(title)}</h2>{paragraph(text)}\n{picture}"


def table(columns: Sequence[str], rows: Iterable[Sequence[str]], left: Container[int]) -> str:
    """Returns a table; `left` has the columns that are aligned to the left."""

    def row(tag: str, cells: Sequence[str]) -> str:
        kinds = (' class="name"' if place in left else "" for place in range(len(cells)))
        return "".join(f"<{tag}{kind}>{escape(cell)}</{tag}>" for kind, cell in zip(kinds, cells, strict=True))

    lines = "".join(f"<tr>{row('td', cells)}</tr>\n" for cells in rows)
    return (
        f'<div class="scroll"><table><thead><tr>{row("th", columns)}</tr></thead>\n<tbody>{lines}</tbody></table></div>'
    )


def aligned(rows: Sequence[Sequence[str]], left: Container[int]) -> list[str]:
    """Returns the lines of a table; each column is as wide as its longest cell."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell.ljust(width) if place in left else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
