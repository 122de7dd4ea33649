# SPDX-License-Identifier: Apache-2.0
"""The man pages say what the programs know: no command, option or key too few, and none too many."""

import argparse
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from policy.cli.main import build_parser
from policy.daemon.answer import main as berthd
from prolog_epilog import programs
from prolog_epilog.guard import program as guard

ROOT = Path(__file__).parents[3]
PAGES = sorted((ROOT / "docs" / "man").iterdir())
OPTION = re.compile(r"--[a-z][a-z-]*")
SHORT = re.compile(r"(?<![\w-])-[a-zA-Z](?![\w-])")


def plain(name: str) -> str:
    """A page as people read it, but for its requests."""
    text = (ROOT / "docs" / "man" / name).read_text()
    return re.sub(r"\\f[BIR]|\\&", "", text).replace("\\-", "-")


def sections(name: str) -> dict[str, str]:
    """The text of each `.SS`."""
    found = re.split(r"^\.SS (.+)$", plain(name).split(".SH EXIT")[0].split(".SH EXAMPLE")[0], flags=re.MULTILINE)
    return dict(zip(found[1::2], found[2::2], strict=True))


def terms(text: str) -> list[tuple[str, str]]:
    """What a list of a page explains, each with what stands behind it in brackets."""
    return re.findall(r'^\.T[PQ]\n\.B[RI]? "?([^\s"]+)(?: " \(([^)]*)\))?', text, re.MULTILINE)


def commands(parser: argparse.ArgumentParser, name: str = "") -> Iterator[tuple[str, argparse.ArgumentParser]]:
    below = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    for action in below:
        for word, child in action.choices.items():
            yield from commands(child, f"{name} {word}".strip())
    if not below:
        yield name, parser


def options(parser: argparse.ArgumentParser) -> set[str]:
    known = [action for action in parser._actions if action.help != argparse.SUPPRESS and action.dest != "help"]
    return {word for action in known for word in action.option_strings if word.startswith("--")}


def short_options(parser: argparse.ArgumentParser) -> set[str]:
    known = [action for action in parser._actions if action.dest != "help"]
    return {word for action in known for word in action.option_strings if not word.startswith("--")}


COMMANDS = dict(commands(build_parser()))


def test_each_command_has_its_section_and_no_section_is_of_another() -> None:
    assert list(sections("berth.1")) == list(COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_the_options_of_a_command_are_those_of_its_section(name: str) -> None:
    text = sections("berth.1").get(name, "")
    explained = {word for line in re.findall(r"^\.TP\n(.*)$", text, re.MULTILINE) for word in OPTION.findall(line)}

    assert explained == options(COMMANDS[name])
    assert set(OPTION.findall(text)) == explained
    terms_of = re.findall(r"^\.TP\n(.*)$", text, re.MULTILINE)
    assert {word for line in terms_of for word in SHORT.findall(line)} == short_options(COMMANDS[name])


def help_of(program: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> set[str]:
    monkeypatch.setattr(sys, "argv", ["program", "--help"])
    with pytest.raises(SystemExit):
        program()
    return set(OPTION.findall(capsys.readouterr().out)) - {"--help"}


@pytest.mark.parametrize(("page", "program"), [("berthd.8", berthd.main), ("berth-guard.8", guard.main)])
def test_the_options_of_a_daemon_are_those_of_its_page(
    page: str, program: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    explained = [word for word, _ in terms(plain(page)) if word.startswith("--")]

    assert set(explained) == set(OPTION.findall(plain(page))) == help_of(program, capsys, monkeypatch)
    assert len(explained) == len(set(explained))


def test_the_options_of_prolog_and_epilog_are_those_of_their_page() -> None:
    assert set(OPTION.findall(plain("berth-prolog.8"))) == programs._WORDS.keys()


@pytest.mark.parametrize("program", [programs.prolog, programs.epilog])
def test_prolog_and_epilog_tell_who_calls_them_and_their_options(
    program: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["program", "--help"])

    assert program() == 0
    told = capsys.readouterr().out
    assert "slurmd runs it as root" in told
    assert set(OPTION.findall(told)) == programs._WORDS.keys()
    assert max(map(len, told.splitlines())) <= 80


def test_each_program_has_a_page_and_each_page_is_installed() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    named = {
        name.strip() for page in PAGES for name in plain(page.name).split(".SH NAME\n")[1].split(" - ")[0].split(",")
    }
    wheel = project["tool"]["hatch"]["build"]["targets"]["wheel"]
    installed = wheel["shared-data"]
    programs = {name.removesuffix("-python") for name in project["project"]["scripts"]}

    assert set(wheel["shared-scripts"].values()) == {"berth-prolog", "berth-epilog"} < programs
    assert named == {*programs, "berth-notice", "berth.conf"}
    assert installed == {f"docs/man/{page.name}": f"share/man/man{page.suffix[1:]}/{page.name}" for page in PAGES}


@pytest.mark.parametrize("page", PAGES, ids=[page.name for page in PAGES])
def test_a_page_is_written_without_a_mistake(page: Path) -> None:
    command = ["groff", "-man", "-ww", "-z", "-Tutf8"] if shutil.which("groff") else ["mandoc", "-Tlint", "-Wwarning"]
    if not shutil.which(command[0]):
        pytest.skip("neither groff nor mandoc is here")
    done = subprocess.run([*command, str(page)], capture_output=True, text=True, check=False)

    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
