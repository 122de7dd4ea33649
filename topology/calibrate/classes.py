# SPDX-License-Identifier: Apache-2.0
"""Application classes from profiles: how much a job suffers from a slow GPU, derived from the units that it keeps busy.

A slow chip has a low clock at its power limit. Work that keeps the arithmetic units busy feels that in full, work that
waits for memory or for the host hardly. A profile is what a profiler or the guard's samples show of a job alone on a
GPU: the share of time in which the tensor or FMA pipes were active, and the share in which DRAM was.

>>> by_rule(ClassProfile("resnet50", compute=0.62, memory=0.35))
'compute'
"""

from dataclasses import dataclass

_IDLE = 0.10
_COMPUTE_FROM, _MEMORY_TO = 0.60, 0.40


@dataclass(frozen=True, slots=True)
class ClassProfile:
    """Shares of time, 0 to 1."""

    name: str
    compute: float
    """Tensor or FMA pipes active."""
    memory: float
    """DRAM active."""


def by_rule(profile: ClassProfile) -> str:
    """Returns the class of one profile, by what it keeps busy."""
    busy = profile.compute + profile.memory
    if profile.compute < _IDLE or profile.compute < _MEMORY_TO * busy:
        # It waits for memory or for the host: a lower clock of the GPU costs it little.
        return "memory"
    return "compute" if profile.compute >= _COMPUTE_FROM * busy else "mixed"
