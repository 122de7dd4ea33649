"""Reads the tables `[guard]` and `[notice]` of berth.conf for the guard."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from prolog_epilog.errors import NodeConfigError
from prolog_epilog.guard.decide.choice import LAWS
from prolog_epilog.guard.settings import GuardSettings, settings_from

__all__ = ["NoticeOptions", "load"]

_MOST_HOSTS = 4


@dataclass(frozen=True, slots=True)
class NoticeOptions:
    """The addresses of berthd."""

    hosts: tuple[str, ...] = ()
    port: int = 6826
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
    guard, notice = (_table(path, tables, name) for name in ("guard", "notice"))
    try:
        settings = settings_from(guard)
    except NodeConfigError as problem:
        raise NodeConfigError(f"{path}: {problem}") from None
    if settings.law not in LAWS:
        raise NodeConfigError(f"{path}: [guard] law is one of {', '.join(LAWS)}, not {settings.law!r}")
    if settings.metrics and not settings.metrics.startswith("/"):
        raise NodeConfigError(f"{path}: [guard] metrics is a path from / on, not {settings.metrics!r}")
    return settings, _notice(path, notice)


def _table(path: str, tables: Mapping[str, object], name: str) -> Mapping[str, object]:
    table = tables.get(name, {})
    if not isinstance(table, dict):
        raise NodeConfigError(f"{path}: {name} is a table, [{name}]")
    return table


def _notice(path: str, table: Mapping[str, object]) -> NoticeOptions:
    """Reads [notice]; its other keys are berth-notice's."""
    defaults = NoticeOptions()
    hosts, port = table.get("hosts", ""), table.get("port", defaults.port)
    socket = table.get("munge_socket", "")
    if not isinstance(hosts, str) or not isinstance(socket, str):
        raise NodeConfigError(f"{path}: [notice] hosts and munge_socket are texts in quotes")
    if not isinstance(port, int) or isinstance(port, bool) or not 0 < port < 1 << 16:
        raise NodeConfigError(f"{path}: [notice] port is a number from 1 to 65535, not {port!r}")
    return NoticeOptions(tuple(hosts.replace(",", " ").split()[:_MOST_HOSTS]), port, socket)
