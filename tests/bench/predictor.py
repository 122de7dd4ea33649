# SPDX-License-Identifier: Apache-2.0
"""`make bench NAME=predictor`: the speed of pairs that were never measured, and of models that were never seen.

Everything is trained on the folds that are left, margins included; `--nested` also chooses the training's constants
anew for each model left out, among random ones, by the other models alone. Peers: a constant, ridge regression on the
same profiles, and Lucid's rule (labels 0, 1, 2 of a job alone; pairs whose labels sum to at most 2 may share).
"""

from __future__ import annotations

import argparse
import datetime
import os
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from sklearn.linear_model import RidgeCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from policy.sharing import predictor
from policy.sharing.predictor import Array
from tests.bench import training
from tests.bench.measured_pairs import promised, read_pairs, shipped
from tests.bench.predictor_trials import by_family, by_few_families, oracle, trained, trial_figures
from tests.bench.table import FOLDER, Figure, at_least, at_most, report
from tests.bench.training import Correction, Pairs

DATA = Path(os.environ.get("BERTH_DATA", FOLDER.parents[1].parent / "shared" / "data")) / "traces" / "colocation"
LEVEL = 0.85

Model = Callable[[Pairs, Pairs], tuple[Array, Array]]
"""From what was measured and what is asked: speeds, and the speeds that are promised."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """Held-out figures of one model of speeds."""

    mae: float
    by_fold: dict[str, float]
    pooled: float
    false_safe: float
    safe_recall: float
    kept: float
    """Part of the sides whose promise held."""


def measured() -> Pairs:
    pairs, solo = DATA / "lucid_colocate_pairs.csv", DATA / "lucid_single.csv"
    if not pairs.exists():
        raise SystemExit(f"bench: no {pairs}; set BERTH_DATA to the folder that holds traces/colocation")
    return read_pairs(pairs, solo)


def ours(known: Pairs, asked: Pairs) -> tuple[Array, Array]:
    said = training.guess(trained(known), asked, LEVEL)
    return said.speeds, said.least


def constant(known: Pairs, asked: Pairs) -> tuple[Array, Array]:
    speeds = np.full(asked.speeds.shape, float(np.median(known.speeds)))
    return speeds, speeds


def ridge(known: Pairs, asked: Pairs) -> tuple[Array, Array]:
    def sides(pairs: Pairs) -> Array:
        both = np.block([[pairs.first, pairs.second], [pairs.second, pairs.first]])
        return np.asarray(both)

    model = make_pipeline(StandardScaler(), RidgeCV(np.logspace(-3, 3, 13)))
    model.fit(sides(known), known.speeds.T.ravel())
    speeds = model.predict(sides(asked)).reshape(2, -1).T
    return speeds, speeds


def lucid(labels: dict[bytes, int]) -> Model:
    """Lucid's rule: promises by the sum of labels; as speeds, the median of the pairs with the same labels."""

    def of(pairs: Pairs) -> Array:
        rows = [[labels[side.tobytes()] for side in row] for row in zip(pairs.first, pairs.second, strict=True)]
        return np.array(rows)

    def model(known: Pairs, asked: Pairs) -> tuple[Array, Array]:
        own, truth = np.concatenate([of(known), of(known)[:, ::-1]]), known.speeds.T.ravel()
        middle = {(a, b): float(np.median(truth[(own == (a, b)).all(axis=1)])) for a, b in {tuple(row) for row in own}}
        fallback = float(np.median(truth))
        found = of(asked)
        speeds = np.array([[middle.get((a, b), fallback), middle.get((b, a), fallback)] for a, b in found])
        return speeds, np.where(found.sum(axis=1) <= 2, 1.0, 0.0)[:, None].repeat(2, axis=1)

    return model


def solo_labels() -> dict[bytes, int]:
    found = {}
    lines = (DATA / "lucid_single.csv").read_text(encoding="utf-8").splitlines()
    names = lines[0].split(",")
    for line in lines[1:]:
        row = dict(zip(names, line.split(","), strict=True))
        alone = predictor.profile(float(row["gpu_util"]) / 100, float(row["gmem_util"]) / 100, float(row["gmem"]))
        found[alone.tobytes()] = int(row["label"])
    return found


def held_out(model: Model, pairs: Pairs, folds: Iterable[tuple[str, np.ndarray]]) -> Outcome:
    by_fold, misses, least, truth = {}, [], [], []
    for name, test in folds:
        asked = pairs.part(test)
        speeds, promise = model(pairs.part(~test), asked)
        misses.append(np.abs(speeds - asked.speeds).ravel())
        by_fold[name] = float(misses[-1].mean())
        least.append(promise)
        truth.append(asked.speeds)
    bounds, speeds = np.concatenate(least), np.concatenate(truth)
    safe = promised(bounds, speeds)
    pooled = float(np.concatenate(misses).mean())
    kept = float((speeds >= bounds).mean())
    return Outcome(
        float(np.mean(list(by_fold.values()))), by_fold, pooled, safe["false_safe"], safe["safe_recall"], kept
    )


def nested(pairs: Pairs, tries: int) -> Outcome:
    """Models left out with constants chosen by the other models alone."""
    random = np.random.default_rng(5)
    shapes = [Correction()] + [
        Correction(
            wide=float(random.choice([0.1, 0.15, 0.2, 0.3])), own=float(random.choice([0.03, 0.06, 0.1, 0.14])),
            other=float(random.choice([0.02, 0.03, 0.05])), noise=float(random.choice([0.03, 0.045, 0.06, 0.09])),
            most=float(random.choice([1.05, 1.1, 1.15, 1.3])), bend=float(random.choice([0.02, 0.04, 0.08])),
        )
        for _ in range(tries)
    ]  # fmt: skip

    def inner(known: Pairs, shape: Correction) -> float:
        misses = []
        for _, test in training.folds_by_model(known):
            if test.all():
                continue
            asked = known.part(test)
            fit = training.fit_only(known.part(~test), shape)
            misses.append(float(np.abs(training.guess(fit, asked).speeds - asked.speeds).mean()))
        return float(np.mean(misses))

    def model(known: Pairs, asked: Pairs) -> tuple[Array, Array]:
        best = min(shapes, key=lambda shape: inner(known, shape))
        said = training.guess(training.fit_only(known, best), asked, LEVEL)
        return said.speeds, said.least

    return held_out(model, pairs, training.folds_by_model(pairs))


def by_model_pair(pairs: Pairs) -> float:
    """Mean error where no configuration of the two models was ever seen together."""
    groups = np.array(["|".join(sorted(names)) for names in pairs.names])
    misses = []
    for group in np.unique(groups):
        asked = pairs.part(groups == group)
        fit = training.fit_only(pairs.part(groups != group))
        misses.append(np.abs(training.guess(fit, asked).speeds - asked.speeds).ravel())
    return float(np.concatenate(misses).mean())


def million() -> float:
    """Seconds for a thousand hosts beside a thousand guests, promises included; the best of five."""
    random = np.random.default_rng(3)
    hosts, guests = (np.column_stack([random.random((1_000, 2)), 4 * random.random(1_000)]) for _ in range(2))
    fit = shipped()
    predictor.predict(fit, hosts[:10], guests[:10], LEVEL)
    taken = []
    for _ in range(5):
        began = time.perf_counter()
        predictor.predict(fit, hosts, guests, LEVEL)
        taken.append(time.perf_counter() - began)
    return min(taken)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0] if __doc__ else "")
    parser.add_argument("--nested", type=int, default=0, metavar="TRIES", help="constants to try for each model")
    arguments = parser.parse_args()
    pairs = measured()
    began = time.perf_counter()
    training.train(pairs, "bench")
    took = time.perf_counter() - began
    peers = {"constant": constant, "ridge": ridge, "lucid": lucid(solo_labels())}
    figures: list[Figure] = []
    for kind, folds, error, false_safe, recall in (
        ("pairs", training.folds_by_pair, 0.042, 0.02, 0.70),
        ("models", training.folds_by_model, 0.058, 0.06, 0.60),
    ):
        here = held_out(ours, pairs, folds(pairs))
        print(f"bench-predictor: {kind}: " + ", ".join(f"{n} {v:.3f}" for n, v in here.by_fold.items()), flush=True)
        others = {name: held_out(model, pairs, folds(pairs)) for name, model in peers.items()}
        rule = others["lucid"]
        # Of new models, berthd promises nothing by numbers alone.
        alone = "_numbers" if kind == "models" else ""
        figures += [
            at_most(f"mae_{kind}", here.mae, error, "", "ridge", others["ridge"].mae),
            *(Figure(f"mae_{kind}_{name}", other.mae, "") for name, other in others.items()),
            Figure(f"mae_{kind}_pooled", here.pooled, "", "ridge", others["ridge"].pooled),
            at_most(f"false_safe_{kind}{alone}", here.false_safe, false_safe, "", "Lucid's labels", rule.false_safe),
            at_least(f"safe_recall_{kind}{alone}", here.safe_recall, recall, "", "Lucid's labels", rule.safe_recall),
            Figure(f"false_safe_{kind}_ridge", others["ridge"].false_safe, ""),
            Figure(f"safe_recall_{kind}_ridge", others["ridge"].safe_recall, ""),
            Figure(f"kept_{kind}", here.kept, f"of sides, {LEVEL:.0%} promised"),
        ]
        if kind == "models":
            worst = max(others["ridge"].by_fold.values())
            figures.append(at_most("worst_model", max(here.by_fold.values()), 0.10, "", "ridge", worst))
    by_model = [(~test, test) for _, test in training.folds_by_model(pairs)]
    for kind, splits in (
        ("models", by_model), ("families", by_family(pairs)), ("few_families", by_few_families(pairs)),
    ):  # fmt: skip
        figures += trial_figures(pairs, kind, splits, LEVEL)
    figures += oracle(pairs)
    figures.append(Figure("mae_model_pairs", by_model_pair(pairs), ""))
    if arguments.nested:
        figures.append(Figure("mae_models_nested", nested(pairs, arguments.nested).mae, ""))
    figures += [at_most("million_s", million(), 1.0, "s"), Figure("train_s", took, "s")]
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    notes = {"pairs": str(len(pairs)), "level": str(LEVEL), "nested": str(arguments.nested), "date": today}
    report("predictor", "speed of two jobs on one GPU, held out", figures, notes)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
