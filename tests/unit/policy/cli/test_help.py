# SPDX-License-Identifier: Apache-2.0
"""What `--help` says: each command, argument and option is explained."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

import pytest

from policy.cli.main import _COMMANDS, build_parser


def parsers(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    yield parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for child in action.choices.values():
                yield from parsers(child)


@pytest.mark.parametrize("parser", [*parsers(build_parser())], ids=lambda parser: parser.prog)
def test_a_command_and_all_that_it_takes_are_explained(parser: argparse.ArgumentParser) -> None:
    assert parser.description
    assert parser.description[0].isupper()
    assert parser.description.rstrip().endswith(".")
    silent = [
        action.dest
        for action in parser._actions
        if not action.help and not isinstance(action, argparse._SubParsersAction)
    ]
    assert silent == []


def test_a_list_of_commands_is_the_first_line_of_each(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        build_parser().parse_args(["migrate", "undo", "--help"])

    assert "Restore the files as they were before the last step, byte for byte." in capsys.readouterr().out


def test_each_command_is_known_by_its_name() -> None:
    for command in _COMMANDS:
        assert [parser.prog for parser in parsers(build_parser(command))][:2] == ["berth", f"berth {command}"]


def test_a_command_alone_takes_and_says_what_it_does_among_all() -> None:
    whole = {parser.prog: parser.format_help() for parser in parsers(build_parser())}
    alone = {parser.prog: parser.format_help() for command in _COMMANDS for parser in parsers(build_parser(command))}

    assert {**alone, "berth": whole["berth"]} == whole
