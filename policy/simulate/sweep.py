# SPDX-License-Identifier: Apache-2.0
"""Runs a study: each policy and seed, on as many processes as there are CPUs.

The results do not depend on the number of processes: every run has its own seed and is independent of the others.
"""

import multiprocessing
import os
import signal
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from runpy import run_path
from typing import Any

from policy.cluster.fleet import Fleet
from policy.formats.errors import BerthError, ConfigError, FormatError, nearest
from policy.formats.flags import parse_locality
from policy.placement.base import Policy
from policy.simulate.inputs import Trace, cluster, read_traces
from policy.simulate.inputs.others import completed, read_events, read_quotas, shifted
from policy.simulate.jobs import TraceJob
from policy.simulate.pal_rounds.events import NodeEvent
from policy.simulate.pal_rounds.round_policies import RoundPolicy
from policy.simulate.report.files import placement_files, write_placements
from policy.simulate.report.history import write_history
from policy.simulate.report.summary import Summary, summarise
from policy.simulate.result import SimulationOutcome
from policy.simulate.study import FLAT_SLURM, PLAIN_SLURM, Cell, Study, cells
from topology.scores import PAL_CLASSES

RECORDED = "recorded"
"""Stands for a policy in the row of recorded times, if the trace is a cluster's own accounting."""

Tick = Callable[[int], None]
"""A callback, which gets the number of finished runs whenever it changes."""


def prepare(study: Study) -> Trace:
    """Returns the trace without jobs that this cluster could never hold, after all other inputs were checked too."""
    trace = read_traces(study.traces, study.duration_unit)
    sizes = cluster.sizes(study)
    most = sum(sizes)
    notes = dict(trace.notes)
    kept = [job for job in trace.jobs if job.gpus <= most]
    if len(kept) < len(trace.jobs):
        notes[f"left out: more GPUs than the cluster's {most}"] = len(trace.jobs) - len(kept)
    if not kept:
        raise FormatError(f"{', '.join(study.traces)}: no job fits a cluster of {most} GPUs")
    here = [job if _fits(job, sizes) else replace(job, nodes=None) for job in kept]
    reshaped = sum(before is not after for before, after in zip(kept, here, strict=True))
    if reshaped:
        notes["had more nodes, or more GPUs on each, than this cluster: their number of nodes is left open"] = reshaped
    ready = Trace(here, notes, trace.recorded)
    scored = verify(study, ready)
    return replace(ready, notes={**notes, **dict(_unscored(here, scored))})


def _fits(job: TraceJob, sizes: Sequence[int]) -> bool:
    """Tells whether the cluster, given as the GPUs of its nodes, has as many nodes as the job requests."""
    return job.nodes is None or sum(size >= job.gpus // job.nodes for size in sizes) >= job.nodes


def _unscored(jobs: Sequence[TraceJob], scored: AbstractSet[str]) -> Iterator[tuple[str, int]]:
    """Yields notes on classes that only the jobs or only the score tables have; none without tables."""
    counts = Counter(job.app_class for job in jobs)
    for name in sorted(counts.keys() - scored if scored else ()):
        yield f"are of class {name}, which no score table has: to them all GPUs are alike", counts[name]
    for name in sorted(scored - counts.keys() - set(PAL_CLASSES.values())):
        yield f"are of class {name}{nearest(name, counts)}, which a score table has", 0


def run_cell(study: Study, cell: Cell, trace: Trace, placements: str = "") -> Summary:
    """Runs one cell; `placements` names a file for the placements of its jobs."""
    fleet = cluster.build(study, cell.seed)
    jobs = completed(trace.jobs, study.limits, study.models, cell.seed)
    if study.shift:
        jobs = sorted(shifted(jobs, study.shift, cell.seed), key=lambda job: job.submit)
    outcome = (_rounds if study.mode == "pal-rounds" else _slurm)(study, cell, jobs, fleet)
    if study.history:
        write_history(outcome, fleet, placement_files(study.history, cells(study))[cell])
    if placements:
        write_placements(outcome, placements)
    return summarise(outcome, cell.policy, cell.seed, ",".join(study.traces) if study.apart else "")


PUBLISHED_REPEAT = 2.0
"""Jobs an hour that follow the trace in PAL's simulations."""


def _rounds(study: Study, cell: Cell, jobs: Sequence[TraceJob], fleet: Fleet) -> SimulationOutcome:
    # Each mode loads its own simulator.
    from policy.simulate.pal_rounds.rounds import RoundsSettings, run  # noqa: PLC0415

    settings = RoundsSettings(
        round_s=study.round,
        order=study.order or "fifo",
        backfill=bool(study.backfill),
        move_cost_s=study.move_cost,
        repeat=PUBLISHED_REPEAT if study.repeat is None else study.repeat,
        measured=range(len(jobs)),
        events=_events(study, fleet),
        seed=cell.seed,
    )
    return run(jobs, fleet, _in_rounds(cell.policy, cell.seed), settings)


def _in_rounds(name: str, seed: int) -> RoundPolicy:
    from policy.simulate.pal_rounds.round_policies import in_rounds  # noqa: PLC0415 - as above

    base = _without_sticky(name)
    sticky = base != name if base != name or base in _BOTH_WAYS else None
    return in_rounds(policy_named(name, seed), sticky=sticky)


def _slurm(study: Study, cell: Cell, jobs: Sequence[TraceJob], fleet: Fleet) -> SimulationOutcome:
    from policy.simulate.play import run  # noqa: PLC0415
    from policy.simulate.slurm.settings import Delays, LocalityRule, Quotas, SlurmSettings  # noqa: PLC0415

    plain, timed = cell.policy in PLAIN_SLURM, study.mode == "berthd"
    locality = parse_locality(study.locality) if study.locality else None
    waited = LocalityRule().wait_s if locality is None or locality.wait is None else locality.wait
    settings = SlurmSettings(
        order=study.order or "slurm",
        durations=study.durations,
        backfill=study.backfill is not False,
        bf_interval_s=study.bf_interval,
        pinned=not (plain or timed),
        locality=LocalityRule(locality.level, waited, splits=not plain) if locality else LocalityRule(),
        quotas=Quotas(read_quotas(study.quotas), study.borrow) if study.quotas else Quotas(),
        requeue_cost_s=study.move_cost,
        events=_events(study, fleet),
        berthd=timed and not plain,
        delays=Delays() if timed else None,
        slurm=study.slurm,
        tree=cell.policy != FLAT_SLURM,
        history=bool(study.history),
        seed=cell.seed,
    )
    return run(jobs, fleet, policy_named(cell.policy, cell.seed), settings)


def _events(study: Study, fleet: Fleet) -> Sequence[NodeEvent]:
    return read_events(study.events, fleet.names) if study.events else ()


def verify(study: Study, trace: Trace) -> AbstractSet[str]:
    """Reads all inputs once, so that an error is found before the first run; returns the classes that have scores."""
    for policy in study.policies:
        (_in_rounds if study.mode == "pal-rounds" else policy_named)(policy, 0)
    fleet = cluster.build(study, study.seeds[0])
    completed(trace.jobs[:1], study.limits, study.models, 0)
    _events(study, fleet)
    if study.locality:
        parse_locality(study.locality)
    if study.quotas:
        read_quotas(study.quotas)
    return fleet.scores.keys()


def policy_named(name: str, seed: int) -> Policy:
    """Returns a policy by its name on the command line, which may be `FILE.py:CLASS`.

    In rounds `NAME-sticky` keeps running jobs where they are.
    """
    from policy.placement.registry import create  # noqa: PLC0415

    if name in GIVEN:
        return GIVEN[name]()
    if ".py:" in name:
        return _of_file(*name.rsplit(":", 1))
    base = _without_sticky(name)
    return create(base, seed=seed) if base in _DRAWING else create(base)


GIVEN: dict[str, Callable[[], Policy]] = {}
"""Policies that a script of this process gave, by their names."""


def _of_file(path: str, name: str) -> Policy:
    try:
        made: Policy = run_path(path)[name]()
    except (OSError, KeyError, TypeError, ImportError, SyntaxError) as problem:
        raise ConfigError(f"policy {name} cannot be made from {path}: {problem!r}") from problem
    return made


def _without_sticky(name: str) -> str:
    from policy.placement.registry import policies  # noqa: PLC0415

    # Another package's policy may really have such a name.
    return name if name in policies() else name.removesuffix("-sticky")


_BOTH_WAYS = ("packed", "random")
"""Policies that are published as sticky and as not sticky."""
_DRAWING = ("random", "pinned-random")


def recorded(study: Study, trace: Trace) -> Summary | None:
    """Returns the recorded times of an accounting trace, as a run beside the others."""
    jobs = [job for job in trace.jobs if job.id in trace.recorded]
    if not jobs:
        return None
    outcome = SimulationOutcome(
        policy=RECORDED,
        jobs=jobs,
        starts={job.id: trace.recorded[job.id].start for job in jobs},
        ends={job.id: trace.recorded[job.id].end for job in jobs},
        stretches=(),
        gpus=sum(cluster.sizes(study)),
        gpu_seconds_held=sum(job.gpus * job.work for job in jobs),
        wall_s=0.0,
    )
    return summarise(outcome, RECORDED, 0)


def run_all(
    study: Study,
    cells: Sequence[Cell],
    trace: Trace,
    workers: int = 0,
    placements: Mapping[Cell, str] | None = None,
    tick: Tick = lambda _: None,
) -> Iterator[Summary]:
    """Yields the runs of all cells, in their order; `workers` 0 takes as many processes as there are CPUs."""
    files = placements or {}
    count = min(workers or len(os.sched_getaffinity(0)), len(cells))
    if count <= 1:
        for done, cell in enumerate(cells):
            tick(done)
            yield run_cell(study, cell, trace, files.get(cell, ""))
        return
    # A fork server: it neither forks this process with its threads, nor starts a new interpreter for each worker.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    with ProcessPoolExecutor(count, context, _begin, (study, trace)) as pool:
        futures = [pool.submit(_run_there, cell, files.get(cell, "")) for cell in cells]
        try:
            waiting = set(futures)
            while waiting:
                ended, waiting = wait(waiting, return_when=FIRST_COMPLETED)
                for future in ended:
                    future.result()
                tick(len(futures) - len(waiting))
            for future in futures:
                yield future.result()
        except BrokenProcessPool:
            raise BerthError(
                "a process of the simulation died; if no error stands above, memory was short: try fewer --workers"
            ) from None
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


_shared: dict[str, Any] = {}


def _begin(study: Study, trace: Trace) -> None:
    """Prepares a worker process: the trace is sent once, not with each run. An interrupt ends it silently."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    _shared.update(study=study, trace=trace)


def _run_there(cell: Cell, placements: str) -> Summary:
    return run_cell(_shared["study"], cell, _shared["trace"], placements)
