# SPDX-License-Identifier: Apache-2.0
"""Score tables: how slow each GPU is for each application class (docs/develop/formats.md, "Score table").

Standard library only, because calibration writes them on compute nodes.

>>> print(encode([Score("n1", 0, "GPU-a", "compute", 1.02, runs=5, spread=0.004)]), end="")
# berth-scores/1
node,position,uuid,class,score,runs,spread,at
n1,0,GPU-a,compute,1.02,5,0.004,
"""

import csv
import io
import math
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from topology import atomic
from topology.errors import TopologyFileError

FORMAT = "berth-scores/1"

PAL_CLASSES = {"A": "compute", "B": "mixed", "C": "memory"}
"""PAL's names of the application classes; a class beyond these keeps its letter."""

_COLUMNS = ("node", "position", "uuid", "class", "score", "runs", "spread", "at")
_ERROR = "error"
"""A last column that a table may have."""
_PAL_SCORE = re.compile(r"PerfVar_class(\w+)")
_LEAST, _MOST = 0.01, 100.0


@dataclass(frozen=True, slots=True)
class Score:
    """Predicted time of one GPU for one application class over the median of its peers."""

    node: str
    position: int
    uuid: str
    app_class: str
    score: float
    runs: int = 1
    """Runs that it was made of; 0: it was given, not measured."""
    spread: float = 0.0
    """Standard deviation between these runs, as a part of the score."""
    at: str = ""
    """End of the last run, as in a topology file."""
    error: float = 0.0
    """Standard error of the score, as a part of it; 0: not known."""


def load(path: str | os.PathLike[str]) -> tuple[Score, ...]:
    """Read a table in our own form or in PAL's; a TopologyFileError names the file and the line."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise TopologyFileError(f"cannot read {os.fspath(path)}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise TopologyFileError(f"{os.fspath(path)}: not a score table: it is not UTF-8 text") from error
    lines = text.splitlines()
    source = os.fspath(path)
    return decode_pal(lines, source) if lines and is_pal(lines[0].split(",")) else decode(lines, source)


def dump(scores: Iterable[Score], path: str | os.PathLike[str]) -> None:
    """Write a table so that a reader sees the old one or the new one, never a part."""
    atomic.replace(path, encode(scores).encode("utf-8"))


def encode(scores: Iterable[Score]) -> str:
    """Returns the table's text, one line a score."""
    table = tuple(scores)
    errors = any(one.error for one in table)
    text = io.StringIO()
    text.write(f"# {FORMAT}\n")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow((*_COLUMNS, _ERROR) if errors else _COLUMNS)
    for one in table:
        cells = (one.node, one.position, one.uuid, one.app_class, repr(one.score), one.runs, repr(one.spread), one.at)
        writer.writerow((*cells, repr(one.error)) if errors else cells)
    return text.getvalue()


def decode(lines: Sequence[str], source: str = "the score table") -> tuple[Score, ...]:
    """Read our own form."""
    if not lines or lines[0].strip() != f"# {FORMAT}":
        found = lines[0].strip()[:40] if lines else "nothing"
        raise TopologyFileError(f'{source}: line 1 should be "# {FORMAT}", not "{found}"')
    rows = _rows(lines, source, start=1)
    header = next(rows, (2, []))[1]
    if tuple(header) not in {_COLUMNS, (*_COLUMNS, _ERROR)}:
        raise TopologyFileError(f"{source}: line 2 should be {','.join(_COLUMNS)}, and {_ERROR} after it if known")
    scores: list[Score] = []
    seen: dict[tuple[str, str], int] = {}
    for line, cells in rows:
        where = f"{source}, line {line}"
        if len(cells) != len(header):
            raise TopologyFileError(f"{where}: {len(header)} values are expected, {len(cells)} are there")
        node, position, uuid, app_class, score, runs, spread, at = cells[: len(_COLUMNS)]
        if not node or not app_class:
            raise TopologyFileError(f"{where}: node and class must not be empty")
        one = Score(
            node,
            _whole(position, where, "position"),
            uuid,
            app_class,
            _score(score, where, "score"),
            _whole(runs, where, "runs"),
            _part(spread, where, "spread"),
            at,
            _part(cells[-1], where, _ERROR) if header[-1] == _ERROR else 0.0,
        )
        scores.append(one)
        for key in ((uuid, app_class), (f"{node}:{position}", app_class)):
            earlier = seen.setdefault(key, line) if key[0] else line
            if earlier != line:
                raise TopologyFileError(f"{where}: {key[0]} has a score for {app_class} in line {earlier} already")
    return tuple(scores)


def is_pal(header: Sequence[str]) -> bool:
    """Returns True if these columns are those of PAL's table."""
    names = [name.strip() for name in header]
    return "GPU_ID" in names and any(_PAL_SCORE.fullmatch(name) for name in names)


def decode_pal(lines: Sequence[str], source: str = "the score table") -> tuple[Score, ...]:
    """Read PAL's form: a line a GPU, a column a class; nodes are called n0, n1, ... after `Node_ID`."""
    rows = _rows(lines, source)
    header = [name.strip() for name in next(rows, (1, []))[1]]
    if not is_pal(header) or "Node_ID" not in header:
        raise TopologyFileError(f"{source}: line 1 should name GPU_ID, Node_ID, PerfVar_classA, PerfVar_classB, ...")
    classes = {place: found[1] for place, name in enumerate(header) if (found := _PAL_SCORE.fullmatch(name))}
    node_at, uuid_at = header.index("Node_ID"), header.index("GPU_UUID") if "GPU_UUID" in header else None
    scores: list[Score] = []
    filled: dict[int, int] = {}
    for line, cells in rows:
        where = f"{source}, line {line}"
        if len(cells) != len(header):
            raise TopologyFileError(f"{where}: {len(header)} values are expected, {len(cells)} are there")
        node = _whole(cells[node_at], where, "Node_ID")
        position = filled.get(node, 0)
        filled[node] = position + 1
        uuid = cells[uuid_at] if uuid_at is not None else ""
        for place, letter in classes.items():
            value = _score(cells[place], where, header[place])
            scores.append(Score(f"n{node}", position, uuid, PAL_CLASSES.get(letter, letter), value))
    return tuple(scores)


def _rows(lines: Sequence[str], source: str, start: int = 0) -> Iterator[tuple[int, list[str]]]:
    """Yields lines by number, without empty ones and comments."""
    for line, text in enumerate(lines[start:], start + 1):
        if text.strip() and not text.startswith("#"):
            try:
                yield line, next(csv.reader([text]))
            except csv.Error as error:
                raise TopologyFileError(f"{source}, line {line}: {error}") from error


def _whole(text: str, where: str, column: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise TopologyFileError(f'{where}, column {column}: a whole number from 0 on is expected, not "{text[:40]}"')
    return int(text)


def _number(text: str, where: str, column: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise TopologyFileError(f'{where}, column {column}: a number is expected, not "{text[:40]}"')
    return value


def _score(text: str, where: str, column: str) -> float:
    value = _number(text, where, column)
    if not _LEAST <= value <= _MOST:
        raise TopologyFileError(f"{where}, column {column}: a score lies between {_LEAST} and {_MOST:g}, not {text}")
    return value


def _part(text: str, where: str, column: str) -> float:
    value = _number(text, where, column)
    if value < 0:
        raise TopologyFileError(f"{where}, column {column}: it is at least 0, not {text}")
    return value
