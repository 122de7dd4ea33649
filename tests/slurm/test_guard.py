# SPDX-License-Identifier: Apache-2.0
"""Guard and berthd together on the real Slurm: what happens to a guest, how soon, and to no other job."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from .guard_world import MACHINE, NAME, SETTINGS, Scene, guard_conf, program, scene
from .harness import Slurm, until
from .nodes import nodes_of, output
from .test_retry import task_states

BUILD = Path(__file__).resolve().parents[2] / "build"

pytestmark = pytest.mark.hard
"""Five minutes: `make test-hard`. What every change should be tested with stands in test_guests.py."""


@pytest.fixture(scope="module")
def guarded(slurm: Slurm) -> Iterator[Slurm]:
    """A cluster whose guards are quicker than a site's; what was measured is kept for docs/results/tables."""
    _rows.clear()
    with guard_conf(slurm, SETTINGS):
        yield slurm
    unified = nodes_of(slurm)[NAME].bash("stat -fc %T /sys/fs/cgroup").strip() == "cgroup2fs"
    BUILD.mkdir(exist_ok=True)
    path = BUILD / f"guard-rows-{slurm.name}-{'v2' if unified else 'v1'}.json"
    path.write_text(json.dumps(_rows, indent=1) + "\n", encoding="utf-8")


@pytest.fixture
def here(guarded: Slurm) -> Iterator[Scene]:
    with scene(guarded) as made:
        yield made


_rows: list[dict[str, str | float]] = []


def report(what: str, seconds: float) -> None:
    print(f"{what}: {seconds:.2f} s")
    _rows.append({"what": what, "seconds": round(seconds, 2)})


def longest_pause(times: list[float]) -> float:
    return max((after - before for before, after in pairwise(times)), default=0.0)


def test_a_guest_stays_behind_a_shut_gate_until_the_host_is_known(here: Scene) -> None:
    guest = here.guest("gate")
    here.works_on(guest)
    before = len(here.work(guest))
    began = time.monotonic()
    host = here.submit("guaranteed", "gate")
    assert here.gpu(host) == here.gpu(guest)
    report("a host's first line over a guest that stays", time.monotonic() - began)

    here.said(f"job {host} came to GPU")
    here.works_on(guest, 60)

    pause = longest_pause(here.work(guest)[before - 1 :])
    report("the guest's gate was shut for", pause)
    # Eight steps of the host at the least.
    assert pause > 0.3
    assert here.slurm.show(guest)["Restarts"] == "0"
    assert here.slurm.state(host) == "RUNNING"


def test_an_owner_waits_for_two_seconds_for_a_guest_that_behaves(here: Scene) -> None:
    guest = here.guest("gate")
    _, took = here.owner()
    report("an owner's first line after its submission, over a guest that behaves", took)
    assert took < 20.0  # two beside an idle machine
    here.put_back(guest)


@pytest.mark.parametrize("words", ["deaf", "gate stubborn"])
def test_an_owner_does_not_wait_for_killwait(here: Scene, words: str) -> None:
    guest = here.guest(*words.split())
    _, took = here.owner()
    report(f"an owner's first line after its submission, over a guest that is {words}", took)
    assert took < 25.0  # six beside an idle machine; KillWait is 30
    here.said(f"job {guest} was killed on GPU")
    here.put_back(guest)


def test_a_job_without_a_berth_finds_no_guest_that_computes(here: Scene) -> None:
    guest = here.guest("deaf")
    pid = here.pid(guest)
    began = time.monotonic()
    job = here.job_without_a_berth(here.gpu(guest), f"[ -e /proc/{pid} ] && echo it lives || echo it is gone")
    text = here.slurm.finish(job)
    report("a job without a berth ended after its submission, over a guest that ignores all", time.monotonic() - began)
    assert text.strip().endswith("it is gone")
    here.put_back(guest)


def test_without_berthd_the_guard_ends_a_guest_and_slurm_puts_it_back(here: Scene) -> None:
    guest = here.guest("gate")
    gpu = here.gpu(guest)
    here.slurm.berthd("stop")
    began = time.monotonic()
    here.slurm.finish(here.job_without_a_berth(gpu, "true"))
    report("a job without a berth ended after its submission, while berthd was dead", time.monotonic() - began)
    here.put_back(guest)
    here.assert_neighbour_untouched()


def test_of_an_array_of_guests_the_guard_puts_back_the_task_that_has_to_go_and_no_other(here: Scene) -> None:
    body = f"[ $SLURM_ARRAY_TASK_ID = 2 ] || exit 0\n{program('gate')}"
    options = ["--gpu-tier=opportunistic", "--array=1-2%1", "--gpus=1", "-w", NAME, "-n1", "--mem=100", "-t", "30"]
    # The last task that starts keeps the array's number.
    array = here.slurm.submit(*options, body=body)
    until("the last task to work", lambda: here.work(array) or None, 90)
    here.driver(f"process {here.gpu(array)} {here.pid(array)} type=compute memory=500 real=1")
    assert task_states(here.slurm, array) == {"1": "COMPLETED", "2": "RUNNING"}
    gpu = here.gpu(array)
    here.slurm.berthd("stop")

    here.slurm.finish(here.job_without_a_berth(gpu, "true"))

    here.put_back(array)
    assert task_states(here.slurm, array)["1"] == "COMPLETED"


def test_memory_is_asked_for_first_and_then_the_seat(here: Scene) -> None:
    guest = here.guest("gate")
    host = here.submit("guaranteed", "gate")
    total = int(here.node.bash(f"grep -o ' memory=[0-9]*' {MACHINE} | head -1 | cut -d= -f2"))
    here.works_on(guest, 60)
    began = time.monotonic()
    here.driver(f"gpu {here.gpu(guest)} used={total * 90 // 100}")
    until("the guest to be asked for memory", lambda: here.asked_memory(guest) or None)
    report("the guest was asked for memory after the GPU was 90 % full", time.monotonic() - began)
    assert here.slurm.state(guest) == "RUNNING"

    began = time.monotonic()
    here.driver(f"gpu {here.gpu(guest)} used={total * 97 // 100}")
    here.put_back(guest)
    report("the guest was back in the queue after the GPU was 97 % full", time.monotonic() - began)
    assert here.slurm.state(host) == "RUNNING"
    # It was warned, and had its time.
    assert "SIGUSR1" in here.node.bash(f"cat /tmp/guard-test/{guest}.signals")


def test_a_programs_fault_stays_with_it_and_the_devices_ends_the_guest(here: Scene) -> None:
    guest = here.guest("gate")
    host = here.submit("guaranteed", "gate")
    here.driver(f"xid {here.gpu(guest)} 31")
    here.said("Xid 31 on GPU")
    here.works_on(guest, 60)
    assert here.slurm.state(guest) == "RUNNING"

    began = time.monotonic()
    here.driver(f"xid {here.gpu(guest)} 79")
    try:
        here.put_back(guest)
        report("the guest was back in the queue after an Xid 79", time.monotonic() - began)
        reason = until("the node to be drained", lambda: _reason(here.slurm) or None)
        assert "Xid 79" in reason
        assert here.slurm.state(host) == "RUNNING"
        here.assert_neighbour_untouched()
    finally:
        here.slurm.target.run(["scontrol", "update", f"NodeName={here.node.name}", "State=RESUME"], user="root")


def _reason(slurm: Slurm) -> str:
    return slurm.target.run(["sinfo", "-h", "-R", "-o", "%E"]).out.strip()


def test_a_host_that_falls_silent_bounds_its_guest(here: Scene) -> None:
    guest = here.guest("gate")
    host = here.submit("guaranteed", "gate")
    until("the guest to have more than a tenth", lambda: here.duty(guest) > 100 or None, 90)
    began = time.monotonic()
    here.silence(host)
    until("the guest to have a tenth at most", lambda: here.duty(guest) <= 100 or None)
    report("the guest had 10 % at most after its host fell silent", time.monotonic() - began)
    assert here.slurm.state(guest) == "RUNNING"


def test_a_frozen_guest_goes_on_when_its_guard_is_killed_and_slurm_can_end_it(here: Scene) -> None:
    guest = here.guest("deaf")
    # Of a host that says nothing the step time is not known: its guest stands still.
    here.submit("guaranteed")
    until("the guest to be frozen", lambda: guest in here.frozen()["jobs"] or None)
    assert here.frozen()["jobs"] == [guest]

    here.node.bash("touch /run/cluster/berth-guard.stopped; svc berth-guard kill")
    began = time.monotonic()
    here.works_on(guest, 15)
    took = time.monotonic() - began
    report("a frozen guest worked again after its guard was killed", took)
    assert took < 30.0  # five beside an idle machine
    here.assert_neighbour_untouched()

    here.node.bash("svc berth-guard start")
    until("the guest to be frozen again", lambda: guest in here.frozen()["jobs"] or None)
    began = time.monotonic()
    here.slurm.target.run(["scancel", str(guest)])
    here.slurm.wait_state(guest, {"CANCELLED"}, 30)
    report("a frozen guest that ignores signals was cancelled by its user", time.monotonic() - began)


def test_a_guest_that_ends_while_it_is_sent_away_is_not_run_again(here: Scene) -> None:
    marks = "/tmp/guard-test/ended"
    for wait in (0.2, 0.6, 1.0):
        body = (
            f"touch /tmp/guard-test/$SLURM_JOB_ID.work; echo 1 2 >/tmp/guard-test/$SLURM_JOB_ID.work\nsleep {wait + 1}"
        )
        guest = here.submit("opportunistic", body=f"{body}\necho $SLURM_JOB_ID >>{marks}")
        time.sleep(wait)
        owner, _ = here.owner()
        state, restarts = here.slurm.state(guest), here.slurm.show(guest)["Restarts"]
        print(f"the guest is {state} after {restarts} restarts")
        ended = here.node.bash(f"cat {marks} 2>/dev/null", check=False).split().count(str(guest))
        assert (state, restarts, ended) in [("COMPLETED", "0", 1), ("PENDING", "1", 0), ("COMPLETING", "1", 0)]
        here.slurm.target.run(["scancel", str(owner), str(guest)], user="root")
        here.slurm.wait_state(owner, {"CANCELLED"})
    assert output(here.slurm, here.neighbour)
