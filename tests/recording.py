# SPDX-License-Identifier: Apache-2.0
"""Records a command in a terminal and draws the recording as an animated SVG, without a player or a service.

`python -m tests.recording record FILE COMMAND ...` runs the command in a terminal of its own and keeps each line
with the second at which it came, in the format of asciinema (asciicast 2).
`python -m tests.recording draw FILE PICTURE.svg` draws it. The picture of README.md is renewed so:

    python -m tests.recording record docs/pictures/demo.cast make demo
    python -m tests.recording draw docs/pictures/demo.cast docs/pictures/demo.svg
"""

from __future__ import annotations

import argparse
import codecs
import fcntl
import html
import json
import os
import pty
import re
import shlex
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from rich.cells import cell_len
from rich.color import ColorType
from rich.console import Console
from rich.style import Style
from rich.terminal_theme import MONOKAI
from rich.text import Text

COLUMNS, ROWS = 120, 34
CHAR, LINE, MARGIN, BAR = 7.2, 15, 12, 24
"""Pixels: width of a character and height of a line of 12 pixels, the margin, and the height of the title bar."""
LIGHTS = ("#ff5f57", "#febc2e", "#28c840")
TYPED = 1.2
"""Seconds for which the command stands alone, as if it had just been typed."""
LONGEST_PAUSE = 1.2
"""A longer wait between two lines is cut to this many seconds."""
SHORTEST = 0.05
"""Seconds between two lines that came together: the eye sees a table being written."""
READING = 9.0
"""Seconds for which the last picture stands before the recording begins again."""


@dataclass(frozen=True, slots=True)
class Recording:
    """A recorded session: the command, and each line of output with the second at which it came."""

    command: str
    columns: int
    lines: tuple[tuple[float, str], ...]


def record(command: list[str], columns: int = COLUMNS) -> Recording:
    """Runs the command in a terminal of its own and returns its lines; raises CalledProcessError where it fails."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, columns, 0, 0))
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": str(columns), "LINES": str(ROWS)}
    began = time.monotonic()
    process = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment, close_fds=True)
    os.close(theirs)
    lines: list[tuple[float, str]] = []
    decoder, rest = codecs.getincrementaldecoder("utf-8")("replace"), ""
    while True:
        try:
            got = os.read(ours, 65536)
        except OSError:  # the other end of a terminal closes so
            break
        if not got:
            break
        *whole, rest = (rest + decoder.decode(got)).split("\n")
        for line in whole:
            lines.append((time.monotonic() - began, line.rstrip("\r")))
            print(line)
    os.close(ours)
    if rest:
        lines.append((time.monotonic() - began, rest))
    if process.wait():
        raise subprocess.CalledProcessError(process.returncode, command)
    return Recording(shlex.join(command), columns, tuple(lines))


def write_cast(recording: Recording) -> str:
    """Returns the recording as asciicast 2, which asciinema plays too."""
    head = {"version": 2, "width": recording.columns, "height": ROWS, "command": recording.command}
    rows = [json.dumps(head), *(json.dumps([round(at, 3), "o", f"{text}\r\n"]) for at, text in recording.lines)]
    return "\n".join(rows) + "\n"


def read_cast(text: str) -> Recording:
    """Reads what `write_cast` wrote."""
    head, *rows = [json.loads(row) for row in text.splitlines()]
    return Recording(head["command"], head["width"], tuple((at, said.removesuffix("\r\n")) for at, _, said in rows))


def timed(recording: Recording) -> Iterator[tuple[float, str]]:
    """Yields each line with the second at which the picture shows it: long waits are cut, lines at once are spread."""
    now, before = TYPED, 0.0
    for at, line in recording.lines:
        now += min(max(at - before, SHORTEST), LONGEST_PAUSE)
        before = at
        yield now, line


def draw(recording: Recording) -> str:
    """Returns the recording as an SVG that plays by CSS; a viewer that wants less motion shows all lines at once."""
    shown = [(0.0, f"\x1b[1;32m$\x1b[0m {recording.command}"), *timed(recording)]
    ends = shown[-1][0] + READING
    width, height = round(recording.columns * CHAR + 2 * MARGIN), BAR + len(shown) * LINE + 2 * MARGIN
    rules, texts = [], []
    for number, (at, line) in enumerate(shown):
        percent = 100 * at / ends
        if number:
            # A line is hidden until its time and stays until the end.
            hidden, there = f"0%,{percent:.3f}%{{opacity:0}}", f"{percent + 0.001:.3f}%,100%{{opacity:1}}"
            rules.append(f"@keyframes l{number}{{{hidden}{there}}}\n#l{number}{{animation-name:l{number}}}")
        texts.append(f'<g id="l{number}">{"".join(spans(line, BAR + MARGIN + (number + 1) * LINE - 4))}</g>')
    back, ink = hexed(MONOKAI.background_color), hexed(MONOKAI.foreground_color)
    rules = [
        f"text{{font:12px 'DejaVu Sans Mono','Liberation Mono',Menlo,Consolas,monospace;fill:{ink}}}",
        "@media (prefers-reduced-motion:no-preference){",
        f"g{{animation:{ends:.2f}s linear infinite}}",
        *rules,
        "}",
    ]
    lights = (f'<circle cx="{18 * place}" cy="14" r="5" fill="{fill}"/>' for place, fill in enumerate(LIGHTS, 1))
    size = f'viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
    label = f'role="img" aria-label="A recorded terminal session: {html.escape(recording.command)}"'
    rows = (
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} {label}>',
        "<style>",
        *rules,
        "</style>",
        f'<rect width="{width}" height="{height}" rx="8" fill="{back}"/>',
        *lights,
        *texts,
        "</svg>",
    )
    return "\n".join(rows) + "\n"


def spans(line: str, y: int) -> Iterator[str]:
    """Yields a line's pieces of one style each, every piece at the column where a terminal would have it."""
    column = 0
    for segment in Text.from_ansi(line).render(Console(), end=""):
        piece, body = segment.text, segment.text.strip(" ")
        if body:
            x = MARGIN + (column + len(piece) - len(piece.lstrip(" "))) * CHAR
            size = f'textLength="{cell_len(body) * CHAR:.1f}" lengthAdjust="spacingAndGlyphs"'
            # Not all viewers know white-space: pre, and without it spaces beside each other become one.
            words = html.escape(re.sub(" {2,}", lambda found: "\u00a0" * len(found[0]), body))
            yield f'<text x="{x:.1f}" y="{y}" {size}{look(segment.style)}>{words}</text>'
        column += cell_len(piece)


def look(style: Style | None) -> str:
    """Returns the attributes of a style that differ from plain text."""
    if style is None:
        return ""
    words = ""
    if style.color and style.color.type is not ColorType.DEFAULT:
        words += f' style="fill:{hexed(tuple(style.color.get_truecolor(MONOKAI)))}"'
    if style.bold:
        words += ' font-weight="bold"'
    if style.italic:
        words += ' font-style="italic"'
    if style.dim:
        words += ' opacity="0.6"'
    return words


def hexed(rgb: Iterable[int]) -> str:
    """Returns a colour as SVG writes it."""
    return "#" + "".join(f"{part:02x}" for part in rgb)


def main() -> int:
    """Records or draws, as the command line says."""
    parser = argparse.ArgumentParser(prog="python -m tests.recording", description=(__doc__ or "").split("\n")[0])
    commands = parser.add_subparsers(dest="do", required=True)
    recorder = commands.add_parser("record", help="run a command and keep what it shows")
    recorder.add_argument("file", type=Path, help="the recording, asciicast 2")
    recorder.add_argument("words", nargs=argparse.REMAINDER, metavar="COMMAND ...")
    drawer = commands.add_parser("draw", help="draw a recording")
    drawer.add_argument("file", type=Path)
    drawer.add_argument("picture", type=Path)
    options = parser.parse_args()
    if options.do == "draw":
        options.picture.write_text(draw(read_cast(options.file.read_text())), encoding="utf-8")
        return 0
    try:
        recording = record(options.words)
    except subprocess.CalledProcessError as failed:
        sys.exit(f"recording: {failed.cmd[0]} ended with status {failed.returncode}; nothing was kept")
    options.file.write_text(write_cast(recording), encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
