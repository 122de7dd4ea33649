"""GPU models that the site counts for limits and bills: each is a licence of Slurm called `berth_MODEL`.

GPUs have a type for each position, so Slurm cannot count them by model. One GPU of a model, which is a feature of its
node, is one licence. The plugin writes the same at submission (slurm_plugins/common/counted.c).
"""

import re
from collections.abc import Mapping

PREFIX = "berth_"

_LICENSE = re.compile(rf"({PREFIX}[\w.-]+)(?:[:=](\d+))?")


def models(licenses: str) -> frozenset[str]:
    """The models that `Licenses` of slurm.conf counts."""
    return frozenset(name.removeprefix(PREFIX) for name in ours(licenses))


def ours(licenses: str) -> dict[str, int]:
    """How many of which of Berth's licences a text names."""
    found = map(_LICENSE.fullmatch, _split(licenses))
    return {match[1]: int(match[2] or 1) for match in found if match is not None}


def text(licenses: Mapping[str, int]) -> str:
    """As Slurm takes them."""
    return ",".join(f"{name}:{count}" for name, count in sorted(licenses.items()))


def change(present: str, wanted: Mapping[str, int]) -> str | None:
    """Return the text that a job's licences have to become, or None where they may stay as they are.

    To a request for one licence or another nothing can be added.
    """
    if "|" in present or ours(present) == wanted:
        return None
    own = [one for one in _split(present) if not one.startswith(PREFIX)]
    return ",".join([*own, *([text(wanted)] if wanted else [])])


def _split(licenses: str) -> list[str]:
    return [one for word in re.split(r"[,;]", licenses) if (one := word.strip())]
