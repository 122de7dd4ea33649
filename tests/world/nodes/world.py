# SPDX-License-Identifier: Apache-2.0
"""The world of the nodes: plays a script of steps with real Prologs, Epilogs and guards, and checks after each."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterable
from types import TracebackType
from typing import Self

from policy.formats.slurm_syntax import pin_text
from tests.world.checks import ViolationError
from tests.world.clock import Replaced, VirtualTime, folder_in_memory
from tests.world.cluster import ModelCluster, ModelJob, ModelNode, Portion, Refusal
from tests.world.nodes import invariants
from tests.world.nodes.part import NodePart
from tests.world.nodes.slurm import NodeRun
from tests.world.script import Step

SHARES = (20, 30, 50, 70, 100)
MOST_MOVES = 3
"""How often a job without a share is moved."""
NODES = (("n1", 2), ("n2", 2))


class NodeWorld(NodePart):
    """Two nodes, a small Slurm, one clock; a script is all that decides."""

    def __init__(self) -> None:
        self.folder = folder_in_memory("berth-nodes-")
        clock, nodes = VirtualTime(), (ModelNode(name, gpus=gpus) for name, gpus in NODES)
        super().__init__(clock, ModelCluster(nodes), self.folder)
        self.replaced = Replaced()
        self.happened: Counter[str] = Counter()
        self.clock_back = 0
        """Seconds by which the clock was set back in all: so much longer files of jobs without a share are kept."""
        self.most_jobs = 8
        self.started: dict[int, int] = {}
        """The second in which each job began last."""
        self.slurm.on_notice = self._notice
        self.side.answer = self._berthd

    def __enter__(self) -> Self:
        self.side.put_in(self.replaced)
        self._site(0, 0, 8)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.side.take_out()
        self.replaced.undo()
        shutil.rmtree(self.folder)

    def _site(self, bits: int, driver: int, most_jobs: int) -> None:
        self.most_jobs = most_jobs
        self.multi_user = bool(bits & 1) and driver > 0
        self.tiers_by_time = bool(bits & 128)
        self.write_settings(bits, driver, multi_user=self.multi_user)

    # Steps

    def play(self, script: Iterable[Step], *, calm: bool = True) -> None:
        """Play a script; with `calm` the faults end after it, and all must come to a good end."""
        for step in script:
            self.step(step)
        if calm:
            self.calm_down()

    def step(self, step: Step) -> None:
        """One step, and all checks."""
        self.happened[str(step[0])] += 1
        self.cluster.now = self.clock.time()
        try:
            self._do(step)
            self.slurm.turn()
        except ViolationError:
            raise
        except Exception as fault:
            raise ViolationError(f"an exception in {step}: {fault!r}") from fault
        invariants.look(self)

    def _do(self, step: Step) -> None:
        name, *rest = step
        numbers = [one for one in rest if isinstance(one, int)]
        words = [one for one in rest if isinstance(one, str)]
        match name:
            case "site":
                self._site(*numbers)
            case "submit":
                self._submit(words[0], *numbers)
            case "sched":
                self._schedule()
            case "wait":
                self._wait(numbers[0] / 10)
            case "people":
                self._people(words[0], numbers[0])
            case "clock":
                self.clock.offset += numbers[0]
                self.clock_back += max(0, -numbers[0])
                self.trouble_all()
            case _:
                self.do(step)

    def _wait(self, seconds: float) -> None:
        if seconds >= 5.0:
            self._back_in_service()
            self._schedule()
            self.slurm.turn()
        self.wait(seconds)

    # Jobs

    def _submit(self, kind: str, place: int, size: int, work: int, user: int) -> None:
        """A job that berthd has placed: on GPU `place` of all, with a share by `size`."""
        cluster = self.cluster
        if sum(not job.over for job in cluster.jobs.values()) >= self.most_jobs:
            return
        job = ModelJob(cluster.next_id, 1_000 + user % 3, f"job{size % 3}", 1, 1, kind, work, "COMPLETED")
        job.fate = "FAILED" if size % 5 == 4 else "COMPLETED"
        node = ("n1", "n2")[place // 2 % 2]
        gpus, nodes = [place % 2], [node]
        if (kind == "whole" and size % 3 == 0) or (kind == "share" and place > 3):
            gpus = [0, 1]
        if kind in {"whole", "host"} and size % 4 == 1:
            nodes = ["n1", "n2"]
            job.n = 2
        by_time = (place + size) % 3 == 0 if kind == "share" else self.tiers_by_time
        way = "time" if by_time else "mps"
        more: dict[str, str] = {}
        if kind == "share":
            job.share = SHARES[size % 5]
            more = {"share": str(job.share), "way": way}
            if size % 2:
                more["mem"] = str(2_048 + 1_024 * size)
            job.tres_per_node = pin_text.tres_text(("shard",), gpus, job.share)
        elif kind == "host":
            more = {"tier": "guaranteed", "way": way}
            if size % 4:
                more["mem"] = str(10_240 * (1 + size % 5))
            job.tres_per_node = pin_text.tres_text(("gpu",), gpus, 1)
        elif kind == "guest":
            more = {"tier": "opportunistic", "way": way}
            if size % 3 == 0:
                more["mem"] = str(2_048 * (1 + size % 7))
            job.tres_per_node = pin_text.tres_text(("seat",), gpus, 1)
        else:
            job.tres_per_node = pin_text.tres_text(("gpu",), gpus, 1)
        job.k = len(gpus)
        job.req_nodes = ",".join(nodes)
        # Slurm itself places some.
        left = kind == "whole" and place > 1
        job.extra = "" if left else pin_text.extra_text("", nodes, ",".join(map(str, gpus)), more)
        job.admin_comment = "[berth/1 state=pinned]"
        job.submitted = int(cluster.now)
        cluster.add(job)

    def _schedule(self) -> None:
        """Start what fits: by GPUs, and by what berthd lets share a GPU."""
        for job in self.cluster.order():
            # Slurm tells two runs apart by the seconds of their starts, and takes longer than that to requeue a job.
            if job.held or job.begin > self.cluster.now or self.started.get(job.id) == int(self.cluster.now):
                continue
            wants = job.portion()
            assert wants is not None
            names = job.req_nodes.split(",")
            nodes = [self.cluster.nodes[name] for name in names]
            if all(node.open and node.fits(wants) and self._may_meet(job, node, wants) for node in nodes):
                self.cluster._start(job, dict.fromkeys(names, wants))
                self.started[job.id] = int(self.cluster.now)

    def _may_meet(self, job: ModelJob, node: ModelNode, wants: Portion) -> bool:
        """As berthd plans: on a shared GPU one way, one set of GPUs, one user unless the site has more, two tiers."""
        places = set(invariants.places(wants))
        for other_id, held in node.held.items():
            other = self.cluster.jobs[other_id]
            theirs = set(invariants.places(held))
            if not places & theirs:
                continue
            if job.kind == other.kind == "guest" or ("share" in {job.kind, other.kind} and job.kind != other.kind):
                return False
            if "whole" in {job.kind, other.kind}:
                run = self.slurm.runs.get((other_id, node.name))
                if job.kind == "guest" or other.kind != "guest" or run is None or run.prolog is not None:
                    return False
                continue
            if _way(job) != _way(other) or (_way(job) == "mps" and places != theirs):
                return False
            if _way(job) == "mps" and job.user != other.user and not self.multi_user:
                return False
        return True

    def _people(self, what: str, number: int) -> None:
        found = [job for job in self.cluster.jobs.values() if not job.over]
        if not found:
            return
        job = found[number % len(found)]
        try:
            if what == "cancel":
                self.cluster.cancel(job)
            elif what == "requeue" and not job.waits:
                self.cluster.requeue(str(job.id), incomplete=False)
                job.begin = int(self.cluster.now)
            elif what == "begin":
                job.begin = int(self.cluster.now)
            elif what == "end" and job.state == "RUNNING" and not job.ends_on:
                job.end = int(self.cluster.now)
                self.cluster.tick()
        except Refusal:
            pass

    # berthd

    def _notice(self, run: NodeRun, ended_well: bool) -> None:
        """The Epilog's end: berth-notice tells berthd, if the Epilog went well; the node is free in any case."""
        job = run.job
        invariants.after_epilog(self, run)
        degraded = job.degraded
        if run.node in job.ends_on:
            self.cluster.epilog_done(job.id, run.node)
        heard = degraded and ended_well and not self.notices_lost
        if heard and job.state == "FAILED" and not job.ends_on and job.restarts < MOST_MOVES:
            self.cluster.requeue(str(job.id), incomplete=False)
            job.begin = int(self.cluster.now)

    def _berthd(self, node: str, text: str) -> bool:
        words = dict(word.partition("=")[::2] for word in text.split()[2:])
        self.laws.told(node, words)
        if words.get("word") in {"leave", "evict"}:
            job = self.cluster.jobs.get(int(words["job"]))
            if job is not None and job.state == "RUNNING" and not job.ends_on and words["word"] == "evict":
                self.cluster.requeue(str(job.id), incomplete=True)
        return True

    # The end

    def calm_down(self) -> None:
        """Faults are over; after a few minutes nothing is left of jobs that are gone, and those there are run well."""
        self.mend()
        self._back_in_service()
        for number in range(2):
            self._wait(50.0)
            invariants.look(self)
            if number == 0:
                # Programs that hung for too long were ended now.
                self._back_in_service()
        invariants.calm(self)
        for job in list(self.cluster.jobs.values()):
            self.cluster.cancel(job)
        for seconds in (70.0, 70.0, 620.0 + self.clock_back):
            self._wait(seconds)
            invariants.look(self)
        invariants.nothing_left(self)

    def _back_in_service(self) -> None:
        self.slurm.drained.clear()
        for node in self.cluster.nodes.values():
            node.flags.clear()


def _way(job: ModelJob) -> str:
    return "time" if "way=time" in job.extra else "mps"


def play_nodes(script: Iterable[Step]) -> NodeWorld:
    """Play a script in a world of its own; a `ViolationError` tells what went wrong."""
    with NodeWorld() as world:
        world.play(script)
    return world
