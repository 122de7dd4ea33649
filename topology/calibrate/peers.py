# SPDX-License-Identifier: Apache-2.0
"""Groups visits into arrays of comparable peers and decides which runs count."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np

from topology.calibrate.posterior import Floats
from topology.calibrate.runs import GpuVisit, KernelRun, Verdict, Visit, seconds_of, verdict

LATEST = 24
"""Number of a node's latest visits that count; older ones add no information."""
_ENOUGH_PEERS = 8
"""GPUs with one driver from which on the driver has a centre of its own."""
_DAY_S = 86_400.0

# A GPU that waits is slow at its full clock and with little power: it only lacks work.
_WAITS_FROM, _WAITS_MOST_POWER, _WAITS_LEAST_CLOCK = 1.15, 0.80, 0.97


@dataclass(frozen=True, slots=True, order=True)
class PeerKey:
    """Runs with the same key can be compared."""

    app_class: str
    model: str
    kernel: str
    power_limit_w: float


@dataclass(frozen=True, slots=True, order=True)
class GpuPlace:
    """A GPU in a node; one that moved has several."""

    node: str
    position: int
    uuid: str


@dataclass(frozen=True, slots=True)
class Peers:
    """All runs with one key. Arrays are by node, GPU and visit, filled up with not-a-number."""

    key: PeerKey
    nodes: tuple[str, ...]
    places: tuple[tuple[GpuPlace | None, ...], ...]
    """By node and GPU."""
    times: Floats
    """Logarithms over the median of the peers with the same driver; not a number where a run does not count."""
    days: Floats
    """By node and visit, since 1970."""
    verdicts: Mapping[GpuPlace, tuple[tuple[str, Verdict], ...]]
    """Time and verdict of each GPU's visits, the oldest first."""


@dataclass(frozen=True, slots=True)
class _Seen:
    place: GpuPlace
    visit: int
    at: str
    driver: str
    run: KernelRun
    wrong: Verdict


def verdicts(visits: Sequence[Visit]) -> Iterator[tuple[PeerKey, int, Visit, GpuVisit, KernelRun, Verdict]]:
    """Yields every run with its verdict, those for which it takes the peers too."""
    every = [
        (PeerKey(run.app_class, gpu.model, run.kernel, gpu.power_limit_w), number, visit, gpu, run, verdict(gpu, run))
        for number, visit in enumerate(visits)
        if visit.way == "together"
        for gpu in visit.gpus
        for run in gpu.runs
    ]
    typical: dict[PeerKey, tuple[float, float, float]] = {}
    by_key: dict[PeerKey, list[KernelRun]] = defaultdict(list)
    for key, _, _, _, run, wrong in every:
        if not wrong or wrong == "unsteady":
            by_key[key].append(run)
    for key, runs in by_key.items():
        typical[key] = (
            median(run.time_ms for run in runs),
            median(run.power_w for run in runs),
            median(run.sm_mhz for run in runs),
        )
    waits = [key in typical and _looks_idle(run, typical[key]) for key, _, _, _, run, _ in every]
    # One GPU that is slow at full clock and low power may be broken; the host is to blame where its others are too.
    shared: dict[tuple[PeerKey, int], list[bool]] = defaultdict(list)
    for (key, number, *_), wait in zip(every, waits, strict=True):
        shared[key, number].append(wait)
    for (key, number, visit, gpu, run, wrong), wait in zip(every, waits, strict=True):
        together = shared[key, number]
        by_host = wait and 2 * sum(together) > len(together) > 1
        yield key, number, visit, gpu, run, "waiting" if by_host and wrong in {"", "unsteady"} else wrong


def _looks_idle(run: KernelRun, typical: tuple[float, float, float]) -> bool:
    time, power, clock = typical
    return (
        run.time_ms > _WAITS_FROM * time
        and 0 < run.power_w < _WAITS_MOST_POWER * power
        and run.sm_mhz >= _WAITS_LEAST_CLOCK * clock > 0
    )


def peers_of(visits: Iterable[Visit]) -> list[Peers]:
    """Groups all runs by comparable peers."""
    ordered = sorted(visits, key=lambda visit: seconds_of(visit.at))
    by_key: dict[PeerKey, list[_Seen]] = defaultdict(list)
    for key, number, visit, gpu, run, wrong in verdicts(ordered):
        place = GpuPlace(visit.node, gpu.position, gpu.uuid)
        by_key[key].append(_Seen(place, number, visit.at, gpu.driver.partition(".")[0], run, wrong))
    return [_peers(key, by_key[key]) for key in sorted(by_key)]


def _peers(key: PeerKey, seen: Sequence[_Seen]) -> Peers:
    by_node: dict[str, list[_Seen]] = defaultdict(list)
    for one in seen:
        by_node[one.place.node].append(one)
    latest = {node: sorted({one.visit for one in some})[-LATEST:] for node, some in by_node.items()}
    nodes = tuple(sorted(by_node))
    gpus = {node: sorted({one.place for one in by_node[node]}) for node in nodes}
    shape = (len(nodes), max(map(len, gpus.values())), max(map(len, latest.values())))
    times, days = np.full(shape, np.nan), np.full((shape[0], shape[2]), np.nan)
    told: dict[GpuPlace, list[tuple[str, Verdict]]] = defaultdict(list)
    centres = _centres(seen)
    for row, node in enumerate(nodes):
        columns = {visit: column for column, visit in enumerate(latest[node])}
        ranks = {place: rank for rank, place in enumerate(gpus[node])}
        for one in by_node[node]:
            column = columns.get(one.visit)
            if column is not None:
                told[one.place].append((one.at, one.wrong))
                days[row, column] = seconds_of(one.at) / _DAY_S
                if not one.wrong:
                    centre = centres.get(one.driver, centres[""])
                    times[row, ranks[one.place], column] = np.log(one.run.time_ms) - centre
    places = tuple((*gpus[node], *[None] * (shape[1] - len(gpus[node]))) for node in nodes)
    return Peers(key, nodes, places, times, days, {place: tuple(some) for place, some in told.items()})


def _centres(seen: Sequence[_Seen]) -> dict[str, float]:
    """Returns medians of logarithms of times, by driver with enough GPUs; the median of all under an empty name.

    A GPU counts once, so that one that is visited often does not move the centre.
    """
    by_driver: dict[str, dict[GpuPlace, list[float]]] = defaultdict(lambda: defaultdict(list))
    for one in seen:
        if not one.wrong:
            for driver in {one.driver, ""}:
                by_driver[driver][one.place].append(float(np.log(one.run.time_ms)))
    found = {"": 0.0}
    for driver, places in by_driver.items():
        if not driver or len(places) >= _ENOUGH_PEERS:
            found[driver] = median(median(some) for some in places.values())
    return found
