# SPDX-License-Identifier: Apache-2.0
"""The tasks of an array that have not split off: parses the list that Slurm writes.

>>> waiting_tasks("1,3-5,10-20:5")
[1, 3, 4, 5, 10, 15, 20]
>>> waiting_tasks("1-2,...")
[1, 2]
>>> waits(15, "1,10-20:5%2"), waits(12, "1,10-20:5%2")
(True, False)
"""

import re
from functools import lru_cache

MOST = 256
"""Most tasks read in one pass: a pass never starts more."""

_RANGE = re.compile(r"(\d+)(?:-(\d+)(?::(\d+))?)?")


@lru_cache(maxsize=256)
def _expand(text: str) -> tuple[int, ...]:
    tasks: list[int] = []
    for word in text.partition("%")[0].split(","):
        match = _RANGE.fullmatch(word)
        # Slurm ends long lists with "..."; further tasks appear as the first ones start.
        if match is None:
            break
        first, last, step = int(match[1]), int(match[2] or match[1]), int(match[3] or 1)
        tasks += range(first, min(last, first + MOST * step) + 1, max(1, step))
        if len(tasks) >= MOST:
            break
    return tuple(tasks[:MOST])


def waiting_tasks(text: str) -> list[int]:
    """Returns the first waiting tasks, in ascending order."""
    return list(_expand(text))


def waits(task: int, text: str) -> bool:
    """Tells whether a task waits; if the list ends with "...", any task after it may wait."""
    for word in text.partition("%")[0].split(","):
        match = _RANGE.fullmatch(word)
        if match is None:
            return word.startswith("...")
        first, last, step = int(match[1]), int(match[2] or match[1]), int(match[3] or 1)
        if first <= task <= last and (task - first) % max(1, step) == 0:
            return True
    return False
