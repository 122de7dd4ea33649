# SPDX-License-Identifier: Apache-2.0
"""The tenancy of a job that shares GPUs, from its Prolog to its Epilog.

A share that cannot be set up never takes the node out of service: the share file says `degraded`, SPANK stops the job
before its first line, and berthd moves it. Only a GPU that needs a human makes Prolog or Epilog fail.
"""

import fcntl
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace

from prolog_epilog.errors import Busy, CannotShare, HardwareFault, NodeError, NodeFormatError, NodeSlurmError
from prolog_epilog.here import Here, drain, indices_of, run_chain
from prolog_epilog.injob import word
from prolog_epilog.injob.errors import WordError
from prolog_epilog.injob.job import VARIABLE
from prolog_epilog.job.extra import GUARANTEED, OPPORTUNISTIC, NodeBerth
from prolog_epilog.job.job import NodeJob
from prolog_epilog.job.slurm import HeldGres, Scontrol
from prolog_epilog.messages import numbered
from prolog_epilog.mps import lifecycle, losses
from prolog_epilog.mps.lifecycle import Attached
from prolog_epilog.mps.losses import Loss, LossRecord
from prolog_epilog.node import cgroups, devices, files, freezer
from prolog_epilog.node.devices import NodeGpu
from prolog_epilog.node.paths import Paths
from prolog_epilog.sharing import inject, time_slices
from prolog_epilog.tenants import arrivals, pages, quarantine, reserve, share_file, state
from prolog_epilog.tenants.arrivals import Arrival
from prolog_epilog.tenants.share_file import ShareRecord

_UNFINISHED = "the Prolog did not come to its end on this node; berthd moves the job"
_POLL_SECONDS = 0.02


def begin(job: NodeJob, berth: NodeBerth, here: Here) -> int:
    """Gives a job its share; returns the Prolog's exit status."""
    had = _had(job, here)
    if had is not None:
        # Slurm repeats a Prolog if it does not know how the first one ended. The job may run by now, and who shares its
        # GPUs may have changed since.
        here.say(f"job {job.id} has its share already, and keeps it")
        return run_chain(here.config.chain_prolog, job, (), here, facts(had))
    file = ShareRecord(
        job.id,
        job.uid,
        why=_UNFINISHED,
        gpus=berth.gpus,
        share=berth.asked_share or berth.share,
        mem_mib=berth.mem_mib,
        way=berth.way,
        tier=berth.tier,
        node=job.node,
        slope=berth.slope,
        need=berth.need,
        start=job.start,
    )
    # Write this first, so that the Epilog of a Prolog that was killed half-way knows what to clear.
    if not _write(here, file):
        # A file that an earlier run of the job left here says nothing about this one.
        with suppress(OSError):
            share_file.remove(here.paths, job.id)
        return 0
    try:
        gpus = _gpus(here, berth)
        file = replace(file, minors=tuple(gpu.minor for gpu in gpus), uuids=tuple(gpu.uuid for gpu in gpus))
        if berth.tier and berth.tier != OPPORTUNISTIC:
            # The guard opens the gate again, step by step, once it knows this owner's step time.
            for guest in arrivals.guests_on(here.paths, file.uuids):
                arrivals.shut(guest, file.uuids)
        if not (here.config.chain_prolog or here.config.chain_epilog):
            return _attach(here, file, gpus)
        with hand_over(here.paths, file.minors, here.config.chain_timeout):
            code = run_chain(here.config.chain_prolog, job, unused(here.paths, file), here, facts(file))
            return code or _attach(here, file, gpus)
    except CannotShare as problem:
        here.say(numbered(problem))
        _write(here, replace(file, why=str(problem)))
        return 0
    except HardwareFault as fault:
        _write(here, replace(file, why=str(fault)))
        drain(job, here, str(fault))
        return 1


def _had(job: NodeJob, here: Here) -> ShareRecord | None:
    """Returns the share that this very run of the job has."""
    with suppress(NodeError, OSError):
        found = share_file.read(here.paths, job.id)
        if found is not None and job.start and found.start == job.start and not found.degraded:
            return found
    return None


def refuse(job: NodeJob, here: Here, why: str, *, hold: bool = False, again: bool = False) -> int:
    """Has SPANK stop a job whose share is not known; the site's scripts must not touch GPUs that others may use.

    With `hold` it also goes back into the queue, held, and with `again` it is requeued to start again. Slurm takes only
    batch jobs that may be requeued. The user of any other job reads only what SPANK says.
    """
    _write(here, ShareRecord(job.id, job.uid, why=why, start=job.start))
    if hold:
        try:
            here.slurm.hold(job.id)
        except NodeSlurmError as problem:
            here.say(f"job {job.id} is stopped, and not held: {problem} [BERTH-937]")
        else:
            here.say(f"job {job.id} is held [BERTH-937]")
    elif again:
        try:
            here.slurm.requeue(job.id, if_running=True)
        except NodeSlurmError as problem:
            here.say(f"job {job.id} is stopped, and not requeued: {problem} [BERTH-937]")
        else:
            here.say(f"job {job.id} is requeued [BERTH-937]")
            # A file that says `degraded` would make berthd keep the job off this node, which has not failed.
            with suppress(NodeError, OSError):
                share_file.remove(here.paths, job.id)
    return run_chain(here.config.chain_prolog, job, (), here)


def forget(job: NodeJob, here: Here) -> None:
    """Removes what stopped an earlier run of a job: this one shares nothing, and SPANK would stop it for the same."""
    with suppress(NodeError, OSError):
        file = share_file.read(here.paths, job.id)
        if file is not None and file.degraded:
            share_file.remove(here.paths, job.id)


def clear(job: NodeJob, berth: NodeBerth | None, here: Here, held: HeldGres | None = None) -> None:
    """Frees a job's whole GPUs of guests, and of jobs whose Epilog was lost; touches no other job that Slurm has."""
    try:
        gpus = _gpus(here, berth) if berth else _named(here, indices_of(job, None, here, held))
        uuids = {gpu.uuid for gpu in gpus}
        guests = {guest.job for guest in arrivals.guests_on(here.paths, tuple(uuids))}
        for one in list(state.everything(here.paths)):
            for tenant in one.tenants if uuids & set(one.uuids) else ():
                if is_over(tenant.job, here.slurm, job.node):
                    here.say(f"job {tenant.job} was still in the books of a GPU of job {job.id}: its Epilog was lost")
                    # Detach this run, and no later one: the job may be started again while this Prolog waits for a
                    # lock.
                    _detach(here, tenant.job, tenant.start)
                    if not share_file.has_later(here.paths, tenant.job, tenant.start):
                        pages.remove(here.paths, tenant.job)
                    share_file.remove(here.paths, tenant.job, tenant.start)
                elif tenant.job not in guests:
                    here.say(f"job {tenant.job} shares a GPU that Slurm gave to job {job.id} as a whole")
        # An Epilog that was killed may have left MPS, or a compute mode in which a second process finds no GPU.
        for sentence in lifecycle.sweep(here.paths, here.config, tuple(uuids), here.config.mps_stop_timeout):
            here.say(sentence)
        arrival = Arrival(job.id, tuple(sorted(uuids)), planned=berth is not None)
        arrivals.meet(here.paths, arrival, here.say)
        if guests:
            lifecycle.open_to_owner(here.paths, here.config, tuple(uuids))
    except (NodeError, OSError) as problem:
        here.say(numbered(problem))


def is_over(job: int, slurm: Scontrol, node: str = "") -> bool:
    """Tells whether a job in the books has ended here: it has no control group, and Slurm has it nowhere or elsewhere.

    Without the name of this node a job that runs elsewhere counts as here.
    """
    return job not in cgroups.jobs() and not slurm.is_there(job, node)


def end(job: NodeJob, here: Here) -> int:
    """Takes a job's share back; returns the Epilog's exit status."""
    file = _file(job, here)
    patterns = here.config.chain_epilog
    if job.start and file.start > job.start:
        # Slurm repeats an Epilog if it does not know how the first one ended.
        here.say(f"job {job.id} runs here again: the Epilog of its run before leaves its share alone")
        return run_chain(patterns, job, (), here)
    try:
        if not patterns:
            _take_back(here, job, file)
            code = 0
        else:
            # Detach first: what is left of the job's MPS would keep a GPU from being reset or checked.
            with hand_over(here.paths, file.minors, here.config.chain_timeout):
                _take_back(here, job, file)
                code = run_chain(patterns, job, unused(here.paths, file), here, facts(file))
    except HardwareFault as fault:
        drain(job, here, str(fault))
        return 1
    except CannotShare as problem:
        # The books keep the job, so that the next Prolog, the guard or a human finds what is left of it.
        here.say(numbered(problem))
        return run_chain(patterns, job, (), here, facts(file))
    _tidy(job, file, here)
    return code


@contextmanager
def hand_over(paths: Paths, minors: Sequence[int], seconds: float) -> Iterator[None]:
    """Lets only one Prolog or Epilog at a time work on these GPUs.

    A site's script that resets or checks a GPU must not meet the start or the end of another job on it. The lock is one
    byte of one file for each GPU, so nothing has to be made or removed.
    """
    due = time.monotonic() + seconds
    files.prepare(paths)
    try:
        file = os.open(paths.jobs / ".lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError as problem:
        raise CannotShare(f"{paths.jobs}/.lock: {problem.strerror}; check the file system") from None
    try:
        for minor in sorted(minors):
            _lock(file, minor, due)
        yield
    finally:
        os.close(file)


def unused(paths: Paths, file: ShareRecord) -> list[int]:
    """Returns the job's GPUs that no other job uses: a site's script may reset, check or clean these.

    A guest has none. The GPU's next owner may run already in Slurm, before its own Prolog has put it into the books.
    """
    if file.tier == OPPORTUNISTIC:
        return []
    used = {
        uuid
        for one in state.everything(paths)
        if any(tenant.job != file.job for tenant in one.tenants)
        for uuid in one.uuids
    }
    return [minor for minor, uuid in zip(file.minors, file.uuids, strict=True) if uuid not in used]


def facts(file: ShareRecord) -> dict[str, str]:
    """Returns the variables for a site's script that knows Berth: all GPUs of a job that shares them."""
    return {
        "BERTH_GPUS": ",".join(map(str, file.minors)),
        "BERTH_UUIDS": ",".join(file.uuids),
        "BERTH_SHARE": "" if file.share is None else str(file.share),
    }


def _lock(file: int, minor: int, due: float) -> None:
    while True:
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, minor)
        except OSError:
            if time.monotonic() > due:
                raise Busy(f"another job's Prolog or Epilog kept GPU {minor} for too long; see its scripts") from None
            time.sleep(_POLL_SECONDS)
        else:
            return


def _gpus(here: Here, berth: NodeBerth) -> tuple[NodeGpu, ...]:
    if here.trouble:
        raise CannotShare(here.trouble)
    known = devices.gpus(here.paths)
    if berth.gpus[-1] >= len(known):
        raise HardwareFault(f"GPU {berth.gpus[-1]} is gone, the driver has {len(known)}; look at nvidia-smi and dmesg")
    return tuple(known[position] for position in berth.gpus)


def _named(here: Here, indices: Sequence[int]) -> tuple[NodeGpu, ...]:
    """Returns the GPUs of a job without a berth, by their device minors."""
    known = {gpu.minor: gpu for gpu in devices.gpus(here.paths)} if indices else {}
    return tuple(known[index] for index in indices if index in known)


def _attach(here: Here, file: ShareRecord, gpus: Sequence[NodeGpu]) -> int:
    _leave_run_before(here, file)
    if file.tier == OPPORTUNISTIC and len(gpus) > 1:
        raise CannotShare("a guest sits on one GPU of a node, and this job has several seats here; ask for one GPU")
    room = None
    if file.tier == GUARANTEED:
        file, got = _as_owner(here, file, gpus)
        reserve.make_room(here.paths, file, here.say)
    elif file.tier == OPPORTUNISTIC:
        room = reserve.room_for(here.paths, file)
        file, got = _as_guest(here, file, gpus, room)
    else:
        got = _share(here, file, gpus)
    for note in got.notes:
        here.say(note)
    if file.tier:
        file = _with_words(here, file, got.environment, room)
    if file.tier == OPPORTUNISTIC:
        # Slurm's books have no GPU for it: its steps must ask for none (cli_filter).
        file = replace(file, environment={**file.environment, "BERTH_GUEST": "1"})
    done = replace(
        file,
        why="",
        level=got.level.name,
        level_text=got.level.text,
        environment={**got.environment, **file.environment},
        unset=got.unset,
    )
    # If that fails, the file still says that the job has to be stopped, and the Epilog takes the share back.
    _write(here, done)
    return 0


def _leave_run_before(here: Here, file: ShareRecord) -> None:
    """Takes back the share of an earlier run: on other GPUs it would stay until the job is over."""
    tenants = [tenant for one in state.everything(here.paths) for tenant in one.tenants]
    if before := [one.start for one in tenants if one.job == file.job and one.start < file.start]:
        here.say(f"job {file.job} was still in the books with an earlier run: its Epilog was lost")
        _detach(here, file.job, max(before))


def _share(here: Here, file: ShareRecord, gpus: Sequence[NodeGpu], *, joins: bool = False) -> Attached:
    """Gives a job its share in its way."""
    tenant = time_slices.tenant_of(file)
    if file.way == "time":
        return time_slices.attach(here.paths, gpus, tenant)
    _keep_apart(here.paths, file)
    return lifecycle.attach(here.paths, here.config, gpus, tenant, joins=joins)


def _as_guest(here: Here, file: ShareRecord, gpus: Sequence[NodeGpu], room: int | None) -> tuple[ShareRecord, Attached]:
    """Gives a guest its seat: by MPS only where its host is in MPS's books, else in turn.

    MPS that a guest starts would close the GPU to an owner that comes at the same moment.
    """
    if file.way != "mps":
        return file, _share(here, file, gpus)
    joins = time_slices.host_under_mps(here.paths, file.uuids)
    try:
        return _as_one_of(here, file, gpus, room, joins=joins)
    except CannotShare:
        # Its host may have come, or gone, since the books were looked at.
        if time_slices.host_under_mps(here.paths, file.uuids) == joins:
            raise
    return _as_one_of(here, file, gpus, room, joins=not joins)


def _as_one_of(
    here: Here, file: ShareRecord, gpus: Sequence[NodeGpu], room: int | None, *, joins: bool
) -> tuple[ShareRecord, Attached]:
    # MPS fixes a client's limit when the client starts.
    file = replace(file, mem_mib=room) if joins else replace(file, way="time")
    return file, _share(here, file, gpus, joins=joins)


def _as_owner(here: Here, file: ShareRecord, gpus: Sequence[NodeGpu]) -> tuple[ShareRecord, Attached]:
    """Gives an owner its GPUs; guests whose way it does not share have to go, as for a job that takes none.

    Returns its share file with the way in which it shares them now.
    """
    if file.way == "mps" and not time_slices.has_guest(here.paths, file.uuids):
        try:
            return file, _share(here, file, gpus)
        except CannotShare:
            # A guest may have come since.
            guests = time_slices.guests_under_mps(here.paths, file.uuids)
            if not (guests or time_slices.has_guest(here.paths, file.uuids)):
                raise
    file = replace(file, way="time")
    if go := time_slices.guests_under_mps(here.paths, file.uuids):
        arrivals.meet(here.paths, Arrival(file.job, go, planned=True), here.say)
        lifecycle.open_to_owner(here.paths, here.config, go)
    return file, _share(here, file, [gpu for gpu in gpus if gpu.uuid not in go])


def _keep_apart(paths: Paths, file: ShareRecord) -> None:
    """Keeps a user whose program brought MPS down recently out of shared fault domains; alone it harms no other.

    berthd plans so. This check is for a berthd that has restarted and does not know.
    """
    for one in state.everything(paths):
        others = [tenant for tenant in one.tenants if tenant.job != file.job] if {*one.uuids} & {*file.uuids} else []
        for uid in {file.uid, *(tenant.uid for tenant in others)} if others else ():
            if seconds := quarantine.left(paths, uid):
                raise CannotShare(
                    f"a program of user {uid} brought MPS down here lately: its jobs share no GPU for "
                    f"{seconds / 60:.0f} min, and this GPU is in use; berthd moves the job"
                )


def _with_words(here: Here, file: ShareRecord, environment: Mapping[str, str], room: int | None = None) -> ShareRecord:
    """Makes the pages by which guard and job communicate, named in the order of the job's CUDA devices."""
    folder = here.paths.word(file.job)
    order = environment["CUDA_VISIBLE_DEVICES"].split(",") if "CUDA_VISIBLE_DEVICES" in environment else file.uuids
    try:
        words, lack = pages.make(here.paths, file.job, order, file.uid)
        if room is not None:
            for one in words:
                # The guard goes on from there; if it dies, this stands.
                word.OrderPage(one).give(word.OPEN, quota=room << 20, lease_s=0.0)
    except (WordError, NodeError, OSError) as problem:
        here.say(f"job {file.job} gets no word ({problem}); the guard can only freeze it, and does not hear it")
        return file
    if lack:
        here.say(f"the pages of job {file.job} lie on root's own file system ({lack}); see berth doctor node")
    prepend = {}
    for name, path in inject.wanted(here.config, file.tier).items():
        if lack := inject.lack(name, path):
            here.say(f"job {file.job} gets nothing into {name}: {lack}")
        else:
            prepend[name] = path
    environment = {VARIABLE: ":".join(map(str, words)), **inject.variables(here.config, file.tier)}
    return replace(file, word=str(folder), environment=environment, prepend=prepend)


def _take_back(here: Here, job: NodeJob, file: ShareRecord) -> None:
    """Takes the share back; a job that failed because MPS did is left to the guard, which may run it again."""
    loss = _detach(here, job.id, job.start, failed=job.ended_badly)
    if loss is None or file.degraded:
        return
    position = file.gpus[file.uuids.index(loss.uuids[0])] if loss.uuids[0] in file.uuids else 0
    try:
        losses.leave(here.paths, LossRecord(job.id, job.uid, job.start, job.node, position, loss.uuids, loss.pids))
    except NodeError as problem:
        here.say(f"job {job.id} failed when MPS did, and the guard is not told: {problem}")


def _detach(here: Here, job: int, start: int, *, failed: bool = False) -> Loss | None:
    freezer.release(here.paths, job)
    if time_slices.detach(here.paths, job, start):
        return None
    done = lifecycle.detach(here.paths, here.config, job, start, failed=failed)
    for leftover in done.leftovers:
        here.say(leftover)
    return done.loss


def _write(here: Here, file: ShareRecord) -> bool:
    """Writes the share file; SPANK stops a job that shares GPUs and has no such file."""
    try:
        share_file.write(here.paths, file)
    except NodeError as problem:
        here.say(f"{problem}; job {file.job} cannot share a GPU on this node until that is mended")
        return False
    return True


def _file(job: NodeJob, here: Here) -> ShareRecord:
    """Returns the job's share file; if it is missing or cannot be read, there may still be something to take back."""
    try:
        return share_file.read(here.paths, job.id) or ShareRecord(job.id, job.uid)
    except (CannotShare, NodeFormatError) as problem:
        here.say(numbered(problem))
        return ShareRecord(job.id, job.uid)


def _tidy(job: NodeJob, file: ShareRecord, here: Here) -> None:
    """Removes this job's share file, and old ones of jobs that could not share."""
    try:
        # The share file goes last: by it the guard finds what an Epilog that was killed has left.
        pages.remove(here.paths, job.id)
        if not file.degraded:
            share_file.remove(here.paths, job.id, job.start)
        share_file.remove_old(here.paths)
        _remove_empty(here.paths)
    except (OSError, NodeError) as problem:
        here.say(numbered(problem))


def _remove_empty(paths: Paths) -> None:
    """Removes folders of GPUs that no job shares: a Prolog that was killed may leave one."""
    for folder in paths.gpus.iterdir() if paths.gpus.is_dir() else ():
        if not (folder / "state.json").exists():
            with state.held(paths, [folder.name], 0.0):
                pass
