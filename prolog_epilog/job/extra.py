# SPDX-License-Identifier: Apache-2.0
"""The berth of a job, as it stands in the job's Extra (docs/develop/formats.md, section 2).

Only Slurm's own user may write it (the plugin ensures that), but nothing here trusts it. If the controller lost the
plugin, the Prolog reads what users wrote.
"""

import re
from typing import NamedTuple

from prolog_epilog.errors import ExtraError
from prolog_epilog.job.escape import unescape

MAX_GPUS = 64
MAX_NODES = 1_024
_MAX_MEM_MIB = 1 << 24
_MAX_TEXT = 65_536
_SEGMENT = re.compile(r"\[berth/1((?: [a-z][a-z0-9_.-]{0,63}=[!-Z\\^-~]*)*)\]")
_NUMBER = re.compile(r"0|[1-9][0-9]{0,15}")
_NODE = re.compile(r"[A-Za-z0-9_.-]{1,255}")
_WORD = re.compile(
    r"([A-Za-z0-9_.-]*)(?:\[([0-9]{1,9}(?:-[0-9]{1,9})?(?:,[0-9]{1,9}(?:-[0-9]{1,9})?)*)\])?(?=,|\Z)", re.ASCII
)
_FRACTION = re.compile(r"0(?:\.[0-9]{1,6})?|1(?:\.0{1,6})?")
_NEED = re.compile(r"([1-9][0-9]{0,9}):([1-9][0-9]{0,7})")
_SHARING_KEYS = ("share", "mem", "way", "tier", "slope")

GUARANTEED, OPPORTUNISTIC = "guaranteed", "opportunistic"
"""The tiers of jobs that do not own their GPUs alone: an owner (host in names) that may have a guest, and a guest."""


class NodeBerth(NamedTuple):
    """The GPUs of a job on each of its nodes."""

    nodes: tuple[str, ...]
    gpus: tuple[int, ...]
    """The positions, ascending."""
    share: int | None = None
    """The percentage of each GPU that Slurm counts; None: the GPUs are whole."""
    mem_mib: int | None = None
    """The memory on each GPU; None: not asked for."""
    way: str = ""
    """The way of sharing: `mps` or `time`; empty for whole GPUs."""
    tier: str = ""
    """`guaranteed` or `opportunistic`; empty for jobs that own their GPUs alone, and for packed ones."""
    slope: float | None = None
    """For a guest: the share of its speed that its owner is predicted to lose when nothing holds the guest back."""
    asked_share: int | None = None
    """The percentage of each GPU's SMs that its user asked for, if Slurm counts more for its memory."""
    need: tuple[int, int] | None = None
    """For a guest: its owner's job, and the MiB of each GPU that berthd knows that job to need."""

    @property
    def is_shared(self) -> bool:
        """Tells whether the job needs more than whole GPUs handed to it."""
        return self.share is not None or bool(self.tier)


def read(text: str, node: str) -> NodeBerth | None:
    """Returns the berth that a job's Extra gives it on a node; None if there is none."""
    if "[berth/" not in text:
        return None
    found = _SEGMENT.findall(text[:_MAX_TEXT])
    if len(found) != 1 or text.count("[berth/") != 1:
        raise ExtraError(f"the job's Extra holds {len(found)} segments that Berth can read, not one; requeue the job")
    values = dict(word.split("=", 1) for word in found[0].split())
    if len(values) != len(found[0].split()):
        raise ExtraError("the job's Extra says a key twice; requeue the job")
    nodes = _expand(_unescaped("nodes", values.get("nodes", "")))
    if not 0 < len(nodes) <= MAX_NODES or not all(map(_NODE.fullmatch, nodes)):
        raise ExtraError("the job's Extra has no list of nodes; requeue the job")
    if node not in nodes:
        raise ExtraError(f"the job's Extra names other nodes than {node}; requeue the job")
    berth = NodeBerth(nodes, _gpus(_unescaped("gpus", values.get("gpus", ""))))
    return _shared(berth, values) if any(key in values for key in _SHARING_KEYS) else berth


def _expand(text: str) -> tuple[str, ...]:
    """Returns the names of a host list, `a,n[01-03,7]`, in its order; nothing if it is none, or has too many names."""
    if "[" not in text:
        return tuple(text.split(","))
    nodes: list[str] = []
    at = 0
    while at <= len(text):
        word = _WORD.match(text, at)
        if word is None:
            return ()
        at = word.end() + 1
        for first, last in (item.partition("-")[::2] for item in (word[2] or "").split(",")):
            numbers = range(int(first or 0), int(last or first or 0) + 1)
            if not numbers or len(nodes) + len(numbers) > MAX_NODES:
                return ()
            nodes += [word[1] + str(number).zfill(len(first)) if first else word[1] for number in numbers]
    return tuple(nodes)


def asks_share(text: str) -> bool:
    """Tells whether an Extra, readable or not, is that of a job that shares its GPUs."""
    segments = re.findall(r"\[berth/1[^]]*", text[:_MAX_TEXT])
    return any(word in segment for segment in segments for word in (" share=", " tier=guar", " tier=opp"))


def _shared(berth: NodeBerth, values: dict[str, str]) -> NodeBerth:
    tier = values.get("tier", "")
    if tier == "exclusive" and not {"share", "mem", "way"} & values.keys():
        return berth
    if tier not in {"", GUARANTEED, OPPORTUNISTIC}:
        raise ExtraError(f"the job's Extra has tier={tier[:16]}, which is no tier; requeue the job")
    share = _number("share", values.get("share", ""), 1, 100) if "share" in values or not tier else None
    mem = _number("mem", values["mem"], 1, _MAX_MEM_MIB) if "mem" in values else None
    way = values.get("way", "time" if tier else "")
    if way not in {"mps", "time"}:
        raise ExtraError(f"the job's Extra has way={way[:16]}, where mps or time has to stand; requeue the job")
    asked = _number("asked_share", values["asked_share"], 1, 100) if share and "asked_share" in values else None
    slope, need = _slope(values.get("slope")), _need(values.get("need"))
    return NodeBerth(berth.nodes, berth.gpus, share, mem, way, tier, slope, asked, need)


def _slope(text: str | None) -> float | None:
    if text is not None and not _FRACTION.fullmatch(text):
        raise ExtraError(f"the job's Extra has slope={text[:16]}, where 0 to 1 has to stand; requeue the job")
    return None if text is None else float(text)


def _need(text: str | None) -> tuple[int, int] | None:
    found = None if text is None else _NEED.fullmatch(text)
    if text is not None and found is None:
        raise ExtraError(f"the job's Extra has need={text[:32]}, where JOB:MIB has to stand; requeue the job")
    return None if found is None else (int(found[1]), int(found[2]))


def _gpus(text: str) -> tuple[int, ...]:
    gpus = tuple(_number("gpus", word, 0, MAX_GPUS - 1) for word in text.split(",", MAX_GPUS))
    if list(gpus) != sorted(set(gpus)):
        raise ExtraError(f"the job's Extra has gpus={text[:64]}, which do not ascend; requeue the job")
    return gpus


def _number(key: str, text: str, least: int, most: int) -> int:
    if not _NUMBER.fullmatch(text) or not least <= int(text) <= most:
        raise ExtraError(
            f"the job's Extra has {key}={text[:64]!r}, where a number from {least} to {most} has to stand; "
            f"requeue the job"
        )
    return int(text)


def _unescaped(key: str, text: str) -> str:
    found = unescape(text)
    if not found:
        raise ExtraError(f"the job's Extra has no readable {key}; requeue the job")
    return found
