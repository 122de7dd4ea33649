# SPDX-License-Identifier: Apache-2.0
"""What every benchmark shares: figures with peers, a table for people, a JSON file for docs/results/tables."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

FOLDER_NAME = "BERTH_BENCH_FOLDER"
"""The environment variable that names another folder, for runs whose figures are no results."""
FOLDER = Path(os.environ.get(FOLDER_NAME) or Path(__file__).resolve().parents[2] / "build" / "bench")


@dataclass(frozen=True, slots=True)
class Figure:
    """A measured value; `must` says in words what it has to reach, `good` whether it did (None: nothing asked)."""

    name: str
    value: float
    unit: str
    peer: str = ""
    peer_value: float | None = None
    must: str = ""
    good: bool | None = None

    @property
    def ratio(self) -> float | None:
        return self.value / self.peer_value if self.peer_value else None


def report(bench: str, title: str, figures: Sequence[Figure], notes: dict[str, str]) -> None:
    """Print the table and write build/bench/BENCH.json."""
    table = Table(title=title)
    for column in ("figure", "value", "unit", "peer", "peer's value", "ratio", "must", ""):
        table.add_column(column)
    for figure in figures:
        table.add_row(
            figure.name,
            f"{figure.value:.4g}",
            figure.unit,
            figure.peer,
            "" if figure.peer_value is None else f"{figure.peer_value:.4g}",
            "" if figure.ratio is None else f"{figure.ratio:.3g}",
            figure.must,
            {True: "ok", False: "MISSED", None: ""}[figure.good],
        )
    Console(width=130).print(table)
    FOLDER.mkdir(parents=True, exist_ok=True)
    content: dict[str, object] = {
        figure.name: {
            "value": figure.value,
            "unit": figure.unit,
            "peer": figure.peer,
            "peer_value": figure.peer_value,
            "ratio": figure.ratio,
            "must": figure.must,
            "good": figure.good,
        }
        for figure in figures
    }
    content["notes"] = {"machine": machine(), **notes}
    (FOLDER / f"{bench}.json").write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def machine() -> str:
    """What figures were taken on, as far as they hang on it."""
    release = ".".join(platform.release().split(".")[:2])
    return f"{platform.machine()}, {os.cpu_count()} cores, Linux {release}"


def at_most(
    name: str, value: float, limit: float, unit: str, peer: str = "", peer_value: float | None = None
) -> Figure:
    """A figure that must not exceed a limit."""
    return Figure(name, value, unit, peer, peer_value, f"<= {limit:g}", value <= limit)


def at_least(
    name: str, value: float, limit: float, unit: str, peer: str = "", peer_value: float | None = None
) -> Figure:
    """A figure that must reach a limit."""
    return Figure(name, value, unit, peer, peer_value, f">= {limit:g}", value >= limit)
