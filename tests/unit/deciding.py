# SPDX-License-Identifier: Apache-2.0
"""Answers submit requests in tests, and shows each reply as the plugin reads it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from policy.formats import reply, segment
from policy.placement.base import Policy
from policy.plan.answer import case, left, on_nodes
from policy.plan.answer import decide as answers
from policy.plan.answer.case import Context, Understanding
from policy.plan.ledger.book import Book
from policy.plan.ledger.claims import Claim
from policy.request.settings import Settings
from policy.request.submission import read
from tests.told import Segment, Told


@dataclass(frozen=True)
class Decision:
    """A decision, with the text of each value of its reply."""

    made: case.Decision

    @property
    def verb(self) -> str:
        return self.made.reply.verb

    @property
    def fields(self) -> Told:
        return Told(reply.fields(self.made.reply), f"the reply {self.verb!r}")

    @property
    def claim(self) -> Claim | None:
        return self.made.claim

    @property
    def holds_for(self) -> str:
        return self.made.holds_for


def decide(
    fields: Mapping[str, str],
    book: Book,
    policy: Policy,
    settings: Settings,
    now: float,
    understanding: Understanding | None = None,
    stale: str = "",
) -> Decision:
    return Decision(
        answers.decide(read(fields), Context(book, policy, settings, now, stale, understanding or Understanding()))
    )


def decide_nodes(
    fields: Mapping[str, str],
    book: Book,
    policy: Policy,
    settings: Settings,
    now: float,
    understanding: Understanding,
    stale: str = "",
) -> Decision:
    return Decision(on_nodes.decide_nodes(read(fields), Context(book, policy, settings, now, stale, understanding)))


def values(decision: Decision) -> Segment:
    """The segment that a reply writes into its job."""
    return Segment(segment.fields(f"[berth/1 {decision.fields['segment']}]") or {})


def only_watch(decision: Decision) -> Decision:
    return Decision(left.only_watch(decision.made))
