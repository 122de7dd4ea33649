"""Tells in one sentence why a command of Slurm's cannot be started."""

import shutil

from policy.formats.errors import SlurmError


def not_started(program: str, problem: OSError, advice: str = "install Slurm's client commands here") -> SlurmError:
    """Returns the error; PATH may name folders that this user may not enter, which the kernel tells otherwise."""
    if shutil.which(program) is None:
        return SlurmError(f"{program} is not on PATH; {advice}")
    return SlurmError(f"{program} cannot be started: {problem.strerror}; look at its rights and at this host's limits")
