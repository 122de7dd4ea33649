# SPDX-License-Identifier: Apache-2.0
"""The ids of messages: docs/user/troubleshooting.md explains each that is used."""

import ast
import doctest
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from policy.cli.listing import Column, lines_of
from policy.cli.output import print_table, say
from policy.formats import errors
from policy.formats.errors import BerthError, LeftToSlurm, Never
from policy.formats.messages import tag, tagged, untagged
from policy.site import log
from prolog_epilog import messages as node_messages
from prolog_epilog.errors import HardwareFault

ROOT = Path(__file__).parents[4]
PLUGINS = ROOT / "slurm_plugins"
NODE_FAULT = 927
"""The id of a fault in berth-prolog or berth-epilog."""
NUMBERED = frozenset({"LeftToSlurm", "Impossible", "NotNow", "BadCompany", "OutOfTime", "Never"})
"""Answers to a job's request: each is raised with a number of its own."""


@cache
def all_calls() -> tuple[tuple[str, str, ast.Call], ...]:
    """All calls in policy/, but in the simulator, whose model of Slurm tells nobody anything: file, name, call."""
    found: list[tuple[str, str, ast.Call]] = []
    for path in sorted((ROOT / "policy").rglob("*.py")):
        if "simulate" in path.parts:
            continue
        nodes = ast.walk(ast.parse(path.read_text()))
        made = (
            node for node in nodes if isinstance(node, ast.Call) and isinstance(node.func, ast.Name | ast.Attribute)
        )
        found += [(str(path.relative_to(ROOT)), ast.unparse(call.func), call) for call in made]
    return tuple(found)


def calls(*names: str) -> Iterator[tuple[str, ast.Call]]:
    """The calls of these names, each with its place."""
    return ((f"{path}:{call.lineno}", call) for path, name, call in all_calls() if name in names)


def numbers_in(call: ast.Call) -> list[int]:
    given = [*call.args[1:], *(word.value for word in call.keywords)]
    return [one.value for one in given if isinstance(one, ast.Constant) and isinstance(one.value, int)]


@cache
def explained() -> dict[int, tuple[str, str]]:
    """The page's table: by number, what a message means and what to do."""
    page = (ROOT / "docs" / "user" / "troubleshooting.md").read_text()
    rows = re.findall(r"^\| BERTH-([0-9]+) \| (.*) \| (.*) \|$", page, re.MULTILINE)
    found = {int(number): (meaning, advice) for number, meaning, advice in rows}
    assert len(found) == len(rows), "an id is explained twice"
    return found


@pytest.mark.slow
def test_answers_to_requests_have_numbers_of_their_own() -> None:
    bare = [place for place, call in calls(*NUMBERED) if len(call.args) + len(call.keywords) < 2]

    assert bare == []


@pytest.mark.slow
def test_lines_of_the_log_have_numbers_and_errors_bring_theirs() -> None:
    bare = [
        place
        for place, call in calls("log.error", "log.info")
        if not numbers_in(call) and not (isinstance(call.args[0], ast.Name) and call.args[0].id == "problem")
    ]

    assert bare == []


@pytest.mark.slow
def test_each_number_that_is_used_is_in_the_table() -> None:
    names = (*NUMBERED, "log.error", "log.info", "Reason", "partial", "tagged", "told.line", "say")
    used = {number for _, call in calls(*names) for number in numbers_in(call) if number >= 100}
    used |= {kind.number for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, BerthError)}

    assert len(used) > 100
    assert used <= explained().keys()


_STRING = r'"(?:\\.|[^"\\])*"'
_TOLD = re.compile(rf"\b(?:slurm_error|slurm_info|refuse|tell|leave_to_slurm)\((?:{_STRING}|[^;{{\"])*;")
_SENTENCE = re.compile(rf"static const char \w+_sentence\[\] =(?:{_STRING}|[^;\"])*;")


def statements(text: str) -> list[str]:
    """The statements of a C file by which users or logs are told something."""
    return [*_TOLD.findall(text), *_SENTENCE.findall(text)]


def test_each_sentence_of_the_plugins_has_an_id_of_the_table() -> None:
    bare, used = [], set()
    for folder in ("job_submit", "spank", "cli_filter"):
        for path in sorted((PLUGINS / folder).glob("*.c")):
            text = path.read_text()
            used |= {int(number) for number in re.findall(r"BERTH_ID\(\s*(\d+)\)", text)}
            # What is told by a variable has its id where the variable is written.
            told = [one for one in statements(text) if '"' in one and "BERTH_ID" not in one]
            bare += [f"{path.name}: {' '.join(one.split())[:80]}" for one in told if "tell(opt, " not in one]

    assert bare == []
    assert used <= explained().keys()
    assert {number for number in explained() if 800 <= number < 900} <= used


def test_the_ids_of_the_nodes_are_those_of_the_table() -> None:
    written = "".join(path.read_text() for path in sorted((ROOT / "prolog_epilog").rglob("*.py")))
    used = {int(number) for number in re.findall(r"\[BERTH-([0-9]+)\]", written)}
    used |= {int(number) for number in re.findall(r"^    number = ([0-9]+)$", written, re.MULTILINE)}
    used |= {node_messages.PROLOG, node_messages.EPILOG, node_messages.GUARD, node_messages.PREFLIGHT, NODE_FAULT}

    assert {number for number in explained() if number >= 900} == used
    assert doctest.testmod(node_messages).failed == 0
    assert node_messages.numbered(HardwareFault("it is gone")) == "it is gone [BERTH-916]"


def test_no_number_is_too_wide_for_its_group() -> None:
    assert all(101 <= number <= 999 for number in explained())
    assert all(text.endswith(".") for entry in explained().values() for text in entry)


def test_an_error_has_the_number_of_its_class_or_its_own() -> None:
    assert LeftToSlurm("it asks for no GPUs", 202).number == 202
    assert LeftToSlurm("another policy's reason").number == 201
    assert Never("no").number == 401
    assert str(Never("no", 404)) == "no"


@pytest.mark.parametrize("text", ["it is held", "it is held [BERTH-504]"])
def test_a_message_has_one_id(text: str) -> None:
    assert tagged(text, 504) == f"it is held{tag(504)}"
    assert untagged(tagged(text, 504)) == ("it is held", 504)


HOSTILE = "a\x1b]0;x\x07\x1b[2J\rberthd: b\u202e\x9b31m\nerror: c"
"""A user's text, as a name of a job may be: it would clear a terminal, hide what stands before, and begin a line."""


def test_a_users_text_changes_nothing_on_a_terminal_and_begins_no_line_of_a_log(
    capsys: pytest.CaptureFixture[str],
) -> None:
    log.error(f"job {HOSTILE} is held", 600)
    print_table([("name", HOSTILE)])
    say(HOSTILE, 700)
    [listed] = lines_of([{"name": HOSTILE}], [Column("NAME", lambda row: str(row["name"]))], header=False)
    said = capsys.readouterr()

    assert len(said.err.splitlines()) == 3  # `say` keeps the lines that a command's message has
    assert len(said.out.splitlines()) == 1
    for text in (said.err + said.out, listed, node_messages.tagged(HOSTILE, 901)):
        assert all(one.isprintable() or one == "\n" for one in text)
    assert "\n" not in node_messages.tagged(HOSTILE, 901) + listed


def test_a_line_of_the_log_is_bounded(capsys: pytest.CaptureFixture[str]) -> None:
    log.error("x" * 70_000, 652)

    said = capsys.readouterr().err
    assert len(said) < 4_200
    assert said.endswith("[BERTH-652]\n")
