"""What the answering process knows and says; no sockets here.

It holds one finished picture of the cluster, and the places that it gave to jobs which Slurm has not shown yet. Both go
into each decision. When a new picture comes, those places are claimed in it a few at a time between requests, so that
no request ever waits for the whole of it.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from policy import wire
from policy.book import Book, Claim
from policy.bounds import within
from policy.daemon import log
from policy.daemon.config import Config
from policy.daemon.handover import Snapshot
from policy.decide import Decision, decide, only_watch, say_no
from policy.errors import BerthError, FormatError, LeftToSlurm
from policy.order import SizeOrder, asked_in
from policy.placement.registry import create
from policy.understanding import Known, Understanding

STALE_AFTER = 30.0
"""Seconds after which a picture is too old to place jobs by."""

MOST_COMPLAINTS = 20
"""Different sentences about requests that cannot be read, after which no more are logged."""

SLICE = 8
"""Claims taken over into a new picture between two requests, about a third of a millisecond."""


@dataclass(frozen=True, slots=True)
class _Held:
    claim: Claim
    given: float
    expires: float


@dataclass(slots=True)
class Counters:
    """What `status` counts."""

    answers: int = 0
    verbs: dict[str, int] = field(default_factory=lambda: {"place": 0, "later": 0, "pass": 0, "refuse": 0})


class Answerer:
    """Turns requests into replies."""

    def __init__(self, config: Config, version: str, pid: int) -> None:
        self._policy = create(config.policy)
        self._understanding = Understanding()
        self._settings = config.settings
        self._observe = config.observe
        self._order = SizeOrder(config.order_weight) if config.order_weight else None
        self._reserve = config.reserve_seconds
        self._version = version
        self._pid = pid
        self._hurry = False
        self._book: Book | None = None
        self._held: dict[str, _Held] = {}
        self._next: tuple[Book, Iterator[_Held]] | None = None
        self._counters = Counters()
        self._slurm = ""
        self._gateway = ""
        self._problem = "Slurm was not read yet"
        self._leave = ""
        self._planned = (0, 0, 0)
        self._observed: Mapping[str, str] = {}
        self._failures: Mapping[str, str] = {}
        self._complaints: set[str] = set()
        self._last: Known | None = None
        self._repeated: dict[str, str] | None = None
        """A request that came as the one before did, and is expected to come again."""

    @property
    def catching_up(self) -> bool:
        """Whether a new picture waits to be finished."""
        return self._next is not None

    def take_hurry(self) -> bool:
        """Whether, since this was asked last, a job was given GPUs that a guest has to leave first."""
        hurry, self._hurry = self._hurry, False
        return hurry

    @property
    def ready(self) -> bool:
        """Whether there is a picture to answer by."""
        return self._book is not None

    def take(self, snapshot: Snapshot, now: float) -> bool:
        """Begin with a new picture; True if places were given that it should show, but does not."""
        self._problem = snapshot.problem
        self._gateway = snapshot.gateway or self._gateway
        if self._order is not None:
            self._order.learn(snapshot.ended)
        if snapshot.cluster is None:
            return False
        self._slurm = snapshot.version
        self._leave = snapshot.leave
        self._planned = snapshot.notices, snapshot.notices_late, snapshot.updates
        self._observed = snapshot.observed
        self._failures = snapshot.failures
        self._held = {
            nonce: held for nonce, held in self._held.items() if held.expires > now and nonce not in snapshot.seen
        }
        if self._book is not None:
            snapshot.cluster.shelves.adopt(self._book.cluster.shelves)
            if snapshot.cluster.neighbours is not None:
                snapshot.cluster.neighbours.adopt(self._book.cluster.neighbours)
        book = Book(snapshot.cluster)
        self._next = (book, iter(list(self._held.values())))
        self.catch_up()
        return any(held.given < snapshot.cluster.at for held in self._held.values())

    def catch_up(self) -> None:
        """Claim a few more places in the new picture; the last one puts it into use."""
        if self._next is None:
            return
        book, claims = self._next
        for _ in range(SLICE):
            held = next(claims, None)
            if held is None:
                self._book, self._next = book, None
                return
            book.claim(held.claim)

    def answer(self, datagram: bytes, now: float) -> bytes | None:
        """The reply to one request; None where it is not worth one."""
        try:
            message = wire.decode(datagram)
            if message.verb == "status":
                return wire.encode("status", self._status(now))
            wire.check_submit(message)
        except FormatError as problem:
            # Whoever wrote that cannot check a reply either; the plugin fails open.
            self._say_once(f"a request is not answered: {problem}; are plugin and berthd of one release?")
            return None
        decision = within(self._decide(message.fields, now), message.fields, now)
        self._counters.answers += 1
        self._counters.verbs[decision.verb] += 1
        reply = wire.encode(decision.verb, decision.fields)
        if decision.claim is not None:
            self._hold(message.fields["nonce"], decision.claim, now)
        last, self._last = self._last, self._understanding.last
        repeats = last is not None and last is self._last and decision.verb == "place"
        self._repeated = message.fields if repeats else None
        return reply

    def look_ahead(self, now: float) -> None:
        """After a reply, find the place for one more request of its kind, if users are sending many of them."""
        repeated, self._repeated = self._repeated, None
        kind, book = self._last, self._book
        if repeated is None or kind is None or book is None or kind.is_placed(book) or self.catching_up:
            return
        self._decide(repeated, now)

    def _say_once(self, complaint: str) -> None:
        """A stranger's plugin would say the same with each job."""
        if complaint not in self._complaints and len(self._complaints) < MOST_COMPLAINTS:
            self._complaints.add(complaint)
            log.error(complaint)

    def _decide(self, fields: dict[str, str], now: float) -> Decision:
        if self._book is None:
            return say_no(fields, LeftToSlurm(f"berthd has no picture of Slurm yet ({self._problem})"), now)
        if self._leave:
            return say_no(fields, LeftToSlurm(self._leave), now)
        age = now - self._book.cluster.at
        stale = ""
        if age > STALE_AFTER:
            stale = f"berthd last read Slurm {age:.0f} s ago" + (f" ({self._problem})" if self._problem else "")
        try:
            decision = decide(fields, self._book, self._policy, self._settings, now, self._understanding, stale)
            return only_watch(decision) if self._observe else self._in_order(decision, fields)
        except BerthError as problem:
            return say_no(fields, problem, now)
        except Exception as fault:  # noqa: BLE001 - a request that hits a fault of ours must not end the daemon for all
            log.error(f"a fault of berthd's own, the job is left to Slurm: {fault!r}; request: {fields}")
            return say_no(fields, LeftToSlurm("berthd met a fault of its own, its log says which"), now)

    def _in_order(self, decision: Decision, fields: Mapping[str, str]) -> Decision:
        """The decision, with what the site's order adds to the job's priority."""
        if self._order is None or decision.verb not in {"place", "later"}:
            return decision
        points = str(self._order.points(asked_in(fields)))
        return replace(decision, fields={**decision.fields, "site_factor": points})

    def _hold(self, nonce: str, claim: Claim, now: float) -> None:
        self._held[nonce] = _Held(claim, now, now + self._reserve)
        if self._book is not None:
            self._hurry = self._hurry or self._book.displaces(claim)
            self._book.claim(claim)
        if self._next is not None:
            self._next[0].claim(claim)

    def _status(self, now: float) -> dict[str, str]:
        cluster = self._book.cluster if self._book else None
        counts = self._counters
        status = {
            "version": self._version,
            "pid": str(self._pid),
            "snapshot_age_ms": str(max(0, round((now - cluster.at) * 1_000))) if cluster else "",
            "nodes": str(len(cluster.fleet.names)) if cluster else "0",
            "gpus": str(int(cluster.fleet.gpu_counts.sum())) if cluster else "0",
            "free_gpus": str(cluster.free_gpus) if cluster else "0",
            "empty_nodes": str(cluster.empty_nodes) if cluster else "0",
            "waiting": str(cluster.waiting) if cluster else "0",
            "answers": str(counts.answers),
            "placed": str(counts.verbs["place"]),
            "later": str(counts.verbs["later"]),
            "passed": str(counts.verbs["pass"]),
            "refused": str(counts.verbs["refuse"]),
            "notices": str(self._planned[0]),
            "notices_late": str(self._planned[1]),
            "updates": str(self._planned[2]),
            "slurm": self._slurm,
            "gateway": self._gateway,
        }
        status.update(self._observed)
        status.update(self._failures)
        if self._problem:
            status["problem"] = self._problem
        return {key: value for key, value in status.items() if value}
