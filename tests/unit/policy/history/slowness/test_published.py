# SPDX-License-Identifier: Apache-2.0
"""The three jobs that ByteDance published with their causes, blamed by Berth (BERTH_DATA has them in `stragglers`).

They are the sample traces of the artifact of "Understanding Stragglers in Large Model Training Using What-if Analysis"
(OSDI 2025): timelines of whole steps, and what its authors' own program finds. ST has a long last stage, SE sequences
of different lengths, AR one worker that was slowed on purpose.
"""

import gzip
import json
import os
from collections import Counter, defaultdict
from pathlib import Path

import pytest

from policy.history.slowness.job import Slowness, analyse
from policy.history.slowness.sources import from_ops

DATA = Path(os.environ.get("BERTH_DATA", Path(__file__).parents[5] / "shared" / "data")) / "stragglers"
OWN = {"forward-compute": "forward", "backward-compute": "backward", "optimizer": "optimizer", "gc": "pause"}
"""What a rank does by itself; all else is a collective or a transfer, in which it may wait for another."""

pytestmark = [
    pytest.mark.published,
    pytest.mark.skipif(not DATA.is_dir(), reason="BERTH_DATA names no folder with stragglers/"),
]


def blamed(trace: str) -> Slowness:
    """What Berth says of a published trace, read as `berth-ops/1`."""
    with gzip.open(DATA / f"timeline-{trace}.json.gz", "rt") as file:
        events = json.load(file)
    stages = {
        (one["pid"], one["tid"]): int(one["args"]["name"].split()[2].rstrip(","))
        for one in events
        if one["name"] == "thread_name"
    }
    times: dict[tuple[int, int, int], Counter[str]] = defaultdict(Counter)
    micro = 0
    for one in events:
        if one["name"] in OWN:
            cell = times[one["args"]["step"], one["pid"], stages[one["pid"], one["tid"]]]
            cell[OWN[one["name"]]] += one["dur"] / 1e3
            micro = max(micro, one["args"]["seq_id"] + 1 if one["name"] == "forward-compute" else 0)
    depth = max(stages.values()) + 1
    lines = [json.dumps({"format": "berth-ops/1", "microbatches": micro})]
    for (step, replica, stage), spent in sorted(times.items()):
        ops = {f"{name}_ms": milliseconds for name, milliseconds in spent.items()}
        lines.append(json.dumps({"step": step, "rank": replica * depth + stage, "stage": stage, **ops}))
    return analyse(from_ops(lines, trace))


@pytest.mark.parametrize(
    ("trace", "causes", "ranks", "published"),
    [
        ("ST", ["stage"], {3, 7}, 1.179),
        # The paper's authors name the long last stage as the second cause of this job.
        ("SE", ["data", "stage"], set(), 1.537),
        ("AR", ["gpu"], {0}, 1.973),
    ],
)
def test_a_published_job_is_blamed_as_its_authors_blame_it(
    trace: str, causes: list[str], ranks: set[int], published: float
) -> None:
    found = blamed(trace)

    assert [part.cause for part in found.parts] == causes
    assert {rank.rank for rank in found.parts[0].ranks} == ranks
    # The authors simulate each transfer, Berth whole steps of a rank.
    assert found.slowdown == pytest.approx(published, rel=0.06)
    assert found.parts[0].blame == ("unknown" if trace == "AR" else "software")
