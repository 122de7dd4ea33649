"""Shortens replies to the size that the plugin accepts (docs/formats.md, section 1.2).

The plugin drops a reply with a field that is too long, and users may write texts of any length.
"""

import re
from dataclasses import replace

from policy.formats import segment, wire
from policy.formats.errors import LeftToSlurm
from policy.formats.escape import escape, unescape
from policy.formats.messages import tag, untagged
from policy.plan.answer.decide import Decision, say_no

_MOST_REASON = 512
_BYTES_OF_ONE = 12
"""Most bytes of one character on the wire: four bytes of UTF-8, each escaped."""
_FIRST_LINE = 64
_CUT_ESCAPE = re.compile(r"%[0-9A-F]?\Z")


def within(decision: Decision, fields: dict[str, str], now: float) -> Decision:
    """Returns the decision if its reply fits; else with a shorter reason; else the job is left to Slurm."""
    if _fits(decision):
        return decision
    shorter = replace(decision, fields=_with_a_short_reason(decision.fields))
    if _fits(shorter):
        return shorter
    # Only the flags are left then, and the plugin sends none that are long.
    return say_no(fields, LeftToSlurm("its request is longer than can be kept in its comment", 212), now)


def _fits(decision: Decision) -> bool:
    if len(decision.fields.get("segment", "")) > segment.MAX_BODY:
        return False
    longest = sum(len(key) + _BYTES_OF_ONE * len(value) + 2 for key, value in decision.fields.items())
    if longest + _FIRST_LINE <= wire.REPLY_BYTES:
        return True
    return len(wire.encode(decision.verb, decision.fields)) <= wire.REPLY_BYTES


def _with_a_short_reason(reply: dict[str, str]) -> dict[str, str]:
    values = segment.fields(f"[berth/1 {reply.get('segment', '')}]") or {}
    if "why" not in values:
        return reply
    text, number = untagged(values["why"])
    end = "..." + (tag(number) if number else "")
    why = escape(text)
    room = segment.MAX_BODY - len(segment.body({**values, "why": end}))
    cut = _CUT_ESCAPE.sub("", why[: max(0, min(room, _MOST_REASON))])
    return {**reply, "segment": segment.body({**values, "why": f"{unescape(cut)}{end}"})}
