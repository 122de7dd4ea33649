# SPDX-License-Identifier: Apache-2.0
"""Five racks of twelve trays below topology/block: drawn requests with and without segments, beside plain Slurm."""

from __future__ import annotations

import os
import random
import re
from collections import Counter
from collections.abc import Iterator
from functools import partial

import pytest

from policy.formats import segment as segments
from policy.formats.hostlist import expand
from tests.examples import SEED
from tests.hard.test_profiles import VERSIONS, configured
from tests.slurm.harness import Slurm, until

COUNT = int(os.environ.get("BERTH_RACKS", "1500"))
RUN = int(os.environ.get("BERTH_RACKS_RUN", "100"))
"""Requests that are tried, and those that run."""
TRAYS, RACKS = 12, 5
CONF = "".join(f"BlockName=r{rack} Nodes=n[{12 * rack + 1}-{12 * rack + 12}]\\n" for rack in range(RACKS))
TURN_ON = f"""
printf '{CONF}BlockSizes={TRAYS}\\n' > /etc/slurm/topology.conf
echo TopologyPlugin=topology/block >> /etc/slurm/slurm.conf
svc slurmctld restart
for i in $(seq 200); do scontrol ping | grep -q UP && break; sleep 0.1; done
scontrol reconfigure
"""
TRY = r"""
said() {
    out=$(sbatch --test-only "$@" --wrap true 2>&1) || { echo refused $out; return; }
    grep -o 'processors on nodes [^ ]*' <<<"$out" || echo refused $out
}
while IFS='|' read -r own group; do
    plain=$(said -p plain $own); berth=$(said $own $group)
    echo "$plain|$berth"
done
"""
"""Reads requests of plain options and Berth's, a line each."""
STARTS = "processors on nodes "
pytestmark = [pytest.mark.hard, pytest.mark.timeout(1200)]


@pytest.fixture(params=VERSIONS)
def racks(request: pytest.FixtureRequest) -> Iterator[Slurm]:
    for slurm in configured(str(request.param), "scale", TURN_ON):
        until("berthd to read the blocks", partial(_reads_blocks, slurm))
        slurm.passes()
        yield slurm


def _reads_blocks(slurm: Slurm) -> bool:
    log = "svc berthd log | grep 'leaves and pods from' | tail -1"
    return "topology.conf" in slurm.target.bash(log, user="root").out


def drawn(count: int, most: int) -> list[tuple[str, str]]:
    """The options of so many requests, Slurm's and Berth's."""
    draw, found = random.Random(SEED), []
    for _ in range(count):
        nodes, gpus = draw.choice([draw.randint(1, most), draw.choice((2, 4, 8, 12))]), draw.choice((1, 2, 4, 8))
        own = f"-N{nodes} --gpus-per-node={gpus}"
        if draw.random() < 0.4:
            own += f" --segment={draw.choice([size for size in range(1, TRAYS + 2) if nodes % size == 0])}"
        group = f"--group={draw.choice((1, 2, 4, 8, 12, 16, 24, 32, 64, 96))}" if draw.random() < 0.7 else ""
        found.append((own, group))
    return found


def test_drawn_requests_are_taken_as_on_plain_slurm_and_keep_their_segments(racks: Slurm) -> None:
    asked = drawn(COUNT, TRAYS * RACKS)
    counts, wrong = Counter[str](), []
    for begin in range(0, len(asked), 100):
        if begin == COUNT // 100 // 2 * 100:
            # The second half finds racks that are torn.
            for number in (1, 13, 14, 30, 49):
                held = racks.submit("-p", "plain", "-N1", "--exclusive", "-w", f"n{number}", body="sleep 999")
                racks.wait_state(held, {"RUNNING"})
            racks.passes()
        some = asked[begin : begin + 100]
        lines = "".join(f"{own}|{group}\n" for own, group in some)
        out = racks.target.run(["bash", "-c", TRY], user="alice", stdin=lines, timeout=600).out.split("\n")
        for request, line in zip(some, [line for line in out if line], strict=True):
            plain, berth = (nodes_of(one) for one in line.split("|"))
            counts["refused by both" if plain == berth == 0 else "taken"] += 1
            if plain != berth:
                wrong.append((request, line))
    print(f"{COUNT} tried on {racks.version}: {dict(counts)}, {len(wrong)} differ", flush=True)
    assert wrong == []
    racks.clear()
    # Slurm refuses a segment that is longer than a rack.
    _run(racks, [one for one in drawn(RUN, 2 * TRAYS) if f"--segment={TRAYS + 1}" not in one[0]])


def _run(slurm: Slurm, asked: list[tuple[str, str]]) -> None:
    """Runs requests to their end, and reads back the nodes of each: whole segments in each rack."""
    counts, wrong = Counter[str](), []
    for begin in range(0, len(asked), 20):
        jobs = {
            slurm.submit(*own.split(), *group.split(), body="true"): own for own, group in asked[begin : begin + 20]
        }
        for job in jobs:
            slurm.wait_state(job, {"COMPLETED"}, 200)
        for job, own in jobs.items():
            shown, values = slurm.show(job), segments.fields(slurm.comment(job)) or {}
            names = expand(shown["NodeList"])
            said = re.search(r"--segment=(\d+)", own) or re.search(r"in segments of (\d+|one) node", values["why"])
            size = int(said[1].replace("one", "1")) if said else 1
            in_rack = Counter((int(name[1:]) - 1) // TRAYS for name in names)
            counts["in segments" if said else values["state"]] += 1
            kept = shown.get("SegmentSize", "0") in {"0", str(size)}
            if len(names) != int(own.split()[0][2:]) or any(n % size for n in in_rack.values()) or not kept:
                wrong.append((own, shown["NodeList"], values["why"]))
    print(f"{len(asked)} ran on {slurm.version}: {dict(counts)}, {len(wrong)} wrong", flush=True)
    assert wrong == []


def nodes_of(said: str) -> int:
    """The nodes of a job that Slurm takes; 0 where it refuses."""
    return len(expand(said.removeprefix(STARTS))) if said.startswith(STARTS) else 0
