# SPDX-License-Identifier: Apache-2.0
"""The rule file: what each failure class is known by."""

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from policy.formats.errors import FormatError, nearest
from policy.retry.classes import CLASSES
from policy.retry.patterns import Pattern, bounded

FORMAT = "berth-failures/1"
RANKS = ("fallback", "symptom", "error", "cause")
"""From what says least to what says most."""
_KEYS = ("class", "rank", "transient", "patterns", "states", "signals", "exit_codes", "xids")


@dataclass(frozen=True, slots=True)
class FailureRule:
    """A class, and its signs; any one of them is enough."""

    failure: str
    rank: int
    transient: bool
    patterns: tuple[Pattern, ...] = ()
    states: frozenset[str] = frozenset()
    signals: frozenset[int] = frozenset()
    exit_codes: frozenset[int] = frozenset()
    xids: frozenset[int] = frozenset()


Rules = tuple[FailureRule, ...]


@cache
def shipped_rules() -> Rules:
    """Returns Berth's own rules. A site's rules are used on the nodes, where the logs are."""
    text = resources.files("policy.retry").joinpath("rules.toml").read_text(encoding="utf-8")
    return read_rules(text, "rules.toml")


def read_rules(text: str, origin: str) -> Rules:
    """The rules of a file; `origin` names it in errors."""
    try:
        content = tomllib.loads(text)
    except tomllib.TOMLDecodeError as problem:
        raise FormatError(f"{origin} is no TOML: {problem}; see docs/admin/failures.md") from problem
    if content.get("format") != FORMAT:
        raise FormatError(f'{origin} does not say format = "{FORMAT}"; write that as its first line')
    unknown = next((key for key in content if key not in {"format", "rule"}), None)
    if unknown:
        raise FormatError(f"{origin}: there is no {unknown}{nearest(unknown, ('format', 'rule'))}")
    entries = content.get("rule", [])
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise FormatError(f"{origin}: rule is not a list of tables; write [[rule]] above each")
    return tuple(_rule(entry, f"{origin}, rule {number}") for number, entry in enumerate(entries, 1))


def _rule(entry: Mapping[str, Any], where: str) -> FailureRule:
    unknown = next((key for key in entry if key not in _KEYS), None)
    if unknown:
        raise FormatError(f"{where}: there is no {unknown}{nearest(unknown, _KEYS)}")
    failure, rank = str(entry.get("class")), entry.get("rank", "cause")
    if failure not in CLASSES:
        raise FormatError(f"{where}: there is no class {failure}{nearest(failure, CLASSES)}")
    if rank not in RANKS:
        raise FormatError(f"{where}: there is no rank {rank}{nearest(str(rank), RANKS)}")
    transient = entry.get("transient", CLASSES[failure].transient)
    if not isinstance(transient, bool):
        raise FormatError(f"{where}: transient is neither true nor false")
    try:
        patterns = tuple(bounded(one) for one in _many(entry, "patterns", str, where))
    except FormatError as problem:
        raise FormatError(f"{where}: {problem}") from problem
    return FailureRule(
        failure,
        RANKS.index(rank),
        transient,
        patterns,
        frozenset(_many(entry, "states", str, where)),
        frozenset(_many(entry, "signals", int, where)),
        frozenset(_many(entry, "exit_codes", int, where)),
        frozenset(_many(entry, "xids", int, where)),
    )


def _many(entry: Mapping[str, Any], key: str, kind: type, where: str) -> Sequence[Any]:
    values = entry.get(key, [])
    if not isinstance(values, list) or not all(type(value) is kind for value in values):
        what = {str: "texts", int: "whole numbers"}[kind]
        raise FormatError(f"{where}: {key} is not a list of {what}; write it in square brackets")
    return values
