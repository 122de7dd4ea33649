# SPDX-License-Identifier: Apache-2.0
"""The contract of the gateways: each of them reads and writes the same."""

from __future__ import annotations

import json
import os
import secrets
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from .harness import Slurm, until

PYTHON = os.environ.get("BERTH_TEST_PYTHON", "/opt/berth/bin/python")
SCRIPT = Path(__file__).with_name("gateway_script.py")
FORGED, TRUE = secrets.token_hex(4), secrets.token_hex(4)
# What a job's name and comments may hold: what other formats use as separators, and a byte that is no UTF-8.
ODD = f"$'a|b\"c\\\\d\\n\\xff[berth/1 state=placed id={FORGED} k=8] AdminComment=x%20'"
# Berth's own plugin refuses the segment in this one.
ODD_EXTRA = "$'a|b\"c\\\\d\\n\\xff[x] Extra=y%20'"
# A field that begins with a newline looks like the end of a line to whoever looks at newlines alone.
ODD_NAME = ODD.replace("$'", "$'\\nodd ")
ODD_COMMENT = ODD.replace(FORGED, TRUE)
SLEEP = "--wrap 'exec sleep 900'"
# Expected times of waiting jobs move from one scheduling pass to the next.
MOVING = {"start", "end", "priority"}
# What a gateway may leave open.
OPEN: dict[str, Any] = {"mem": None, "holds": [], "at_once": None, "own_extra": None}


def ask(slurm: Slurm, *words: str) -> dict[str, Any]:
    """Runs the script beside slurmctld."""
    result = slurm.target.run([PYTHON, "-", *words], user="slurm", stdin=SCRIPT.read_text(encoding="utf-8"))
    found: dict[str, Any] = json.loads(result.out)
    return found


@dataclass(frozen=True, slots=True)
class Scene:
    """A cluster with jobs of all kinds, and what each gateway read of it."""

    slurm: Slurm
    jobs: dict[str, int]
    readings: dict[str, Any]


@pytest.fixture(autouse=True)
def quiet() -> None:
    """The scene is laid once for all tests of this file."""


@pytest.fixture(scope="module")
def still(slurm: Slurm) -> Iterator[Slurm]:
    """A cluster whose berthd does not touch the jobs."""
    slurm.clear()
    slurm.berthd("stop")
    yield slurm
    slurm.target.bash(
        "scontrol update NodeName=n2 State=RESUME; squeue -h -o %A | sort -u | xargs -r scancel --quiet\n"
        "scontrol delete ReservationName=later",
        user="root",
        check=False,
    )
    slurm.clear()


@pytest.fixture(scope="module")
def scene(still: Slurm) -> Scene:
    jobs = _submit(
        still,
        "root",
        """
        typed -n1 --mem=300 -w n1 --gres=gpu:g0:1,gpu:g2:1
        two -N2 -w n2,n3 --mem=2000 --gres=gpu:g1:1,gpu:g3:1
        whole --exclusive -w n4 --gres=gpu:8
        """,
    ) | _submit(
        still,
        "alice",
        """
        untyped -w n1 --gres=gpu:2 --mem-per-cpu=150 -c 2
        cpus -w n1 -n2 --mem=500
        ended -w n1 --mem=10
        some --array=1-5%2 -w n1 --gres=gpu:1 --mem=100
        """,
    )
    for name in ("typed", "two", "whole", "untyped", "cpus", "ended", "some"):
        until(f"{name} to run", partial(_runs, still, jobs[name]))
    still.target.bash(
        "scontrol create reservation ReservationName=later StartTime=now+1hour Duration=60 Nodes=n3 Users=alice",
        user="root",
    )
    jobs |= _submit(
        still,
        "alice",
        f"""
        waits -w n4 --gres=gpu:4 -x n1 -C '[v100|l40s]' --mem=4G
        begins --begin=now+2hours --gres=gpu:1
        held -H --gres=gpu:1
        depends -d afterok:{jobs["whole"]} --gres=gpu:1
        steps --array=0-44:4%3 -w n4 --gres=gpu:1
        reserved --reservation=later --gres=gpu:1
        several -p plain,gpu -w n4 --gpus=1
        het -H -n1 : -p plain -H -n2 --gres=gpu:2
        odd -H -J {ODD_NAME} --comment={ODD} --extra={ODD_EXTRA} --gpus-per-task=1 -n2
        all -H --mem=0
        """,
    )
    still.target.bash(
        f"scancel {jobs['ended']}\n"
        f"scontrol update JobId={jobs['odd']} AdminComment={ODD_COMMENT}\n"
        f"scontrol update JobId={jobs['whole']} AdminComment='site [berth/1 state=placed id=abc k=8]'\n"
        "scontrol update NodeName=n2 State=DRAIN Reason='maintenance, State=IDLE'",
        user="root",
    )
    still.wait_state(jobs["ended"], {"CANCELLED"})
    # Reasons are written by the next scheduling pass.
    until("a reason", lambda: still.show(jobs["waits"]).get("Reason") == "Resources" or None)
    until("a reason", lambda: still.show(jobs["several"]).get("Reason") != "None" or None)
    # Slurm calls a job running while its Prolog runs, and says so as its reason: the readings come one after another.
    prologs = ["squeue", "-h", "-t", "RUNNING", "-o", "%r"]
    until("no Prolog to run", lambda: "Prolog" not in still.target.run(prologs, user="root").out)
    return Scene(still, jobs, ask(still, "read"))


def _submit(slurm: Slurm, user: str, lines: str) -> dict[str, int]:
    """Submits jobs, a name and its options a line; their ids."""
    script = "".join(
        f"echo {name} $(sbatch --parsable -p plain -t 30 -o /dev/null {options} {SLEEP})\n"
        for name, _, options in (line.strip().partition(" ") for line in lines.strip().splitlines())
    )
    result = slurm.target.bash(script, user=user)
    jobs = {name: number.partition(";")[0] for name, _, number in (w.partition(" ") for w in result.out.splitlines())}
    assert all(jobs.values()), result.text
    return {name: int(number) for name, number in jobs.items()}


def _runs(slurm: Slurm, job: int) -> bool:
    return "RUNNING" in slurm.target.run(["squeue", "-h", "-j", str(job), "-t", "RUNNING", "-o", "%T"]).out


def test_the_gateways_that_fit_are_the_expected_ones(scene: Scene) -> None:
    expected = {"command", "libslurm"} | ({"pyslurm"} if scene.slurm.version == (25, 11) else set())

    assert set(scene.readings) == expected


def test_all_gateways_read_the_same_facts(scene: Scene) -> None:
    by_name = {name: reading["all"] for name, reading in scene.readings.items()}
    first = by_name.pop("libslurm")
    # Jobs of earlier tests that ended are remembered for a while: of a cancelled array each tells another rest.
    known = {*scene.readings["libslurm"]["live"], scene.jobs["ended"]}
    for reading in (first, *by_name.values()):
        reading["jobs"] = [job for job in reading["jobs"] if job["id"] in known]

    for name, other in by_name.items():
        for kind, key in (("nodes", "name"), ("jobs", "id"), ("partitions", "name"), ("reservations", "name")):
            left, right = ({one[key]: one for one in reading[kind]} for reading in (first, other))
            assert left.keys() == right.keys(), (name, kind)
            differ = {one: d for one in left if (d := _differences(left[one], right[one]))}
            assert not differ, (name, kind)
        assert [first[key] for key in ("seen", "memory", "memory_counts", "version", "in_control", "federated")] == [
            other[key] for key in ("seen", "memory", "memory_counts", "version", "in_control", "federated")
        ], name


def _differences(left: dict[str, Any], right: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    moving = MOVING if left.get("state") in {"PENDING", "ARRAY"} else {"priority"}
    return {
        key: (left[key], right[key])
        for key in left
        if left[key] != right[key] and key not in moving
        if key not in OPEN or OPEN[key] not in [left[key], right[key]]
    }


@pytest.fixture(params=["pyslurm", "libslurm", "command"])
def reading(request: pytest.FixtureRequest, scene: Scene) -> dict[str, Any]:
    """Returns the reading of one gateway."""
    if request.param not in scene.readings:
        pytest.skip(f"{request.param} does not fit Slurm {scene.slurm.name}")
    found: dict[str, Any] = scene.readings[request.param]
    return found


def test_jobs_say_what_they_asked_for_and_hold(scene: Scene, reading: dict[str, Any]) -> None:
    jobs = {job["id"]: job for job in reading["all"]["jobs"]}

    def of(name: str, *keys: str) -> list[Any]:
        return [jobs[scene.jobs[name]][key] for key in keys]

    assert of("typed", "state", "gpus", "holds", "nodes", "mem") == ["RUNNING", 0b101, [0b101], ["n1"], 300]
    assert of("two", "holds", "nodes", "count", "mem") == [[0b1010, 0b1010], ["n2", "n3"], 2, 2000]
    assert of("whole", "gpus", "holds", "wants_gpus") == [None, [0xFF], True]
    assert of("untyped", "gpus", "cpus", "mem") == [None, 2, 300]
    assert of("untyped", "holds")[0][0].bit_count() == 2
    assert of("cpus", "wants_gpus", "gpus", "holds", "cpus", "mem") == [False, None, [], 2, 500]
    assert of("waits", "required", "excluded", "reason", "mem") == [["n4"], ["n1"], "Resources", 4096]
    assert of("waits", "features", "limit", "start") == ["[v100|l40s]", 1800, of("waits", "start")[0]]
    assert of("held", "reason", "priority", "begin") == ["JobHeldUser", 0, None]
    assert of("depends", "reason", "begin") == ["Dependency", None]
    begins = jobs[scene.jobs["begins"]]
    assert 7_000 < begins["begin"] - begins["submitted"] < 7_300
    assert (begins["reason"], of("reserved", "reservation")) == ("BeginTime", ["later"])
    assert set(of("several", "partition")[0].split(",")) == {"plain", "gpu"}
    assert of("odd", "wants_gpus", "plan") == [True, {"texts": {"state": "placed", "id": TRUE, "k": "8"}}]
    assert of("whole", "user") == [0]
    assert of("held", "user")[0] > 0


def test_arrays_and_heterogeneous_jobs_are_told_apart(scene: Scene, reading: dict[str, Any]) -> None:
    jobs = reading["all"]["jobs"]
    steps = [job for job in jobs if job["array"] == scene.jobs["steps"]]
    some = sorted((job["state"], job["task"], job["tasks"]) for job in jobs if job["array"] == scene.jobs["some"])
    het = [job for job in jobs if job["het"] == scene.jobs["het"]]

    assert [(job["state"], job["task"], job["tasks"], job["at_once"]) for job in steps] == [
        ("ARRAY", None, "0,4,8,12,16,20,24,28,32,36,40,44", 3)
    ]
    assert some == [("ARRAY", None, "3-5"), ("RUNNING", 1, ""), ("RUNNING", 2, "")]
    assert [job["holds"][0].bit_count() for job in jobs if job["array"] and job["state"] == "RUNNING"] == [1, 1]
    assert {job["id"] for job in het} == {scene.jobs["het"], scene.jobs["het"] + 1}


def test_nodes_and_reservations_are_read(scene: Scene, reading: dict[str, Any]) -> None:
    nodes = {node["name"]: node for node in reading["all"]["nodes"]}
    [later] = reading["all"]["reservations"]

    assert [nodes[name]["up"] for name in sorted(nodes)] == [True, False, True, True]
    assert (nodes["n4"]["gpus_used"], nodes["n4"]["cpus_used"]) == (0xFF, nodes["n4"]["cpus"])
    assert (nodes["n2"]["gpus_used"], nodes["n2"]["mem_used"]) == (0b1010, 2000)
    assert nodes["n1"]["gpus_used"].bit_count() == 6
    assert nodes["n1"]["features"] == ["v100"]
    assert nodes["n1"]["partitions"] == ["gpu", "plain"]
    assert (later["name"], later["nodes"], later["end"] - later["start"]) == ("later", ["n3"], 3_600)


def test_texts_of_users_are_no_structure(scene: Scene, reading: dict[str, Any]) -> None:
    plans = [job["plan"] for job in reading["all"]["jobs"]]

    assert {"abc", TRUE} <= set(reading["all"]["seen"])
    assert FORGED not in reading["all"]["seen"]
    assert FORGED not in [plan["texts"].get("id") for plan in plans if plan]


def test_ended_jobs_come_when_asked_for(scene: Scene, reading: dict[str, Any]) -> None:
    ended = next(job for job in reading["all"]["jobs"] if job["id"] == scene.jobs["ended"])

    assert (ended["state"], ended["holds"]) == ("CANCELLED", [])
    assert scene.jobs["ended"] not in reading["live"]
    assert set(scene.jobs.values()) - {scene.jobs["ended"]} <= set(reading["live"])


def test_what_did_not_change_is_the_same_object(scene: Scene, reading: dict[str, Any]) -> None:
    assert reading["others"] == []


def test_the_small_questions_are_answered(scene: Scene, reading: dict[str, Any]) -> None:
    assert reading["version"].startswith("{}.{:02d}.".format(*scene.slurm.version))
    assert (reading["in_control"], reading["config"]) == (True, "berth")
    assert reading["pinned"] == []
    assert "job 4000000 is not known" in reading["gone"]


def test_all_gateways_write_the_same(still: Slurm, scene: Scene) -> None:
    names = list(scene.readings)
    batch = "sbatch --parsable -p plain -t 30 -o /dev/null"
    still.target.bash("scontrol update NodeName=n2 State=RESUME", user="root")
    jobs: dict[str, dict[str, int]] = {}
    for name in names:
        lines = still.target.bash(
            f"for i in 1 2; do {batch} -H -w n4 --gres=gpu:2 --extra={ODD_EXTRA} --wrap 'exec sleep 900'; done\n"
            f"{batch} -H -w n4 -N1 --gpus=2 --wrap 'exec sleep 900'\n"
            f"{batch} --array=1-4 -w n4 --gres=gpu:2 --extra=mine --wrap 'exec sleep 900'\n"
            f"{batch} -H -w n4 --gres=gpu:2 --wrap 'exec sleep 900'\n"
            f"for i in 1 2; do {batch} -w n2 -n1 --mem=10 --wrap 'exec sleep 900'; done\n"
        ).out.split()
        jobs[name] = dict(
            zip(("pin", "release", "by_job", "array", "late", "running", "requeue"), map(int, lines), strict=True)
        )
    for name in names:
        still.wait_state(jobs[name]["running"], {"RUNNING"})
        still.wait_state(jobs[name]["requeue"], {"RUNNING"})
        still.target.bash(
            "\n".join(
                f"scontrol update JobId={jobs[name][one]} AdminComment={ODD_COMMENT}"
                for one in ("pin", "release", "running")
            ),
            user="root",
        )

    said = ask(still, "act", json.dumps(jobs))
    records = {name: _records(still, jobs[name], said[name].pop("task")) for name in names}

    first = said["libslurm"]
    assert first["seen"][0][:2] == [0b10_0001, ["n4"]]
    assert [one[3] for one in first["seen"]] == ["PENDING", "PENDING"]
    assert first["released"] == [True, False]
    assert "only the place of a waiting job" in first["late"]
    for name in names:
        assert said[name]["seen"] == first["seen"], name
        assert said[name]["text"] == first["text"], name
        assert said[name]["released"] == first["released"], name
        # The node is as new as the job in the same reading.
        assert (said[name]["freed"], said[name]["requeued"]) == (1, True), name
        assert all(said[name][key] for key in ("late", "gone", "no task")), name
        assert records[name] == records["libslurm"], name
    [pin, task, released, by_job, noted, requeued, late] = records["libslurm"]
    assert pin["req_nodes"] == task["req_nodes"] == "n4"
    assert pin["tres_per_node"] == task["tres_per_node"]
    assert pin["tres_per_node"].startswith("gres/gpu:g0:1,gres/gpu:g5:1,gres/seat:g0:1")
    assert task["extra"] == "mine[berth/1 nodes=n4 gpus=0,5]"
    assert (released["tres_per_node"], released["req_nodes"]) == ("gres/gpu:2", "n[3-4]")
    assert (by_job["tres_per_node"], by_job["tres_per_job"]) == (pin["tres_per_node"], "")
    # What another wrote after the reading stays.
    assert noted["admin_comment"] == "billed to 8%[berth/1 state=noted]"
    assert late["admin_comment"].startswith("billed to 7% [berth/1 state=placed ")
    assert late["admin_comment"].endswith("] by night")
    assert requeued["restarts"] == 1


def test_to_all_gateways_a_job_that_was_put_back_on_hold_waits(still: Slurm, scene: Scene) -> None:
    [job] = _submit(still, "alice", "special -w n1 -n1 --mem=10").values()
    still.wait_state(job, {"RUNNING"})
    still.target.bash(f"scontrol requeuehold State=SpecialExit {job}", user="root")
    still.wait_state(job, {"SPECIAL_EXIT"})

    for name, reading in ask(still, "read").items():
        [found] = [one for one in reading["all"]["jobs"] if one["id"] == job]
        assert (name, found["state"], job in reading["live"]) == (name, "PENDING", True)
        assert found["reason"].replace("_", " ").startswith("job requeued in "), name


def test_all_gateways_pin_what_is_left_of_an_array_and_no_task_that_runs(still: Slurm, scene: Scene) -> None:
    batch = "sbatch --parsable -p plain -t 30 -o /dev/null --mem=10 -n1 --wrap 'exec sleep 900'"
    jobs = {}
    for name in scene.readings:
        waits, runs = still.target.bash(
            f"{batch} --array=1-5 -H -w n4 --gres=gpu:1\n{batch} --array=1-5%1 -w n3 --gres=gpu:1"
        ).out.split()
        jobs[name] = {"waits": int(waits), "runs": int(runs)}
    for one in jobs.values():
        until("a task to run", partial(_runs, still, one["runs"]))

    said = ask(still, "rest", json.dumps(jobs))

    for name, one in jobs.items():
        assert said[name] == {"waits": f"{one['waits']}_[1-5]", "runs": f"{one['runs']}_[2-5]"}, name
        asked = "squeue -h -a -r -O ArrayTaskID:9,State:9,ReqNodes:9,tres-per-node:60 -j"
        for array, first in ((one["waits"], 1), (one["runs"], 2)):
            tasks = sorted(line.split() for line in still.target.bash(f"{asked} {array}", user="root").out.splitlines())
            if first == 2:
                assert tasks[0][:3] == ["1", "RUNNING", "n3"], name
                assert "g0" not in tasks[0][3], name
            for number, (task, state, nodes, tres) in enumerate(tasks[first - 1 :], first):
                assert (int(task), state, nodes) == (number, "PENDING", "n4"), name
                assert tres.startswith("gres/gpu:g0:1,gres/gpu:g5:1,gres/seat:g0:1"), name
        still.target.bash(f"scancel {one['waits']} {one['runs']}", user="root")


def test_a_place_that_comes_as_a_task_starts_is_written_into_no_task_that_runs(still: Slurm, scene: Scene) -> None:
    batch = "sbatch --parsable -p plain -t 30 -o /dev/null --mem=10 -n1 -w n3 --extra=own -H --array=1-3"
    jobs = {
        name: {"array": int(still.target.bash(f"{batch} --gres=gpu:g{gpu}:1 --wrap 'exec sleep 900'").out)}
        for name, gpu in zip(scene.readings, (7, 6, 4), strict=False)
    }

    said = ask(still, "behind", json.dumps(jobs))

    assert said["libslurm"]["refused"] == ""
    for name, one in jobs.items():
        assert said[name]["target"] == f"{one['array']}_[1-3]", name
        runs, waits = _task(still, one["array"], 1), _task(still, one["array"], 2)
        assert (runs["JobState"], runs["Extra"], runs.get("AdminComment", "")) == ("RUNNING", "own", ""), name
        # scontrol comes to the task that runs before the others: their place is the next pass's.
        placed = "" if said[name]["refused"] else "[berth/1 nodes=n3 gpus=0,5]"
        assert waits["Extra"] == f"own{placed}", name
        still.target.bash(f"scancel {one['array']}", user="root")


def _records(slurm: Slurm, jobs: dict[str, int], task: int) -> list[dict[str, Any]]:
    """Returns Slurm's own records of the jobs that were changed."""
    found = []
    written = ("release", "by_job", "running", "requeue", "late")
    for job in (jobs["pin"], task, *(jobs[name] for name in written)):
        text = slurm.target.run(["scontrol", "show", "job", str(job), "--json"], user="root").out
        record = next(one for one in json.loads(text)["jobs"] if one["job_id"] == job)
        found.append(
            {
                "req_nodes": record["required_nodes"],
                "tres_per_node": record["tres_per_node"],
                "tres_per_job": record["tres_per_job"],
                "admin_comment": record["admin_comment"],
                "extra": record["extra"],
                "restarts": record["restart_cnt"],
            }
        )
    return found


def test_all_gateways_do_the_same_to_guests(still: Slurm, scene: Scene) -> None:
    names = list(scene.readings)
    batch = "sbatch --parsable -p plain -t 30 -w n3 -n1 --mem=10"
    # Steps get the warning: the batch shell goes on.
    warned = "srun bash -c 'trap \"echo warned\" USR1; echo ready; while :; do sleep 0.2; done'"
    jobs: dict[str, dict[str, int]] = {}
    for name in names:
        lines = still.target.bash(
            f"{batch} -o {still.shared}/%j.out --wrap {shlex.quote(warned)}\n"
            f"{batch} -o /dev/null --wrap 'exec sleep 900'\n"
            f"{batch} -o /dev/null --wrap true\n"
            f"{batch} -o /dev/null --begin=now+2hours --gres=gpu:2 --wrap 'exec sleep 900'\n"
            f"{batch} -o /dev/null --begin=now+2hours --array=1-4 --gres=gpu:2 --wrap 'exec sleep 900'\n"
            f"{batch} -o /dev/null --no-requeue --wrap 'exec sleep 900'\n"
            f"{batch} -o /dev/null --array=1-2 --wrap 'exec sleep 900'\n"
        ).out.split()
        kinds = ("warned", "running", "ended", "parked", "array", "kept", "cancelled")
        jobs[name] = dict(zip(kinds, map(int, lines), strict=True))
    for name in names:
        still.wait_state(jobs[name]["kept"], {"RUNNING"})
        still.wait_state(jobs[name]["cancelled"], {"RUNNING"})
        still.wait_state(jobs[name]["running"], {"RUNNING"})
        still.wait_state(jobs[name]["ended"], {"COMPLETED"})
        until("the step to await its warning", partial(_printed, still, jobs[name]["warned"], "ready"))

    said = ask(still, "guests", json.dumps(jobs))

    for name in names:
        one, them = jobs[name], said[name]
        assert (them["running"], them["ended"], them["kept"]) == (True, False, True), name
        until(f"{name}'s cancelled job", partial(_is, still, one["cancelled"], "CANCELLED"))
        assert "job" in them["not parked"], name
        assert all(them[key] for key in ("no guest", "nobody")), name
        until(f"{name}'s warning", partial(_printed, still, one["warned"], "warned"))
        assert still.state(one["warned"]) == "RUNNING", name
        until(f"{name}'s guest in the queue", partial(_is, still, one["running"], "PENDING"))
        assert still.show(one["running"])["Restarts"] == "1", name
        assert (still.state(one["ended"]), still.show(one["ended"])["Restarts"]) == ("COMPLETED", "0"), name
        for record in (still.show(one["parked"]), _task(still, one["array"], 3)):
            assert (record["TresPerNode"], record["ReqNodeList"]) == ("gres/gpu:2", "n[3-4]"), name
            begins = still.target.bash(f"date -d {record['EligibleTime']} +%s; date +%s").out.split()
            assert 3_400 < int(begins[0]) - int(begins[1]) <= 3_600, name
            assert "parked=0" in record["AdminComment"], name
            assert "nodes=" not in record["AdminComment"], name


def _printed(slurm: Slurm, job: int, word: str) -> bool:
    return word in slurm.target.bash(f"cat {slurm.shared}/{job}.out", user="root", check=False).out


def _is(slurm: Slurm, job: int, state: str) -> bool:
    return slurm.state(job) == state


def _task(slurm: Slurm, array: int, number: int) -> dict[str, str]:
    """The record of a task that has been split off."""
    line = slurm.target.run(["squeue", "-h", "-r", "-j", f"{array}_{number}", "-o", "%A"]).out
    return slurm.show(int(line))
