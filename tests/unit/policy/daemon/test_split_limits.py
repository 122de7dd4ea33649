# SPDX-License-Identifier: Apache-2.0
"""Limits in slurmdbd that could refuse a job on more nodes: sacctmgr is asked now and then, and nobody waits for it."""

from __future__ import annotations

from typing import IO, Any

import pytest

from policy.daemon.known.split_limits import LOOK_EVERY, SplitLimits
from policy.formats.slurm_facts import Reading

from .test_retry_daemon import Process

NOTHING = ("||||||||\n", "||||\n||||\n")
ENDED = 0
RUNS: int | None = None


class Site:
    """A site whose sacctmgr prints what it is told."""

    def __init__(self) -> None:
        self.asked: list[list[str]] = []
        self.prints = NOTHING
        self.ends: list[int | None] = [ENDED, ENDED]
        self.commands: list[Process] = []
        self.limits = SplitLimits(self.start)

    def start(self, words: list[str], out: IO[bytes]) -> Any:
        turn = len(self.asked) % 2
        self.asked.append(words)
        out.write(self.prints[turn].encode())
        self.commands.append(Process(self.ends[turn]))
        return self.commands[-1]

    def at(self, seconds: float, *, enforced: bool = True) -> bool:
        return self.limits.may_refuse(Reading(seconds, (), (), (), limits_enforced=enforced, cluster="hall"))

    def told(self, qos: str, associations: str) -> bool:
        self.prints = (qos, associations)
        self.at(0)
        return self.at(1)


def test_where_slurm_enforces_no_limits_nobody_is_asked() -> None:
    site = Site()
    assert not site.at(0, enforced=False)
    assert site.asked == []


def test_limits_count_as_there_until_sacctmgr_has_answered() -> None:
    site = Site()
    assert site.at(0)
    assert not site.at(1)
    assert [words[:4] for words in site.asked] == [
        ["sacctmgr", "-nP", "show", "qos"],
        ["sacctmgr", "-nP", "show", "assoc"],
    ]
    assert site.asked[1][4:6] == ["where", "cluster=hall"]


@pytest.mark.parametrize(
    ("qos", "associations", "bound"),
    [
        ("|||gres/gpu=8|||||\n", "gres/gpu=64,gres/gpu:h100=8||||\nlicense/berth_h100=2||||\n", False),
        ("||||||||\n|||node=4|||||\n", "||||\n", True),
        ("||||||||\n", "||||\ngres/gpu=64,cpu=512||||\n", True),
        ("||||||||\n", "||||\n|billing=1000|||\n", True),
        ("|||||||mem=10T|\n", "||||\n", True),
        # Hidden from who asks.
        ("||||||||\n", "", True),
        ("", "||||\n", True),
    ],
)
def test_a_limit_of_what_grows_with_the_nodes_may_refuse_a_split(qos: str, associations: str, bound: bool) -> None:
    assert Site().told(qos, associations) is bound


def test_it_looks_again_and_keeps_what_it_saw_meanwhile() -> None:
    site = Site()
    assert not site.told(*NOTHING)
    site.prints = ("|||node=1|||||\n", NOTHING[1])
    assert not site.at(LOOK_EVERY)
    assert len(site.asked) == 2
    assert not site.at(LOOK_EVERY + 1)
    assert site.at(LOOK_EVERY + 2)
    assert len(site.asked) == 4


def test_a_sacctmgr_that_hangs_is_ended_and_a_limit_counts_as_there() -> None:
    site = Site()
    assert not site.told(*NOTHING)
    site.ends = [ENDED, RUNS]
    assert not site.at(100)
    assert not site.at(120)
    assert site.at(130)
    assert site.commands[-1].returncode == -9


def test_a_sacctmgr_that_fails_or_is_not_there_tells_nothing() -> None:
    site = Site()
    site.ends = [ENDED, 1]
    assert site.told(*NOTHING)

    def missing(words: list[str], out: IO[bytes]) -> Any:
        raise FileNotFoundError(words[0])

    site.limits = SplitLimits(missing)
    assert site.told(*NOTHING)
