# SPDX-License-Identifier: Apache-2.0
"""Tiers: a job has the tier that it asks for, if allowed; else the site's default for its QOS or partition."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product

from policy.formats.errors import FormatError, Never
from policy.formats.flags import TIERS, Tier, parse_tier

EXCLUSIVE, GUARANTEED, OPPORTUNISTIC = TIERS

ALONE = Tier()
"""Tier of jobs if neither the job nor the site names one."""

_WORD = re.compile(r"(?:(qos|partition)=([A-Za-z0-9_.\-]+):)?(.+)")


@dataclass(frozen=True, slots=True)
class TierRule:
    """A rule for the jobs of a QOS or a partition, or for all others."""

    kind: str
    """`qos`, `partition`, or empty for all."""
    name: str
    value: str


Rules = tuple[TierRule, ...]


def parse_default(text: str) -> Rules:
    """Reads `tier_default`.

    >>> [(rule.kind, rule.name, rule.value) for rule in parse_default("qos=scavenger:opportunistic guaranteed")]
    [('qos', 'scavenger', 'opportunistic'), ('', '', 'guaranteed')]
    """
    rules = _parse(text)
    for rule in rules:
        parse_tier(rule.value)
    return rules


def parse_allowed(text: str) -> Rules:
    """Reads `tier_allowed`: tiers joined by `+`."""
    rules = _parse(text)
    for rule in rules:
        for tier in rule.value.split("+"):
            if parse_tier(tier).name != tier:
                raise FormatError(f"{rule.value!r} is more than tiers joined by +, such as exclusive+guaranteed")
    return rules


def _parse(text: str) -> Rules:
    rules = []
    for word in text.split():
        match = _WORD.fullmatch(word)
        if match is None or "=" in match[3] or ":" in match[3]:
            raise FormatError(f"{word!r} is not [qos=NAME:|partition=NAME:]TIER, such as qos=scavenger:opportunistic")
        kind, name = match[1] or "", match[2] or ""
        rules.append(TierRule(kind, name.lower() if kind == "qos" else name, match[3]))
    return tuple(rules)


def find(rules: Rules, qos: str, partition: str) -> str:
    """Returns the value of the first rule that fits: QOS before partition before all; empty if none fits.

    From a list of QOS the first one that a rule names counts. Slurm ignores the case of a QOS, and not of a partition.

    >>> find(parse_default("qos=borrow:opportunistic guaranteed"), "vision,borrow", "gpu")
    'opportunistic'
    """
    for kind, name in (*(("qos", one) for one in qos.lower().split(",")), ("partition", partition), ("", "")):
        for rule in rules:
            if rule.kind == kind and (rule.name == name or not kind):
                return rule.value
    return ""


def settle(
    flags: Mapping[str, str], qos: str, partitions: str, default: Rules, allowed: Rules, *, share: bool = False
) -> Tier:
    """Returns the tier of a job; raises if a rule of the site does not allow it.

    With several partitions, the first one gives the default tier, and each one must allow the job's tier. Each of
    several QOS must allow it too, as Slurm may start the job by any of them. A share is never a guest, so a rule for
    guests alone forbids it. A guest that asks for `upgrade` may come to own its GPU, so it must be allowed that too.
    """
    names = partitions.split(",")
    asked = flags.get("gpu-tier")
    said = asked or ("" if share else find(default, qos, names[0]))
    tier = parse_tier(said) if said else ALONE
    wanted = {EXCLUSIVE, GUARANTEED} if share else {tier.name}
    for one, name in product(qos.lower().split(","), names):
        may = find(allowed, one, name).split("+")
        if may == [""] or (not wanted.isdisjoint(may) and not (asked and tier.upgrade and EXCLUSIVE not in may)):
            continue
        by_qos = any(rule.kind == "qos" and rule.name == one for rule in allowed)
        where = f"QOS {one}" if by_qos else f"partition {name}"
        what = f"--gpu-tier={asked}" if asked else "--gpu-share" if share else f"no --gpu-tier, which means {tier.name}"
        raise Never(f"{what}: a job of {where} may be {' or '.join(may)}; say --gpu-tier={may[0]}", 403)
    return tier
