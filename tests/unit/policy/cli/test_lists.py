# SPDX-License-Identifier: Apache-2.0
"""`berth nodes` and `berth queue`, from an overview beside berthd's socket."""

import doctest
import json
import os
import re
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from policy.cli import listing, nodes
from policy.cli.jobs import queue
from policy.cli.main import main
from policy.site.overview import path_of
from tests.programs import python_program

ROOT = Path(__file__).parents[4]


def gpu(state: str = "free", **more: Any) -> dict[str, Any]:
    return {"state": state, **more}


def overview() -> dict[str, Any]:
    now = time.time()
    n1 = {
        "name": "n1",
        "state": "up",
        "partitions": ["gpu"],
        "model": "h100",
        "islands": [[0, 1], [2, 3]],
        "scores": {"compute": [1.0, 1.13, 1.0, 1.0]},
        "gpus": [gpu("owned", owner=11), gpu("owned", owner=11, guest=12), gpu(planned=14), gpu(closed=True)],
    }
    n2 = {
        "name": "n2",
        "state": "down",
        "partitions": ["gpu", "long"],
        "model": "",
        "problem": "no topology file for n2",
        "islands": [],
        "gpus": [gpu(), gpu("packed", packed=[{"job": 13, "percent": 30}, {"job": None, "percent": 20}]), gpu("taken")],
    }
    job = {
        "name": "train",
        "user_id": os.getuid(),
        "account": "lab",
        "partition": "gpu",
        "priority": 5,
        "submitted": int(now) - 900,
        "limit": 3_600,
        "node_count": 1,
        "gpus": 2,
        "reason": "None",
    }
    return {
        "schema_version": 1,
        "at": now,
        "nodes": [n1, n2],
        "jobs": [
            job
            | {
                "id": 14,
                "array": 14,
                "tasks": "3-5",
                "state": "PENDING",
                "start": None,
                "end": None,
                "nodes": "",
                "reason": "Resources",
                "because": "capacity",
                "because_text": "1 GPU is free where it could run, it needs 2",
                "planned": {"nodes": "n1", "gpus": [2, 3], "start": int(now) + 600},
                "insists": "nvlink",
                "insists_until": now + 3_690,
            },
            job
            | {
                "id": 11,
                "user_id": 4_000_000,
                "state": "RUNNING",
                "start": int(now) - 65,
                "end": int(now) + 3_000,
                "nodes": "n1",
                "level": "nvlink",
            },
        ],
        "idle": [],
        "left_out": 0,
    }


def idle(gpu: str, job: int, no_kernel: int, no_process: int | None = None, memory_mib: int = 0) -> dict[str, Any]:
    times = {"no_kernel": no_kernel, "no_process": no_process}
    return {"node": "n1", "gpu": gpu, "job": job, **times, "memory_mib": memory_mib}


@pytest.fixture
def told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Writes an overview on a site that answers no users: root's commands read the file."""
    config = tmp_path / "berth.conf"
    config.write_text(f'[hook]\nsocket = "{tmp_path}/berthd.sock"\n[users]\nhosts = ""\n')
    monkeypatch.setenv("BERTH_CONF", str(config))
    found = overview()
    path_of(tmp_path / "berthd.sock").write_text(json.dumps(found))
    return found


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[str]:
    assert main(arguments) == 0
    return capsys.readouterr().out.splitlines()


@pytest.mark.usefixtures("told")
def test_nodes_is_a_map_with_a_bar_between_islands(capsys: pytest.CaptureFixture[str]) -> None:
    header, first, second = printed(capsys, "nodes")

    assert header.split() == ["NODE", "MODEL", "STATE", "FREE", "GPUS"]
    assert first.split() == ["n1", "h100", "up", "2/4", "11", "11+12!1.13", "|", "(14)", ".x"]
    assert second.split() == ["n2", "-", "down", "0/3", "-", "50%", "?"]
    assert first.index("11+12") == second.index("50%")


def test_idle_gpus_are_listed_with_their_job(
    told: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    since = int(told["at"]) - 7_300
    told["idle"] = [idle("0", 11, since, memory_mib=512), idle("1", 11, since - 60, since)]
    next(job for job in told["jobs"] if job["id"] == 11)["idle"] = {"gpus": 2, "since": since}
    path_of(tmp_path / "berthd.sock").write_text(json.dumps(told))

    _, first, second = [line.split() for line in printed(capsys, "nodes", "--idle")]
    (job,) = [line for line in printed(capsys, "queue", "-o", "jobid,because") if line.split()[0] == "11"]
    kept = json.loads("\n".join(printed(capsys, "nodes", "--idle", "--json")))["gpus"]

    assert (first[:4], first[5:], second[:4], second[5:]) == (
        ["n1", "1", "11", "train"],
        ["2:02:40", "2:01:40", "0"],
        ["n1", "0", "11", "train"],
        ["2:01:40", "-", "512"],
    )
    assert job.endswith("2 of its 2 GPUs have run no kernel for 2 h 1 min")
    assert [(one["gpu"], one["no_process_s"] is None) for one in kept] == [("1", False), ("0", True)]


@pytest.mark.skipif(shutil.which("jq") is None, reason="jq is not installed")
def test_the_pages_script_mails_users_of_idle_gpus_and_hangs(told: dict[str, Any], tmp_path: Path) -> None:
    page = (ROOT / "docs" / "admin" / "stragglers.md").read_text()
    script = re.sub("(?m)^    ", "", page[page.index("    #!/bin/sh") :].partition("\n\n")[0])
    now = int(told["at"])
    told["jobs"][0] |= {"user_id": 1_000, "hangs": {"since": 1_800_000_000, "allowed": 600, "behind": ""}}
    told["idle"] = [idle("0", 11, now - 7_300), idle("1", 11, now - 700)]
    path_of(tmp_path / "berthd.sock").write_text(json.dumps(told))
    python_program(tmp_path / "berth", "import sys\nfrom policy.cli.main import main\nsys.exit(main(sys.argv[1:]))\n")
    python_program(tmp_path / "mail", "import sys\nprint(sys.argv[3], sys.stdin.read(), end='')\n")
    python_program(tmp_path / "id", "import sys\nprint('user', sys.argv[2], sep='')\n")

    path = f"{tmp_path}:{os.environ['PATH']}"
    env = {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT)}
    mails = subprocess.run(["sh", "-c", script], env=env, capture_output=True, text=True, check=True).stdout

    assert mails.splitlines() == [
        "user4000000 GPU 0 of n1 has run no kernel for 121 min: job 11",
        "user1000 Nothing moves in job 14 since 2027-01-15T08:00:00Z",
    ]


@pytest.mark.usefixtures("told")
def test_lists_take_slurms_options(capsys: pytest.CaptureFixture[str]) -> None:
    assert printed(capsys, "nodes", "-h", "-o", "node,slowest") == ["n1 1.13", "n2 1.00"]
    assert printed(capsys, "nodes", "--noheader", "-n", "n2", "-o", "problem:8") == ["no topo+"]
    assert printed(capsys, "nodes", "-hp", "long", "-o", "node") == ["n2"]
    assert printed(capsys, "queue", "-h", "-o", "jobid:.12,st") == ["14_[3-5] PD", "      11 R"]
    assert printed(capsys, "queue", "-h", "-t", "R", "-o", "jobid") == ["11"]
    assert printed(capsys, "queue", "-h", "--me", "-o", "jobid") == ["14_[3-5]"]
    assert printed(capsys, "queue", "-h", "-u", "4000000", "-o", "user") == ["4000000"]
    assert printed(capsys, "queue", "-h", "-j", "14", "-o", "jobid") == ["14_[3-5]"]
    assert printed(capsys, "queue", "-h", "-p", "other") == []


def test_queue_has_squeues_columns_and_berths_own(told: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    header, waits, runs = printed(capsys, "queue")

    assert header.split()[:8] == ["JOBID", "PARTITION", "NAME", "USER", "ST", "TIME", "NODES", "NODELIST(REASON)"]
    assert header.split()[8:] == ["GPUS", "LEVEL", "PLANNED", "START", "BECAUSE"]
    assert "(Resources)" in waits
    assert "n1:2,3" in waits
    assert re.search(r" nvlink@1:0[01]:\d\d ", waits)
    assert waits.endswith("capacity: 1 GPU is free where it could run, it needs 2")
    start = told["jobs"][0]["planned"]["start"]
    assert time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(start)) in waits
    assert re.search(r" R +1:[0-5]\d ", runs)


def test_lists_for_programs_have_a_version(told: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    found = json.loads("\n".join(printed(capsys, "nodes", "--json", "-n", "n1")))
    assert found == {"schema_version": 1, "at": told["at"], "nodes": told["nodes"][:1], "idle": []}

    found = json.loads("\n".join(printed(capsys, "queue", "--json", "-j", "11")))
    assert found == {"schema_version": 1, "at": told["at"], "jobs": told["jobs"][1:], "left_out": 0}


@pytest.mark.usefixtures("told")
@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (["nodes", "-o", "nods"], "'nods' is no column; did you mean node?"),
        (["queue", "-o", "%i"], "'%i' is no column; -o takes names"),
        (["queue", "-u", "no-such-user"], "is no user of this host"),
        (["nods"], "berth has no command nods; did you mean nodes?"),
        (["topo", "shwo"], "berth topo has no command shwo; did you mean show?"),
        (["queue", "--jsn"], "berth queue does not take --jsn; did you mean --json?"),
        (["plan", "--gpus=2", "x y.sh"], "call: berth plan -- --gpus=2 'x y.sh'"),
        (["plan", "--json", "-n2", "x.sh"], "call: berth plan --json -- -n2 x.sh"),
    ],
)
def test_a_wrong_call_is_answered_with_the_right_one(
    capsys: pytest.CaptureFixture[str], arguments: list[str], what: str
) -> None:
    assert main(arguments) == 2

    error = capsys.readouterr().err
    assert error.startswith("berth: error: ")
    assert what in error
    assert error.count("\n") == 1


def test_domains_are_rows_of_trays(told: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one, other = told["nodes"]
    trays = [{**other, "name": f"t{place}", "state": "up", "gpus": [gpu(), gpu()], "domain": "r1"} for place in (1, 2)]
    nodes = [{**one, "leaf": "block0"}, *trays, {**other, "domain": "r1"}]
    path_of(tmp_path / "berthd.sock").write_text(json.dumps({**told, "nodes": nodes}))

    assert [line.split() for line in printed(capsys, "nodes", "--domains")] == [
        ["DOMAIN", "NODES", "UP", "WHOLE", "FREE"],
        ["block0", "n1", "1/1", "0", "2"],
        ["r1", "t[1-2],n2", "2/3", "2", "2", "2", "-"],
    ]
    found = json.loads("\n".join(printed(capsys, "nodes", "--domains", "--json")))["domains"]
    assert found[1]["trays"] == [{"node": "t1", "free": 2}, {"node": "t2", "free": 2}, {"node": "n2", "free": None}]


@pytest.mark.usefixtures("told")
def test_nodes_that_do_not_exist_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["nodes", "-n", "n[1-3]"]) == 1
    assert "n3: Slurm has no such nodes with GPUs" in capsys.readouterr().err


def test_an_old_overview_says_so(told: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path_of(tmp_path / "berthd.sock").write_text(json.dumps(told | {"at": time.time() - 500}))

    assert main(["nodes"]) == 0
    assert "what is shown is 50" in capsys.readouterr().err


def test_without_berthd_there_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "berth.conf"
    config.write_text(f'[hook]\nsocket = "{tmp_path}/berthd.sock"\n[users]\nhosts = ""\n')
    monkeypatch.setenv("BERTH_CONF", str(config))

    assert main(["queue"]) == 1
    assert "is berthd running?" in capsys.readouterr().err


def test_overlapping_islands_have_no_bars() -> None:
    row = {"name": "n1", "state": "up", "gpus": [gpu(), gpu(), gpu()], "islands": [[0, 1], [1, 2]]}

    (found,) = nodes.with_cells([row])

    assert found["map"] == ". . ."


def test_an_island_whose_gpus_are_no_neighbours_names_them() -> None:
    row = {"name": "n1", "state": "up", "gpus": [gpu()] * 5, "islands": [[0, 3], [1, 2]]}

    (found,) = nodes.with_cells([row])

    assert found["map"] == "0:. 3:. | 1:. 2:. | 4:."
    assert doctest.testmod(nodes).failed == 0
    assert doctest.testmod(listing).failed == 0


def test_a_job_that_may_not_be_seen_is_a_star() -> None:
    row = {
        "name": "n1",
        "state": "up",
        "gpus": [gpu("owned", owner=None, guest=None), gpu(planned=None)],
        "islands": [],
    }

    (found,) = nodes.with_cells([row])

    assert found["map"].split() == ["*+*", "(*)"]


@pytest.mark.usefixtures("told")
def test_control_characters_of_a_job_name_do_not_reach_the_terminal(
    told: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    told["jobs"][0]["name"] = "a\x1b[31m\nb"
    path_of(tmp_path / "berthd.sock").write_text(json.dumps(told))

    assert printed(capsys, "queue", "-h", "-j", "14", "-o", "name") == ["a?[31m?b"]


def test_a_task_of_an_array_has_the_name_that_squeue_writes() -> None:
    assert queue.name_of({"id": 9, "array": 7, "task": 2}) == "7_2"
