# SPDX-License-Identifier: Apache-2.0
"""Berth's flags of sbatch, srun and salloc (docs/develop/formats.md, section 5).

The SPANK plugin checks the same table on the submit host. This module checks requests that come in other ways.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from policy.formats.errors import FormatError, nearest

LEVELS = ("nvlink", "node", "leaf", "pod", "any")

_TIME = re.compile(
    r"(?:(?P<days>\d+)-(?P<dh>\d+)(?::(?P<dm>\d+)(?::(?P<ds>\d+))?)?|(?P<a>\d+)(?::(?P<b>\d+)(?::(?P<c>\d+))?)?)"
)
_TIME_FORMS = "M, M:S, H:M:S, D-H, D-H:M or D-H:M:S"


@dataclass(frozen=True, slots=True)
class Locality:
    """Value of `--locality`: a level, and the seconds to wait for it (None: the site's default)."""

    level: str
    wait: int | None


TIERS = ("exclusive", "guaranteed", "opportunistic")


@dataclass(frozen=True, slots=True)
class Tier:
    """Value of `--gpu-tier`, or the site's default for jobs without the flag."""

    name: str = "exclusive"
    upgrade: bool = False
    """True for a guest that wants GPUs of its own, and takes them at its turn in the queue."""
    mps: bool = False
    """True if it may run on a GPU at the same time as its host or guest, in one fault domain; else they take turns."""


def parse_tier(text: str) -> Tier:
    """Reads TIER[,upgrade][,mps].

    >>> parse_tier("opportunistic,upgrade")
    Tier(name='opportunistic', upgrade=True, mps=False)
    """
    name, *words = text.split(",")
    if name not in TIERS:
        raise FormatError(f"{name!r} is not one of {', '.join(TIERS)}{nearest(name, TIERS)}")
    able = {"exclusive": (), "guaranteed": ("mps",), "opportunistic": ("upgrade", "mps")}[name]
    for word in words:
        if word not in able or words.count(word) > 1:
            raise FormatError(f"{text!r}: behind {name} may stand {' and '.join(able) or 'nothing'}, once each")
    return Tier(name, "upgrade" in words, "mps" in words)


def parse_time(text: str) -> int:
    """Returns the seconds of a time in Slurm's syntax: a bare number is minutes."""
    match = _TIME.fullmatch(text)
    if match is None or not text.isascii():
        raise FormatError(f"{text!r} is not a time; write {_TIME_FORMS}")
    part = {name: int(value) for name, value in match.groupdict().items() if value is not None}
    if "days" in part:
        return part["days"] * 86_400 + part["dh"] * 3_600 + part.get("dm", 0) * 60 + part.get("ds", 0)
    if "c" in part:
        return part["a"] * 3_600 + part["b"] * 60 + part["c"]
    return part["a"] * 60 + part.get("b", 0)


def parse_locality(text: str) -> Locality:
    """Reads LEVEL[@TIME]."""
    level, at, wait = text.partition("@")
    if level not in LEVELS:
        raise FormatError(f"--locality={text}: the level is one of {', '.join(LEVELS)}{nearest(level, LEVELS)}")
    return Locality(level, parse_time(wait) if at else None)


def percent(text: str) -> int:
    """Reads a percentage, with or without the percent sign."""
    _percent(text)
    return int(text.removesuffix("%"))


def mebibytes(text: str) -> int:
    """Reads SIZE, and returns MiB.

    >>> mebibytes("12G"), mebibytes("512"), mebibytes("1T")
    (12288, 512, 1048576)
    """
    _size(text)
    return int(text.rstrip("MGT")) * {"G": 1_024, "T": 1_048_576}.get(text[-1], 1)


def _one_of(*words: str) -> Callable[[str], None]:
    def check(text: str) -> None:
        if text not in words:
            raise FormatError(f"{text!r} is not one of {', '.join(words)}{nearest(text, words)}")

    return check


def _percent(text: str) -> None:
    digits = text.removesuffix("%")
    if not (digits.isascii() and digits.isdigit() and len(digits) <= 3 and 1 <= int(digits) <= 100):
        raise FormatError(f"{text!r} is not a whole number of percent from 1 to 100")


def _size(text: str) -> None:
    match = re.fullmatch(r"([0-9]{1,12})[MGT]?", text)
    if match is None or int(match.group(1)) < 1:
        raise FormatError(f"{text!r} is not a size; write a number with M, G or T, at least 1M")


def _optional_time(least: int) -> Callable[[str], None]:
    def check(text: str) -> None:
        if text and parse_time(text) < least:
            raise FormatError(f"{text!r} is too short; at least {least} s belongs there")

    return check


def _preflight(text: str) -> None:
    time, comma, must = text.partition(",")
    if text == "no":
        return
    if comma and must != "must":
        raise FormatError(f"{text!r}: behind the time may stand ,must and nothing else")
    _optional_time(1)(time)


def _group(text: str) -> None:
    if not (text.isascii() and text.isdigit() and len(text) <= 5 and int(text) >= 1):
        raise FormatError(f"{text!r} is not a whole number from 1 to 99999")


def _retry(text: str) -> None:
    if text != "auto" and not (text.isascii() and text.isdigit() and len(text) <= 3 and int(text) <= 100):
        raise FormatError(f"{text!r} is neither auto nor a number from 0 to 100")


def _tier(text: str) -> None:
    parse_tier(text)


def _locality(text: str) -> None:
    parse_locality(text)


CHECKS: dict[str, Callable[[str], None]] = {
    "locality": _locality,
    "group": _group,
    "app-class": _one_of("compute", "mixed", "memory"),
    "gpu-tier": _tier,
    "gpu-share": _percent,
    "gpu-mem": _size,
    "preflight": _preflight,
    "movable": _optional_time(0),
    "retry": _retry,
    "on-hang": _one_of("tell", "requeue"),
}


def check(flags: Mapping[str, str]) -> None:
    """Raises FormatError for a flag that does not exist, or a value that it cannot have."""
    for name, value in flags.items():
        checker = CHECKS.get(name)
        if checker is None:
            raise FormatError(f"unknown flag --{name}{nearest(name, CHECKS)}")
        try:
            checker(value)
        except FormatError as problem:
            text = str(problem)
            raise FormatError(text if text.startswith("--") else f"--{name}: {text}") from None
