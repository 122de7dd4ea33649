# SPDX-License-Identifier: Apache-2.0
"""Commands of the module-and-verb interface, MPS v3."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from tests.fakes.mps import node
from tests.fakes.mps.service import Limits, Server

if TYPE_CHECKING:
    from tests.fakes.mps.daemon import Daemon

_NAME = re.compile(r"[a-z0-9_]{1,64}")


class _Refused(Exception):
    """A command that fails; the text is what it prints."""


def run(daemon: Daemon, words: list[str]) -> tuple[str, int]:
    """Text that the command prints, and its exit status."""
    positional = [word for word in words if not word.startswith("--")]
    options = dict(word[2:].partition("=")[::2] for word in words if word.startswith("--"))
    function = _COMMANDS.get((positional[0], positional[1]) if len(positional) > 1 else ("", ""))
    if function is None:
        return f"Unknown command: {' '.join(words)}\n", 1
    try:
        return function(daemon, positional[2:], options), 0
    except _Refused as refused:
        return f"{refused}\n", 1
    except (IndexError, KeyError, ValueError):
        return "Invalid arguments\n", 1


def _server(daemon: Daemon, name: str) -> Server:
    server = daemon.service.servers.get(name)
    if server is None:
        raise _Refused(f"Server '{name}' not found")
    return server


def _status(server: Server) -> str:
    return {"ACTIVE": "Ready", "INITIALIZING": "Initializing", "FAULT": "Fault"}[server.status]


def _server_create(daemon: Daemon, words: list[str], options: dict[str, str]) -> str:
    name = words[0]
    if not _NAME.fullmatch(name) or name in daemon.service.servers:
        raise _Refused(f"Cannot create server '{name}'")
    uid = int(options.get("uid", 0))
    if daemon.service.multi_user and uid:
        raise _Refused("In multiuser mode only --uid=0 is allowed")
    uuids = [word for word in options.get("allowed-devices", "").split(",") if word]
    known = {gpu.uuid for gpu in daemon.service.gpus}
    # A device that is not there: the server is "created", and dies.
    daemon.start_server(name, uid, Limits(), [uuid for uuid in uuids if uuid in known] or sorted(known))
    daemon.listen_namespace(name, "")
    daemon.listen_namespace(name, "default")
    if set(uuids) - known:
        daemon.forget_server(_server(daemon, name))
    return ""


def _server_delete(daemon: Daemon, words: list[str], options: dict[str, str]) -> str:
    server = _server(daemon, words[0])
    if server.clients and "force" not in options:
        raise _Refused(f"Server '{words[0]}' has active clients")
    for client in list(server.clients):
        daemon.terminate(client)
    daemon.forget_server(server)
    return ""


def _row(daemon: Daemon, server: Server) -> list[str]:
    where = f"{daemon.pipe}/{server.name}"
    return [server.name, str(server.uid), str(server.pid), _status(server), where, ";".join(server.uuids), "-"]


_FIELDS = ("name", "uid", "pid", "status", "pipe-directory", "allowed-devices", "context-ids")


def _server_list(daemon: Daemon, _: list[str], options: dict[str, str]) -> str:
    rows = [_row(daemon, server) for server in daemon.service.servers.values()]
    return _table(options, _FIELDS, rows)


def _table(options: dict[str, str], titles: tuple[str, ...], rows: list[list[str]]) -> str:
    style = options.get("format", "table")
    separator = "," if style.startswith("csv") else " "
    head = [] if "noheader" in style else [[title.upper() for title in titles]]
    return "".join(separator.join(row) + "\n" for row in head + rows)


def _server_get(daemon: Daemon, words: list[str], _: dict[str, str]) -> str:
    return _row(daemon, _server(daemon, words[0]))[_FIELDS.index(words[1])] + "\n"


def _set_limits(limits: Limits, server: Server, options: dict[str, str]) -> None:
    if "active-thread-percentage" in options:
        limits.percent = float(options["active-thread-percentage"])
    if "pinned-memory-limit" in options:
        mib = node.mebibytes(options["pinned-memory-limit"])
        if mib is None:
            raise ValueError
        limits.memory = dict.fromkeys(server.uuids, mib)
    if "client-priority" in options:
        limits.priority = int(options["client-priority"])


def _server_set(daemon: Daemon, words: list[str], options: dict[str, str]) -> str:
    server = _server(daemon, words[0])
    _set_limits(server.limits, server, options)
    return ""


def _namespace_create(daemon: Daemon, words: list[str], options: dict[str, str]) -> str:
    server = _server(daemon, options["server"])
    if not _NAME.fullmatch(words[0]) or words[0] in server.namespaces:
        raise _Refused(f"Cannot create namespace '{words[0]}'")
    server.namespaces[words[0]] = Limits()
    daemon.listen_namespace(server.name, words[0])
    return ""


def _namespace_set(daemon: Daemon, words: list[str], options: dict[str, str]) -> str:
    server = _server(daemon, options["server"])
    _set_limits(server.namespaces[words[0]], server, options)
    return ""


def _namespace_get(daemon: Daemon, words: list[str], _: dict[str, str]) -> str:
    server = _server(daemon, words[1])
    limits = server.namespaces[words[0]]
    if words[2] == "active-thread-percentage":
        return f"{daemon.settings.get('lie_percent', limits.percent):g}\n"
    if words[2] == "pinned-memory-limit":
        mib = daemon.settings.get("lie_memory", next(iter(limits.memory.values()), None))
        return "-\n" if mib is None else f"{mib // 1024}G\n" if mib % 1024 == 0 else f"{mib}M\n"
    if words[2] == "pipe-directory":
        return f"{daemon.pipe}/{server.name}/{words[0]}\n"
    raise KeyError(words[2])


def _namespace_delete(daemon: Daemon, words: list[str], options: dict[str, str]) -> str:
    server = _server(daemon, options["server"])
    clients = [client for client in server.clients if client.namespace == words[0]]
    if clients and "force" not in options:
        raise _Refused(f"Namespace '{words[0]}' has active clients")
    for client in clients:
        daemon.terminate(client)
    del server.namespaces[words[0]]
    return ""


def _namespace_list(daemon: Daemon, _: list[str], options: dict[str, str]) -> str:
    server = _server(daemon, options["server"])
    rows = [[name, server.name, _status(server)] for name in server.namespaces]
    return _table(options, ("name", "server", "server-status"), rows)


def _client_list(daemon: Daemon, _: list[str], options: dict[str, str]) -> str:
    rows = []
    for client in daemon.service.clients():
        if client.server and options.get("server", client.server.name) == client.server.name:
            command = client.wants.get("command", "")
            rows.append([str(client.pid), client.server.name, "0", client.namespace, command])
    return _table(options, ("pid", "server", "device", "namespace", "cmd"), rows)


def _client_terminate(daemon: Daemon, words: list[str], _: dict[str, str]) -> str:
    found = [client for client in daemon.service.clients() if str(client.pid) == words[0]]
    for client in found:
        daemon.terminate(client)
    if not found:
        raise _Refused(f"Client {words[0]} not found")
    return ""


_COMMANDS = {
    ("server", "create"): _server_create,
    ("server", "delete"): _server_delete,
    ("server", "list"): _server_list,
    ("server", "get"): _server_get,
    ("server", "set"): _server_set,
    ("namespace", "create"): _namespace_create,
    ("namespace", "set"): _namespace_set,
    ("namespace", "get"): _namespace_get,
    ("namespace", "delete"): _namespace_delete,
    ("namespace", "list"): _namespace_list,
    ("client", "list"): _client_list,
    ("client", "terminate"): _client_terminate,
}
