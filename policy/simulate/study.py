# SPDX-License-Identifier: Apache-2.0
"""A study, which is one call of `berth simulate`, its file, and its runs.

A study file is TOML, and has the keys of `KEYS` (docs/research/simulate-inputs.md). What the command line gives
counts before it:

    round = 300
    backfill = true

    [sweep]
    move_cost = [0, 30, 120]
"""

import itertools
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from policy.formats.errors import FormatError, UsageError, nearest
from policy.simulate.inputs.traces import Unit
from policy.simulate.slurm.settings import DURATIONS, ORDERS

MODES = ("slurm", "berthd", "pal-rounds")

BY_BERTHD = "berthd"
"""Stands for Berth's policy with berthd's own code: pins from submission on, moved by its planning passes."""

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
    "movable": COST,
    "history": TEXT,
}
"""The keys of a study file, each a field of `Study`; beside them the table `sweep`."""

SWEEPABLE = (
    *("locality-penalty", "move-cost", "round", "repeat", "nodes", "gpus-per-node", "nodes-per-leaf", "leaves-per-pod"),
    *("order", "durations", "bf-interval", "limits", "locality", "borrow", "movable"),
)


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
    movable: float = 0.0
    """Part of the jobs with `--movable`; they are moved while they run if that is worth it."""
    history: str = ""
    """The file for the history of a run, which `berth web` shows; empty: none is written."""
    sweeps: tuple[tuple[str, tuple[str, ...]], ...] = ()

    def with_values(self, values: Sequence[tuple[str, str]]) -> "Study":
        """Returns the study with these swept values."""
        changes: dict[str, Any] = {}
        for name, text in values:
            kind = KEYS[name.replace("-", "_")]
            try:
                changes[name.replace("-", "_")] = kind.read(text)
            except ValueError:
                raise UsageError(f"sweep {name}: {text!r} is not {kind.says}") from None
        return replace(self, **changes)


def read_file(path: str) -> dict[str, Any]:
    """Returns the values of a study file, checked by `KEYS`; `sweeps` holds what its table `sweep` says."""
    try:
        found = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from error
    except ValueError as error:
        raise FormatError(f"{path}: {error}; a study file is TOML, see docs/research/simulate-inputs.md") from None
    swept = found.pop("sweep", {})
    values: dict[str, Any] = {}
    for key, value in found.items():
        if key not in KEYS:
            raise FormatError(f"{path}: a study has no key {key}{nearest(key, (*KEYS, 'sweep'))}")
        try:
            values[key] = KEYS[key].read(value)
        except (TypeError, ValueError):
            raise FormatError(f"{path}: {key} is {KEYS[key].says}, not {value!r}") from None
    if not isinstance(swept, Mapping) or not all(isinstance(some, list) and some for some in swept.values()):
        raise FormatError(f"{path}: [sweep] is a table of lists, such as nodes = [16, 32]")
    sweeps = [(sweepable(name, path), tuple(map(str, some))) for name, some in swept.items()]
    return values | ({"sweeps": sweeps} if sweeps else {})


def sweepable(name: str, where: str) -> str:
    """Returns the name of a swept option as the command line writes it."""
    option = name.removeprefix("--").replace("_", "-")
    if option not in SWEEPABLE:
        raise UsageError(
            f"{where}: there is no option {name} to sweep{nearest(option, SWEEPABLE)}; "
            f"it is one of {', '.join(SWEEPABLE)}"
        )
    return option


@dataclass(frozen=True, slots=True)
class Cell:
    """One run: a policy, a seed, and a value of each swept option."""

    policy: str
    seed: int
    swept: tuple[tuple[str, str], ...] = ()

    @property
    def label(self) -> str:
        """Returns a name for people and for files.

        >>> Cell("pal", 3, (("move-cost", "30"),)).label
        'pal.seed3.move-cost=30'
        """
        return ".".join([self.policy, f"seed{self.seed}", *(f"{name}={value}" for name, value in self.swept)])


def cells(study: Study) -> list[Cell]:
    """Returns all runs of a study, with the policies innermost, so that compared runs are neighbours."""
    values = itertools.product(*([(name, value) for value in some] for name, some in study.sweeps))
    return [Cell(policy, seed, swept) for swept in values for seed in study.seeds for policy in study.policies]


def parse_sweep(text: str) -> tuple[str, tuple[str, ...]]:
    """Parses NAME=VALUE,VALUE,... of `--sweep`.

    >>> parse_sweep("move-cost=0,30")
    ('move-cost', ('0', '30'))
    """
    name, _, values = text.partition("=")
    name = sweepable(name, f"--sweep {text}")
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


def _by_berthd(study: Study) -> bool:
    """Tells whether berthd's own code places jobs in the model of Slurm, at most beside plain Slurm."""
    asked = set(study.policies)
    return study.mode == "slurm" and BY_BERTHD in asked and asked <= {BY_BERTHD, *PLAIN_SLURM}


def check(study: Study) -> None:
    """Refuses a study that cannot be run, before anything is read."""
    for swept in dict.fromkeys(cell.swept for cell in cells(study)):
        one = study.with_values(swept)
        if one.movable > 1:
            raise UsageError("movable is a part of the jobs, from 0 to 1")
        if one.movable and one.mode != "berthd" and not _by_berthd(one):
            raise UsageError(f"movable belongs to berthd's own code: take --mode berthd, or --policy {BY_BERTHD}")
        if one.mode == "pal-rounds" and one.order == "slurm":
            raise UsageError("--order slurm belongs to --mode slurm; with pal-rounds take fifo, las, srtf or srsf")
        if one.durations != "limit" and (one.mode == "berthd" or BY_BERTHD in one.policies):
            how = "--mode berthd" if one.mode == "berthd" else f"--policy {BY_BERTHD}"
            raise UsageError(f"durations belongs to policies of --mode slurm; leave it out with {how}")
        if one.mode != "berthd" and one.slurm != SLURM:
            raise UsageError(f"slurm = {one.slurm} belongs to --mode berthd; leave it out with --mode {one.mode}")
        if one.fabric and (not one.topology or one.nodes_per_leaf):
            raise UsageError(
                "fabric says which nodes of --topology share a leaf: give --topology, and no --nodes-per-leaf"
            )
        if one.topology:
            continue
        if not one.nodes or not (one.gpus_per_node or one.machine):
            raise UsageError(
                "say how big the cluster is: --nodes N with --gpus-per-node K or --machine NAME, or --topology DIR"
            )
