# SPDX-License-Identifier: Apache-2.0
"""The pairs that the guard is judged on: a host, a guest, their speeds side by side, bursts, noise and delays."""

from __future__ import annotations

import json
import os
import random
import sys
from dataclasses import dataclass
from pathlib import Path

DATA = Path(os.environ.get("BERTH_DATA") or Path(__file__).resolve().parents[4] / "shared" / "data")
SECONDS = 600.0
"""How long each case lasts."""
PREDICTOR_ERROR = 0.0526
"""Standard error of a predicted slope: what a predictor with a mean absolute error of 0.042 makes."""


@dataclass(frozen=True, slots=True)
class Case:
    """One pair. Speeds are those side by side at full duty, over alone."""

    host: str
    guest: str
    kind: str
    step_s: float
    noise_cv: float
    host_speed: float
    guest_speed: float
    sensor_delay_s: float
    bursts: tuple[tuple[float, float, float], ...]
    seed: int

    @property
    def harmed(self) -> bool:
        """Whether MPS alone breaks the bound, even outside bursts."""
        return self.host_speed < 1.0 / 1.05

    @property
    def predicted_slope(self) -> float:
        """What a predictor would say of the speed that the host loses: the truth with the predictor's error."""
        drawn = random.Random(self.seed).gauss(1.0 - self.host_speed, PREDICTOR_ERROR)
        return min(1.0, max(0.0, drawn))


def read(path: Path) -> list[Case]:
    """The cases of a file, one JSON object a line."""
    with path.open(encoding="utf-8") as lines:
        return [_case(json.loads(line)) for line in lines if line.strip()]


def _case(fields: dict[str, object]) -> Case:
    known = {name: fields[name] for name in Case.__dataclass_fields__}
    known["bursts"] = tuple(tuple(burst) for burst in fields["bursts"])  # type: ignore[attr-defined]
    return Case(**known)  # type: ignore[arg-type]


def path_of_cases() -> Path:
    """The file named by CASES, else the given one."""
    return Path(os.environ.get("CASES") or DATA / "guard" / "cases.jsonl")


def need(*paths: Path) -> None:
    """Leave with a sentence, and without a failure, where the data are not there."""
    for path in paths:
        if not path.exists():
            sys.stderr.write(f"left out: {path} is not there; BERTH_DATA names the folder of guard/ and traces/\n")
            raise SystemExit(0)
