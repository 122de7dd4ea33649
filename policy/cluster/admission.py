"""Which partitions admit a job, by its user's groups, its account and its QOS.

Slurm refuses a job at once that is placed in a partition which does not admit it, so what cannot be known when it comes
is kept apart from what is: an account may be below one that is listed, and who names no QOS gets one all the same.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from policy.formats.slurm_facts import PartitionFacts, Rule


@dataclass(frozen=True, slots=True)
class Who:
    """What a job that comes says of whose it is."""

    account: str = ""
    qos: str = ""
    by_groups: frozenset[str] | None = None
    """Those of its partitions that admit its user's groups; None where slurmctld did not say."""


def admits(partition: "PartitionFacts", who: Who) -> bool | None:
    """Whether a partition admits a job; None where only Slurm knows."""
    answers = (_by_groups(partition, who), _by_account(partition.accounts, who), _by_qos(partition.qos, who))
    if False in answers:
        return False
    return None if None in answers else True


def _by_groups(partition: "PartitionFacts", who: Who) -> bool | None:
    if partition.for_all_groups:
        return True
    return None if who.by_groups is None else partition.name in who.by_groups


def _by_account(rule: "Rule", who: Who) -> bool | None:
    account = who.account.lower()
    if rule.admits_all:
        return True
    if account and account in rule.never:
        return False
    # What holds for an account holds for all below it.
    return True if rule.only is not None and account in rule.only else None


def _by_qos(rule: "Rule", who: Who) -> bool | None:
    qos = who.qos.lower()
    if rule.admits_all:
        return True
    if not qos or "," in qos:
        return None
    return qos not in rule.never and (rule.only is None or qos in rule.only)
