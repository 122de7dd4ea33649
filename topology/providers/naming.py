# SPDX-License-Identifier: Apache-2.0
"""Short names of GPU models, as users write them in `gpu:MODEL:N`."""

import re

#: Words of a product name that say nothing about which GPU it is.
_VENDOR = frozenset({"nvidia", "tesla", "quadro", "geforce", "grid", "graphics"})
#: Families whose name belongs to the number behind it: "RTX 6000" and "A6000" are different GPUs.
_FAMILY = frozenset({"rtx", "gtx", "titan", "pro"})
_SUFFIX = frozenset({"ti", "super", "ada"})


def short_model(name: str) -> str:
    """Make a short lower-case name of the name that the driver gives.

    The rule: words of the vendor are dropped; the first word left, up to its first `-`, is the name. A family
    word (RTX, GTX, TITAN, PRO) is dropped before letters and digits (RTX A6000), else kept with what follows
    it, and with Ti, SUPER or Ada.

    >>> [short_model(name) for name in ("Tesla V100-SXM2-32GB", "NVIDIA H100 80GB HBM3", "NVIDIA RTX A6000")]
    ['v100', 'h100', 'a6000']
    >>> [short_model(name) for name in ("NVIDIA RTX 6000 Ada Generation", "NVIDIA GeForce RTX 4070 Ti SUPER")]
    ['rtx6000ada', 'rtx4070tisuper']
    """
    words = [re.sub(r"[^a-z0-9]", "", word.split("-")[0]) for word in name.lower().split()]
    words = [word for word in words if word and word not in _VENDOR]
    families = []
    while words and words[0] in _FAMILY:
        families.append(words.pop(0))
    if not words:
        return "".join(families) or "gpu"
    model = words.pop(0)
    if families and re.match(r"[a-z]+[0-9]", model):
        families.clear()
    suffixes = []
    while families and words and words[0] in _SUFFIX:
        suffixes.append(words.pop(0))
    return "".join([*families, model, *suffixes])
