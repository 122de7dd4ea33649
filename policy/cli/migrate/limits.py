"""Translates limits by GPU model in slurmdbd: `gres/gpu:MODEL` on one side, Berth's licences on the other."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from policy.request.counted import PREFIX

__all__ = ["ASSOCIATION_COLUMNS", "QOS_COLUMNS", "Limit", "associations", "commands", "qos"]

_SETTABLE = {
    "GrpTRES": "GrpTRES",
    "GrpTRESMins": "GrpTRESMins",
    "GrpTRESRunMins": "GrpTRESRunMins",
    "MaxTRES": "MaxTRESPerJob",
    "MaxTRESMins": "MaxTRESMinsPerJob",
    "MaxTRESPA": "MaxTRESPerAccount",
    "MaxTRESPerNode": "MaxTRESPerNode",
    "MaxTRESPU": "MaxTRESPerUser",
    "MinTRES": "MinTRESPerJob",
}
"""By the name of a column: the option of `sacctmgr modify`."""
QOS_COLUMNS = ("Name", *_SETTABLE)
ASSOCIATION_COLUMNS = (
    "Cluster", "Account", "User", "Partition",
    "GrpTRES", "GrpTRESMins", "GrpTRESRunMins", "MaxTRES", "MaxTRESMins", "MaxTRESPerNode",
)  # fmt: skip
_MODEL = re.compile(r"gres/gpu:(?!g\d{1,2}$)(.+)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Limit:
    """A limit that names a model."""

    whose: tuple[str, ...]
    """The words that name it to sacctmgr, such as `qos`, `normal`."""
    option: str
    model: str
    value: str

    @property
    def title(self) -> str:
        """The limit in words for a person."""
        return f"{' '.join(word for word in self.whose if word != 'where')}: {self.option} {self.model}={self.value}"


def qos(lines: Iterable[str]) -> Iterator[Limit]:
    """Yields the limits of `sacctmgr -nP show qos`, with `QOS_COLUMNS`."""
    for line in lines:
        name, *values = line.split("|")
        yield from _limits(("qos", name), QOS_COLUMNS[1:], values)


def associations(lines: Iterable[str], cluster: str) -> Iterator[Limit]:
    """Yields the limits of `sacctmgr -nP show assoc`, with `ASSOCIATION_COLUMNS`, of one cluster."""
    for line in lines:
        own, account, user, partition, *values = line.split("|")
        if cluster and own.lower() != cluster.lower():
            continue
        where = [f"account={account}" if user else f"name={account}", f"cluster={own}"]
        where += [f"partition={partition}"] if partition else []
        kind = "user" if user else "account"
        yield from _limits(
            (kind, "where", *([f"name={user}"] if user else []), *where), ASSOCIATION_COLUMNS[4:], values
        )


def _limits(whose: tuple[str, ...], columns: Sequence[str], values: Sequence[str]) -> Iterator[Limit]:
    for column, text in zip(columns, values, strict=False):
        for word in text.split(","):
            tres, _, value = word.partition("=")
            match = _MODEL.fullmatch(tres)
            if match:
                yield Limit(whose, _SETTABLE[column], match[1], value)


def commands(limits: Iterable[Limit], *, back: bool = False) -> list[str]:
    """Returns the commands that move limits to licences, or back."""
    moved: dict[tuple[str, ...], list[str]] = {}
    for limit in limits:
        old, new = f"gres/gpu:{limit.model}", f"license/{PREFIX}{limit.model}"
        old, new = (new, old) if back else (old, new)
        moved.setdefault(limit.whose, []).append(f"{limit.option}={new}={limit.value},{old}=-1")
    result = []
    for whose, settings in moved.items():
        by_option: dict[str, list[str]] = {}
        for setting in settings:
            option, _, value = setting.partition("=")
            by_option.setdefault(option, []).append(value)
        words = " ".join(f"{option}={','.join(values)}" for option, values in by_option.items())
        kind, *rest = whose
        where = f"{rest[0]} set {words}" if kind == "qos" else f"set {words} {' '.join(rest)}"
        result.append(f"sacctmgr -i modify {kind} {where}")
    return result
