"""Writes what the plan decided into Slurm, and keeps the list of pinned jobs that the plugin reads."""

import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from policy.daemon import log, pinned
from policy.decide import berth_values
from policy.errors import DaemonError, SlurmError
from policy.facts import Reading
from policy.moves import Change, Move, Release
from policy.slurm.interface import Gateway, Pin
from policy.waiting import Waiting

_RETRY_LIST_EVERY = 60.0


class Pins:
    """One update a change. What Slurm then shows is what later passes plan with."""

    def __init__(self, gateway: Gateway, pinned_file: Path) -> None:
        self._gateway = gateway
        self._pinned_file = pinned_file
        self._listed: frozenset[int] | None = None
        self._no_list_before = 0.0
        self.written = 0

    def write(self, changes: Sequence[Change], reading: Reading) -> list[int]:
        """Write some changes; one that fails does not keep the others. The jobs of those that failed come back."""
        failed: list[int] = []
        for change in changes:
            name = _name(change)
            try:
                if isinstance(change, Release):
                    if self._gateway.release(change.job.id, f"given back to Slurm: {change.reason}"):
                        self.written += 1
                    log.info(f"JobId={name} given back to Slurm: {change.reason}")
                    continue
                berth, values = change.berth, moved(change, reading.at)
                self._gateway.pin(_target(change), Pin(berth.names, berth.gpus, berth.seats, values))
                self.written += 1
                log.info(f"JobId={name} NodeList={values['nodes']} GPUs={values['gpus']} pinned: {change.reason}")
            except SlurmError as problem:
                failed.append(change.job.id)
                log.error(f"JobId={name} keeps its place: {problem}")
        return failed

    def list_pinned(self, queue: Iterable[Waiting]) -> None:
        """Let the plugin know which jobs have a place that their owners cannot change by hand."""
        jobs = frozenset(entry.job.id for entry in queue if entry.nodes)
        now = time.monotonic()
        if jobs == self._listed or now < self._no_list_before:
            return
        try:
            pinned.write(self._pinned_file, jobs)
            self._listed = jobs
        except DaemonError as problem:
            self._no_list_before = now + _RETRY_LIST_EVERY
            log.error(problem)


def moved(move: Move, at: float) -> dict[str, str]:
    """The segment of a job after a move."""
    old = {key: value for key, value in (move.job.segment or {}).items() if key != "start"}
    old = {key: value for key, value in old.items() if not key.startswith("because")}
    values = {
        **old,
        **move.adopted,
        "state": "waiting" if move.start else "placed",
        **berth_values(move.berth),
        "at": str(int(at)),
        "pins": str(int(old.get("pins", "0")) + 1),
        "why": f"{move.reason}; {move.berth.why}",
    }
    if move.start:
        values["start"] = str(int(move.start))
    return values


def _name(change: Change) -> str:
    task = change.task if isinstance(change, Move) else None
    return str(change.job.id) if task is None else f"{change.job.array}_{task}"


def _target(move: Move) -> int | str:
    """How Slurm names what is to be moved; an array's own number would mean its running tasks too."""
    if move.task is not None:
        return f"{move.job.array}_{move.task}"
    tasks = move.job.tasks.partition("%")[0]
    return f"{move.job.array}_[{tasks}]" if tasks and "." not in tasks else move.job.id
