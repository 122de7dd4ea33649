# SPDX-License-Identifier: Apache-2.0
"""Jobs with a number of GPUs in all (`--gpus=N`, `--gpus-per-task`), which may lie on nodes in several ways.

Spreading: a pin names the same GPUs on each node, so it cannot say 3 + 1. While no place of Berth's is free such a job
can have its request as its user wrote it: Slurm starts it on as many nodes as it takes, as it does without Berth. The
same holds for as many GPUs on each of several nodes, where no GPUs are free on all of them: `-N2 --gres=gpu:4`.

Splits, such as 8 = 1 x 8, 2 x 4, 4 x 2 or 8 x 1: a job may be split if its user gives no number of nodes and says by
`--locality` how near its GPUs must be. Slurm gives such a job one task on each of its nodes, with the CPUs of a task
and the memory of a node. So the job has its request on each node, and a pin only has to change the number of nodes.
Jobs that tie tasks or CPUs to nodes or GPUs keep one split: a pin could not give them what Slurm would.

>>> write(read("2:4000:0")), write(read("1:0:500"))
('2:4000:0', '1:0:500')
>>> write(read("1:100:0:4:1:100:0:2:0"))
'1:100:0:4:1:100:0:2:0'
"""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from policy.formats.errors import FormatError
from policy.formats.job_plan import Field

if TYPE_CHECKING:
    from policy.formats.arrays import Bools
    from policy.formats.slurm_facts import Memory
    from policy.request.submission import Request

    Candidates = tuple[Bools, tuple[Bools, ...]]

SHORT, LONG = 3, 9
"""Numbers in the text of such needs: without tasks and a number of nodes, and with them."""

ZEROS = ("0",) * (LONG - SHORT)

MOST_NODES = 64
"""Most nodes that a job is split over by choice."""

MOST_SPLITS = 6
"""Most splits of one job: each one costs a search."""


@dataclass(frozen=True, slots=True)
class SpreadNeeds:
    """Needs of a job on each of its nodes, whatever number of GPUs it has there."""

    cpus: int
    mem: int
    gpu_mem: int = 0
    """MB of memory for each GPU."""
    gpu_cpus: int = 0
    """CPUs for each GPU."""
    tasks: int = 0
    """Its number of tasks, at least one on each node; 0: one on each."""
    task_cpus: int = 0
    """CPUs of each task."""
    task_mem: int = 0
    """MB of memory for each task, where memory follows the CPUs."""
    task_gpus: int = 0
    """GPUs of each task, on the task's node; 0: its GPUs may be on other nodes than its tasks."""
    tasks_on_node: int = 0
    """Most tasks on one node; 0: any number."""
    nodes: int = 0
    """Its number of nodes, if its user gave one; else 0."""
    least_gpus: int = 0
    """GPUs that must be free on each node: with -n and --ntasks-per-node Slurm 24.11 wants them so on each of these."""
    restores: bool = True
    """True if a job can be given its user's request back while it waits, and a place again after that."""
    model: str = ""
    """The counted model of all nodes that Slurm may choose."""
    candidates: "Bools | None" = None
    """Nodes that could ever be one of its nodes."""
    pools: "tuple[Bools, ...]" = ()
    """These nodes in each of several partitions."""

    def tasks_beside(self, gpus: int, of_all: int) -> int:
        """Returns how many of its tasks Slurm is expected to run beside so many of its GPUs."""
        return -(-self.tasks * gpus // of_all) if self.tasks else 0

    def on(self, candidates: "Bools", pools: "tuple[Bools, ...]") -> "SpreadNeeds":
        """Returns the same needs, with the nodes that could meet them."""
        return replace(self, candidates=candidates, pools=pools)

    def within(self, nodes: "Bools") -> "SpreadNeeds":
        """Returns the same needs on some nodes only."""
        here = None if self.candidates is None else self.candidates & nodes
        return replace(self, candidates=here, pools=tuple(pool & nodes for pool in self.pools))


def may_spread(request: "Request") -> bool:
    """Tells whether Slurm may lay the job's GPUs on several nodes in any way."""
    if request.per_node is not None:
        in_all = (request.nodes or 1) > 1
    else:
        in_all = request.total is not None and request.total > 1 and request.tasks != 1
    # Slurm adds nodes to a single one that is named.
    named = bool(request.only) and len(request.only) != request.nodes
    # Without a number of tasks Slurm takes one node for those of --ntasks-per-node.
    of_node = request.tasks_per_node is not None and not (request.tasks or request.nodes)
    near = request.switches is not None or (request.locality is not None and request.locality.level != "any")
    whole = request.whole_nodes or request.whole_memory or request.share is not None or request.gpu_mem is not None
    tasks = _tasks(request)
    if not request.cpus_per_gpu and request.min_cpus > request.cpus_per_task * (tasks or request.nodes or 1):
        return False
    bound = not tasks and request.min_cpus_per_node > request.cpus_per_task
    return in_all and not (named or of_node or near or whole or bound or request.het)


def _tasks(request: "Request") -> int:
    """Returns the number of its tasks; 0 if it says none."""
    return request.tasks or (request.tasks_per_node or 0) * (request.nodes or 0)


def needs_of(
    request: "Request", memory: "Memory", alone: tuple[int, int], nodes: int, model: str, could: "Candidates"
) -> SpreadNeeds:
    """Returns the needs of a job that takes `alone` CPUs and MB of a node for one GPU, and whose place has `nodes`.

    `could` are the nodes that could ever be one of its nodes, in all and in each of several partitions.
    """
    cpus, mem = alone
    if request.per_node is not None:
        # As one task of so many GPUs on each node.
        return SpreadNeeds(
            cpus, mem, tasks=nodes, task_gpus=request.per_node, tasks_on_node=1, nodes=nodes,
            restores=restores(request, nodes), model=model, candidates=could[0], pools=could[1],
        )  # fmt: skip
    by_cpu = (memory.per_cpu or 0) if memory.per_node is None else 0
    gpu_cpus = _cpus_of_a_gpu(request)
    needs = SpreadNeeds(
        cpus=cpus,
        mem=mem,
        gpu_mem=0 if memory.per_node is not None else gpu_cpus * by_cpu or memory.per_gpu or 0,
        gpu_cpus=gpu_cpus,
        task_gpus=request.per_task or 0,
        nodes=request.nodes or 0,
        restores=restores(request, nodes),
        model=model,
        candidates=could[0],
        pools=could[1],
    )
    return _with_tasks(needs, request, by_cpu) if _tasks(request) else needs


def _cpus_of_a_gpu(request: "Request") -> int:
    """Returns the CPUs for each GPU, also where each GPU has a number of tasks."""
    if request.tied and not (request.cpus_per_gpu or request.per_task):
        return request.cpus_per_task * _tasks(request) // (request.total or 1)
    return request.cpus_per_gpu


def _with_tasks(needs: SpreadNeeds, request: "Request", by_cpu: int) -> SpreadNeeds:
    """Returns the needs of a job that says how many tasks it has, with `by_cpu` MB of memory for each CPU."""
    in_both_ways = request.tasks and request.tasks_per_node
    return replace(
        needs,
        cpus=max(needs.cpus, request.min_cpus_per_node),
        tasks=_tasks(request),
        # A task that shares its cores with no other has them whole.
        task_cpus=needs.cpus if request.tasks_per_core else request.cpus_per_task,
        task_mem=request.cpus_per_task * by_cpu,
        tasks_on_node=request.tasks_per_node or 0,
        least_gpus=-(-(request.total or 0) // request.nodes) if in_both_ways and request.nodes else 0,
    )


def restores(request: "Request", nodes: int) -> bool:
    """Tells whether a pin on so many nodes changes nothing that Slurm does not let berthd change back.

    On several nodes the pin says how many tasks each of them has, and by that the least CPUs of each.
    """
    if request.tied and not request.per_task:
        return False
    return nodes == 1 and request.batch if request.per_task else nodes == 1 or not _tasks(request)


def may_split(request: "Request") -> bool:
    """Tells whether a pin may choose the job's number of nodes."""
    if request.locality is None:
        return False
    fixed = request.nodes is not None or bool(request.only) or request.total is None or request.total < 2
    tied = request.tied or request.tasks is not None or request.tasks_per_node is not None
    bound = tied or request.min_cpus_per_node > request.cpus_per_task or request.min_cpus > request.cpus_per_task
    other = request.array or request.het or request.whole_nodes or request.share is not None or not request.batch
    return not (fixed or bound or other)


def more_nodes(gpus: int, nodes: int) -> list[tuple[int, int]]:
    """Returns the splits on more than some nodes, as pairs of nodes and GPUs on each.

    >>> more_nodes(8, 1), more_nodes(6, 2)
    ([(2, 4), (4, 2), (8, 1)], [(3, 2), (6, 1)])
    """
    most = min(gpus, MOST_NODES)
    return [(n, gpus // n) for n in range(nodes + 1, most + 1) if gpus % n == 0][: MOST_SPLITS - 1]


def on_nodes(nodes: int) -> str:
    """Returns the words for a number of nodes.

    >>> on_nodes(1), on_nodes(4)
    ('one node', '4 nodes')
    """
    return "one node" if nodes == 1 else f"{nodes} nodes"


def read(value: str) -> SpreadNeeds:
    """Reads the needs from a text."""
    words = value.split(":")
    if len(words) not in {SHORT, LONG} or not all(word.isascii() and word.isdigit() for word in words):
        raise FormatError(f"{value!r} is not CPUS:MB:MB and six numbers of its tasks, such as 1:1000:0")
    cpus, mem, gpu_mem, tasks, task_cpus, task_mem, task_gpus, on_node, nodes = map(int, [*words, *ZEROS][:LONG])
    return SpreadNeeds(cpus, mem, gpu_mem, 0, tasks, task_cpus, task_mem, task_gpus, on_node, nodes)


def write(spread: SpreadNeeds) -> str:
    """Writes the needs as text."""
    each = f"{spread.cpus}:{spread.mem}:{spread.gpu_mem}"
    if not (spread.tasks or spread.nodes):
        return each
    tasks = (spread.tasks, spread.task_cpus, spread.task_mem, spread.task_gpus, spread.tasks_on_node, spread.nodes)
    return ":".join([each, *map(str, tasks)])


SPREAD = Field("spread", read, write)
"""The needs of such a job on each node; left out if its user's form cannot be given back once the job is pinned."""
