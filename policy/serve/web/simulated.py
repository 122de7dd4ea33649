# SPDX-License-Identifier: Apache-2.0
"""Shows a run of `berth simulate --history FILE`, or days saved by `berth collect`, at any moment."""

import json
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from policy.formats.errors import FormatError
from policy.report import rows
from policy.report.past_days import past_days
from policy.serve.web.model import (
    MOST_EVENTS,
    SCHEMA_VERSION,
    WebEvent,
    WebJob,
    WebMoment,
    WebNode,
    WebRoom,
    places_of,
)
from policy.site.privacy import Visibility
from policy.slurm.accounting import opened


class SimulatedSource:
    """A simulated day; each moment is computed when it is asked for."""

    live = False

    def __init__(self, path: Path) -> None:
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
            if not isinstance(found, dict) or found.get("schema_version") != SCHEMA_VERSION:
                raise FormatError(f"{path} is no history; make one with berth simulate --history {path}")
            self._read(found)
        except OSError as problem:
            raise FormatError(f"cannot read {path}: {problem.strerror}; berth simulate --history makes it") from None
        except (ValueError, KeyError, TypeError, IndexError) as problem:
            raise FormatError(f"{path} is no history ({problem!r}); make one with berth simulate --history") from None

    def _read(self, found: Mapping[str, Any]) -> None:
        nodes = [WebNode(**node) for node in found["nodes"]]
        self._index = {node.name: place for place, node in enumerate(nodes)}
        self._jobs: list[dict[str, Any]] = sorted(found["jobs"], key=lambda job: float(job["submitted"]))
        self._written: dict[str, tuple[list[float], list[dict[str, str]]]] = {}
        for at, job, values in found["written"]:
            times, texts = self._written.setdefault(job, ([], []))
            times.append(at)
            texts.append(values)
        self._events = sorted(self._all_events(), key=lambda one: one.at)
        self._times = [one.at for one in self._events]
        self._submitted = [float(job["submitted"]) for job in self._jobs]
        began = self._submitted[0] if self._jobs else 0.0
        until = max((float(job["ends"]) for job in self._jobs), default=began)
        self._room = WebRoom(nodes, found["links"], live=False, zero=found["zero"], began=began, until=until)

    def room(self) -> WebRoom:
        """Returns the simulated nodes."""
        return self._room

    def decision(self, job: WebJob) -> Mapping[str, str]:
        """Returns a job's decision as the file has it."""
        return job.segment

    def ahead(self, job: WebJob, viewer: int | None) -> None:
        """Returns None: a recording has no overview."""

    def use(self, viewer: int | None) -> dict[str, Any]:  # noqa: ARG002 - nothing is private here
        """Returns nothing: a recording does not tell what GPUs did."""
        return {}

    def visibility(self) -> Visibility:
        """Returns rules by which all viewers see everything: the jobs are simulated, or the viewer gave the file."""
        return Visibility(hidden=frozenset())

    def moment(self, at: float | None) -> WebMoment:
        """Returns the cluster at a moment; without `at`, at the first one."""
        when = self._room.began if at is None else min(max(at, self._room.began), self._room.until)
        here = self._jobs[: bisect_right(self._submitted, when)]
        until = bisect_right(self._times, when)
        events = self._events[max(0, until - MOST_EVENTS) : until]
        return WebMoment(when, [self._job(job, when) for job in here if job["ends"] > when], events)

    def _job(self, job: Mapping[str, Any], at: float) -> WebJob:
        times, texts = self._written.get(job["id"], ([], []))
        last = bisect_right(times, at)
        segment = texts[last - 1] if last else {}
        run = next((one for one in job["runs"] if one[0] <= at < one[1]), None)
        ran = [(node, mask) for node, mask in run[2]] if run else places_of(segment, self._index)
        reason = "" if run else ("Resources" if not segment else _WAITS.get(segment.get("state", ""), ""))
        return WebJob(
            id=job["id"],
            state="RUNNING" if run else "PENDING",
            user=job["user"] or "unknown",
            uid=None,
            name=job["name"],
            account=job["account"],
            partition="",
            gpus=job["gpus"],
            submitted=job["submitted"],
            start=run[0] if run else None,
            end=run[0] + job["limit"] if run and job["limit"] else None,
            limit=job["limit"],
            places=ran,
            reason=reason,
            segment=segment,
        )

    def _all_events(self) -> Iterator[WebEvent]:
        for job in self._jobs:
            times, texts = self._written.get(job["id"], ([], []))
            for number, (start, end, _) in enumerate(job["runs"]):
                last = bisect_right(times, start)
                why = texts[last - 1].get("why", "") if last else ""
                yield WebEvent(start, "start", job["id"], why)
                more = number + 1 < len(job["runs"])
                yield WebEvent(end, "relocation" if more else "end", job["id"])
            pins = "0"
            for at, values in zip(times, texts, strict=True):
                if values.get("pins", "0") not in {"0", pins}:
                    pins = values["pins"]
                    yield WebEvent(at, "re-pin", job["id"], values.get("why", ""))


class CollectedSource(SimulatedSource):
    """Past days of a real cluster, from its accounting."""

    def __init__(
        self,
        path: Path,
        known: Callable[[Sequence[str]], WebRoom],
        since: float = 0.0,
        until: float = float("inf"),
    ) -> None:
        """`known` returns nodes by name, as today's topology files have them."""
        try:
            with opened(path) as lines:
                found = past_days(rows.read(lines), since, until)
        except OSError as problem:
            raise FormatError(f"cannot read {path}: {problem.strerror}; berth collect makes it") from None
        if not found.jobs:
            raise FormatError(f"{path} has no GPU job in that time; name another --day, or leave it out")
        room = known(found.names)
        nodes = [replace(node, gpus=max(node.gpus, seen)) for node, seen in zip(room.nodes, found.gpus, strict=True)]
        began = since or min(float(job["submitted"]) for job in found.jobs)
        first = datetime.fromtimestamp(began, UTC).astimezone()
        self._read(
            {
                "nodes": [asdict(node) for node in nodes],
                "links": room.links,
                "jobs": found.jobs,
                "written": found.written,
                "zero": first.replace(hour=0, minute=0, second=0, microsecond=0).timestamp(),
            }
        )
        if since or until < float("inf"):
            self._room = replace(self._room, began=max(self._room.began, since), until=min(self._room.until, until))


_WAITS = {
    "placed": "starts with Slurm's next pass",
    "waiting": "waits for GPUs that come free",
    "later": "waits until a place is in sight",
    "released": "left to Slurm",
    "passed": "left to Slurm",
}
