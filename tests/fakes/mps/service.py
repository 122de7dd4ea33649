# SPDX-License-Identifier: Apache-2.0
"""What the MPS daemon knows and decides: servers, clients, limits, partitions. No sockets here."""

from __future__ import annotations

import base64
from typing import Any

from tests.fakes.mps import node

MAX_CLIENTS = 48
INITIALIZING, ACTIVE, FAULT = "INITIALIZING", "ACTIVE", "FAULT"

# CUDA's own numbers.
OUT_OF_MEMORY = 2
ILLEGAL_ADDRESS = 700
NOT_PERMITTED = 800
CONNECTION_FAILED = 805
RPC_FAILURE = 806
SERVER_NOT_READY = 807
MAX_CLIENTS_REACHED = 808
CLIENT_TERMINATED = 810
INVALID_RESOURCE_CONFIGURATION = 915


class Limits:
    """A percentage of the multiprocessors, memory for each GPU in MiB by UUID, a priority."""

    def __init__(self, percent: float = 100.0, memory: dict[str, int] | None = None) -> None:
        self.percent = percent
        self.memory = dict(memory or {})
        self.priority = 0

    def copy(self) -> Limits:
        """Limits of their own."""
        return Limits(self.percent, self.memory)


class Client:
    """A CUDA process that wants to be served, or is."""

    def __init__(self, connection: Any, hello: dict[str, Any], namespace: str) -> None:
        self.connection = connection
        self.pid = int(hello["pid"])
        self.uid = int(hello["uid"])
        self.namespace = namespace
        self.wants = hello
        self.server: Server | None = None
        self.gpus: list[node.Gpu] = []
        self.limits: dict[str, int] = {}
        self.used: dict[str, int] = {}


class Server:
    """An MPS server process and its clients."""

    def __init__(self, name: str, uid: int, limits: Limits, uuids: list[str]) -> None:
        self.name = name
        self.uid = uid
        self.pid = 0
        self.status = INITIALIZING
        self.namespaces = {"default": limits}
        self.uuids = uuids
        self.clients: list[Client] = []
        self.process: Any = None

    @property
    def limits(self) -> Limits:
        """Those of whoever names no namespace."""
        return self.namespaces["default"]


class Partition:
    """Some chunks of a GPU's multiprocessors for nobody else."""

    def __init__(self, uuid: str, chunks: int, number: int, name: str) -> None:
        self.uuid = uuid
        self.chunks = chunks
        self.name = name
        self.id = base64.b64encode(bytes([42, 159, number]) + bytes(24)).decode()


class Service:
    """All that one daemon holds."""

    def __init__(self, machine: node.Machine, gpus: list[node.Gpu], options: dict[str, Any]) -> None:
        self.machine = machine
        self.gpus = gpus
        self.protocol: int = options["protocol"]
        self.multi_user: bool = options["multi_user"]
        self.static: bool = options["static"]
        self.defaults = Limits()
        self.servers: dict[str, Server] = {}
        self.pending: list[Client] = []
        self.partitions: list[Partition] = []
        self._made = 0

    # Devices.

    def device(self, name: str) -> node.Gpu | None:
        """A GPU by ordinal among the daemon's own, or by UUID."""
        if name.isdigit():
            return self.gpus[int(name)] if int(name) < len(self.gpus) else None
        return next((gpu for gpu in self.gpus if name and gpu.uuid.startswith(name)), None)

    def chunks(self, gpu: node.Gpu) -> tuple[int, int]:
        """Chunks in use and chunks in all."""
        used = sum(partition.chunks for partition in self.partitions if partition.uuid == gpu.uuid)
        return used, gpu.sms // gpu.chunk

    def add_partition(self, gpu: node.Gpu, chunks: int, name: str = "") -> Partition | None:
        """A new partition, where so many chunks are free."""
        used, every = self.chunks(gpu)
        if chunks < 1 or used + chunks > every:
            return None
        self._made += 1
        self.partitions.append(Partition(gpu.uuid, chunks, self._made, name))
        return self.partitions[-1]

    def partition_in_use(self, partition: Partition) -> bool:
        """Whether a client runs in it."""
        word = f"{partition.uuid}/{partition.id}"
        return any(client.wants.get("partition") == word for client in self.clients())

    # Clients.

    def clients(self) -> list[Client]:
        """All that are served."""
        return [client for server in self.servers.values() for client in server.clients]

    def refusal(self, client: Client, server: Server) -> int:
        """The error that this client gets from this server; 0: none."""
        if server.status == FAULT:
            return SERVER_NOT_READY
        if len(server.clients) >= MAX_CLIENTS:
            return MAX_CLIENTS_REACHED
        if self.protocol == 3 and not self.multi_user and client.uid not in {server.uid, 0}:
            return NOT_PERMITTED
        word = client.wants.get("partition") or ""
        if self.static and not any(word == f"{one.uuid}/{one.id}" for one in self.partitions):
            return INVALID_RESOURCE_CONFIGURATION
        return 0

    def admit(self, client: Client, server: Server) -> dict[str, Any]:
        """Take the client in; the reply tells it what it got."""
        limits = server.namespaces[client.namespace]
        wants = client.wants
        seen = Service.visible(self, server, wants.get("visible"))
        client.server, client.gpus = server, seen
        percent, env_percent = limits.percent, wants.get("percent")
        if env_percent and not (self.protocol == 3 and limits.percent < 100):
            percent = min(percent, float(env_percent))
        client.limits = self._memory(client, limits, wants.get("memory") or "")
        client.used = {gpu.uuid: 0 for gpu in seen}
        server.clients.append(client)
        sms = [self._multiprocessors(gpu, percent, wants.get("partition") or "") for gpu in seen]
        return {
            "server": server.pid,
            "percent": percent,
            "sms": sms,
            "uuids": [gpu.uuid for gpu in seen],
            "memory": [client.limits.get(gpu.uuid) for gpu in seen],
        }

    def visible(self, server: Server, wanted: str | None) -> list[node.Gpu]:
        """Devices of the server that the client sees; ordinals are those of the server's own list."""
        gpus = [gpu for gpu in self.gpus if gpu.uuid in server.uuids]
        if wanted is None:
            return gpus
        found = []
        for word in wanted.split(","):
            one = [
                gpu
                for i, gpu in enumerate(gpus)
                if str(i) == word or (word[:4] == "GPU-" and gpu.uuid[: len(word)] == word)
            ]
            if len(one) != 1:
                break
            found += one
        return found

    def _memory(self, client: Client, limits: Limits, text: str) -> dict[str, int]:
        """The lower of the server's limit and the client's own."""
        found = {gpu.uuid: limits.memory[gpu.uuid] for gpu in client.gpus if gpu.uuid in limits.memory}
        for word in text.split(","):
            name, _, value = word.partition("=")
            mib = node.mebibytes(value)
            if mib is None:
                continue
            here = client.gpus[int(name)] if name.isdigit() and int(name) < len(client.gpus) else None
            here = here or next((gpu for gpu in client.gpus if name and gpu.uuid.startswith(name)), None)
            if here is None:
                # As measured on driver 615: one GPU too many in the list, and the client has no limit at all.
                return {}
            found[here.uuid] = min(mib, found.get(here.uuid, mib))
        return found

    def _multiprocessors(self, gpu: node.Gpu, percent: float, partition: str) -> int:
        for one in self.partitions:
            if partition == f"{one.uuid}/{one.id}" and one.uuid == gpu.uuid:
                return one.chunks * gpu.chunk
        # Rounded down, to whole pairs.
        return max(2, int(gpu.sms * percent / 100) // 2 * 2)

    def allocate(self, client: Client, gpu: node.Gpu, mib: int) -> int:
        """Give memory, or say out of memory."""
        total = sum(process.memory for process in self.machine.running(gpu))
        limit = client.limits.get(gpu.uuid)
        if limit is not None and client.used[gpu.uuid] + mib > limit:
            return OUT_OF_MEMORY
        if total + mib > gpu.memory:
            return OUT_OF_MEMORY
        client.used[gpu.uuid] += mib
        return 0
