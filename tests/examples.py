"""How many examples Hypothesis draws: fewer in `make test-fast`, many more in `make test-hard`."""

from __future__ import annotations

import os

FACTOR = float(os.environ.get("BERTH_EXAMPLES", "1"))


def examples(count: int) -> int:
    """What `make test` draws, times BERTH_EXAMPLES."""
    return max(1, round(count * FACTOR))
