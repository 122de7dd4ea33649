# SPDX-License-Identifier: Apache-2.0
"""The answers of the answering process, and the snapshot that they come from; no sockets here.

It holds one finished snapshot of the cluster, and the places that it gave to jobs which Slurm has not shown yet. Both
go into each decision. When a new snapshot comes, those places are claimed in it a few at a time between requests, so
that no request ever waits for the whole of it.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

from policy.cluster.partitions import least_gpus
from policy.daemon.answer.memory import Datagram, HeldPlace, RequestMemory, asked_by
from policy.daemon.passes.handover import Snapshot
from policy.formats import reply as reply_text
from policy.formats import wire
from policy.formats.errors import BerthError, FormatError, LeftToSlurm
from policy.placement.registry import create
from policy.plan.answer.case import Context, Decision, Understanding
from policy.plan.answer.decide import decide, with_preflight
from policy.plan.answer.left import only_watch, say_no
from policy.plan.answer.on_nodes import decide_nodes
from policy.plan.ledger.book import Book, never
from policy.plan.ledger.claims import Claim, renumbered
from policy.plan.ledger.places import FreePlaces
from policy.request.submission import Submission
from policy.request.submission import read as read_submission
from policy.site import log
from policy.site.config import Config
from policy.site.overview import STALE_AFTER

MOST_COMPLAINTS = 20
"""The number of different complaints about unreadable requests that are logged."""

_REFUSED = "Slurm has just refused a job like this one with Berth's place"
_OUR_FAULT = LeftToSlurm("berthd met a fault of its own, its log says which", 215)

SLICE = 8
"""Claims that are taken over into a new snapshot between two requests; they take about a third of a millisecond."""


@dataclass(frozen=True, slots=True)
class _Said:
    """A reply that was made, and the data for the work after it is sent."""

    datagram: bytes
    keeps: bool
    """True if the reply may stand ready for others."""
    submission: Submission
    decision: Decision
    reply: bytes
    at: float
    state: int
    """State of the book when the reply was made."""


@dataclass(slots=True)
class Counters:
    """The counters that `berth status` shows."""

    answers: int = 0
    faults: int = 0
    """Unexpected exceptions in berthd."""
    verbs: dict[str, int] = field(default_factory=lambda: {"place": 0, "later": 0, "pass": 0, "refuse": 0})


class Answerer:
    """Turns requests into replies."""

    def __init__(self, config: Config, version: str, pid: int) -> None:
        self._policy = create(config.policy)
        self._understanding = Understanding()
        self._settings = config.settings
        self._observe = config.observe
        self._plain = config.plain
        # A site that only watches, or chooses nodes alone, has time.
        self._keeps_replies = not (config.observe or config.plain)
        self._version = version
        self._pid = pid
        self._hurry = False
        self._book: Book | None = None
        self._memory = RequestMemory()
        self._next: tuple[Book, Iterator[HeldPlace]] | None = None
        self._counters = Counters()
        self._last = Snapshot(None, frozenset(), "", "", "")
        """The last snapshot that had a cluster, without that cluster: the book has it."""
        self._gateway, self._problem = "", "Slurm was not read yet"
        self._complaints: set[str] = set()
        self._said: _Said | None = None

    @property
    def catching_up(self) -> bool:
        """Tells whether some places have yet to be claimed in a new snapshot."""
        return self._next is not None

    def take_hurry(self) -> bool:
        """Tells whether, since the last call, a job was given GPUs that a guest has to leave first."""
        hurry, self._hurry = self._hurry, False
        return hurry

    @property
    def ready(self) -> bool:
        """Tells whether a snapshot is in use."""
        return self._book is not None

    def take(self, snapshot: Snapshot, now: float) -> bool:
        """Begins with a new snapshot; returns True if places were given that it should show, but does not.

        A snapshot that cannot be read is dropped: the last one stays in use until it is stale.
        """
        self.settle()
        try:
            return self._take(snapshot, now)
        except Exception as fault:  # noqa: BLE001 - without this process no job would get an answer
            self._fault("a snapshot of Slurm is left out", fault)
            return False

    def _take(self, snapshot: Snapshot, now: float) -> bool:
        self._memory.clear()
        self._problem = snapshot.problem
        self._gateway = snapshot.gateway or self._gateway
        if snapshot.cluster is None:
            return False
        self._last = replace(snapshot, cluster=None)
        self._memory.look(snapshot.seen, snapshot.cluster.at, now, snapshot.refused)
        before = self._next[0] if self._next is not None else self._book
        if before is not None:
            # A node that came or went gives the others new numbers, by which the places that were given are known.
            self._memory.renumber(before.fleet, snapshot.cluster.fleet)
        if self._book is not None:
            snapshot.cluster.shelves.adopt(self._book.cluster.shelves)
            if snapshot.cluster.neighbours is not None:
                snapshot.cluster.neighbours.adopt(self._book.cluster.neighbours)
        book = Book(snapshot.cluster)
        book.places = FreePlaces()
        index = book.fleet.index
        book.given_up = {index[name]: mask for name, mask in snapshot.given_up.items() if name in index}
        self._next = (book, iter(self._memory.places()))
        self.catch_up()
        return any(held.given < snapshot.cluster.at for held in self._memory.places())

    def catch_up(self) -> None:
        """Claims a few more places in the new snapshot; after the last place the snapshot is in use."""
        if self._next is None:
            return
        book, claims = self._next
        for _ in range(SLICE):
            held = next(claims, None)
            if held is None:
                self._book, self._next = book, None
                return
            book.claim(held.claim)

    def answer(self, datagram: bytes, now: float, enough: Callable[[], bool] = never) -> bytes | None:
        """Returns the reply to one request, or None if there is none; call `settle` once the reply is sent.

        `enough` ends the search for a better place. If berthd itself fails, the job is left to Slurm.
        """
        self.settle()
        try:
            return self._answer(datagram, now, enough)
        except Exception as fault:  # noqa: BLE001 - a request that hits a fault of ours must not end the daemon for all
            self._said = None
            self._fault(f"the job is left to Slurm; request: {datagram[:2_000]!r}", fault)
        try:
            submission = read_submission(wire.decode(datagram).fields)
            return reply_text.encode(say_no(submission, _OUR_FAULT, now).reply)
        except Exception:  # noqa: BLE001 - the fault may be in these too; the plugin fails open
            return None

    def _answer(self, datagram: bytes, now: float, enough: Callable[[], bool]) -> bytes | None:
        refused = self._memory.leaves(datagram, now)
        keeps = self._keeps_replies and not refused
        if keeps and self._book is not None and (ready := self._memory.reply_for(datagram, self._book, now)):
            return ready
        try:
            message = wire.decode(datagram)
            if message.verb == "status":
                return wire.encode("status", self._status(now))
            wire.check_submit(message)
        except FormatError as problem:
            # The sender could not check a reply either; the plugin fails open.
            self._say_once(f"a request is not answered: {problem}; are plugin and berthd of one release?")
            return None
        submission = read_submission(message.fields)
        decision, reply = self._reply(submission, now, enough, _REFUSED if refused else "")
        state = 0 if self._book is None else self._book.state
        self._said = _Said(datagram, keeps, submission, decision, reply, now, state)
        return reply

    def settle(self) -> None:
        """Claims the place that the last reply gave, and keeps the reply for other requests."""
        try:
            self._settle()
        except Exception as fault:  # noqa: BLE001 - as above
            self._fault("what a reply gave may be given again", fault)

    def _fault(self, costs: str, fault: Exception) -> None:
        self._counters.faults += 1
        log.error(f"a fault of berthd's own, {costs}: {fault!r}", 652)

    def _settle(self) -> None:
        if gave := self._memory.given():
            self._count(gave.verb)
            self._hold(gave.nonce, gave.uid, gave.claim, gave.at)
        said, self._said = self._said, None
        if said is not None:
            submission, reply = said.submission, said.decision.reply
            self._count("place" if reply.nodes else reply.verb)
            if (reply.verb in {"place", "later"} or reply.nodes) and not submission.test:
                self._memory.note(submission.nonce, said.datagram, said.at)
            self._keep(said)
            self._hold(submission.nonce, str(submission.uid), said.decision.claim, said.at)

    def _keep(self, said: _Said) -> None:
        """Keeps the reply that was just made for other requests."""
        asked = asked_by(said.datagram) if said.keeps else None
        if asked is None or self._book is None:
            return
        self._memory.remember(asked, said.submission, said.at)
        if said.decision.claim is None and said.state == self._book.state:
            self._memory.keep(asked, said.decision, said.reply, self._book, said.at)

    def expects(self, now: float) -> bool:
        """Tells whether a reply should be made before it is asked for."""
        try:
            return self._expected(now) is not None
        except Exception as fault:  # noqa: BLE001 - as above
            self._nothing_ahead(fault)
            return False

    def _expected(self, now: float) -> tuple[Book, Datagram, Submission] | None:
        book = self._book
        if book is None or self.catching_up or (expected := self._memory.expected(book, now)) is None:
            return None
        return book, *expected

    def _nothing_ahead(self, fault: Exception) -> None:
        self._memory.clear()
        self._fault("a reply is not made ahead", fault)

    def look_ahead(self, now: float, enough: Callable[[], bool] = never) -> Datagram | None:
        """Makes a reply to a kind of request that users send often, between two requests; returns that request."""
        self.settle()
        try:
            if (expected := self._expected(now)) is None:
                return None
            book, asked, submission = expected
            decision, reply = self._reply(submission, now, enough)
            self._memory.keep(asked, decision, reply, book, now)
        except Exception as fault:  # noqa: BLE001 - as above
            self._nothing_ahead(fault)
            return None
        return asked

    def expect_no_more(self, asked: Datagram) -> None:
        """Makes no more replies to this kind of request before they are asked for."""
        self._memory.forget(asked)

    def _reply(
        self, submission: Submission, now: float, enough: Callable[[], bool], leave: str = ""
    ) -> tuple[Decision, bytes]:
        made = say_no(submission, LeftToSlurm(leave, 216), now) if leave else self._decide(submission, now, enough)
        return within(made, submission, now)

    def _count(self, verb: str) -> None:
        self._counters.answers += 1
        self._counters.verbs[verb] += 1

    def _say_once(self, complaint: str) -> None:
        """Logs a complaint once: a plugin of another release causes the same one with each job."""
        if complaint not in self._complaints and len(self._complaints) < MOST_COMPLAINTS:
            self._complaints.add(complaint)
            log.error(complaint, 651)

    def _decide(self, submission: Submission, now: float, enough: Callable[[], bool]) -> Decision:
        if self._book is None:
            return say_no(submission, LeftToSlurm(f"berthd has no snapshot of Slurm yet ({self._problem})", 213), now)
        if self._last.leave:
            left = say_no(submission, LeftToSlurm(self._last.leave, 217), now)
            return self._plainly(with_preflight(left, submission), submission)
        age = now - self._book.cluster.at
        stale = ""
        if age > STALE_AFTER:
            stale = f"berthd last read Slurm {age:.0f} s ago" + (f" ({self._problem})" if self._problem else "")
        self._book.enough = enough
        context = Context(self._book, self._policy, self._settings, now, stale, self._understanding)
        try:
            if self._plain and not self._observe:
                found = decide_nodes(submission, context)
                return self._plainly(with_preflight(found, submission), submission)
            decision = decide(submission, context)
            return only_watch(decision) if self._observe else decision
        except BerthError as problem:
            return say_no(submission, problem, now)
        except Exception as fault:  # noqa: BLE001 - as above
            self._fault(f"the job is left to Slurm; request: {dict(submission.texts)}", fault)
            return say_no(submission, _OUR_FAULT, now)

    def _plainly(self, decision: Decision, submission: Submission) -> Decision:
        """Returns the decision; one that leaves the nodes to Slurm gets the fewest GPUs of a node in its partitions."""
        if not self._plain or self._book is None or decision.reply.verb != "pass":
            return decision
        least = least_gpus(self._book.cluster.fleet, submission.partition)
        return replace(decision, reply=replace(decision.reply, least_gpus=least))

    def _hold(self, nonce: str, uid: str, claim: Claim | None, now: float) -> None:
        if claim is None or not self._memory.keeps(uid, now, packed=claim.share is not None):
            return
        if self._book is not None:
            self._hurry = self._hurry or self._book.displaces(claim)
            self._book.claim(claim)
            if self._next is not None:
                # From now on places have the node numbers of the new snapshot.
                [claim] = renumbered([claim], self._book.fleet, self._next[0].fleet)
        if self._next is not None:
            self._next[0].claim(claim)
        self._memory.hold(nonce, uid, claim, now)

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
            "notices": str(self._last.notices),
            "notices_late": str(self._last.notices_late),
            "updates": str(self._last.updates),
            "slurm": self._last.version,
            "gateway": self._gateway,
            **self._last.took,
            **self._last.observed,
            **self._last.failures,
        }
        if counts.faults:
            status["answer_faults"] = str(counts.faults)
        if self._problem:
            status["problem"] = self._problem
        return {key: value for key, value in status.items() if value}


def within(decision: Decision, submission: Submission, now: float) -> tuple[Decision, bytes]:
    """Returns the decision and its datagram: as it is if it fits, with a shorter reason, or else left to Slurm."""
    if (fits := reply_text.fitting(decision.reply)) is not None:
        reply, datagram = fits
        return decision if reply is decision.reply else replace(decision, reply=reply), datagram
    # This reply has only the flags left, and the plugin sends no long ones.
    left = say_no(submission, LeftToSlurm("its request is longer than can be kept in its comment", 212), now)
    return left, reply_text.encode(left.reply)
