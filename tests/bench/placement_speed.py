# SPDX-License-Identifier: Apache-2.0
"""`make bench NAME=placement`: how long it takes to place all jobs of one round, beside PAL's own code.

All jobs wait; as many as fit the cluster are placed. PAL's artifact is measured in the same process on the same queue
and the same GPUs where BERTH_PAL_ARTIFACT is a checkout of github.com/hal-uw/blox-pal, branch `artifact`; it needs
pandas and scikit-learn. Elsewhere the documented figures stand beside ours, taken on another machine.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
import tempfile
import time
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from policy.cluster.cost import ACROSS_NODES, CostModel, pal_locality
from policy.cluster.fleet import Fleet
from policy.formats.arrays import Floats
from policy.placement.registry import create
from policy.simulate.jobs import TraceJob
from policy.simulate.pal_rounds.round_policies import in_rounds
from policy.simulate.world import Layout, build, demand_of, view
from tests.bench.paper.joint.policy import JointBerth
from tests.bench.table import Figure, report

GPUS_PER_NODE = 4
SIZES = (64, 256, 512)
CLASSES, SPREADS = "ABCD", (0.03, 0.01, 0.01, 0.001)
"""Application classes, and the standard deviations of their scores."""
WIDTHS, SHARES = (1, 4, 6, 8, 12, 16, 24), (0.42, 0.05, 0.14, 0.13, 0.16, 0.09, 0.01)
"""GPUs of a job, and how often: as in the Sia-Philly traces."""
OUR_ROUNDS, THEIR_ROUNDS = 30, 3
ARTIFACT = "BERTH_PAL_ARTIFACT"
DOCUMENTED = {
    "pal": {64: 137.0, 256: 891.0, 512: 2268.0},
    "pm_first": {64: 83.0, 256: 480.0, 512: 1030.0},
    "packed": {64: 34.0, 256: 190.0, 512: 396.0},
}
"""Milliseconds of the artifact's `place()` on a loaded machine of two cores."""
THEIRS = {
    "pal": ("pal", "PALPlacement"),
    "pm_first": ("pmfirst", "PMFirstPlacement"),
    "packed": ("packing_nonsticky", "PackedNSPlacement"),
}


def synthetic_scores(gpus: int, seed: int = 7) -> dict[str, np.ndarray[Any, np.dtype[np.float64]]]:
    """Scores near 1 with one far outlier in the first class."""
    draw = np.random.default_rng(seed)
    tables = {name: draw.normal(1.0, spread, gpus) for name, spread in zip(CLASSES, SPREADS, strict=True)}
    tables["A"][gpus // 3] = 2.8
    return {name: table.reshape(-1, GPUS_PER_NODE) for name, table in tables.items()}


def fleet_of(gpus: int) -> Fleet:
    scores = synthetic_scores(gpus)
    return build(Layout(gpus // GPUS_PER_NODE, GPUS_PER_NODE), scores, CostModel(pal_locality(ACROSS_NODES)))


def queue_of(gpus: int, seed: int = 11) -> list[TraceJob]:
    """The jobs that fit the cluster, from the head of a queue that never ends."""
    draw = np.random.default_rng(seed)
    jobs: list[TraceJob] = []
    while gpus >= max(WIDTHS):
        width = int(draw.choice(WIDTHS, p=np.array(SHARES) / sum(SHARES)))
        jobs.append(TraceJob(f"{len(jobs)}", width, float(len(jobs)), 3600.0, "", str(draw.choice(list(CLASSES)))))
        gpus -= width
    return jobs


def timed(work: Callable[[], object], rounds: int) -> float:
    """Milliseconds, the median."""
    work()
    taken = []
    for _ in range(rounds):
        start = time.perf_counter()
        work()
        taken.append((time.perf_counter() - start) * 1e3)
    return median(taken)


class PalArtifact:
    """The placement classes of a checkout of PAL's artifact, fed as its own manager does."""

    def __init__(self, checkout: Path, scores: Mapping[str, Floats]) -> None:
        """`scores` are tables of nodes x GPUs by the artifact's names of classes, A to D."""
        import pandas as pd  # noqa: PLC0415 - the bench runs without

        self._checkout = checkout
        gpus = next(iter(scores.values())).size
        self._gpus = pd.DataFrame(
            {
                "GPU_ID": range(gpus),
                "Node_ID": pd.Series([gpu // GPUS_PER_NODE for gpu in range(gpus)], dtype=object),
                "IN_USE": False,
                "JOB_IDS": pd.Series([None] * gpus, dtype=object),
                **{f"PerfVar_class{name}": table.ravel() for name, table in scores.items()},
            }
        )

    def placer(self, policy: str) -> Any:
        """One of its policies."""
        file, name = THEIRS[policy]
        for drawing in ("seaborn", "matplotlib", "matplotlib.pyplot"):
            sys.modules.setdefault(drawing, types.ModuleType(drawing))
        vars(sys.modules["matplotlib"]).setdefault("pyplot", sys.modules["matplotlib.pyplot"])
        # A trusted checkout that the caller named, as one would import it.
        module = types.ModuleType(f"artifact_{file}")
        exec((self._checkout / "placement" / f"{file}.py").read_text(encoding="utf-8"), vars(module))  # noqa: S102
        if "KMeans" in vars(module):
            vars(module)["KMeans"] = _k_means
        return vars(module)[name](types.SimpleNamespace(locality_penalty=ACROSS_NODES))

    def hold(self, busy: Sequence[bool]) -> None:
        """Mark GPUs as held by a job that is not asked about."""
        import pandas as pd  # noqa: PLC0415 - the bench runs without

        self._gpus["IN_USE"] = list(busy)
        self._gpus["JOB_IDS"] = pd.Series([-1 if one else None for one in busy], dtype=object)

    def place(self, placer: Any, jobs: Sequence[TraceJob]) -> dict[int, list[int]]:
        """The GPUs of each job that it places."""
        active = {
            place: {"num_GPUs": job.gpus, "perfclass": f"class{job.app_class}", "is_running": False}
            for place, job in enumerate(jobs)
        }
        state = types.SimpleNamespace(active_jobs=active)
        cluster = types.SimpleNamespace(server_map={}, gpu_df=self._gpus)
        with contextlib.redirect_stdout(io.StringIO()):
            _, launched = placer.place(state, cluster, {"job_order": list(active.items())})
        return dict(launched)


def _k_means(**options: Any) -> Any:
    """K-means with the defaults of the scikit-learn that the artifact was written for."""
    from sklearn.cluster import KMeans  # noqa: PLC0415 - only where the artifact is at hand

    return KMeans(**{"n_init": 10, **options, "algorithm": "lloyd"})


def _theirs(gpus: int, policy: str, jobs: Sequence[TraceJob]) -> tuple[str, float | None]:
    """What the peer is called, and its milliseconds."""
    checkout = os.environ.get(ARTIFACT)
    if not checkout:
        return f"PAL's artifact, documented {DOCUMENTED[policy][gpus]:.0f} ms on another machine", None
    artifact = PalArtifact(Path(checkout).resolve(), synthetic_scores(gpus))
    with its_folder():
        placer = artifact.placer(policy)
        return "PAL's artifact, same run", timed(lambda: artifact.place(placer, jobs), THEIR_ROUNDS)


@contextlib.contextmanager
def its_folder() -> Iterator[None]:
    """Where the artifact can run: its files go where it is, and it reads its list of classes there."""
    home = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            Path("profiles.json").write_text(json.dumps({f"class{name}": "" for name in CLASSES}), encoding="utf-8")
            yield
        finally:
            os.chdir(home)


def figures() -> list[Figure]:
    """Milliseconds a round, for each policy and size; `round_512_ms` is PAL's, beside which Berth's own stands too."""
    found = []
    for policy in (*THEIRS, "berth"):
        placer = in_rounds(JointBerth() if policy == "berth" else create(policy.replace("_", "-")), sticky=False)
        rounds = OUR_ROUNDS if policy in THEIRS else THEIR_ROUNDS
        for gpus in SIZES:
            fleet, jobs = fleet_of(gpus), queue_of(gpus)
            demands, free = [demand_of(job, fleet) for job in jobs], view(fleet, fleet.full)
            ours = timed(lambda: placer.place_together(demands, free), rounds)  # noqa: B023 - called at once
            peer, theirs = _theirs(gpus, policy if policy in THEIRS else "pal", jobs)
            name = f"round_{gpus}_ms" if policy == "pal" else f"{policy}_round_{gpus}_ms"
            found.append(Figure(name, ours, "ms", peer, theirs))
    return found


def main() -> int:
    """Measure and report."""
    notes = {"queue": "all jobs wait; widths as in the Sia-Philly traces", "nodes": f"{GPUS_PER_NODE} GPUs each"}
    report("placement-speed", "All jobs of one round placed", figures(), notes)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
