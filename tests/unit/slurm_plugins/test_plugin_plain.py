"""The job_submit plugin where GPUs have no types of their own (`layout = "plain"`): what it changes, and what not."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

from policy.formats import segment, wire
from tests.unit.plugin_whole import Plugin, each_slurm, loaded, reply

pytestmark = each_slurm
users = count(40_000)


@pytest.fixture
def plugin(headers: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Plugin]:
    with loaded(headers, tmp_path, monkeypatch, 'layout = "plain"') as made:
        yield made


def left(request: wire.Message) -> bytes:
    values = segment.body({"state": "passed"})
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
