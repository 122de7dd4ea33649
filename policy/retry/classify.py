# SPDX-License-Identifier: Apache-2.0
r"""From the end of a log, and what Slurm and the node know of a job's end, to its failure class.

    >>> from policy.retry.rules import read_rules
    >>> rules = read_rules('''
    ... format = "berth-failures/1"
    ... [[rule]]
    ... class = "gpu_out_of_memory"
    ... patterns = ['CUDA out of memory']
    ... ''', "example")
    >>> classify(b"step 3\nRuntimeError: CUDA out of memory. Tried ...\n", Facts(exit_code=1), rules).failure
    'gpu_out_of_memory'

The sign of the highest rank wins; of equal ones, that which stands last: what came before it, the program survived.
Of those in one line the longest wins, as it says most. One thing stands above a trouble that passes by itself: an
exception of the program's own that is not caught. Before the trouble it is the cause, as other ranks lose one that
ends; after it the program had survived the trouble.
"""

import re
import time
from collections.abc import Iterator
from dataclasses import dataclass

from policy.retry.classes import NO_SIGNATURE
from policy.retry.patterns import REACH, Pattern
from policy.retry.rules import FailureRule, Rules

TAIL_BYTES = 256 * 1024
"""Bytes of a log's end that are read."""
_HITS = 8
"""Most places of a literal that are tried, from the last on."""
_COLOURS = re.compile(rb"\x1b\[[0-9;]{0,20}[A-Za-z]")
_PUT_BACK = re.compile(rb"CANCELLED AT (\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)[^\n]*\n?")
"""The last word of slurmstepd in the log of a run that was told to end, in the time of its node."""
_WORDS = re.compile(rb"[a-z]{3,}")
_LONGEST_WORD = 100
"""Longer ones are no words but encoded data."""
_ASIDE = re.compile(
    r"""\w{1,40}Warning:|^.{0,80}(?<!NCCL )\bwarn(?:ing)?\b"""
    r"""|^\s{1,40}(?:File "|at |raise |return |\||\d{1,6} \||m(?:aj|in)or: )"""
    r"""|^.{0,40}frame #\d|unknown function[> ]|^.{0,80}NCCL INFO|PETSC ERROR: (?:or|try|see) """,
    re.IGNORECASE,
)
"""A warning, a hint, a frame of a stack (HDF5's have details), or a line of source. NCCL calls its errors WARN."""
_THROWS = re.compile(
    rb"([^\n]{0,40}?)Traceback \(most recent call last\):[^\n]{0,200}\n"
    rb"(?:\1[ \t][^\n]*\n|(?!\1(?:[ \t]|[A-Za-z_][\w.]*[:\n]))[^\n]{0,200}\n(?=\1[ \t])){1,200}"
    rb"\1((?:[\w.]{0,80}\.)?(\w{1,40})(?::[^\n]{0,400})?)(?:\n|$)"
)
"""A traceback, each line of which begins as its first does, and the exception at its end.

Another process may have written a line between them, which looks like no exception.
"""
_THROWN = b"Traceback (most recent call last):"
_OWN = frozenset(
    b"ArithmeticError AssertionError AttributeError FileNotFoundError ImportError IndentationError IndexError "
    b"IsADirectoryError KeyError LinAlgError LookupError ModuleNotFoundError NameError NotADirectoryError "
    b"NotImplementedError OverflowError PackageNotFoundError PicklingError RecursionError StopAsyncIteration "
    b"StopIteration SyntaxError TypeError UnboundLocalError UnicodeDecodeError UnicodeEncodeError ValueError "
    b"ZeroDivisionError".split()
)
"""Exceptions that say what the program does wrong, whatever stands in them; of others a rule has to say so."""
_FOLLOWS = (b"During handling of", b"The above exception was", b"Exception ignored in", b"Exception in thread")
"""The line before a traceback that follows from another, or ends nothing."""
_ROOT = re.compile(rb"Root Cause \(first observed failure\):[^=]{0,1000}?\(SIG(?:SEGV|BUS|FPE|ILL|KILL)\)")
"""torchrun's word on the rank that ended first, by a signal that no lost peer sends."""
_NEAR = 65_536
"""Bytes before the log's end from which on an exception counts as not caught: ranks may write a traceback each."""
_OPENING, _FARTHEST = 80, 4_000
"""Characters of a long line's beginning that count, and how far before a pattern it is looked for."""


@dataclass(frozen=True, slots=True)
class Facts:
    """The facts of a job's end beside its log."""

    exit_code: int | None = None
    """As a shell gives it: 128 and the signal's number for a job that a signal ended."""
    signal: int = 0
    state: str = ""
    """As sacct writes it."""
    xids: tuple[int, ...] = ()
    """Xids of the job's GPUs while it ran."""


@dataclass(frozen=True, slots=True)
class Classification:
    """The cause of a failure, and what speaks for it."""

    failure: str
    transient: bool
    reason: str
    """The line of the log or the fact that says so."""
    sign: str = ""
    """The same in words of the rule, with nothing that the job wrote: others may read it."""


def classify(tail: bytes, facts: Facts, rules: Rules) -> Classification:
    """The class of a failed job."""
    tail = _COLOURS.sub(b"", tail[-TAIL_BYTES:])
    lowered = tail.lower()
    # Most patterns are left out by their words: a log says few, many times over.
    words = b" ".join(word for word in set(_WORDS.findall(lowered)) if len(word) <= _LONGEST_WORD)
    best = (-1, -1, 0)
    unknown = "no rule knows the end of its log, or its exit code"
    found = Classification(NO_SIGNATURE, transient=True, reason=unknown, sign=unknown)
    # From what says most on, so that what says less need not be looked for.
    for rule in sorted(rules, key=lambda rule: -rule.rank):
        if rule.rank < best[0]:
            break
        if fact := _fact(facts, rule):
            # A fact is no guess: it stands before every line of the same rank.
            sign = (rule.rank, len(tail), 0)
            if sign > best:
                best, found = sign, Classification(rule.failure, rule.transient, fact, fact)
        for pattern in rule.patterns:
            if pattern.word not in words:
                continue
            since = best[1] if rule.rank == best[0] else 0
            for place, line in _lines(tail, lowered, pattern, since):
                # A program goes on after a warning, and source says what might have happened: both are the last resort.
                rank = 0 if _ASIDE.search(line) else rule.rank
                if (rank, place) < best[:2]:
                    break
                if match := pattern.matches.search(line):
                    sign = (rank, place, len(match.group()))
                    if sign > best:
                        said = f"its log says: {pattern.literal.decode().strip(' :')}"
                        best, found = sign, Classification(rule.failure, rule.transient, _readable(line), said)
                    break
    # Neither a fact nor a fault of the hardware is what a program makes up.
    is_doubtful = found.transient and found.failure != "gpu_ecc_error" and best[1] < len(tail)
    return (_thrown(tail, rules) if is_doubtful else None) or found


def _thrown(tail: bytes, rules: Rules) -> Classification | None:
    """The first exception near a log's end that another try does not change; None without any."""
    for name, line in _exceptions(tail):
        own = classify(line, Facts(), rules)
        if not own.transient and (name in _OWN or own.failure != "traceback_from_crash"):
            return own
    return None


def _exceptions(tail: bytes) -> Iterator[tuple[bytes, bytes]]:
    """The exceptions near a log's end that follow from no other: their names and lines."""
    at = tail.find(_THROWN, max(0, len(tail) - _NEAR))
    while at >= 0:
        start = tail.rfind(b"\n", 0, at) + 1
        match = _THROWS.match(tail, start)
        before = tail[max(0, start - _OPENING * 4) : start].rstrip().rpartition(b"\n")[2]
        if match and not before.removeprefix(match[1]).startswith(_FOLLOWS):
            # A launcher's exception follows from how its program ended.
            said = match[2]
            if match[3] == b"CalledProcessError":
                said = before
            elif match[3] == b"ChildFailedError" and (root := _ROOT.search(tail, match.end(), match.end() + _FARTHEST)):
                said = root[0]
            yield match[3], said
        at = tail.find(_THROWN, at + 1)


def of_last_run(tail: bytes, began: float) -> bytes:
    """Returns a log without the runs that were told to end before this one began, as an appended log has them."""
    for put_back in reversed(list(_PUT_BACK.finditer(tail))):
        try:
            at = time.mktime(time.strptime(put_back[1].decode(), "%Y-%m-%dT%H:%M:%S"))
        except (ValueError, OverflowError):
            continue
        if at < began:
            return tail[put_back.end() :]
    return tail


def _lines(tail: bytes, lowered: bytes, pattern: Pattern, since: int) -> Iterator[tuple[int, str]]:
    """The last lines from a place on that hold a pattern's literal, each with its place."""
    size = len(pattern.literal)
    at = len(tail)
    for _ in range(_HITS):
        at = lowered.rfind(pattern.literal, since, at)
        if at < 0:
            return
        first, last = max(0, at - REACH), min(len(tail), at + size + REACH)
        farthest = max(0, at - _FARTHEST)
        start = max(lowered.rfind(b"\n", farthest, at) + 1, lowered.rfind(b"\r", farthest, at) + 1, farthest)
        ends = [end for end in (lowered.find(b"\n", at, last), lowered.find(b"\r", at, last)) if end >= 0]
        text = tail[max(start, first) : min(ends, default=last)].decode("utf-8", "replace")
        # Of a long line the beginning tells what it is, and a line that is cut must not look like one that begins here.
        opening = tail[start : min(start + _OPENING, first)].decode("utf-8", "replace")
        yield start, f"{opening}\u2026{text}" if start < first else text


def _readable(line: str) -> str:
    """A line that may be shown on a terminal, whatever a program wrote."""
    return "".join(one if one.isprintable() else " " for one in line).strip()


def is_state(said: str, state: str) -> bool:
    """Tells whether sacct means this state: it adds the user that cancelled, and cuts a word at its column's end."""
    word = said.partition(" ")[0]
    return state.startswith(word[:-1]) if word.endswith("+") and len(word) > 1 else word == state


def _fact(facts: Facts, rule: FailureRule) -> str:
    """The fact that speaks for a rule, as a sentence; or nothing."""
    code, number = facts.exit_code, facts.signal
    if code is not None and 128 < code < 128 + 65:
        number = number or code - 128
    if state := next((state for state in rule.states if is_state(facts.state, state)), ""):
        return f"Slurm says {state}"
    if xid := next((xid for xid in facts.xids if xid in rule.xids), 0):
        return f"a GPU of the job reported Xid {xid}"
    if number in rule.signals:
        return f"signal {number} ended it"
    if code in rule.exit_codes:
        return f"its exit code is {code}"
    return ""
