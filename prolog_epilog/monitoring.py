# SPDX-License-Identifier: Apache-2.0
"""Keeps the files in which dcgm-exporter and the exporter of jobstats look which jobs are on which GPU.

A Prolog of the site's own cannot: with one GRES type for each GPU Slurm names a job's last GPU alone, a guest's never.

dcgm-exporter (`--hpc-job-mapping-dir`) reads a file for each GPU, named by NVML's index, with one job a line; for a MIG
instance the name is `INDEX.INSTANCE`. The exporter of jobstats reads files named by UUID or by the same names, with
`JOB UID`. It takes one line alone; so where a job has the GPU as a whole, its guest is left out there.
"""

import fcntl
import json
import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from prolog_epilog.errors import Busy, NodeError, StateError
from prolog_epilog.here import Here, indices_of
from prolog_epilog.job.extra import OPPORTUNISTIC, NodeBerth
from prolog_epilog.job.job import NodeJob
from prolog_epilog.job.slurm import HeldGres
from prolog_epilog.messages import numbered
from prolog_epilog.node import cgroups, devices, files, processes
from prolog_epilog.node.paths import Paths
from prolog_epilog.settings.config import NodeConfig

FORMAT = "berth-listed/1"
_LOCKED_BYTE = 10_000
"""The byte of the node's lock that stands for these files; those before it stand for GPUs."""
_LOCK_SECONDS, _POLL_SECONDS = 10.0, 0.01
_MIG = "MIG-"


class ListedGpu(NamedTuple):
    """A GPU or MIG instance: its UUID, and its name in dcgm-exporter."""

    uuid: str
    name: str


class ListedJob(NamedTuple):
    """A job in the files."""

    job: int
    uid: int
    start: int
    owns: bool
    """True if the job has its GPUs as a whole: then no other such job is on them."""
    gpus: tuple[ListedGpu, ...]


def arrive(job: NodeJob, berth: NodeBerth | None, held: HeldGres | None, here: Here) -> None:
    """Lists a job that begins, and takes out those that ended without an Epilog; a failure is only reported."""
    try:
        known = devices.gpus(here.paths)
        gpus = _gpus_of(job, berth, held, here)
        owns = berth is None or not berth.is_shared or bool(berth.tier and berth.tier != OPPORTUNISTIC)
        mine = ListedJob(job.id, job.uid, job.start, owns, gpus)
        with _alone(here.paths):
            before = _read(here.paths)
            running = cgroups.jobs() if before else set()
            after = [
                one
                for one in before
                if one.job != job.id
                and not _replaced(one, mine)
                and (one.job in running or here.slurm.is_there(one.job, job.node))
            ]
            listed = [*after, mine] if gpus else after
            _keep(here.paths, here.config, before, listed, [ListedGpu(one.uuid, str(one.index)) for one in known])
    except (NodeError, OSError) as problem:
        here.say(numbered(problem))


def leave(job: NodeJob, here: Here) -> None:
    """Takes a job out; a later run of the same job stays. A failure is only reported."""
    if not os.path.lexists(here.paths.listed):
        return
    try:
        with _alone(here.paths):
            before = _read(here.paths)
            after = [one for one in before if one.job != job.id or (job.start and one.start > job.start)]
            if after != before:
                _keep(here.paths, here.config, before, after)
    except (NodeError, OSError) as problem:
        here.say(numbered(problem))


def clean(paths: Paths, config: NodeConfig, is_over: Callable[[int], bool]) -> list[int]:
    """Takes out the jobs that are over and whose Epilog never came; returns them."""
    if not os.path.lexists(paths.listed):
        return []
    # Slurm is asked without the lock, and a job may begin again meanwhile: only the run that was asked for goes.
    over = {(one.job, one.start) for one in _read(paths) if is_over(one.job)}
    if over:
        with _alone(paths):
            before = _read(paths)
            _keep(paths, config, before, [one for one in before if (one.job, one.start) not in over])
    return sorted(job for job, _ in over)


def instances(paths: Paths) -> list[tuple[int, ListedGpu]]:
    """Returns the MIG instances in the list, each with its job."""
    return [(one.job, gpu) for one in _read(paths) for gpu in one.gpus if gpu.uuid.startswith(_MIG)]


def _replaced(one: ListedJob, by: ListedJob) -> bool:
    """Slurm gives a GPU as a whole to one job at a time, so the earlier one has ended."""
    return one.owns and by.owns and bool(set(one.gpus) & set(by.gpus))


def _gpus_of(job: NodeJob, berth: NodeBerth | None, held: HeldGres | None, here: Here) -> tuple[ListedGpu, ...]:
    instances = [name for name in job.environment.get("CUDA_VISIBLE_DEVICES", "").split(",") if name.startswith(_MIG)]
    if instances:
        with devices.driver() as nvml:
            return tuple(ListedGpu(uuid, nvml.instance_name(uuid)) for uuid in instances)
    known = devices.gpus(here.paths)
    if berth is not None and berth.is_shared:
        found = [known[position] for position in berth.gpus if position < len(known)]
    else:
        minors = indices_of(job, berth, here, held)
        found = [gpu for gpu in known if gpu.minor in minors]
    return tuple(ListedGpu(gpu.uuid, str(gpu.index)) for gpu in found)


@contextmanager
def _alone(paths: Paths) -> Iterator[None]:
    """Lets one Prolog or Epilog at a time change the files."""
    files.prepare(paths)
    lock, until = paths.jobs / ".lock", time.monotonic() + _LOCK_SECONDS
    try:
        file = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError as problem:
        raise StateError(f"{lock}: {problem.strerror}; check the file system") from None
    try:
        while True:
            try:
                fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, _LOCKED_BYTE)
                break
            except OSError:
                if time.monotonic() > until:
                    raise Busy("another Prolog kept the lists of jobs for too long; look what it waits for") from None
                time.sleep(_POLL_SECONDS)
        yield
    finally:
        os.close(file)


def _read(paths: Paths) -> list[ListedJob]:
    """Returns the jobs of this boot; nothing, if anything in the file is not as expected."""
    try:
        content = json.loads(files.read(paths.listed) or "{}")
        if content.get("format") != FORMAT or content.get("boot") != processes.boot_id(paths.boot_id):
            return []
        return [
            ListedJob(
                int(one["job"]), int(one["uid"]), int(one["start"]), bool(one["owns"]),
                tuple(ListedGpu(str(uuid), str(name)) for uuid, name in one["gpus"]),
            )
            for one in content["jobs"]
        ]  # fmt: skip
    except (ValueError, KeyError, TypeError, AttributeError):
        return []


def _keep(
    paths: Paths, config: NodeConfig, before: list[ListedJob], after: list[ListedJob], known: Iterable[ListedGpu] = ()
) -> None:
    """Writes the files of all GPUs in sight; whatever they may name stands in the list before and until then.

    So where a write fails, or the program is killed, the guard finds the jobs that have to go.
    """
    both = [*before, *(one for one in after if one not in before)]
    if both != before:
        _list(paths, both)
    gpus = {gpu for one in (*before, *after) for gpu in one.gpus} | set(known)
    on = {gpu: [one for one in after if gpu in one.gpus] for gpu in gpus}
    if config.jobs_for_dcgm:
        lines = {gpu.name: "".join(f"{one.job}\n" for one in jobs) for gpu, jobs in on.items()}
        _write(Path(config.jobs_for_dcgm), lines)
    if config.jobs_for_jobstats:
        lines = {}
        for gpu, jobs in on.items():
            shown = [one for one in jobs if one.owns] or jobs
            lines[gpu.name] = lines[gpu.uuid] = "".join(f"{one.job} {one.uid}\n" for one in shown)
        _write(Path(config.jobs_for_jobstats), lines)
    if after != both:
        _list(paths, after)


def _list(paths: Paths, jobs: list[ListedJob]) -> None:
    content = {"format": FORMAT, "boot": processes.boot_id(paths.boot_id), "jobs": [one._asdict() for one in jobs]}
    files.write(paths.listed, json.dumps(content) + "\n")


def _write(folder: Path, lines: dict[str, str]) -> None:
    files.own_folder(folder, 0o755)
    for name, text in lines.items():
        if text:
            files.write(folder / name, text, 0o644)
        else:
            (folder / name).unlink(missing_ok=True)
