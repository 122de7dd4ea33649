# SPDX-License-Identifier: Apache-2.0
"""What a job insists on: a site's rules by size, and Slurm's own --switches."""

import pytest

from policy.formats.errors import FormatError, LeftToSlurm
from policy.formats.flags import Locality
from policy.request.locality import of_switches, parse_rules


@pytest.mark.parametrize("word", ["9", "nvlink", ":leaf", "x:leaf", "²:leaf", "-2:leaf", "9:", "9:rack"])
def test_a_rule_that_is_none_is_named(word: str) -> None:
    with pytest.raises(FormatError):
        parse_rules(f"2:nvlink {word}", 600)


@pytest.mark.parametrize(
    ("count", "nodes", "found"),
    [(None, 4, None), (1, 1, None), (1, 2, Locality("leaf", 90)), (4, 4, None), (9, 4, None)],
)
def test_switches_for_as_many_nodes_say_nothing(count: int | None, nodes: int, found: Locality | None) -> None:
    assert of_switches(count, 90, nodes) == found


def test_of_several_switches_slurm_chooses() -> None:
    with pytest.raises(LeftToSlurm, match="--switches=3"):
        of_switches(3, None, 4)
