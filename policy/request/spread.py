"""SpreadNeeds: `--gpus=N` without a number of nodes, whose GPUs Slurm may lay on nodes in any way, such as 3 + 1.

A pin names the same GPUs on each node, so it cannot say 3 + 1. While no place of Berth's is free such a job can have
its request as its user wrote it: Slurm starts it on as many nodes as it takes, as it does without Berth.

>>> write(read("2:4000:0")), write(read("1:0:500"))
('2:4000:0', '1:0:500')
"""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from policy.formats.errors import FormatError

if TYPE_CHECKING:
    from policy.formats.arrays import Bools
    from policy.request.parse import Request

KEY = "spread"
"""The segment's key of what such a job needs of each of its nodes."""

OPEN = "open"
"""The segment's key of a job that has its user's request: Slurm may start it on several nodes now."""


@dataclass(frozen=True, slots=True)
class SpreadNeeds:
    """Needs of a job on each of its nodes, whatever number of GPUs it has there."""

    cpus: int
    mem: int
    gpu_mem: int = 0
    """MB of memory for each GPU."""
    gpu_cpus: int = 0
    """CPUs for each GPU."""
    candidates: "Bools | None" = None
    """Nodes that could ever be one of its nodes."""
    pools: "tuple[Bools, ...]" = ()
    """These nodes in each of several partitions."""

    def on(self, candidates: "Bools", pools: "tuple[Bools, ...]") -> "SpreadNeeds":
        """Returns the same needs, with the nodes that could meet them."""
        return replace(self, candidates=candidates, pools=pools)

    def within(self, nodes: "Bools") -> "SpreadNeeds":
        """Returns the same needs on some nodes only."""
        here = None if self.candidates is None else self.candidates & nodes
        return replace(self, candidates=here, pools=tuple(pool & nodes for pool in self.pools))


def may_spread(request: "Request") -> bool:
    """Tells whether Slurm may choose the job's number of nodes, and what they give does not hang on its tasks."""
    fixed = request.nodes is not None or bool(request.only) or request.total is None or request.total < 2
    of_tasks = request.tasks is not None or request.tasks_per_node is not None or request.per_task is not None
    bound = request.min_cpus_per_node > request.cpus_per_task or request.tasks_per_core is not None
    near = request.switches is not None or (request.locality is not None and request.locality.level != "any")
    whole = request.whole_nodes or request.whole_memory or request.share is not None or request.gpu_mem is not None
    if not request.cpus_per_gpu and request.min_cpus > request.cpus_per_task:
        return False
    return not (fixed or of_tasks or bound or near or whole or request.het or request.array)


def read(value: str) -> SpreadNeeds:
    """Reads the segment's value."""
    words = value.split(":")
    if len(words) != 3 or not all(word.isascii() and word.isdigit() for word in words):
        raise FormatError(f"{value!r} is not CPUS:MB:MB, such as 1:1000:0")
    return SpreadNeeds(int(words[0]), int(words[1]), int(words[2]))


def write(spread: SpreadNeeds) -> str:
    """Writes the segment's value."""
    return f"{spread.cpus}:{spread.mem}:{spread.gpu_mem}"


def text(spread: SpreadNeeds | None) -> dict[str, str]:
    """Returns the segment's value; empty for a job to which its user's form cannot be given back once it is pinned."""
    return {} if spread is None or spread.gpu_cpus else {KEY: write(spread)}
