# SPDX-License-Identifier: Apache-2.0
"""`make bench NAME=flood`: one user sends the dearest requests that Slurm looks at, and another's hook stays as it was.

A lone slurmctld with 1,024 nodes x 8 GPUs, as `make bench NAME=hook` has it, with 64 partitions that overlap and all
nodes but 128 in use: on a small cluster no request is dear. The victim submits a job on one GPU five times a second,
first alone and then beside the flood; each of its jobs finds a free one. The same is done with plain Slurm, whose
figures are those of the flood alone.

The flood's requests are of kinds never seen before, at the plugin's bounds, and exclude a node that does not exist: so
Slurm refuses each of them after the hook, and what is measured is no long queue. Most come as heterogeneous jobs, which
call the hook once for each component, since neither libslurm nor slurmctld could bring a thousand single submissions a
second on two cores. The flood's clients run with the lowest priority: on a real cluster they have computers of their
own.
"""

from __future__ import annotations

import argparse
import datetime
import random
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass
from statistics import median

from .hook import CLUSTER, LOG, Controller, quantile
from .table import Figure, at_most, report

PACE = "/usr/libexec/berth-bench/pace"
SUBMIT = "/usr/libexec/berth-bench/submit"
PARTITIONS = 64
"""As pace.c lists them."""
FREE_NODES = 128
"""One fewer than pace.c's gangs have, so that these have to wait."""
VICTIM, FLOOD = "alice", "mallory"
VICTIM_RATE, RATE = 5, 1_000
WARM = 5.0
LONGEST = (8 * FREE_NODES / VICTIM_RATE - WARM) / 2
"""Seconds of a phase after which the victim's jobs would have to wait: a place takes longer to find for such a job."""
PROCESSES = 8
MARGIN = 2.0
"""Seconds that the flood goes on before the victim begins, and after it ends."""
PATIENCE = 120.0
MOST_MORE_MS, MOST_GROWTH_MIB = 2.0, 10.0
LEFT = ("open", "dead", "timeout", "bad", "large")
"""Outcomes in which berthd gave no answer."""

PARTITIONS_OF_THE_SITE = f"""
for p in $(seq {PARTITIONS}); do
    first=$((p * 8 - 7)); echo "PartitionName=p$p Nodes=g[$first-$((first + 511))] MaxTime=INFINITE State=UP"
done >>/etc/slurm/slurm.conf
useradd -m {FLOOD}
"""
LOOKS = 7
MEMORY = f"""
for look in $(seq {LOOKS}); do
    for status in /proc/[0-9]*/status; do
        awk -v uid=$(id -u slurm) '/^Name:/ {{name = $2}} /^Uid:/ {{owner = $2}} /^VmRSS:/ {{rss = $2}}
            END {{if (owner == uid) print name, rss}}' $status 2>/dev/null
    done
    echo look 0; sleep 0.2
done
"""
PARTS = {"berthd": "answers", "python3": "plans", "berth-slurm": "reads"}
"""berthd's processes by name."""


@dataclass(frozen=True, slots=True)
class Phase:
    """What the victim saw for a while."""

    hook_ms: list[float]
    outcomes: Counter[str]
    client_ms: list[float]
    """Of whole submissions."""
    began: int
    ended: int

    @property
    def unanswered(self) -> int:
        return sum(self.outcomes[one] for one in LEFT)


@dataclass(frozen=True, slots=True)
class Found:
    """What one slurmctld did."""

    calm: Phase
    flood: Phase
    flooded: Counter[str]
    """Requests of the flood that came to the hook, by what became of them."""
    flood_seconds: float
    flood_taken: int
    waits: tuple[list[float], list[float]]
    """Seconds from submission to start of each of the victim's jobs, in calm and beside the flood."""
    memory: tuple[dict[str, float], ...]
    """MiB of berthd and slurmctld: before and after the calm, and at the end."""

    def growth(self, program: str) -> tuple[float, float]:
        """MiB in the calm, and beside the flood."""
        first, before, after = (one[program] for one in self.memory)
        return before - first, after - before


def as_user(user: str, command: str, nice: int = 0) -> str:
    """A command line that runs as somebody."""
    return f"nice -n {nice} setpriv --reuid={user} --regid={user} --init-groups {command}"


def fill(controller: Controller) -> None:
    """Jobs on all nodes but a few, each with a time limit of its own."""
    controller.bash(f"{SUBMIT} -n {controller.nodes - FREE_NODES} -g 8 -p gpu -m limit", timeout=600)
    controller.bash(
        f'for i in $(seq {PATIENCE:.0f}); do [ -z "$(squeue -h -t PD | head -1)" ] && exit 0; sleep 1; done; exit 1',
        timeout=PATIENCE + 60,
    )
    if controller.plugin == "berth":
        controller.wait(f"berth status --json | grep -q '\"free_gpus\": {8 * FREE_NODES}[,}}]'")


def memory_of(controller: Controller) -> dict[str, float]:
    """MiB that berthd's processes, and slurmctld, hold: a reading of Slurm that comes in between is none of it."""
    looks: list[Counter[str]] = [Counter()]
    for line in controller.bash(MEMORY).splitlines():
        name, kib = line.split()
        if name == "look":
            looks.append(Counter())
        elif name.startswith("slurm"):
            looks[-1]["slurmctld"] += int(kib)
        else:
            looks[-1].update({name: int(kib), "berthd, all": int(kib)})
    names = {name for look in looks for name in look}
    return {name: median(look[name] for look in looks[:-1]) / 1024 for name in names}


def hook_rows(controller: Controller) -> list[tuple[float, str, int]]:
    """Milliseconds in the hook, the outcome and the user of each call since the last look."""
    if controller.plugin not in LOG:
        return []
    text = controller.bash(f"cat {LOG[controller.plugin]}; : >{LOG[controller.plugin]}")
    rows = [line.split("\t") for line in text.splitlines()]
    return [(float(row[1]) / 1000, row[2], int(row[3])) for row in rows]


def pace(controller: Controller, command: str, seconds: float) -> tuple[list[float], int, int]:
    """Milliseconds of each submission, and how many requests were sent and taken."""
    *lines, last = controller.bash(command, timeout=seconds + PATIENCE).splitlines()
    _, sent, taken = last.split()
    return [float(line) / 1000 for line in lines], int(sent), int(taken)


def victims_phase(controller: Controller, seconds: float, uid: int) -> tuple[Phase, Counter[str]]:
    """Let the victim submit for a while; and what became of everybody else's requests meanwhile."""
    hook_rows(controller)
    began = int(controller.bash("date +%s"))
    command = as_user(VICTIM, f"{PACE} -r {VICTIM_RATE} -s {seconds}")
    client, sent, taken = pace(controller, command, seconds)
    if taken != sent:
        raise RuntimeError(f"Slurm took {taken} of the victim's {sent} jobs; see slurmctld.log in {controller.name}")
    rows = hook_rows(controller)
    mine = [row for row in rows if row[2] == uid]
    ended = int(controller.bash("date +%s"))
    phase = Phase([row[0] for row in mine], Counter(row[1] for row in mine), client, began, ended)
    return phase, Counter(row[1] for row in rows if row[2] != uid)


def waits(controller: Controller, phase: Phase) -> list[float]:
    """Seconds that the victim's jobs of a phase waited; those that still wait have waited until now."""
    now = int(controller.bash("date +%s"))
    rows = controller.bash(
        f"export SLURM_TIME_FORMAT=%s; squeue -h -u {VICTIM} -t all -O 'SubmitTime:20,StartTime:20,State:20'"
    )
    found = []
    for submitted, start, state in (line.split() for line in rows.splitlines()):
        if phase.began <= int(submitted) <= phase.ended:
            found.append(float((now if state == "PENDING" else int(start)) - int(submitted)))
    return found


def measure(controller: Controller, seconds: float, components: int) -> Found:
    """Calm, then the flood."""
    uid = int(controller.bash(f"id -u {VICTIM}"))
    fill(controller)
    victims_phase(controller, WARM, uid)
    print(f"bench-flood: {controller.plugin}: calm", flush=True)
    at_first = memory_of(controller)
    calm, _ = victims_phase(controller, seconds, uid)
    print(f"bench-flood: {controller.plugin}: the flood", flush=True)
    before = memory_of(controller)
    lasts = seconds + 2 * MARGIN
    flood = f"{PACE} -d -r {RATE} -s {lasts} -P {PROCESSES} -c {components} | tail -n 1 >/tmp/flood.out"
    controller.bash(f"({as_user(FLOOD, f'bash -c {flood!r}', 19)}) >/dev/null 2>&1 &")
    time.sleep(MARGIN)
    beside, flooded = victims_phase(controller, seconds, uid)
    after = memory_of(controller)
    controller.wait("[ -s /tmp/flood.out ]")
    _, _, taken = controller.bash("cat /tmp/flood.out").split()
    time.sleep(MARGIN)
    found = (waits(controller, calm), waits(controller, beside))
    return Found(
        calm, beside, flooded, float(beside.ended - beside.began), int(taken), found, (at_first, before, after)
    )


def interval(calm_ms: list[float], flood_ms: list[float]) -> tuple[float, float]:
    """The 5th and the 95th percentile of how far the p99 beside the flood is over calm, by 2,000 drawings."""
    draw = random.Random(1)
    over = sorted(
        quantile(draw.choices(flood_ms, k=len(flood_ms)), 0.99) - quantile(draw.choices(calm_ms, k=len(calm_ms)), 0.99)
        for _ in range(2_000)
    )
    return over[100], over[1_899]


def figures_of(berth: Found, plain: Found) -> list[Figure]:
    """The table."""
    alone, calm_words = "plain Slurm, flooded", "calm"
    calm, flood = berth.calm, berth.flood
    figures = [
        Figure("flood_asked", RATE, "requests a second"),
        Figure("flood_reached", sum(berth.flooded.values()) / berth.flood_seconds, "requests a second"),
        Figure("flood_taken", berth.flood_taken, "requests", alone, plain.flood_taken),
    ]
    for name, share in (("p50", 0.5), ("p99", 0.99)):
        before, beside = quantile(calm.hook_ms, share), quantile(flood.hook_ms, share)
        figures += [
            Figure(f"hook_{name}_ms", beside, "ms", calm_words, before),
            at_most(f"hook_{name}_over_calm_ms", beside - before, MOST_MORE_MS, "ms"),
        ]
    figures += [
        Figure("hook_longest_ms", max(flood.hook_ms), "ms", calm_words, max(calm.hook_ms)),
        at_most("victim_open", flood.outcomes["open"], 0, f"of {len(flood.hook_ms)} requests"),
        Figure("victim_unanswered", berth.flood.unanswered, f"of {len(flood.hook_ms)} requests", calm_words,
               berth.calm.unanswered),
    ]  # fmt: skip
    for outcome, count in sorted(berth.flooded.items()):
        figures.append(Figure(f"flood_{outcome}", count, f"of {sum(berth.flooded.values())} requests"))
    for name, share in (("p50", 0.5), ("p99", 0.99)):
        figures += [
            Figure(f"client_calm_{name}_ms", quantile(calm.client_ms, share), "ms", "plain Slurm, calm",
                   quantile(plain.calm.client_ms, share)),
            Figure(f"client_{name}_ms", quantile(flood.client_ms, share), "ms", alone,
                   quantile(plain.flood.client_ms, share)),
        ]  # fmt: skip
    for at, name, peer in ((0, "wait_calm", "plain Slurm, calm"), (1, "wait", alone)):
        mine, theirs = berth.waits[at], plain.waits[at]
        figures += [
            Figure(f"{name}_p50_s", median(mine), "s", peer, median(theirs)),
            Figure(f"{name}_p99_s", quantile(mine, 0.99), "s", peer, quantile(theirs, 0.99)),
        ]
    calm_mib, flood_mib = berth.growth("berthd, all")
    low, high = interval(calm.hook_ms, flood.hook_ms)
    return [
        *figures,
        Figure("hook_p99_over_calm_from_ms", low, "ms"),
        Figure("hook_p99_over_calm_to_ms", high, "ms"),
        Figure("berthd_rss_mib", berth.memory[2]["berthd, all"], "MiB", "before the flood",
               berth.memory[1]["berthd, all"]),
        *(Figure(f"berthd_{part}_growth_mib", berth.growth(name)[1], "MiB", calm_words, berth.growth(name)[0])
          for name, part in PARTS.items()),
        at_most("berthd_growth_mib", flood_mib, MOST_GROWTH_MIB, "MiB", calm_words, calm_mib),
        Figure("slurmctld_calm_growth_mib", berth.growth("slurmctld")[0], "MiB", "plain Slurm, calm",
               plain.growth("slurmctld")[0]),
        Figure("slurmctld_growth_mib", berth.growth("slurmctld")[1], "MiB", alone, plain.growth("slurmctld")[1]),
    ]  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--slurm", default="24.11")
    parser.add_argument("--seconds", type=float, default=60.0, help="of calm, and of the flood")
    parser.add_argument("--components", type=int, default=16, help="requests in each submission of the flood")
    args = parser.parse_args()
    if args.seconds > LONGEST:
        parser.error(f"--seconds: at most {LONGEST:g}, or the victim's jobs would find no free GPUs")
    subprocess.run([sys.executable, CLUSTER, "build", "--slurm", args.slurm], check=True)
    found = {}
    for plugin in ("none", "berth"):
        layout = "by-model" if plugin == "none" else "by-position"
        with Controller(args.slurm, plugin, layout) as controller:
            controller.bash(PARTITIONS_OF_THE_SITE)
            with controller.running():
                found[plugin] = measure(controller, args.seconds, args.components)
                slurm = controller.bash("sinfo --version").strip()
    notes = {
        "slurm": slurm,
        "nodes": str(controller.nodes),
        "seconds": f"{args.seconds:g}",
        "components": str(args.components),
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
    }
    figures = figures_of(found["berth"], found["none"])
    report("flood", f"one user floods, another submits: {slurm}, {args.seconds:g} s each", figures, notes)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
