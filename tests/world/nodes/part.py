# SPDX-License-Identifier: Apache-2.0
"""The nodes with their programs, and all that may happen to them: a part of a world."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tests.world.clock import VirtualTime
from tests.world.cluster import ModelCluster
from tests.world.nodes import invariants
from tests.world.nodes.invariants import NodeLaws
from tests.world.nodes.machine import Machine, ModelProcess
from tests.world.nodes.side import NodeSide
from tests.world.nodes.slurm import NodeRun
from tests.world.script import Step

SLICE = 5.0
DRIVERS = ("r550", "r580", "r595")
_QUIET = 180.0
"""Seconds after which no fault is an excuse any more: two sweeps of the guard, and Slurm's memory of jobs apart."""


class NodePart:
    """The nodes of a cluster, each with Prolog, Epilog and guard."""

    def __init__(self, clock: VirtualTime, cluster: ModelCluster, folder: Path) -> None:
        self.clock, self.cluster = clock, cluster
        self.side = NodeSide(clock, cluster, folder)
        self.slurm, self.tasks = self.side.slurm, self.side.tasks
        self.troubled = {name: float("-inf") for name in self.side.machines}
        """By node: when the last fault was."""
        self.laws = NodeLaws(self)
        self.notices_lost = False
        self.each_moment: Callable[[], None] = lambda: None
        """What others do between two turns of the programs."""
        self.slurm.last = lambda run: " | ".join([line for node, line in self.side.said if node == run.node][-2:])
        self.slurm.excuse_at = self.excuse
        self.slurm.on_trouble = self.trouble
        self.slurm.on_launch = self.launched

    def write_settings(self, bits: int, driver: int, *, multi_user: bool) -> None:
        """The site's berth.conf on each node, as far as bits tell."""
        self.side.mps.driver = DRIVERS[driver]
        chained = bool(bits & 2)
        text = [
            "[node]",
            f"multi_user = {str(multi_user).lower()}",
            f'violation = "{("warn", "terminate", "requeue", "requeue")[bits >> 2 & 3]}"',
            "mps_start_timeout = 20",
            "mps_stop_timeout = 5",
            "chain_timeout = 30",
            'scontrol = "/usr/bin/scontrol"',
        ]
        if chained:
            text += ['chain_prolog = ["/etc/slurm/site.sh"]', 'chain_epilog = ["/etc/slurm/site.sh"]']
        if bits & 32:
            text += ['jobs_for_dcgm = "/run/dcgm"', 'jobs_for_jobstats = "/run/jobstats"']
        text += ["[notice]", 'hosts = "ctl"', "[guard.action]", f"evict_grace_s = {5 if bits & 64 else 0}"]
        for machine in self.side.machines.values():
            machine.number_gpus(gap=bool(bits & 256))
            (machine.folder / "etc/slurm/berth.conf").write_text("\n".join(text) + "\n")
            script = machine.folder / "etc/slurm/site.sh"
            script.write_text("#!/bin/sh\n")
            script.chmod(0o755)

    # Steps

    def do(self, step: Step) -> bool:  # noqa: PLR0912 - a table
        """One step; False where it is none of the nodes' own."""
        name, *rest = step
        numbers = [one for one in rest if isinstance(one, int)]
        words = [one for one in rest if isinstance(one, str)]
        match name:
            case "run":
                self._run(words[0], *numbers)
            case "cut":
                self._cut(words[0], *numbers)
            case "kill" | "hang":
                self._harm(str(name), words[0], numbers[0])
            case "go":
                for process in self.side.programs(("prolog", "epilog", "guard", "dead-man")):
                    if process.stalled:
                        # It acts on what it had read before.
                        self.trouble(process.machine.name)
                    process.stalled = False
            case "again":
                self._again(words[0], numbers[0])
            case "guard":
                self.side.start_guard(self._machine(numbers[0]).name)
            case "stop":
                self.trouble(self._machine(numbers[0]).name)
                self.side.stop_guard(self._machine(numbers[0]).name)
            case "mps" | "gpu" | "disk":
                self._hardware(str(name), words[0], *numbers)
            case "slurm":
                self.slurm.out = words[0] == "out"
                self.trouble_all()
            case "script":
                self._script(words[0], numbers[0])
            case "node":
                self._node(words[0], numbers[0])
            case "client":
                self._client(words[0], numbers[0])
            case "notices":
                self.notices_lost = words[0] == "lost"
            case "berthd":
                self.side.hears = words[0] == "hears"
            case _:
                return False
        return True

    def _machine(self, number: int) -> Machine:
        return list(self.side.machines.values())[number % len(self.side.machines)]

    def trouble(self, node: str) -> None:
        """A fault: for some time it may be why something does not go well there."""
        self.troubled[node] = self.clock.passed
        for run in self.slurm.runs.values():
            if run.node == node and run.prolog is not None:
                run.excuse = "a fault meanwhile"

    def is_guest(self, node: str, number: int) -> bool:
        """Tells whether a job is a guest on a node, or was in its last run there."""
        run = self.slurm.runs.get((number, node)) or next(
            (one for one in reversed(self.slurm.past) if one.job.id == number and one.node == node), None
        )
        return run is None or run.guest

    def trouble_all(self) -> None:
        """A fault of all nodes."""
        for name in self.side.machines:
            self.trouble(name)

    def excuse(self, node: str) -> str:
        """Why something may go wrong on a node now; empty if all is well, and has been for long enough."""
        machine = self.side.machines[node]
        if self.slurm.out or machine.full or machine.write_faults or machine.nvml_fails or self.side.mps.missing:
            return "a fault lasts"
        if any(gpu.lost for gpu in machine.gpus):
            return "a GPU is lost"
        if self.slurm.script_hangs or node in self.slurm.script_fails:
            return "a script of the site's fails"
        if any(process.stalled for process in machine.processes.values()):
            return "a program hangs"
        if (
            any(daemon.hangs or daemon.refuses for daemon in self.side.mps.of(machine))
            or self.side.mps.server_starts_in > 1.0
        ):
            return "MPS does not do what it is told"
        if self.side.mps.server_dies:
            return "MPS does not do what it is told"
        # What a fault has left is cleared by the guard, once Slurm says that the job is over.
        since = self.side.guard_since.get(node, float("inf"))
        if self.troubled[node] > float("-inf") and max(since, self.troubled[node]) + _QUIET > self.clock.passed:
            return "a fault was lately"
        return ""

    # Time

    def _run(self, kind: str, number: int, operations: int) -> None:
        able = [task for task in self.tasks.living if task.name.startswith(kind) and self.tasks.can_run(task)]
        if able:
            self.tasks.run(able[number % len(able)], operations)

    def _cut(self, kind: str, number: int, operations: int) -> None:
        """A program is killed after so many operations; what it waits for meanwhile, it gets."""
        found = self.side.programs((kind,))
        if not found:
            return
        process = found[number % len(found)]
        self.trouble(process.machine.name)
        last = self.tasks.operations + operations
        while not process.dead and self.tasks.operations < last:
            task = process.tasks[0]
            if self.tasks.can_run(task):
                self.tasks.run(task, last - self.tasks.operations)
            elif process.stalled:
                break
            else:
                self.wait(0.2)
        process.end()

    def wait(self, seconds: float, *, pace: float = 0.2) -> None:
        """Time passes, and all programs go on; guards look at least every `pace` seconds."""
        self.side.pace(min(30.0, max(pace, seconds / 20.0)))
        end = self.clock.passed + seconds
        while self.clock.passed < end - 1e-9:
            self.tasks.advance(min(SLICE, end - self.clock.passed), self.after_each)
            self.after_each()
            self.side.restart_guards()
            self.cluster.tick()
            self.slurm.turn()

    def after_each(self) -> None:
        """What happens as soon as a program has come to its end."""
        self.cluster.now = self.clock.time()
        self.slurm.turn()
        self.each_moment()

    # Faults

    def _harm(self, how: str, kind: str, number: int) -> None:
        found = self._holders() if kind == "holder" else self.side.programs((kind,))
        if not found:
            return
        process = found[number % len(found)]
        self.trouble(process.machine.name)
        if how == "hang":
            process.stalled = True
        else:
            process.end()

    def _holders(self) -> list[ModelProcess]:
        """The guards that hold a guest frozen: owners of guests' GPUs need all of these for some seconds."""
        until = self.clock.passed + 15.0
        while guests := [run for run in self.slurm.runs.values() if run.guest and run.phase == "runs"]:
            held = [self.side.guards.get(name) for name, one in self.side.machines.items() if one.frozen_since]
            if (found := [one for one in held if one is not None and not one.dead]) or self.clock.passed > until:
                return found
            for run in guests:
                self.trouble(run.node)
                for place in run.gpus:
                    gpu = self.side.machines[run.node].gpus[place]
                    gpu.busy, gpu.memory_used = 100, 0.97
            self.wait(0.3)
        return []

    def _again(self, what: str, number: int) -> None:
        """Slurm runs a program once more: an Epilog of a run that is over, or the Prolog of one that has begun."""
        if what == "epilog":
            now = {run.job.id: run for run in self.slurm.runs.values() if run.phase in {"prolog", "ready", "runs"}}
            # Where the clock was set back between two runs of a job, their starts do not tell which was first.
            ended = [run for run in self.slurm.past if run.job.id not in now or run.start < now[run.job.id].start]
            past = [run for run in ended if run.job.id in now] or ended[-8:]
            if past:
                self.slurm.epilog(past[number % len(past)])
            return
        runs = [run for run in self.slurm.runs.values() if run.phase in {"ready", "runs"} and run.prolog is None]
        if runs:
            run = runs[number % len(runs)]
            run.again = True
            self.slurm.prolog(run)

    def _hardware(self, which: str, what: str, number: int) -> None:  # noqa: PLR0912 - a table
        machine = self._machine(number)
        gpu = machine.gpus[number // 2 % len(machine.gpus)]
        daemons = self.side.mps.of(machine)
        daemon = daemons[number // 2 % len(daemons)] if daemons else None
        self.trouble(machine.name)
        match which, what:
            case "mps", "dies" if daemon is not None:
                daemon.process.end()
            case "mps", "server-dies" if daemon is not None:
                for server in list(daemon.service.servers.values()):
                    server.process.end()
            case "mps", "fault" if daemon is not None:
                daemon.fault(number)
            case "mps", "hangs" if daemon is not None:
                daemon.hangs = True
            case "mps", "refuses" if daemon is not None:
                daemon.refuses = True
            case "mps", "works":
                for one in self.side.mps.daemons.values():
                    one.hangs = one.refuses = False
                self.side.mps.server_dies = self.side.mps.missing = False
                self.side.mps.server_starts_in = 0.3
            case "mps", "no-server":
                self.side.mps.server_dies = True
            case "mps", "slow":
                self.side.mps.server_starts_in = 25.0
            case "mps", "missing":
                self.side.mps.missing = True
            case "gpu", "fails":
                machine.nvml_fails = True
            case "gpu", "works":
                machine.nvml_fails = False
                machine.gpus_back()
            case "gpu", "busy":
                gpu.busy, gpu.memory_used = 100, 0.97
            case "gpu", "idle":
                gpu.busy, gpu.memory_used, gpu.slow_clock = 10, 0.1, False
            case "gpu", "hot":
                gpu.slow_clock = True
            case "gpu", "lost":
                gpu.lost = True
            case "gpu", "xid":
                machine.xids.append((gpu.uuid, (13, 31, 79, 48)[number // 4 % 4]))
                self.laws.xid(gpu.uuid)
            case "disk", "full":
                machine.full = True
            case "disk", "free":
                machine.full = False
            case "disk", "fails":
                machine.write_faults.append(1 + number)

    def _script(self, what: str, number: int) -> None:
        self.trouble_all()
        self.slurm.script_hangs = what == "hangs"
        if what == "fails":
            self.slurm.script_fails.add(self._machine(number).name)
        elif what == "works":
            self.slurm.script_fails.clear()

    def _node(self, what: str, number: int) -> None:
        machine = self._machine(number)
        if what == "resume":
            self.cluster.nodes[machine.name].flags.clear()
            self.slurm.drained.pop(machine.name, None)
        elif what == "reboot":
            self.trouble(machine.name)
            self.slurm.reboot(machine.name)
        elif what == "drain":
            self.cluster.nodes[machine.name].flags.add("DRAIN")

    def _client(self, what: str, number: int) -> None:
        """A program of a job does something by itself."""
        found = [one for run in self.slurm.runs.values() for one in run.programs if not one.dead]
        if not found:
            return
        process = found[number % len(found)]
        if what == "crash":
            self.slurm._program_fails(process)
        elif what == "rests":
            process.uuids = ()
        elif what == "fork":
            more = process.machine.spawn("/usr/bin/train", process.uid, parent=process.pid)
            process.machine.join(more, process.job or 0, process.group)
            for run in self.slurm.runs.values():
                if process in run.programs:
                    run.programs.append(more)

    def launched(self, run: NodeRun) -> None:
        """Its programs begin."""
        if why := invariants.not_whole(self, run):
            self.slurm.problems.append(why)

    def mend(self) -> None:
        """Faults are over."""
        self.slurm.out = self.slurm.script_hangs = False
        self.slurm.script_fails.clear()
        self.notices_lost, self.side.hears = False, True
        for number, machine in enumerate(self.side.machines.values()):
            machine.full = machine.nvml_fails = False
            machine.write_faults.clear()
            machine.xids.clear()
            for process in machine.processes.values():
                if process.stalled:
                    self.trouble(machine.name)
                process.stalled = False
            self._hardware("mps", "works", number)
            machine.gpus_back()
            for gpu in machine.gpus:
                gpu.busy, gpu.memory_used, gpu.slow_clock = 10, 0.1, False
            self.side.start_guard(machine.name)
