# SPDX-License-Identifier: Apache-2.0
"""The table of `make bench NAME=replay`, from the runs that are there."""

from __future__ import annotations

from collections.abc import Sequence

from ..table import Figure, at_most
from .analysis import Ratios, faults, handovers, percentile, ratios, summary
from .outcome import Run

PLAIN, NOISE, EPILOG, BERTH, RANDOM = "plain", "plain2", "epilog", "berth", "random"
BLIND = "noscores"
"""The control that plans as Berth does and knows no GPU to be slow."""
PUBLISHED = ("pal", "pm-first")
MOST_OVER_PLAIN = {
    "jct": 0.95,
    "makespan": 1.02,
    "wait": 0.95,
    "p95_wait": 1.10,
    "longest_wait": 1.0,
    "longest_in_class": 1.25,
}
MORE_RATIOS = ("gpu_jct", "gpu_wait", "weighed_wait")


def by_system(runs: Sequence[Run]) -> dict[str, list[Run]]:
    """The runs of each system, by seed."""
    found: dict[str, list[Run]] = {}
    for run in sorted(runs, key=lambda run: run.seed):
        found.setdefault(run.system, []).append(run)
    return found


def figures(runs: Sequence[Run]) -> list[Figure]:
    """All figures that these runs can give."""
    systems = by_system(runs)
    found = _absolute(systems)
    plain = systems.get(PLAIN)
    if plain and BERTH in systems:
        noise = ratios(systems[NOISE], plain) if NOISE in systems else None
        found += _ratios(ratios(systems[BERTH], plain), noise)
    for name in (RANDOM, NOISE, EPILOG):
        if plain and name in systems:
            other = ratios(systems[name], plain)
            found += [Figure(f"{name}_{key}_ratio", getattr(other, key), "") for key in MOST_OVER_PLAIN]
    for name in (EPILOG, BLIND, *PUBLISHED):
        if BERTH in systems and name in systems:
            other = ratios(systems[BERTH], systems[name])
            found += [Figure(f"over_{name}_{key}_ratio", getattr(other, key), "") for key in MOST_OVER_PLAIN]
    if BERTH in systems:
        found += _promises(systems[BERTH])
    return found


def _ratios(berth: Ratios, noise: Ratios | None) -> list[Figure]:
    """Berth over plain; beside it how far two runs of plain Slurm differ."""
    peer = "plain over plain" if noise else ""

    def noise_of(key: str) -> float | None:
        return getattr(noise, key) if noise else None

    found = [
        at_most(f"{key}_ratio", getattr(berth, key), most, "", peer, noise_of(key))
        for key, most in MOST_OVER_PLAIN.items()
    ]
    return found + [Figure(f"{key}_ratio", getattr(berth, key), "", peer, noise_of(key)) for key in MORE_RATIOS]


def _absolute(systems: dict[str, list[Run]]) -> list[Figure]:
    found: list[Figure] = []
    for name, runs in systems.items():
        one = summary(runs)
        keys = ("jct", "gpu_jct", "wait", "makespan", "longest")
        found += [Figure(f"{name}_{key}_s", getattr(one, key), "s") for key in keys]
        found.append(Figure(f"{name}_stretch", one.stretch, "of ideal GPUs"))
        found.append(Figure(f"{name}_utilisation", one.utilisation, "of the GPUs"))
        # Half of the times at which a GPU goes from a job to one that waits: gathering for many nodes takes longer.
        if idle := [idle for run in runs for idle in handovers(run)]:
            found.append(Figure(f"{name}_handover_p50_s", percentile(idle, 0.50), "s"))
    return found


def _promises(runs: Sequence[Run]) -> list[Figure]:
    """What Berth alone has to keep."""
    bad = faults(runs)
    gpu_jobs = sum(one.width > 0 for run in runs for one in run.outcomes)
    waits = [spent / 1000 for run in runs for spent in run.notices_us]
    of_berthd = [spent / 1000 for run in runs for spent in run.answers_us]
    epilogs = [at_most("epilog_p99_ms", percentile(waits, 0.99), 50, "ms")] if waits else []
    epilogs += [Figure("epilog_p50_ms", percentile(waits, 0.50), "ms")] if waits else []
    epilogs += [Figure("epilog_answer_p99_ms", percentile(of_berthd, 0.99), "ms")] if of_berthd else []
    if of_berthd and len(of_berthd) == len(waits):
        # What a node needs on its own, until berthd has heard of it: no answer can make up for that.
        before = [spent - answer for spent, answer in zip(waits, of_berthd, strict=True)]
        epilogs.append(Figure("epilog_before_p99_ms", percentile(before, 0.99), "ms"))
    return [
        *epilogs,
        at_most("unplanned", bad.unplanned, 0, f"of {gpu_jobs} jobs"),
        at_most("lost", bad.lost, 0, "jobs"),
        at_most("stuck", bad.stuck, 0, "jobs"),
        at_most("shrunk", bad.shrunk, 0, "jobs"),
        at_most("updates_per_job", sum(run.updates for run in runs) / max(1, gpu_jobs), 1.5, ""),
    ]


def adversary_figures(runs: Sequence[Run]) -> list[Figure]:
    """How long jobs of 32 GPUs wait under a stream of small ones."""
    waits = {name: summary(own).by_class["32 GPUs"] for name, own in by_system(runs).items()}
    found = [Figure(f"{name}_wait_s", values[1], f"s, mean of {values[0]} jobs") for name, values in waits.items()]
    if PLAIN in waits and BERTH in waits:
        found.append(at_most("adversary_wait_ratio", waits[BERTH][1] / waits[PLAIN][1], 1.10, ""))
        found.append(Figure("adversary_longest_ratio", waits[BERTH][3] / waits[PLAIN][3], ""))
    return found


def chaos_figures(runs: Sequence[Run], calm: Sequence[Run]) -> list[Figure]:
    """What trouble costs; `calm` are runs of the same jobs without it."""
    own, bad = by_system(runs)[BERTH], faults(by_system(runs)[BERTH])
    pins_left = [run.notes["pins_left"] for run in own if run.notes["pins_left"] >= 0]
    peer = summary(calm).utilisation if calm else None
    return [
        at_most("lost", bad.lost, 0, "jobs"),
        at_most("stuck", bad.stuck, 0, "jobs"),
        at_most("shrunk", bad.shrunk, 0, "jobs"),
        at_most("pins_left", sum(pins_left), 0, f"waiting jobs, berthd ended in {len(pins_left)} runs"),
        Figure("unplanned", bad.unplanned, "jobs, most while berthd was dead"),
        Figure("utilisation", summary(own).utilisation, "of the GPUs", "without trouble" if peer else "", peer),
    ]


def details(runs: Sequence[Run]) -> str:
    """Waits by class, and how each run went; for people."""
    lines = []
    for name, own in by_system(runs).items():
        one = summary(own)
        lines.append(f"{name}: {len(own)} runs, {one.jobs} measured jobs")
        for label, (jobs, mean, p95, longest) in one.by_class.items():
            lines.append(
                f"  {label:9} {jobs:5} jobs   wait mean {mean:6.2f} s   p95 {p95:6.2f} s   longest {longest:6.2f} s"
            )
        for run in own:
            bad = faults([run])
            alone = summary([run])
            lines.append(
                f"  seed {run.seed}: JCT {alone.jct:.2f} s, wait {alone.wait:.2f} s, makespan {alone.makespan:.1f} s, "
                f"stretch {alone.stretch:.4f}, longest wait {alone.longest:.1f} s, unplanned {bad.unplanned}, "
                f"updates {run.updates}, denied {run.denied}, submitted {_late(run):.1f} s late at most, "
                f"processors {run.cpu_share:.0%}"
            )
            lines += [f"    {one.name}: {one.problem}" for one in run.outcomes if one.problem]
    return "\n".join(lines)


def _late(run: Run) -> float:
    """How much later than planned a job was submitted: the submitter itself must not be what jobs wait for."""
    delays = [one.asked - one.at for one in run.outcomes if one.asked]
    return max(delays) - min(delays)
