# SPDX-License-Identifier: Apache-2.0
"""A pinned job excludes all nodes but its own, so that Slurm tests it only there. Its user's list has precedence."""

from __future__ import annotations

import re
from collections.abc import Sequence

from policy.formats import hostlist

from .harness import Slurm, until
from .own_slurm import OwnSlurm
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
    """Waits until a job is pinned to other nodes than this one; what it excludes then."""

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


def test_a_held_job_excludes_the_others_once_it_may_start(slurm: Slurm) -> None:
    fill(slurm, *sorted(NODES))
    job = slurm.submit("--gpus=8", "-N1", "--hold", body=SLEEP)
    assert lists(slurm, job)[1] == set()

    slurm.target.run(["scontrol", "release", str(job)])

    def told() -> bool | None:
        required, excluded = lists(slurm, job)
        return (len(required) == 1 and excluded == NODES - required) or None

    until("it to exclude the other nodes", told, 2 + SLACK)


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


def test_slurm_refuses_changes_to_a_job_that_excludes_a_node_it_no_longer_knows(slurm: Slurm) -> None:
    """Holds the admin guide's sentence. If Slurm changes this one day, Berth's lists need less care."""
    own = OwnSlurm(slurm, "/tmp/fewer-nodes", 18_000)
    conf = f"{own.folder}/slurm.conf"
    env = {"SLURM_CONF": conf}

    def nodes() -> set[str]:
        # It may be starting anew.
        return set(own.target.run(["sinfo", "-h", "-N", "-o", "%N"], user="root", env=env, check=False).out.split())

    def change(limit: int) -> str:
        words = ["scontrol", "update", f"JobId={job}", f"TimeLimit={limit}"]
        return own.target.run(words, user="root", env=env, check=False).text

    try:
        own.start({"slurm.conf": ""}, dict.fromkeys(("n1", "n2", "n3"), "CPUs=2"))
        until("slurmctld to answer", lambda: len(nodes()) == 3 or None)
        sbatch = ["sbatch", "--parsable", "--hold", "-t", "9", "-w", "n1", "-x", "n[2-3]", "-o", "/dev/null"]
        job = own.ask(*sbatch, "--wrap", "true").strip()
        assert change(8) == ""
        own.target.bash(f"sed -i '/^NodeName=n3/d' {conf}", user="root")
        own.ask("scontrol", "reconfigure")
        until("n3 to be forgotten", lambda: nodes() == {"n1", "n2"} or None)
        assert "Invalid node name" in change(7)
        own.target.bash(f"echo 'NodeName=n3 State=FUTURE' >>{conf}", user="root")
        own.ask("scontrol", "reconfigure")
        until("the job to be changed", lambda: change(6) == "" or None)
    finally:
        own.stop()
