# SPDX-License-Identifier: Apache-2.0
"""Commands of the interactive interface, MPS v2."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.fakes.mps import node
from tests.fakes.mps.service import INITIALIZING, Client, Server

if TYPE_CHECKING:
    from tests.fakes.mps.daemon import Daemon

_SETTINGS = {"set_default_active_thread_percentage", "set_default_device_pinned_mem_limit"}
_OF_A_SERVER = {"set_active_thread_percentage", "set_device_pinned_mem_limit"}
_STATIC = {"sm_partition", "lspart", "device_query"}
_NEWER = {"r580", "r595"}
_NOT_STATIC = "Static partitioning mode is not enabled\n"


def run(daemon: Daemon, words: list[str], uid: int = 0) -> tuple[str, int]:
    """Text that the command prints, and its exit status: the real one's is 0 whatever happened."""
    name, arguments = words[0], words[1:]
    too_old = name == "get_server_status" and _driver(daemon) == "r535"
    if too_old or (name in _STATIC and not daemon.service.static):
        return _NOT_STATIC if _driver(daemon) == "r595" else unknown_command(name), 0
    refused = _refusal(daemon, name, arguments, uid)
    if refused:
        return refused, 0
    if name == "sm_partition":
        name, arguments = f"sm_partition_{arguments[0] if arguments else ''}", arguments[1:]
    function = _COMMANDS.get(name)
    if function is None:
        return unknown_command(words[0]), 0
    try:
        return function(daemon, arguments), 0
    except (IndexError, ValueError):
        return "Invalid argument\n", 0


def unknown_command(name: str) -> str:
    """What every driver says of a command that it does not know."""
    return f'Unknown command "{name}"\n'


def _driver(daemon: Daemon) -> str:
    return str(daemon.settings.get("driver", "v2"))


def _refusal(daemon: Daemon, name: str, words: list[str], uid: int) -> str:
    """Why this user may not, as the drivers say it; empty where he may."""
    if uid == 0:
        return ""
    server = _server(daemon, words[0]) if words else None
    what = _what_is_refused(name, words, server, uid)
    if not what:
        return ""
    who = f"Insufficient privileges for UID {uid}"
    driver = _driver(daemon)
    if driver == "r535":
        # It lets everybody do the rest.
        return f"{who}\n" if what in {"start server for another user", "shutdown another user's server"} else ""
    said = f"Only the root user may {what}"
    if what == "settings" or driver in _NEWER:
        started = "who started" if driver in _NEWER else "started"
        said = f"Control deamon settings can only be modified by the user {started} it or by the root user"
    return f"{who}. {said}.\n" + ("800\n" if name == "terminate_client" else "")


def _what_is_refused(name: str, words: list[str], server: Server | None, uid: int) -> str:
    """What an ordinary user may not do with a daemon of root; empty for all else."""
    if name == "start_server" and words[1:2] != [str(uid)]:
        return "start server for another user"
    if name in _SETTINGS:
        return "settings"
    if server is None or server.uid == uid:
        return ""
    return {
        **dict.fromkeys(_OF_A_SERVER, "change settings for another user's server"),
        "terminate_client": "terminate clients on another user's server",
        "shutdown_server": "shutdown another user's server",
    }.get(name, "")


def _no_server(pid: str) -> str:
    return f"Server {pid} not found\n"


def _server(daemon: Daemon, pid: str) -> Server | None:
    return next((one for one in daemon.service.servers.values() if str(one.pid) == pid), None)


def _server_list(daemon: Daemon, _: list[str]) -> str:
    return "".join(f"{server.pid}\n" for server in daemon.service.servers.values())


def _server_status(daemon: Daemon, words: list[str]) -> str:
    server = _server(daemon, words[0])
    return f"{server.status}\n" if server else _no_server(words[0])


def _start_server(daemon: Daemon, words: list[str]) -> str:
    service = daemon.service
    uid = 0 if service.multi_user else int(words[words.index("-uid") + 1])
    running = next(iter(service.servers.values()), None)
    if running and running.uid == uid and _driver(daemon) == "r595":
        return f"Server with UID {uid} already exists\n"
    if running:
        return "" if running.uid == uid else "A server of another user is running\n"
    limits = service.defaults.copy()
    limits.memory = {place.removeprefix(_BY_UUID): mib for place, mib in limits.memory.items()}
    daemon.start_server("v2", uid, limits, [gpu.uuid for gpu in service.gpus])
    return ""


def _shutdown_server(daemon: Daemon, words: list[str]) -> str:
    server = _server(daemon, words[0])
    if server is None:
        return _no_server(words[0])
    if server.clients and "-f" not in words:
        return "The server has clients\n"
    for client in list(server.clients):
        daemon.terminate(client)
    daemon.forget_server(server)
    return ""


def _client_list(daemon: Daemon, words: list[str]) -> str:
    server = _server(daemon, words[0])
    return "".join(f"{client.pid}\n" for client in server.clients) if server else _no_server(words[0])


def _device_clients(daemon: Daemon, words: list[str]) -> str:
    lines = []
    for server in daemon.service.servers.values():
        if not words or words[0] == str(server.pid):
            lines += [f"{gpu.uuid} {client.pid}\n" for client in server.clients for gpu in client.gpus]
    return "".join(lines)


def _ps(daemon: Daemon, words: list[str]) -> str:
    if not daemon.service.clients():
        return "Server not found\n"
    lines = ["PID       ID  SERVER    DEVICE             NAMESPACE COMMAND\n"]
    for number, client in enumerate(daemon.service.clients(), 1):
        if client.server and (not words or words[-1] == str(client.pid)):
            device = client.gpus[0].uuid[:12] if client.gpus else "-"
            command = client.wants.get("command", "")
            lines.append(f"{client.pid:<9} {number:<3} {client.server.pid:<9} {device:<18} 4026531836 {command}\n")
    return "".join(lines)


def _shown_percent(daemon: Daemon, percent: float) -> str:
    return f"{float(daemon.settings.get('lie_percent', percent))}\n"


def _set_default_percent(daemon: Daemon, words: list[str]) -> str:
    daemon.service.defaults.percent = _percent(words[0], daemon.service.defaults.percent)
    return _shown_percent(daemon, daemon.service.defaults.percent)


def _default_percent(daemon: Daemon, _: list[str]) -> str:
    return _shown_percent(daemon, daemon.service.defaults.percent)


def _set_percent(daemon: Daemon, words: list[str]) -> str:
    server = _server(daemon, words[0])
    if server is None:
        return _no_server(words[0])
    if server.status == INITIALIZING:
        return ""
    server.limits.percent = _percent(words[1], server.limits.percent)
    return _shown_percent(daemon, server.limits.percent)


def _get_percent(daemon: Daemon, words: list[str]) -> str:
    server = _server(daemon, words[0])
    if server is None:
        return _no_server(words[0])
    return "" if server.status == INITIALIZING else _shown_percent(daemon, server.limits.percent)


def _percent(word: str, before: float) -> float:
    """The new value; what cannot be one changes nothing, and nothing is said of it."""
    try:
        value = float(word)
    except ValueError:
        return before
    return value if 0 < value <= 100 else before


def _memory(word: str) -> int:
    mib = node.mebibytes(word) if word[-1:] in "GM" else None
    if mib is None:
        raise ValueError(word)
    return mib


def _shown_memory(daemon: Daemon, memory: dict[str, int], device: str, prefix: str = "") -> str:
    mib = daemon.settings.get("lie_memory", memory.get(_place(daemon, device, prefix)))
    if mib is None:
        return ""
    # As driver 595 prints it: whole gibibytes, rounded down.
    return f"{int(mib) // 1024}G\n" if int(mib) >= 1024 else f"{mib}M\n"


def _limit(daemon: Daemon, memory: dict[str, int], device: str, value: str, prefix: str = "") -> str:
    # A device that is not there is not refused, and a UUID means nothing before driver 580.
    if device.isdigit() or _driver(daemon) in _NEWER:
        memory[_place(daemon, device, prefix)] = _memory(value)
    return ""


def _place(daemon: Daemon, device: str, prefix: str = "") -> str:
    """Under which name a device's limit is kept."""
    gpu = daemon.service.device(device) if device.isdigit() or _driver(daemon) in _NEWER else None
    if gpu is None:
        return f"#{device}"
    return gpu.uuid if device.isdigit() else prefix + gpu.uuid


_BY_UUID = "@"
"""A default that was set by UUID is not shown by ordinal."""


def _set_default_memory(daemon: Daemon, words: list[str]) -> str:
    if len(words) == 1:
        # Without a value it takes the limit away, before driver 580.
        if _driver(daemon) not in _NEWER:
            daemon.service.defaults.memory.pop(_place(daemon, words[0]), None)
        return ""
    return _limit(daemon, daemon.service.defaults.memory, words[0], words[1], _BY_UUID)


def _default_memory(daemon: Daemon, words: list[str]) -> str:
    return _shown_memory(daemon, daemon.service.defaults.memory, words[0], _BY_UUID)


def _set_memory(daemon: Daemon, words: list[str]) -> str:
    server = _server(daemon, words[0])
    return _limit(daemon, server.limits.memory, words[1], words[2]) if server else _no_server(words[0])


def _get_memory(daemon: Daemon, words: list[str]) -> str:
    server = _server(daemon, words[0])
    return _shown_memory(daemon, server.limits.memory, words[1]) if server else _no_server(words[0])


def _set_priority(daemon: Daemon, words: list[str]) -> str:
    daemon.service.defaults.priority = int(words[0])
    return ""


def _terminate(daemon: Daemon, words: list[str]) -> str:
    server = _server(daemon, words[0])
    found: list[Client] = [one for one in server.clients if str(one.pid) == words[1]] if server else []
    for client in found:
        daemon.terminate(client)
    if server is None:
        return f"{_no_server(words[0])}Server {words[0]} not found!\n1\n"
    return "0\n" if found else f"Invalid process {words[1]}!\n1\n"


def _devices(daemon: Daemon, _: list[str]) -> str:
    gpus = daemon.service.gpus
    return "".join(f"{i} {gpu.uuid} {gpu.name}\n" for i, gpu in enumerate(gpus))


def _add_partition(daemon: Daemon, words: list[str]) -> str:
    service = daemon.service
    if len(words) < 2:
        usage = "Usage: sm_partition add <device UUID> <number of chunks>"
        return f"Invalid command format: {' '.join(['add', *words])}\n\n{usage}\n"
    if int(words[1]) < 1:
        return f"Invalid number of chunks: {words[1]}\n"
    gpu = service.device(words[0])
    partition = service.add_partition(gpu, int(words[1])) if gpu and service.static else None
    if partition is None:
        return "Failed to create partition\n"
    return f"Partition {partition.uuid}/{partition.id} created\n"


def _remove_partition(daemon: Daemon, words: list[str]) -> str:
    service = daemon.service
    uuid, _, identity = "/".join(words).partition("/")
    for partition in service.partitions:
        if partition.uuid == uuid and partition.id == identity:
            if service.partition_in_use(partition):
                return f"Partition {partition.id} in use. Terminate all clients before removing.\n"
            service.partitions.remove(partition)
            return f"Partition {partition.id} removed\n"
    return "Failed to remove partition\n"


def _partitions(daemon: Daemon, _: list[str]) -> str:
    service = daemon.service
    lines = [_row("GPU", "Partition", "free", "used", "free", "used", "clients"), _row("", "", *_UNITS, "")]
    for gpu in service.gpus:
        used, every = service.chunks(gpu)
        # So much of the UUID as no other GPU's begins with; all are alike before the first hyphen.
        name = gpu.uuid[:6]
        lines.append(_row(name, "", every - used, used, gpu.sms - used * gpu.chunk, used * gpu.chunk, None))
        lines += [
            _row(name, one.id, "", one.chunks, "", one.chunks * gpu.chunk, _YES[service.partition_in_use(one)])
            for one in reversed(service.partitions)
            if one.uuid == gpu.uuid
        ]
    return "".join(lines)


_UNITS = ("chunks", "chunks", "SM", "SM")
_YES = {True: "Yes", False: "No"}


def _row(*cells: object) -> str:
    widths = (20, 36, 8, 8, 6, 6, 6)
    return " ".join(f"{cell!s:<{width}}" for cell, width in zip(cells, widths, strict=False) if cell is not None) + "\n"


_COMMANDS = {
    "get_server_list": _server_list,
    "get_server_status": _server_status,
    "start_server": _start_server,
    "shutdown_server": _shutdown_server,
    "get_client_list": _client_list,
    "get_device_client_list": _device_clients,
    "ps": _ps,
    "set_default_active_thread_percentage": _set_default_percent,
    "get_default_active_thread_percentage": _default_percent,
    "set_active_thread_percentage": _set_percent,
    "get_active_thread_percentage": _get_percent,
    "set_default_device_pinned_mem_limit": _set_default_memory,
    "get_default_device_pinned_mem_limit": _default_memory,
    "set_device_pinned_mem_limit": _set_memory,
    "get_device_pinned_mem_limit": _get_memory,
    "set_default_client_priority": _set_priority,
    "terminate_client": _terminate,
    "device_query": _devices,
    "sm_partition_add": _add_partition,
    "sm_partition_rm": _remove_partition,
    "lspart": _partitions,
}
