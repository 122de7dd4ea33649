"""Simulates berthd beside slurmctld event by event: berthd's own code decides, Slurm's passes start pinned jobs.

`policy.simulate.slurm_alone` asks a policy for a place at the moment at which a job starts. Here each GPU job has a
place from its submission on, as on a real cluster. berthd's `decide` gives it, and berthd's `Plan` moves it, each only
by what it can know by then; slurmctld starts the job. Plain Slurm is played with the same events, for comparison.

    >>> from policy.placement.berth import BerthPolicy
    >>> from policy.simulate.jobs import TraceJob
    >>> from policy.simulate.world import Layout, build
    >>> jobs = [Submission(TraceJob(str(n), gpus=8, submit=float(n), work=60, limit=120)) for n in range(2)]
    >>> outcome = run(jobs, build(Layout(nodes=1, gpus_per_node=8)), BerthPolicy())
    >>> outcome.starts["1"] >= outcome.ends["0"]
    True
"""

from collections.abc import Mapping, Sequence
from functools import partial
from random import Random
from time import perf_counter
from typing import TYPE_CHECKING

from policy.formats.errors import UsageError
from policy.formats.slurm_facts import Memory, PartitionFacts, Reading
from policy.placement.base import Policy, positions, predicted
from policy.simulate.jobs import TraceJob
from policy.simulate.result import SimulationOutcome, Stretch
from policy.simulate.with_berthd.berthd import SimulatedAnswerer, SimulatedPlanner, pinned_by
from policy.simulate.with_berthd.clock import Clock, Loop
from policy.simulate.with_berthd.jobs import EPOCH, SimulatedJob
from policy.simulate.with_berthd.nodes import Nodes
from policy.simulate.with_berthd.passes import ClusterPasses
from policy.simulate.with_berthd.settings import Delays, PinnedSettings, Submission
from policy.simulate.world import PARTITION, demand_of
from topology.tables import links

if TYPE_CHECKING:
    from policy.cluster.fleet import Fleet

__all__ = ["Delays", "PinnedSettings", "Submission", "run"]

BEFORE = 1.0
"""Seconds for which berthd has had a picture when the first job is submitted."""

SCHED_INTERVAL = 60.0
"""Seconds after which Slurm runs a main pass even without a request for one (Slurm's default)."""

REQUEUE_DELAY = 121.0
"""Seconds for which Slurm holds a requeued job by default."""

MINUTE = 60.0
"""Seconds; the place of the first job within its minute decides how backfill rounds."""

QUIET_TICK = 120.0
"""Seconds between berthd's passes while nothing changes."""


def run(
    jobs: Sequence[Submission], fleet: "Fleet", policy: Policy, settings: PinnedSettings | None = None
) -> SimulationOutcome:
    """Plays these jobs; the same input gives the same outcome, but for `wall_s`."""
    began = perf_counter()
    world = _World(jobs, fleet, policy, settings or PinnedSettings())
    world.play()
    return world.outcome(began)


class _World:
    """slurmctld's queue and running jobs, and the events to come."""

    def __init__(self, jobs: Sequence[Submission], fleet: "Fleet", policy: Policy, settings: PinnedSettings) -> None:
        self._settings = settings
        self._delays = settings.delays
        self._policy = policy
        self._fleet = fleet
        first = min((one.job.submit for one in jobs), default=0.0)
        self._draw = Random(settings.seed)  # noqa: S311 - for experiments, not a secret
        begins = first - BEFORE - settings.delays.read - settings.delays.plan
        shown = self._draw.uniform(0, MINUTE)
        # slurmctld checks at the start of each second whether a pass was requested.
        self._clock = clock = Clock(begins - (begins + shown) % settings.delays.main)
        self._nodes = Nodes(fleet)
        self._passes = ClusterPasses(self._nodes, settings, self._start, shown)
        self._records = [_record(number, job, fleet, settings) for number, job in enumerate(jobs, 1)]
        self._by_nonce = {record.nonce: record for record in self._records}
        self._by_id = {record.id: record for record in self._records}
        self._queue: dict[int, SimulatedJob] = {}
        """Waiting jobs in Slurm's order."""
        self._running: dict[int, SimulatedJob] = {}
        self._back: dict[int, SimulatedJob] = {}
        """Requeued jobs, until they may start again."""
        self._written: list[tuple[float, str, Mapping[str, str]]] = []
        self._left = len(self._records)
        self._main = Loop(clock, settings.delays.main, self._main_pass)
        self._anyway = Loop(clock, SCHED_INTERVAL, self._main_pass)
        self._backfill = Loop(clock, settings.delays.backfill, self._backfill_pass)
        self._tick = Loop(clock, settings.delays.tick, self._plan)
        self._quiet_tick = Loop(clock, QUIET_TICK, self._tick.wake)
        self._partition = (PartitionFacts(PARTITION, default=True),)
        self._updates = self._denied = self._killed = self._unplanned = 0
        self._answerer = SimulatedAnswerer(policy, settings) if settings.berthd else None
        self._planner = (
            SimulatedPlanner(fleet, policy, settings, self._answerer, self, clock) if self._answerer else None
        )
        for record in self._records:
            clock.at(record.asked.job.submit, partial(self._submit, record))

    def play(self) -> None:
        """Plays events until all jobs have ended."""
        self._plan()
        while self._left:
            if not self._clock.step():
                first = next(iter(self._queue.values())).asked.job
                raise UsageError(f"{len(self._queue)} jobs can never start, first job {first.id}")

    # The interface for berthd

    def look(self) -> Reading:
        """Returns all that Slurm would report now."""
        names = self._fleet.names
        jobs = [record.as_facts(names) for record in self._running.values()]
        jobs += [record.as_facts(names) for record in (*self._back.values(), *self._queue.values())]
        return Reading(
            at=EPOCH + self._clock.now,
            nodes=self._nodes.facts(),
            jobs=tuple(jobs),
            partitions=self._partition,
            memory=Memory(),
            memory_counts=False,
        )

    def entered(self, nonce: str) -> float | None:
        """Returns the time at which a job entered the queue."""
        return self._by_nonce[nonce].entered

    def pin(self, job_id: int, nodes: tuple[int, ...], mask: int, values: dict[str, str]) -> None:
        """Pins a job, by one update; a job that has started meanwhile stays where it is."""
        record = self._by_id[job_id]
        if record.state != "PENDING":
            self._denied += 1
            return
        record.pin_to(nodes, mask)
        record.segment = values
        self._updated(record)
        if record.begin is not None:
            self._enqueue(record)

    def annotate(self, job_id: int, values: Mapping[str, str]) -> None:
        """Replaces a job's segment, by one update."""
        record = self._by_id[job_id]
        record.segment = dict(values)
        self._updated(record)

    def state(self, job_id: int) -> str:
        """Returns the state of a job."""
        return self._by_id[job_id].state

    def put_back(self, job_id: int) -> bool:
        """Requeues a running job; its work so far is saved, and the move costs it the seconds of its `--movable`."""
        record, now = self._by_id[job_id], self._clock.now
        if record.state != "RUNNING":
            return False
        ran = max(0.0, now - record.begun - record.debt)
        before = record.asked.job.work if record.left is None else record.left
        record.left = max(0.0, before - ran / self._rate(record))
        record.debt = record.asked.movable or 0.0
        record.runs.append((record.begun, now, record.nodes, record.masks))
        record.run += 1
        self._end(record)
        record.begin = now + REQUEUE_DELAY
        self._clock.at(record.begin, partial(self._enqueue, record))
        return True

    def _enqueue(self, record: SimulatedJob) -> None:
        """Lets a requeued job start again."""
        if record.begin is None or record.state != "PENDING":
            return
        record.begin = None
        del self._back[record.id]
        self._queue[record.id] = record
        self._queue = dict(sorted(self._queue.items(), key=lambda item: (-item[1].asked.job.priority, item[0])))
        record.changed()
        self._changed(asks_for_pass=True)

    def unpin(self, job_id: int) -> None:
        """Removes a job's pin, by one update."""
        record = self._by_id[job_id]
        if record.state == "PENDING" and record.pin:
            record.pin, record.pin_mask, record.segment = (), 0, {**(record.segment or {}), "state": "released"}
            self._updated(record)

    def _updated(self, record: SimulatedJob) -> None:
        record.updates += 1
        self._updates += 1
        self._note(record)
        record.changed()
        self._changed(asks_for_pass=True)

    def _note(self, record: SimulatedJob) -> None:
        """Keeps a segment as it was written, if the outcome is to have all of them."""
        if self._settings.history and record.segment is not None:
            self._written.append((self._clock.now, record.asked.job.id, record.segment))

    # The events of the simulation

    def _changed(self, *, asks_for_pass: bool = False) -> None:
        """Wakes the loops that depend on Slurm's state, which has changed."""
        self._tick.wake()
        if self._queue:
            self._backfill.wake()
        if asks_for_pass:
            self._main.wake()

    def _submit(self, record: SimulatedJob) -> None:
        if self._answerer is not None and record.k:
            decision = self._answerer.answer(record, self._clock.now)
            if decision.verb == "refuse":
                raise UsageError(f"job {record.asked.job.id}: {decision.fields['message']}")
            if decision.verb == "place":
                names, mask, record.segment = pinned_by(decision)
                record.pin_to(tuple(self._fleet.index[name] for name in names), mask)
                self._note(record)
        self._clock.at(self._clock.now + self._delays.submit, partial(self._enter, record))

    def _enter(self, record: SimulatedJob) -> None:
        record.entered = self._clock.now
        if record.asked.wait:
            # A wait for a level ends on its own: in whole seconds of berthd, and from the first try of plain Slurm.
            for after in (0, 1, 1 + self._delays.backfill):
                self._clock.at(record.entered + record.asked.wait + after, self._changed)
        self._queue[record.id] = record
        if len(self._queue) > 1 and record.asked.job.priority:
            self._queue = dict(sorted(self._queue.items(), key=lambda item: (-item[1].asked.job.priority, item[0])))
        self._changed(asks_for_pass=True)

    def _main_pass(self) -> None:
        if self._queue:
            self._passes.main(self._queue.values(), self._clock.now)
            self._anyway.wake()

    def _backfill_pass(self) -> None:
        self._passes.backfill(self._queue.values(), self._running.values(), self._clock.now)

    def _start(self, record: SimulatedJob, nodes: tuple[int, ...], masks: tuple[int, ...]) -> None:
        del self._queue[record.id]
        self._running[record.id] = record
        record.nodes, record.masks, record.started, record.state = nodes, masks, self._clock.now, "RUNNING"
        record.begun = self._clock.now + self._delays.launch
        self._unplanned += bool(record.k and not record.pin)
        self._nodes.take(record)
        record.changed()
        record.run += 1
        left = record.asked.job.work if record.left is None else record.left
        length = record.debt + left * self._rate(record)
        if self._settings.kill and length > record.limit:
            length = record.limit
            self._killed += 1
        record.ended = record.begun + length
        self._clock.at(record.ended + self._delays.end, partial(self._complete, record, record.run))
        self._changed()

    def _rate(self, record: SimulatedJob) -> float:
        job = record.asked.job
        if not record.k:
            return 1.0
        if self._settings.rate is not None:
            return self._settings.rate(job, record.nodes, record.masks)
        return cost_of(job, self._fleet, record.nodes, record.masks)

    def _complete(self, record: SimulatedJob, run: int) -> None:
        """Ends a job, unless it was requeued before."""
        if run == record.run:
            self._left -= 1
            self._end(record)

    def _end(self, record: SimulatedJob) -> None:
        """Ends a run, of which slurmctld knows now; its epilogs begin."""
        del self._running[record.id]
        record.state, record.epilogs = "COMPLETING", len(record.nodes)
        record.changed()
        self._nodes.give(record)
        self._changed()
        for node in record.nodes:
            self._clock.at(self._clock.now + self._delays.notice, partial(self._epilog, record, node))

    def _epilog(self, record: SimulatedJob, node: int) -> None:
        """Runs an epilog, which asks berthd and waits for its answer, at most `most_held_up` seconds."""
        if not self._settings.epilog:
            # slurmd reports the end, and slurmctld requests a pass instead of running one.
            self._epilog_over(record, node)
            self._main.wake()
        elif self._planner is None:
            self._end_epilog(record, node, self._clock.now)
        elif self._settings.lost_notices and self._draw.random() < self._settings.lost_notices:
            self._end_epilog(record, node, self._clock.now + self._delays.most_held_up)
        else:
            latest = self._clock.now + self._delays.most_held_up
            answered = [False]

            def go_on(moment: float) -> None:
                if not answered[0]:
                    answered[0] = True
                    self._end_epilog(record, node, min(moment, latest))

            self._planner.notice(node, go_on, self._clock.now)

    def _end_epilog(self, record: SimulatedJob, node: int, answered: float) -> None:
        def over() -> None:
            self._epilog_over(record, node)
            if not record.epilogs:
                self._main_pass()

        self._clock.at(answered + self._delays.epilog, over)

    def _epilog_over(self, record: SimulatedJob, node: int) -> None:
        self._nodes.epilog_ends(node)
        record.epilogs -= 1
        if not record.epilogs and record.begin is not None:
            record.state = "PENDING"
            self._back[record.id] = record
            record.changed()
        elif not record.epilogs:
            record.state = "COMPLETED"
        self._changed()

    def _plan(self) -> None:
        """Runs one pass of berthd; while jobs wait, another follows after some time even if nothing changes."""
        if self._planner is not None:
            self._tick.not_before = self._planner.one_pass(self._clock.now)
            if self._queue:
                self._quiet_tick.wake()
            if self._planner.moving:
                self._clock.at(self._clock.now + 1.0, self._tick.wake)

    def outcome(self, began: float) -> SimulationOutcome:
        """Returns the outcome."""
        width = int(self._fleet.size.max(initial=0))
        stretches = [
            Stretch(
                record.asked.job.id,
                begun,
                ended,
                tuple(
                    node * width + place for node, mask in zip(nodes, masks, strict=True) for place in positions(mask)
                ),
            )
            for record in self._records
            for begun, ended, nodes, masks in (*record.runs, (record.begun, record.ended, record.nodes, record.masks))
        ]
        return SimulationOutcome(
            policy=self._policy.name,
            jobs=[record.asked.job for record in self._records],
            starts={record.asked.job.id: record.first_begun for record in self._records},
            ends={record.asked.job.id: record.ended for record in self._records},
            stretches=sorted(stretches, key=lambda one: (one.start, one.job)),
            gpus=int(self._fleet.size.sum()),
            gpu_seconds_held=sum(len(one.gpus) * (one.end - one.start) for one in stretches),
            wall_s=perf_counter() - began,
            moves=self._planner.moved if self._planner else 0,
            extra={
                "updates": self._updates,
                "denied": self._denied,
                "unplanned": self._unplanned,
                "killed": self._killed,
                "reasons": dict(self._planner.reasons) if self._planner else {},
            },
            written=self._written,
        )


def cost_of(job: TraceJob, fleet: "Fleet", nodes: Sequence[int], masks: Sequence[int]) -> float:
    """Returns real over ideal run time by the cost model and the fleet's own scores."""
    level: str = fleet.fabric.level(nodes) if len(nodes) > 1 else "node"
    machine = fleet.machines[nodes[0]]
    if level == "node" and machine is not None and links(machine, positions(masks[0]))[0] > 0:
        level = "nvlink"
    return predicted(demand_of(job, fleet), fleet, nodes, masks, level)


def _record(number: int, asked: Submission, fleet: "Fleet", settings: PinnedSettings) -> SimulatedJob:
    job, width = asked.job, int(fleet.size.max(initial=1))
    nodes = job.nodes or _nodes_for(job.gpus, width)
    if job.gpus % nodes:
        raise UsageError(f"job {job.id}: {job.gpus} GPUs cannot be the same on each of {nodes} nodes")
    record = SimulatedJob(number, asked, nodes, job.gpus // nodes, f"{number:016x}", foreseen=settings.foresees)
    if settings.berthd and settings.splits and asked.level and job.gpus > 1 and not job.nodes:
        record.free, record.cpus_each = True, record.cpus
    if int(((fleet.size >= record.k) & (fleet.cpus >= record.cpus)).sum()) < nodes:
        raise UsageError(
            f"job {job.id} asks for {nodes} nodes with {record.k} GPUs and {record.cpus} cores each and could never "
            f"start: too few nodes have them; leave it out or simulate a larger cluster"
        )
    return record


def _nodes_for(gpus: int, width: int) -> int:
    """Returns one node if one can hold the job, else the fewest that have the same number of GPUs each."""
    return next((n for n in range(1, gpus + 1) if gpus % n == 0 and gpus // n <= width), 1)
