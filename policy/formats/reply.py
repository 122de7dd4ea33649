"""The reply to a submit request: typed here, and text on the wire (docs/formats.md, section 1.2)."""

from dataclasses import dataclass
from typing import Literal

from policy.formats import wire
from policy.formats.job_plan import NOTHING, JobPlan

Verb = Literal["place", "later", "pass", "refuse"]


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
    least_gpus: int = 0
    """The fewest GPUs that any node of the plain layout has."""


def encode(reply: Reply) -> bytes:
    """Returns the datagram of a reply."""
    return wire.encode(reply.verb, fields(reply))


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
    more = {
        "exc_nodes": reply.excluded,
        "licenses": reply.licenses,
        "guest": "1" if reply.guest else "",
        "share": str(reply.share or ""),
        "begin": str(reply.begin or ""),
        "way": reply.way,
        "segment": reply.plan.body,
        "message": reply.message,
        "urgent": "1" if reply.urgent else "",
        "node_gpus": str(reply.least_gpus or ""),
    }
    numbers = {
        "mem": reply.gpu_mem,
        "min_cpus": reply.min_cpus,
        "pn_min_cpus": reply.min_cpus_per_node,
        "mem_per_node": reply.mem_per_node,
    }
    found |= {key: text for key, text in more.items() if text}
    found |= {key: str(number) for key, number in numbers.items() if number is not None}
    return found
