# SPDX-License-Identifier: Apache-2.0
"""The fleet that berthd plans on: Slurm's nodes with their topology, fabric and scores."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from types import MappingProxyType

from policy.cluster.cost import CostModel
from policy.cluster.fleet import Fleet, build_fleet
from policy.daemon.hear.machines import others
from policy.daemon.known.score_table import ScoreTable
from policy.daemon.known.split_limits import SplitLimits
from policy.daemon.known.topologies import Topologies
from policy.formats.slurm_facts import NodeFacts, Reading
from policy.request.share import Mate
from policy.site import log
from policy.site.config import Config

_CHANGED = "{} has other GPUs than its topology file; run berth topo discover there"


class Fleets:
    """Makes the fleet of a reading, anew only if one of its parts changed: each new one is sent to the answerer."""

    def __init__(self, config: Config) -> None:
        self._topologies = Topologies(config.topology_dir, config.fabric)
        self._scores = ScoreTable(config.scores, config.steps)
        self._sharing = config.settings.sharing
        self._costs = CostModel.of_site(config.cost_lines())
        self._skipped = config.skip_partitions
        self._nodes_alone = config.plain
        self._absences = Absences()
        self._split_limits = SplitLimits()
        self._fleet: Fleet | None = None
        self._new_files = self._new_scores = False
        self._nodes: list[NodeFacts] = []
        self._told: frozenset[str] = frozenset()
        """The reasons why nodes get no jobs that were logged."""
        self._heard: object = None
        self._changed: frozenset[str] = frozenset()
        """The nodes whose GPUs differ from their topology files."""
        self._key: object = None

    def of(
        self,
        reading: Reading,
        apart: frozenset[int] = frozenset(),
        foes: frozenset[tuple[Mate, Mate]] = frozenset(),
        told: Mapping[str, tuple[str, ...]] = MappingProxyType({}),
    ) -> Fleet:
        """Returns the fleet of a reading. Packed jobs of the users `apart` share no GPU, and no pair of `foes` does.

        `told` has the GPUs that nodes report: a node whose GPUs differ from its topology file is left to Slurm.
        """
        # New files count as new until a fleet is made of them.
        self._new_files = self._topologies.refresh() or self._new_files
        self._new_scores = self._scores.refresh() or self._new_scores
        if told is not self._heard or self._new_files:
            self._heard, self._changed = told, others(self._topologies.machines, told)
        changed = self._changed
        key = (
            *(reading.partitions, reading.memory, reading.memory_counts, reading.in_all_partitions, reading.counted),
            *(reading.cpus_by_gpu, reading.one_task_per_core, changed),
        )
        if self._fleet is None or self._new_files or key != self._key or not self._same_nodes(reading):
            self._fleet = build_fleet(
                reading.nodes,
                reading.partitions,
                {name: one for name, one in self._topologies.machines.items() if name not in changed},
                reading.memory,
                memory_counts=reading.memory_counts,
                in_all_partitions=reading.in_all_partitions,
                fabric=self._topologies.fabric,
                costs=self._costs,
                sharing=self._sharing,
            )
            self._fleet = replace(
                self._fleet,
                skipped=self._skipped,
                counted=reading.counted,
                cpus_by_gpu=reading.cpus_by_gpu,
                one_task_per_core=reading.one_task_per_core,
                nodes_alone=self._nodes_alone,
                plain=(self._fleet.gpu_counts > 0) & ~self._fleet.ready if self._nodes_alone else self._fleet.plain,
            )
            self._fleet.tables.warm()
            self._key, self._new_files = key, False
            self._new_scores = True
            not_ready = {
                place: _CHANGED.format(name) if (name := self._fleet.names[place]) in changed else reason
                for place, reason in self._fleet.not_ready.items()
            }
            self._fleet = replace(self._fleet, not_ready=not_ready)
            reasons = not_ready.values()
            for reason in reasons:
                if reason not in self._told:
                    log.error(f"{reason}; Berth places no job there", 639)
            self._told = frozenset(reasons)
        if self._new_scores:
            self._fleet = replace(self._fleet, scores=self._scores.on(self._fleet))
            self._new_scores = False
        if (self._fleet.sharing.apart, self._fleet.sharing.foes) != (apart, foes):
            self._fleet = replace(self._fleet, sharing=replace(self._sharing, apart=apart, foes=foes))
        splits_limited = self._split_limits.may_refuse(reading)
        if self._fleet.splits_limited != splits_limited:
            self._fleet = replace(self._fleet, splits_limited=splits_limited)
        unnamed = self._absences.of(reading.nodes, reading.at)
        if self._fleet.unnamed != unnamed:
            self._fleet = replace(self._fleet, unnamed=unnamed)
        self._nodes = list(reading.nodes)
        return self._fleet

    def model_of(self, node: str, uuid: str) -> str:
        """Returns a GPU's model from the topology file of its node; empty if it is not there."""
        machine = self._topologies.machines.get(node)
        return next((gpu.name for gpu in machine.gpus if gpu.uuid == uuid), "") if machine else ""

    def _same_nodes(self, reading: Reading) -> bool:
        """Tells whether the nodes are the same as before, apart from what changes with each job."""
        if len(reading.nodes) != len(self._nodes):
            return False
        return all(
            new is old or _lasting(new) == _lasting(old) for new, old in zip(reading.nodes, self._nodes, strict=True)
        )


def _lasting(node: NodeFacts) -> NodeFacts:
    return replace(node, cpus_used=0, mem_used=0, up=True, completing=False, gpus_used=0, seats_used=0, shared=())


AWAY_FOR = 600.0
"""Seconds after which a node that takes no jobs may soon be taken out of slurm.conf; a reboot takes less."""


LOOK_EVERY = 60.0
"""Seconds between two looks: after each change all places are computed anew."""


class Absences:
    """Notes since when nodes take no jobs."""

    def __init__(self) -> None:
        self._since: dict[str, float] = {}
        self._last: float | None = None
        self._away: frozenset[str] = frozenset()

    def of(self, nodes: Iterable[NodeFacts], at: float) -> frozenset[str]:
        """Returns the nodes that are dynamic, or have taken no jobs for long: both may vanish from Slurm."""
        nodes = list(nodes)
        if self._last is None or not 0 <= at - self._last < LOOK_EVERY:
            self._last = at
            self._since = {node.name: self._since.get(node.name, at) for node in nodes if not node.up}
            self._away = frozenset(name for name, since in self._since.items() if at - since >= AWAY_FOR)
        return self._away | {node.name for node in nodes if node.dynamic}
