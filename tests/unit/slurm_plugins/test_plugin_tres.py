# SPDX-License-Identifier: Apache-2.0
"""GPUs, shards and seats in every field in which Slurm reads GRES: what the whole plugin makes of them."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

from policy.formats import wire
from tests.unit.plugin_whole import USER, Plugin, Said, each_slurm, loaded, place, refused

pytestmark = each_slurm
REQUESTS = ("tres_per_job", "tres_per_node", "tres_per_socket", "tres_per_task")
ABOUT = ("cpus_per_tres", "mem_per_tres")
"""They ask for nothing, but Slurm makes a GRES of the job of each that they name."""
users = count(40_000)
"""The plugin remembers users between two tests."""


@pytest.fixture
def plugin(headers: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Plugin]:
    with loaded(headers, tmp_path, monkeypatch, 'skip_partitions = "plain"') as made:
        yield made


def both(plugin: Plugin, fields: dict[str, str], user: int = USER) -> tuple[Said, Said]:
    return plugin.submit(user, **fields), plugin.modify("JobId=18", user, **fields)


@pytest.mark.parametrize("field", [*REQUESTS, *ABOUT])
@pytest.mark.parametrize(
    "hidden",
    [
        *("xgres/seat:g0:1", "xgres/shard:g0:5", "xgres/gpu:g1:1", "gres/nic:1,xgres/gpu:1", "gresgpu:1"),
        *("license/gresseat:1", "GRES/gpu:1", "gres:gpu:1", "gres/5,gres/gpu:1", "gres/nic:1;gres/shard:1"),
    ],
)
def test_gpus_in_a_spelling_of_which_only_slurm_knows_the_sense_are_refused(
    plugin: Plugin, field: str, hidden: str
) -> None:
    asked = {} if field in REQUESTS else {"tres_per_job": "gres/gpu:1"}
    for said in both(plugin, {**asked, field: hidden}):
        assert (refused(said), "gres/NAME at the start" in said.text) == (True, True)
    assert refused(plugin.submit(next(users), partition="plain", **{**asked, field: hidden}))


@pytest.mark.parametrize("field", [*REQUESTS, *ABOUT])
@pytest.mark.parametrize(
    ("own", "why"),
    [
        ("gres/shard:5", "shard and seat are not asked for by hand"),
        ("gres/nic:1,gres/seat:g0:1", "shard and seat are not asked for by hand"),
        ("gres/gpu:g0:1", "GPUs are not chosen by position"),
    ],
)
def test_what_users_may_not_name_they_name_in_no_field(plugin: Plugin, field: str, own: str, why: str) -> None:
    asked = {} if field in REQUESTS else {"tres_per_job": "gres/gpu:1"}
    for said in both(plugin, {**asked, field: own}):
        assert (refused(said), why in said.text) == (True, True)


def test_an_administrator_may_and_the_job_stays_as_it_is(plugin: Plugin) -> None:
    with plugin.berthd(place) as came:
        for text in ("gres/gpu:g0:1", "gres/seat:g0:1", "xgres/gpu:1", "gresgpu:1"):
            fields = {"tres_per_job": "gres/gpu:1", "tres_per_node": text}
            assert plugin.submit(0, **fields).fields == fields
            assert plugin.submit(0, cpus_per_tres=text, tres_per_job="gres/gpu:1").fields["cpus_per_tres"] == text
    assert came == []


@pytest.mark.parametrize(
    ("field", "text"),
    [
        ("tres_bind", "gres/gpu:closest"),
        ("tres_bind", "gres/gpu:map:0,1"),
        ("tres_freq", "gpu:high,memory=low"),
        ("licenses", "seat:1,gpu:2"),
    ],
)
def test_fields_that_give_a_job_no_gres_may_name_them(plugin: Plugin, field: str, text: str) -> None:
    with plugin.berthd(place):
        for fields in ({field: text}, {field: text, "tres_per_job": "gres/gpu:1"}):
            assert plugin.submit(**fields).rc == 0
        assert plugin.modify("JobId=18", **{field: text}).rc == 0


@pytest.mark.parametrize("text", ["gpu:2", "gres//gpu:2", "gres/GPU:2", "gres/nic:gpu:2", "license/seat:2"])
def test_what_is_no_gpu_for_slurm_is_none_for_berth(plugin: Plugin, text: str) -> None:
    asked: list[wire.Message] = []
    with plugin.berthd(asked.append):
        said = plugin.submit(tres_per_node=text)
    assert (said.rc, said.text, asked, said.fields) == (0, "", [], {"tres_per_node": text})


@pytest.mark.parametrize(
    ("text", "gpus"),
    [("gres/gpu:1,gres/gpu:2", "2"), ("gres/gpu:2,gres/gpu:0", "2"), ("gres/gpu=1k", "1024")],
)
def test_berthd_hears_the_number_that_slurm_reads(plugin: Plugin, text: str, gpus: str) -> None:
    asked: list[wire.Message] = []
    with plugin.berthd(asked.append):
        plugin.submit(tres_per_job=text)
    assert [request.fields["gpus"] for request in asked] == [gpus]


@pytest.mark.parametrize("field", ABOUT)
def test_a_model_leaves_what_is_said_about_its_gpus_too(plugin: Plugin, field: str) -> None:
    asked: list[wire.Message] = []
    with plugin.berthd(asked.append):
        said = plugin.submit(**{"tres_per_job": "gres/gpu:a100:1", field: "gres/gpu:a100:4"})
    assert (said.fields["tres_per_job"], said.fields[field]) == ("gres/gpu:1", "gres/gpu:4")
    assert [request.fields[field] for request in asked] == ["gres/gpu:4"]


@pytest.mark.parametrize("model", ["1080ti", "2x"])
def test_a_model_may_begin_with_a_digit(plugin: Plugin, model: str) -> None:
    with plugin.berthd(lambda _: None):
        said = plugin.submit(tres_per_job=f"gres/gpu:{model}")
    assert (said.rc, said.fields["tres_per_job"], said.fields["features"]) == (0, "gres/gpu:1", model)
