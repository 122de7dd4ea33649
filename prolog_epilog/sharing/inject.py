# SPDX-License-Identifier: Apache-2.0
"""Adds code to owners and guests: the PyTorch hooks, and the library, by which a guest leaves its owner's memory alone.

The share file names both as paths put before the user's own PYTHONPATH and LD_PRELOAD (docs/develop/formats.md).
A path that is not good is left out with a sentence: the dynamic linker would complain in each program of the job.
"""

import os
import stat
import subprocess
import sys
from collections.abc import Iterator

from prolog_epilog.job.extra import GUARANTEED, OPPORTUNISTIC
from prolog_epilog.settings.config import NodeConfig

HOOKS = "PYTHONPATH"
LIBRARY = "LD_PRELOAD"

RETRY, MANAGED = "retry", "managed"
"""The values of `inject` by which an owner's failed allocations are tried again, and a guest's memory gives way."""

_INSTALL = "make -C prolog_epilog/injob/c install on this node, or mend inject and inject_from in [node]"
_TRY_SECONDS = 20.0


def wanted(config: NodeConfig, tier: str) -> dict[str, str]:
    """Returns the paths that the site wants in jobs of a tier, by the variable that lists them.

    A guest gets the library, which holds it back and keeps it off its owner's memory. An owner only has to be heard: it
    gets the library if its launches are counted, or its failed allocations tried again.
    """
    found = {}
    if tier and config.inject not in {"none", "library"}:
        found[HOOKS] = f"{config.inject_from}/share/berth/injob"
    guests, owners = {"library", "all", RETRY, MANAGED}, {"all", RETRY, MANAGED} if config.count_launches else {RETRY}
    if tier and config.inject in (guests if tier == OPPORTUNISTIC else owners):
        found[LIBRARY] = f"{config.inject_from}/lib/berth/libberth_injob.so"
    return found


def variables(config: NodeConfig, tier: str) -> dict[str, str]:
    """Returns what tells the library of a tier how to take memory."""
    name = {(RETRY, GUARANTEED): "BERTH_MEMORY_RETRY", (MANAGED, OPPORTUNISTIC): "BERTH_MEMORY_MANAGED"}
    return {name[config.inject, tier]: "1"} if (config.inject, tier) in name else {}


def lack(name: str, path: str) -> str:
    """Returns the reason why a job's programs could not use this path; empty if they can."""
    file = path if name == LIBRARY else f"{path}/sitecustomize.py"
    try:
        found = os.stat(file)  # noqa: PTH116 - the Prolog has no time for pathlib
        if not stat.S_ISREG(found.st_mode):
            return f"{file} is not a file; {_INSTALL}"
        if found.st_mode & stat.S_IWOTH:
            return f"all users may write {file}; chmod o-w {file}"
        if not found.st_mode & stat.S_IROTH or any(not _is_open(one) for one in _parents(os.path.realpath(file))):
            return f"users cannot read {file}; give them the right, to its folders too"
    except OSError as problem:
        return f"{file}: {problem.strerror}; {_INSTALL}"
    return ""


def _parents(file: str) -> Iterator[str]:
    while len(file) > 1:
        file = os.path.dirname(file)  # noqa: PTH120 - see above
        yield file


def _is_open(folder: str) -> bool:
    return bool(os.stat(folder).st_mode & stat.S_IXOTH)  # noqa: PTH116 - see above


def fault(name: str, path: str) -> str:
    """Returns the same reason, found by use: starts a program with the path. For `berth doctor node`."""
    problem = lack(name, path)
    if problem:
        return problem
    command = ["/bin/true"] if name == LIBRARY else [sys.executable, "-c", "import sitecustomize, berth_injob"]
    try:
        done = subprocess.run(
            command, env={name: path}, capture_output=True, text=True, timeout=_TRY_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{path} cannot be tried: {error}"
    said = [*done.stderr.strip().splitlines()] or [f"exit status {done.returncode}"] * bool(done.returncode)
    return f"{path}: {said[-1].rstrip('.')}; {_INSTALL}" if said else ""
