# SPDX-License-Identifier: Apache-2.0
"""Waiting jobs that name a model are rewritten for the layout in force, and others are left alone."""

import pytest

from policy.cli.migrate.node_lines import ListedNode
from policy.cli.migrate.waiting import rewrites

EXACT = ListedNode("gpu:g0:1,gpu:g1:1,shard:g0:100", ("h100",))
PLAIN = ListedNode("gpu:h100:8", ())
WAITS = "JobId=7 JobName=x JobState=PENDING"


def of(line: str, *nodes: ListedNode, licenses: str = "") -> list[str]:
    found = rewrites(line, {f"n{place}": node for place, node in enumerate(nodes)}, licenses)
    return [" ".join(words[2:]) for one in found for words in one.commands]


@pytest.mark.parametrize(
    ("asked", "written"),
    [
        ("Features=(null) TresPerNode=gres/gpu:h100:2", "TresPerNode=gres/gpu:2 Features=h100"),
        ("Features=ib TresPerJob=gres/gpu:h100:2", "TresPerJob=gres/gpu:2 Features=ib&h100"),
        ("Features=h100 TresPerJob=gres/gpu:h100:2", "TresPerJob=gres/gpu:2"),
        ("Features=(null) TresPerNode=gres/gpu:h100=2,gres/fpga=1", "TresPerNode=gres/gpu=2,gres/fpga=1 Features=h100"),
        ("Features=(null) TresPerNode=gres/gpu:2", ""),
        ("Features=(null) TresPerNode=gres/gpu:v100:2", ""),
        ("Features=(null) TresPerNode=gres/gpu:g0:1", ""),
        ("Features=(null) TresPerNode=gres/gpu:h100:1,gres/gpu:v100:1", ""),
    ],
)
def test_a_model_becomes_a_feature_on_the_exact_layout(asked: str, written: str) -> None:
    assert of(f"{WAITS} {asked} Licenses=(null)", EXACT) == ([f"JobId=7 {written}"] if written else [])


@pytest.mark.parametrize(
    ("asked", "written"),
    [
        ("Features=h100 TresPerNode=gres/gpu:2", "TresPerNode=gres/gpu:h100:2 Features="),
        ("Features=ib&h100 TresPerJob=gres/gpu:2", "TresPerJob=gres/gpu:h100:2 Features=ib"),
        ("Features=h100|v100 TresPerNode=gres/gpu:2", ""),
        ("Features=rack7 TresPerNode=gres/gpu:2", ""),
    ],
)
def test_a_feature_that_is_gone_becomes_a_type_again(asked: str, written: str) -> None:
    assert of(f"{WAITS} {asked} Licenses=(null)", PLAIN) == ([f"JobId=7 {written}"] if written else [])


def test_a_feature_that_is_still_there_stays() -> None:
    both = ListedNode("gpu:h100:8", ("h100",))

    assert of(f"{WAITS} Features=h100 TresPerNode=gres/gpu:2 Licenses=(null)", both) == []


def test_a_licence_that_is_gone_is_taken_out() -> None:
    line = f"{WAITS} Features=(null) TresPerNode=gres/gpu:2 Licenses=solver:1,berth_h100:2"

    assert of(line, PLAIN) == ["JobId=7 Licenses=solver:1"]
    assert of(line, PLAIN, licenses="solver:1,berth_h100:8") == []


def test_running_jobs_and_running_tasks_are_never_named() -> None:
    asked = "TresPerNode=gres/gpu:h100:2 Features=(null) Licenses=(null)"

    assert of(f"JobId=7 JobState=RUNNING {asked}", EXACT) == []
    (found,) = of(f"JobId=9 ArrayJobId=7 ArrayTaskId=3-5,8%2 JobState=PENDING {asked}", EXACT)
    assert found.startswith("JobId=7_[3-5,8] ")


HELD = "Reason=License_request_'{}'_is_no_longer_valid,_holding_job"


@pytest.mark.parametrize(
    ("reason", "held", "written"),
    [
        (HELD.format("berth_h100:2"), "berth_h100:2", ["JobId=7 Licenses=", "7"]),
        (HELD.format("solver:1,berth_h100:2"), "solver:1,berth_h100:2", ["JobId=7 Licenses=solver:1", "7"]),
        # The licence was taken out before, and the release did not get through.
        (HELD.format("berth_h100:2"), "(null)", ["7"]),
        ("Reason=JobHeldUser", "berth_h100:2", ["JobId=7 Licenses="]),
        (HELD.format("solver:1"), "solver:1", []),
        (HELD.format("berth_a100:2"), "berth_a100:2", []),
    ],
    ids=["ours", "beside another", "again", "its user's hold", "no licence of ours", "a licence that is there"],
)
def test_a_job_that_slurmctld_holds_for_a_licence_that_is_gone_goes_on(
    reason: str, held: str, written: list[str]
) -> None:
    """slurmctld 26.05 does that at its start, to jobs that nobody had held."""
    line = f"{WAITS} Priority=0 {reason} Features=(null) Licenses={held}"

    assert of(line, PLAIN, licenses="solver:1,berth_a100:8") == written
