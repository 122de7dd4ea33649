# SPDX-License-Identifier: Apache-2.0
"""The overview: what it tells of GPUs and jobs, who sees what of it, and how it is written."""

import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from policy.daemon.passes import overviews
from policy.daemon.passes.overviews import EVERY, OverviewWriter, moment_of, overview_of
from policy.formats.errors import DaemonError
from policy.formats.slurm_facts import JobFacts, NodeFacts, Reading
from policy.placement.registry import create
from policy.plan.ledger.tracker import Tracker
from policy.plan.queue.plan import Plan
from policy.request.settings import Settings
from policy.site import overview as site
from policy.site.overview import OverviewFile, fleet_for, path_of, queue_for
from tests.unit.policy_world import NOW, fleet, node, reading, running, waiting

ALICE, BOB = 1001, 1002


def planned(nodes: list[NodeFacts], jobs: list[JobFacts], kinds: dict[str, str] | None = None) -> tuple[Plan, Reading]:
    look = reading(nodes, jobs)
    tracker = Tracker(fleet(look, kinds))
    tracker.update(look)
    plan = Plan(create("berth"), Settings())
    plan.replan(tracker.book(), look.jobs)
    return plan, look


def overview(nodes: list[NodeFacts], jobs: list[JobFacts], kinds: dict[str, str] | None = None) -> dict[str, Any]:
    moment = moment_of(*planned(nodes, jobs, kinds))
    assert moment is not None
    return overview_of(moment)


def two_jobs() -> dict[str, Any]:
    return overview(
        [node("n1", used=0b0011)],
        [
            running(5, "n1", 0b0011, 600, user=ALICE, holds=(0b0011,)),
            waiting(6, "n1", 0b1100, user=BOB),
        ],
    )


def test_each_gpu_tells_who_has_it_and_who_comes_next() -> None:
    (told,) = two_jobs()["nodes"]

    assert told["name"] == "n1"
    assert told["state"] == "up"
    assert told["islands"] == [list(range(8))]
    assert told["gpus"][:5] == [
        {"state": "owned", "owner": 5},
        {"state": "owned", "owner": 5},
        {"state": "free", "planned": 6},
        {"state": "free", "planned": 6},
        {"state": "free"},
    ]


def test_packed_jobs_and_guests_stand_on_their_gpus() -> None:
    (told,) = overview(
        [node("n1", used=0b0111, shards=8)],
        [
            running(5, "n1", 0b0001, 600, share=30, holds=(0b0001,)),
            running(6, "n1", 0b0001, 600, share=50, holds=(0b0001,)),
            running(7, "n1", 0b0010, 600, segment={"tier": "guaranteed"}, holds=(0b0010,)),
            running(8, "n1", 0b0010, 600, guest=True, segment={"tier": "opportunistic"}),
        ],
    )["nodes"]

    assert told["gpus"][0] == {
        "state": "packed",
        "packed": [{"job": 5, "percent": 30}, {"job": 6, "percent": 50}],
    }
    assert told["gpus"][1] == {"state": "owned", "owner": 7, "guest": 8}
    assert told["gpus"][2] == {"state": "taken"}


def test_islands_problems_and_states_of_nodes() -> None:
    told = overview([node("n1"), node("n2", up=False), node("n3", gpus=4), node("n4", gpus=0)], [], {"n1": "a6000"})

    by_name = {one["name"]: one for one in told["nodes"]}
    assert by_name["n1"]["islands"] == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert by_name["n2"]["state"] == "down"
    assert by_name["n3"]["problem"] == "no topology file for n3"
    assert len(by_name["n3"]["gpus"]) == 4
    assert "n4" not in by_name


def test_a_node_that_ends_a_job_says_so_unless_it_is_down() -> None:
    nodes = [replace(node(name, up=up), completing=True) for name, up in (("n1", True), ("n2", False))]
    assert [one["state"] for one in overview(nodes, [])["nodes"]] == ["completing", "down"]


@pytest.mark.parametrize(("row", "told"), [((1.0, 1.0), False), ((1.0, 1.2), True), ((1.1, 1.2), True)])
def test_a_node_tells_its_scores_if_one_gpu_has_another_than_a_typical_one(
    row: tuple[float, float], *, told: bool
) -> None:
    plan, look = planned([node("n1")], [])
    scores = np.ones((1, 8))
    scores[0, :2] = row
    moment = moment_of(plan, look)
    assert moment is not None
    moment = moment._replace(fleet=replace(moment.fleet, scores={"compute": scores}))
    (one,) = overview_of(moment)["nodes"]
    assert one.get("scores") == ({"compute": [*row, *[1.0] * 6]} if told else None)


def test_waiting_jobs_come_first_in_their_order_with_their_planned_place() -> None:
    jobs = overview(
        [node("n1", used=0xFF)],
        [
            running(5, "n1", 0xFF, 600, holds=(0xFF,)),
            waiting(6, "n1", 0b0011, priority=10),
            waiting(7, "n1", 0b1100, priority=20, segment={"because": "capacity", "because_text": "0 GPUs are free"}),
        ],
    )["jobs"]

    assert [job["id"] for job in jobs] == [7, 6, 5]
    assert jobs[0]["because"] == "capacity"
    assert jobs[0]["planned"] == {"nodes": "n1", "gpus": [2, 3], "start": int(NOW) + 600}
    assert (jobs[0]["state"], jobs[0]["start"], jobs[0]["gpus"], jobs[0]["reason"]) == ("PENDING", None, 2, "Resources")
    assert (jobs[2]["state"], jobs[2]["start"], jobs[2]["gpus"], jobs[2]["nodes"]) == (
        "RUNNING",
        int(NOW) - 100,
        8,
        "n1",
    )


def test_the_numbers_of_others_are_hidden_and_that_a_gpu_is_taken_is_not() -> None:
    found = two_jobs()

    (alices,) = fleet_for(found, ALICE)["nodes"]
    assert alices["gpus"][1] == {"state": "owned", "owner": 5}
    assert alices["gpus"][2] == {"state": "free", "planned": None}
    (bobs,) = fleet_for(found, BOB)["nodes"]
    assert bobs["gpus"][1] == {"state": "owned", "owner": None}
    assert [job["id"] for job in queue_for(found, BOB, BOB)["jobs"]] == [6]
    assert [job["id"] for job in queue_for(found, BOB, None)["jobs"]] == [6, 5]
    assert "5" not in json.dumps(queue_for(found, BOB, BOB)["jobs"][0]["id"])


def test_of_too_many_jobs_the_askers_own_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(site, "MOST_JOBS", 2)
    jobs = [{"id": number, "user_id": BOB if number == 4 else ALICE} for number in range(1, 5)]
    found = {"schema_version": 1, "at": NOW, "nodes": [], "jobs": jobs, "left_out": 3}

    told = queue_for(found, BOB)

    assert [job["id"] for job in told["jobs"]] == [1, 4]
    assert told["left_out"] == 5


def test_the_file_is_written_beside_the_socket_for_slurms_user_alone(tmp_path: Path) -> None:
    path = path_of(tmp_path / "berthd.sock")
    writer = OverviewWriter(path)
    file = OverviewFile(path)
    with pytest.raises(DaemonError, match="is berthd running"):
        file.read()

    writer.write_if_due(*planned([node("n1")], []))
    writer.close()

    assert path.stat().st_mode & 0o777 == 0o600
    assert file.read()["nodes"][0]["name"] == "n1"
    assert file.read() is file.read()


class Clock:
    """A clock that stands still."""

    def __init__(self, now: float) -> None:
        self._now = now

    def monotonic(self) -> float:
        return self._now

    def thread_time(self) -> float:
        return 0.0


def test_no_overview_is_written_before_the_last_one_has_paid_for_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = path_of(tmp_path / "berthd.sock")
    writer = OverviewWriter(path)
    writer.write_if_due(*planned([node("n1")], []))
    writer.close()
    first = path.read_bytes()

    monkeypatch.setattr(overviews, "time", Clock(time.monotonic() + EVERY / 2))
    writer.write_if_due(*planned([node("n2")], []))
    writer.close()
    assert path.read_bytes() == first

    monkeypatch.setattr(overviews, "time", Clock(time.monotonic() + 100 * EVERY))
    writer.write_if_due(*planned([node("n2")], []))
    writer.close()
    assert path.read_bytes() != first


@pytest.mark.parametrize("text", ["", "[]", '{"schema_version": 99}'])
def test_a_file_of_another_kind_is_refused_in_a_sentence(tmp_path: Path, text: str) -> None:
    path = tmp_path / "berthd.sock.overview"
    path.write_text(text)

    with pytest.raises(DaemonError, match=r"; (install|restart)"):
        OverviewFile(path).read()


def test_the_model_of_a_node_without_a_topology_file_is_slurms() -> None:
    nodes = [node("n1"), node("n2", gpus=0, loose=4, seats=0, models=frozenset({"l40s"}))]

    told = overview(nodes, [], {"n1": "h100"})["nodes"]

    assert [one["model"] for one in told] == ["h100", "l40s"]
