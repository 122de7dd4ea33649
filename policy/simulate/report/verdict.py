# SPDX-License-Identifier: Apache-2.0
"""Writes a simulation's result in one sentence: the waiting time that Berth would have saved, and for which jobs."""

from collections.abc import Sequence

from policy.simulate.report.chance import better_plain, figure, largest_by_chance, ratio, wait_of
from policy.simulate.report.summary import Line, Summary, lines

_ALIKE = 0.01
"""Relative differences below this count as none."""


def verdict(rows: Sequence[Summary]) -> str:
    """Compares Berth with plain Slurm, or else the last policy with the first one."""
    every = lines(rows)
    played = [line for line in every if line.policy != "recorded"]
    if len(played) < 2:
        return "Only one policy was played: there is nothing to compare it with."
    if least := [line for line in played if line.mean("never_started")]:
        found = ", ".join(f"{line.policy}: {line.mean('never_started'):.0f}" for line in least)
        return f"Some jobs never started ({found}): the means are of the others, and are not compared."
    names = {line.policy: line for line in played}
    other = better_plain(played) or played[0]
    ours = names.get("berth", played[-1])
    if ours is other:
        ours = played[-1] if played[-1] is not other else played[0]
    return _compared(ours, other)


def _compared(ours: Line, other: Line) -> str:
    us = "Berth" if ours.policy == "berth" else ours.policy
    them = {"slurm": "plain Slurm", "slurm-tree": "plain Slurm with topology/tree"}.get(other.policy, other.policy)
    saved, cost, chance, pairs = list[str](), list[str](), list[str](), 0
    for name, words in (("avg_wait_s", "waiting"), ("avg_jct_s", "the time from submission to end")):
        found = ratio(ours, other, figure(name))
        pairs, less = found.pairs, found.value < 1.0
        if abs(found.value - 1.0) < _ALIKE:
            continue
        change = f"{100 * abs(found.value - 1.0):.0f} %{'' if less else ' more'} of {words}"
        if pairs > 1:
            ends = sorted(100 * (1.0 - end if less else end - 1.0) for end in (found.lower, found.upper))
            change += f" ({round(ends[0])} to {round(ends[1])} %)"
        (chance if pairs > 1 and found.is_chance else saved if less else cost).append(change)
    said = [f"{verb} {' and '.join(some)}" for verb, some in (("saved", saved), ("cost", cost)) if some]
    if said:
        text = f"{us} would have {', but '.join(said)}, beside {them}{_sizes(ours, other)}."
    elif chance:
        text = f"{us} would have made no difference beyond chance, beside {them}."
    else:
        text = f"{us} would have made no difference of one percent to waits and times to the end, beside {them}."
    if chance:
        text += f" No more than chance: {' and '.join(chance)}."
    return f"{text} {f'{pairs} pairs of the same arrivals.' if pairs > 1 else _ONE}"


_ONE = "One draw of the arrivals does not tell how much of that is chance."


def _sizes(ours: Line, other: Line) -> str:
    """Names the classes of GPUs that gained most waiting time, and those that lost more than by chance."""
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
    bound = largest_by_chance(other, [wait_of(name) for name in gains])
    lost = [
        name
        for name, value in gains.items()
        if value < -_ALIKE * whole and ratio(ours, other, wait_of(name)).value > bound
    ]
    longer = f"; jobs on {_gpus(' or '.join(lost))} would have waited longer" if lost else ""
    return f"; most for jobs on {_gpus(best)}{longer}"


def _gpus(name: str) -> str:
    return f"{name} GPU{'' if name == '1' else 's'}"
