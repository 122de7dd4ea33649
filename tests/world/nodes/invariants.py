# SPDX-License-Identifier: Apache-2.0
"""Checks what must hold on the nodes after every step, and at the end."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

from tests.world.checks import ViolationError, places
from tests.world.nodes.machine import Machine
from tests.world.nodes.side import GUARD
from tests.world.nodes.slurm import NodeRun, leaves_no_memory

if TYPE_CHECKING:
    from tests.world.nodes.part import NodePart

__all__ = ["NodeLaws", "calm", "look", "nothing_left", "places"]

THAWED_WITHIN = 8.0
"""Seconds within which a guest is thawed whose guard is gone or hangs: the lease, and a look of the dead-man's."""
ALONE_WITHIN = 15.0
"""Seconds after which nothing holds a guest that has its GPU alone."""
MOST_FILES = 120
_REASON_LASTS = 90.0
_AFTER_SWEEPS = 150.0
_HELD_BACK = frozenset({"leave", "evict"})


class NodeLaws:
    """What has to be remembered from step to step."""

    def __init__(self, world: NodePart) -> None:
        self._world = world
        self.held_alone_since: dict[tuple[str, int], float] = {}
        self.guests_under_mps: set[tuple[str, str]] = set()
        """Nodes and GPUs on which a guest has been under MPS."""
        self.faults_of_gpus: dict[str, float] = {}
        self._spoke_of: dict[str, float] = {}
        self._warned: set[int] = set()

    def xid(self, uuid: str) -> None:
        self.faults_of_gpus[uuid] = self._world.clock.passed

    def told(self, node: str, words: dict[str, str]) -> None:
        """A guard tells berthd of a guest that has to go: it is one, and there is a reason.

        A guard that was held up hears of a program's fault as late as it looks.
        """
        if "gpu" not in words:
            return
        uuid = self._world.side.machines[node].gpus[int(words["gpu"])].uuid
        fault, spoke = self.faults_of_gpus.get(uuid, float("-inf")), self._spoke_of.get(uuid, float("-inf"))
        self._spoke_of[uuid] = self._world.clock.passed
        if words.get("word") not in _HELD_BACK or not int(words.get("job", "0")):
            return
        if words["word"] == "evict" and int(words["job"]) in self._warned:
            return
        self._warned.add(int(words["job"]))
        world, job = self._world, self._world.cluster.jobs.get(int(words["job"]))
        if job is None:
            return
        if not world.is_guest(node, job.id):
            world.slurm.problems.append(f"the guard of {node} sends job {job.id} away, and it is no guest")
        machine = world.side.machines[node]
        gpu = machine.gpus[int(words["gpu"])]
        recent = world.clock.passed - _REASON_LASTS
        fails = machine.nvml_fails or gpu.lost or world.troubled[node] > recent
        load = gpu.busy == 100 or gpu.slow_clock
        mine = world.slurm.runs.get((job.id, node))
        under_mps = mine is not None and not _in_turn(machine, mine)
        others = [
            run
            for run in world.slurm.runs.values()
            if run.node == node and (not run.sharing or (under_mps and not run.guest and _comes_in_turn(machine, run)))
        ]
        owned = any(gpu.index in run.gpus for run in others) or any(
            run.node == node and gpu.index in run.gpus and run.ended_at > recent and not run.sharing
            for run in world.slurm.past
        )
        there = [*world.slurm.runs.values(), *(run for run in world.slurm.past if run.ended_at > recent)]
        hosts = [run for run in there if run.node == node and gpu.index in run.gpus and run.sharing and not run.guest]
        crowded = any(leaves_no_memory(run.extra, "" if mine is None else mine.extra) for run in hosts)
        if not (load or fails or owned or crowded or fault > min(recent, spoke)):
            world.slurm.problems.append(
                f"the guard of {node} sends job {job.id} away from GPU {gpu.index} for no reason"
            )


def look(world: NodePart) -> None:
    """All that must hold at any moment."""
    side, slurm = world.side, world.slurm
    for found in (side.defects, slurm.problems):
        if found:
            raise ViolationError(found[0])
    _signals(world)
    for machine in side.machines.values():
        books = read_books(machine)
        _shares(machine, books)
        world.laws.guests_under_mps |= {
            (machine.name, uuid)
            for uuid, tenants in books.items()
            if any(one["method"] != "time" and one["tier"] == "opportunistic" for one in tenants.values())
        }
        if not world.excuse(machine.name) and not _works_on(world, machine):
            _mps_as_told(world, machine, books)
        _frozen(world, machine)
        if (files := sum(len(names) for _, _, names in os.walk(machine.folder / "run"))) > MOST_FILES:
            raise ViolationError(f"{machine.name} has {files} files below /run")
    for run in slurm.runs.values():
        if run.phase == "runs" and run.programs:
            _runs_well(world, run)


def read_books(machine: Machine) -> dict[str, dict[int, dict[str, object]]]:
    """The tenants of each GPU, from the state files; a file that cannot be read has none."""
    found: dict[str, dict[int, dict[str, object]]] = {}
    folder = machine.folder / "run/berth/gpus"
    contents = {}
    for path in folder.glob("*/state.json") if folder.is_dir() else ():
        try:
            contents[path.parent.name] = json.loads(path.read_text())
        except ValueError:
            raise ViolationError(f"{machine.name}: the books of {path.parent.name} cannot be read") from None
    for uuid, content in contents.items():
        whole = contents.get(content.get("set", uuid), {})
        if uuid in whole.get("uuids", ()):
            found[uuid] = {int(job): {**tenant, "method": whole["method"]} for job, tenant in whole["tenants"].items()}
    return found


def _shares(machine: Machine, books: dict[str, dict[int, dict[str, object]]]) -> None:
    for uuid, tenants in books.items():
        # By time shares are Slurm's to count: a lost Epilog's tenant harms nobody there.
        total = sum(int(str(one["share"])) for one in tenants.values() if not one["tier"] and one["method"] != "time")
        if total > 100:
            raise ViolationError(f"{machine.name} {uuid}: shares in the books add up to {total}")


def _works_on(world: NodePart, machine: Machine) -> bool:
    """Tells whether a Prolog or an Epilog runs, or has yet to."""
    return any(
        run.node == machine.name and (run.prolog is not None or run.phase in {"ends", "epilog"})
        for run in world.slurm.runs.values()
    ) or any(
        task.process.machine is machine and task.name.startswith(("prolog", "epilog")) for task in world.tasks.living
    )


def _mps_as_told(world: NodePart, machine: Machine, books: dict[str, dict[int, dict[str, object]]]) -> None:
    """In peace each daemon serves jobs that are there, and holds them as the books say."""
    here = {run.job.id for run in world.slurm.runs.values() if run.node == machine.name}
    for daemon in world.side.mps.of(machine):
        tenants = books.get(daemon.uuids[0], {})
        if not tenants or not tenants.keys() <= here:
            raise ViolationError(
                f"{machine.name}: MPS on {daemon.uuids} serves {sorted(tenants)}, and there are {here}"
            )
        most = max(int(str(one["share"])) for one in tenants.values())
        for server in daemon.service.servers.values():
            if server.limits.percent != most:
                raise ViolationError(
                    f"{machine.name}: MPS holds {daemon.uuids} at {server.limits.percent}, not {most} %"
                )
    for process in machine.processes.values():
        if "/try-" in process.environ.get("CUDA_MPS_PIPE_DIRECTORY", ""):
            raise ViolationError(f"{machine.name}: a daemon that was tried is left")


def _signals(world: NodePart) -> None:
    for program, process, number in world.side.kernel.signalled:
        if program == GUARD and process.job is not None:
            job = world.cluster.jobs.get(process.job)
            if job is not None and not world.is_guest(process.machine.name, job.id):
                raise ViolationError(f"the guard sent signal {number} to job {job.id}, a {job.kind} job")
    world.side.kernel.signalled.clear()


def _frozen(world: NodePart, machine: Machine) -> None:
    now, guard = world.clock.passed, world.side.guards.get(machine.name)
    dead_man = world.side.deadmen.get(machine.name)
    watched = guard is not None and not guard.dead and not guard.stalled
    for group, since in machine.frozen_since.items():
        number = int(group.split("/job_")[1].split("/")[0])
        job = world.cluster.jobs.get(number)
        if job is not None and not world.is_guest(machine.name, number):
            raise ViolationError(f"job {number} is frozen, and it is a {job.kind} job")
        if watched:
            _held_for_a_reason(world, machine, number)
            continue
        last = max(since, world.troubled[machine.name], world.side.guard_gone_at[machine.name])
        if dead_man is not None and not dead_man.dead and not dead_man.stalled and now - last > THAWED_WITHIN:
            raise ViolationError(f"job {number} stays frozen {now - last:.0f} s after its guard was gone")
    laws = world.laws
    frozen = {int(one.split("/job_")[1].split("/")[0]) for one in machine.frozen_since}
    for key in [key for key in laws.held_alone_since if key[0] == machine.name and key[1] not in frozen]:
        del laws.held_alone_since[key]


def _held_for_a_reason(world: NodePart, machine: Machine, number: int) -> None:
    """A guest that is alone on its GPU is let go soon."""
    now, laws = world.clock.passed, world.laws
    runs = [run for run in world.slurm.runs.values() if run.node == machine.name]
    mine = next((run for run in runs if run.job.id == number), None)
    others = [run for run in runs if mine is not None and run.job.id != number and set(run.gpus) & set(mine.gpus)]
    key = machine.name, number
    if mine is None or mine.phase != "runs" or others or world.excuse(machine.name):
        # Nobody looks for half a minute: since when it is alone is known only from the next look on.
        laws.held_alone_since.pop(key, None)
    elif now - laws.held_alone_since.setdefault(key, now) > ALONE_WITHIN:
        raise ViolationError(f"job {number} is frozen, though it has been alone on its GPU for {ALONE_WITHIN:.0f} s")


def _runs_well(world: NodePart, run: NodeRun) -> None:
    machine = world.side.machines[run.node]
    gpus = [machine.gpus[place] for place in run.gpus]
    if why := not_whole(world, run):
        raise ViolationError(why)
    if run.again or not run.sharing:
        return
    books = read_books(machine)
    for gpu in gpus:
        if run.job.id not in books.get(gpu.uuid, {}) and not stays_out(world, run, gpu.uuid):
            raise ViolationError(f"job {run.job.id} runs, and is not in the books of GPU {gpu.index} of {run.node}")
    text = _text(machine.folder / f"run/berth/jobs/{run.job.id}")
    if f"\nstart={run.start}\n" not in text:
        raise ViolationError(f"job {run.job.id} runs, and its share file on {run.node} is gone or another run's")


def stays_out(world: NodePart, run: NodeRun, uuid: str) -> bool:
    """Tells whether a run is an owner in turn that is in no books: a guest under MPS was there, and none came since."""
    machine = world.side.machines[run.node]
    if run.guest or (run.node, uuid) not in world.laws.guests_under_mps or not _in_turn(machine, run):
        return False
    return all(one["method"] != "time" for one in read_books(machine).get(uuid, {}).values())


def _comes_in_turn(machine: Machine, run: NodeRun) -> bool:
    return run.prolog is not None or _in_turn(machine, run)  # its Prolog writes the way at its end


def _in_turn(machine: Machine, run: NodeRun) -> bool:
    return "\nway=time\n" in _text(machine.folder / f"run/berth/jobs/{run.job.id}")


def not_whole(world: NodePart, run: NodeRun) -> str:
    """Why a job with whole GPUs cannot use them; empty if it can, or if a fault explains it."""
    if run.sharing or run.excuse or world.excuse(run.node):
        return ""
    machine = world.side.machines[run.node]
    for gpu in (machine.gpus[place] for place in run.gpus):
        if gpu.mode:
            return f"job {run.job.id} has GPU {gpu.index} as a whole, and it is in compute mode {gpu.mode}"
        guests = [
            one for one in world.slurm.runs.values() if one.node == run.node and one.guest and gpu.index in one.gpus
        ]
        if not guests and any(gpu.uuid in one.uuids for one in world.side.mps.of(machine)):
            return f"job {run.job.id} has GPU {gpu.index} as a whole, with MPS on it"
    return ""


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


def after_epilog(world: NodePart, run: NodeRun) -> None:
    """An Epilog that went well has left nothing of its job."""
    machine, job = world.side.machines[run.node], run.job
    if run.epilog_code != 0 or run.excuse or world.excuse(run.node):
        return
    later = world.slurm.runs.get((job.id, run.node))
    if later is not None and later is not run:
        return
    root = machine.folder / "run/berth"
    text = _text(root / f"jobs/{job.id}")
    left = [name for name in ("words", "frozen") if (root / name / str(job.id)).exists()]
    if text and "\nstatus=ok\n" in text:
        left.append("jobs")
    left += [f"books of {uuid}" for uuid, tenants in read_books(machine).items() if job.id in tenants]
    if left:
        world.slurm.problems.append(f"the Epilog of job {job.id} went well and left {left}")


def calm(world: NodePart) -> None:
    """Some minutes after the last fault every job that runs has what it should."""
    for name, reason in world.slurm.drained.items():
        raise ViolationError(f"{name} is taken out of service in peace: {reason}")


def nothing_left(world: NodePart) -> None:
    """Nobody is there any more: neither processes nor files nor modes are left."""
    for machine in world.side.machines.values():
        for process in machine.processes.values():
            if process.program not in {GUARD, "berth-dead-man"}:
                raise ViolationError(f"{machine.name}: process {process.program} is left, {process.environ}")
            if len(process.fds) > 20:
                raise ViolationError(f"{machine.name}: {process.program} has {len(process.fds)} files open")
        for gpu in machine.gpus:
            if gpu.mode:
                raise ViolationError(f"{machine.name} GPU {gpu.index} is left in compute mode {gpu.mode}")
        left = []
        for folder, _, names in os.walk(machine.folder / "run/berth"):
            left += [os.path.relpath(f"{folder}/{name}", machine.folder / "run/berth") for name in names]
        known = {"guard.lock", "gpus.json", "jobs/.lock", "listed.json", "failed/.lock", "xids"}
        left = [one for one in left if one not in known and not one.startswith(("culprits/", "failed/"))]
        left += machine.mounted
        if left:
            raise ViolationError(f"{machine.name}: files of jobs that are gone are left: {sorted(left)}")
        for folder in ("gpus", "mps", "words"):
            if (path := machine.folder / "run/berth" / folder).is_dir() and (
                names := [one.name for one in path.iterdir()]
            ):
                raise ViolationError(f"{machine.name}: {folder} has {names} left")
        for path in [one for name in ("dcgm", "jobstats") for one in (machine.folder / "run" / name).rglob("*")]:
            if path.is_file():
                raise ViolationError(f"{machine.name}: {path.name} still lists {path.read_text().split()}")
