# SPDX-License-Identifier: Apache-2.0
"""Finds the sockets near a GPU, in the core numbers of `Cores=` in gres.conf.

Linux numbers hardware threads, and machines differ in how. Slurm numbers cores: those of the first socket, then
those of the second, as `lstopo -l` does. And Slurm takes whole sockets only: from 24.11 on a node whose `Cores=` are
a part of a socket, as one NUMA node of several in it, is drained as INVALID_REG, and so is one with two sockets of
four. So what counts is the socket of each GPU.
"""

import functools
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from topology.errors import UnknownError
from topology.providers.cpus import format_cpus, parse_cpus

_CPU_LIST = re.compile(r"\d{1,5}(-\d{1,5})?(,\d{1,5}(-\d{1,5})?)*")


@dataclass(frozen=True, slots=True)
class CpuLayout:
    """A node's CPUs as Slurm counts them: the words of `slurmd -C` and of a NodeName line."""

    sockets: int
    cores: int
    """Cores of one socket."""
    threads: int = 1
    """Hardware threads of one core."""

    @property
    def cpus(self) -> int:
        """Hardware threads of the node."""
        return self.sockets * self.cores * self.threads

    def __str__(self) -> str:
        return f"{self.sockets} x {self.cores} cores x {self.threads} threads"


def near_sockets(cpu_lists: Sequence[str], layout: CpuLayout) -> list[frozenset[int]]:
    """Returns the sockets that each list of Linux CPUs lies on; an UnknownError says why they cannot be told.

    A way of numbering is possible only if every list is made of whole cores, and is on one socket or on all of
    several. What all possible ways say is taken.

    >>> near_sockets(["0-7,16-23", "8-15,24-31"], CpuLayout(sockets=2, cores=8, threads=2))
    [frozenset({0}), frozenset({1})]
    """
    distinct = tuple(dict.fromkeys(cpu_lists))
    found = dict(zip(distinct, _near_sockets(distinct, layout), strict=True))
    return [found[text] for text in cpu_lists]


# A cluster has thousands of nodes and a handful of kinds.
@functools.lru_cache(maxsize=1024)
def _near_sockets(cpu_lists: tuple[str, ...], layout: CpuLayout) -> tuple[frozenset[int], ...]:
    for text in cpu_lists:
        if not _CPU_LIST.fullmatch(text) or not parse_cpus(text):
            raise UnknownError(f'"{text}" is not a list of CPUs such as 0-7,16-23')
        if (last := max(parse_cpus(text))) >= layout.cpus:
            raise UnknownError(f"CPU {last} is near a GPU, but {layout} are CPUs 0 to {layout.cpus - 1} only")
    answers = {
        tuple(found)
        for core_of in _numberings(layout)
        if all(found := [_sockets(parse_cpus(text), core_of, layout) for text in cpu_lists])
    }
    if len(answers) == 1:
        return answers.pop()
    lists = " and ".join(cpu_lists)
    if answers:
        raise UnknownError(f"CPUs {lists} can be on other sockets too, as machines number their CPUs in several ways")
    raise UnknownError(f"CPUs {lists} are not whole cores of whole sockets, or of parts of one, in {layout}")


def cores_of(sockets: frozenset[int], layout: CpuLayout) -> str:
    """Returns the `Cores=` of a GPU near these sockets; empty if it must be left out.

    >>> cores_of(frozenset({1}), CpuLayout(sockets=2, cores=8))
    '8-15'
    """
    if len(sockets) != 1 or layout.sockets == 1:
        return ""
    first = min(sockets) * layout.cores
    return format_cpus(range(first, first + layout.cores))


def _sockets(cpus: Sequence[int], core_of: Callable[[int], int], layout: CpuLayout) -> frozenset[int]:
    """Returns sockets of these CPUs, none where they are no set that a machine would call near."""
    cores = {core_of(cpu) for cpu in cpus}
    sockets = frozenset(core // layout.cores for core in cores)
    whole_cores = len(cpus) == len(cores) * layout.threads
    whole_sockets = len(cores) == len(sockets) * layout.cores
    return sockets if whole_cores and (len(sockets) == 1 or whole_sockets) else frozenset()


def _numberings(layout: CpuLayout) -> Iterator[Callable[[int], int]]:
    """Yields the ways in which machines number CPUs, each as a function from Linux's CPU to Slurm's core."""
    sockets, cores, threads = layout.sockets, layout.cores, layout.threads
    whole = sockets * cores

    def in_turn(core: int) -> int:
        """Returns the core where cores are dealt to the sockets in turn."""
        return core % sockets * cores + core // sockets

    # Most machines: the second threads come after all first ones.
    yield lambda cpu: cpu % whole
    # Virtual machines, POWER: the threads of a core are side by side.
    yield lambda cpu: cpu // threads
    yield lambda cpu: in_turn(cpu % whole)
    yield lambda cpu: in_turn(cpu // threads)
