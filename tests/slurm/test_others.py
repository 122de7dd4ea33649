"""A pinned job excludes all nodes but its own, so that Slurm tests it on these alone. Its user's list comes first."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from policy import hostlist

from .harness import Slurm, until
from .test_planner import SLACK, SLEEP, berth_conf, fill

NODES = {"n1", "n2", "n3", "n4"}


def lists(slurm: Slurm, job: int | str) -> tuple[set[str], set[str]]:
    """The nodes that a job requires, and those that it excludes."""
    shown = slurm.target.run(["scontrol", "show", "job", str(job)], user="root").out
    texts = re.search(r" ReqNodeList=(\S+) ExcNodeList=(\S+)$", shown, re.MULTILINE)
    assert texts is not None, shown
    required, excluded = (set(hostlist.expand(text.replace("(null)", ""))) for text in texts.groups())
    return required, excluded


def elsewhere(slurm: Slurm, job: int, node: str, seconds: float = 2 + SLACK) -> set[str]:
    """Wait until a job is pinned to other nodes than this one; what it excludes then."""

    def away() -> set[str] | None:
        required, excluded = lists(slurm, job)
        return excluded if required and node not in required else None

    return until(f"job {job} to leave {node}", away, seconds)


def only(nodes: Sequence[str] | set[str]) -> str:
    [node] = nodes
    return node


def test_a_pinned_job_excludes_the_others_wherever_it_is_pinned(slurm: Slurm) -> None:
    fill(slurm, *sorted(NODES))
    job = slurm.submit("--gpus=8", "-N1", body=SLEEP)
    required, excluded = lists(slurm, job)
    assert excluded == NODES - required

    node = only(required)
    slurm.target.run(["scontrol", "update", f"NodeName={node}", "State=DRAIN", "Reason=test"], user="root")
    try:
        excluded = elsewhere(slurm, job, node)
        assert excluded == NODES - lists(slurm, job)[0]
    finally:
        slurm.target.run(["scontrol", "update", f"NodeName={node}", "State=RESUME"], user="root")

    slurm.target.run(["berth", "release", str(job)], user="root")
    assert lists(slurm, job) == (set(), set())


def test_tasks_of_an_array_exclude_what_is_not_theirs(slurm: Slurm) -> None:
    array = slurm.submit("--gpus=8", "-N1", "--array=1-3", body=SLEEP)
    tasks = [f"{array}_{number}" for number in (1, 2, 3)]

    def running() -> bool | None:
        states = slurm.target.run(["squeue", "-h", "-r", "-j", str(array), "-o", "%T"], user="root").out.split()
        return states == ["RUNNING"] * 3 or None

    until("all tasks to run", running)
    for task in tasks:
        required, excluded = lists(slurm, task)
        assert excluded == NODES - required, task


def test_what_a_user_excludes_stays_as_it_is_and_comes_back_as_it_was(slurm: Slurm) -> None:
    fill(slurm, *sorted(NODES))
    job = slurm.submit("--gpus=8", "-N1", "-x", "n1,n2", body=SLEEP)
    required, excluded = lists(slurm, job)
    assert excluded == {"n1", "n2"}
    assert only(required) in {"n3", "n4"}

    slurm.target.run(["berth", "release", str(job)], user="root")
    assert lists(slurm, job) == (set(), {"n1", "n2"})


def test_a_user_may_exclude_nodes_of_a_job_that_waits(slurm: Slurm) -> None:
    fill(slurm, *sorted(NODES))
    job = slurm.submit("--gpus=8", "-N1", body=SLEEP)
    node = only(lists(slurm, job)[0])

    slurm.target.run(["scontrol", "update", f"JobId={job}", f"ExcNodeList={node}"])

    assert elsewhere(slurm, job, node) == {node}
    slurm.target.run(["berth", "release", str(job)], user="root")
    assert lists(slurm, job) == (set(), {node})


def test_a_job_that_runs_again_finds_other_nodes(slurm: Slurm) -> None:
    job = slurm.submit("--gpus=8", "-N1", "--requeue", body=SLEEP)
    slurm.wait_state(job, {"RUNNING"})
    node = only(lists(slurm, job)[0])
    slurm.target.run(["scontrol", "update", f"NodeName={node}", "State=DRAIN", "Reason=test"], user="root")
    try:
        slurm.target.run(["scontrol", "requeue", str(job)], user="root")
        until("it to wait", lambda: slurm.state(job) == "PENDING" or None)
        slurm.target.run(["scontrol", "update", f"JobId={job}", "StartTime=now"], user="root")
        excluded = elsewhere(slurm, job, node, 30.0)
        assert excluded == NODES - lists(slurm, job)[0]
    finally:
        slurm.target.run(["scontrol", "update", f"NodeName={node}", "State=RESUME"], user="root")


def test_a_site_may_want_no_such_lists(slurm: Slurm) -> None:
    with berth_conf(slurm, "exclude_others = 0"):
        fill(slurm, *sorted(NODES))
        job = slurm.submit("--gpus=8", "-N1", body=SLEEP)
        required, excluded = lists(slurm, job)
        assert (len(required), excluded) == (1, set())


CONF = "/etc/slurm/slurm.conf"


@contextmanager
def other_nodes(slurm: Slurm, sed: str) -> Iterator[None]:
    """Another slurm.conf for a while."""
    slurm.target.bash(f"cp {CONF} /tmp/slurm.conf.kept; sed -i '{sed}' {CONF}; scontrol reconfigure", user="root")
    try:
        yield
    finally:
        slurm.target.bash(f"cp /tmp/slurm.conf.kept {CONF}; scontrol reconfigure", user="root")
        nodes = ["scontrol", "show", "node", "n4"]
        until("n4 to be back", lambda: "State=IDLE " in slurm.target.run(nodes, user="root", check=False).out or None)


def test_a_node_that_leaves_slurm_conf_too_early_keeps_jobs_from_changes_until_a_line_is_back(slurm: Slurm) -> None:
    """What the admin guide says of it: if Slurm should behave otherwise one day, the lists need less care."""
    fill(slurm, "n1", "n2", "n3")
    job = slurm.submit("--gpus=8", "-N1", "-w", "n1", body=SLEEP)
    change = ["scontrol", "update", f"JobId={job}", "TimeLimit=4"]
    assert "n4" in lists(slurm, job)[1]

    with other_nodes(slurm, "/^NodeName=n4/d; /^PartitionName=other/d"):
        until("Slurm to forget n4", lambda: "n4" not in slurm.target.run(["sinfo", "-h", "-N"]).out or None)
        assert slurm.target.run(change, check=False).rc != 0
        said = "NodeList=n4 Slurm knows it no more, and refuses every change"
        until("berthd to say so", lambda: said in slurm.target.bash("svc berthd log", user="root").out)
    with other_nodes(slurm, "s/^NodeName=n4.*/& State=FUTURE/"):
        slurm.target.run(change)
    assert slurm.state(job) == "PENDING"
