# SPDX-License-Identifier: Apache-2.0
"""GPU models that the site counts for limits and bills: each one is a Slurm licence named `berth_MODEL`.

GPUs have a type for each position, so Slurm cannot count them by model. One GPU is one licence of its model, and the
model is a feature of its node. The plugin writes the same at submission (slurm_plugins/config/counted.c).
"""

import re
from collections.abc import Mapping

PREFIX = "berth_"

_LICENSE = re.compile(rf"({PREFIX}[\w.-]+)(?:[:=](\d+))?")


def models(licenses: str) -> frozenset[str]:
    """Returns the models that `Licenses` of slurm.conf counts."""
    return frozenset(name.removeprefix(PREFIX) for name in ours(licenses))


def ours(licenses: str) -> dict[str, int]:
    """Returns the number of each of Berth's licences that a text names."""
    found = map(_LICENSE.fullmatch, _split(licenses))
    return {match[1]: int(match[2] or 1) for match in found if match is not None}


def of(model: str, gpus: int) -> dict[str, int]:
    """Returns the licences of so many GPUs of a model; none if its name is empty."""
    return {f"{PREFIX}{model}": gpus} if model else {}


def text(licenses: Mapping[str, int]) -> str:
    """Writes licences in Slurm's syntax."""
    return ",".join(f"{name}:{count}" for name, count in sorted(licenses.items()))


def change(present: str, wanted: Mapping[str, int]) -> str | None:
    """Returns the new text of a job's licences, or None if it need not change.

    Nothing can be added to a request for alternative licences (`|`).
    """
    if "|" in present or ours(present) == wanted:
        return None
    own = [one for one in _split(present) if not one.startswith(PREFIX)]
    return ",".join([*own, *([text(wanted)] if wanted else [])])


def _split(licenses: str) -> list[str]:
    return [one for word in re.split(r"[,;]", licenses) if (one := word.strip())]
