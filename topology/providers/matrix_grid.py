# SPDX-License-Identifier: Apache-2.0
"""The text of `nvidia-smi topo -m` as a grid of words.

It comes with tabs or blanks, with and without escape codes, cut, wrapped and glued by terminals and web pages:

    >>> grid = read('''
    ...         GPU0    GPU1    NIC0    CPU Affinity
    ... GPU0     X      NV4     PIX     0-3
    ... GPU1    NV4      X      PIX     0-3''', "text")
    >>> grid.gpus, grid.nics, grid.words["GPU0"], grid.cpus["GPU0"]
    (('GPU0', 'GPU1'), ('NIC0',), ('X', 'NV4', 'PIX'), '0-3')
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from topology.errors import TopologyFileError

_ESCAPES = re.compile(
    r"\x1b\[[0-9;?]*[ -/]*[@-~]"
    # As pagers, editors and web pages show them: `^[[4m`, `\033[4m`, or without the escape character itself.
    r"|(?:\^\[|\\x1b|\\u001b|\\033|\\e|[\u2190\u241b\ufffd])?\[[0-9;]{0,9}m"
)
_TITLES = ("CPU Affinity", "NUMA Affinity", "GPU NUMA ID")
_TITLE = re.compile("|".join(_TITLES), re.IGNORECASE)
_WORD = r"(?:NV[1-9][0-9]?|X|PIX|PXB|PHB|NODE|SYS|SOC)"
_WORDS_EXPECTED = "X, NV1 to NV99, PIX, PXB, PHB, NODE, SYS"
#: Old drivers' name for a path between sockets.
_RENAMED = {"SOC": "SYS"}
_GLUED_NAMES = re.compile(r"(?<=[0-9])(?=(?:GPU|NIC|mlx5_)[0-9])")
_LEGEND = re.compile(r"\s*(NIC\d+)\s*:\s*(\S+)\s*$")
_LIST = re.compile(r"\d{1,5}(-\d{1,5})?(,\d{1,5}(-\d{1,5})?)*")
#: Where tabs were made blanks, a column is this wide.
_TAB = 8


@dataclass(slots=True)
class Grid:
    """Names of the devices, words of each row, and the columns behind them."""

    gpus: tuple[str, ...]
    nics: tuple[str, ...]
    words: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """For each device with a row: one word a device, in the header's order."""
    cpus: dict[str, str] = field(default_factory=dict)
    numa: dict[str, str] = field(default_factory=dict)
    lines: dict[str, int] = field(default_factory=dict)
    """Line number of each row."""
    legend: dict[str, str] = field(default_factory=dict)
    """Kernel names of NIC0, NIC1, ... if the text has them."""
    cut: str = ""
    """Title of the first column that the right edge of a terminal cut: it and those behind it are left out."""

    @property
    def devices(self) -> tuple[str, ...]:
        """All columns."""
        return self.gpus + self.nics


@dataclass(frozen=True, slots=True)
class _Header:
    devices: tuple[str, ...]
    titles: tuple[str, ...]
    """Columns behind the devices."""
    cut: str
    """The last of the titles, if the text has not all of it: the cells below it are not whole either."""


def read(text: str, source: str) -> Grid:
    """Read the text; a TopologyFileError names the source, the line and what was expected there."""
    lines = list(_lines(text))
    start = next((i for i, (_, line) in enumerate(lines) if _is_header(line)), None)
    if start is None:
        raise TopologyFileError(
            f"{source}: no header with GPU0 was found; the output of nvidia-smi topo -m is expected"
        )
    number, line = lines[start]
    header = _header(line, f"{source}, line {number}")
    gpus = tuple(name for name in header.devices if re.fullmatch(r"GPU\d+", name))
    grid = Grid(gpus, header.devices[len(gpus) :], cut=header.cut)
    for number, line in lines[start + 1 :]:
        where = f"{source}, line {number}"
        name = line.split()[0]
        if _is_header(line) and line.split()[1:]:
            raise TopologyFileError(f"{where}: a second header; one node a text is expected")
        if name in header.devices and name not in grid.words:
            _read_row(line, header, grid, name, where)
            grid.lines[name] = number
        elif name in grid.words:
            raise TopologyFileError(f"{where}: a second row of {name}; the first one is line {grid.lines[name]}")
        elif legend := _LEGEND.match(line):
            grid.legend[legend[1]] = legend[2]
        elif re.match(r"GPU\d", name):
            raise TopologyFileError(f"{where}: the header has no column {name}")
    _check_rows(grid, source)
    # Where one list is cut, a list that looks whole may be cut too.
    for title, kept in (("CPU Affinity", grid.cpus), ("NUMA Affinity", grid.numa)):
        if title == grid.cut:
            kept.clear()
    return grid


def _lines(text: str) -> Iterator[tuple[int, str]]:
    for number, line in enumerate(_ESCAPES.sub("", text).replace("\xa0", " ").splitlines(), start=1):
        if line.strip():
            yield number, line.rstrip("\r\n")


def _is_header(line: str) -> bool:
    """Returns True for a line of names; some headers have no blank before the first one, so they start as rows do."""
    return bool(re.match(r"\s*GPU\d", line)) and not re.fullmatch(f"{_WORD}+", "".join(line.split()[1:2]))


def _header(line: str, where: str) -> _Header:
    titles = tuple(next(known for known in _TITLES if known.lower() == one.lower()) for one in _TITLE.findall(line))
    following = "".join(_TITLES[len(titles) : len(titles) + 1])
    starts = (f" {following[:size]}".lower() for size in range(len(following) - 1, 0, -1))
    begun = next((start for start in starts if re.sub(r"\s", " ", line.lower()).endswith(start)), "")
    line = line[: len(line) - len(begun)]
    first = _TITLE.search(line)
    end = first.start() if first else len(line)
    devices = tuple(_GLUED_NAMES.sub(" ", line[:end]).split())
    rest = _TITLE.sub("", line[end:]).strip()
    if rest or titles != _TITLES[: len(titles)]:
        raise TopologyFileError(f"{where}: behind the devices stands {line[end:].strip()!r}; {', '.join(_TITLES)} may")
    gpus = [name for name in devices if name.startswith("GPU")]
    if list(devices[: len(gpus)]) != [f"GPU{i}" for i in range(len(gpus))]:
        raise TopologyFileError(f"{where}: the columns are {' '.join(devices)}; GPU0, GPU1, ... are expected first")
    if len(set(devices)) != len(devices):
        twice = next(name for name in devices if devices.count(name) > 1)
        raise TopologyFileError(f"{where}: {twice} has two columns")
    return _Header(devices, (*titles, following) if begun else titles, following if begun else "")


def _read_row(line: str, header: _Header, grid: Grid, name: str, where: str) -> None:
    words, rest = _cells(line, header, name, where)
    if any(rest[len(header.titles) :]) and len(header.titles) < len(_TITLES):
        grid.cut = grid.cut or _TITLES[len(header.titles)]
    rest = rest[: len(header.titles) - bool(header.cut)]
    for column, word in zip(header.devices, words, strict=True):
        if not re.fullmatch(_WORD, word):
            raise TopologyFileError(f"{where}: {name} to {column} is {word!r}; one of {_WORDS_EXPECTED} is expected")
        if (word == "X") != (column == name):
            raise TopologyFileError(f"{where}: {name} to {column} is {word}; X stands where a device meets itself")
    grid.words[name] = tuple(_RENAMED.get(word, word) for word in words)
    for title, cells, kept in (("CPU Affinity", rest[:1], grid.cpus), ("NUMA Affinity", rest[1:2], grid.numa)):
        cell = "".join(cells)
        if cell in {"", "N/A"}:
            continue
        if title == header.titles[-1] and _is_cut(cell):
            grid.cut = title
            continue
        if not _LIST.fullmatch(cell):
            raise TopologyFileError(f"{where}: {title} of {name} is {cell!r}; a list such as 0-7,16-23 is expected")
        kept[name] = cell


def _is_cut(cell: str) -> bool:
    """Tells whether the right edge of a terminal cut a list: the last range has no end, or one before its start."""
    first, _, last = cell.rpartition(",")[2].partition("-")
    return not first or cell.endswith("-") or (first.isdigit() and last.isdigit() and int(last) < int(first))


def _cells(line: str, header: _Header, name: str, where: str) -> tuple[list[str], list[str]]:
    """Returns the words of a row, and the cells of the columns behind them."""
    first, *cells = (cell.strip() for cell in line.lstrip().split("\t"))
    tabs = first == name
    if not tabs:
        cells = line.split()[1:]
    words: list[str] = []
    # An empty cell among the words ends them, and is counted as missing.
    while cells and cells[0] and len(words) < len(header.devices):
        glued, *others = cells.pop(0).split()
        words += re.findall(_WORD, glued) if re.fullmatch(f"{_WORD}{{2,}}", glued) else [glued]
        cells = others + cells
    if len(words) != len(header.devices):
        raise TopologyFileError(
            f"{where}: the row of {name} has {len(words)} cells; {len(header.devices)} are expected, one a device"
        )
    rest = cells if tabs else _placed(line, header, cells)
    filled = [cell for cell in rest if cell]
    if len(filled) > len(_TITLES):
        raise TopologyFileError(
            f"{where}: behind the devices the row of {name} has {len(filled)} cells, the header {len(header.titles)}"
        )
    return words, rest


def _placed(line: str, header: _Header, cells: list[str]) -> list[str]:
    """Returns cells of a row without tabs: an empty CPU list leaves nothing but its room behind the last device."""
    if not cells or len(cells) >= len(header.titles):
        return cells
    starts = [word.start() for word in re.finditer(r"\S+", line)]
    last_device, first_cell = starts[-len(cells) - 1], starts[-len(cells)]
    return ["", *cells] if first_cell - last_device > _TAB * 3 // 2 else cells


def _check_rows(grid: Grid, source: str) -> None:
    for name in grid.gpus:
        if name not in grid.words:
            raise TopologyFileError(f"{source}: the row of {name} is missing; the text seems to be cut")
    # Some captures lack rows of NICs; the GPUs' rows say the same.
    column = {name: i for i, name in enumerate(grid.devices)}
    for one, words in grid.words.items():
        for other, back in grid.words.items():
            if words[column[other]] != back[column[one]]:
                raise TopologyFileError(
                    f"{source}, line {grid.lines[other]}: {other} to {one} is {back[column[one]]}, but line"
                    f" {grid.lines[one]} says {words[column[other]]}; both directions are expected to be the same"
                )
