# SPDX-License-Identifier: Apache-2.0
"""The recorded terminal session of README.md: a real run, drawn by tests/recording.py."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.recording import CHAR, MARGIN, READING, TYPED, Recording, draw, read_cast, record, timed, write_cast

PICTURES = Path(__file__).resolve().parents[3] / "docs" / "pictures"


def test_the_picture_is_drawn_from_the_recording() -> None:
    cast, picture = (PICTURES / "demo.cast").read_text(), (PICTURES / "demo.svg").read_text(encoding="utf-8")

    assert picture == draw(read_cast(cast)), "run python -m tests.recording draw docs/pictures/demo.{cast,svg}"
    assert len(picture) < 300_000


def test_no_line_of_the_picture_is_cut_off() -> None:
    drawing = ElementTree.fromstring((PICTURES / "demo.svg").read_text(encoding="utf-8"))  # noqa: S314 - our own
    _, _, width, height = (float(part) for part in drawing.attrib["viewBox"].split())
    pieces = list(drawing.iter("{http://www.w3.org/2000/svg}text"))

    assert len(pieces) > 50
    assert [piece.text for piece in pieces if "  " in (piece.text or "")] == [], "viewers make one space of two"
    for piece in pieces:
        assert float(piece.attrib["x"]) + float(piece.attrib["textLength"]) <= width - MARGIN
        assert float(piece.attrib["y"]) < height


def test_lines_appear_in_order_and_the_end_can_be_read() -> None:
    drawing = draw(Recording("sleep", 80, ((0.5, "one"), (60.0, "two"), (60.0, "three"))))

    [seconds] = re.findall(r"animation:([\d.]+)s", drawing)
    shown = [float(percent) * float(seconds) / 100 for percent in re.findall(r"\{0%,([\d.]+)%", drawing)]
    assert shown == pytest.approx([TYPED + 0.5, TYPED + 1.7, TYPED + 1.75], abs=0.001)
    assert float(seconds) - shown[-1] == pytest.approx(READING, abs=0.01)


def test_a_command_is_recorded_as_a_terminal_shows_it() -> None:
    program = "import sys; print('\\x1b[1;31mred\\x1b[0m <1>', sys.stdout.isatty(), flush=True); print('é', end='')"
    recording = record([sys.executable, "-c", program], columns=40)

    assert [line for _, line in recording.lines] == ["\x1b[1;31mred\x1b[0m <1> True", "é"]
    assert read_cast(write_cast(recording)).lines == tuple((round(at, 3), line) for at, line in recording.lines)
    drawing = draw(recording)
    assert re.search(r'style="fill:#[0-9a-f]{6}" font-weight="bold">red</text>', drawing)
    assert f'<text x="{MARGIN + 4 * CHAR:.1f}"' in drawing
    assert ">&lt;1&gt; True</text>" in drawing


def test_a_command_that_fails_is_not_kept() -> None:
    with pytest.raises(subprocess.CalledProcessError):
        record([sys.executable, "-c", "raise SystemExit(3)"])


def test_a_long_wait_is_cut() -> None:
    assert [at for at, _ in timed(Recording("x", 80, ((100.0, "a"), (100.2, "b"))))] == pytest.approx([2.4, 2.6])
