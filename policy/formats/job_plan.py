# SPDX-License-Identifier: Apache-2.0
"""The job plan: what Berth keeps of a job in the job's record at Slurm, as typed values.

A plan has fields. Each field is declared once (policy/formats/plan_fields.py, or beside the type of its values), with
its key in the text, and with the two functions that read and write a value. A field that this release does not know is
kept byte for byte. In the record a plan is a segment of text (policy/formats/segment.py).

>>> NODES, START = names("nodes"), whole("start")
>>> plan = JobPlan.of(NODES(("n1", "n2")), START(None))
>>> plan[NODES], plan.get(START), START in plan
(('n1', 'n2'), None, False)
>>> plan.having(START(1_700_000_000)).into("site note")
'site note[berth/1 nodes=n1,n2 start=1700000000]'
>>> of_text("site note[berth/1 nodes=n1 of_tomorrow=7]").without(NODES).into("")
'[berth/1 of_tomorrow=7]'
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, TypeVar, overload

from policy.formats import segment, wire
from policy.formats.errors import FormatError

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
D = TypeVar("D")

Pairs = tuple[tuple[str, str], ...]
"""Names of Slurm's fields with the user's own words."""

_OF_FLAGS = "f."


class PlanEntry(NamedTuple):
    """A field's value as text; None leaves the field out."""

    key: str
    text: str | None


class Readable(Generic[T_co]):
    """A field as a reader sees it: its key, and how a value is read."""

    __slots__ = ("_read", "key")

    def __init__(self, key: str, read: Callable[[str], T_co]) -> None:
        """`read` raises ValueError or FormatError."""
        self.key, self._read = key, read

    def read(self, text: str) -> T_co:
        """Returns the value of a text; raises FormatError."""
        try:
            return self._read(text)
        except ValueError:
            raise FormatError(f"{self.key}={text[:40]} of a job plan cannot be read") from None


class Field(Readable[T]):
    """A field of job plans: its key, and how a value is read and written."""

    __slots__ = ("_write",)

    def __init__(self, key: str, read: Callable[[str], T], write: Callable[[T], str | None] = str) -> None:
        """If `write` returns None, the field is left out."""
        super().__init__(key, read)
        self._write = write

    def __call__(self, value: T | None) -> PlanEntry:
        """Returns an entry with this value; None leaves the field out."""
        return PlanEntry(self.key, None if value is None else self._write(value))


class Mark(Field[bool]):
    """A field that says something by being there."""

    __slots__ = ()

    @property
    def set(self) -> PlanEntry:
        """Returns the entry that sets it."""
        return PlanEntry(self.key, "1")


@dataclass(frozen=True, slots=True)
class JobPlan:
    """The plan of one job; it never changes, `having` and `without` return another one."""

    texts: Mapping[str, str] = field(default_factory=dict)
    """The text of each field, in the order of writing: for the codec, and for those who show all of a plan."""

    @classmethod
    def of(cls, *entries: PlanEntry) -> "JobPlan":
        """Returns a plan with these fields."""
        return cls({key: text for key, text in entries if text is not None})

    def __bool__(self) -> bool:
        return bool(self.texts)

    def __contains__(self, wanted: Readable[object]) -> bool:
        return wanted.key in self.texts

    def __getitem__(self, wanted: Readable[T]) -> T:
        """Returns a value that has to be there; raises FormatError if it is missing or cannot be read."""
        text = self.texts.get(wanted.key)
        if text is None:
            raise FormatError(f"a job plan without {wanted.key}")
        return wanted.read(text)

    @overload
    def read(self, wanted: Readable[T]) -> T | None: ...
    @overload
    def read(self, wanted: Readable[T], default: D) -> T | D: ...
    def read(self, wanted: Readable[T], default: D | None = None) -> T | D | None:
        """Returns a value, or the default if it is missing; raises FormatError if it cannot be read."""
        text = self.texts.get(wanted.key)
        return default if text is None else wanted.read(text)

    @overload
    def get(self, wanted: Readable[T]) -> T | None: ...
    @overload
    def get(self, wanted: Readable[T], default: D) -> T | D: ...
    def get(self, wanted: Readable[T], default: D | None = None) -> T | D | None:
        """Returns a value, or the default if it is missing or cannot be read."""
        try:
            return self.read(wanted, default)
        except FormatError:
            return default

    def has_any(self, wanted: Iterable[Readable[object]]) -> bool:
        """Tells whether the plan has one of these fields."""
        return any(one.key in self.texts for one in wanted)

    def having(self, *entries: PlanEntry) -> "JobPlan":
        """Returns the plan with these fields set; a field that is left out stays as it is."""
        return JobPlan({**self.texts, **{key: text for key, text in entries if text is not None}})

    def __or__(self, other: "JobPlan") -> "JobPlan":
        """Returns the plan with all fields of another one set."""
        return JobPlan({**self.texts, **other.texts})

    def without(self, *dropped: Readable[object]) -> "JobPlan":
        """Returns the plan without some fields."""
        keys = {one.key for one in dropped}
        return JobPlan({key: text for key, text in self.texts.items() if key not in keys})

    def only(self, kept: Iterable[Readable[object]]) -> "JobPlan":
        """Returns a plan of some of its fields alone."""
        keys = {one.key for one in kept}
        return JobPlan({key: text for key, text in self.texts.items() if key in keys})

    @property
    def flags(self) -> Iterator[tuple[str, str]]:
        """Returns the name and the value of each flag that the job's user gave."""
        marked = ((key, text) for key, text in self.texts.items() if key.startswith(_OF_FLAGS))
        return ((key.removeprefix(_OF_FLAGS), text) for key, text in marked)

    def into(self, text: str) -> str:
        """Returns a record's text with this plan in place of the former one."""
        return segment.put(text, self.texts)

    @property
    def body(self) -> str:
        """Returns the plan as a reply to the plugin holds it."""
        return wire.words(self.texts)

    @property
    def too_long(self) -> bool:
        """Tells whether the plan is longer than a record may hold."""
        return len(self.body) > segment.MAX_BODY


NOTHING = JobPlan()
"""The plan of a job of which nothing is kept."""


def of_text(text: str) -> JobPlan | None:
    """Returns the plan in a record's text, None if there is none; raises FormatError for one of another version."""
    found = segment.fields(text)
    return None if found is None else JobPlan(found)


def readable(text: str) -> JobPlan | None:
    """Returns the plan in a record's text; None if there is none, or none that this release can read."""
    try:
        return of_text(text)
    except FormatError:
        return None


def latest(text: str, known: JobPlan | None) -> JobPlan:
    """Returns the plan in a record's text, or what was known if the text has none that can be read.

    What is read once serves a whole pass, in which others write too: words of guards, and Berth's own pins.
    """
    return readable(text) or known or NOTHING


def word(key: str) -> Field[str]:
    """Declares a field whose value is the text itself."""
    return Field(key, str)


def flag(name: str) -> Field[str]:
    """Declares the field of a flag that users give."""
    return Field(_OF_FLAGS + name, str)


def whole(key: str) -> Field[int]:
    """Declares a field of a number that is not negative."""
    return Field(key, _whole)


def decimal(key: str, form: str) -> Field[float]:
    """Declares a field of a number with a fraction, written in a form such as `.2f`."""
    return Field(key, float, lambda value: format(value, form))


def mark(key: str) -> Mark:
    """Declares a field that is there, as 1, or is left out."""
    return Mark(key, lambda text: text == "1", lambda value: "1" if value else None)


def yes_or_no(key: str) -> Field[bool]:
    """Declares a field that is 1 or 0."""
    return Field(key, lambda text: text == "1", lambda value: "1" if value else "0")


def names(key: str) -> Field[tuple[str, ...]]:
    """Declares a field of names."""
    return Field(key, _split, ",".join)


def numbers(key: str) -> Field[tuple[int, ...]]:
    """Declares a field of numbers."""
    return Field(key, lambda text: tuple(map(_whole, _split(text))), lambda value: ",".join(map(str, value)))


def pairs(key: str) -> Field[Pairs]:
    """Declares a field of names of Slurm's fields, each with the user's own words."""
    return Field(key, _pairs, _joined)


def _pairs(text: str) -> Pairs:
    parts = (item.partition(":") for item in text.split(";") if item)
    return tuple((key, value) for key, _, value in parts)


def _joined(pairs: Pairs) -> str:
    return ";".join([f"{key}:{value}" if value else key for key, value in pairs])


def _whole(text: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise ValueError(text)
    return int(text)


def _split(text: str) -> tuple[str, ...]:
    return tuple(filter(None, text.split(",")))
