"""Shortens replies to the size that the plugin accepts (docs/formats.md, section 1.2).

The plugin drops a reply with a field that is too long, and users may write texts of any length.
"""

import re
from dataclasses import replace

from policy.formats import reply as reply_text
from policy.formats import segment, wire
from policy.formats.errors import LeftToSlurm
from policy.formats.escape import escape, unescape
from policy.formats.messages import tag, untagged
from policy.formats.plan_fields import WHY
from policy.formats.reply import Reply
from policy.plan.answer.decide import Decision, say_no
from policy.request.submission import Submission

_MOST_REASON = 512
_CUT_ESCAPE = re.compile(r"%[0-9A-F]?\Z")


def within(decision: Decision, submission: Submission, now: float) -> tuple[Decision, bytes]:
    """Returns the decision with its reply's datagram if that fits; else with a shorter reason; else left to Slurm."""
    datagram = _that_fits(decision.reply)
    if datagram is None:
        decision = replace(decision, reply=_with_a_short_reason(decision.reply))
        datagram = _that_fits(decision.reply)
    if datagram is not None:
        return decision, datagram
    # Only the flags are left then, and the plugin sends none that are long.
    left = say_no(submission, LeftToSlurm("its request is longer than can be kept in its comment", 212), now)
    return left, reply_text.encode(left.reply)


def _that_fits(reply: Reply) -> bytes | None:
    texts = reply_text.fields(reply)
    if len(texts.get("segment", "")) > segment.MAX_BODY:
        return None
    datagram = wire.encode(reply.verb, texts)
    return datagram if len(datagram) <= wire.REPLY_BYTES else None


def _with_a_short_reason(reply: Reply) -> Reply:
    if WHY not in reply.plan:
        return reply
    text, number = untagged(reply.plan[WHY])
    end = "..." + (tag(number) if number else "")
    why = escape(text)
    room = segment.MAX_BODY - len(reply.plan.having(WHY(end)).body)
    cut = _CUT_ESCAPE.sub("", why[: max(0, min(room, _MOST_REASON))])
    return replace(reply, plan=reply.plan.having(WHY(f"{unescape(cut)}{end}")))
