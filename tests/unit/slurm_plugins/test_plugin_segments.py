# SPDX-License-Identifier: Apache-2.0
"""Segments of topology/block in a job that berthd leaves to Slurm."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

from policy.formats import wire
from tests.unit.plugin_whole import Plugin, each_slurm, loaded, reply

pytestmark = each_slurm
users = count(50_000)
GANG = {"tres_per_node": "gres/gpu:4", "min_nodes": "16", "max_nodes": "16"}


@pytest.fixture
def plugin(headers: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Plugin]:
    with loaded(headers, tmp_path, monkeypatch, "") as made:
        yield made


def segments_of(plugin: Plugin, size: str, **fields: str) -> str | None:
    def left(request: wire.Message) -> bytes:
        return reply("pass", request, segment=wire.words({"state": "passed"}), segment_size=size)

    with plugin.berthd(left):
        said = plugin.submit(next(users), {"group": "16"}, **fields)
    assert said.rc == 0
    assert {name: said.fields[name] for name in fields if name != "segment_size"}.items() <= GANG.items()
    return said.fields.get("segment_size")


@pytest.mark.parametrize("size", ["1", "4", "16"])
def test_a_job_that_slurm_places_gets_segments(plugin: Plugin, size: str) -> None:
    assert segments_of(plugin, size, **GANG) == size


@pytest.mark.parametrize("size", ["0", "3", "17", "x", "65536"])
def test_not_what_its_nodes_cannot_be_cut_into(plugin: Plugin, size: str) -> None:
    assert segments_of(plugin, size, **GANG) is None


def test_a_users_own_segments_stay(plugin: Plugin) -> None:
    assert segments_of(plugin, "4", segment_size="8", **GANG) == "8"


def test_not_where_slurm_settles_the_number_of_nodes(plugin: Plugin) -> None:
    assert segments_of(plugin, "1", tres_per_node="gres/gpu:4") is None
