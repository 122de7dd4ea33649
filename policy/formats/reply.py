# SPDX-License-Identifier: Apache-2.0
"""The reply to a submit request: typed here, and text on the wire (docs/develop/formats.md, section 1.2)."""

import re
from dataclasses import dataclass, replace
from typing import Literal

from policy.formats import segment, wire
from policy.formats.job_plan import NOTHING, JobPlan
from policy.formats.messages import tag, untagged
from policy.formats.plan_fields import WHY

Verb = Literal["place", "later", "pass", "refuse"]

MOST_BYTES = 1_024
"""Most bytes of an Extra or TRES text: Slurm refuses a submission or update with a longer one as a whole."""

_MOST_REASON = 512
_CUT_ESCAPE = re.compile(r"%[0-9A-F]?\Z")


@dataclass(frozen=True, slots=True)
class Reply:
    """A verb and its values; a value of 0, or an empty one, is left out of the text."""

    verb: Verb
    nonce: str
    message: str = ""
    plan: JobPlan = NOTHING
    """The plan that the job's record is to keep."""
    nodes: tuple[str, ...] = ()
    gpus: tuple[int, ...] = ()
    """GPUs of each node; nodes without GPUs are those of the plain layout."""
    seats: bool = False
    """True if the job takes the seats of its GPUs too."""
    excluded: str = ""
    licenses: str = ""
    n: int = 0
    """Nodes of a job that gets its place later."""
    k: int = 0
    """GPUs on each of them."""
    share: int = 0
    """Percent of each GPU."""
    gpu_mem: int | None = None
    """MiB of each GPU."""
    way: str = ""
    """The way in which the job shares its GPUs: `mps` or `time`."""
    guest: bool = False
    begin: int = 0
    """Begin time, by which a guest without a seat is parked."""
    min_cpus: int | None = None
    min_cpus_per_node: int | None = None
    mem_per_node: int | None = None
    urgent: bool = False
    """True if the message is a warning."""
    segment_size: int = 0
    """Nodes in each segment of topology/block."""
    least_gpus: int = 0
    """The fewest GPUs that any node of the plain layout has."""

    @property
    def segment(self) -> str:
        """Returns the text of the plan."""
        return self.plan.body

    def surely_fits(self, own_bytes: int) -> bool:
        """Tells whether its place is so short that the job's texts need not be made to see that they fit (pin_text).

        Nearly all are. A byte of a node's name is at most 12 when it is escaped, a GPU with its comma 22 in each of two
        TRES; all else in the Extra, beside the user's `own_bytes`, has at most 100.
        """
        nodes, gpus = ",".join(self.nodes), ",".join(map(str, self.gpus))
        return own_bytes + 12 * len(nodes) + 22 * (len(gpus) + 1) + 100 <= MOST_BYTES


_MORE = {
    "exc_nodes": "excluded",
    "licenses": "licenses",
    "guest": "guest",
    "share": "share",
    "begin": "begin",
    "way": "way",
    "segment": "segment",
    "segment_size": "segment_size",
    "message": "message",
    "urgent": "urgent",
    "node_gpus": "least_gpus",
    "mem": "gpu_mem",
    "min_cpus": "min_cpus",
    "pn_min_cpus": "min_cpus_per_node",
    "mem_per_node": "mem_per_node",
}
"""The attribute of each value that is in the text only where it is not its default."""

_LEFT_OUT = {key: getattr(Reply("pass", ""), name) for key, name in _MORE.items()}


def encode(reply: Reply) -> bytes:
    """Returns the datagram of a reply."""
    return wire.encode(reply.verb, fields(reply))


def fitting(reply: Reply) -> tuple[Reply, bytes] | None:
    """Returns a reply and its datagram, with a shorter reason if the plugin would drop it; None if that is not enough.

    The plugin drops a reply with a field that is too long, and users may write texts of any length.
    """
    texts = fields(reply)
    if len(texts.get("segment", "")) <= segment.MAX_BODY:
        datagram = wire.encode(reply.verb, texts)
        if len(datagram) <= wire.REPLY_BYTES:
            return reply, datagram
    shorter = _with_a_short_reason(reply)
    return None if shorter is reply else fitting(shorter)


def _with_a_short_reason(reply: Reply) -> Reply:
    why = reply.plan.get(WHY, "")
    text, number = untagged(why)
    end = "..." + (tag(number) if number else "")
    room = segment.MAX_BODY - len(reply.plan.having(WHY(end)).body)
    cut = _CUT_ESCAPE.sub("", wire.escape(text)[: max(0, min(room, _MOST_REASON))])
    short = f"{wire.unescape(cut)}{end}"
    return replace(reply, plan=reply.plan.having(WHY(short))) if len(short) < len(why) else reply


def fields(reply: Reply) -> dict[str, str]:
    """Returns the text of each value.

    >>> from policy.formats.plan_fields import PASSED, STATE
    >>> fields(Reply("pass", "0" * 16, plan=JobPlan.of(STATE(PASSED))))
    {'nonce': '0000000000000000', 'segment': 'state=passed'}
    """
    found = {"nonce": reply.nonce}
    if reply.nodes:
        found["nodes"] = ",".join(reply.nodes)
    if reply.gpus:
        found["gpus"] = ",".join(map(str, reply.gpus))
        found["seats"] = "1" if reply.seats else "0"
    if reply.verb == "later":
        found["n"], found["k"] = str(reply.n), str(reply.k)
    more = ((key, getattr(reply, name)) for key, name in _MORE.items())
    return found | {key: "1" if value is True else str(value) for key, value in more if value != _LEFT_OUT[key]}
