# SPDX-License-Identifier: Apache-2.0
"""Speed of one NVLink in one direction, for sources that do not tell it."""

# MB/s as drivers report them (`nvidia-smi nvlink -s`).
V1, V2, V4, V5 = 20000, 25781, 26562, 53125
#: Third generation, but narrower: the boards of compute capability 8.6 that take a bridge.
SM86 = 14062

#: Short model name: MB/s of a link, links of a GPU.
_MODELS = {
    "p100": (V1, 4),
    "v100": (V2, 6),
    "rtx6000": (V2, 2),
    "rtx8000": (V2, 2),
    "a100": (V2, 12),
    "a800": (V2, 8),
    "a30": (V2, 4),
    "a40": (SM86, 4),
    "a6000": (SM86, 4),
    "rtx3090": (SM86, 4),
    "h100": (V4, 18),
    "h200": (V4, 18),
    "h800": (V4, 8),
    "h20": (V4, 18),
    "gh200": (V4, 18),
    "b200": (V5, 18),
    "b300": (V5, 18),
    "gb200": (V5, 18),
    "gb300": (V5, 18),
}
#: By NVML's number of the NVLink version.
_VERSIONS = {1: V1, 2: V2, 3: V2, 4: V2, 5: V2, 6: V4, 7: V5, 8: V5}
_MOST_LINKS = 18
#: Links of a GPU, at most: MB/s of each. Where two generations have as many links, the slower one counts.
_BY_COUNT = ((3, V2), (4, SM86), (12, V2), (_MOST_LINKS, V4))


def of_version(version: int | None) -> int:
    """Returns MB/s of a link of this NVLink version, as NVML numbers it."""
    return _VERSIONS.get(version or 0, V2)


def of_model(model: str) -> int | None:
    """Returns MB/s of a link of this GPU model; None where the table has no such model."""
    known = _MODELS.get(model)
    return known[0] if known else None


def most_links(model: str) -> int:
    """Returns links that a GPU of this model has; of an unknown model, as many as any GPU of the table."""
    known = _MODELS.get(model)
    return known[1] if known else _MOST_LINKS


def guess_mbps(links: int) -> int:
    """Returns MB/s of a link, guessed from the number of links of one GPU.

    >>> guess_mbps(4), guess_mbps(12), guess_mbps(18)
    (14062, 25781, 26562)
    """
    return next((mbps for most, mbps in _BY_COUNT if links <= most), V4)
