"""Lists the changes between two discoveries of a node or a cluster: one sentence a change, the worst first.

GPUs are recognised by their UUID, so a GPU that moved to another position is the same GPU. A new UUID at an old bus
id is a replacement. Where UUIDs say nothing (another node, or a machine that was read from text), GPUs are compared
by position.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import combinations
from typing import Literal, TypeAlias

from topology.model import NEAR, Gpu, Machine, Nic, PathWord

Severity: TypeAlias = Literal["loss", "change", "gain", "software"]

#: Every kind of change with its severity, the worst first.
_SEVERITY: dict[str, Severity] = {
    "node-gone": "loss",
    "gpu-gone": "loss",
    "links-gone": "loss",
    "links-fewer": "loss",
    "links-slower": "loss",
    "domain-left": "loss",
    "nic-gone": "loss",
    "nic-slower": "loss",
    "problem-new": "loss",
    "gpu-replaced": "change",
    "mig": "change",
    "position": "change",
    "minor": "change",
    "bus": "change",
    "domain": "change",
    "model": "change",
    "memory": "change",
    "path": "change",
    "numa": "change",
    "node-new": "gain",
    "gpu-new": "gain",
    "links-new": "gain",
    "links-more": "gain",
    "links-faster": "gain",
    "domain-joined": "gain",
    "nic-new": "gain",
    "nic-faster": "gain",
    "problem-gone": "gain",
    "nic-name": "software",
    "driver": "software",
    "name": "software",
    "cpus": "software",
}
_ORDER = {kind: place for place, kind in enumerate(_SEVERITY)}
#: Rates that differ by less are the same: drivers round, and name plates round otherwise.
_SAME_RATE = 0.02
#: Machines from these sources have UUIDs that no real GPU has.
_NO_UUIDS = ("nvidia-smi", "named machine")


@dataclass(frozen=True, slots=True)
class TopologyChange:
    """One thing that is not as it was."""

    kind: str
    node: str
    text: str
    """A sentence without the node."""
    uuid: str = ""
    """The GPU that it is about: the old one where it is gone or replaced."""

    @property
    def severity(self) -> Severity:
        """Returns the severity: something is lost, changed or gained, or only software differs."""
        return _SEVERITY[self.kind]


def changes(old: Machine, new: Machine) -> list[TopologyChange]:
    """Returns the changes on one node, the worst first."""
    return _sorted(_node_changes(old, new))


def cluster_changes(old: Mapping[str, Machine], new: Mapping[str, Machine]) -> list[TopologyChange]:
    """Returns the changes on all nodes, the worst first."""

    def all_nodes() -> Iterator[TopologyChange]:
        for node, machine in old.items():
            if node in new:
                yield from _node_changes(machine, new[node])
            else:
                yield TopologyChange("node-gone", node, f"the node is gone with its {machine.size} GPUs")
        for node, machine in new.items():
            if node not in old:
                yield TopologyChange(
                    "node-new", node, f"the node is new, with {machine.size} GPUs of model {machine.model}"
                )

    return _sorted(all_nodes())


def _sorted(found: Iterable[TopologyChange]) -> list[TopologyChange]:
    return sorted(found, key=lambda change: _ORDER[change.kind])


def _node_changes(old: Machine, new: Machine) -> Iterator[TopologyChange]:
    node = new.node
    pairs = _pairs(old, new)
    kept = {before.position for before, _ in pairs}
    for gpu in old.gpus:
        if gpu.position not in kept:
            yield TopologyChange("gpu-gone", node, f"{_who(gpu)} is gone", gpu.uuid)
    kept = {now.position for _, now in pairs}
    for gpu in new.gpus:
        if gpu.position not in kept:
            yield TopologyChange("gpu-new", node, f"{_who(gpu)} is new", gpu.uuid)
    for before, now in pairs:
        for kind, text in _gpu_changes(before, now, identified=_identified(old, new)):
            yield TopologyChange(kind, node, text, before.uuid)
    yield from _link_changes(old, new, pairs)
    yield from _path_changes(old, new, pairs)
    for kind, text in [*_nic_changes(old, new), *_whole_changes(old, new)]:
        yield TopologyChange(kind, node, text)


def _identified(old: Machine, new: Machine) -> bool:
    """Returns True if UUIDs identify the GPUs: text has none, and another node has others."""
    sources = [machine.discovered.by for machine in (old, new) if machine.discovered]
    return old.node == new.node and not any(source.startswith(_NO_UUIDS) for source in sources)


def _pairs(old: Machine, new: Machine) -> list[tuple[Gpu, Gpu]]:
    """Returns GPUs before and now that are the same one, or the one and its replacement."""
    if not _identified(old, new):
        return list(zip(old.gpus, new.gpus, strict=False))
    now = {gpu.uuid: gpu for gpu in new.gpus}
    pairs = [(gpu, now.pop(gpu.uuid)) for gpu in old.gpus if gpu.uuid in now]
    same = {before.uuid for before, _ in pairs}
    # A file written by hand has no bus ids; then the device file has to do.
    bus_known = all(gpu.bus_id for gpu in (*old.gpus, *new.gpus))
    slots = {gpu.bus_id if bus_known else str(gpu.minor): gpu for gpu in now.values()}
    for gpu in old.gpus:
        slot = gpu.bus_id if bus_known else str(gpu.minor)
        if gpu.uuid not in same and slot in slots:
            pairs.append((gpu, slots[slot]))
    return pairs


def _who(gpu: Gpu) -> str:
    return f"GPU {gpu.position} ({gpu.uuid}{f' at {gpu.bus_id}' if gpu.bus_id else ''})"


def _gpu_changes(before: Gpu, now: Gpu, *, identified: bool) -> Iterator[tuple[str, str]]:
    who = _who(before)
    if identified and before.uuid != now.uuid:
        yield "gpu-replaced", f"{who} was replaced by {now.uuid}"
    if before.mig != now.mig:
        yield "mig", f"{who}: MIG was turned {'on' if now.mig else 'off'}"
    if before.position != now.position:
        yield "position", f"{who} moved to position {now.position}, so its GRES type is g{now.position} now"
    if before.minor != now.minor:
        yield "minor", f"{who} is /dev/nvidia{now.minor} now, not /dev/nvidia{before.minor}"
    if identified and before.bus_id and now.bus_id and before.bus_id != now.bus_id:
        yield "bus", f"{who} sits at {now.bus_id} now"
    if before.memory_mib and now.memory_mib and before.memory_mib != now.memory_mib:
        yield "memory", f"{who} has {now.memory_mib} MiB of memory, not {before.memory_mib}"
    if before.numa >= 0 and now.numa >= 0 and before.numa != now.numa:
        yield "numa", f"{who} is near NUMA node {now.numa} now, not {before.numa}"
    if before.name and now.name and before.name != now.name:
        yield "name", f'{who} is called "{now.name}" now, not "{before.name}"'
    if before.cpus and now.cpus and before.cpus != now.cpus:
        yield "cpus", f"{who} is near CPUs {now.cpus} now, not {before.cpus}"
    if not _same(before.c2c_gbps, now.c2c_gbps):
        kind = "links-slower" if now.c2c_gbps < before.c2c_gbps else "links-faster"
        yield kind, f"{who} has {now.c2c_gbps:.1f} GB/s to its CPU, not {before.c2c_gbps:.1f}"


def _same(one: float, other: float) -> bool:
    return abs(one - other) <= _SAME_RATE * max(one, other)


@dataclass(frozen=True, slots=True)
class _Rate:
    """NVLinks from one end to another."""

    count: int = 0
    gbps: float = 0.0

    def compare(self, now: _Rate) -> tuple[str, str] | None:
        """Returns kind of change and words for it; None where they are the same."""
        numbers = f"({now.gbps:.1f} GB/s instead of {self.gbps:.1f})"
        if now.count < self.count:
            if not now.count:
                return "links-gone", f"no NVLink is left of {self.count} ({self.gbps:.1f} GB/s lost)"
            return "links-fewer", f"{now.count} of {self.count} NVLinks are left {numbers}"
        if now.count > self.count:
            kind = "links-more" if self.count else "links-new"
            return kind, f"{now.count} NVLinks where {self.count or 'none'} were {numbers}"
        if not _same(self.gbps, now.gbps):
            kind = "links-slower" if now.gbps < self.gbps else "links-faster"
            return kind, f"the same {now.count} NVLinks run at another rate {numbers}"
        return None


_NONE = _Rate()


def _rates(machine: Machine) -> tuple[dict[frozenset[int], _Rate], dict[int, _Rate]]:
    """Returns links of each pair, and what each GPU has to the switches: as much as the widest pair that it is in."""
    joined: dict[frozenset[int], _Rate] = {}
    switched: dict[int, _Rate] = {}
    for link in machine.links:
        rate = joined[frozenset((link.a, link.b))] = _Rate(link.count, link.gbps)
        if link.via == "switch":
            for end in (link.a, link.b):
                switched[end] = max(switched.get(end, rate), rate, key=lambda one: one.gbps)
    return joined, switched


def _link_changes(old: Machine, new: Machine, pairs: list[tuple[Gpu, Gpu]]) -> Iterator[TopologyChange]:
    """Yields changed links; one sentence for a GPU where its links to switches explain what all of its pairs lost."""
    old_pairs, old_switched = _rates(old)
    new_pairs, new_switched = _rates(new)
    for before, now in pairs:
        was, is_ = (rates.get(gpu.position, _NONE) for rates, gpu in ((old_switched, before), (new_switched, now)))
        found = was.compare(is_)
        if found:
            yield TopologyChange(found[0], new.node, f"{_who(before)} to the switches: {found[1]}", before.uuid)
    for (a, a_now), (b, b_now) in combinations(pairs, 2):
        was = old_pairs.get(frozenset((a.position, b.position)), _NONE)
        is_ = new_pairs.get(frozenset((a_now.position, b_now.position)), _NONE)
        old_limit = _weaker(old_switched, a, b)
        new_limit = _weaker(new_switched, a_now, b_now)
        found = was.compare(is_)
        if found and not (was == old_limit and is_ == new_limit):
            first, second = sorted((a, b), key=lambda gpu: gpu.position)
            yield TopologyChange(found[0], new.node, f"{_who(first)} and {_who(second)}: {found[1]}", first.uuid)


def _weaker(switched: Mapping[int, _Rate], a: Gpu, b: Gpu) -> _Rate:
    """Returns the rate of a pair through the switches if only its ends limit it."""
    return min((switched.get(gpu.position, _NONE) for gpu in (a, b)), key=lambda rate: rate.gbps)


def _path_changes(old: Machine, new: Machine, pairs: list[tuple[Gpu, Gpu]]) -> Iterator[TopologyChange]:
    found = [
        TopologyChange("path", new.node, f"{who} are {_nearer(was, is_)} over PCIe: {is_}, not {was}", uuid)
        for was, is_, who, uuid in [*_gpu_paths(old, new, pairs), *_nic_paths(old, new, pairs)]
        if was != is_ and "?" not in {was, is_}
    ]
    # A moved card changes many pairs at once; one sentence says that as well.
    if len(found) > 3:
        yield TopologyChange(
            "path", new.node, f"{len(found)} PCIe paths changed, the first: {found[0].text}", found[0].uuid
        )
    else:
        yield from found


_PathPair: TypeAlias = tuple[PathWord, PathWord, str, str]


def _gpu_paths(old: Machine, new: Machine, pairs: list[tuple[Gpu, Gpu]]) -> Iterator[_PathPair]:
    if old.paths and new.paths:
        for (a, a_now), (b, b_now) in combinations(pairs, 2):
            was, is_ = old.paths[a.position][b.position], new.paths[a_now.position][b_now.position]
            yield was, is_, f"{_who(a)} and {_who(b)}", a.uuid


def _nic_paths(old: Machine, new: Machine, pairs: list[tuple[Gpu, Gpu]]) -> Iterator[_PathPair]:
    if old.nic_paths and new.nic_paths:
        columns = {nic.name: column for column, nic in enumerate(new.nics)}
        for column, nic in enumerate(old.nics):
            if nic.name in columns:
                for gpu, now in pairs:
                    was, is_ = old.nic_paths[gpu.position][column], new.nic_paths[now.position][columns[nic.name]]
                    yield was, is_, f"{_who(gpu)} and {nic.name}", gpu.uuid


def _nearer(was: PathWord, is_: PathWord) -> str:
    return "nearer" if NEAR[is_] > NEAR[was] else "farther"


def _nic_changes(old: Machine, new: Machine) -> Iterator[tuple[str, str]]:
    names = {nic.name: nic for nic in new.nics}
    slots = {nic.bus_id: nic for nic in new.nics if nic.bus_id}
    seen = set()
    for nic in old.nics:
        now = slots.get(nic.bus_id) or names.get(nic.name)
        if now is None:
            yield "nic-gone", f"the NIC {_nic(nic)} is gone"
            continue
        seen.add(now.name)
        if now.name != nic.name:
            yield "nic-name", f"the NIC {_nic(nic)} is called {now.name} now"
        if nic.gbps and now.gbps and not _same(nic.gbps, now.gbps):
            kind = "nic-slower" if now.gbps < nic.gbps else "nic-faster"
            yield kind, f"the NIC {_nic(nic)} has {now.gbps:g} GB/s, not {nic.gbps:g}"
    for nic in new.nics:
        if nic.name not in seen:
            yield "nic-new", f"the NIC {_nic(nic)} is new"


def _nic(nic: Nic) -> str:
    return f"{nic.name} at {nic.bus_id}" if nic.bus_id else nic.name


def _whole_changes(old: Machine, new: Machine) -> Iterator[tuple[str, str]]:
    if old.model != new.model:
        yield "model", f"the model is {new.model}, not {old.model}, so the node's feature has to change"
    if old.domain != new.domain:
        if not new.domain:
            yield "domain-left", f"the node left NVLink domain {old.domain}"
        elif not old.domain:
            yield "domain-joined", f"the node joined NVLink domain {new.domain}"
        else:
            yield "domain", f"the NVLink domain is {new.domain}, not {old.domain}"
    drivers = [machine.discovered.driver if machine.discovered else "" for machine in (old, new)]
    if all(drivers) and drivers[0] != drivers[1]:
        yield "driver", f"the driver is {drivers[1]}, not {drivers[0]}"
    for problem in new.problems:
        if problem not in old.problems:
            yield "problem-new", f"new problem: {problem}"
    for problem in old.problems:
        if problem not in new.problems:
            yield "problem-gone", f"gone problem: {problem}"
