"""Says in one sentence what a simulation found: what Berth would have saved, and for whom."""

from collections.abc import Sequence

from policy.simulate.report.summary import Summary
from policy.simulate.report.table import Line, lines
from policy.simulate.study import PLAIN_SLURM

_ALIKE = 0.01
"""Differences below this part are none."""


def verdict(rows: Sequence[Summary]) -> str:
    """Compares Berth with plain Slurm, or else the last policy with the first one."""
    every = lines(rows)
    if any(line.swept for line in every):
        return "Several settings were played: the table compares the policies for each of them."
    played = [line for line in every if line.policy != "recorded"]
    if len(played) < 2:
        return "Only one policy was played: there is nothing to compare it with."
    if least := [line for line in played if line.mean("never_started")]:
        found = ", ".join(f"{line.policy}: {line.mean('never_started'):.0f}" for line in least)
        return f"Some jobs never started ({found}): the means are of the others, and are not compared."
    names = {line.policy: line for line in played}
    plain = [names[name] for name in PLAIN_SLURM if name in names]
    other = min(plain, key=lambda line: line.mean("avg_jct_s") or 0.0, default=played[0])
    ours = names.get("berth", played[-1])
    if ours is other:
        ours = played[-1] if played[-1] is not other else played[0]
    return _compared(ours, other)


def _compared(ours: Line, other: Line) -> str:
    us = "Berth" if ours.policy == "berth" else ours.policy
    them = {"slurm": "plain Slurm", "slurm-tree": "plain Slurm with topology/tree"}.get(other.policy, other.policy)
    parts: dict[str, list[str]] = {"saved": [], "cost": []}
    for figure, words in (("avg_wait_s", "waiting"), ("avg_jct_s", "the time from submission to end")):
        after, before = ours.mean(figure) or 0.0, other.mean(figure) or 0.0
        if before and abs(after - before) >= _ALIKE * before:
            change = f"{100 * abs(after - before) / before:.0f} %"
            if after < before:
                parts["saved"].append(f"{change} of {words}")
            else:
                parts["cost"].append(f"{change} more of {words}")
    said = [f"{verb} {' and '.join(changes)}" for verb, changes in parts.items() if changes]
    if not said:
        return f"{us} would have made no difference of one percent to waits and times to the end, beside {them}."
    return f"{us} would have {', but '.join(said)}, beside {them}{_sizes(ours, other)}."


def _sizes(ours: Line, other: Line) -> str:
    """Names the classes of GPUs that gained most waiting time, and those that lost."""
    gains: dict[str, float] = {}
    for sign, line in ((1.0, other), (-1.0, ours)):
        for run in line.runs:
            for name, seconds in run.wait_by_gpus.items():
                gains[name] = gains.get(name, 0.0) + sign * seconds / len(line.runs)
    saved = {name: value for name, value in gains.items() if value > 0}
    whole = sum(saved.values())
    if not whole or len(gains) < 2:
        return ""
    best = max(saved, key=lambda name: saved[name])
    lost = [name for name, value in gains.items() if value < -_ALIKE * whole]
    longer = f"; jobs on {_gpus(' or '.join(lost))} would have waited longer" if lost else ""
    return f"; most for jobs on {_gpus(best)}{longer}"


def _gpus(name: str) -> str:
    return f"{name} GPU{'' if name == '1' else 's'}"
