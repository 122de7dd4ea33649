# SPDX-License-Identifier: Apache-2.0
"""Measures promises for new models and families: with trials, without, and at best by these inputs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict

import numpy as np
from sklearn.neighbors import KNeighborsRegressor

from policy.sharing import predictor
from policy.sharing.predictor import Fit
from tests.bench import training
from tests.bench.measured_pairs import promised
from tests.bench.table import Figure, at_least, at_most
from tests.bench.training import Pairs
from tests.bench.trial_replay import TrialReplay, replay

FAMILIES = {"MobileNetV2": "MobileNet", "MobileNetV3": "MobileNet", "PPO": "RL", "TD3": "RL"}
"""Models that are one family; any other is a family of its own."""
FEW, DRAWS, SEED = 3, 2, 1
"""Families that are known where few are, and draws of them for each family left out."""
SEEDS = 3
"""Random orders in which pairs come."""
_MOST_FALSE, _LEAST_RECALL = 0.06, 0.50

Mask = np.ndarray

_fits: dict[bytes, Fit] = {}


def trained(known: Pairs) -> Fit:
    """Trains a fit once for the same rows."""
    key = known.speeds.tobytes()
    if key not in _fits:
        _fits[key] = training.train(known, "bench")
    return _fits[key]


def families(pairs: Pairs) -> np.ndarray:
    return np.array([[FAMILIES.get(name, name) for name in row] for row in pairs.names])


def by_family(pairs: Pairs) -> Iterable[tuple[Mask, Mask]]:
    """Yields what is known and what is asked: all pairs without a family, and those with it."""
    of = families(pairs)
    for family in np.unique(of):
        asked = np.asarray((of == family).any(axis=1))
        yield ~asked, asked


def by_few_families(pairs: Pairs) -> Iterable[tuple[Mask, Mask]]:
    """Yields pairs among few families that are known, and those of a new family beside these."""
    of, random = families(pairs), np.random.default_rng(SEED)
    every = np.unique(of)
    for family in every:
        for _ in range(DRAWS):
            few = random.choice(every[every != family], FEW, replace=False)
            known = np.isin(of, few).all(axis=1)
            asked = (of == family).any(axis=1) & np.isin(of, [*few, family]).all(axis=1)
            if known.sum() >= 30 and asked.sum() >= 10:
                yield np.asarray(known), np.asarray(asked)


def _added(some: Iterable[TrialReplay]) -> TrialReplay:
    rows = [asdict(one) for one in some]
    return TrialReplay(**{name: sum(row[name] for row in rows) for name in rows[0]})


def trial_figures(pairs: Pairs, kind: str, splits: Iterable[tuple[Mask, Mask]], level: float) -> list[Figure]:
    """Figures of new jobs: with trials counted as what they cost, and by numbers alone."""
    least, truth, found, hosts = [], [], [], []
    for known, test in splits:
        asked, fit = pairs.part(test), trained(pairs.part(known))
        least.append(training.guess(fit, asked, level).least)
        truth.append(asked.speeds)
        found += [replay(fit, asked, level, seed=seed) for seed in range(SEEDS)]
        hosts += [replay(fit, asked, level, seed=seed, hosts_only=True) for seed in range(SEEDS)]
    numbers = promised(np.concatenate(least), np.concatenate(truth))
    tried, of_hosts = _added(found), _added(hosts)
    alone = "numbers alone"
    return [
        at_most(
            f"false_safe_{kind}", tried.false_safe_in_time, _MOST_FALSE, "of the time together", alone,
            numbers["false_safe"],
        ),
        at_least(
            f"safe_recall_{kind}", tried.safe_recall, _LEAST_RECALL, "of safe pairs, promised", alone,
            numbers["safe_recall"],
        ),
        Figure(f"false_safe_{kind}_promises", tried.false_safe, "of promises", alone, numbers["false_safe"]),
        Figure(f"safe_recall_{kind}_with_trials", tried.safe_recall_with_trials, "of safe pairs, trials too"),
        Figure(f"false_safe_{kind}_hosts", of_hosts.false_safe, "of promises, hosts heard alone"),
        Figure(f"safe_recall_{kind}_hosts", of_hosts.safe_recall, "of safe hosts"),
        Figure(f"trials_{kind}", tried.trials / tried.pairs, "of pairs"),
        Figure(f"trials_harmed_{kind}", tried.trials_harmed / max(1, tried.trials), "of trials"),
    ]  # fmt: skip


def oracle(pairs: Pairs) -> list[Figure]:
    """Nearest neighbours with every other pair known, those of the same family too, and bound and number in view.

    What two jobs' numbers alone can say at best, roughly: the same six inputs, and no family is new.
    """
    sides = predictor.rounded(pairs.first), predictor.rounded(pairs.second)
    inputs = np.concatenate([np.hstack(sides), np.hstack(sides[::-1])])
    scaled = inputs / np.tile(6 * predictor.NARROW, 2)
    truth = np.minimum(pairs.speeds, 1.15).T.ravel()
    places = np.unique(np.concatenate(sides), axis=0, return_inverse=True)[1].reshape(2, -1)
    _, group = np.unique(np.sort(places, axis=0), axis=1, return_inverse=True)
    group = np.concatenate([group.ravel(), group.ravel()])
    worst, safe = pairs.speeds.min(axis=1), pairs.speeds.min(axis=1) >= 0.9
    best = 1.0
    for count in (1, 2, 3, 5, 8):
        said = np.empty(len(truth))
        for one in np.unique(group):
            test = group == one
            model = KNeighborsRegressor(count, weights="distance").fit(scaled[~test], truth[~test])
            said[test] = model.predict(scaled[test])
        least = said.reshape(2, -1).min(axis=0)
        for bound in np.unique(least):
            chosen = least >= bound
            if safe[chosen].sum() >= _LEAST_RECALL * safe.sum():
                best = min(best, float((worst[chosen] < 0.85).mean()))
    return [Figure("false_safe_nearest_neighbours", best, f"at recall {_LEAST_RECALL:g}, all families known")]
