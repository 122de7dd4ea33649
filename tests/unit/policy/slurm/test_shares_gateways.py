# SPDX-License-Identifier: Apache-2.0
"""Shares in Slurm's books, through each of the three gateways: the same facts, and the same request for a part."""

import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from policy.formats.job_plan import JobPlan
from policy.formats.slurm_facts import JobFacts, NodeFacts
from policy.formats.wire import unescape
from policy.slurm import fields
from policy.slurm.by_command.recorded import recorded_gateway
from policy.slurm.by_library.libslurm import LibslurmGateway
from policy.slurm.interface import Gateway, Pin
from tests.unit.policy.slurm.stand_in import StandIn
from tests.unit.pyslurm_world import RUNNING, Job, World, held, node

DATA = Path(__file__).parents[2] / "data"
SEGMENT = "[berth/1 state=placed id=7 n=1 k=1 share=30 gpu_mem=4096 way=mps whole=1]"
VALUES = {"state": "placed", "id": "7", "n": "1", "k": "1", "share": "30", "gpu_mem": "4096", "way": "mps"}
VALUES |= {"granted": "4096"}
PLACE = Pin(("n3",), (5,), seats=False, plan=JobPlan(VALUES), share=30)


@dataclass
class Case:
    """A gateway to a cluster with a packed job on GPU 7 of one node, and one that waits for its GPU whole."""

    gateway: Gateway
    node: str
    waits: int
    written: Callable[[], dict[str, str]]
    """The last update, by the names of the fields in Slurm's job description."""


def command(folder: Path) -> Case:
    recording = Path(shutil.copytree(DATA / "slurm-24.11", folder / "recording"))
    answer = json.loads((recording / "squeue-json").read_text())
    waits = next(job for job in answer["jobs"] if job["job_state"] == ["PENDING"])
    waits.update(admin_comment=SEGMENT, extra="mine[berth/1 nodes=n2 gpus=0]", tres_per_node="gres/gpu:g0:1")
    (recording / "scontrol-json").write_text(json.dumps(answer))
    names = {
        "TresPerNode": "tres_per_node",
        "ReqNodeList": "req_nodes",
        "AdminComment": "admin_comment",
        "Extra": "extra",
    }

    def written() -> dict[str, str]:
        words = json.loads((recording / "updates").read_text().splitlines()[-1])
        return {names[key]: value for key, value in (word.split("=", 1) for word in words) if key in names}

    return Case(recorded_gateway(recording), "n1", int(waits["job_id"]), written)


def libslurm(folder: Path) -> Case:
    stand_in = StandIn(folder)
    recorded = (DATA / "slurm-24.11" / "berth-slurm-read").read_text().rpartition('["ok"]')[0].partition("\n")[2]
    records = [json.loads(line) for line in recorded.splitlines()]
    n3 = next(one for one in records if one[0] == "node" and one[2] == "n3")
    n3[10] = n3[10].replace("shard:g7:0(0/100)", "shard:g7:30(30/100)")
    runs, waits = (
        next(one for one in records if one[0] == "job" and one[2] == state) for state in ("RUNNING", "PENDING")
    )
    runs[14] = runs[15] = "n3"
    runs[20], runs[24] = "gres/shard:g7:30", ["shard:g7:30(30/100)"]
    waits[1], waits[15], waits[20], waits[25:29] = 300, "n2", "gres/gpu:g0:1", [0, None, "", 0]
    waits[32:] = [SEGMENT, "mine[berth/1 nodes=n2 gpus=0]"]
    stand_in.answers(
        "read", "\n".join(json.dumps(one, separators=(",", ":")) for one in [*records[:5], n3, runs, waits])
    )

    def written() -> dict[str, str]:
        update = [line for line in stand_in.asked if line.startswith("update")][-1]
        return {key: unescape(value) for key, value in (word.split("=", 1) for word in update.split(" ")[2:])}

    return Case(LibslurmGateway(stand_in.path), "n3", 300, written)


def pyslurm(_: Path) -> Case:
    gres = {f"{kind}:g{gpu}": count for kind, count in (("gpu", 1), ("shard", 100), ("seat", 1)) for gpu in range(8)}
    world = World(nodes=[node("n1", configured_gres=gres), node("n3", configured_gres=gres)])
    waiting: dict[str, Any] = {"gres_per_node": {"gres/gpu:g0": 1}, "required_nodes": "n2"}
    world.jobs = [
        Job(1, {"n3": held() | {"shard:g7": 30}}, **RUNNING, gres_per_node={"gres/shard:g7": 30}),
        Job(2, admin_comment=SEGMENT, extra="mine[berth/1 nodes=n2 gpus=0]", **waiting),
    ]
    extra = "mine[berth/1 nodes=n2 gpus=0]"
    world.shows(2, "PENDING", admin_comment=SEGMENT, extra=extra, tres_per_node="gres/gpu:g0:1")

    names = {
        "TresPerNode": "tres_per_node",
        "ReqNodeList": "req_nodes",
        "AdminComment": "admin_comment",
        "Extra": "extra",
    }

    def written() -> dict[str, str]:
        [update] = [one for one in world.commands if one[:2] == ("scontrol", "update")]
        values = dict(word.split("=", 1) for word in update[3:])
        return {names[key]: value for key, value in values.items() if key in names}

    return Case(world.gateway(), "n3", 2, written)


@pytest.fixture(params=[command, libslurm, pyslurm], ids=lambda make: str(make.__name__))
def case(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Case]:
    made: Case = request.param(tmp_path)
    yield made
    made.gateway.close()


def read(case: Case) -> tuple[NodeFacts, list[JobFacts]]:
    look = case.gateway.read(ended=False)
    return next(one for one in look.nodes if one.name == case.node), list(look.jobs)


def test_the_percent_of_each_gpu_and_whose_it_is_are_read(case: Case) -> None:
    here, jobs = read(case)

    assert (here.shards, here.shared, here.gpus_used >> 7) == (8, (0, 0, 0, 0, 0, 0, 0, 30), 1)
    [runs] = [job for job in jobs if job.share]
    assert (runs.share, runs.gpus, runs.holds, runs.user) == (30, 0x80, (0x80,), runs.user)
    assert runs.nodes == (case.node,)


def test_a_share_is_pinned_in_percent_and_the_node_is_told(case: Case) -> None:
    read(case)
    case.gateway.pin(case.waits, PLACE)

    written = case.written()
    assert (written["tres_per_node"], written["req_nodes"]) == ("gres/shard:g5:30", "n3")
    assert written["extra"] == "mine[berth/1 nodes=n3 gpus=5 share=30 mem=4096 way=mps]"
    assert "share=30 gpu_mem=4096 way=mps" in written["admin_comment"]


def test_until_its_place_is_free_the_request_is_for_the_gpu_whole(case: Case) -> None:
    read(case)
    case.gateway.pin(case.waits, Pin(("n3",), (5,), seats=True, plan=JobPlan({**VALUES, "whole": "1"})))

    written = case.written()
    assert written["tres_per_node"] == "gres/gpu:g5:1,gres/seat:g5:1"
    assert written["extra"] == "mine[berth/1 nodes=n3 gpus=5]"


def test_a_packed_job_that_is_given_back_gets_its_gpu_whole(case: Case) -> None:
    read(case)

    assert case.gateway.release(case.waits, "because")
    assert case.written()["tres_per_node"] == "gres/gpu:1"


def test_a_job_without_a_script_asks_for_its_share_by_node(tmp_path: Path) -> None:
    case = command(tmp_path)
    file = tmp_path / "recording" / "scontrol-json"
    answer = json.loads(file.read_text())
    for job in answer["jobs"]:
        job.update(tres_per_job="gres/gpu:g0:1", tres_per_node="")
    file.write_text(json.dumps(answer))

    case.gateway.pin(case.waits, PLACE)

    assert case.written()["tres_per_node"] == "gres/shard:g5:30"
    assert "TresPerJob=" in (tmp_path / "recording" / "updates").read_text()


@pytest.mark.parametrize("gres", ["gpu:g0:1,seat:g0:1", "gpu:g0:1,shard:g0:64", "gpu:a100:4,shard:400"])
def test_gpus_that_are_not_counted_in_percent_are_told_apart(gres: str) -> None:
    assert fields.gres(gres).shards == 0
