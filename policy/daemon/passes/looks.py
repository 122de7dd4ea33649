# SPDX-License-Identifier: Apache-2.0
"""Reads Slurm: the last reading, what it allows, and the time that a reading takes."""

import statistics
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import replace

from policy.cluster.untyped import NodePins, numbered
from policy.daemon.passes.handover import Sender, Snapshot
from policy.formats.errors import FormatError, SlurmError, UnreadableError
from policy.formats.selection import Selection
from policy.formats.slurm_facts import JobFacts, Reading
from policy.site import log
from policy.site.config import Config
from policy.slurm.interface import Gateway
from policy.slurm.releases import why_only_watched
from policy.slurm.waits import WAITS

_GOES_ON = frozenset({"PENDING", "RUNNING", "SUSPENDED", "CONFIGURING", "RESIZING", "SIGNALING", "STOPPED"})
"""States of a job that keeps its GPUs, or has none yet."""

_REST_OF_HINTS = 20.0
"""The pause after a question about a hint, as a multiple of the time that it took."""

LAST = 60
"""Readings and passes whose median times `berth status` shows: about a minute of them."""


class SlurmLooks:
    """Reads Slurm, and keeps the last reading."""

    def __init__(self, gateway: Gateway, config: Config, sender: Sender) -> None:
        self._gateway, self._sender = gateway, sender
        self._observes = config.observe
        self._watches = config.observe or config.plain
        self._node_pins = NodePins() if config.plain else None
        self._looked_at = 0.0
        self._requeued: dict[int, bool] = {}
        """Answers of Slurm, by job that ends."""
        self._is_silent = False
        """True if Slurm has not answered such a question since the last reading."""
        self._asks_from = 0.0
        """Monotonic time from which on Slurm may be asked about a hint again."""
        self._blind = False
        """True if Slurm answers and its answer cannot be read: no process updates the pins then."""
        self.problem = ""
        """The reason why Slurm cannot be read now."""
        self.leave = ""
        """The reason why all jobs are left to Slurm; empty if Berth may change jobs."""
        self.unreadable = frozenset[int]()
        """Jobs whose records cannot be read."""
        self.reading: Reading | None = None
        self.took: deque[float] = deque(maxlen=LAST)
        WAITS.tell(self.sign)

    @property
    def in_charge(self) -> bool:
        """Tells whether the slurmctld of this host is in charge."""
        return self.reading is not None and self.reading.in_control

    @property
    def acts(self) -> bool:
        """Tells whether Berth may change jobs: not on a standby, nor while it only watches."""
        return self.in_charge and not self.leave and not self._observes

    @property
    def chooses_gpus(self) -> bool:
        """Tells whether pins name GPUs: not on the plain layout."""
        return self.acts and self._node_pins is None

    @property
    def names_nodes_alone(self) -> bool:
        """Tells whether pins name nodes alone, and change nothing else of a job."""
        return self._node_pins is not None

    @property
    def takes(self) -> float:
        """Returns the median of the seconds that the last readings took."""
        return statistics.median(self.took) if self.took else 0.0

    def may_look_again(self, rest: float) -> bool:
        """Tells whether Slurm has rested for `rest` times as long as a reading takes."""
        return time.monotonic() >= self._looked_at + rest * self.takes

    def jobs(self) -> Mapping[int, JobFacts]:
        """Returns the jobs of the last reading by number."""
        return {} if self.reading is None else Selection.all_of(self.reading.jobs)

    def ends(self, job_id: int) -> bool:
        """Asks Slurm whether a job that ran at the last reading ends now.

        Anyone may send such hints. So questions take a twentieth of the time at most; the next reading shows the rest.
        """
        known, began = self.jobs().get(job_id), time.monotonic()
        if known is None or not known.nodes or began < self._asks_from:
            return False
        try:
            return self._gateway.job(job_id).state not in _GOES_ON
        finally:
            ended = time.monotonic()
            self._asks_from = ended + _REST_OF_HINTS * (ended - began)

    def is_requeued(self, job_id: int) -> bool:
        """Asks Slurm, once while it ends, whether a job that ends on several nodes of its place is requeued."""
        known = self.jobs().get(job_id)
        if known is None or len(known.required) < 2 or not self.acts:
            return False
        if job_id not in self._requeued and not self._is_silent:
            try:
                self._requeued[job_id] = self._gateway.job(job_id).state == "PENDING"
            except SlurmError:
                self._is_silent = True
        return self._requeued.get(job_id, False)

    def look(self, *, ended: bool) -> Reading | None:
        """Reads Slurm; if that fails, the last reading stays in use, and None is returned."""
        began = time.monotonic()
        try:
            reading = self._gateway.read(ended=ended)
            # An unreadable record costs that job alone; if all are unreadable, Slurm's answer counts as unreadable.
            if len(reading.unreadable) > 1 and not reading.jobs:
                raise UnreadableError(f"no job's record can be read: {next(iter(reading.unreadable.values()))}")
        except SlurmError as fault:
            self._fail(str(fault), blind=isinstance(fault, UnreadableError))
            return None
        except (FormatError, LookupError, ValueError) as fault:
            self._fail(f"Slurm's answer cannot be read: {fault!r}", blind=True)
            return None
        if self.problem:
            log.info("Slurm can be read again", 649)
        self.problem, self._blind = "", False
        self._tell_unreadable(reading)
        reading = reading if reading.wakes else _without_sleepers(reading)
        self.leave = _why_left(reading)
        # Without typed GRES Slurm alone chooses the GPUs of a node; Berth still numbers them to watch.
        reading = numbered(reading) if self._watches else reading
        self.reading = self._node_pins.shown(reading) if self._node_pins is not None else reading
        ending = {job.id for job in reading.jobs if job.state == "COMPLETING"} if self._requeued else ()
        self._requeued = {job: answer for job, answer in self._requeued.items() if job in ending}
        self._is_silent = False
        self._looked_at = time.monotonic()
        self.took.append(self._looked_at - began)
        self.sign()
        return self.reading

    def _fail(self, problem: str, *, blind: bool) -> None:
        if problem != self.problem:
            log.error(f"{problem}; the last snapshot of Slurm stays in use", 650)
        self.problem, self._blind = problem, blind
        self._sender.send(Snapshot(None, frozenset(), "", self._gateway.name, problem))

    def _tell_unreadable(self, reading: Reading) -> None:
        """Logs each unreadable job once; it is left to Slurm."""
        for job_id in reading.unreadable.keys() - self.unreadable:
            log.error(
                f"JobId={job_id} is left to Slurm, Berth cannot read its record: {reading.unreadable[job_id]}", 664
            )
        self.unreadable = frozenset(reading.unreadable)

    def sign(self) -> None:
        """Sends the answerer a sign of life, unless Slurm's answers cannot be read."""
        if not self._blind:
            self._sender.sign()

    def close(self) -> None:
        """Ends the signs of life that are sent during waits for Slurm."""
        WAITS.tell(None)


def _without_sleepers(reading: Reading) -> Reading:
    """Returns a reading in which powered-down nodes are closed, for a site where Slurm cannot power them up."""
    nodes = tuple(replace(node, up=False) if node.up and node.lost else node for node in reading.nodes)
    return replace(reading, nodes=nodes)


def _why_left(reading: Reading) -> str:
    if reading.federated:
        return "the cluster is in a federation, whose jobs Berth leaves alone"
    return why_only_watched(reading.version)
