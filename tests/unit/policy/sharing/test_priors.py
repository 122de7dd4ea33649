# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from policy.sharing.priors import PRIORS, profile_for
from policy.sharing.profiles import Measured, ProfileKey, Store

ANN = ProfileKey("ann", "lab", "train")


def test_an_unknown_job_is_taken_for_one_of_its_class() -> None:
    assert profile_for(Store(), ANN, "memory") == PRIORS["memory"]
    assert profile_for(Store(), ANN, "nobody-knows") == PRIORS["mixed"]
    assert profile_for(Store(), ANN, "compute", gpu_mem=500).memory == 500
    assert profile_for(Store(), ANN).runs == 0


def test_a_prior_fills_only_what_nobody_measured() -> None:
    store = Store()
    store.add(ANN, Measured(at=5, runs=1, busy=0.3, memory=100))

    found = profile_for(store, ANN, "compute", gpu_mem=5_000)

    assert (found.busy, found.memory, found.bandwidth) == (0.3, 100, PRIORS["compute"].bandwidth)
