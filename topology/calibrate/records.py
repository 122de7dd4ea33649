"""Reads files of one JSON object a line, whose first line names the format; runs and step times use it."""

import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from topology.errors import TopologyFileError


def records(lines: Iterable[str], form: str, source: str) -> Iterator[tuple[str, object]]:
    """Yields each object after the first, with the place to name in an error about it."""
    head = {"format": form}
    begun = False
    for number, line in enumerate(lines, 1):
        where = f"{source}, line {number}"
        if not line.strip():
            continue
        try:
            values = json.loads(line)
        except json.JSONDecodeError as error:
            raise TopologyFileError(f"{where}: it is not JSON ({error.msg}); take the line out") from error
        if begun:
            yield where, values
        elif values != head:
            raise TopologyFileError(f"{where}: it should be {json.dumps(head)}")
        begun = True
    if not begun:
        raise TopologyFileError(f"{source}: line 1 should be {json.dumps(head)}, not nothing")


def read_lines(path: str | os.PathLike[str], what: str) -> list[str]:
    """Returns the whole lines of a file; a last one that was never finished is left out."""
    source = os.fspath(path)
    try:
        text = Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise TopologyFileError(f"cannot read {source}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise TopologyFileError(f"{source}: not a file of {what}: it is not UTF-8 text") from error
    return text[: text.rfind("\n") + 1].splitlines()
