# SPDX-License-Identifier: Apache-2.0
"""The state of a shared GPU in /run/berth/gpus/UUID/state.json: the jobs that share it, and our processes for them.

A daemon serves a set of GPUs (one, or those of a multi-GPU job). The set's state stands in the file of its first UUID;
the files of the others only point there.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from prolog_epilog.errors import StateError
from prolog_epilog.node import files
from prolog_epilog.node.paths import Paths
from prolog_epilog.node.processes import Proven

FORMAT = "berth-mps/1"


@dataclass(frozen=True, slots=True)
class Tenant:
    """A job that shares GPUs: percentage of the multiprocessors, MiB of memory on each GPU (None: not asked for)."""

    job: int
    uid: int
    share: int
    mem_mib: int | None = None
    #: Empty for packed jobs; the shares of an owner and its guest are not added up: the guard holds the guest back.
    tier: str = ""
    #: The start of its run by Slurm, seconds since 1970; 0: not known. Another run of the same job has another.
    start: int = 0
    #: Processes that MPS had already named as the cause of a fault before this job came.
    known: tuple[int, ...] = ()
    #: MPS failed under it and was restarted for another job; the guard does not know yet.
    lost: bool = False
    #: CLOCK_MONOTONIC since which it shares these GPUs with no other job; 0: it does share.
    alone_since: float = 0.0

    def is_later_than(self, start: int) -> bool:
        """Tells whether this run of the job began later than `start`; false if Slurm does not say."""
        return 0 < start < self.start


@dataclass(frozen=True, slots=True)
class SetState:
    """The GPUs of one MPS daemon, its processes and its tenants."""

    boot: str
    uuids: tuple[str, ...]
    #: The compute mode of each GPU before Berth changed it.
    modes: tuple[int, ...]
    #: The method that holds shares: `ceiling` or `namespaces`.
    method: str
    multi_user: bool
    daemon: Proven | None = None
    servers: tuple[Proven, ...] = ()
    tenants: tuple[Tenant, ...] = ()
    #: True if a tenant can change the daemon's limits, as a trial showed.
    loose: bool = False

    @property
    def name(self) -> str:
        """Returns the name of the set's folder."""
        return set_name(self.uuids)

    def tenant(self, job: int) -> Tenant | None:
        """Returns this job's tenant; None if it has none."""
        return next((tenant for tenant in self.tenants if tenant.job == job), None)

    def with_tenant(self, tenant: Tenant) -> SetState:
        """Returns the state with this tenant, in place of what its job had before."""
        return replace(self, tenants=(*self.without(tenant.job).tenants, tenant))

    def without(self, job: int) -> SetState:
        """Returns the state without this job."""
        return replace(self, tenants=tuple(tenant for tenant in self.tenants if tenant.job != job))


def set_name(uuids: Iterable[str]) -> str:
    """Returns the UUID itself, or a short hash of several: the path of a socket must stay short."""
    ordered = sorted(set(uuids))
    if len(ordered) == 1:
        return ordered[0]
    return "set-" + hashlib.blake2b(",".join(ordered).encode(), digest_size=8).hexdigest()


def load(paths: Paths, uuid: str) -> SetState | None:
    """Returns the state of the set that this GPU is in; None: no job shares it."""
    content = _read(paths, uuid)
    if content is None:
        return None
    first = str(content.get("set", uuid))
    if first != uuid:
        content = _read(paths, first)
        # A crash happened between two files: the set was not there yet, or is not there any more.
        if content is None or uuid not in content.get("uuids", ()):
            return None
    try:
        return _decode(content)
    except (KeyError, TypeError, ValueError) as error:
        raise StateError(
            f"{paths.state(first)} cannot be read ({error}); when no job shares the GPU, remove it"
        ) from error


def store(paths: Paths, state: SetState) -> None:
    """Writes the state; the file that counts comes last."""
    first, *others = state.uuids
    for uuid in others:
        files.own_folder(paths.gpu(uuid), files.THROUGH)
        files.write(paths.state(uuid), json.dumps({"format": FORMAT, "set": first}) + "\n")
    files.own_folder(paths.gpu(first), files.THROUGH)
    files.write(paths.state(first), json.dumps(_encode(state)) + "\n")


def forget(paths: Paths, uuids: Iterable[str]) -> None:
    """Takes the set out of the books; the caller holds its locks."""
    for uuid in uuids:
        with contextlib.suppress(OSError):
            paths.state(uuid).unlink()


@contextmanager
def held(paths: Paths, uuids: Iterable[str], seconds: float) -> Iterator[None]:
    """Holds the locks of these GPUs; at the end removes the folders of those that no job shares."""
    wanted = sorted(set(uuids))
    with files.locked(paths, wanted, seconds):
        try:
            yield
        finally:
            for uuid in wanted:
                if not os.path.lexists(paths.state(uuid)):
                    files.remove_lock(paths, uuid)


def everything(paths: Paths) -> Iterator[SetState]:
    """Yields all sets of this node that can be read, each once: a damaged file of one GPU must not stop the others."""
    try:
        uuids = sorted(folder.name for folder in paths.gpus.iterdir())
    except FileNotFoundError:
        return
    for uuid in uuids:
        with contextlib.suppress(StateError):
            state = load(paths, uuid)
            if state and state.uuids[0] == uuid:
                yield state


def abandoned(paths: Paths) -> list[str]:
    """Returns GPUs with a folder and no state: a process works on them now, or was killed before it did anything."""
    try:
        return sorted(folder.name for folder in paths.gpus.iterdir() if not os.path.lexists(folder / "state.json"))
    except FileNotFoundError:
        return []


def _read(paths: Paths, uuid: str) -> dict[str, Any] | None:
    text = files.read(paths.state(uuid))
    if text is None:
        return None
    try:
        content = json.loads(text)
    except ValueError:
        content = None
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise StateError(f"{paths.state(uuid)} is not {FORMAT}; when no job shares the GPU, remove it")
    return content


def _encode(state: SetState) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "boot": state.boot,
        "uuids": state.uuids,
        "modes": state.modes,
        "method": state.method,
        "multi_user": state.multi_user,
        "loose": state.loose,
        "daemon": _encode_process(state.daemon) if state.daemon else None,
        "servers": [_encode_process(server) for server in state.servers],
        "tenants": {
            str(tenant.job): {
                "uid": tenant.uid,
                "share": tenant.share,
                "mem_mib": tenant.mem_mib,
                "tier": tenant.tier,
                "start": tenant.start,
                "known": tenant.known,
                "lost": tenant.lost,
                "alone_since": tenant.alone_since,
            }
            for tenant in state.tenants
        },
    }


def _encode_process(process: Proven) -> dict[str, Any]:
    return {"pid": process.pid, "started": process.started, "program": process.program, "boot": process.boot}


def _decode_process(content: dict[str, Any]) -> Proven:
    return Proven(int(content["pid"]), int(content["started"]), str(content["program"]), str(content["boot"]))


def _decode(content: dict[str, Any]) -> SetState:
    return SetState(
        boot=str(content["boot"]),
        uuids=tuple(map(str, content["uuids"])),
        modes=tuple(map(int, content["modes"])),
        method=str(content["method"]),
        multi_user=bool(content["multi_user"]),
        loose=bool(content.get("loose", False)),
        daemon=_decode_process(content["daemon"]) if content["daemon"] else None,
        servers=tuple(map(_decode_process, content["servers"])),
        tenants=tuple(
            Tenant(
                int(job),
                int(tenant["uid"]),
                int(tenant["share"]),
                None if tenant["mem_mib"] is None else int(tenant["mem_mib"]),
                str(tenant.get("tier", "")),
                int(tenant.get("start", 0)),
                tuple(map(int, tenant.get("known", ()))),
                bool(tenant.get("lost", False)),
                float(tenant.get("alone_since", 0.0)),
            )
            for job, tenant in content["tenants"].items()
        ),
    )
