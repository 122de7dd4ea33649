# SPDX-License-Identifier: Apache-2.0
"""Regular expressions whose worst case is known before they run.

Python's `re` tries every way in which repetitions can divide a text, which some patterns make exponential. Here a
pattern is refused unless its number of ways is small, and it only ever sees a few hundred characters around its own
longest literal text, which is found first, by plain search.
"""

import re
from dataclasses import dataclass

from policy.formats.errors import FormatError

REACH = 200
"""Characters of a line on either side of the literal that a pattern may look at."""
MOST_WAYS = 2_000
"""Ways in which a pattern's repetitions may divide a text of that length."""
SHORTEST = 3
"""Letters of a pattern's longest word: shorter ones stand in every line."""

_TOKEN = re.compile(
    r"""(?P<open>\((?:\?:)?) | (?P<close>\)) | (?P<bar>\|)
      | (?P<times>(?:[*+?]|\{\d{1,4}(?:,\d{0,4})?\})[?+]?)
      | (?P<set>\[\^?\]?(?:\\.|[^\]\\])*\]) | (?P<kind>\\[A-Za-z]|\.) | (?P<edge>[\^$])
      | (?P<same>\\\d) | \\(?P<escaped>.) | (?P<char>.)""",
    re.VERBOSE | re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class Pattern:
    """A pattern that was found to be bounded."""

    literal: bytes
    """In lower case; wherever the pattern matches, this stands."""
    word: bytes
    """The longest word of the literal."""
    matches: re.Pattern[str]


def bounded(text: str) -> Pattern:
    """Check and compile a pattern."""
    try:
        compiled = re.compile(text, re.IGNORECASE)
    except re.error as problem:
        raise FormatError(f"pattern {text!r} is no regular expression: {problem}; mend it") from problem
    ways, literals = _measure(text)
    if ways > MOST_WAYS:
        raise FormatError(
            f"pattern {text!r} could match a line in {ways:,} ways; give repetitions a limit, as in .{{0,40}}, "
            f"so that at most {MOST_WAYS:,} are left"
        )
    literal = max(literals, key=lambda one: (len(_word(one)), len(one))).lower()
    if len(_word(literal)) < SHORTEST or not literal.isascii():
        raise FormatError(f"pattern {text!r} has no word of {SHORTEST} ASCII letters outside brackets; add one")
    return Pattern(literal.encode(), _word(literal).encode(), compiled)


def _word(literal: str) -> str:
    return max(re.findall(r"[a-z]+", literal.lower()), key=len, default="")


def _measure(text: str) -> tuple[int, list[str]]:
    """The number of ways, and all plain texts that every match contains."""
    ways = 1
    literals, run = [], ""
    alternatives: list[int] = []
    """Alternatives of each group that is open."""
    for token in _TOKEN.finditer(text):
        kind = token.lastgroup
        if kind == "times":
            ways *= _times(text, token.group(), after_group=text[token.start() - 1 : token.start()] == ")")
            run = run[:-1]
        elif kind in {"char", "escaped"} and not alternatives:
            run += token.group(kind)
            continue
        elif kind == "bar":
            if not alternatives:
                raise FormatError(f"pattern {text!r} has alternatives outside a group; write one pattern for each")
            alternatives[-1] += 1
        elif kind == "same":
            raise FormatError(f"pattern {text!r} repeats what a group matched, which has no bound; write it out")
        elif kind == "open":
            if text.startswith("?", token.end()):
                raise FormatError(f"pattern {text!r} has a group of a special kind; only (...) and (?:...) may be used")
            alternatives.append(1)
        elif kind == "close":
            ways *= alternatives.pop()
        if kind != "edge":
            literals.append(run)
            run = ""
    return ways, [*literals, run]


def _times(text: str, times: str, *, after_group: bool) -> int:
    """The ways that one repetition can end."""
    count = times.rstrip("?+") or times[0]
    if count == "?" or times[0] == "?":
        return 2
    if after_group:
        raise FormatError(f"pattern {text!r} repeats a group, which may take for ever; repeat single characters")
    if count[0] in "*+" or times[0] in "*+":
        return 2 * REACH
    low, _, high = count.strip("{}").partition(",")
    if "," not in count:
        return 1
    return int(high) - int(low) + 1 if high else 2 * REACH
