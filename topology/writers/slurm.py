# SPDX-License-Identifier: Apache-2.0
"""Lines for slurm.conf and gres.conf: one GRES type a GPU, so that a job can be given exact GPUs.

Each GPU K has `gpu:gK`, a hundred shards `shard:gK` for jobs that share it, and one `seat:gK` for a guest. A node of
which something is not known gets no line at all: half of a right line would drain the node, or give wrong GPUs.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from topology.errors import TopologyError, UnknownError
from topology.hostlist import fold
from topology.model import Machine
from topology.providers.cpus import format_cpus
from topology.providers.naming import short_model
from topology.writers.slurm_cores import CpuLayout, cores_of, near_sockets

GRES_TYPES = "GresTypes=gpu,shard,seat"
_SHARDS = 100
_UUID = re.compile(r"GPU-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)
_FEATURE = re.compile(r"[A-Za-z0-9_.-]+")
_AGAIN = "run berth topo discover on the node"


@dataclass(frozen=True, slots=True)
class SlurmLines:
    """The lines for Slurm's configuration."""

    slurm_conf: tuple[str, ...]
    gres_conf: tuple[str, ...]
    refused: Mapping[str, str]
    """By node: why it has no line, and what to do."""


@dataclass(frozen=True, slots=True)
class _Block:
    """The lines that equal nodes share."""

    summary: str
    words: str
    gpu_notes: tuple[str, ...]
    gpu_lines: tuple[str, ...]
    shard_lines: tuple[str, ...]
    seat_lines: tuple[str, ...]


def render(
    machines: Iterable[Machine], layouts: Mapping[str, CpuLayout] | None, *, comments: bool = True
) -> SlurmLines:
    """Write the lines of these nodes; nodes that have the same lines share them.

    `layouts` are the CPUs of each node as Slurm counts them; None leaves `Cores=` out everywhere.
    """
    alike: dict[_Block, list[str]] = {}
    refused: dict[str, str] = {}
    for machine in machines:
        try:
            block = _block(machine, layouts)
        except TopologyError as error:
            refused[machine.node] = str(error)
        else:
            alike.setdefault(block, []).append(machine.node)
    blocks = [(fold(nodes), block) for block, nodes in alike.items()]
    slurm_conf = ["# One type for each GPU (gK), a hundred shards of it for jobs that share it, one seat for a guest."]
    slurm_conf += [GRES_TYPES]
    gres_conf: list[str] = []
    for nodes, block in blocks:
        slurm_conf += [f"# {block.summary}. Add these words to the NodeName lines.", f"NodeName={nodes} {block.words}"]
        gres_conf += _gres_conf(nodes, block)
    if not comments:
        slurm_conf, gres_conf = ([line for line in part if line[0] != "#"] for part in (slurm_conf, gres_conf))
    return SlurmLines(tuple(slurm_conf) if blocks else (), tuple(gres_conf), refused)


def objection(machine: Machine) -> str:
    """Returns the reason that no right line can be written for a node, with advice; empty if one can."""
    gpus = machine.gpus
    models = sorted({short_model(gpu.name) for gpu in gpus if gpu.name})
    minors = [gpu.minor for gpu in gpus]
    if not gpus:
        return f"its topology file has no GPU; {_AGAIN}"
    if mig := [gpu.position for gpu in gpus if gpu.mig]:
        return f"MIG is on at {_gpus(mig)}, but Berth places whole GPUs; turn it off (nvidia-smi -mig 0), then {_AGAIN}"
    if made_up := [gpu.position for gpu in gpus if not _UUID.fullmatch(gpu.uuid)]:
        return f'"{gpus[made_up[0]].uuid}" of {_gpus(made_up)} is a place-holder and no UUID; {_AGAIN}'
    if unknown := [gpu.position for gpu in gpus if gpu.minor < 0]:
        return f"the device file of {_gpus(unknown)} is not known, only /dev/nvidiaN can be written; {_AGAIN}"
    if len(set(minors)) < len(minors):
        twice = next(minor for minor in minors if minors.count(minor) > 1)
        return f"two GPUs have the device file /dev/nvidia{twice}; {_AGAIN}"
    if minors != sorted(minors):
        return f"its GPUs are not in the order of their device files, but Slurm's index counts in that order; {_AGAIN}"
    # A name that is none of the GPUs' own is one that the admin gave to all of them.
    if len(models) > 1 and machine.model in models:
        return f"its GPUs differ ({', '.join(models)}); give them one name with berth topo discover --model NAME"
    if not _FEATURE.fullmatch(machine.model):
        return f'its model "{machine.model}" cannot be a node feature; name it with berth topo discover --model NAME'
    return ""


def _gpus(positions: Sequence[int]) -> str:
    return ("GPU " if len(positions) == 1 else "GPUs ") + format_cpus(positions)


def _block(machine: Machine, layouts: Mapping[str, CpuLayout] | None) -> _Block:
    if problem := objection(machine):
        raise UnknownError(problem)
    core_lists, notes = [""] * machine.size, ["Cores= is left out: Slurm may take any core with any GPU."]
    if layouts is not None:
        core_lists, notes = _cores(machine, layouts.get(machine.node))
    if machine.links:
        notes.append("Links=: NVLinks to GPU 0, 1, ...; -1 is the GPU itself.")
    places = [(f"Type=g{gpu.position}", f"File=/dev/nvidia{gpu.minor}") for gpu in machine.gpus]
    return _Block(
        summary=f"{machine.size} x {machine.model}",
        words=_gres_words(machine),
        gpu_notes=tuple(notes),
        gpu_lines=tuple(_gpu_lines(machine, core_lists)),
        shard_lines=tuple(f"Name=shard {kind} Count={_SHARDS} {file}" for kind, file in places),
        seat_lines=tuple(f"Name=seat {kind} {file}" for kind, file in places),
    )


def _cores(machine: Machine, layout: CpuLayout | None) -> tuple[list[str], list[str]]:
    """Returns `Cores=` of each GPU, and what to say about them."""
    if unknown := [gpu.position for gpu in machine.gpus if not gpu.cpus]:
        raise UnknownError(
            f"its topology file does not tell the CPUs near {_gpus(unknown)};"
            f" {_AGAIN}, or leave Cores= out with --no-cores"
        )
    if layout is None:
        raise UnknownError(
            "how Slurm counts its cores is not known; give the output of slurmd -C with --slurmd-c FILE,"
            " or leave Cores= out with --no-cores"
        )
    try:
        sockets = near_sockets([gpu.cpus for gpu in machine.gpus], layout)
    except UnknownError as error:
        raise UnknownError(f"{error}; check --slurmd-c, or leave Cores= out with --no-cores") from None
    core_lists = [cores_of(near, layout) for near in sockets]
    together: dict[tuple[str, str, frozenset[int]], list[int]] = {}
    for gpu, core_list, near in zip(machine.gpus, core_lists, sockets, strict=True):
        together.setdefault((core_list, gpu.cpus, near), []).append(gpu.position)
    return core_lists, [_cores_note(key, positions) for key, positions in together.items()]


def _cores_note(key: tuple[str, str, frozenset[int]], positions: Sequence[int]) -> str:
    core_list, cpus, near = key
    whose = f"{_gpus(positions)} (Linux: CPUs {cpus})"
    if core_list:
        return f"{whose}: socket {min(near)}, which is cores {core_list} to Slurm; it takes whole sockets only."
    return f"{whose}: no Cores=, for Slurm takes one socket of several, or none."


def _gres_words(machine: Machine) -> str:
    kinds = ("gpu:g{}:1", f"shard:g{{}}:{_SHARDS}", "seat:g{}:1")
    words = [kind.format(gpu.position) for kind in kinds for gpu in machine.gpus]
    return f"Gres={','.join(words)} Feature={machine.model}"


def _gpu_lines(machine: Machine, core_lists: Sequence[str]) -> Iterator[str]:
    for gpu, core_list in zip(machine.gpus, core_lists, strict=True):
        line = f"Name=gpu Type=g{gpu.position} File=/dev/nvidia{gpu.minor}"
        if core_list:
            line += f" Cores={core_list}"
        if machine.links:
            line += f" Links={','.join(map(str, _link_counts(machine, gpu.position)))}"
        yield line


def _link_counts(machine: Machine, position: int) -> list[int]:
    """Returns NVLinks to each GPU in Slurm's form: -1 for the GPU itself."""
    counts = [0] * machine.size
    counts[position] = -1
    for link in machine.links:
        if position in (link.a, link.b):
            counts[link.b if position == link.a else link.a] = link.count
    return counts


def _gres_conf(nodes: str, block: _Block) -> Iterator[str]:
    yield f"# {block.summary}: GPU K is type gK, in the order of the device files."
    yield from (f"# {note}" for note in block.gpu_notes)
    yield from (f"NodeName={nodes} {line}" for line in block.gpu_lines)
    yield "# The same GPUs in hundredths, for jobs that share one."
    yield from (f"NodeName={nodes} {line}" for line in block.shard_lines)
    yield "# A seat on each, for one guest."
    yield from (f"NodeName={nodes} {line}" for line in block.seat_lines)
