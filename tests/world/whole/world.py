# SPDX-License-Identifier: Apache-2.0
"""The whole world: berthd and the programs of the nodes in one script, with one slurmctld between them."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterable
from types import TracebackType
from typing import Self

from policy.daemon.hear import words
from policy.daemon.hear.notices import DONE
from tests.world.clock import folder_in_memory
from tests.world.nodes import invariants
from tests.world.nodes.part import NodePart
from tests.world.nodes.slurm import NodeRun
from tests.world.script import Step
from tests.world.whole.laws import WholeLaws
from tests.world.world import EPILOG_WAITS, DeterministicWorld, SentNotice

SPEAKS_FOR = 0.3
"""Seconds that an Epilog or a guard waits for berthd's answer."""
AGAIN_AFTER = 1.0
"""Seconds after which a notice comes a second time, where all of them do."""
POST = ("at-once", "by-hand", "twice")
"""How notices come to berthd: at once, only by a step of the script, or each a second time a little later."""


class WholeWorld(DeterministicWorld):
    """One cluster with real programs on its nodes, one berthd, one clock; a script is all that decides."""

    sizes = (("n1", 4, "h100"), ("n2", 2, "h100"), ("n3", 2, "l40s"))

    def __init__(self) -> None:
        super().__init__()
        self.nodes_folder = folder_in_memory("berth-whole-")
        self.nodes = NodePart(self.clock, self.cluster, self.nodes_folder)
        self.laws = WholeLaws(self)
        self.met: Counter[str] = Counter()
        """What the two halves had to do with each other."""
        self.post = POST[0]
        self._busy = self._nodes_end = False
        self._words = 0
        self._epilogs: dict[tuple[int, str], SentNotice] = {}
        """Epilogs that wait for an answer."""
        self._answers: dict[int, bytes] = {}
        """By number of a guard's message that waits: berthd's answer."""
        self._again: list[SentNotice] = []
        slurm = self.nodes.slurm
        slurm.on_start, slurm.on_notice, slurm.on_launch = self.laws.starts, self._epilog_speaks, self._launched
        slurm.was_known = self.laws.keeps_apart
        self.nodes.side.answer = self._hears
        self.nodes.each_moment = self._each_moment
        self.door.passes = self._passes

    def __enter__(self) -> Self:
        super().__enter__()
        self.nodes.side.put_in(self.replaced)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.nodes.side.take_out()
        super().__exit__(kind, error, trace)
        shutil.rmtree(self.nodes_folder)

    def _site(
        self, bits: int, slow: int, version: int, dead: int = 0, most_jobs: int = 14,
        of_nodes: int = 0, driver: int = 0, post: int = 0,
    ) -> None:  # fmt: skip
        """The settings of berthd and of the nodes; one daemon for several users needs a driver that has that."""
        super()._site(bits, slow, version, dead, most_jobs)
        multi_user = self.processes.config.settings.sharing.multi_user
        self.nodes.write_settings(of_nodes, max(driver, int(multi_user)), multi_user=multi_user)
        self.post = POST[post]

    # Steps

    def step(self, step: Step) -> None:
        """One step, and all checks of both halves."""
        super().step(step)
        invariants.look(self.nodes)
        self.laws.look()

    def _do(self, step: Step) -> None:
        match step[0]:
            case "on":
                self.cluster.now = self.clock.time()
                self.nodes.do(step[1:])
            case "post":
                self.post = str(step[1])
            case _:
                super()._do(step)
        if step[0] == "clock":
            self.nodes.trouble_all()
            self.laws.clock_set()
        self.nodes.slurm.turn()
        if not self.depth:
            # A slow berthd took some time.
            self.nodes.tasks.advance(0.0, self.nodes.after_each)
            self._each_moment()

    def _wait(self, seconds: float) -> None:
        if self._nodes_end:
            super()._wait(seconds)
            return
        if seconds >= 5.0:
            self._back_in_service()
        self.nodes.wait(seconds)

    def _passes(self, seconds: float) -> None:
        """berthd waits for Slurm: only long waits let the nodes go on meanwhile."""
        if seconds < 1.0 or self._nodes_end:
            self.clock.passed += seconds
        else:
            self.nodes.wait(seconds)

    def _back_in_service(self) -> None:
        """An admin sees to the nodes that Prolog or Epilog have taken out of service."""
        for name in self.nodes.slurm.drained:
            if name in self.cluster.nodes:
                self.cluster.nodes[name].flags.discard("DRAIN")
        self.nodes.slurm.drained.clear()

    def _node(self, what: str, number: int) -> None:
        there = list(self.cluster.nodes.values())
        super()._node(what, number)
        if not there:
            return
        node = there[number % len(there)]
        if what == "reboot" or (what == "power-off" and "POWERED_DOWN" in node.flags):
            self.nodes.trouble(node.name)
            self.nodes.slurm.reboot(node.name)
            for one in [one for one in self._epilogs.values() if one.node == node.name]:
                self.epilog_ends(one)

    def _launched(self, run: NodeRun) -> None:
        self.nodes.launched(run)
        if run.job.flag == "POWER_UP_NODE":
            run.job.flag = ""

    # berthd

    def _berthd(self, name: str, numbers: list[int], words_of_step: list[str]) -> None:
        tenants, troubles, waiting = self.laws.tenants(), self.door.troubles, self.laws.waiting()
        self._busy = True
        try:
            super()._berthd(name, numbers, words_of_step)
        finally:
            self._busy = False
        planner = self.processes.planner
        if planner is None or self.door.troubles != troubles:
            self.laws.troubled()
            return
        if name == "pass":
            self.laws.passed(waiting)
            self.laws.free_is_free(tenants)
        elif name == "write" and not planner._updates.waiting:
            self.laws.written()

    def _each_moment(self) -> None:
        now = self.clock.passed
        for one in [one for one in self._epilogs.values() if now - one.sent >= SPEAKS_FOR]:
            self.epilog_ends(one)
        life = self.processes.life if self.processes.planner is not None else -1
        self.network = [one for one in self.network if now - one.sent <= EPILOG_WAITS and one.life == life]
        self._again = [one for one in self._again if now - one.sent <= EPILOG_WAITS and one.life == life]
        if self._busy or self.post == "by-hand":
            return
        due = [one for one in self._again if now - one.sent >= AGAIN_AFTER]
        if found := [*self.network, *due]:
            if self.post == "twice":
                self._again += self.network
            self.network, self._again = [], [one for one in self._again if one not in due]
            self._deliver_all(found)

    def _take(self, notices: list[SentNotice]) -> None:
        self.laws.told()
        super()._take(notices)

    def _deliver_all(self, found: list[SentNotice]) -> None:
        self._busy = True
        try:
            self._take(found)
        finally:
            self._busy = False

    def answered(self, one: SentNotice, line: bytes) -> None:
        """A guard that waits goes on too."""
        super().answered(one, line)
        if one.word is not None:
            self.laws.answered(one.word, line)
            if one.run in self._answers:
                self._answers[one.run] = line

    def epilog_ends(self, one: SentNotice) -> None:
        """Only the Epilog that has sent this notice ends by it."""
        if one.word is None and self._epilogs.get((one.job, one.node)) == one:
            del self._epilogs[one.job, one.node]
            super().epilog_ends(one)

    def _epilog_speaks(self, run: NodeRun, ended_well: bool) -> None:
        """The Epilog's end: berth-notice tells berthd, if the Epilog went well; the node is free soon in any case."""
        invariants.after_epilog(self.nodes, run)
        job, planner = run.job, self.processes.planner
        one = SentNotice(
            self.clock.passed, self.processes.life, job.id, run.node, self._degraded(run), None, run.number
        )
        if run.node in job.ends_on and not run.superseded:
            self._epilogs[job.id, run.node] = one
        self.met["jobs without their share"] += one.degraded
        if not ended_well or self.nodes.notices_lost or planner is None:
            self.epilog_ends(one)
            return
        self.met["notices of Epilogs"] += 1
        self.network.append(one)
        self.said[job.id] = job.restarts

    def _degraded(self, run: NodeRun) -> bool:
        """As berth-notice finds it: by the share file, or as no file can be written."""
        file = self.nodes.slurm.share_of(run)
        packed = run.sharing and (run.guest or bool(run.portion.shards))
        return run.stopped or (
            file.degraded if file is not None else packed and self.nodes.side.machines[run.node].full
        )

    def _hears(self, node: str, text: str) -> bool:
        """A guard, or what an Epilog has left behind, tells berthd, and waits a moment for the answer."""
        self.nodes.laws.told(node, dict(word.partition("=")[::2] for word in text.split()[2:]))
        word = words.read(text.encode())
        if word is None or self.processes.planner is None:
            return False
        self._words += 1
        one = SentNotice(self.clock.passed, self.processes.life, word.job, node, False, word, self._words)
        self.met[type(word).__name__] += 1
        self.network.append(one)
        self._answers[one.run] = b""
        self.nodes.tasks.block(SPEAKS_FOR, lambda: bool(self._answers[one.run]))
        return self._answers.pop(one.run) == DONE

    # The end

    def mend(self) -> None:
        """Faults of both halves are over."""
        super().mend()
        self.nodes.mend()
        self._back_in_service()
        self.post = POST[0]

    def _calm_epilogs(self) -> None:
        """They come by themselves."""

    def _forget_all(self) -> None:
        """Some minutes after all jobs nothing is left on a node; the rest concerns berthd alone."""
        for job in list(self.cluster.jobs.values()):
            self.cluster.cancel(job)
        for seconds in (70.0, 70.0, 620.0 + self.clock_back):
            self._wait(seconds)
            invariants.look(self.nodes)
        invariants.nothing_left(self.nodes)
        for machine in self.nodes.side.machines.values():
            for process in list(machine.processes.values()):
                process.end()
        self._nodes_end = True
        super()._forget_all()


def play_whole(script: Iterable[Step]) -> WholeWorld:
    """Play a script in a world of its own; a `ViolationError` tells what went wrong."""
    with WholeWorld() as world:
        world.play(script)
    return world
