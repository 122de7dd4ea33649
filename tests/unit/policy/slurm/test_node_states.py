# SPDX-License-Identifier: Apache-2.0
"""The states of a node in which Slurm starts jobs there."""

import pytest

from policy.slurm.by_command import text
from tests.unit.policy.slurm.test_gateway import DATA, VERSIONS


@pytest.mark.parametrize(
    ("state", "up"),
    [
        ("IDLE", True),
        ("MIXED+PLANNED", True),
        ("ALLOCATED+COMPLETING", True),
        ("IDLE+CLOUD+POWERED_DOWN", True),
        ("IDLE+DRAIN", False),
        ("DOWN*+DRAIN", False),
        ("IDLE*", False),
        ("IDLE+RESERVED", True),
        ("IDLE+MAINTENANCE+RESERVED", True),
        ("IDLE+NOT_RESPONDING", False),
        ("IDLE+REBOOT_ISSUED", False),
        ("MIXED+REBOOT_REQUESTED", True),  # it reboots when it is idle; ASAP comes with DRAIN
        ("MIXED+DRAIN+REBOOT_REQUESTED", False),
        ("IDLE+CLOUD+POWERING_UP", True),
        ("IDLE+CLOUD+POWER_UP+POWERED_DOWN", True),
        ("IDLE+CLOUD+POWERING_DOWN", False),
        ("IDLE+CLOUD+POWER_DOWN", False),
        ("MIXED+CLOUD+POWER_DOWN", False),
        ("IDLE+FAIL", False),
        ("ALLOCATED+FAIL", False),
        ("IDLE+BLOCKED", False),
        ("IDLE+INVALID_REG", False),
        ("IDLE+DYNAMIC_NORM", True),
        ("IDLE+PLANNED", True),
        ("FUTURE", False),
        ("UNKNOWN", False),
        ("ERROR", False),
        ("DOWN", False),
    ],
)
@pytest.mark.parametrize("version", VERSIONS)
def test_a_node_takes_jobs_or_not_by_its_state(*, version: str, state: str, up: bool) -> None:
    shown = (
        (DATA / f"slurm-{version}" / "scontrol-show-node")
        .read_text()
        .splitlines()[0]
        .replace("State=MIXED", f"State={state}")
    )

    [node] = text.nodes(shown)

    assert node.up is up
    assert node.completing is ("COMPLETING" in state)
