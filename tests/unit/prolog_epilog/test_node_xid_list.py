# SPDX-License-Identifier: Apache-2.0
"""One list of Xids, for the guard, the failure rules and doctor."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from policy.retry.rules import read_rules
from prolog_epilog.guard.measure import xids
from prolog_epilog.node.xid_list import DEVICE_XIDS, DRAINING_XIDS, MPS_XIDS, Remedy, remedy

RULES = Path(__file__).parents[3] / "policy" / "retry" / "rules.toml"


@pytest.mark.parametrize(
    ("number", "said"),
    [
        (13, Remedy.JOB),
        (31, Remedy.JOB),
        (94, Remedy.JOB),
        (63, Remedy.NOTHING),
        (92, Remedy.NOTHING),
        (46, Remedy.GPU),
        (119, Remedy.GPU),
        (140, Remedy.GPU),
        (154, Remedy.GPU),
        (48, Remedy.LINK),
        (74, Remedy.LINK),
        (144, Remedy.LINK),
        (150, Remedy.LINK),
        (79, Remedy.NODE),
        (4711, None),
    ],
)
def test_nvidias_own_classes(number: int, said: Remedy | None) -> None:
    assert remedy(number) is said


def test_the_failure_rules_know_the_same_faults_of_devices() -> None:
    rules = read_rules(RULES.read_text(), "rules.toml")
    [facts] = [rule for rule in rules if 79 in rule.xids]
    assert (facts.failure, frozenset(facts.xids)) == ("gpu_ecc_error", DEVICE_XIDS)
    [pattern] = re.findall(r"'(NVRM: Xid [^']*46[^']*)'", RULES.read_text())
    numbers = {n for n in range(1_000) if re.search(pattern, f"NVRM: Xid (PCI:0000:3b:00): {n}, pid=1")}
    assert numbers == DEVICE_XIDS


def test_a_fault_that_ends_the_clients_of_mps_is_a_programs() -> None:
    assert not MPS_XIDS & DRAINING_XIDS
    assert {remedy(number) for number in MPS_XIDS} == {Remedy.JOB}


def test_of_each_gpu_the_newest_fault_that_needs_somebody_is_found(tmp_path: Path) -> None:
    path = tmp_path / "xids"
    path.write_text("100 GPU-a 79\n200 GPU-a 119\n300 GPU-a 13\n150 GPU-b 63\n160 GPU-c 4711\nrubbish\n170 GPU-d x\n")

    assert xids.last(path) == {"GPU-a": (200, 119)}
    assert xids.since(path, ["GPU-a", "GPU-b"], 150) == (63, 119)
    assert xids.last(tmp_path / "none") == {}
