# SPDX-License-Identifier: Apache-2.0
"""Places that name nodes alone: where Slurm chooses the GPUs (`layout = "plain"`)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from policy.cluster.untyped import NodePins, numbered
from policy.formats import segment
from policy.formats.job_plan import JobPlan
from policy.formats.slurm_facts import JobFacts, JobText, NodeFacts, PartitionFacts, Reading
from policy.placement.registry import create
from policy.plan.answer.case import Understanding
from policy.plan.ledger.book import Book
from policy.plan.ledger.changes import Change, Move, Release
from policy.plan.ledger.tracker import open_book
from policy.plan.queue.plan import Plan
from policy.request.settings import Settings
from policy.slurm import changes
from policy.slurm.interface import Pin
from tests.unit.deciding import Decision, decide_nodes
from tests.unit.deciding import values as told
from tests.unit.policy_world import NOW, fleet, node, reading, running, submit
from topology.network.fabric import Fabric

LEAVES = {"leaf1": ["n1", "n3"], "leaf2": ["n2", "n4"]}


def plain(name: str, used: int = 0, **facts: object) -> NodeFacts:
    """A node with `Gres=gpu:h100:8`."""
    return node(name, used=used, **{"gpus": 0, "loose": 8, "seats": 0, "models": frozenset({"h100"}), **facts})


def book_of(look: Reading, kinds: dict[str, str] | None = None) -> Book:
    """Nodes n1 and n3 are in one leaf, n2 and n4 in another."""
    shown = NodePins().shown(numbered(look))
    names = tuple(one.name for one in shown.nodes)
    leaf = np.array([0 if name in LEAVES["leaf1"] else 1 for name in names], np.int64)
    made = fleet(shown, kinds, replace(Fabric.flat(names), leaf=leaf))
    made = replace(made, nodes_alone=True, plain=(made.gpu_counts > 0) & ~made.ready)
    return open_book(made, shown)


def answer(book: Book, **fields: str) -> Decision:
    return decide_nodes(submit(**fields), book, create("berth"), Settings(), NOW, Understanding())


def held(job_id: int, name: str, gpus: int, ends_in: float = 600) -> JobFacts:
    """A running job of which Slurm chose the GPUs."""
    return replace(running(job_id, name, gpus, ends_in), holds=(gpus,), gpus=None, required=())


GANG = {"tres_per_node": "gres/gpu:8", "min_nodes": "2", "max_nodes": "2"}


def test_a_gang_gets_nodes_of_one_leaf_and_no_gpus() -> None:
    found = answer(book_of(reading([plain(f"n{number}") for number in range(1, 5)])), **GANG)

    assert found.verb == "pass"
    assert set(found.fields) == {"nonce", "nodes", "segment", "message"}
    assert sorted(found.fields["nodes"].split(",")) in LEAVES.values()
    assert (told(found)["state"], told(found)["layout"]) == ("placed", "plain")
    assert found.claim is not None
    assert "all in one leaf" in found.fields["message"]
    assert "GPUs 0" not in found.fields["message"]


def test_a_gang_waits_for_nodes_of_one_leaf_if_it_insists() -> None:
    nodes = [plain("n1"), plain("n2"), plain("n3", used=0xFF), plain("n4", used=0xFF)]
    busy = [held(1, "n3", 0xFF, 300), held(2, "n4", 0xFF, 900)]

    now = answer(book_of(reading(nodes, busy)), **GANG)
    insists = answer(book_of(reading(nodes, busy)), **GANG, **{"flag.locality": "leaf"})

    assert sorted(now.fields["nodes"].split(",")) == ["n1", "n2"]
    assert sorted(insists.fields["nodes"].split(",")) == ["n1", "n3"]
    assert told(insists)["state"] == "waiting"


def test_a_job_on_one_node_gets_one_where_it_can_start_now() -> None:
    found = answer(book_of(reading([plain("n1", used=0xFF), plain("n2")])), tres_per_node="gres/gpu:2")

    assert found.fields["nodes"] == "n2"


def test_a_job_on_one_node_that_has_to_wait_is_slurms() -> None:
    nodes = [plain("n1", used=0xFF), plain("n2", used=0x7F)]
    found = answer(book_of(reading(nodes, [held(1, "n1", 0xFF), held(2, "n2", 0x7F)])), tres_per_node="gres/gpu:2")

    assert (found.verb, "nodes" in found.fields, told(found)["state"]) == ("pass", False, "passed")


def test_parts_of_several_nodes_are_not_waited_for() -> None:
    """Slurm takes any GPUs of each node; a plan that knows places alone would keep the job from starting."""
    nodes = [plain("n1", used=0b1111), plain("n3", used=0b11110000)]
    found = answer(
        book_of(reading(nodes, [held(1, "n1", 0b1111), held(2, "n3", 0b11110000)])),
        tres_per_node="gres/gpu:4",
        min_nodes="2",
        max_nodes="2",
    )

    assert "nodes" not in found.fields


def test_a_model_counts_as_slurm_counts_it() -> None:
    nodes = [plain("n1", models=frozenset({"a100"})), plain("n2")]
    found = answer(book_of(reading(nodes)), tres_per_node="gres/gpu:h100:2")
    nowhere = answer(book_of(reading(nodes)), tres_per_node="gres/gpu:l40s:2")

    assert (found.fields["nodes"], told(found)["model"]) == ("n2", "h100")
    assert (nowhere.verb, "nodes" in nowhere.fields, "urgent" in nowhere.fields) == ("pass", False, False)


def test_a_job_that_names_no_model_is_not_sent_to_another_model_than_slurms_choice() -> None:
    """Limits and bills count by model."""
    nodes = [plain("n1", models=frozenset({"a100"})), plain("n2")]
    without_models = [plain("n1", models=frozenset()), plain("n2", models=frozenset())]

    assert "nodes" not in answer(book_of(reading(nodes)), tres_per_node="gres/gpu:2").fields
    assert "nodes" in answer(book_of(reading(without_models)), tres_per_node="gres/gpu:2").fields


@pytest.mark.parametrize(
    "fields",
    [
        {"tres_per_node": "gres/gpu:2", "req_nodes": "n1"},
        {"tres_per_node": "gres/gpu:2", "array": "0-3"},
        {"tres_per_node": "gres/gpu:2", "het": "0"},
        {"tres_per_node": "gres/gpu:2", "num_tasks": "2"},
        {"tres_per_node": "gres/gpu:2", "min_nodes": "1", "max_nodes": "2"},
        {"tres_per_node": "gres/gpu:2", "held": "1"},
        {"tres_per_node": "gres/gpu:2", "dependency": "1"},
        {"tres_per_node": "gres/gpu:2", "reservation": "r"},
        {"tres_per_node": "gres/gpu:2", "flag.gpu-tier": "guaranteed"},
        {"tres_per_node": "gres/gpu:2", "flag.gpu-share": "50"},
        {"tres_per_node": "gres/gpu:2,gres/nic:1"},
        {"tres_per_node": "gres/gpu:16"},
        {"tres_per_job": "gres/gpu:2"},
        {"tres_per_node": "gres/gpu:h100:2", "tres_per_job": "gres/gpu:a100:2"},
    ],
    ids=str,
)
def test_what_slurm_has_to_settle_is_left_to_it(fields: dict[str, str]) -> None:
    found = answer(book_of(reading([plain("n1"), plain("n2")])), **fields)

    assert (found.verb, "nodes" in found.fields, told(found)["state"]) == ("pass", False, "passed")


def test_nothing_is_refused_but_a_wrong_flag() -> None:
    opened = book_of(reading([plain("n1"), plain("n2")]), {"n1": "l40s", "n2": "l40s"})

    assert answer(opened, tres_per_node="gres/gpu:2", **{"flag.locality": "nvlink"}).verb == "pass"
    assert answer(opened, tres_per_node="gres/gpu:2", **{"flag.locality": "nearby"}).verb == "refuse"


def test_a_gang_is_not_kept_for_nodes_while_others_are_not_described() -> None:
    """On a node without a topology file it may start sooner."""
    nodes = [plain("n1", used=0xFF), plain("n3", used=0xFF), plain("n2"), plain("n4")]
    look = reading(nodes, [held(1, "n1", 0xFF), held(2, "n3", 0xFF)])

    assert "nodes" not in answer(book_of(look, {"n1": "h100", "n3": "h100"}), **GANG).fields


def pinned(job_id: int, gpus: int, *names: str, **facts: object) -> JobFacts:
    """A waiting job that is pinned to nodes alone."""
    positions = [place for place in range(8) if gpus >> place & 1]
    values = {
        "state": "placed",
        "id": f"{job_id:016x}",
        "n": str(len(names)),
        "k": str(len(positions)),
        "cpus": "1",
        "mem": "100",
        "nodes": ",".join(names),
        "gpus": ",".join(map(str, positions)),
        "seats": "0",
        "layout": "plain",
    }
    more: dict[str, object] = {"state": "PENDING", "nodes": (), "start": None, "end": None, "reason": "Resources"}
    more |= {"segment": values, "required": names, "count": len(names)}
    return running(job_id, names[0], 0, 0, **{**more, **facts})


def planned(plan: Plan, look: Reading) -> list[Change]:
    return plan.replan(book_of(look), NodePins().shown(numbered(look)).jobs)


def test_other_gpus_of_its_node_do_too() -> None:
    """Slurm gave the planned GPUs to another job."""
    look = reading([plain("n1", used=0b11), plain("n2")], [held(1, "n1", 0b11), pinned(2, 0b11, "n1")])
    plan = Plan(create("berth"), Settings())

    assert planned(plan, look) == []
    assert plan.queue[0].last.start == 0.0


def test_a_job_whose_node_is_taken_goes_where_it_can_start_and_else_back_to_slurm() -> None:
    taken = [held(1, "n1", 0xFF), pinned(2, 0b11, "n1")]
    elsewhere = planned(Plan(create("berth"), Settings()), reading([plain("n1", used=0xFF), plain("n2")], taken))
    nowhere = planned(Plan(create("berth"), Settings()), reading([plain("n1", used=0xFF)], taken))

    assert [type(change) for change in elsewhere] == [Move]
    assert isinstance(elsewhere[0], Move)
    assert elsewhere[0].berth.names == ("n2",)
    assert [type(change) for change in nowhere] == [Release]


@pytest.mark.parametrize("reason", ["Resources", "Priority", "QOSMaxJobsPerUserLimit"])
def test_a_job_that_does_not_start_on_its_node_is_soon_slurms(reason: str) -> None:
    plan = Plan(create("berth"), Settings())
    nodes = [plain("n1"), plain("n2")]
    first = planned(plan, reading(nodes, [pinned(2, 0b11, "n1", reason=reason)]))
    later = planned(plan, reading(nodes, [pinned(2, 0b11, "n1", reason=reason)], at=NOW + 16))

    if reason.startswith("QOS"):
        assert [type(change) for change in first] == [Release]
    else:
        assert first == []
        assert [change.reason for change in later] == ["it did not start in 15 s on a place that looks free"]


@pytest.mark.parametrize("change", [{"partition": "other"}, {"features": "big"}, {"excluded": ("n1",)}])
def test_a_job_whose_node_is_not_for_it_any_more_is_slurms(change: dict[str, object]) -> None:
    """Its user, or its last failure, has changed where it may run, and nothing else is free."""
    nodes = [plain("n1"), plain("n2", used=0xFF)]
    look = reading(nodes, [held(1, "n2", 0xFF), pinned(2, 0b11, "n1", **change)])
    look = replace(look, partitions=(*look.partitions, PartitionFacts("other", time_limit=3_600)))

    assert [type(found) for found in planned(Plan(create("berth"), Settings()), look)] == [Release]


def test_a_job_whose_node_is_not_for_it_any_more_keeps_its_pin_while_no_moves_are_left() -> None:
    nodes = [plain("n1", used=0xFF), plain("n2"), plain("n3")]
    moved = pinned(2, 0b11, "n1", priority=9)
    look = reading(nodes, [held(1, "n1", 0xFF), moved, pinned(3, 0b11, "n2", excluded=("n2",))])
    changes = planned(Plan(create("berth"), Settings(most_moves=1)), look)

    assert [(change.job.id, type(change)) for change in changes] == [(2, Move)]


def test_a_gang_keeps_its_nodes_until_they_are_free() -> None:
    nodes = [plain("n1", used=0xFF), plain("n3", used=0xFF), plain("n2", used=0xFF), plain("n4")]
    jobs = [held(1, "n1", 0xFF, 300), held(2, "n3", 0xFF, 300), held(3, "n2", 0xFF, 900)]
    look = reading(nodes, [*jobs, pinned(4, 0xFF, "n1", "n3")])
    plan = Plan(create("berth"), Settings())

    assert planned(plan, look) == []
    assert plan.queue[0].last.start == NOW + 300


def test_a_pin_of_another_layout_is_taken_back_and_nobody_elses_job_is_touched() -> None:
    came = pinned(3, 0b11, "n1")
    came = replace(came, required=(), plan=JobPlan({"state": "passed", "asked": "tres_per_node:gres/gpu:2"}))
    look = reading([node("n1"), node("n2")], [pinned(2, 0b11, "n1")])
    exact = Plan(create("berth"), Settings()).replan(open_book(fleet(look), look), look.jobs)

    assert [type(change) for change in exact] == [Release]
    assert planned(Plan(create("berth"), Settings()), reading([plain("n1")], [came])) == []


def text_of(values: dict[str, str], **more: str) -> JobText:
    texts = {"required": "n1", "tres_per_node": "gres/gpu:h100:2", "tres_per_job": "", **more}
    return JobText(7, "PENDING", 1000, segment.put("site note", values), "own", **texts)


def test_a_pin_and_its_end_change_nodes_and_the_segment_alone() -> None:
    values = dict(pinned(7, 0b11, "n1").known.texts)
    written = changes.pin(text_of(values), Pin(("n2",), (0, 1), seats=False, plan=JobPlan({**values, "nodes": "n2"})))
    back = changes.release(text_of(values), "why")

    assert set(written) == {"req_nodes", "admin_comment"}
    assert written["req_nodes"] == "n2"
    assert back is not None
    assert set(back) == {"req_nodes", "admin_comment"}
    assert (back["req_nodes"], back["admin_comment"].startswith("site note[berth/1 ")) == ("", True)
    assert changes.pinned([pinned(7, 0b11, "n1")]) == [7]
