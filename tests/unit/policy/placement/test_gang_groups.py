"""Groups of nodes for gangs: where a block and a leaf both count, nodes are together only in both."""

import numpy as np

from policy.placement.gang import _of_both
from topology.fabric import NOBODY


def test_nodes_are_together_only_where_both_groupings_have_them_together() -> None:
    leaves = np.array([0, 0, 0, 1, 1, NOBODY, 1, 1])
    blocks = np.array([0, 0, 1, 1, 1, 1, NOBODY, 0])

    found = _of_both(leaves, blocks).tolist()

    assert found[0] == found[1]
    assert found[3] == found[4]
    assert len({found[0], found[2], found[3], found[7], NOBODY}) == 5
    assert found[5:7] == [NOBODY, NOBODY]
