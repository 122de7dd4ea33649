# SPDX-License-Identifier: Apache-2.0
"""Reads all notices of nodes but those of Epilogs: one reader for each kind (docs/develop/formats.md)."""

from collections.abc import Callable

from policy.daemon.hear import endings, gpu_use, guards, levels, machines, step_times, still
from policy.daemon.hear.endings import NodeWord
from policy.daemon.hear.gpu_use import GpuWord
from policy.daemon.hear.guards import GuardWord
from policy.daemon.hear.levels import LevelWord
from policy.daemon.hear.machines import MachineWord
from policy.daemon.hear.step_times import StepWord
from policy.daemon.hear.still import StillWord

Word = GuardWord | StepWord | LevelWord | GpuWord | StillWord | MachineWord | NodeWord

_READERS: tuple[Callable[[bytes], Word | None], ...] = (
    guards.read_word,
    step_times.read_word,
    levels.read_word,
    gpu_use.read_word,
    still.read_word,
    machines.read_word,
    endings.read_word,
)


def read(payload: bytes) -> Word | None:
    """Returns the notice in a payload; None if no reader knows it."""
    for reader in _READERS:
        if word := reader(payload):
            return word
    return None
