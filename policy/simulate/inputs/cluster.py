# SPDX-License-Identifier: Apache-2.0
"""Builds the cluster of a study: its size, its machines, its costs, and how its nodes are joined."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from policy.cluster.cost import EVERYONE, PUBLISHED, CostModel, Table, one_factor, pal_locality, read_costs
from policy.cluster.fleet import Fleet
from policy.formats.errors import ConfigError, FormatError, UsageError, nearest
from policy.simulate import world
from policy.simulate.inputs.scores import grids
from policy.simulate.pal_rounds.philly import LOCALITIES
from policy.simulate.study import Study
from topology import files
from topology.model import Machine
from topology.network.fabric import LEVELS, Fabric
from topology.providers import slurm_fabric


def build(study: Study, seed: int) -> Fleet:
    """Returns the fleet for one run of the study; the seed draws GPUs from measured runs."""
    if not study.topology:
        pattern = _pattern(study)
        plan = _layout(study, study.nodes, pattern.size if pattern else study.gpus_per_node)
        scores = grids(study.scores, plan.nodes, plan.gpus_per_node, (), study.profile_way, seed)
        return world.build(plan, scores, costs(study), pattern)
    machines = _machines(study.topology)
    widest = max(machine.size for machine in machines)
    scores = grids(study.scores, len(machines), widest, machines, study.profile_way, seed)
    return world.build_of(
        {machine.node: machine for machine in machines}, _fabric(study, machines), scores, costs(study)
    )


def sizes(study: Study) -> list[int]:
    """Returns the number of GPUs of each node."""
    if study.topology:
        return [machine.size for machine in _machines(study.topology)]
    pattern = _pattern(study)
    return [pattern.size if pattern else study.gpus_per_node] * study.nodes


def _layout(study: Study, nodes: int, gpus: int) -> world.Layout:
    return world.Layout(nodes, gpus, study.nodes_per_leaf, study.leaves_per_pod)


def _pattern(study: Study) -> Machine | None:
    """Returns the machine that all nodes are copies of; None if only a number of GPUs is known."""
    if not study.machine:
        return None
    from topology.machines import machine  # noqa: PLC0415 - only where a machine is named

    named: Machine = machine(study.machine, "n0")
    if study.gpus_per_node not in (0, named.size):
        raise UsageError(
            f"--machine {study.machine} has {named.size} GPUs, and --gpus-per-node says {study.gpus_per_node}; "
            "leave one of them out"
        )
    return named


def _machines(folder: str) -> list[Machine]:
    """Returns all machines of a topology folder, which may be of several kinds."""
    problems: list[str] = []
    machines = list(files.load_directory(folder, lambda problem: problems.append(str(problem))).values())
    if problems:
        raise FormatError(problems[0])
    if not machines:
        raise UsageError(f"{folder} has no topology file; give the folder that berthd reads")
    return machines


def _fabric(study: Study, machines: Sequence[Machine]) -> Fabric:
    """Returns leaves and pods from Slurm's own file if it is named, as berthd reads it; else by node number."""
    if study.fabric:
        fabric = Fabric.of(machines, slurm_fabric.read(study.fabric))
        if not fabric.leaves:
            raise UsageError(f"fabric {study.fabric}: it names no leaf of the nodes in {study.topology}")
        return fabric
    if study.nodes_per_leaf:
        drawn = world.fabric_of(_layout(study, len(machines), 0), [machine.node for machine in machines])
        return replace(Fabric.of(machines), leaf=drawn.leaf, pod=drawn.pod, leaves=drawn.leaves, pods=drawn.pods)
    return Fabric.of(machines)


def costs(study: Study) -> CostModel:
    """Returns the cost model of `locality_penalty`: a number, LEVEL=NUMBER,..., or a file.

    Where it is empty, it is the mode's own model.
    """
    text = study.locality_penalty
    if not text:
        if study.mode == "pal-rounds":
            return CostModel(pal_locality())
        return CostModel(LOCALITIES if study.models == "drawn" else PUBLISHED)
    try:
        try:
            return CostModel(pal_locality(float(text)))
        except ValueError:
            return CostModel(_levels(text) if "=" in text else _table(text))
    except ConfigError as problem:
        raise UsageError(f"locality_penalty {text}: {problem}") from None


def _levels(text: str) -> Table:
    factors = {}
    for word in text.split(","):
        level, _, factor = word.partition("=")
        if level not in LEVELS:
            raise UsageError(f"locality_penalty {text}: there is no level {level}{nearest(level, LEVELS)}")
        try:
            factors[level] = float(factor)
        except ValueError:
            raise UsageError(f"locality_penalty {text}: {word} should be LEVEL=NUMBER") from None
    return {EVERYONE: one_factor(**factors)}


def _table(path: str) -> Table:
    if not Path(path).exists():
        raise UsageError(f"locality_penalty {path}: neither a number, nor LEVEL=NUMBER,..., nor a file")
    return read_costs(Path(path).read_text(encoding="utf-8").splitlines(), path)
