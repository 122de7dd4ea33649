# SPDX-License-Identifier: Apache-2.0
"""The common part of Prolog and Epilog: the node, the programs that they can ask, and the GPUs of a job."""

import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from prolog_epilog import chain
from prolog_epilog.errors import ChainError, NodeError, NodeSlurmError
from prolog_epilog.job.extra import NodeBerth
from prolog_epilog.job.job import NodeJob
from prolog_epilog.job.slurm import HeldGres, Scontrol
from prolog_epilog.messages import numbered
from prolog_epilog.settings import config
from prolog_epilog.settings.config import NodeConfig

if TYPE_CHECKING:
    from prolog_epilog.node.paths import Paths

ROOT = "/run/berth"
DEV = "/dev"
MAX_REASON = 200


class Here(NamedTuple):
    """The node, for one call."""

    config: NodeConfig
    slurm: Scontrol
    say: Callable[[str], None]
    root: str = ROOT
    dev: str = DEV
    trouble: str = ""
    """The reason why nothing can be shared here: a wrong berth.conf."""
    conf: str = ""
    """The path of berth.conf."""

    @property
    def paths(self) -> "Paths":
        """Returns the paths of Berth's own files."""
        from pathlib import Path  # noqa: PLC0415

        from prolog_epilog.node.paths import Paths  # noqa: PLC0415 - pathlib costs the Prolog 10 ms

        return Paths(Path(self.root))

    def has_file(self, job: int) -> bool:
        """Tells whether a job has a share file, good or bad."""
        return os.path.lexists(f"{self.root}/jobs/{job}")

    def skips(self, partition: str) -> bool:
        """Tells whether Berth leaves this partition alone."""
        return partition in config.skipped(self.conf)

    def has_books(self) -> bool:
        """Tells whether any GPU of the node was ever shared since its start."""
        try:
            return bool(os.listdir(f"{self.root}/gpus"))  # noqa: PTH208 - pathlib costs the Prolog 10 ms
        except OSError:
            return False


def indices_of(job: NodeJob, berth: NodeBerth | None, here: Here, held: HeldGres | None = None) -> tuple[int, ...]:
    """Returns the indices of all of a job's GPUs; `held` is Slurm's answer, if it is known already.

    If Slurm names none, the job has none of its own: a guest's seat is on the GPU of another job. If Slurm has
    forgotten them, because the job is about to end, those that the environment names are returned: they are among them.
    """
    if not job.indices:
        return ()
    known = chain.minors(here.dev)
    if held is not None or berth is not None:
        return chain.indices(held.positions if held is not None else berth.gpus if berth else (), known)
    try:
        return chain.indices(here.slurm.gpus(job.id, job.node), known) or job.indices
    except NodeSlurmError as problem:
        here.say(f"{problem}; the site's scripts see GPU {_list(job.indices)} only")
        return job.indices


def run_chain(
    patterns: Sequence[str], job: NodeJob, gpus: Sequence[int], here: Here, facts: Mapping[str, str] | None = None
) -> int:
    """Runs the site's own scripts; returns their exit status, which becomes ours."""
    try:
        chain.run(patterns, chain.environment(job.environment, gpus, facts or {}), here.config.chain_timeout, here.say)
    except ChainError as problem:
        here.say(numbered(problem))
        return problem.code
    except NodeError as problem:
        # Slurm, too, takes a node out of service whose Prolog or Epilog hangs.
        here.say(numbered(problem))
        return 1
    return 0


def drain(job: NodeJob, here: Here, fault: str) -> None:
    """Takes the node out of service with a reason that a human can act on, before Slurm writes `Prolog error`."""
    here.say(fault)
    try:
        here.slurm.drain(job.node, f"berth: {fault}"[:MAX_REASON])
    except NodeSlurmError as problem:
        here.say(numbered(problem))


def _list(numbers: Sequence[int]) -> str:
    return ",".join(map(str, numbers)) or "none"
