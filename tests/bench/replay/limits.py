# SPDX-License-Identifier: Apache-2.0
"""What no plan can do: the replay on paper, beside berthd one that knows when each job will end.

Who waits is a choice, how many GPUs wait hardly is: so the longest wait is told beside the mean of each width.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from ..table import Figure
from .analysis import measured, summary
from .outcome import Run
from .simulated import Ground, play
from .systems import ORACLE, SYSTEMS
from .workload import Shape, draw

COMPARED = (SYSTEMS["plain"], SYSTEMS["epilog"], SYSTEMS["berth"], ORACLE)


def limit_figures(seeds: Sequence[int], shape: Shape, ground: Ground, plays: int) -> list[Figure]:
    """Each system's waits beside plain Slurm's."""
    found: list[Figure] = []
    plain: dict[str, float] = {}
    for system in COMPARED:
        runs = [play(draw(seed, shape), seed, system, ground, chance) for seed in seeds for chance in range(plays)]
        told = _told(runs)
        plain = plain or told
        peer = "" if told is plain else "plain Slurm"
        found += [
            Figure(
                f"{system.name}_{name}",
                value,
                "of the GPUs" if name == "utilisation" else "s",
                peer,
                plain[name] if peer else None,
            )
            for name, value in told.items()
        ]
    return found


def _told(runs: Sequence[Run]) -> dict[str, float]:
    one = summary(runs)
    waits = {
        width: [job.wait for run in runs for job in measured(run.outcomes) if job.width == width]
        for width in (1, 8, 16, 32)
    }
    longest = [max(job.wait for job in measured(run.outcomes)) for run in runs]
    return {
        "wait": one.wait,
        "weighed_wait": one.weighed_wait,
        **{f"wait_{width}": statistics.fmean(values) for width, values in waits.items() if values},
        "longest": one.longest,
        "longest_of_a_run": statistics.fmean(longest),
        "utilisation": one.utilisation,
    }
