# SPDX-License-Identifier: Apache-2.0
"""Holds what a slurmctld logged against the protocol of places: each life of a job, whatever else a test looked at.

* A place is written to a job that waits, never to one that runs.
* A job begins on the nodes of the last place that was written for it.
* A GPU has one owner: no two jobs that have it whole run at once.

Only what Slurm's user writes is a place of Berth's. Where the log is silent or another writes, nothing is known of a
job until its next place, so this finds less than there may be and nothing that is not.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from policy.formats import hostlist

__all__ = ["ProtocolTrace", "wrong_in"]

#: `JobId=33`, `JobId=31_1(33)`, `JobId=31_*` for the tasks that have not split off, `JobId=17+1(18)`.
_NAME = r"JobId=(?P<name>\d+(?:[_+](?:\*|\d+|\[[^\]]*\]))?(?:\(\d+\))?)"
_STAMP = re.compile(r"^\[[^\]]*\] |^slurmctld: ")
_EXTRA = re.compile(rf"_update_job: setting extra to (?P<text>.*) for {_NAME}$")
_OTHER = re.compile(rf"_update_job: .* for (?:pending )?{_NAME}$")
_WROTE = re.compile(rf"_slurm_rpc_update_job: (?:complete )?{_NAME} uid=(?P<user>\d+)")
_BEGINS = re.compile(rf"(?:Allocate|_slurm_rpc_allocate_resources) {_NAME} NodeList=(?P<nodes>\S+)|"
                     rf"Started {_NAME.replace('name', 'other')} in \S+ on (?P<on>\S+)")  # fmt: skip
_PLACE = re.compile(r"\[berth/1 nodes=(?P<nodes>\S+?) gpus=(?P<gpus>[\d,]+)(?P<rest>[^\]]*)\]")
_ANY = re.compile(_NAME)
_RESTART = re.compile(r"slurmctld version \S+ started")


@dataclass(slots=True)
class _Known:
    """The log's knowledge of one record; None: not known."""

    place: tuple[frozenset[str], frozenset[int], bool] | None = None
    """Nodes, GPUs, and whether they are its own."""
    runs: bool = False


@dataclass(slots=True)
class ProtocolTrace:
    """Reads a log line by line."""

    user: int
    """Slurm's: whose updates are Berth's."""
    wrong: list[str] = field(default_factory=list)
    places: int = 0
    """Places that were written, and begins that were compared with one."""
    begins: int = 0
    _jobs: dict[str, _Known] = field(default_factory=dict)
    _writing: list[tuple[str, str]] = field(default_factory=list)
    _numbers: dict[str, str] = field(default_factory=dict)
    """The tasks that have a number of their own."""

    def read(self, lines: Iterable[str]) -> None:
        """Takes all lines in their order."""
        for line in lines:
            self._line(_STAMP.sub("", line.rstrip("\n")))

    def _line(self, line: str) -> None:
        if _RESTART.search(line):
            self._jobs.clear()
            self._writing.clear()
        elif found := _EXTRA.search(line):
            self._writing.append((found["name"], found["text"]))
        elif found := _WROTE.search(line):
            self._wrote(found["name"], int(found["user"]), line)
        elif found := _BEGINS.search(line):
            self._begins(found["name"] or found["other"], found["nodes"] or found["on"], line)
        elif not _OTHER.search(line) and (found := _ANY.search(line)):
            # Its end, a requeue, a signal, or what this does not know.
            self._forget(found["name"])

    def _wrote(self, name: str, user: int, line: str) -> None:
        """The line that ends an update; what it set stands before it."""
        wrote, self._writing = self._writing, []
        if user != self.user:
            self._forget(name)
        for record, text in wrote if user == self.user else ():
            known = self._known(record)
            found = _PLACE.search(text)
            known.place = None
            if found:
                self.places += 1
                rest = found["rest"]
                own = "share=" not in rest and "tier=" not in rest
                gpus = frozenset(map(int, found["gpus"].split(",")))
                known.place = frozenset(hostlist.expand(found["nodes"])), gpus, own
            if found and known.runs:
                self.wrong.append(f"a place was written to JobId={record}, which runs: {text} ({line})")

    def _begins(self, name: str, nodes: str, line: str) -> None:
        known = self._known(name)
        known.runs = nodes != "(null)"
        if known.place is None or not known.runs:
            return
        self.begins += 1
        where, gpus, own = known.place
        if frozenset(hostlist.expand(nodes)) != where:
            self.wrong.append(f"JobId={name} begins elsewhere than on {','.join(sorted(where))}: {line}")
        for other, one in self._jobs.items():
            if one is known or not (one.runs and one.place and own and one.place[2]):
                continue
            if where & one.place[0] and gpus & one.place[1]:
                self.wrong.append(f"JobId={name} begins on a GPU of JobId={other}, which runs: {line}")

    def _known(self, name: str) -> _Known:
        """A task that has just split off has what was known of its array's rest."""
        key = _key(name)
        if "(" in name:
            self._numbers[name.partition("(")[2].rstrip(")")] = key
        if key not in self._jobs:
            rest = self._jobs.get(f"{name.partition('_')[0]}_*") if "_" in name else None
            self._jobs[key] = _Known(rest.place if rest else None)
        return self._jobs[key]

    def _forget(self, name: str) -> None:
        """A number may be an array's, and means all its tasks then."""
        self._jobs.pop(_key(name), None)
        self._jobs.pop(self._numbers.get(name, name), None)
        first = name.partition("_")[0].partition("+")[0]
        if "(" not in name:
            self._jobs.pop(f"{first}_*", None)
            self._jobs = {key: one for key, one in self._jobs.items() if not key.startswith(f"{first}_")}


def _key(name: str) -> str:
    """Returns one key for all names of a record: `31_1(33)` is `31_1`."""
    return name.partition("(")[0]


def wrong_in(log: str, user: int) -> list[str]:
    """Returns what a whole log has that the protocol forbids."""
    trace = ProtocolTrace(user)
    trace.read(log.splitlines())
    return trace.wrong
