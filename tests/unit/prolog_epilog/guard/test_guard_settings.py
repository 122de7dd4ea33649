# SPDX-License-Identifier: Apache-2.0
"""The guard's keys: what is read, errors that name the key."""

from typing import Any

import pytest

from prolog_epilog.errors import NodeConfigError
from prolog_epilog.settings.config import filled
from prolog_epilog.settings.guard_keys import GuardSettings


def read(section: dict[str, Any]) -> GuardSettings:
    return filled(GuardSettings(), section, "guard")


def test_an_empty_section_is_the_defaults() -> None:
    assert read({}) == GuardSettings()


def test_keys_are_read_from_their_tables() -> None:
    found = read({"metrics": "/x.prom", "bound": {"slowdown": 0.1}, "action": {"evict_grace_s": 5}})

    assert (found.metrics, found.bound.slowdown, found.action.evict_grace_s) == ("/x.prom", 0.1, 5.0)
    assert found.machine == GuardSettings().machine


@pytest.mark.parametrize(
    ("section", "said"),
    [
        ({"boond": {}}, "[guard] has no key boond; did you mean bound?"),
        ({"bound": {"slowdwn": 0.1}}, "[guard.bound] has no key slowdwn; did you mean slowdown?"),
        ({"bound": 0.05}, "[guard] bound is a table of keys"),
        ({"bound": {"slowdown": "5 %"}}, "[guard.bound] slowdown is a number"),
        ({"bound": {"slowdown": -0.05}}, "[guard.bound] slowdown is from 0 to 1, not -0.05"),
        ({"machine": {"admit_s": True}}, "[guard.machine] admit_s is a number"),
        ({"machine": {"over_memory": 95}}, "[guard.machine] over_memory is from 0 to 1, not 95.0"),
        ({"metrics": 1}, "[guard] metrics is a text in quotes"),
        ({"aimd": 1}, "[guard] has no key aimd"),
    ],
)
def test_a_wrong_key_is_named(section: dict[str, object], said: str) -> None:
    with pytest.raises(NodeConfigError) as error:
        read(section)

    assert said in str(error.value)
