# SPDX-License-Identifier: Apache-2.0
"""Writes output for people and for programs."""

import argparse
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from policy.formats.errors import BerthError
from policy.formats.messages import one_line, tagged

SCHEMA_VERSION = 1


def print_json(values: Mapping[str, Any]) -> None:
    """Prints one JSON object, with the version of its shape."""
    sys.stdout.write(as_json(values))


def as_json(values: Mapping[str, Any]) -> str:
    """Returns one JSON object, with the version of its shape."""
    return json.dumps({"schema_version": SCHEMA_VERSION, **values}, indent=2) + "\n"


def tell(options: argparse.Namespace, values: Mapping[str, Any], text: str) -> None:
    """Prints a command's result: one JSON object with --json, else a text."""
    sys.stdout.write(as_json(values) if options.json else f"{text}\n")


Check: TypeAlias = tuple[str, bool, str]
"""The result of a check: its name, True if all is well, and a sentence."""


def tell_checks(options: argparse.Namespace, checks: Iterable[Check], key: str = "checks", **more: Any) -> int:
    """Prints each check when it is done, or all in one JSON object; returns the exit status, 1 if one failed."""
    found = []
    for name, ok, text in checks:
        found.append({"name": name, "ok": ok, "text": text})
        if not options.json:
            sys.stdout.write(f"{'ok  ' if ok else 'FAIL'}  {name}: {text}\n")
    if options.json:
        print_json({key: found, **more})
    return 0 if all(one["ok"] for one in found) else 1


TOPOLOGY = 709
"""The message number of the topology side, whose errors have none of their own."""


def number_of(problem: object) -> int:
    """Returns the message number of an error."""
    return problem.number if isinstance(problem, BerthError) else TOPOLOGY


def say(text: str, number: int) -> None:
    """Prints a line on standard error, with the id of its message."""
    sys.stderr.write(f"{tagged(text, number)}\n")


def print_table(rows: list[tuple[str, str]]) -> None:
    """Prints names and values in two columns."""
    width = max((len(name) for name, _ in rows), default=0)
    for name, value in rows:
        sys.stdout.write(f"{name:<{width}}  {one_line(value)}\n")


def some(names: Sequence[str]) -> str:
    """Names the first of many nodes.

    >>> some(["n1", "n2"]), some([f"n{number}" for number in range(7)])
    ('n1, n2', 'n0, n1, n2, n3, n4 and 2 more')
    """
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")


def installed() -> str:
    """Returns the release of the Berth that runs this command."""
    # It imports the modules of mail, which takes some 20 ms: only --version has to wait for that.
    from importlib.metadata import PackageNotFoundError, version  # noqa: PLC0415

    try:
        return version("slurm-berth")
    except PackageNotFoundError:
        return "uninstalled"


def built() -> str:
    """Returns packagers' line on Berth's revision and the releases it was built for; empty in a checkout."""
    try:
        return (Path(__file__).parents[1] / "built.txt").read_text(encoding="utf-8").strip()
    except OSError:
        return ""
