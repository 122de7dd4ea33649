# SPDX-License-Identifier: Apache-2.0
"""What partitions say of themselves, as the commands print it."""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from policy.formats.slurm_facts import AdmissionRule, PartitionFacts
from policy.slurm.by_command.recorded import recorded_gateway

DATA = Path(__file__).parents[2] / "data"


@pytest.fixture(params=["24.11", "26.05"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return Path(shutil.copytree(DATA / f"slurm-{request.param}", tmp_path / "recording"))


def partitions(folder: Path) -> tuple[PartitionFacts, ...]:
    return recorded_gateway(folder).read(ended=False).partitions


def change_partition(folder: Path, *changes: tuple[str, str]) -> None:
    file = folder / "scontrol-show-partition"
    first, *others = file.read_text().splitlines()
    for old, new in changes:
        assert old in first
        first = first.replace(old, new)
    file.write_text("\n".join([first, *others]) + "\n")


def test_a_partitions_limits_and_tier_are_read(folder: Path) -> None:
    change_partition(
        folder, ("MaxNodes=UNLIMITED", "MaxNodes=8"), ("MinNodes=0", "MinNodes=2"), ("PriorityTier=1", "PriorityTier=7")
    )

    gpu, plain = partitions(folder)

    assert (gpu.max_time, gpu.min_nodes, gpu.max_nodes, gpu.tier) == (3_600, 2, 8, 7)
    assert (plain.max_time, plain.min_nodes, plain.max_nodes, plain.tier) == (3_600, 0, None, 1)


@pytest.mark.parametrize(
    ("admits_all", "admits_some", "read"),
    [
        ("AllowGroups=ALL", "AllowGroups=owners", {"for_all_groups": False}),
        ("RootOnly=NO", "RootOnly=YES", {"for_all_groups": False}),
        ("ReqResv=NO", "ReqResv=YES", {"for_all_groups": False}),
        ("Hidden=NO", "Hidden=YES", {"for_all_groups": False}),
        ("AllocNodes=ALL", "AllocNodes=login1", {"for_all_groups": False}),
        (
            "AllowAccounts=ALL",
            "AllowAccounts=Physics,chemistry",
            {"accounts": AdmissionRule(only=frozenset({"physics", "chemistry"}))},
        ),
        ("AllowAccounts=ALL", "DenyAccounts=guests", {"accounts": AdmissionRule(never=frozenset({"guests"}))}),
        ("AllowQos=ALL", "AllowQos=normal", {"qos": AdmissionRule(only=frozenset({"normal"}))}),
        ("AllowQos=ALL", "DenyQos=scavenger", {"qos": AdmissionRule(never=frozenset({"scavenger"}))}),
    ],
)
def test_whom_a_partition_admits_is_read(folder: Path, admits_all: str, admits_some: str, read: dict[str, Any]) -> None:
    before = partitions(folder)
    change_partition(folder, (admits_all, admits_some))

    gpu, plain = partitions(folder)

    assert gpu == replace(before[0], **read)
    assert (plain.for_all_groups, plain.accounts, plain.qos) == (True, AdmissionRule(), AdmissionRule())


@pytest.mark.parametrize(
    ("state", "up", "starts"),
    [("UP", True, True), ("DRAIN", False, True), ("DOWN", False, False), ("INACTIVE", False, False)],
)
def test_a_draining_partition_takes_no_new_jobs_but_starts_those_that_wait(
    folder: Path, state: str, up: bool, starts: bool
) -> None:
    change_partition(folder, ("State=UP", f"State={state}"))

    gpu, _ = partitions(folder)

    assert (gpu.up, gpu.starts) == (up, starts)


@pytest.mark.parametrize(("rule", "all_of_them"), [("NO", False), ("ANY", False), ("ALL", True)])
def test_whether_a_job_has_to_fit_all_its_partitions_is_read(folder: Path, rule: str, all_of_them: bool) -> None:
    with (folder / "scontrol-show-config").open("a") as file:
        file.write(f"EnforcePartLimits       = {rule}\n")

    assert recorded_gateway(folder).read(ended=False).in_all_partitions is all_of_them


@pytest.mark.parametrize(
    ("rule", "enforced"),
    [("none", False), ("associations,qos", False), ("associations,limits,qos", True), ("safe", True), ("all", True)],
)
def test_whether_limits_may_bound_the_nodes_of_a_job_is_read(folder: Path, rule: str, enforced: bool) -> None:
    with (folder / "scontrol-show-config").open("a") as file:
        file.write(f"AccountingStorageEnforce = {rule}\n")

    assert recorded_gateway(folder).read(ended=False).limits_enforced is enforced
