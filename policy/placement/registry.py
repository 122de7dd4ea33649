# SPDX-License-Identifier: Apache-2.0
"""Finds policies by name: Berth's own, the published ones, and those of other packages.

Another package adds a policy by an entry point of the group `berth.policies`. Its name is the policy's, and its object
makes a policy from keyword options:

    [project.entry-points."berth.policies"]
    first-fit = "my_site.placement:FirstFit"
"""

from collections.abc import Callable
from importlib import import_module
from importlib.metadata import entry_points
from typing import cast

from policy.formats.errors import ConfigError, nearest
from policy.placement.base import Policy

GROUP = "berth.policies"

OURS = {
    "berth": "policy.placement.berth:BerthPolicy",
    "packed": "policy.placement.published.packed:PackedPolicy",
    "random": "policy.placement.published.random:RandomPolicy",
    "pinned-random": "policy.placement.published.random:PinnedRandomPolicy",
    "pm-first": "policy.placement.published.pm_first:PmFirstPolicy",
    "pal": "policy.placement.published.pal:PalPolicy",
    "slurm": "policy.placement.slurm_like:SlurmPolicy",
    "slurm-tree": "policy.placement.slurm_like:SlurmTreePolicy",
}


def policies() -> tuple[str, ...]:
    """Returns all names, in alphabetical order."""
    return tuple(sorted({*OURS, *(point.name for point in entry_points(group=GROUP))}))


def create(name: str, **options: object) -> Policy:
    """Makes the policy of that name; the options are those of its class.

    Other packages cannot replace Berth's own names.
    """
    make = _maker(name)
    try:
        return make(**options)
    except TypeError as error:
        raise ConfigError(f"policy {name} cannot be made with the options {', '.join(options)}: {error}") from error


def _maker(name: str) -> Callable[..., Policy]:
    if name in OURS:
        module, _, attribute = OURS[name].partition(":")
        return cast("Callable[..., Policy]", getattr(import_module(module), attribute))
    found = next(iter(entry_points(group=GROUP, name=name)), None)
    if found is None:
        known = policies()
        raise ConfigError(f"there is no policy {name}{nearest(name, known)}; known are {', '.join(known)}")
    try:
        return cast("Callable[..., Policy]", found.load())
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"policy {name} cannot be loaded from {found.value}: {error}") from error
