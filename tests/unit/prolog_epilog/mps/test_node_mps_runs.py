# SPDX-License-Identifier: Apache-2.0
"""A job that runs again, and jobs that end before the guard looks: whose share is taken back, and who lost MPS."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from prolog_epilog.errors import NodeError
from prolog_epilog.guard.seats.watch import Watch
from prolog_epilog.injob import word
from prolog_epilog.mps import Attached, Tenant, attach, detach, losses, tenants
from prolog_epilog.mps.losses import LossRecord
from prolog_epilog.mps.trouble import reset_after_fault
from prolog_epilog.node import devices, files
from prolog_epilog.node.paths import Paths
from prolog_epilog.settings.config import NodeConfig
from prolog_epilog.tenants import share_file, state
from prolog_epilog.tenants.audit import Judge
from prolog_epilog.tenants.share_file import ShareRecord
from tests.examples import examples
from tests.fakes.mps.world import GPUS, USER, App, Node, await_true, fresh_node
from tests.unit.prolog_epilog.mps.status import server_status

pytestmark = pytest.mark.slow

FIRST = GPUS[1]
FIRST_RUN, SECOND_RUN = 1_000, 2_000


@pytest.fixture
def node(monkeypatch: pytest.MonkeyPatch) -> Iterator[Node]:
    with fresh_node(monkeypatch) as made:
        yield made


def begin(node: Node, job: int, start: int = FIRST_RUN, share: int = 30) -> Attached:
    """What a Prolog does."""
    share_file.write(
        node.paths,
        ShareRecord(job, USER, gpus=(0,), minors=(0,), uuids=(FIRST,), share=share, way="mps", node="n1", start=start),
    )
    return attach(node.paths, node.config, node.gpus(0), Tenant(job, USER, share, start=start))


def uses_mps(node: Node, attached: Attached) -> bool:
    app = node.app("hold=60", given=attached.environment)
    said = app.says()
    app.end()
    return bool(said.get("mps"))


class Slurm:
    """Slurm's answers, and what happens while it thinks."""

    def __init__(self, then: Callable[[], object] = lambda: None, state: str = "FAILED") -> None:
        self.then, self.now = then, state
        self.requeued: list[int] = []

    def is_there(self, _job: int, _node: str) -> bool:
        self.then()
        return False

    def state(self, _job: int) -> str:
        return self.now

    def requeue(self, job: int, *, if_running: bool = False) -> None:
        assert not if_running
        self.requeued.append(job)


def watching(node: Node, slurm: Slurm) -> Watch:
    boot = node.paths.boot_id.read_text().strip()
    return Watch(node.paths, node.config, slurm, Judge("warn"), boot)  # type: ignore[arg-type]


def test_the_epilog_of_a_run_before_takes_nothing_from_the_job_that_runs_again(node: Node) -> None:
    begin(node, 7, SECOND_RUN)
    # Slurm repeats an Epilog after a restart of slurmd.
    assert detach(node.paths, node.config, 7, FIRST_RUN).stopped == ()
    assert [one.start for one in tenants(node.paths, FIRST)] == [SECOND_RUN]
    assert detach(node.paths, node.config, 7, SECOND_RUN).stopped == (FIRST,)
    assert node.clean()


def test_the_guard_that_found_a_job_over_does_not_take_mps_from_its_next_run(node: Node) -> None:
    begin(node, 7, FIRST_RUN)
    again: list[Attached] = []

    def runs_again() -> None:
        # Between the guard's question and what it does then: the Epilog of the first run, and the next Prolog.
        detach(node.paths, node.config, 7, FIRST_RUN)
        share_file.remove(node.paths, 7, FIRST_RUN)
        again.append(begin(node, 7, SECOND_RUN))

    watching(node, Slurm(runs_again)).clear_lost()

    assert [one.start for one in tenants(node.paths, FIRST)] == [SECOND_RUN]
    assert share_file.read(node.paths, 7) is not None
    assert uses_mps(node, again[0])


def left_behind(paths: Paths, job: int, seconds: float, **more: Any) -> None:
    """The share file of a job whose Epilog has taken it out of the books, and was killed so many seconds ago."""
    files.prepare(paths)
    share_file.write(
        paths, ShareRecord(job, USER, gpus=(0,), minors=(0,), uuids=(FIRST,), way="time", node="n1", **more)
    )
    then = time.time() - seconds
    os.utime(paths.job(job), (then, then))


def cleared(paths: Paths, slurm: Slurm) -> list[int]:
    """The jobs whose share files are there still when the guard has looked."""
    Watch(paths, NodeConfig(), slurm, Judge("warn"), "boot").clear_lost()  # type: ignore[arg-type]
    return sorted(share_file.jobs(paths))


def test_the_share_file_of_a_job_that_is_over_goes_where_its_epilog_left_it(tmp_path: Path) -> None:
    paths = Paths(tmp_path)
    left_behind(paths, 5, 90.0, start=FIRST_RUN)
    left_behind(paths, 6, 90.0)
    # berth-notice tells berthd of the first, and a job's Prolog may be about to write down the second in the books.
    left_behind(paths, 7, 90.0, why="no MPS")
    left_behind(paths, 8, 30.0)
    paths.job(9).write_text("what a full disk leaves")
    os.utime(paths.job(9), (0, 0))

    assert cleared(paths, Slurm()) == [7, 8]


def test_a_share_file_stays_where_slurm_has_the_job(tmp_path: Path) -> None:
    class Busy(Slurm):
        def is_there(self, _job: int, _node: str) -> bool:
            return True

    paths = Paths(tmp_path)
    left_behind(paths, 5, 90.0)

    assert cleared(paths, Busy()) == [5]


@pytest.mark.parametrize("start", [FIRST_RUN, 0])
def test_a_job_that_runs_again_while_slurm_is_asked_keeps_its_share_file(tmp_path: Path, start: int) -> None:
    paths = Paths(tmp_path)
    left_behind(paths, 5, 90.0, start=start)

    def runs_again() -> None:
        left_behind(paths, 5, 0.0, start=SECOND_RUN if start else 0)
        word.create(paths.word(5), (FIRST,), os.getuid(), os.getgid())

    assert cleared(paths, Slurm(runs_again)) == [5]
    assert paths.word(5).exists()


def test_a_share_file_of_a_later_run_stays(tmp_path: Path) -> None:
    paths = Paths(tmp_path)
    files.prepare(paths)
    share_file.write(paths, ShareRecord(7, 1000, start=SECOND_RUN))
    share_file.remove(paths, 7, FIRST_RUN)
    assert share_file.read(paths, 7) is not None
    share_file.remove(paths, 7, SECOND_RUN)
    assert share_file.read(paths, 7) is None


def faulty(node: Node, attached: Attached) -> App:
    """A program that brings MPS down."""
    app = node.app("fault", "hold=60", given=attached.environment)
    app.says()
    assert app.says() == {"error": 700}
    return app


def test_a_victim_that_ends_before_the_guard_looks_is_told_to_it_and_a_bystander_is_not(node: Node) -> None:
    victim, culprit = begin(node, 7), begin(node, 8)
    guilty = faulty(node, culprit)
    guilty.process.wait(10)
    assert uses_mps(node, victim), "all clients are gone, and MPS has recovered"

    lost = detach(node.paths, node.config, 7, FIRST_RUN, failed=True).loss
    assert lost == losses.Loss((FIRST,), (guilty.pid,))
    # Who came when it was over has lost nothing, however it ends.
    begin(node, 9)
    assert detach(node.paths, node.config, 9, FIRST_RUN, failed=True).loss is None
    # Who ended well has lost nothing either.
    assert detach(node.paths, node.config, 8, FIRST_RUN).loss is None
    assert node.clean()


def test_a_job_that_was_alone_lost_mps_by_itself(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(losses, "ALONE_SECONDS", 0.0)
    faulty(node, begin(node, 7))
    assert detach(node.paths, node.config, 7, FIRST_RUN, failed=True).loss is None


def test_a_dead_daemon_is_a_loss_too(node: Node) -> None:
    begin(node, 7)
    begin(node, 8)
    found = state.load(node.paths, FIRST)
    assert found
    assert found.daemon
    os.kill(found.daemon.pid, signal.SIGKILL)
    await_true(lambda: server_status(node.paths, node.config, FIRST) == "GONE")
    assert detach(node.paths, node.config, 7, FIRST_RUN, failed=True).loss == losses.Loss((FIRST,), ())


def test_who_revives_mps_is_no_victim_and_the_others_are_named_once(node: Node) -> None:
    begin(node, 7)
    found = state.load(node.paths, FIRST)
    assert found
    assert found.daemon
    os.kill(found.daemon.pid, signal.SIGKILL)
    await_true(lambda: server_status(node.paths, node.config, FIRST) == "GONE")
    begin(node, 8)

    slurm = Slurm()
    watch = watching(node, slurm)
    watch.mend()
    watch.mend()

    assert slurm.requeued == [7]


def test_a_guard_that_comes_late_to_a_daemon_that_is_well_again_requeues_nobody(node: Node) -> None:
    """What made it ask is over: an Epilog had stopped the daemon, and a Prolog has started the next one."""
    begin(node, 7)
    daemon = state.load(node.paths, FIRST)
    assert daemon
    detach(node.paths, node.config, 7, FIRST_RUN)
    begin(node, 7, SECOND_RUN)
    done = reset_after_fault(node.paths, node.config, FIRST, patience=1)
    assert (done.tenants, done.restarted) == ((), False)


@pytest.mark.parametrize(
    ("state_now", "cause", "requeued"),
    [
        ("FAILED", 8, [7]),
        ("FAILED", 7, []),
        ("COMPLETED", 8, []),
        ("CANCELLED", 8, []),
        ("PENDING", 8, []),
        ("", 8, []),
    ],
)
def test_the_guard_runs_a_victim_again_whose_script_was_quicker(
    tmp_path: Path, state_now: str, cause: int, requeued: list[int]
) -> None:
    paths = Paths(tmp_path)
    files.prepare(paths)
    losses.leave(paths, LossRecord(7, 1007, FIRST_RUN, "n1", 3, (FIRST,), (70,)))
    slurm = Slurm(state="COMPLETING")
    watch = Watch(paths, NodeConfig(), slurm, Judge("warn"), "boot")  # type: ignore[arg-type]
    watch.jobs, watch.users = {70: cause}, {8: 1008}
    blamed: list[tuple[str, int, int]] = []
    watch.on_culprit = lambda *words: blamed.append(words)

    watch.mend()
    assert slurm.requeued == []
    slurm.now = state_now
    for _ in range(3):
        watch.mend()

    assert slurm.requeued == requeued
    assert blamed == [("n1", 3, cause)]
    assert losses.records(paths) == []


def test_while_slurm_still_ends_the_victim_the_cause_of_its_loss_is_told_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = Paths(tmp_path)
    files.prepare(paths)
    losses.leave(paths, LossRecord(7, 1007, FIRST_RUN, "n1", 3, (FIRST,), (70,)))
    slurm = Slurm(state="COMPLETING")
    watch = Watch(paths, NodeConfig(), slurm, Judge("warn"), "boot")  # type: ignore[arg-type]
    watch.jobs, blamed = {70: 8}, list[int]()
    watch.on_culprit = lambda _node, _gpu, job: blamed.append(job)
    for now in (100.0, 161.0):
        monkeypatch.setattr(time, "monotonic", lambda now=now: now)
        watch.mend()
    assert blamed == [8]

    slurm.now = "FAILED"
    watch.mend()
    losses.leave(paths, LossRecord(7, 1007, SECOND_RUN, "n1", 3, (FIRST,), (70,)))
    monkeypatch.setattr(time, "monotonic", lambda: 222.0)
    watch.mend()
    assert (blamed, slurm.requeued) == ([8, 8], [7, 7]), "another loss is told again"


def test_a_job_that_nobody_knows_to_be_innocent_is_run_again_three_times_at_most(tmp_path: Path) -> None:
    paths = Paths(tmp_path)
    files.prepare(paths)
    slurm = Slurm()
    watch = Watch(paths, NodeConfig(), slurm, Judge("warn"), "boot")  # type: ignore[arg-type]
    for _ in range(6):
        losses.leave(paths, LossRecord(7, 1007, FIRST_RUN, "n1", 3, (FIRST,), (70,)))
        watch.mend()
    assert slurm.requeued == [7, 7, 7]


def test_a_record_that_nobody_reads_or_that_is_none_does_no_harm(tmp_path: Path) -> None:
    paths = Paths(tmp_path)
    files.prepare(paths)
    losses.leave(paths, LossRecord(7, 1007, FIRST_RUN, "n1", 3, (FIRST,), ()))
    for name, text in (("8", "{"), ("9", "[]"), ("10", '{"format": "berth-lost/1"}'), ("11", '{"format": 1}')):
        files.write(paths.lost / name, text)
    assert [one.job for one in losses.records(paths)] == [7]
    old = time.time() - losses.KEEP_SECONDS - 1
    os.utime(paths.lost / "7", (old, old))
    assert losses.records(paths) == []
    assert not (paths.lost / "7").exists()


def test_while_mps_is_begun_anew_nobody_gets_the_gpu_without_it(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    from prolog_epilog.mps import daemon  # noqa: PLC0415

    attached = begin(node, 7)
    found = state.load(node.paths, FIRST)
    assert found
    assert found.daemon
    os.kill(found.daemon.pid, signal.SIGKILL)
    await_true(lambda: server_status(node.paths, node.config, FIRST) == "GONE")
    said: list[dict[str, object]] = []
    start = daemon.start

    def meanwhile(*words: object) -> object:
        said.append(node.app("hold=60", given=attached.environment).says())
        return start(*words)  # type: ignore[arg-type]

    monkeypatch.setattr(daemon, "start", meanwhile)
    assert reset_after_fault(node.paths, node.config, FIRST, patience=0.1).restarted
    assert said == [{"error": 46}]
    assert uses_mps(node, attached)
    detach(node.paths, node.config, 7, FIRST_RUN)
    assert node.clean()


@settings(max_examples=examples(6), deadline=None, suppress_health_check=list(HealthCheck))
@given(
    plan=st.lists(st.sampled_from(["run again", "fault", "old epilog", "guard", "neighbour"]), min_size=3, max_size=6)
)
def test_prologs_epilogs_and_the_guard_at_once_never_leave_a_job_without_mps(plan: list[str]) -> None:
    """The guard resets and clears in a thread of its own, as it does; a job between Prolog and Epilog has its MPS."""
    with pytest.MonkeyPatch.context() as patch, fresh_node(patch) as node:
        watch = watching(node, Slurm())
        over = threading.Event()
        errors: list[BaseException] = []

        def guard() -> None:
            while not over.is_set():
                try:
                    watch.lost_at = 0.0
                    watch.mend()
                    watch.clear_lost()
                except (NodeError, OSError):
                    pass  # a lock that was not free in time, a folder that an Epilog has just removed: the next look
                except BaseException as problem:  # noqa: BLE001 - the test's own thread has to see it
                    errors.append(problem)
                # It would take a whole processor from those who come and go.
                over.wait(0.01)

        def is_over(job: int, *_: object) -> bool:
            answer = job == 7 and pending.is_set()
            time.sleep(0.05)  # Slurm takes its time, and what it said may be over when it is heard
            return answer

        start, attached = FIRST_RUN, begin(node, 7)
        pending = threading.Event()
        patch.setattr("prolog_epilog.sharing.tenancy.is_over", is_over)
        thread = threading.Thread(target=guard)
        thread.start()
        try:
            for what in plan:
                if what == "run again":
                    pending.set()
                    time.sleep(0.03)
                    detach(node.paths, node.config, 7, start)
                    pending.clear()
                    start += 1
                    attached = begin(node, 7, start)
                elif what == "fault":
                    node.app("fault", given=attached.environment).process.wait(20)
                elif what == "old epilog":
                    detach(node.paths, node.config, 7, start - 1)
                elif what == "neighbour":
                    begin(node, 8, start)
                    detach(node.paths, node.config, 8, start)
                await_true(lambda at=attached: uses_mps(node, at), 20)  # type: ignore[misc]
                assert [one.start for one in tenants(node.paths, FIRST)] == [start]
                assert node.mode() == devices.EXCLUSIVE_PROCESS
        finally:
            over.set()
            thread.join(60)
        assert errors == []
        detach(node.paths, node.config, 7, start)
        assert node.clean()
