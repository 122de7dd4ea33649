# SPDX-License-Identifier: Apache-2.0
"""Levels of enforcement: what holds jobs to their shares on their nodes; kept in the plan for `berth why`."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from policy.formats.errors import FormatError, NoAnswer, SlurmError
from policy.formats.job_plan import JobPlan, of_text
from policy.formats.plan_fields import HELD, HELD_TEXT, SHARE, TIER, HeldLevel
from policy.formats.wire import unescape
from policy.site import log
from policy.slurm.interface import Gateway

MOST_NODES = 8
"""The most nodes of a job whose levels are kept; more would make its comment too long."""

_PAYLOAD = re.compile(
    rb"berth/1 level node=([A-Za-z0-9_.-]{1,255}) job=([1-9][0-9]{0,9}) level=([a-z0-9+.-]{1,64})"
    rb" text=([!-Z\\^-~]{1,400})"
)
_MOST_JOBS = 2**32 - 1


@dataclass(frozen=True, slots=True)
class LevelWord:
    """One notice of a guard (docs/develop/formats.md)."""

    node: str
    job: int
    level: str
    """The level of enforcement, one word."""
    text: str
    """The level in a sentence for the user."""


def read_word(payload: bytes) -> LevelWord | None:
    """Returns the notice in a payload; None if it is not one."""
    match = _PAYLOAD.fullmatch(payload)
    if match is None or int(match[2]) > _MOST_JOBS:
        return None
    try:
        text = unescape(match[4].decode())
    except FormatError:
        return None
    return LevelWord(match[1].decode(), int(match[2]), match[3].decode(), text)


class HeardLevels:
    """Notices that are not yet written into plans."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._heard: dict[int, dict[str, LevelWord]] = {}

    def hear(self, word: LevelWord) -> None:
        """Keeps a notice until there is time to write it."""
        self._heard.setdefault(word.job, {})[word.node] = word

    def write_one(self) -> int | None:
        """Writes the levels of one job; returns its number, or None if nothing is left to write."""
        while self._heard:
            job_id, words = self._heard.popitem()
            try:
                job = self._gateway.job(job_id)
                plan = of_text(job.admin_comment)
                # The level of a job that has ended, or waits again, holds no more.
                if job.state != "RUNNING" or plan is None or not plan.has_any((SHARE, TIER)):
                    continue
                after = held(plan, words)
                if after != plan:
                    self._gateway.annotate(job_id, after)
                    return job_id
            except NoAnswer:
                self._heard[job_id] = words
                return None  # each question may take long, and Epilogs wait
            except (SlurmError, FormatError) as problem:
                log.error(f"JobId={job_id}: what holds its share could not be written: {problem}", 630)
        return None


def held(plan: JobPlan, words: Mapping[str, LevelWord]) -> JobPlan:
    """Returns a job's plan with the levels that its nodes reported."""
    levels = dict(plan.get(HELD, ()))
    for word in words.values():
        if word.node in levels or len(levels) < MOST_NODES:
            levels[word.node] = word.level
    *_, last = words.values()
    return plan.having(HELD(tuple(HeldLevel(node, level) for node, level in levels.items())), HELD_TEXT(last.text))
