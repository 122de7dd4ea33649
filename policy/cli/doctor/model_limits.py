# SPDX-License-Identifier: Apache-2.0
"""Limits by GPU model in slurmdbd, and the commands that move them from `gres/gpu:MODEL` to Berth's licences."""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from policy.request.counted import PREFIX

BY_MODEL = re.compile(r"gres/gpu:(?!g\d{1,2}\b)([^=:,\s\"]+)", re.IGNORECASE)
"""A TRES that names a model; types of one GPU each do not count."""
_SETTABLE = {
    "GrpTRES": "GrpTRES",
    "GrpTRESMins": "GrpTRESMins",
    "GrpTRESRunMins": "GrpTRESRunMins",
    "MaxTRES": "MaxTRESPerJob",
    "MaxTRESMins": "MaxTRESMinsPerJob",
    "MaxTRESPerNode": "MaxTRESPerNode",
    "MaxTRESPA": "MaxTRESPerAccount",
    "MaxTRESPU": "MaxTRESPerUser",
    "MinTRES": "MinTRESPerJob",
}
"""By column of `sacctmgr show`, the option of `sacctmgr modify`."""
_QOS = tuple(_SETTABLE)
_ASSOCIATION = _QOS[:6]


@dataclass(frozen=True, slots=True)
class Limit:
    """A limit that names a model; `before` and `after` are the words of `sacctmgr modify` around the option."""

    whose: str
    before: str
    after: str
    option: str
    model: str
    value: str


def limits(printed: Callable[..., str], cluster: str) -> Iterator[Limit]:
    """Yields the limits by model of all QOS, and of the associations of one cluster, from sacctmgr."""
    for line in printed("sacctmgr", "-nP", "show", "qos", f"format=Name,{','.join(_QOS)}").splitlines():
        name, *values = line.split("|")
        yield from _limits(f"QOS {name}", f"qos {name}", "", _QOS, values)
    columns = f"Cluster,Account,User,Partition,{','.join(_ASSOCIATION)}"
    for line in printed("sacctmgr", "-nP", "show", "assoc", f"format={columns}").splitlines():
        own, account, user, partition, *values = line.split("|")
        if cluster and own.lower() != cluster.lower():
            continue
        who = f"user {user} of account {account}" if user else f"account {account}"
        named = f"name={user} account={account}" if user else f"name={account}"
        where = f" where {named} cluster={own}{f' partition={partition}' if partition else ''}"
        yield from _limits(who, "user" if user else "account", where, _ASSOCIATION, values)


def _limits(whose: str, before: str, after: str, columns: Sequence[str], values: Sequence[str]) -> Iterator[Limit]:
    for column, text in zip(columns, values, strict=False):
        for word in text.split(","):
            tres, _, value = word.partition("=")
            if match := BY_MODEL.fullmatch(tres):
                yield Limit(whose, before, after, _SETTABLE[column], match[1], value)


def commands(found: Iterable[Limit], *, back: bool = False) -> list[str]:
    """Returns the commands that move limits to licences, or back."""
    moved: dict[tuple[str, str], dict[str, list[str]]] = {}
    for one in found:
        old, new = f"gres/gpu:{one.model}", f"license/{PREFIX}{one.model}"
        old, new = (new, old) if back else (old, new)
        options = moved.setdefault((one.before, one.after), {})
        options.setdefault(one.option, []).append(f"{new}={one.value},{old}=-1")
    result = []
    for (before, after), options in moved.items():
        words = " ".join(f"{option}={','.join(values)}" for option, values in options.items())
        result.append(f"sacctmgr -i modify {before} set {words}{after}")
    return result
