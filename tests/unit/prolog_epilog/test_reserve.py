# SPDX-License-Identifier: Apache-2.0
"""The memory that a guest may hold beside its host: berthd's seats and the node's Prolog count alike."""

import numpy as np
import pytest

from policy.plan.opinions.guests import seats
from prolog_epilog.tenants import reserve


@pytest.mark.parametrize("total", [16_384, 24_576, 40_960, 81_920, 143_771])
@pytest.mark.parametrize("need", [0, 1, 12_345, 81_000])
def test_a_seat_that_berthd_gives_is_one_that_the_node_grants(total: int, need: int) -> None:
    by_berthd = int((np.array([total]) * (1.0 - seats.MARGIN)).astype(np.int64)[0]) - need

    assert reserve.ceiling_mib(total, need) == max(0, by_berthd)
