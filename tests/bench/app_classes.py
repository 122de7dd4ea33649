# SPDX-License-Identifier: Apache-2.0
"""`make bench NAME=app-classes`: application classes by Berth's thresholds, and by K-Means as PAL makes them.

No profile of a whole job with pipes and DRAM is published. Orion (EuroSys 2024) publishes each kernel's time on a V100,
and if it is bound by compute or by memory (github.com/eth-easl/orion, commit aded65dd, `benchmarking/model_kernels` and
`profiling/postprocessing/profiles`). The shares of kernel time stand here for those of pipes and DRAM.
"""

from __future__ import annotations

import argparse
from collections import Counter

import numpy as np

from policy.formats.arrays import Floats
from tests.bench.table import Figure, report
from topology.calibrate.classes import ClassProfile, by_rule

CLASSES = ("compute", "mixed", "memory")
PROFILES = {
    "bert": (0.675, 0.296),
    "mobilenetv2_32": (0.295, 0.689),
    "mobilenetv2_64": (0.269, 0.723),
    "mobilenetv2_96": (0.259, 0.735),
    "resnet101": (0.679, 0.311),
    "resnet50": (0.646, 0.346),
    "transformer_xl": (0.516, 0.421),
    "bert_infers": (0.842, 0.116),
    "efficientnet_infers": (0.734, 0.265),
    "mobilenetv2_infers": (0.461, 0.410),
    "resnet101_infers": (0.788, 0.168),
    "resnet50_infers": (0.765, 0.201),
    "retinanet_infers": (0.588, 0.398),
    "transformer_xl_infers": (0.684, 0.184),
}
"""Training, where not said otherwise; a number is the batch."""
PUBLISHED = {"bert": "mixed", "mobilenetv2_64": "memory", "resnet50": "compute", "transformer_xl": "mixed"}
"""The classes of the same models in PAL's artifact: A, B and its last."""
SITES, JOBS = 500, 8
TRIES = 40


def k_means(points: Floats, k: int, rng: np.random.Generator) -> Floats:
    """Returns for each point its cluster's centre, of the tightest of some tries."""
    best: tuple[float, Floats] = (np.inf, points)
    for _ in range(TRIES):
        centres = points[rng.choice(len(points), k, replace=False)]
        for _ in range(50):
            near = np.argmin(((points[:, None] - centres) ** 2).sum(axis=2), axis=1)
            sizes = np.bincount(near, minlength=k)[:, None]
            sums = np.array([np.bincount(near, points[:, axis], k) for axis in (0, 1)]).T
            moved = np.where(sizes > 0, sums / np.maximum(sizes, 1), centres)
            if np.array_equal(moved, centres):
                break
            centres = moved
        best = min(best, (float(((points - centres[near]) ** 2).sum()), centres[near]), key=lambda one: one[0])
    return best[1]


def silhouette(points: Floats, centres: Floats) -> float:
    """Returns how much nearer points lie to their own cluster than to the next."""
    far = np.sqrt(((points[:, None] - points) ** 2).sum(axis=2))
    labels = np.unique(centres, axis=0, return_inverse=True)[1].ravel()
    made = []
    for one, label in enumerate(labels):
        own = far[one, labels == label].sum() / max(1, (labels == label).sum() - 1)
        other = min(far[one, labels == more].mean() for more in set(labels) - {label})
        made.append((other - own) / max(own, other) if (labels == label).sum() > 1 else 0.0)
    return float(np.mean(made))


def ranked(centres: Floats) -> list[int]:
    """Returns each point's cluster, the one with most compute first."""
    share = np.round(centres[:, 0] / centres.sum(axis=1), 9)
    return [int(one) for one in np.unique(-share, return_inverse=True)[1].ravel()]


def figures(seed: int) -> list[Figure]:
    """Returns what both find, and how steady K-Means is over sites that run some of the workloads."""
    rng, points = np.random.default_rng(seed), np.array(list(PROFILES.values()))
    rules = {name: by_rule(ClassProfile(name, *shares)) for name, shares in PROFILES.items()}
    all_three = ranked(k_means(points, 3, rng))
    means = {name: CLASSES[one] for name, one in zip(PROFILES, all_three, strict=True)}
    counts: Counter[int] = Counter()
    moved, seen = 0, [set[int]() for _ in PROFILES]
    for _ in range(SITES):
        some = rng.choice(len(points), JOBS, replace=False)
        part = points[some]
        counts[max(range(2, JOBS), key=lambda k: silhouette(part, k_means(part, k, rng)))] += 1
        for place, cluster in zip(some, ranked(k_means(part, 3, rng)), strict=True):
            moved += cluster != all_three[place]
            seen[place].add(cluster)

    def as_published(found: dict[str, str]) -> int:
        return sum(found[name] == label for name, label in PUBLISHED.items())

    return [
        Figure("workloads", len(PROFILES), ""),
        Figure("same_class", sum(rules[name] == means[name] for name in PROFILES), "workloads", "K-Means, k=3"),
        Figure("as_published", as_published(rules), "of 4", "K-Means, k=3", as_published(means)),
        *(Figure(f"sites_with_{k}_clusters", counts[k] / SITES, "of sites") for k in sorted(counts)),
        Figure("moved_by_other_jobs", 0.0, "of jobs", "K-Means, k=3", moved / SITES / JOBS),
        Figure("in_several_classes", 0, "workloads", "K-Means, k=3", sum(len(one) > 1 for one in seen)),
    ]


def main() -> None:
    """Prints and keeps the figures."""
    parser = argparse.ArgumentParser(description="Application classes by thresholds and by K-Means.")
    parser.add_argument("--seed", type=int, default=1)
    seed = parser.parse_args().seed
    report("app-classes", "Application classes", figures(seed), {"sites": f"{SITES} of {JOBS} jobs", "seed": str(seed)})


if __name__ == "__main__":
    main()
