# SPDX-License-Identifier: Apache-2.0
"""A study, which is one call of `berth simulate`, its file, and its runs.

A study file is TOML, and has the keys of `KEYS` (docs/research/simulate-inputs.md). What the command line gives
counts before it:

    round = 300
    backfill = true
"""

import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from policy.formats.errors import FormatError, UsageError, nearest
from policy.simulate.inputs.traces import Unit
from policy.simulate.slurm.settings import DURATIONS, ORDERS

MODES = ("slurm", "berthd", "pal-rounds")

FLAT_SLURM = "slurm"
PLAIN_SLURM = (FLAT_SLURM, "slurm-tree")
"""Plain Slurm with topology/flat, and with topology/tree or topology/block."""

SHIFT_S, DRAWS = 600.0, 8
"""The defaults of a study: the most seconds by which arrivals are shifted, and the number of draws."""

Way = Literal["one-run", "median", "nodes"]

WAYS: tuple[Way, ...] = ("one-run", "median", "nodes")
"""The ways to draw the GPUs of a simulated cluster from runs on real ones.

one-run: each GPU is any one run of all, as PAL's artifact draws. median: the median of a GPU's runs. nodes: whole nodes
together, because the GPUs of a node are similar, with each GPU's median.
"""

SLURM = "24.11"


@dataclass(frozen=True, slots=True)
class Kind:
    """The form of a value; `read` returns it, or raises TypeError or ValueError."""

    says: str
    read: Callable[[object], object]


def _count(value: object) -> int:
    if not isinstance(value, int | str) or isinstance(value, bool) or int(value) < 1:
        raise ValueError
    return int(value)


def _cost(value: object) -> float:
    if not isinstance(value, int | float | str) or isinstance(value, bool) or not 0 <= float(value) < float("inf"):
        raise ValueError
    return float(value)


def _text(value: object) -> str:
    if not isinstance(value, int | float | str) or isinstance(value, bool):
        raise TypeError
    return str(value)


def _flag(value: object) -> bool:
    if not isinstance(value, bool):
        raise TypeError
    return value


def _texts(value: object) -> tuple[str, ...]:
    if not isinstance(value, list | tuple) or not value or not all(isinstance(one, str) for one in value):
        raise ValueError
    return tuple(dict.fromkeys(value))


def _seeds(value: object) -> tuple[int, ...]:
    return parse_seeds([str(one) for one in value]) if isinstance(value, list) else parse_seeds([str(value)])


def _one_of(*words: str) -> Kind:
    def read(value: object) -> object:
        if value not in words:
            raise ValueError
        return value

    return Kind(f"one of {', '.join(words)}", read)


COUNT = Kind("a whole number from 1 on", _count)
COST = Kind("a number from 0 on", _cost)
TEXT = Kind("a text", _text)
FLAG = Kind("true or false", _flag)
TEXTS = Kind("a list of texts", _texts)

KEYS: dict[str, Kind] = {
    "traces": TEXTS,
    "policies": TEXTS,
    "mode": _one_of(*MODES),
    "duration_unit": _one_of("auto", "iterations", "seconds"),
    "apart": FLAG,
    "shift": COST,
    "seeds": Kind("a list of whole numbers, or of ranges such as 0:9", _seeds),
    "nodes": COUNT,
    "gpus_per_node": COUNT,
    "machine": TEXT,
    "topology": TEXT,
    "fabric": TEXT,
    "nodes_per_leaf": COUNT,
    "leaves_per_pod": COUNT,
    "scores": TEXTS,
    "profile_way": _one_of(*WAYS),
    "locality_penalty": TEXT,
    "move_cost": COST,
    "events": TEXT,
    "order": _one_of(*ORDERS),
    "backfill": FLAG,
    "round": COST,
    "repeat": COST,
    "limits": TEXT,
    "models": _one_of("trace", "drawn"),
    "durations": _one_of(*DURATIONS),
    "bf_interval": COST,
    "slurm": _one_of("24.11", "25.05", "25.11", "26.05"),
    "locality": TEXT,
    "quotas": TEXT,
    "borrow": COST,
    "history": TEXT,
}
"""The keys of a study file, each a field of `Study`."""


@dataclass(frozen=True, slots=True)
class Study:
    """All options of one call, in plain values."""

    traces: tuple[str, ...]
    policies: tuple[str, ...]
    mode: str = "slurm"
    duration_unit: Unit = "auto"
    apart: bool = False
    """Play each trace by itself; otherwise all files are one trace."""
    shift: float = 0.0
    """Seconds by which each job is submitted sooner or later, at most; drawn by the seed."""
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
    quotas: str = ""
    borrow: float = 0.0
    history: str = ""
    """The file for the history of a run, which `berth web` shows; empty: none is written."""


def read_file(path: str) -> dict[str, Any]:
    """Returns the values of a study file, checked by `KEYS`."""
    try:
        found = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from error
    except ValueError as error:
        raise FormatError(f"{path}: {error}; a study file is TOML, see docs/research/simulate-inputs.md") from None
    values: dict[str, Any] = {}
    for key, value in found.items():
        if key not in KEYS:
            raise FormatError(f"{path}: a study has no key {key}{nearest(key, KEYS)}")
        values[key] = checked(key, value, f"{path}: {key}")
    return values


def checked(key: str, value: object, name: str) -> Any:
    """Returns the value of a key as a study has it; `name` is what its user calls it."""
    try:
        return KEYS[key].read(value)
    except (TypeError, ValueError):
        raise FormatError(f"{name} is {KEYS[key].says}, not {value!r}") from None


@dataclass(frozen=True, slots=True)
class Cell:
    """One run: a policy and a seed."""

    policy: str
    seed: int

    @property
    def label(self) -> str:
        """Returns a name for people and for files.

        >>> Cell("pal", 3).label
        'pal.seed3'
        """
        return f"{self.policy}.seed{self.seed}"


def cells(study: Study) -> list[Cell]:
    """Returns all runs of a study, with the policies innermost, so that compared runs are neighbours."""
    return [Cell(policy, seed) for seed in study.seeds for policy in study.policies]


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
    if study.mode == "pal-rounds" and study.order == "slurm":
        raise UsageError("--order slurm belongs to --mode slurm; with pal-rounds take fifo, las, srtf or srsf")
    if study.durations != "limit" and study.mode == "berthd":
        raise UsageError("durations belongs to --mode slurm; leave it out with --mode berthd")
    if study.mode != "berthd" and study.slurm != SLURM:
        raise UsageError(f"slurm = {study.slurm} belongs to --mode berthd; leave it out with --mode {study.mode}")
    if study.fabric and (not study.topology or study.nodes_per_leaf):
        raise UsageError("fabric says which nodes of --topology share a leaf: give --topology, and no --nodes-per-leaf")
    if study.topology:
        return
    if not study.nodes or not (study.gpus_per_node or study.machine):
        raise UsageError(
            "say how big the cluster is: --nodes N with --gpus-per-node K or --machine NAME, or --topology DIR"
        )
