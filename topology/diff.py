"""Lists the changes between two discoveries of a node or a cluster: one sentence a change, the worst first.

GPUs are recognised by their UUID, so a GPU that moved to another position is the same GPU. A new UUID at an old bus
id is a replacement. Where UUIDs say nothing (another node, or a machine that was read from text), GPUs are compared
by position.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import combinations
from typing import Literal, NamedTuple, TypeAlias

from topology.model import NEAR, Gpu, Machine, Nic, PathWord

Severity: TypeAlias = Literal["loss", "change", "gain", "software"]

_ORDER: tuple[Severity, ...] = ("loss", "change", "gain", "software")
#: Rates that differ by less are the same: drivers round, and name plates round otherwise.
_SAME_RATE = 0.02
#: Machines from these sources have UUIDs that no real GPU has.
_NO_UUIDS = ("nvidia-smi", "named machine")
#: By kind: the attribute of a GPU, the value that stands for one that is not known, and words for what it is now.
_OF_A_GPU: Mapping[str, tuple[str, object, str]] = {
    "mig": ("mig", None, "has MIG {now}"),
    "position": ("position", None, "is at position {now}, so that its GRES type is g{now} now"),
    "minor": ("minor", None, "is /dev/nvidia{now}"),
    "bus": ("bus_id", "", "sits at {now}"),
    "memory": ("memory_mib", 0, "has {now} MiB of memory"),
    "numa": ("numa", -1, "is near NUMA node {now}"),
    "name": ("name", "", 'is called "{now}"'),
    "cpus": ("cpus", "", "is near CPUs {now}"),
}
_SOFTWARE = ("name", "cpus")
_MOST_PATHS = 3


@dataclass(frozen=True, slots=True)
class TopologyChange:
    """One thing that is not as it was."""

    severity: Severity
    """Tells whether something is lost, changed or gained, or only software differs."""
    kind: str
    node: str
    text: str
    """A sentence without the node."""
    uuid: str = ""
    """The GPU that it is about: the old one where it is gone or replaced."""


_Found: TypeAlias = tuple[Severity, str, str, str]
"""Severity, kind, text and UUID."""


def changes(old: Machine, new: Machine) -> list[TopologyChange]:
    """Returns the changes on one node, the worst first."""
    return _sorted((new.node, found) for found in _of_node(old, new))


def cluster_changes(old: Mapping[str, Machine], new: Mapping[str, Machine]) -> list[TopologyChange]:
    """Returns the changes on all nodes, the worst first."""

    def all_nodes() -> Iterator[tuple[str, _Found]]:
        for node, machine in old.items():
            if node in new:
                yield from ((node, found) for found in _of_node(machine, new[node]))
            else:
                yield node, ("loss", "node", f"the node is gone with its {machine.size} GPUs", "")
        for node, machine in new.items():
            if node not in old:
                text = f"the node is new, with {machine.size} GPUs of model {machine.model}"
                yield node, ("gain", "node", text, "")

    return _sorted(all_nodes())


def _sorted(found: Iterable[tuple[str, _Found]]) -> list[TopologyChange]:
    made = [TopologyChange(severity, kind, node, text, uuid) for node, (severity, kind, text, uuid) in found]
    return sorted(made, key=lambda change: (_ORDER.index(change.severity), change.kind != "node"))


def _of_node(old: Machine, new: Machine) -> Iterator[_Found]:
    identified = _identified(old, new)
    pairs = _pairs(old, new, identified=identified)
    kept, found = {before.position for before, _ in pairs}, {now.position for _, now in pairs}
    for gpu in (gpu for gpu in old.gpus if gpu.position not in kept):
        yield "loss", "gpu", f"{_who(gpu)} is gone", gpu.uuid
    for gpu in (gpu for gpu in new.gpus if gpu.position not in found):
        yield "gain", "gpu", f"{_who(gpu)} is new", gpu.uuid
    for before, now in pairs:
        yield from _of_gpu(before, now, identified=identified)
    # Each GPU that is on both sides, by its position there; both sides name it as the old one does.
    ours = {now.position: before for before, now in pairs}
    theirs = {before.position: before for before, _ in sorted(pairs, key=lambda pair: pair[0].position)}
    yield from _of_links(_Links.of(old, theirs), _Links.of(new, ours), theirs.values())
    yield from _of_paths(_paths(old, theirs), _paths(new, ours))
    yield from _of_nics(old, new)
    yield from _of_machine(old, new)


def _identified(old: Machine, new: Machine) -> bool:
    """Returns True if UUIDs identify the GPUs: text has none, and another node has others."""
    sources = [machine.discovered.by for machine in (old, new) if machine.discovered]
    return old.node == new.node and not any(source.startswith(_NO_UUIDS) for source in sources)


def _pairs(old: Machine, new: Machine, *, identified: bool) -> list[tuple[Gpu, Gpu]]:
    """Returns GPUs before and now that are the same one, or the one and its replacement."""
    if not identified:
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


def _of_gpu(before: Gpu, now: Gpu, *, identified: bool) -> Iterator[_Found]:
    if identified and before.uuid != now.uuid:
        yield "change", "replaced", f"{_who(before)} was replaced by {now.uuid}", before.uuid
    for kind, (attribute, unknown, words) in _OF_A_GPU.items():
        was, is_ = getattr(before, attribute), getattr(now, attribute)
        if was != is_ and unknown not in (was, is_) and (identified or kind != "bus"):
            told = words.format(now=("on" if is_ else "off") if kind == "mig" else is_)
            severity: Severity = "software" if kind in _SOFTWARE else "change"
            yield severity, kind, f"{_who(before)} {told}, before: {was}", before.uuid
    rate = _compared(_Rate(1, before.c2c_gbps), _Rate(1, now.c2c_gbps))
    if rate:
        yield rate[0], "links", f"{_who(before)} to its CPU: {rate[1]}", before.uuid


@dataclass(frozen=True, slots=True)
class _Rate:
    """NVLinks from one end to another."""

    count: int = 0
    gbps: float = 0.0


_NONE = _Rate()


def _compared(was: _Rate, now: _Rate) -> tuple[Severity, str] | None:
    """Returns the severity and words for a change of links; None where they are the same."""
    if was.count == now.count and abs(was.gbps - now.gbps) <= _SAME_RATE * max(was.gbps, now.gbps):
        return None
    if not now.count:
        return "loss", f"no NVLink is left of {was.count} ({was.gbps:.1f} GB/s lost)"
    numbers = f"({now.gbps:.1f} GB/s instead of {was.gbps:.1f})"
    if now.count < was.count:
        return "loss", f"{now.count} of {was.count} NVLinks are left {numbers}"
    if now.count > was.count:
        return "gain", f"{now.count} NVLinks where {was.count or 'none'} were {numbers}"
    return "loss" if now.gbps < was.gbps else "gain", f"the same links run at another rate {numbers}"


class _Links(NamedTuple):
    """The links of each pair, and what each GPU has to the switches, by UUID of the old GPUs."""

    joined: Mapping[frozenset[str], _Rate]
    switched: Mapping[str, _Rate]
    """As much as the widest pair that the GPU is in."""

    @classmethod
    def of(cls, machine: Machine, gpus: Mapping[int, Gpu]) -> "_Links":
        joined: dict[frozenset[str], _Rate] = {}
        switched: dict[str, _Rate] = {}
        for link in machine.links:
            if link.a not in gpus or link.b not in gpus:
                continue
            ends = gpus[link.a].uuid, gpus[link.b].uuid
            rate = joined[frozenset(ends)] = _Rate(link.count, link.gbps)
            if link.via == "switch":
                switched |= {end: max(switched.get(end, rate), rate, key=lambda one: one.gbps) for end in ends}
        return cls(joined, switched)

    def limit(self, pair: Iterable[str]) -> _Rate:
        """Returns the rate of a pair through the switches if only its ends limit it."""
        return min((self.switched.get(end, _NONE) for end in pair), key=lambda rate: rate.gbps)


def _of_links(old: _Links, new: _Links, gpus: Iterable[Gpu]) -> Iterator[_Found]:
    """Yields changed links; one sentence for a GPU where its links to switches explain what all of its pairs lost."""
    here = list(gpus)
    for gpu in here:
        found = _compared(old.switched.get(gpu.uuid, _NONE), new.switched.get(gpu.uuid, _NONE))
        if found:
            yield found[0], "links", f"{_who(gpu)} to the switches: {found[1]}", gpu.uuid
    for a, b in combinations(here, 2):
        pair = frozenset((a.uuid, b.uuid))
        was, now = old.joined.get(pair, _NONE), new.joined.get(pair, _NONE)
        found = _compared(was, now)
        if found and not (was == old.limit(pair) and now == new.limit(pair)):
            yield found[0], "links", f"{_who(a)} and {_who(b)}: {found[1]}", a.uuid


_Paths: TypeAlias = Mapping[str, tuple[PathWord, str]]


def _paths(machine: Machine, gpus: Mapping[int, Gpu]) -> _Paths:
    """Returns the PCIe paths that are known, by the words for their ends, with the first GPU."""
    found: dict[str, tuple[PathWord, str]] = {}
    places = sorted(gpus, key=lambda place: gpus[place].position)
    for a, b in combinations(places, 2) if machine.paths else ():
        found[f"{_who(gpus[a])} and {_who(gpus[b])}"] = machine.paths[a][b], gpus[a].uuid
    for column, nic in enumerate(machine.nics if machine.nic_paths else ()):
        for place in places:
            found[f"{_who(gpus[place])} and {nic.name}"] = machine.nic_paths[place][column], gpus[place].uuid
    return found


def _of_paths(old: _Paths, new: _Paths) -> Iterator[_Found]:
    found: list[_Found] = []
    for who, (was, uuid) in old.items():
        now = new[who][0] if who in new else was
        if was != now and "?" not in {was, now}:
            nearer = "nearer" if NEAR[now] > NEAR[was] else "farther"
            found.append(("change", "path", f"{who} are {nearer} over PCIe: {now}, not {was}", uuid))
    # A moved card changes many pairs at once; one sentence says that as well.
    if len(found) > _MOST_PATHS:
        _, _, first, uuid = found[0]
        found = [("change", "path", f"{len(found)} PCIe paths changed, the first: {first}", uuid)]
    yield from found


def _of_nics(old: Machine, new: Machine) -> Iterator[_Found]:
    names = {nic.name: nic for nic in new.nics}
    slots = {nic.bus_id: nic for nic in new.nics if nic.bus_id}
    seen = set()
    for nic in old.nics:
        now = slots.get(nic.bus_id) or names.get(nic.name)
        if now is None:
            yield "loss", "nic", f"the NIC {_nic(nic)} is gone", ""
            continue
        seen.add(now.name)
        if now.name != nic.name:
            yield "software", "nic", f"the NIC {_nic(nic)} is called {now.name} now", ""
        if nic.gbps and now.gbps and abs(now.gbps - nic.gbps) > _SAME_RATE * max(now.gbps, nic.gbps):
            severity: Severity = "loss" if now.gbps < nic.gbps else "gain"
            yield severity, "nic", f"the NIC {_nic(nic)} has {now.gbps:g} GB/s, not {nic.gbps:g}", ""
    yield from (("gain", "nic", f"the NIC {_nic(nic)} is new", "") for nic in new.nics if nic.name not in seen)


def _nic(nic: Nic) -> str:
    return f"{nic.name} at {nic.bus_id}" if nic.bus_id else nic.name


def _of_machine(old: Machine, new: Machine) -> Iterator[_Found]:
    if old.model != new.model:
        text = f"the model is {new.model}, not {old.model}, so the node's feature has to change"
        yield "change", "model", text, ""
    if old.domain != new.domain:
        severity: Severity = "change" if old.domain and new.domain else "gain" if new.domain else "loss"
        yield severity, "domain", f"the NVLink domain is {new.domain or 'none'}, not {old.domain or 'none'}", ""
    drivers = [machine.discovered.driver if machine.discovered else "" for machine in (old, new)]
    if all(drivers) and drivers[0] != drivers[1]:
        yield "software", "driver", f"the driver is {drivers[1]}, not {drivers[0]}", ""
    yield from (("loss", "problem", f"new problem: {one}", "") for one in new.problems if one not in old.problems)
    yield from (("gain", "problem", f"gone problem: {one}", "") for one in old.problems if one not in new.problems)
