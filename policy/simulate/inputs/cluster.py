"""The cluster of a study: its size, its machines, its costs, and what happens to its nodes."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from policy.cluster import Fleet
from policy.cost import EVERYONE, PUBLISHED, CostModel, Table, one_factor, pal_locality
from policy.errors import ConfigError, FormatError, UsageError, nearest
from policy.simulate import world
from policy.simulate.inputs.scores import grids
from policy.simulate.inputs.text import read_table
from policy.simulate.philly import LOCALITIES
from policy.simulate.study import Study
from topology import files
from topology.fabric import LEVELS
from topology.model import Machine


def build(study: Study, seed: int) -> Fleet:
    """The fleet that a run of the study happens on; the seed draws GPUs from measured runs."""
    machines = _machines(study)
    nodes, gpus = _size(study, machines)
    names = tuple(machine.node for machine in machines) if study.topology else ()
    plan = world.Plan(nodes, gpus, study.nodes_per_leaf, study.leaves_per_pod)
    scores = grids(study.scores, nodes, gpus, machines if names else (), study.profile_way, seed)
    fleet = world.build(plan, scores, costs(study), machines[0] if machines else None)
    if not names:
        return fleet
    return replace(
        fleet,
        names=names,
        index={name: place for place, name in enumerate(names)},
        fabric=replace(fleet.fabric, names=names),
    )


def size(study: Study) -> tuple[int, int]:
    """Number of nodes, and of GPUs on each."""
    return _size(study, _machines(study))


def _size(study: Study, machines: Sequence[Machine]) -> tuple[int, int]:
    return (
        len(machines) if study.topology else study.nodes,
        machines[0].size if machines else study.gpus_per_node,
    )


def _machines(study: Study) -> list[Machine]:
    """All machines of a topology folder, or the one that every node is like; none where only a number is known."""
    if study.topology:
        return _alike(study.topology)
    if not study.machine:
        return []
    from topology.machines import machine  # noqa: PLC0415 - only where a machine is named

    named: Machine = machine(study.machine, "n0")
    if study.gpus_per_node not in (0, named.size):
        raise UsageError(
            f"--machine {study.machine} has {named.size} GPUs, and --gpus-per-node says {study.gpus_per_node}; "
            "leave one of them out"
        )
    return [named]


def _alike(folder: str) -> list[Machine]:
    problems: list[str] = []
    machines = list(files.load_directory(folder, lambda problem: problems.append(str(problem))).values())
    if problems:
        raise FormatError(problems[0])
    if not machines:
        raise UsageError(f"{folder} has no topology file; give the folder that berthd reads")
    odd = next((machine for machine in machines if machine.shape != machines[0].shape), None)
    if odd:
        raise UsageError(
            f"{folder}: nodes {machines[0].node} and {odd.node} are of different kinds; "
            "a simulated cluster has one kind, so give a folder for each"
        )
    return machines


def costs(study: Study) -> CostModel:
    """Cost model of `--locality-penalty`: a number, LEVEL=NUMBER,..., or a file; the modes' own where it is empty."""
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
        raise UsageError(f"--locality-penalty {text}: {problem}") from None


def _levels(text: str) -> Table:
    factors = {}
    for word in text.split(","):
        level, _, factor = word.partition("=")
        if level not in LEVELS:
            raise UsageError(f"--locality-penalty {text}: there is no level {level}{nearest(level, LEVELS)}")
        try:
            factors[level] = float(factor)
        except ValueError:
            raise UsageError(f"--locality-penalty {text}: {word} should be LEVEL=NUMBER") from None
    return {EVERYONE: one_factor(**factors)}


def _table(path: str) -> Table:
    if not Path(path).exists():
        raise UsageError(f"--locality-penalty {path}: neither a number, nor LEVEL=NUMBER,..., nor a file")
    table = read_table(path)
    table.need("name", "level", "width", "factor")
    rows: dict[str, dict[str, dict[int, float]]] = {}
    for row in table.rows:
        rows.setdefault(row["name"], {}).setdefault(row["level"], {})[row.whole("width", 1)] = row.number("factor", 1)
    return rows
