# SPDX-License-Identifier: Apache-2.0
"""GPUs counted by model: what a place writes into a job's licences, and what a user may not."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path

import pytest

from policy.cli.doctor.models import by_model, nothing
from policy.daemon.write.pinned import COUNTED, PINNED, listed
from policy.formats import segment, wire
from policy.formats.errors import SlurmError
from policy.formats.job_plan import JobPlan
from policy.formats.slurm_facts import JobText
from policy.placement.berth import BerthPolicy
from policy.plan.ledger.tracker import open_book
from policy.request import counted
from policy.request.settings import Settings
from policy.slurm import changes
from policy.slurm.interface import Pin
from tests.unit.deciding import decide
from tests.unit.plugin_whole import USER, Plugin, each_slurm, loaded
from tests.unit.policy_world import NOW, node, reading, running, submit
from tests.unit.policy_world import fleet as fleet_of

SITE = "solver:1,berth_h100:16,berth_v100=8"
NODES = [
    node(f"n{n}", features=frozenset({model, "rack1"}), shards=8)
    for n, model in ((1, "v100"), (2, "h100"), (3, "h100"))
]
users = count(70_000)
"""The plugin remembers users between two tests."""


def test_the_models_are_what_the_licences_of_the_site_are_called() -> None:
    assert counted.models(SITE) == {"h100", "v100"}
    assert counted.models("solver:1") == counted.models("") == counted.models("(null)") == frozenset()


def test_a_place_is_counted_on_each_of_its_nodes() -> None:
    fleet = replace(fleet_of(reading(NODES)), counted=frozenset({"h100", "v100", "a100"}))

    assert fleet.licences(["n2"], 4) == {"berth_h100": 4}
    assert fleet.licences(["n1", "n2", "n3"], 2) == {"berth_h100": 4, "berth_v100": 2}
    assert replace(fleet, counted=frozenset()).licences(["n2"], 4) == {}


@pytest.mark.parametrize(
    ("present", "wanted", "changed"),
    [
        ("", {"berth_h100": 2}, "berth_h100:2"),
        ("solver:1", {"berth_h100": 2, "berth_a100": 1}, "solver:1,berth_a100:1,berth_h100:2"),
        ("berth_h100:2", {"berth_h100": 2}, None),
        ("solver,berth_v100:2;x@y:3", {"berth_h100": 2}, "solver,x@y:3,berth_h100:2"),
        ("solver:1,berth_v100:2", {}, "solver:1"),
        ("berth_v100:2", {}, ""),
        ("a:1|b:1", {"berth_h100": 2}, None),
    ],
)
def test_a_new_place_leaves_the_users_own_licences(present: str, wanted: dict[str, int], changed: str | None) -> None:
    assert counted.change(present, wanted) == changed
    job = JobText(7, "PENDING", USER, "", "", "", "gres/gpu:1", "", licenses=present)
    pin = Pin(("n2",), (0,), seats=False, plan=JobPlan({"state": "placed"}), licenses=wanted)
    assert changes.pin(job, pin).get("licenses") == changed
    assert "licenses" not in changes.pin(job, replace(pin, licenses=None))
    placed = JobPlan({"state": "placed", "n": "1", "k": "1", "nodes": "n1", "gpus": "0"})
    had = replace(job, tres_per_node="gres/gpu:g0:1", required="n1", admin_comment=segment.put("", placed.texts))
    assert "licenses" not in (changes.release(had, "test") or {}), "else nothing would count it"


@pytest.mark.parametrize(
    ("fields", "licenses"),
    [
        ({"tres_per_node": "gres/gpu:4", "features": "h100"}, "berth_h100:4"),
        ({"tres_per_node": "gres/gpu:1", "features": "h100", "flag.gpu-share": "30"}, None),
        ({"tres_per_node": "gres/gpu:4", "min_nodes": "2", "max_nodes": "2", "features": "h100"}, "berth_h100:8"),
    ],
)
def test_berthd_tells_the_plugin_what_a_place_counts(fields: dict[str, str], licenses: str | None) -> None:
    look = reading(NODES)
    fleet = replace(fleet_of(look), counted=frozenset({"h100"}))

    decision = decide(submit(**fields), open_book(fleet, look), BerthPolicy(), Settings(), NOW)

    assert decision.fields.get("licenses") == licenses, decision


def test_jobs_whose_licences_count_their_gpus_are_listed() -> None:
    jobs = [running(1, "n1", 1, 60, licenses="berth_v100:1"), running(2, "n1", 2, 60, licenses="solver:1")]

    assert listed([], jobs) == {1: COUNTED}


# berth doctor


def printed(*command: str) -> bytes:
    """What Slurm prints on a site that limits and bills by model."""
    if command[0] == "scontrol":
        return b"PartitionName=gpu TRESBillingWeights=CPU=1,GRES/gpu:h100=10\nPartitionName=cpu\n"
    return (
        b"normal|gres/gpu=8|gres/gpu:g0=1\nlarge|gres/gpu:a100=4\n"
        if "qos" in command
        else b"one|ai|eve||gres/gpu:a100=1\n"
    )


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({}, ""),
        ({"AccountingStorageTRES": "cpu,gres/gpu,gres/gpu:g0"}, ""),
        ({"AccountingStorageTRES": "cpu,gres/gpu:H100"}, "AccountingStorageTRES: by model"),
        ({"PriorityWeightTRES": "cpu=1,GRES/gpu:h100=2"}, "PriorityWeightTRES: by model"),
        ({"Licenses": "solver:1"}, ""),
        ({"Licenses": "berth_h100:16"}, "add license/berth_h100 to AccountingStorageTRES"),
        ({"Licenses": "berth_h100:16", "AccountingStorageTRES": "license/berth_h100"}, ""),
        ({"Licenses": "berth_h100:8", "AccountingStorageTRES": "license/berth_h100"}, "8 of berth_h100 for 16 GPUs"),
        ({"Licenses": "berth_a100:8"}, "no GPU node has the feature a100"),
    ],
)
def test_doctor_tells_what_does_not_count(config: dict[str, str], says: str) -> None:
    found = by_model(config, NODES, nothing)
    assert (says in found) if says else (found == "")


def test_doctor_says_where_slurm_does_not_tell_the_limits() -> None:
    def away(*command: str) -> bytes:
        if command[0] == "sacctmgr":
            raise SlurmError("slurmdbd is away")
        return b""

    config = {"AccountingStorageType": "accounting_storage/slurmdbd"}
    assert by_model(config, NODES, away) == "limits by model are not known: slurmdbd is away"


def test_doctor_finds_limits_and_weights_by_model_wherever_they_stand() -> None:
    config = {"AccountingStorageType": "accounting_storage/slurmdbd"}
    found = by_model(config, NODES, printed)

    assert found.startswith("QOS large, partition gpu, user eve of account ai: by model")
    assert "gres/gpu:a100 by license/berth_a100, gres/gpu:h100 by license/berth_h100" in found
    assert by_model({}, NODES, printed).startswith("partition gpu: by model")


# The plugin


@pytest.fixture
def plugin(headers: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Plugin]:
    with loaded(headers, tmp_path, monkeypatch, 'skip_partitions = "plain"') as made:
        made.site_licenses(SITE)
        yield made


def place(request: wire.Message, licenses: str = "berth_h100:2") -> bytes:
    fields = {"nodes": "n1", "gpus": "2,3", "seats": "1", "segment": wire.words({"state": "placed", "id": "0"})}
    return wire.encode("place", {"nonce": request.fields["nonce"], **fields, "licenses": licenses})


@each_slurm
@pytest.mark.parametrize(
    ("own", "got"), [(None, "berth_h100:2"), ("solver:1", "solver:1,berth_h100:2"), ("a:1|b:1", "a:1|b:1")]
)
def test_a_place_says_in_licences_what_it_counts(plugin: Plugin, own: str | None, got: str) -> None:
    with plugin.berthd(place):
        said = plugin.submit(tres_per_job="gres/gpu:2", **({"licenses": own} if own else {}))
    assert (said.rc, said.fields["licenses"], said.fields["req_nodes"]) == (0, got, "n1")


def leave(request: wire.Message, licenses: str = "berth_h100:2") -> bytes:
    body = wire.words({"state": "later", "id": "0", "open": "1"})
    return wire.encode("pass", {"nonce": request.fields["nonce"], "segment": body, "licenses": licenses})


@each_slurm
def test_a_job_that_slurm_may_spread_over_nodes_of_one_model_is_counted(plugin: Plugin) -> None:
    with plugin.berthd(leave):
        said = plugin.submit(tres_per_job="gres/gpu:2", licenses="solver:1")
    assert (said.rc, said.fields["licenses"]) == (0, "solver:1,berth_h100:2")
    with plugin.berthd(partial(leave, licenses="berth_a100:2")):
        said = plugin.submit(tres_per_job="gres/gpu:2")
    assert (said.rc, "licenses" in said.fields) == (0, False)


@each_slurm
@pytest.mark.parametrize(
    "licenses", ["berth_a100:2", "solver:1", "berth_h100", "berth_h100:2|berth_v100:1", "berth_h100:x", "berth_h100:2 "]
)
def test_a_reply_with_licences_that_the_site_does_not_count_is_dropped(plugin: Plugin, licenses: str) -> None:
    with plugin.berthd(partial(place, licenses=licenses)):
        said = plugin.submit(tres_per_job="gres/gpu:2")
    assert (said.rc, "licenses" in said.fields, "req_nodes" in said.fields) == (0, False, False)


@each_slurm
@pytest.mark.parametrize(
    ("asked", "got"),
    [
        ({"tres_per_job": "gres/gpu:h100:2"}, "berth_h100:2"),
        ({"tres_per_node": "gres/gpu:h100:2", "min_nodes": "3", "max_nodes": "3"}, "berth_h100:6"),
        ({"tres_per_node": "gres/gpu:h100:2", "min_nodes": "3", "max_nodes": "5"}, "berth_h100:6"),
        ({"tres_per_job": "gres/gpu:a100:2"}, None),
        ({"tres_per_job": "gres/gpu:2"}, None),
    ],
)
def test_without_berthd_a_model_that_is_named_still_counts(
    plugin: Plugin, asked: dict[str, str], got: str | None
) -> None:
    said = plugin.submit(**asked)
    assert (said.rc, said.fields.get("licenses")) == (0, got)


@each_slurm
@pytest.mark.parametrize("flag", [{"gpu-share": "30"}, {"gpu-tier": "opportunistic"}])
def test_a_share_and_a_seat_count_as_no_gpu(plugin: Plugin, flag: dict[str, str]) -> None:
    assert "licenses" not in plugin.submit(USER, flag, tres_per_job="gres/gpu:h100:1").fields


@each_slurm
def test_nobody_asks_for_these_licences_by_hand(plugin: Plugin) -> None:
    for licenses in ("berth_h100:1", "solver:1,BERTH_x", "solver|berth_h100"):
        for said in (plugin.submit(licenses=licenses), plugin.modify("JobId=9", licenses=licenses)):
            assert (said.rc != 0, "count GPUs by themselves" in said.text) == (True, True), said
    assert plugin.submit(0, licenses="berth_h100:1").rc == 0
    assert plugin.submit(licenses="solver:1,my_berth_h100").rc == 0


@each_slurm
def test_who_is_counted_cannot_drop_the_licences(plugin: Plugin) -> None:
    plugin.list({7: COUNTED, 8: PINNED | COUNTED, 9: PINNED})
    for job, change in ((7, {"licenses": ""}), (7, {"tres_per_node": "gres/gpu:8"}), (8, {"licenses": "solver:1"})):
        said = plugin.modify(f"JobId={job}", **change)
        assert (said.rc != 0, said.text.startswith("berth: ")) == (True, True), (job, said)
    assert plugin.modify("JobId=9", licenses="solver:1").rc == 0
    # It is not listed yet.
    user = next(users)
    plugin.submit(user, tres_per_job="gres/gpu:h100:1")
    assert plugin.modify("JobId=10", user, licenses="").rc != 0
    assert plugin.modify("JobId=10", next(users), licenses="").rc == 0
