"""What is remembered between requests: users submit the same few kinds over and over, often by the hundred."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from policy import preflight
from policy.book import Book
from policy.cluster import Fleet
from policy.demand import Demand, on_fleet
from policy.placement.base import Berth
from policy.request import Request, read

_MOST = 2_048
_OF_ONE_JOB = frozenset({"nonce", "uid", "begin", "name", "extra_bytes", preflight.KEY})


@dataclass(slots=True)
class Known:
    """A kind of request: what it asks for, and where the next one of it goes while nothing changes in the book."""

    request: Request
    demand: Demand
    _place: tuple[Berth, float] | None = None
    _state: int = 0

    def is_placed(self, book: Book) -> bool:
        """Whether the place of the next one is known."""
        return self._place is not None and self._state == book.state

    def next_place(self, book: Book, find: Callable[[], tuple[Berth, float]]) -> tuple[Berth, float]:
        """The place that `find` finds in this book, and when it is free; NotNow passes through."""
        if self._place is None or self._state != book.state:
            self._place = None
            self._place, self._state = find(), book.state
        return self._place


class Understanding:
    """What requests mean on a fleet."""

    def __init__(self) -> None:
        self._fleet: Fleet | None = None
        self._known: dict[frozenset[tuple[str, str]], Known] = {}
        self.last: Known | None = None
        """The kind that was asked for last."""

    def of(self, fields: Mapping[str, str], fleet: Fleet) -> Known:
        """The kind of a request on this fleet; LeftToSlurm and Never pass through."""
        if fleet is not self._fleet or len(self._known) > _MOST:
            self._fleet, self._known = fleet, {}
        key = frozenset(item for item in fields.items() if item[0] not in _OF_ONE_JOB)
        if "begin" in fields:
            key |= {("begin", "")}
        if key not in self._known:
            self.last = None
            request = read(fields)
            self._known[key] = Known(request, on_fleet(request, fleet))
        self.last = self._known[key]
        return self.last
