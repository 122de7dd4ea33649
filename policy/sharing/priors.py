# SPDX-License-Identifier: Apache-2.0
"""The profile by which a job is placed: its own, and its class's prior for what was never measured."""

from dataclasses import replace

from policy.sharing.profiles import Measured, ProfileKey, Store

PRIORS = {
    "compute": Measured(at=0.0, runs=0.0, busy=1.0, bandwidth=0.6, memory=12_000.0),
    "mixed": Measured(at=0.0, runs=0.0, busy=1.0, bandwidth=0.75, memory=20_000.0),
    "memory": Measured(at=0.0, runs=0.0, busy=0.6, bandwidth=0.4, memory=12_000.0),
}
"""The profile that a job of a class is assumed to have before it is measured.

The values are about the highest that such jobs reached in public measurements, so that neither the job nor its
neighbour is promised too much. `runs` is 0, because nothing was measured.
"""


def profile_for(store: Store, key: ProfileKey, app_class: str = "", gpu_mem: float | None = None) -> Measured:
    """Returns the profile to place a job by: its own, with missing values from its class's prior.

    Where its memory was not measured, a job that requests GPU memory is assumed to use that much.
    """
    prior = PRIORS.get(app_class, PRIORS["mixed"])
    if gpu_mem is not None:
        prior = replace(prior, memory=gpu_mem)
    own = store.best_for(key, app_class)
    if own is None:
        return prior
    missing = {
        name: getattr(prior, name) for name in ("busy", "bandwidth", "memory") if getattr(own, name) is None
    }  # fmt: skip
    return replace(own, **missing)
