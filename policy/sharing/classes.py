# SPDX-License-Identifier: Apache-2.0
"""Finds a job's application class: the one its user names, else the one its profile shows, else `compute`.

`compute` is the safe default, because such jobs lose the most on a slow GPU.

>>> shown_by(Measured(at=0.0, runs=3.0, pipes=0.3, dram=0.7))
'memory'
>>> shown_by(Measured(at=0.0, runs=0.2, pipes=0.3, dram=0.7))
''
"""

from policy.cluster.shared.sharers import who_is
from policy.formats.plan_fields import APP_CLASS
from policy.formats.slurm_facts import JobFacts
from policy.sharing.companions import Companions
from policy.sharing.profiles import Measured
from topology.calibrate.classes import ClassProfile, by_rule

UNKNOWN = "compute"
"""The class of jobs without a name or a profile: the one that loses most on a slow GPU."""

_ENOUGH_RUNS = 1.0


def shown_by(measured: Measured | None) -> str:
    """Returns the class that a job's profile shows; empty where too little was measured."""
    if measured is None or measured.runs < _ENOUGH_RUNS:
        return ""
    if measured.pipes is None or measured.dram is None:
        # Neither kernel time nor SMs with a warp tell compute-bound jobs from memory-bound ones.
        return ""
    return by_rule(ClassProfile("", measured.pipes, measured.dram))


class Classes:
    """Finds the application classes of jobs that Slurm shows."""

    def __init__(self, companions: Companions | None = None) -> None:
        """Keeps `companions`, which hold the profiles; without them only the classes that users name count."""
        self._companions = companions

    def of(self, job: JobFacts) -> str:
        """Returns the class by whose scores a job is placed."""
        said = job.known.get(APP_CLASS, "")
        if said or self._companions is None:
            return said or UNKNOWN
        return shown_by(self._companions.measured(who_is(job))) or UNKNOWN
