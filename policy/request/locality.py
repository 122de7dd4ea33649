# SPDX-License-Identifier: Apache-2.0
"""Locality: the level at which a job's GPUs must be close together, and the time for which it insists on that.

A job insists on its level for a time that begins when it may start. After that it takes the nearest level at which it
can start; levels are tried from near to far. So the time is the most that locality can cost it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from policy.formats import flags as flag_table
from policy.formats.errors import FormatError, LeftToSlurm
from policy.formats.job_plan import JobPlan
from policy.formats.plan_fields import INSISTS, WAIT


@dataclass(frozen=True, slots=True)
class Insistence:
    """A level, and the seconds for which a job insists on it."""

    level: str
    wait: int


@dataclass(frozen=True, slots=True)
class SizeRule:
    """A site's rule for jobs that name no level and have at least a number of GPUs."""

    gpus: int
    insistence: Insistence


def parse_rules(text: str, default_wait: int) -> tuple[SizeRule, ...]:
    """Reads a site's rules, such as `2:nvlink@5 9:leaf@30`: from 2 GPUs on, from 9 on.

    >>> [(rule.gpus, rule.insistence.level, rule.insistence.wait) for rule in parse_rules("2:nvlink@5 9:leaf", 600)]
    [(2, 'nvlink', 300), (9, 'leaf', 600)]
    """
    rules = []
    for word in text.split():
        gpus, colon, asked = word.partition(":")
        if not (colon and gpus.isascii() and gpus.isdigit()):
            raise FormatError(f"{word!r} is not GPUS:LEVEL[@TIME], such as 9:leaf@30")
        locality = flag_table.parse_locality(asked)
        rules.append(
            SizeRule(int(gpus), Insistence(locality.level, default_wait if locality.wait is None else locality.wait))
        )
    return tuple(sorted(rules, key=lambda rule: rule.gpus))


def settle(
    asked: flag_table.Locality | None, gpus: int, rules: Sequence[SizeRule], default_wait: int, cap: int | None
) -> Insistence | None:
    """Returns what a job insists on: its user's request, else the site's rule for its size; capped by the admin."""
    if asked is not None:
        found = Insistence(asked.level, default_wait if asked.wait is None else asked.wait)
    else:
        fitting = [rule.insistence for rule in rules if rule.gpus <= gpus]
        if not fitting:
            return None
        found = fitting[-1]
    return found if cap is None else Insistence(found.level, min(found.wait, cap))


def of_switches(count: int | None, wait: int | None, nodes: int) -> flag_table.Locality | None:
    """Turns `--switches=COUNT@TIME` into a locality; None if it sets no condition for this number of nodes.

    >>> of_switches(1, 90, 2), of_switches(1, 90, 1), of_switches(4, None, 4)
    (Locality(level='leaf', wait=90), None, None)
    """
    if count is None or count >= nodes:
        return None
    if count > 1:
        raise LeftToSlurm(f"with --switches={count} Slurm counts leaves as it chooses", 220)
    return flag_table.Locality("leaf", wait)


def insisted(plan: JobPlan) -> Insistence | None:
    """Reads what a placed job insists on from its plan."""
    level, wait = plan.get(INSISTS, ""), plan.get(WAIT)
    return None if wait is None or level not in flag_table.LEVELS else Insistence(level, wait)
