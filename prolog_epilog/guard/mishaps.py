# SPDX-License-Identifier: Apache-2.0
"""Reports what went wrong in one part of the guard while the others go on: once, and again if it lasts.

A part that fails ten times a second, perhaps because a user wants it to, must not fill the log.
"""

import time
import traceback
from collections.abc import Callable
from pathlib import Path

from prolog_epilog.errors import NodeError

_AGAIN_S = 60.0
_MOST_KNOWN = 256


class Mishaps:
    """The mishaps of one thread."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._said: dict[tuple[str, str], float] = {}

    def note(self, where: str, problem: Exception) -> None:
        """Reports that something failed; `where` names the part and the jobs."""
        # The text may hold a number that differs each time; the place in the code does not.
        key, now = (where, _place(problem)), time.monotonic()
        if now - self._said.get(key, float("-inf")) < _AGAIN_S:
            return
        if len(self._said) >= _MOST_KNOWN:
            self._said.clear()
        self._said[key] = now
        self._say(f"{where}: {sentence(problem)}")

    def attempt(self, where: str, part: Callable[[], object]) -> None:
        """Runs this part; a failure in it does not stop the other parts."""
        try:
            part()
        except Exception as problem:  # noqa: BLE001 - whatever it is, the others go on
            self.note(where, problem)


def sentence(problem: Exception) -> str:
    """Returns the text for the log; for an unexpected error also where it happened."""
    return str(problem) if isinstance(problem, NodeError) else f"{_place(problem)}: {problem}"


def _place(problem: Exception) -> str:
    frames = traceback.extract_tb(problem.__traceback__)
    where = f" in {Path(frames[-1].filename).name}, line {frames[-1].lineno}" if frames else ""
    return f"{type(problem).__name__}{where}"
