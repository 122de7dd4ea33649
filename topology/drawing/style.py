# SPDX-License-Identifier: Apache-2.0
"""Colours and scales of the pictures; tints are Okabe and Ito's, which the colour-blind can tell apart."""

import math

BACKGROUND, PANEL, CARD = "#fbfbfd", "#f0f2f6", "#ffffff"
INK, MUTED, FAINT, LINE = "#1c2330", "#5a6475", "#c9d0db", "#8893a5"
HOST, SWITCH, NIC, PROBLEM = "#dfe4ec", "#e9e2f3", "#d9eef0", "#b3261e"

TINTS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#8a7d00", "#6a51a3")

#: From slow to fast: pale gold to deep blue, lightness falling all the way, so that it reads without colour too.
_SCALE = ((25, "#d9a62e"), (50, "#b0722b"), (100, "#8b4a6b"), (250, "#5b3a86"), (450, "#33307a"))


def link_colour(gbps: float) -> str:
    """Returns colour of an NVLink of so many GB/s in one direction."""
    return next((colour for most, colour in reversed(_SCALE) if gbps >= most), _SCALE[0][1])


def link_width(gbps: float) -> float:
    """Returns width of its line, by the root: 25 GB/s gives 2.1, 450 GB/s 8.9."""
    return round(min(10.0, max(1.6, 0.42 * math.sqrt(gbps))), 1)
