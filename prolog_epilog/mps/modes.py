# SPDX-License-Identifier: Apache-2.0
"""Compute modes of the GPUs that jobs share: they say whether a GPU may be used without MPS."""

import time
from collections.abc import Sequence

from prolog_epilog.errors import CannotShare
from prolog_epilog.node import devices
from prolog_epilog.node.devices import EXCLUSIVE_PROCESS, PROHIBITED, Driver

_POLL_SECONDS = 0.05
#: The driver takes a moment to see that a process has ended.
_VANISH_SECONDS = 1.0


def usable(nvml: Driver, uuid: str) -> int:
    """Returns the GPU's compute mode, if the GPU can be shared now; else raises CannotShare."""
    obstacle = nvml.obstacle(uuid)
    if obstacle:
        raise CannotShare(obstacle)
    mode = nvml.compute_mode(uuid)
    if mode == PROHIBITED:
        raise CannotShare(f"GPU {uuid} is in compute mode PROHIBITED; ask the admin, who set it so")
    foreign = [process.pid for process in nvml.processes(uuid) if process.kind != "graphics"]
    if foreign:
        raise CannotShare(
            f"GPU {uuid} is in use by process {foreign[0]}, which no job that shares it has started; end it"
        )
    return mode


def set_all(uuids: Sequence[str], mode: int) -> None:
    """Sets the mode of these GPUs."""
    with devices.driver() as nvml:
        for uuid in uuids:
            nvml.set_compute_mode(uuid, mode)


def restore(nvml: Driver, uuid: str, mode: int) -> list[str]:
    """Restores the compute mode; returns a sentence for each process that is still there."""
    if nvml.compute_mode(uuid) in {EXCLUSIVE_PROCESS, PROHIBITED}:
        nvml.set_compute_mode(uuid, mode)
    until = time.monotonic() + _VANISH_SECONDS
    while True:
        left = [one.pid for one in nvml.processes(uuid) if one.kind != "graphics"]
        if not left or time.monotonic() > until:
            return [f"process {pid} is still on GPU {uuid}" for pid in left]
        time.sleep(_POLL_SECONDS)
