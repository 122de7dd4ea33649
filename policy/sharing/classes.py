"""A job's application class: what its user says, else what its history shows, else `compute`, to be on the safe side.

>>> shown_by(Measured(at=0.0, runs=3.0, sms=0.3, bandwidth=0.7))
'memory'
>>> shown_by(Measured(at=0.0, runs=0.2, sms=0.3, bandwidth=0.7))
''
"""

from policy.cluster.shared.sharers import who_is
from policy.formats.slurm_facts import JobFacts
from policy.sharing.companions import Companions
from policy.sharing.profiles import Measured
from topology.calibrate.classes import Profile, by_rule

UNKNOWN = "compute"
"""Suffers most from a slow GPU."""

_ENOUGH_RUNS = 1.0
_SUFFERS, _HARDLY = 0.75, 0.25
"""Percent of a step that a GPU which is 1 % slower costs, from which a job is `compute`, and up to which `memory`."""


def shown_by(measured: Measured | None) -> str:
    """The class that a job's profile shows; empty where too little was measured."""
    if measured is None or measured.runs < _ENOUGH_RUNS:
        return ""
    if measured.slow_gpus is not None:
        return "compute" if measured.slow_gpus >= _SUFFERS else "memory" if measured.slow_gpus <= _HARDLY else "mixed"
    if measured.sms is None or measured.bandwidth is None:
        # That kernels ran does not say what they waited for.
        return ""
    return by_rule(Profile("", measured.sms, measured.bandwidth))


class Classes:
    """Of jobs that Slurm shows."""

    def __init__(self, companions: Companions | None = None) -> None:
        """`companions` know the profiles; without them only users' own words count."""
        self._companions = companions

    def of(self, job: JobFacts) -> str:
        """The class by whose scores a job is placed."""
        said = (job.segment or {}).get("f.app-class", "")
        if said or self._companions is None:
            return said or UNKNOWN
        return shown_by(self._companions.measured(who_is(job))) or UNKNOWN
