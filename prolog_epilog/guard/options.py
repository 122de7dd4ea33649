# SPDX-License-Identifier: Apache-2.0
"""Reads the tables `[guard]` and `[notice]` of berth.conf for the guard."""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from prolog_epilog.errors import NodeConfigError
from prolog_epilog.settings.config import filled
from prolog_epilog.settings.guard_keys import GuardSettings, NoticeTable

_MOST_HOSTS = 4


@dataclass(frozen=True, slots=True)
class NoticeOptions:
    """The addresses of berthd."""

    hosts: tuple[str, ...] = ()
    port: int = NoticeTable().port
    munge_socket: str = ""


def load(path: str) -> tuple[GuardSettings, NoticeOptions]:
    """Reads berth.conf; without one, returns the defaults."""
    try:
        tables = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return GuardSettings(), NoticeOptions()
    except OSError as problem:
        raise NodeConfigError(f"{path}: {problem.strerror}; let root read it") from None
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as problem:
        raise NodeConfigError(f"{path}: {problem}") from None
    try:
        # The other keys of [notice] are berth-notice's.
        notice = {key: value for key, value in _table(tables, "notice").items() if key in NoticeTable._fields}
        hosts, port, socket = filled(NoticeTable(), notice, "notice")
        settings = filled(GuardSettings(), _table(tables, "guard"), "guard")
    except NodeConfigError as problem:
        raise NodeConfigError(f"{path}: {problem}") from None
    return settings, NoticeOptions(tuple(hosts.replace(",", " ").split()[:_MOST_HOSTS]), port, socket)


def _table(tables: Mapping[str, object], name: str) -> Mapping[str, object]:
    table = tables.get(name, {})
    if not isinstance(table, dict):
        raise NodeConfigError(f"{name} is a table, [{name}]")
    return table
