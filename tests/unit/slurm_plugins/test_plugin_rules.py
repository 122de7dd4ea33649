# SPDX-License-Identifier: Apache-2.0
"""Rules of a site that no submission and no change passes by: parts of GPUs, tiers, and whose a pre-flight is."""

import itertools
from collections.abc import Iterator
from functools import partial
from itertools import count
from pathlib import Path

import pytest

from policy.daemon.write.pinned import (
    ANY_JOB,
    BY_PARTITION,
    BY_QOS,
    ELSEWHERE,
    NO_GPUS,
    PART,
    PINNED,
    UNCHECKED,
)
from policy.formats import wire
from tests.unit.plugin_whole import Plugin, each_slurm, loaded, place, refused

pytestmark = each_slurm
users = count(30_000)
"""The plugin remembers users between two tests."""


@pytest.fixture
def plugin(headers: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Plugin]:
    with loaded(headers, tmp_path, monkeypatch, 'skip_partitions = "plain,cpu"') as made:
        yield made


PARTS = ("gres/shard:1", "gres/shard:g0:1", "gres/shard", "gres/shard=5", "gres/gpu:1,gres/shard:g7:100", "gres/seat:1")
IN_FIELDS = ("tres_per_job", "tres_per_node", "tres_per_socket", "tres_per_task", "cpus_per_tres", "mem_per_tres")


@pytest.mark.parametrize("more", [{}, {"array_inx": "0-3"}, {"het_job_offset": "1"}, {"script": ""}], ids=str)
def test_in_a_skipped_partition_no_part_of_a_gpu_is_had_for_a_shards_price(
    plugin: Plugin, more: dict[str, str]
) -> None:
    """berthd is not there: the plugin alone decides."""
    for partition, field, tres in itertools.product(("plain", "cpu,plain"), IN_FIELDS, PARTS):
        said = plugin.submit(next(users), partition=partition, **{field: tres}, **more)
        assert (refused(said), "not asked for by hand" in said.text) == (True, True), (field, tres)
        assert plugin.submit(0, partition=partition, **{field: tres}, **more).rc == 0
    plugin.list({18: ELSEWHERE, 19: ELSEWHERE | UNCHECKED})
    for record, field, tres in itertools.product(("JobId=18", "JobId=19", "JobId=20"), IN_FIELDS, PARTS):
        assert refused(plugin.modify(record, next(users), **{field: tres})), (record, field, tres)
        assert refused(plugin.modify(record, next(users), partition="plain", **{field: tres})), (record, field, tres)


@pytest.mark.parametrize("licences", ["berth_h100:64", "solver,BERTH_h100", "solver|berth_h100@here=2"])
def test_nobody_takes_the_licences_that_count_gpus(plugin: Plugin, licences: str) -> None:
    """One job without a GPU could hold them all. Slurm takes licences for each task too (`--tres-per-task`)."""
    plugin.site_licenses("berth_h100:64,solver:8")
    for fields in ({"licenses": licences}, {"tres_per_task": f"cpu=1,license/{licences}"}):
        assert refused(plugin.submit(next(users), num_tasks="9", **fields)), fields
        assert refused(plugin.modify("JobId=18", next(users), **fields)), fields
        assert plugin.submit(0, **fields).rc == 0
    assert plugin.submit(next(users), tres_per_task="cpu=1,license/solver:1").rc == 0


def test_a_site_may_have_shards_of_its_own_in_skipped_partitions_and_nowhere_else(
    headers: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hook = 'skip_partitions = "plain,cpu"\nskipped_shards = "site"'
    with loaded(headers, tmp_path, monkeypatch, hook) as plugin:
        for tres in PARTS:
            here = plugin.submit(next(users), partition="plain", tres_per_node=tres)
            assert refused(here) == ("seat" in tres), tres
            for partition in ("gpu", "gpu,plain"):
                assert refused(plugin.submit(next(users), partition=partition, tres_per_node=tres)), tres
        user = next(users)
        plugin.submit(user, partition="plain", tres_per_node="gres/shard:1")
        assert refused(plugin.modify("JobId=18", user, partition="gpu"))


def test_a_part_that_berth_gave_stays_in_berths_partitions(plugin: Plugin) -> None:
    plugin.list({18: PART, 19: PART | PINNED, 20: PINNED})
    for record in ("JobId=18", "JobId=19"):
        said = plugin.modify(record, next(users), partition="plain")
        assert (refused(said), "has a part of a GPU or a seat" in said.text) == (True, True)
        assert plugin.modify(record, next(users), partition="other").rc == 0
        assert plugin.modify(record, 0, partition="plain").rc == 0
    assert plugin.modify("JobId=20", next(users), partition="plain").rc == 0
    user = next(users)
    with plugin.berthd(partial(place, share="20", way="mps")):
        assert plugin.submit(user, {"gpu-share": "20"}, tres_per_job="gres/gpu:1").rc == 0
    said = plugin.modify("JobId=21", user, partition="plain")
    assert (refused(said), "and the partition of job 21 cannot change yet" in said.text) == (True, True)
    assert plugin.modify("JobId=21", user, partition="other").rc == 0


@pytest.mark.parametrize(
    ("kinds", "change", "taken"),
    [
        (BY_PARTITION, {"partition": "low"}, False),
        (BY_PARTITION, {"partition": "plain,low"}, False),
        (BY_PARTITION, {"partition": "plain"}, True),
        (BY_PARTITION, {"qos": "high"}, True),
        (BY_QOS, {"qos": "high"}, False),
        (BY_QOS, {"account": "others"}, False),
        (BY_QOS, {"partition": "low"}, True),
        (BY_PARTITION | BY_QOS, {"time_limit": "5"}, True),
        (NO_GPUS, {"tres_per_node": "gres/gpu:1"}, False),
        (NO_GPUS, {"partition": "low", "qos": "high"}, True),
        (0, {"partition": "low", "qos": "high", "account": "others"}, True),
    ],
)
def test_no_change_takes_a_tier_where_the_site_does_not_allow_it(
    plugin: Plugin, kinds: int, change: dict[str, str], taken: bool
) -> None:
    plugin.list({18: kinds} if kinds else {})
    said = plugin.modify("JobId=18", next(users), **change)
    assert (said.rc == 0, "that this site does not allow everywhere" in said.text) == (taken, not taken)
    assert plugin.modify("JobId=18", 0, **change).rc == 0
    assert plugin.modify("JobId=17", next(users), **change).rc == 0


@pytest.mark.parametrize("asked", [{"tres_per_job": "gres/gpu:1"}, {"time_limit": "9"}])
def test_nor_is_anyone_quicker_than_the_list_of_tiers(plugin: Plugin, asked: dict[str, str]) -> None:
    user = next(users)
    plugin.submit(user, **asked)
    changes = ({"partition": "low"}, {"qos": "high"}, {"tres_per_node": "gres/gpu:1"})
    for change in changes:
        assert plugin.modify("JobId=19", user, **change).rc == 0, "this site has no rule"
    plugin.list({ANY_JOB: BY_PARTITION | BY_QOS | NO_GPUS, 18: PINNED})
    for change in changes:
        said = plugin.modify("JobId=19", user, **change)
        assert (refused(said), "try again in half a minute" in said.text) == (True, True), change
        assert plugin.modify("JobId=19", next(users), **change).rc == 0
    assert plugin.modify("JobId=18", user, partition="low", qos="high").rc == 0


def test_a_preflight_is_what_the_job_depends_on_first(plugin: Plugin) -> None:
    asked: list[wire.Message] = []
    with plugin.berthd(asked.append):
        for dependency in (
            "",
            "afterany:8",
            "afterany:71",
            "afterok:7",
            "afterany:8,afterany:7",
            "singleton,afterany:7",
        ):
            plugin.submit(
                next(users), tres_per_job="gres/gpu:1", spank_job_env="BERTH_PREFLIGHT_JOB=7", dependency=dependency
            )
        assert [one.fields.get("preflight") for one in asked] == [None] * 6
        for dependency in ("afterany:7", "afterany:7,afterok:8:9"):
            plugin.submit(
                next(users), tres_per_job="gres/gpu:1", spank_job_env="BERTH_PREFLIGHT_JOB=7", dependency=dependency
            )
    assert [one.fields.get("preflight") for one in asked[6:]] == ["7", "7"]
