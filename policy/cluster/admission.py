"""Admission: tells if a partition admits a job, by the user's groups, the account and the QOS.

Slurm at once refuses a job that is placed in a partition which does not admit it. So "not known" is an answer of its
own: an account may be below one that is listed, and a job that names no QOS gets a default one.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from policy.formats.slurm_facts import AdmissionRule, PartitionFacts


@dataclass(frozen=True, slots=True)
class Submitter:
    """The account, QOS and groups of a new job, as the request gives them."""

    account: str = ""
    qos: str = ""
    by_groups: frozenset[str] | None = None
    """The partitions, of those it lists, that admit its user's groups; None if slurmctld did not say."""


def admits(partition: "PartitionFacts", who: Submitter) -> bool | None:
    """Tells whether a partition admits a job; None if only Slurm knows."""
    answers = (_by_groups(partition, who), _by_account(partition.accounts, who), _by_qos(partition.qos, who))
    if False in answers:
        return False
    return None if None in answers else True


def _by_groups(partition: "PartitionFacts", who: Submitter) -> bool | None:
    if partition.for_all_groups:
        return True
    return None if who.by_groups is None else partition.name in who.by_groups


def _by_account(rule: "AdmissionRule", who: Submitter) -> bool | None:
    account = who.account.lower()
    if rule.admits_all:
        return True
    if account and account in rule.never:
        return False
    # A rule for an account also holds for all accounts below it.
    return True if rule.only is not None and account in rule.only else None


def _by_qos(rule: "AdmissionRule", who: Submitter) -> bool | None:
    qos = who.qos.lower()
    if rule.admits_all:
        return True
    if not qos or "," in qos:
        return None
    return qos not in rule.never and (rule.only is None or qos in rule.only)
