# SPDX-License-Identifier: Apache-2.0
"""The data that the page shows: `WebRoom`, which stays the same, and `WebMoment`, which is one reading.

Both become JSON with `schema_version`. Data that a viewer may not see are removed here, before anything is sent.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal, Protocol

from policy.site.privacy import Visibility

SCHEMA_VERSION = 1
MOST_EVENTS = 1_000
"""The most events of a moment; older ones are left out."""
KINDS: tuple[Literal["jobs"], Literal["nodes"]] = ("jobs", "nodes")
"""The kinds of data here that Slurm's PrivateData may hide."""


@dataclass(frozen=True, slots=True)
class WebNode:
    """A node of the machine room."""

    name: str
    gpus: int
    leaf: str = ""
    pod: str = ""
    domain: str = ""
    model: str = ""
    scores: Sequence[float] = ()


@dataclass(frozen=True, slots=True)
class WebRoom:
    """The nodes and their links."""

    nodes: Sequence[WebNode]
    links: Mapping[str, Sequence[Sequence[float]]] = field(default_factory=dict)
    """By model, its NVLinks: GPU, GPU, GB/s."""
    live: bool = True
    number: int = 0
    """Tells a live room from a former one: a moment names its nodes by their places in the room."""
    zero: float = 0.0
    """A simulation's first second; times are shown relative to it."""
    began: float = 0.0
    until: float = 0.0

    def plain(self) -> dict[str, Any]:
        """Returns the room for JSON."""
        return {"schema_version": SCHEMA_VERSION, **asdict(self)}


@dataclass(frozen=True, slots=True)
class WebJob:
    """A job that runs or waits."""

    id: str
    state: str
    user: str
    uid: int | None
    name: str
    account: str
    partition: str
    gpus: int
    submitted: float
    start: float | None = None
    end: float | None = None
    limit: float | None = None
    places: Sequence[tuple[int, int]] = ()
    """Nodes by number, each with the mask of its GPUs; for a waiting job the planned ones."""
    reason: str = ""
    share: int = 0
    guest: bool = False
    segment: Mapping[str, str] = field(default_factory=dict)

    def plain(self) -> dict[str, Any]:
        """Returns the job for JSON, with the part of its segment that lists show."""
        found = self.segment
        told = {key: found[key] for key in ("because", "because_text", "why", "pins", "level") if key in found}
        shown = {key: value for key, value in asdict(self).items() if value and key not in {"segment", "uid"}}
        if self.state == "PENDING" and found.get("start", "").isdigit():
            shown["planned"] = int(found["start"])
        return {**shown, **told}


@dataclass(frozen=True, slots=True)
class WebEvent:
    """One event of a job."""

    at: float
    kind: str
    """One of start, end, re-pin, eviction, relocation and requeue."""
    job: str
    text: str = ""


@dataclass(frozen=True, slots=True)
class WebMoment:
    """One reading of the cluster."""

    at: float
    jobs: Sequence[WebJob]
    events: Sequence[WebEvent] = ()
    """Events, the newest last."""
    sick: Mapping[int, str] = field(default_factory=dict)
    """Nodes that take no job, with the reason."""
    hidden: Sequence[tuple[int, int]] = ()
    """Nodes and GPUs of jobs that the viewer may not see, or that Slurm does not name."""
    private: Sequence[str] = ()
    """The KINDS that Slurm's PrivateData hides from the viewer."""
    problem: str = ""
    """The reason why this reading may be old; empty if it is not."""
    room: int = 0
    """The number of its room."""

    def plain(self) -> dict[str, Any]:
        """Returns the moment for JSON."""
        return {
            "schema_version": SCHEMA_VERSION,
            "at": self.at,
            "jobs": [job.plain() for job in self.jobs],
            "events": [[one.at, one.kind, one.job, one.text] for one in self.events],
            "sick": self.sick,
            "hidden": self.hidden,
            "private": self.private,
            "problem": self.problem,
            "room": self.room,
        }


class WebSource(Protocol):
    """Something that the page can show."""

    live: bool

    def room(self) -> WebRoom:
        """Returns the nodes."""

    def moment(self, at: float | None) -> WebMoment:
        """Returns the latest reading, or that of a moment of a simulation."""

    def visibility(self) -> Visibility:
        """Returns what each user may see."""

    def decision(self, job: WebJob) -> Mapping[str, str]:
        """Returns all that is known of a job's decision, for its page."""

    def use(self, viewer: int | None) -> dict[str, Any]:
        """Returns by node the use, memory and power of its GPUs, as this user may see them."""

    def ahead(self, job: WebJob, viewer: int | None) -> Mapping[str, Any] | None:
        """Returns the jobs ahead of a waiting job, as this user may see them (policy/site/ahead.py)."""


def seen_by(viewer: int | None, moment: WebMoment, visibility: Visibility) -> WebMoment:
    """Returns the part of a moment that Slurm would show to this user; None is a viewer who is not known."""
    private = tuple(kind for kind in KINDS if not visibility.shows(kind, viewer))
    if "jobs" in private:
        own = [job for job in moment.jobs if visibility.shows("jobs", viewer, job.uid)]
        names = {job.id for job in own}
        masks = dict(moment.hidden)
        for job in moment.jobs:
            for node, mask in job.places if job.state == "RUNNING" and job.id not in names else ():
                masks[node] = masks.get(node, 0) | mask
        # The users of ended jobs are not known here any more.
        events = [one for one in moment.events if one.job in names]
        moment = replace(moment, jobs=own, events=events, hidden=sorted(masks.items()))
    if "nodes" in private:
        jobs = [replace(job, places=(), segment={}) for job in moment.jobs]
        moment = replace(moment, jobs=jobs, sick={}, hidden=())
    return replace(moment, private=private)


def changes(at: float, before: WebJob | None, now: WebJob | None) -> Iterator[WebEvent]:
    """Yields what happened to a job between two readings."""
    if now is None:
        if before is not None and before.state == "RUNNING":
            yield WebEvent(at, "end", before.id)
        return
    old = before.segment if before is not None else {}
    if now.state == "RUNNING" and (before is None or before.state != "RUNNING"):
        yield WebEvent(now.start or at, "start", now.id, now.segment.get("why", ""))
    elif now.state != "RUNNING" and before is not None and before.state == "RUNNING":
        if now.segment.get("evicted", "0") != old.get("evicted", "0"):
            yield WebEvent(at, "eviction", now.id, now.segment.get("evicted_text", ""))
        elif "move_until" in now.segment or now.segment.get("moves", "") != old.get("moves", ""):
            yield WebEvent(at, "relocation", now.id, now.segment.get("move_text", ""))
        else:
            yield WebEvent(at, "requeue", now.id, now.reason)
    if before is not None and now.segment.get("pins", "0") not in {"0", old.get("pins", "0")}:
        yield WebEvent(at, "re-pin", now.id, now.segment.get("why", ""))


def places_of(segment: Mapping[str, str], index: Mapping[str, int]) -> list[tuple[int, int]]:
    """Returns the place that a segment names."""
    mask = sum(1 << int(gpu) for gpu in segment.get("gpus", "").split(",") if gpu.isdigit())
    return [(index[name], mask) for name in segment.get("nodes", "").split(",") if name in index]
