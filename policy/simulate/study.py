"""A study, which is one call of `berth simulate`, and its runs."""

import dataclasses
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from policy.formats.errors import UsageError, nearest
from policy.simulate.inputs.traces import Unit
from policy.simulate.slurm.settings import DURATIONS, ORDERS

MODES = ("slurm", "berthd", "pal-rounds")

BY_BERTHD = "berthd"
"""Stands for Berth's policy with berthd's own code: pins from submission on, moved by its planning passes."""

Way = Literal["one-run", "median", "nodes"]

WAYS: tuple[Way, ...] = ("one-run", "median", "nodes")
"""The ways to draw the GPUs of a simulated cluster from runs on real ones.

one-run: each GPU is any one run of all, as PAL's artifact draws. median: the median of a GPU's runs. nodes: whole nodes
together, because the GPUs of a node are similar, with each GPU's median.
"""


SLURM = "24.11"


@dataclass(frozen=True, slots=True)
class Study:
    """All options of one call, in plain values, so that a file can hold them."""

    traces: tuple[str, ...]
    policies: tuple[str, ...]
    mode: str = "slurm"
    duration_unit: Unit = "auto"
    seeds: tuple[int, ...] = (1,)
    nodes: int = 0
    gpus_per_node: int = 0
    machine: str = ""
    """A named machine that all nodes are copies of."""
    topology: str = ""
    """A folder of topology files, which replaces nodes, gpus_per_node and machine."""
    fabric: str = ""
    """Slurm's topology.conf or topology.yaml, with the leaves and pods of the nodes in `topology`."""
    nodes_per_leaf: int = 0
    leaves_per_pod: int = 0
    scores: tuple[str, ...] = ()
    profile_way: Way = "nodes"
    locality_penalty: str = ""
    move_cost: float = 0.0
    events: str = ""
    order: str = ""
    backfill: bool | None = None
    round: float = 360.0
    repeat: float | None = None
    """Jobs an hour that follow the trace in pal-rounds; None: 2, as published."""
    limits: str = "trace"
    models: str = "trace"
    durations: str = "limit"
    bf_interval: float = 30.0
    slurm: str = SLURM
    """The Slurm version whose backfill is simulated in --mode berthd."""
    locality: str = ""
    weigh_waits: bool = False
    quotas: str = ""
    borrow: float = 0.0
    movable: float = 0.0
    """Part of the jobs with `--movable`; running ones are moved where that is worth it."""
    history: str = ""
    """The file for the history of a run, which `berth web` shows; empty: none is written."""
    sweeps: tuple[tuple[str, tuple[str, ...]], ...] = ()

    def with_values(self, values: Sequence[tuple[str, str]]) -> "Study":
        """Returns the study with these swept values."""
        changes: dict[str, Any] = {}
        for name, text in values:
            try:
                changes[name.replace("-", "_")] = SWEEPABLE[name](text)
            except ValueError:
                raise UsageError(f"--sweep {name}: {text!r} is not a value of --{name}") from None
        return replace(self, **changes)


@dataclass(frozen=True, slots=True)
class Cell:
    """One run: a policy, a seed, and a value of each swept option."""

    policy: str
    seed: int
    swept: tuple[tuple[str, str], ...] = ()

    @property
    def label(self) -> str:
        """A name for people and for files.

        >>> Cell("pal", 3, (("move-cost", "30"),)).label
        'pal.seed3.move-cost=30'
        """
        return ".".join([self.policy, f"seed{self.seed}", *(f"{name}={value}" for name, value in self.swept)])


def cells(study: Study) -> list[Cell]:
    """Returns all runs of a study, with the policies innermost, so that compared runs are neighbours."""
    values = itertools.product(*([(name, value) for value in some] for name, some in study.sweeps))
    return [Cell(policy, seed, swept) for swept in values for seed in study.seeds for policy in study.policies]


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise ValueError
    return value


def _cost(text: str) -> float:
    value = float(text)
    if not 0 <= value < float("inf"):
        raise ValueError
    return value


def _one_of(*words: str) -> Callable[[str], str]:
    def check(text: str) -> str:
        if text not in words:
            raise ValueError
        return text

    return check


SWEEPABLE: dict[str, Callable[[str], object]] = {
    "locality-penalty": str,
    "move-cost": _cost,
    "round": _cost,
    "repeat": _cost,
    "nodes": _positive,
    "gpus-per-node": _positive,
    "nodes-per-leaf": _positive,
    "leaves-per-pod": _positive,
    "order": _one_of(*ORDERS),
    "durations": _one_of(*DURATIONS),
    "bf-interval": _cost,
    "limits": str,
    "locality": str,
    "borrow": _cost,
    "movable": _cost,
}
"""Options that a sweep may vary, with the parsers of their values."""


def parse_sweep(text: str) -> tuple[str, tuple[str, ...]]:
    """Parses NAME=VALUE,VALUE,... of `--sweep`.

    >>> parse_sweep("move-cost=0,30")
    ('move-cost', ('0', '30'))
    """
    name, _, values = text.partition("=")
    name = name.removeprefix("--")
    if name not in SWEEPABLE:
        raise UsageError(
            f"--sweep {text}: there is no option {name} to sweep{nearest(name, SWEEPABLE)}; "
            f"it is one of {', '.join(SWEEPABLE)}"
        )
    some = tuple(value for value in values.split(",") if value)
    if not some:
        raise UsageError(f"--sweep {text}: write {name}=VALUE,VALUE,...")
    return name, some


def parse_seeds(words: Sequence[str]) -> tuple[int, ...]:
    """Parses seeds given one by one or as A:B, both included.

    >>> parse_seeds(["7", "1:3"])
    (7, 1, 2, 3)
    """
    seeds: list[int] = []
    for word in words:
        first, colon, last = word.partition(":")
        if not (first.isdigit() and (not colon or last.isdigit()) and word.isascii()):
            raise UsageError(f"--seed {word}: write a whole number, or a range such as 0:9")
        seeds += range(int(first), int(last or first) + 1)
    if not seeds:
        raise UsageError(f"--seed {' '.join(words)}: the range is empty; write the smaller number first")
    return tuple(dict.fromkeys(seeds))


def check(study: Study) -> None:
    """Refuses a study that cannot be run, before anything is read."""
    for swept in dict.fromkeys(cell.swept for cell in cells(study)):
        one = study.with_values(swept)
        if one.movable > 1 or (one.movable and one.mode == "pal-rounds"):
            raise UsageError("--movable is a part of the jobs, from 0 to 1, and belongs to --mode slurm and berthd")
        if one.mode == "pal-rounds" and one.order == "slurm":
            raise UsageError("--order slurm belongs to --mode slurm; with pal-rounds take fifo, las, srtf or srsf")
        if one.mode == "berthd" or BY_BERTHD in one.policies:
            _check_berthd(one)
        if one.mode == "pal-rounds" and BY_BERTHD in one.policies:
            raise UsageError(f"--policy {BY_BERTHD} belongs to --mode slurm and berthd; take berth with pal-rounds")
        if one.mode != "berthd" and one.slurm != SLURM:
            raise UsageError(f"--slurm {one.slurm} belongs to --mode berthd; leave it out with --mode {one.mode}")
        if one.fabric and (not one.topology or one.nodes_per_leaf):
            raise UsageError(
                "--fabric says which nodes of --topology share a leaf: give --topology, and no --nodes-per-leaf"
            )
        if one.topology:
            continue
        if not one.nodes or not (one.gpus_per_node or one.machine):
            raise UsageError(
                "say how big the cluster is: --nodes N with --gpus-per-node K or --machine NAME, or --topology DIR"
            )


_NOT_WITH_BERTHD = ("weigh_waits",)


def _check_berthd(study: Study) -> None:
    """Refuses options that mean nothing where berthd's own code chooses places."""
    how = "--mode berthd" if study.mode == "berthd" else f"--policy {BY_BERTHD}"
    for name in _NOT_WITH_BERTHD:
        if getattr(study, name):
            raise UsageError(f"--{name.replace('_', '-')} belongs to policies of --mode slurm; leave it out with {how}")
    if study.durations != "limit":
        raise UsageError(f"--durations belongs to policies of --mode slurm; leave it out with {how}")


def as_plain(study: Study) -> dict[str, Any]:
    """Returns the study in values that JSON can hold."""
    return dataclasses.asdict(study)


def from_plain(values: dict[str, Any]) -> Study:
    """Returns the study from which `as_plain` made these values."""
    made: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in values.items()}
    made["sweeps"] = tuple((name, tuple(some)) for name, some in values["sweeps"])
    return Study(**made)
