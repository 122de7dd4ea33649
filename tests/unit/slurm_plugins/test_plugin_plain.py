# SPDX-License-Identifier: Apache-2.0
"""The job_submit plugin where GPUs have no types of their own (`layout = "plain"`): what it changes, and what not."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

from policy.daemon.write.pinned import PINNED
from policy.formats import wire
from tests.unit.plugin_whole import Plugin, each_slurm, loaded, reply

pytestmark = each_slurm
users = count(40_000)


@pytest.fixture
def plugin(headers: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Plugin]:
    with loaded(headers, tmp_path, monkeypatch, 'layout = "plain"') as made:
        yield made


def left(request: wire.Message) -> bytes:
    values = wire.words({"state": "passed"})
    return reply("pass", request, segment=values, message="left to Slurm", node_gpus="8")


def tres(fields: object) -> dict[str, str]:
    assert isinstance(fields, dict)
    return {name: value for name, value in fields.items() if name.startswith("tres_per_")}


@pytest.mark.parametrize("asked", ["gres/gpu:2", "gres/gpu:h100:2", "gres/gpu=4"])
@pytest.mark.parametrize("nodes", [{}, {"min_nodes": "1"}, {"min_nodes": "1", "max_nodes": "1", "num_tasks": "4"}])
def test_gpus_of_one_node_are_asked_for_by_job(plugin: Plugin, asked: str, nodes: dict[str, str]) -> None:
    with plugin.berthd(left):
        said = plugin.submit(next(users), tres_per_node=asked, **nodes)

    assert said.rc == 0
    assert tres(dict(said.fields)) == {"tres_per_job": asked}
    assert (said.fields["min_nodes"], said.fields["max_nodes"]) == ("1", "1")


@pytest.mark.parametrize("least", [None, "1", "3"])
def test_not_where_a_node_may_have_fewer(plugin: Plugin, least: str | None) -> None:
    """Asked by job, it would wait for ever on Slurm 26.05, which refuses it by node."""
    told = {} if least is None else {"node_gpus": least}
    with plugin.berthd(lambda request: reply("pass", request, segment="state=passed", **told)):
        said = plugin.submit(next(users), tres_per_node="gres/gpu:4")

    assert tres(dict(said.fields)) == {"tres_per_node": "gres/gpu:4"}


def test_not_without_berthd(plugin: Plugin) -> None:
    said = plugin.submit(next(users), tres_per_node="gres/gpu:2")

    assert (said.rc, tres(dict(said.fields))) == (0, {"tres_per_node": "gres/gpu:2"})


@pytest.mark.parametrize(
    "fields",
    [
        {"tres_per_node": "gres/gpu:1"},
        {"tres_per_node": "gres/gpu:2", "min_nodes": "2", "max_nodes": "2"},
        {"tres_per_node": "gres/gpu:2", "min_nodes": "1", "max_nodes": "2"},
        {"tres_per_node": "gres/gpu:2", "num_tasks": "2"},
        {"tres_per_node": "gres/gpu:2", "script": ""},
        {"tres_per_node": "gres/gpu:2", "cpus_per_tres": "gres/gpu:4"},
        {"tres_per_node": "gres/gpu:2", "mem_per_tres": "gres/gpu:400"},
        {"tres_per_node": "gres/gpu:2", "ntasks_per_tres": "2"},
        {"tres_per_node": "gres/gpu:2", "tres_bind": "gres/gpu:closest"},
        {"tres_per_node": "gres/gpu:2", "contiguous": "1"},
        {"tres_per_node": "gres/gpu:2", "tres_per_task": "gres/gpu:1", "num_tasks": "2"},
        {"tres_per_node": "gres/gpu:2,gres/nic:1"},
        {"tres_per_node": "gres/gpu:h100:1,gres/gpu:a100:1"},
        {"tres_per_node": "gres/gpu:2,gres/shard:4"},
        {"tres_per_node": "gres/gpu:2.5"},
        {"tres_per_task": "gres/gpu:2", "num_tasks": "2"},
        {"tres_per_job": "gres/gpu:2"},
        {"tres_per_socket": "gres/gpu:2"},
    ],
    ids=str,
)
def test_every_other_request_stays_as_it_is(plugin: Plugin, fields: dict[str, str]) -> None:
    with plugin.berthd(left):
        said = plugin.submit(next(users), **fields)

    assert said.rc == 0
    assert tres(dict(said.fields)) == {name: value for name, value in fields.items() if name.startswith("tres_per_")}
    assert "features" not in said.fields


def test_a_model_stays_in_the_request_and_becomes_no_feature_and_no_licence(plugin: Plugin) -> None:
    plugin.site_licenses("berth_h100:8")
    with plugin.berthd(left):
        said = plugin.submit(next(users), tres_per_node="gres/gpu:h100:1", licenses="solver:1")

    assert (said.fields["tres_per_node"], said.fields["licenses"]) == ("gres/gpu:h100:1", "solver:1")
    assert "features" not in said.fields


def on_nodes(request: wire.Message, /, nodes: str = "n2", **more: str) -> bytes:
    values = wire.words({"state": "placed", "nodes": nodes, "layout": "plain"})
    return reply("pass", request, segment=values, message=nodes, nodes=nodes, node_gpus="8", **more)


def test_a_place_on_one_node_changes_its_node_list_alone(plugin: Plugin) -> None:
    with plugin.berthd(on_nodes):
        said = plugin.submit(next(users), tres_per_node="gres/gpu:h100:2")

    assert (said.rc, said.fields["req_nodes"]) == (0, "n2")
    assert tres(dict(said.fields)) == {"tres_per_job": "gres/gpu:h100:2"}
    assert "layout=plain" in said.fields["admin_comment"]
    assert not {"exc_nodes", "extra", "licenses"} & said.fields.keys()


def test_a_gang_keeps_its_request(plugin: Plugin) -> None:
    asked = {"tres_per_node": "gres/gpu:8", "min_nodes": "2", "max_nodes": "2"}
    with plugin.berthd(lambda request: on_nodes(request, "n2,n1")):
        said = plugin.submit(next(users), **asked)

    assert said.fields["req_nodes"] == "n2,n1"
    assert {key: said.fields[key] for key in asked} == asked


@pytest.mark.parametrize(
    ("nodes", "asked"),
    [
        ("n1,n2", {}),
        ("n1", {"min_nodes": "2", "max_nodes": "2"}),
        ("n1", {"req_nodes": "n3"}),
        ("n1", {"min_nodes": "1", "max_nodes": "2"}),
        ("n1", {"num_tasks": "2"}),
        ("nowhere", {}),
        ("n1,n1", {"min_nodes": "2", "max_nodes": "2"}),
    ],
    ids=str,
)
def test_nodes_that_are_not_as_asked_drop_the_whole_reply(plugin: Plugin, nodes: str, asked: dict[str, str]) -> None:
    with plugin.berthd(lambda request: on_nodes(request, nodes)):
        said = plugin.submit(next(users), tres_per_node="gres/gpu:2", **asked)

    assert (said.rc, said.fields.get("req_nodes")) == (0, asked.get("req_nodes"))
    assert tres(dict(said.fields)) == {"tres_per_node": "gres/gpu:2"}


def test_a_users_change_takes_the_planned_nodes_from_a_job(plugin: Plugin) -> None:
    plugin.list({7: PINNED})

    gpus = plugin.modify("JobId=7", next(users), tres_per_node="gres/gpu:4")
    own = plugin.modify("JobId=7", next(users), req_nodes="n3")
    other = plugin.modify("JobId=7", next(users), partition="gpu")
    unplanned = plugin.modify("JobId=8", next(users), tres_per_node="gres/gpu:4")

    assert [said.rc for said in (gpus, own, other, unplanned)] == [0, 0, 0, 0]
    assert (gpus.fields["req_nodes"], own.fields["req_nodes"]) == ("", "n3")
    assert "req_nodes" not in other.fields
    assert "req_nodes" not in unplanned.fields


@pytest.mark.parametrize("asked", ["gres/gpu:g0:1", "gres/shard:2", "gres/gpu:a100:1,gres/gpu:h100:1"])
def test_nothing_is_refused_that_slurm_takes(plugin: Plugin, asked: str) -> None:
    with plugin.berthd(left):
        assert plugin.submit(next(users), tres_per_node=asked).rc == 0


def test_a_change_of_the_gpus_by_node_replaces_those_by_job(plugin: Plugin) -> None:
    by_node = plugin.modify("JobId=7", next(users), tres_per_node="gres/gpu:4")
    both = plugin.modify("JobId=7", next(users), tres_per_node="gres/gpu:4", tres_per_job="gres/gpu:8")
    other = plugin.modify("JobId=7", next(users), tres_per_node="gres/nic:1")

    assert [said.rc for said in (by_node, both, other)] == [0, 0, 0]
    assert by_node.fields["tres_per_job"] == ""
    assert both.fields["tres_per_job"] == "gres/gpu:8"
    assert "tres_per_job" not in other.fields
