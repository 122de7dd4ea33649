"""A submit request, as it was sent: what belongs to one job alone, and the kind that it shares with other jobs."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from policy.formats.errors import FormatError
from policy.formats.wire import number
from policy.request.parse import Request, flags_of, names_gpus
from policy.request.parse import read as read_request

_OF_ONE_JOB = frozenset({"nonce", "uid", "begin", "name", "extra_bytes", "preflight"})

Kind = frozenset[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Submission:
    """A submit request. Its GPU request is read when it is asked for: users submit the same few kinds again."""

    nonce: str
    texts: Mapping[str, str] = field(repr=False)
    """The request as it was sent, for `Submission.request` alone."""
    uid: int = 0
    name: str = ""
    begin: int = 0
    minutes: int | None = None
    """Time limit."""
    gpus: int | None = None
    """GPUs of the whole job, as the plugin counted them; None if the request names none."""
    extra_bytes: int = 0
    """Length of the user's own Extra."""
    preflight: str = ""
    """`run` for a pre-flight, or the number of the job's own."""
    test: bool = False
    """True if the user only asks, and does not submit."""
    waits: bool = False
    """True if it may not start yet, whatever is free."""
    flags: Mapping[str, str] = field(default_factory=dict)
    """Berth's flags, checked."""
    wrong: FormatError | None = None
    """The fault, if the request cannot be read: then nothing else of it was read."""
    wrong_flag: bool = False

    @property
    def kind(self) -> Kind:
        """Returns all that jobs of one kind have in common, but for their time limit."""
        kind = {item for item in self.texts.items() if item[0] not in _OF_ONE_JOB}
        if self.minutes is not None:
            kind.discard(("time_limit", self.texts["time_limit"]))
        if "begin" in self.texts:
            kind.add(("begin", ""))
        return frozenset(kind)

    @property
    def later(self) -> bool:
        """Tells whether it names a begin time."""
        return "begin" in self.texts

    @property
    def batch(self) -> bool:
        """Tells whether it has a script, and so can be requeued and changed while it waits."""
        return self.texts.get("client") == "batch"

    @property
    def excludes(self) -> bool:
        """Tells whether its user excludes nodes."""
        return bool(self.texts.get("exc_nodes"))

    @property
    def partition(self) -> str | None:
        """Returns the partitions that its user names."""
        return self.texts.get("partition")

    @property
    def length(self) -> int:
        """Returns the number of characters of the request."""
        return sum(map(len, self.texts.values()))

    def request(self) -> Request:
        """Reads its GPU request; LeftToSlurm, Never and FormatError pass through."""
        return read_request(self.texts)


def read(texts: Mapping[str, str]) -> Submission:
    """Reads a submit request; a wrong one too, so that it can be answered."""
    nonce = texts["nonce"]
    try:
        flags = flags_of(texts)
    except FormatError as problem:
        return Submission(nonce, texts, wrong=problem, wrong_flag=True)
    try:
        return Submission(
            nonce,
            texts,
            uid=number(texts, "uid") or 0,
            name=texts.get("name", ""),
            begin=number(texts, "begin") or 0,
            minutes=number(texts, "time_limit"),
            gpus=number(texts, "gpus") if names_gpus(texts) else None,
            extra_bytes=number(texts, "extra_bytes") or 0,
            preflight=texts.get("preflight", ""),
            test="test" in texts,
            waits=not texts.keys().isdisjoint(("held", "dependency", "array")),
            flags=flags,
        )
    except FormatError as problem:
        return Submission(nonce, texts, flags=flags, wrong=problem)
