# SPDX-License-Identifier: Apache-2.0
"""Nodes on which sharing fails: each trouble has its sentence, the job goes elsewhere, and no node is lost."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial

import pytest

from policy.formats import segment as segments

from .harness import Slurm, until
from .nodes import (
    NAMES,
    Node,
    assert_nothing_left,
    berth_conf,
    let_go,
    nodes_of,
    output,
    place,
    said,
    waiting_body,
)

pytestmark = pytest.mark.any_slurm

NODE = "n4"
OTHERS = "n1,n2,n3"
# The Epilog of a job that was sent away may still be there.
_UNMOUNT = "for i in $(seq 600); do umount /run/berth && exit 0; sleep 0.1; done; exit 1"


def read_only(node: Node) -> AbstractContextManager[None]:
    return node.broken("mkdir -p /run/berth && mount -t tmpfs -o ro none /run/berth", _UNMOUNT)


def full(node: Node) -> AbstractContextManager[None]:
    fill = "mkdir -m 711 /run/berth/jobs; dd if=/dev/zero of=/run/berth/fill bs=1k count=64 2>/dev/null"
    return node.broken(
        f"mkdir -p /run/berth && mount -t tmpfs -o size=16k none /run/berth && {{ {fill}; true; }}", _UNMOUNT
    )


@contextmanager
def wishing(node: Node, **wishes: object) -> Iterator[None]:
    node.wish(**wishes)
    try:
        yield
    finally:
        node.wish()


TROUBLES: dict[str, tuple[Callable[[Node], AbstractContextManager[None]], str]] = {
    "no MPS": (Node.without_mps, "nvidia-cuda-mps-control is not on this node"),
    "server dies": (lambda node: wishing(node, server_dies=True), "the MPS server was not ready in time (it is GONE)"),
    "server of another user": (lambda node: wishing(node, wrong_user=True), "the MPS server runs as user 1001"),
    "a limit that does not hold": (lambda node: wishing(node, lie_percent=100), "the share would not hold"),
    "read-only /run": (read_only, "this node has no share file for it"),
    "full /run": (full, "this node has no share file for it"),
}


def tell(slurm: Slurm, job: int) -> dict[str, str]:
    return segments.fields(slurm.comment(job)) or {}


def started(slurm: Slurm, job: int) -> bool:
    """Slurm lets a requeued job wait for two minutes, from when it has left its nodes; a test does not.

    berthd gives it the other place three seconds before it may start. It waits for that: a node starts no job that it
    has just ended.
    """
    values = tell(slurm, job)
    moved = "nodes" in values and f"{values['nodes']}@" not in values.get("avoids", "")
    begin = "now" if moved else "now+3"
    slurm.target.run(["scontrol", "update", f"JobId={job}", f"StartTime={begin}"], user="root", check=False)
    return moved


def sent_away(slurm: Slurm, job: int, times: int) -> None:
    """Waits until berthd has sent it elsewhere so often.

    It may be once more: between the requeue and the count the job looks as one that is to be started.
    """

    def away() -> bool:
        moves, state = int(tell(slurm, job).get("degraded", "0")), slurm.state(job)
        if state == "PENDING" and moves < times:
            started(slurm, job)
        return state in {"PENDING", "FAILED"} and moves >= times

    until(f"job {job} to be sent elsewhere for the {times}. time", away, every=1)
    until(f"job {job} to have another place", partial(started, slurm, job))


@pytest.mark.parametrize("name", TROUBLES)
def test_a_share_that_cannot_be_set_up_costs_the_job_a_move_and_the_node_nothing(slurm: Slurm, name: str) -> None:
    harm, sentence = TROUBLES[name]
    with harm(nodes_of(slurm)[NODE]):
        job = slurm.submit("-x", OTHERS, "-n1", "--gpu-share=30", body="echo the user's first line")
        until(f"job {job} to be sent elsewhere", lambda: tell(slurm, job).get("degraded") == "1" or None)

    assert sentence in output(slurm, job)
    assert "first line" not in output(slurm, job)
    assert tell(slurm, job)["degraded_text"].startswith(f"{NODE} could not set its share up")
    assert tell(slurm, job)["avoids"].startswith(f"{NODE}@")
    slurm.target.run(["scancel", str(job)])
    assert_nothing_left(slurm, NODE)


def test_where_the_epilogs_notice_is_lost_the_job_is_sent_elsewhere_all_the_same(slurm: Slurm) -> None:
    node, notice = nodes_of(slurm)[NODE], "/usr/libexec/berth/berth-notice"
    with node.without_mps(), node.broken(f"chmod -x {notice}", f"chmod +x {notice}"):
        job = slurm.submit("-x", OTHERS, "-n1", "--gpu-share=30", body="echo the user's first line")
        until(f"job {job} to be sent elsewhere", lambda: tell(slurm, job).get("degraded") == "1" or None)
        until(f"job {job} to wait", lambda: slurm.state(job) == "PENDING" or None)
    # It is told of until berthd has looked into it, and counts once.
    assert tell(slurm, job)["degraded"] == "1"
    assert tell(slurm, job)["avoids"].startswith(f"{NODE}@")
    slurm.target.run(["scancel", str(job)])
    assert_nothing_left(slurm, NODE)


def test_a_guest_whose_seat_cannot_be_set_up_gets_another_one(slurm: Slurm) -> None:
    with read_only(nodes_of(slurm)[NODE]):
        job = slurm.submit(
            "--gpu-tier=opportunistic", "--gpus=1", "-n1", "--mem=50", "-x", OTHERS, body="echo begun; exec sleep 300"
        )
        until(f"job {job} to be sent elsewhere", lambda: tell(slurm, job).get("degraded") == "1" or None)
        said_to_user = output(slurm, job)
        # No seat but there: it waits on no node until it may go to another.
        until(f"job {job} to be parked", lambda: tell(slurm, job).get("state") == "later" or None)
        slurm.target.run(["scontrol", "update", f"JobId={job}", "ExcNodeList=n1,n2"], user="root")
        slurm.wait_state(job, {"RUNNING"})
    assert "this node has no share file for it" in said_to_user
    assert "begun" not in said_to_user
    assert place(slurm, job)[0] == "n3"
    slurm.target.run(["scancel", str(job)])
    assert_nothing_left(slurm, NODE)


def test_mps_that_starts_too_slowly(slurm: Slurm) -> None:
    with berth_conf(slurm, "[node]\nmps_start_timeout = 15"), wishing(nodes_of(slurm)[NODE], slow_start=60):
        job = slurm.submit("-x", OTHERS, "-n1", "--gpu-share=30", body="true")
        until(f"job {job} to be sent elsewhere", lambda: tell(slurm, job).get("degraded") == "1" or None)
    assert "not ready in time (it is INITIALIZING)" in output(slurm, job)
    slurm.target.run(["scancel", str(job)])
    assert_nothing_left(slurm, NODE)


def test_mps_that_does_not_quit_is_ended(slurm: Slurm) -> None:
    with berth_conf(slurm, "[node]\nmps_stop_timeout = 1"), wishing(nodes_of(slurm)[NODE], hang_quit=True):
        slurm.finish(slurm.submit("-x", OTHERS, "-n1", "--gpu-share=30", body="fake-cuda-app alloc=10"))
        assert_nothing_left(slurm, NODE)


def test_it_runs_on_the_first_node_that_can_and_is_told_why_it_moved(slurm: Slurm) -> None:
    nodes = nodes_of(slurm)
    with nodes["n2"].without_mps(), nodes["n3"].without_mps():
        job = slurm.submit("-x", "n1", "-n1", "--gpu-share=30", body=waiting_body())
        for moves in range(3):
            until(f"job {job} to run on n4 or to be sent elsewhere", partial(decided, slurm, job, "n4", moves + 1))
            if runs_on(slurm, job, "n4"):
                break
            sent_away(slurm, job, moves + 1)
        slurm.wait_state(job, {"RUNNING"})
        assert said(slurm, job)["mps"] is True
        assert place(slurm, job)[0] == "n4"
        assert ("degraded_text" in tell(slurm, job)) == (moves > 0)
        let_go(slurm, job)
        slurm.finish(job)
    assert_nothing_left(slurm)


def decided(slurm: Slurm, job: int, node: str, times: int) -> bool:
    return runs_on(slurm, job, node) or tell(slurm, job).get("degraded") == str(times)


def runs_on(slurm: Slurm, job: int, node: str) -> bool:
    return slurm.state(job) == "RUNNING" and place(slurm, job)[0] == node


@pytest.mark.hard
def test_after_three_moves_it_stays_failed(slurm: Slurm) -> None:
    nodes = nodes_of(slurm)
    for node in nodes.values():
        node.wish(server_dies=True)
    try:
        job = slurm.submit("-n1", "--gpu-share=30", body="true")
        for times in range(1, 4):
            sent_away(slurm, job, times)

        def over() -> bool:
            if slurm.state(job) == "PENDING":
                started(slurm, job)
            return slurm.state(job) == "FAILED"

        until(f"job {job} to fail for good", over, every=1)
        assert tell(slurm, job)["degraded"] == "3"
        assert tell(slurm, job)["degraded_text"].endswith("if that fails, it is left as it ends")
    finally:
        for node in nodes.values():
            node.wish()
    assert_nothing_left(slurm)


def test_a_gpu_that_is_gone_takes_the_node_out_with_a_reason(slurm: Slurm) -> None:
    node = nodes_of(slurm)[NODE]
    lost = "sed -i.before '/^gpu 7 /d; s/^gpu 0-7 /gpu 0-6 /' /etc/berth-fake/machine; rm -f /run/berth/gpus.json"
    with node.broken(lost, "mv /etc/berth-fake/machine.before /etc/berth-fake/machine; rm -f /run/berth/gpus.json"):
        slurm.hold_gpus(NODE, range(7))
        job = slurm.submit("-x", OTHERS, "-n1", "--gpu-share=30", body="true")
        reason = until(
            "the node to be drained",
            lambda: slurm.target.run(["sinfo", "-h", "-R", "-o", "%E"]).out.strip() or None,
        )
        # Until its Prolog has ended, Slurm drains the node once more.
        until("the job to be put back", lambda: slurm.state(job) == "PENDING")
        slurm.target.run(["scancel", str(job)])
    assert reason.startswith("berth: GPU 7 is gone, the driver has 7")
    slurm.target.run(["scontrol", "update", f"NodeName={NODE}", "State=RESUME"], user="root")
    assert NAMES
