"""Lines for slurm.conf and gres.conf: one GRES type a GPU, so that a job can be given exact GPUs.

Each GPU K has `gpu:gK`, a hundred shards `shard:gK` for jobs that share it, and one `seat:gK` for a guest.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from topology.model import Machine
from topology.providers.cpus import format_cpus, parse_cpus

__all__ = ["GRES_TYPES", "SlurmLines", "cores", "render"]

GRES_TYPES = "GresTypes=gpu,shard,seat"
_SHARDS = 100


@dataclass(frozen=True, slots=True)
class SlurmLines:
    """What to put into Slurm's configuration."""

    slurm_conf: tuple[str, ...]
    gres_conf: tuple[str, ...]
    notes: tuple[str, ...]
    """What could not be written, for people."""


def render(machines: Iterable[Machine], threads_per_core: int | None = None) -> SlurmLines:
    """Write the lines of these nodes; nodes that have the same lines share them."""
    groups: dict[tuple[str, tuple[str, ...]], list[str]] = {}
    notes = []
    for machine in machines:
        core_lists = cores([gpu.cpus for gpu in machine.gpus], threads_per_core)
        if core_lists is None:
            notes.append(
                f"node {machine.node}: Cores= was left out, because its CPU numbers do not tell Slurm's core"
                " numbers; take them from slurmd -G, or give --threads-per-core"
            )
        block = (_gres_words(machine), tuple(_gres_lines(machine, core_lists or [""] * machine.size)))
        groups.setdefault(block, []).append(machine.node)
    folded = [(_fold(nodes), words, lines) for (words, lines), nodes in groups.items()]
    return SlurmLines(
        slurm_conf=(GRES_TYPES, *(f"NodeName={nodes} {words}" for nodes, words, _ in folded)),
        gres_conf=tuple(f"NodeName={nodes} {line}" for nodes, _, lines in folded for line in lines),
        notes=tuple(notes),
    )


def cores(cpu_lists: Sequence[str], threads_per_core: int | None = None) -> list[str] | None:
    """Slurm's core numbers for each GPU's CPUs; empty texts where all are near to all, None where unsure.

    gres.conf counts cores, the kernel counts hardware threads. The common numberings are understood: without
    SMT (`0-7`), the second threads after all first ones (`0-7,16-23`), and, with `threads_per_core`, the
    threads of a core side by side.

    >>> cores(["0-7,16-23", "8-15,24-31"])
    ['0-7', '8-15']
    """
    if len(set(cpu_lists)) <= 1:
        return [""] * len(cpu_lists)
    found = [_cores_of(parse_cpus(cpus), threads_per_core) for cpus in cpu_lists]
    return None if None in found else [text for text in found if text is not None]


def _cores_of(cpus: list[int], threads: int | None) -> str | None:
    runs = list(_runs(cpus))
    if len(runs) == 1 and threads and threads > 1:
        first, count = cpus[0], len(cpus)
        if first % threads or count % threads:
            return None
        return format_cpus(range(first // threads, (first + count) // threads))
    if len(runs) == 1:
        return format_cpus(cpus)
    # Threads of one core: as many runs as threads, all of one length.
    if len(runs) == (threads or 2) and len({len(run) for run in runs}) == 1:
        return format_cpus(runs[0])
    return None


def _runs(cpus: list[int]) -> Iterator[list[int]]:
    run: list[int] = []
    for cpu in cpus:
        if run and cpu != run[-1] + 1:
            yield run
            run = []
        run.append(cpu)
    if run:
        yield run


def _gres_words(machine: Machine) -> str:
    kinds = ("gpu:g{}:1", f"shard:g{{}}:{_SHARDS}", "seat:g{}:1")
    words = [kind.format(gpu.position) for kind in kinds for gpu in machine.gpus]
    return f"Gres={','.join(words)} Feature={machine.model}"


def _gres_lines(machine: Machine, core_lists: Sequence[str]) -> Iterator[str]:
    for gpu, core_list in zip(machine.gpus, core_lists, strict=True):
        line = f"Name=gpu Type=g{gpu.position} File=/dev/nvidia{gpu.minor}"
        if core_list:
            line += f" Cores={core_list}"
        if machine.links:
            line += f" Links={','.join(map(str, _link_counts(machine, gpu.position)))}"
        yield line
    for gpu in machine.gpus:
        yield f"Name=shard Type=g{gpu.position} Count={_SHARDS} File=/dev/nvidia{gpu.minor}"
    for gpu in machine.gpus:
        yield f"Name=seat Type=g{gpu.position} File=/dev/nvidia{gpu.minor}"


def _link_counts(machine: Machine, position: int) -> list[int]:
    """NVLinks to each GPU in Slurm's form: -1 for the GPU itself."""
    counts = [0] * machine.size
    counts[position] = -1
    for link in machine.links:
        if position in (link.a, link.b):
            counts[link.b if position == link.a else link.a] = link.count
    return counts


def _fold(nodes: Sequence[str]) -> str:
    try:
        from ClusterShell.NodeSet import NodeSet  # noqa: PLC0415  only where many nodes are written
    except ImportError:
        return ",".join(nodes)
    return str(NodeSet.fromlist(nodes))
