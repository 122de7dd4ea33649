# SPDX-License-Identifier: Apache-2.0
"""The live planner: arrays, levels, changes under way, trouble, and watching only."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from policy.formats import segment as segments
from tests.told import Segment

from .harness import Slurm, seen, until
from .nodes import nodes_of, output

pytestmark = pytest.mark.any_slurm

SLEEP = "exec sleep 300"
PLANNED_WITHIN = 2.0
"""Seconds in which berthd reacts to what happens to a waiting job."""

SLACK = 20.0
"""Seconds that looking from outside and a busy machine may add."""


def segment_of(slurm: Slurm, job: int | str) -> dict[str, str]:
    record = slurm.target.run(["scontrol", "show", "job", "-d", str(job)], user="root").out
    found = segments.fields(record)
    assert found is not None, record
    return Segment(found, job)


def fill(slurm: Slurm, *nodes: str, minutes: int = 30) -> list[int]:
    """Occupies whole nodes."""
    jobs = [slurm.submit("--gpus=8", "-w", node, "-t", str(minutes), body=SLEEP) for node in nodes]
    for job in jobs:
        slurm.wait_state(job, {"RUNNING"})
    return jobs


@contextmanager
def berth_conf(slurm: Slurm, lines: str) -> Iterator[None]:
    """More lines in berth.conf's table [berthd], or others in place of its own; berthd starts anew with them."""
    keys = "|".join(re.findall(r"^\w+", lines, re.MULTILINE)) or "no key"
    slurm.target.bash(
        f"cp /etc/slurm/berth.conf /tmp/berth.conf.kept\n"
        f"sed -i -E '/^({keys}) *=/d' /etc/slurm/berth.conf\n"
        f"sed -i '/^\\[berthd\\]/r /dev/stdin' /etc/slurm/berth.conf <<'END'\n{lines}\nEND",
        user="root",
    )
    try:
        slurm.berthd("restart")
        slurm.berthd("start")
        slurm.settle()
        yield
    finally:
        slurm.target.bash("cp /tmp/berth.conf.kept /etc/slurm/berth.conf", user="root")
        slurm.berthd("restart")
        slurm.berthd("start")


def moved(slurm: Slurm, job: int, nodes: str, since: float) -> float:
    """Waits until a job is pinned to these nodes; seconds since a moment."""
    try:
        until(f"job {job} to be pinned to {nodes}", lambda: slurm.show(job)["ReqNodeList"] == nodes or None, 30, 0.1)
    except AssertionError as problem:
        raise AssertionError(f"{problem}; it is {slurm.show(job)}") from None
    return time.monotonic() - since


# Arrays


def test_every_task_of_an_array_runs_on_its_own_planned_gpus(slurm: Slurm) -> None:
    body = 'echo "task $SLURM_ARRAY_TASK_ID $(date +%s.%N)"; bash /home/tests/probe.sh; sleep 3; date +%s.%N'
    array = slurm.submit("--array=1-12", "--gpus=4", "-o", f"{slurm.shared}/%A_%a.out", body=body)
    until("the array to end", lambda: not slurm.target.run(["squeue", "-h", "-j", str(array)], check=False).out, 90)

    busy: list[tuple[str, int, float, float]] = []
    for task in range(1, 13):
        text = slurm.target.bash(f"cat {slurm.shared}/{array}_{task}.out", user="root").out
        [probe] = seen(text)
        began = float(re.findall(rf"task {task} (\S+)", text)[0])
        busy += [(probe.node, gpu, began, float(text.split()[-1])) for gpu in probe.gpus]
        assert len(probe.gpus) == 4
    for number, (node, gpu, start, end) in enumerate(busy):
        for other, other_gpu, other_start, other_end in busy[:number]:
            assert (node, gpu) != (other, other_gpu) or end <= other_start or other_end <= start
    # 48 tasks' GPUs on 32: at least two rounds, and not one task after the other.
    assert max(end for *_, end in busy) - min(start for *_, start, _ in busy) < 12 * 3


def test_an_array_never_runs_more_at_once_than_its_owner_said(slurm: Slurm) -> None:
    array = slurm.submit("--array=1-6%2", "--gpus=1", body="sleep 2")
    running = []

    def ended() -> bool:
        states = slurm.target.run(["squeue", "-h", "-r", "-j", str(array), "-o", "%T"], check=False).out.split()
        running.append(states.count("RUNNING"))
        return not states

    until("the array to end", lambda: ended() or None, 60)

    assert max(running) == 2


# Levels


def test_a_gang_waits_for_one_leaf_to_the_second(slurm: Slurm) -> None:
    leaves = "SwitchName=l1 Nodes=n[1-2]\nSwitchName=l2 Nodes=n[3-4]\nSwitchName=p Switches=l[1-2]"
    slurm.target.bash(f"printf '{leaves}\\n' > /etc/slurm/berth/leaves.conf", user="root")
    with berth_conf(slurm, 'fabric = "/etc/slurm/berth/leaves.conf"'):
        fill(slurm, "n2", "n4")
        slurm.settle()
        job = slurm.submit("-N2", "--gpus-per-node=8", "--locality=leaf@0:08", body="srun -N2 -n2 hostname; sleep 1")
        before = segment_of(slurm, job)
        assert (before["state"], before["insists"], before["wait"]) == ("waiting", "leaf", "8")
        output = slurm.finish(job, 90)

    record = slurm.show(job)
    # When Slurm gave it its nodes: they may have to be powered up, and its script begins only then.
    began, submitted = (
        int(slurm.target.bash(f"date -d {record[name]} +%s").out) for name in ("LastSchedEval", "SubmitTime")
    )
    assert set(output.split()) == {"n1", "n3"}
    assert 8 <= began - submitted <= 8 + PLANNED_WITHIN + SLACK, output
    after = segments.fields(record["AdminComment"]) or {}
    assert after["level"] == "pod"
    assert "its wait for one leaf has ended" in after["why"]


def test_the_sites_rule_and_cap_hold_for_jobs_that_say_nothing_or_too_much(slurm: Slurm) -> None:
    with berth_conf(slurm, 'locality_default = "2:nvlink@20"\nlocality_cap = "5"'):
        silent = slurm.submit("--gpus=2", "-C", "a6000", "--begin=now+60")
        greedy = slurm.submit("--gpus=2", "-C", "a6000", "--begin=now+60", "--locality=nvlink@1-0")

    assert (segment_of(slurm, silent)["insists"], segment_of(slurm, silent)["wait"]) == ("nvlink", "300")
    assert segment_of(slurm, greedy)["wait"] == "300"


# What happens to waiting jobs


def test_what_a_user_changes_is_planned_anew_within_two_seconds(slurm: Slurm) -> None:
    fill(slurm, "n1", minutes=10)
    fill(slurm, "n2", "n3", minutes=60)
    job = slurm.submit("--gpus=8", "-x", "n4")
    assert slurm.show(job)["ReqNodeList"] == "n1"
    began = time.monotonic()
    slurm.target.run(["scontrol", "update", f"JobId={job}", "Features=h100"], user="alice")

    assert moved(slurm, job, "n2", began) < PLANNED_WITHIN + SLACK


def test_what_slurm_finds_impossible_before_berthd_looks_is_planned_all_the_same(slurm: Slurm) -> None:
    fill(slurm, "n1", minutes=10)
    fill(slurm, "n2", "n3", minutes=60)
    job = slurm.submit("--gpus=8", "-x", "n4")
    assert slurm.show(job)["ReqNodeList"] == "n1"
    slurm.target.bash("pkill -STOP -f policy.daemon", user="root")
    try:
        slurm.target.run(["scontrol", "update", f"JobId={job}", "Features=h100"], user="alice")
        until("Slurm to find it impossible", lambda: slurm.show(job)["Reason"] == "BadConstraints" or None)
    finally:
        slurm.target.bash("pkill -CONT -f policy.daemon", user="root")
    began = time.monotonic()

    moved(slurm, job, "n2", began)
    until("it to wait its turn again", lambda: slurm.show(job)["Priority"] != "0" or None)


def test_a_reserved_node_is_left_within_two_seconds(slurm: Slurm) -> None:
    fill(slurm, "n1", minutes=10)
    fill(slurm, "n2", minutes=60)
    job = slurm.submit("--gpus=8", "-x", "n3,n4")
    assert slurm.show(job)["ReqNodeList"] == "n1"
    began = time.monotonic()
    make = ["scontrol", "create", "reservation", "ReservationName=test", "StartTime=now+5minutes", "Duration=60"]
    slurm.target.run([*make, "Nodes=n1", "Users=root", "Flags=ignore_jobs"], user="root")
    try:
        assert moved(slurm, job, "n2", began) < PLANNED_WITHIN + SLACK
    finally:
        slurm.target.run(["scontrol", "delete", "ReservationName=test"], user="root")


def test_a_job_for_which_all_is_down_is_planned_when_a_node_comes_back(slurm: Slurm) -> None:
    slurm.target.run(["scontrol", "update", "nodename=n2", "state=drain", "reason=test"], user="root")
    try:
        slurm.passes()
        job = slurm.submit("--gpus=2", "-C", "h100")
        assert segment_of(slurm, job)["state"] == "waiting"
    finally:
        slurm.target.run(["scontrol", "update", "nodename=n2", "state=resume"], user="root")

    [probe] = seen(slurm.finish(job))
    assert segment_of(slurm, job)["gpus"] == ",".join(map(str, probe.gpus))


def test_a_job_for_two_partitions_is_placed_where_it_can_start(slurm: Slurm) -> None:
    fill(slurm, "n1", "n2", "n3")
    job = slurm.submit("--gpus=4", "-p", "gpu,other")

    [probe] = seen(slurm.finish(job))
    assert (probe.node, len(probe.gpus)) == ("n4", 4)
    assert segment_of(slurm, job)["nodes"] == "n4"


def test_a_job_that_lacks_a_licence_keeps_no_gpus_from_others(slurm: Slurm) -> None:
    holder = slurm.submit("-L", "solver:1", body="sleep 4")
    slurm.wait_state(holder, {"RUNNING"})
    waiting = slurm.submit("-L", "solver:1", "--gpus=8", "-C", "v100")
    until("Slurm to say what is missing", lambda: slurm.show(waiting)["Reason"] == "Licenses" or None)
    slurm.passes()
    [probe] = seen(slurm.finish(slurm.submit("--gpus=8", "-C", "v100")))

    assert len(probe.gpus) == 8
    assert len(seen(slurm.finish(waiting))[0].gpus) == 8


def test_a_requeued_job_is_planned_anew(slurm: Slurm) -> None:
    job = slurm.submit("--gpus=8", "-x", "n3,n4", "--requeue", body=SLEEP)
    slurm.wait_state(job, {"RUNNING"})
    node = slurm.show(job)["NodeList"]
    slurm.target.run(["scontrol", "update", f"nodename={node}", "state=drain", "reason=test"], user="root")
    try:
        slurm.target.run(["scontrol", "requeue", str(job)], user="root")
        # Slurm lets a requeued job wait for a minute or two, from when its Epilog is through.
        until("the job to be queued", lambda: (slurm.state(job) == "PENDING" and _idle(slurm, node)) or None)
        slurm.target.run(["scontrol", "update", f"JobId={job}", "StartTime=now"], user="root")
        other = until("the job to run again", lambda: _elsewhere(slurm, job, node), 60)
    finally:
        slurm.target.run(["scontrol", "update", f"nodename={node}", "state=resume"], user="root")
    assert other in {"n1", "n2"} - {node}


def _idle(slurm: Slurm, node: str) -> bool:
    return slurm.target.run(["sinfo", "-h", "-n", node, "-p", "gpu", "-o", "%t"]).out.strip() == "drain"


def _elsewhere(slurm: Slurm, job: int, node: str) -> str | None:
    record = slurm.show(job)
    return record["NodeList"] if record["JobState"] == "RUNNING" and record["NodeList"] != node else None


def test_jobs_without_gpus_are_left_alone(slurm: Slurm) -> None:
    fill(slurm, "n1", "n2", "n3", "n4")
    job = slurm.submit("-n1", "-c", "16")
    slurm.passes()

    record = slurm.show(job)
    assert record["ReqNodeList"] == "(null)"
    assert "berth" not in record.get("AdminComment", "")


# Trouble


def test_pins_outlive_a_killed_berthd_and_a_restarted_controller(slurm: Slurm) -> None:
    holders = fill(slurm, "n1", "n2", "n3", "n4", minutes=20)
    job = slurm.submit("--gpus=8", "-C", "v100")
    pinned = slurm.show(job)["ReqNodeList"]
    slurm.target.bash("pkill -KILL -f policy.daemon; svc slurmctld restart", user="root")
    until("slurmctld to answer", lambda: slurm.target.run(["scontrol", "ping"], check=False).rc == 0 or None)
    slurm.berthd("start")

    assert slurm.show(job)["ReqNodeList"] == pinned == "n1"
    slurm.target.run(["scancel", str(holders[0])], user="root")
    assert len(seen(slurm.finish(job))[0].gpus) == 8


def test_after_release_no_pin_is_left_and_slurm_goes_on_alone(slurm: Slurm) -> None:
    holders = fill(slurm, "n1", "n2", "n3", "n4")
    jobs = [slurm.submit("--gpus=2"), slurm.submit("-N2", "--gpus-per-node=8"), slurm.submit("--array=1-3", "--gpus=4")]
    slurm.berthd("stop")
    slurm.target.run(["berth", "release", "--all"], user="root")

    for job in jobs:
        record = slurm.show(job)
        assert record["ReqNodeList"] == "(null)"
        assert not re.search(r"gpu:g\d", record["TresPerNode"])
    slurm.target.run(["scancel", *map(str, holders)], user="root")
    for job in jobs[:2]:
        slurm.finish(job)


def test_release_gives_back_the_nodes_of_a_job_whose_gpus_an_administrator_changed(slurm: Slurm) -> None:
    fill(slurm, "n1", "n2", "n3", "n4")
    job = slurm.submit("--gpus=2")
    slurm.berthd("stop")
    # The plugin completes no change of SlurmUser's.
    slurm.target.run(["scontrol", "update", f"JobId={job}", "TresPerNode=gres/gpu:1"], user="slurm")
    assert slurm.show(job)["ReqNodeList"] != "(null)"
    slurm.target.run(["berth", "release", "--all"], user="root")

    record = slurm.show(job)
    assert (record["ReqNodeList"], record["TresPerNode"]) == ("(null)", "gres/gpu:1")
    assert "berth" not in record.get("Extra", "")


@pytest.mark.parametrize(("user", "change"), [("root", "TresPerJob=gres/gpu:1"), ("slurm", "TresPerNode=gres/gpu:1")])
def test_a_job_whose_gpus_an_administrator_changed_starts_where_there_is_room(
    slurm: Slurm, user: str, change: str
) -> None:
    fill(slurm, "n1", "n2", "n3", "n4")
    job = slurm.submit("--gpus=2", body=SLEEP)
    place = segment_of(slurm, job)["nodes"]
    if user == "root":
        # The plugin completes its change by what berthd keeps; SlurmUser's may come before berthd's first look.
        slurm.passes()
    slurm.target.run(["scontrol", "update", f"JobId={job}", change], user=user)
    holders = slurm.target.run(["squeue", "-h", "-t", "R", "-o", "%i %N"]).out.splitlines()
    other = next(line.split()[0] for line in holders if line.split()[1] != place)
    slurm.target.run(["scancel", other], user="root")

    slurm.wait_state(job, {"RUNNING"}, 90)
    record = slurm.show(job)
    assert record["NodeList"] != place
    # Slurm may be the first to start it.
    asked = record.get("TresPerNode") or record["TresPerJob"]
    assert re.fullmatch(r"gres/gpu:1|gres/gpu:g\d:1,gres/seat:g\d:1", asked)


def test_release_gives_a_job_back_that_still_ends_on_its_node(slurm: Slurm) -> None:
    job = slurm.submit("-w", "n2", "--gpus=2", "--requeue", body=f"echo runs; {SLEEP}")
    # A job that Slurm has not launched yet ends at once.
    until("the script to run", lambda: "runs" in output(slurm, job) or None)
    node = nodes_of(slurm)["n2"]
    slurm.berthd("stop")
    # Once it has read its configuration anew, slurmd's process has the name of its file, slurmd-wlm.
    node.bash("pkill -STOP -f '^slurmd '")
    try:
        slurm.target.run(["scontrol", "requeue", str(job)], user="root")
        assert slurm.state(job) == "COMPLETING", slurm.controller_log()[-1500:]
        said = slurm.target.run(["berth", "release", "--all"], user="root").out
        after = slurm.show(job)
    finally:
        node.bash("pkill -CONT -f '^slurmd '")

    assert "1 job given back to Slurm" in said
    assert after["JobState"] == "COMPLETING", slurm.controller_log()[-1500:]
    assert (after["ReqNodeList"], after["ExcNodeList"], after.get("Extra", "")) == ("n2", "(null)", "")
    assert not re.search(r"(gpu|seat|shard):g\d", after.get("TresPerNode", "") + after.get("TresPerJob", ""))
    slurm.wait_state(job, {"PENDING"})
    # Within the second in which slurmd ends a job, it takes the job's next start for the one that was revoked.
    slurm.target.run(["scontrol", "update", f"JobId={job}", "StartTime=now+3"], user="root")
    slurm.wait_state(job, {"RUNNING"}, 90)


def test_a_restart_of_the_unit_costs_no_job_its_place_nor_what_it_asked_for(slurm: Slurm) -> None:
    holders = fill(slurm, "n1", "n2", "n3", "n4")
    jobs = [
        slurm.submit("--gpus=2", "--locality=nvlink@30:00"),
        slurm.submit("-N2", "--gpus-per-node=8"),
        slurm.submit("--array=1-3", "--gpus=4"),
        slurm.submit("--gpus=1", "--gpu-share=30", "--retry=auto"),
    ]
    before = [segment_of(slurm, job) for job in jobs]
    unit = (Path(__file__).parents[2] / "policy" / "daemon" / "berthd.service").read_text(encoding="utf-8")
    [given_back] = re.findall(r"^ExecStopPost=/opt/berth/bin/(.*)$", unit, re.MULTILINE)
    slurm.berthd("stop")
    slurm.target.run(given_back.split(), user="slurm")

    assert [slurm.show(job)["ReqNodeList"] for job in jobs] == ["(null)"] * 4
    slurm.berthd("start")
    for job, asked in zip(jobs, before, strict=True):
        # The gang's list of nodes may be gone again soon after: it would keep Slurm from starting others.
        until(f"job {job} to have a place again", partial(has_place, slurm, job), PLANNED_WITHIN + SLACK)
        now = segment_of(slurm, job)
        kept = {key for key in asked if key.startswith("f.")} | {"asked", "n", "k", "share", "insists"} & asked.keys()
        assert {key: now.get(key) for key in kept} == {key: asked[key] for key in kept}
    slurm.target.run(["scancel", *map(str, holders)], user="root")
    for job in jobs[:2]:
        slurm.finish(job)


def test_release_of_an_array_leaves_none_of_its_tasks_pinned(slurm: Slurm) -> None:
    fill(slurm, "n1", "n2", "n3")
    # Two of its tasks run, and one has a place of its own.
    array, other = slurm.submit("--array=1-5", "--gpus=4", body=SLEEP), slurm.submit("--gpus=4")
    tasks = [f"{array}_{task}" for task in range(1, 6)]
    until("two tasks to run", lambda: states(slurm, array).count("RUNNING") == 2 or None)
    waiting = [task for task in tasks if "JobState=PENDING" in record(slurm, task)]
    until("the others to have places", lambda: all(pinned_to(slurm, task) for task in waiting) or None, 30)
    slurm.berthd("stop")

    slurm.target.run(["berth", "release", waiting[0]], user="root")
    assert [bool(pinned_to(slurm, task)) for task in waiting] == [False, True, True]
    slurm.target.run(["berth", "release", str(array)], user="root")

    assert [segment_of(slurm, task)["state"] for task in waiting] == ["released"] * 3
    assert [pinned_to(slurm, task) for task in waiting] == [""] * 3
    assert states(slurm, array).count("RUNNING") == 2
    assert pinned_to(slurm, other)


def states(slurm: Slurm, array: int) -> list[str]:
    """Returns the states of an array's tasks."""
    return slurm.target.run(["squeue", "-h", "-r", "-j", str(array), "-o", "%T"], check=False).out.split()


def record(slurm: Slurm, job: int | str) -> str:
    return slurm.target.run(["scontrol", "show", "job", str(job)], user="root").out


def has_place(slurm: Slurm, job: int) -> bool:
    return segment_of(slurm, job)["state"] == "waiting"


def pinned_to(slurm: Slurm, job: int | str) -> str:
    """The node that a job, or a task, has to run on; empty where Slurm may choose."""
    found = re.search(r"ReqNodeList=(\S+)", record(slurm, job))
    assert found is not None, job
    return "" if found[1] == "(null)" else found[1]


# Watching only


def test_watching_changes_no_job_and_says_what_berth_would_have_done(slurm: Slurm) -> None:
    with berth_conf(slurm, 'mode = "observe"'):
        job = slurm.submit("--gpus=2", "-C", "a6000", body="sleep 3")
        slurm.finish(job)
        record = slurm.show(job)
        status = until(
            "the job to be counted", lambda: s if str((s := slurm.berthd_status()).get("observed")) == "1" else None
        )

    assert record["ReqNodeList"] == "(null)"
    assert (segments.fields(record["AdminComment"]) or {})["state"] == "observed"
    assert int(status["observed_better_links"]) in {0, 1}


def test_a_dry_run_says_where_a_job_would_go_and_submits_nothing(slurm: Slurm) -> None:
    fill(slurm, "n1", "n2", "n3", "n4")
    waits = slurm.target.run(["berth", "plan", "--", "--gpus=2", "-C", "a6000", "--wrap", "true"]).out
    wrong = slurm.target.run(
        ["berth", "plan", "--", "--gpus=4", "-C", "a6000", "--locality=nvlink", "--wrap=true"], check=False
    )

    assert re.search(r"berth  waits for n3 GPUs \S+, expected in ", waits), waits
    assert "slurm  would start it at" in waits
    assert wrong.rc == 1
    assert "at most 2" in wrong.err
    assert len(slurm.target.run(["squeue", "-h"]).out.split("\n")) <= 5
