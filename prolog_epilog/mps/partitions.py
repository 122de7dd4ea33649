"""MPS v2 with static partitions (`-S`): multiprocessors that no other job can use, but that idle with their job."""

import os
import re
from contextlib import suppress
from dataclasses import dataclass, replace

from prolog_epilog.errors import CannotShare, ControlError
from prolog_epilog.mps.ceiling import InteractiveServer, least_ceiling
from prolog_epilog.mps.control import Control
from prolog_epilog.mps.limits import Level, NotOffered, ceiling_of, memory_environment, memory_words
from prolog_epilog.node.processes import Proven
from prolog_epilog.tenants.state import SetState, Tenant

_CREATED = re.compile(r"(GPU-[0-9A-Za-z-]+/[A-Za-z0-9+/=]{8,})")


def chunk_size(capability: tuple[int, int]) -> int:
    """Returns the multiprocessors of the smallest partition: 8 from Hopper on, 4 on Ampere and Ada."""
    return 8 if capability >= (9, 0) else 4


@dataclass(frozen=True, slots=True)
class Partitions(InteractiveServer):
    """A partition for each tenant; percentages have no effect. Its name is its key, which its job alone is told."""

    name: str = "partitions"

    def options(self, multi_user: str | None) -> tuple[str, ...]:
        """Returns the daemon's options: static partitioning can be chosen only at the daemon's start."""
        return ("-S", multi_user) if multi_user else ("-S",)

    def open(self, control: Control, state: SetState, until: float) -> Proven:
        """Starts the server and makes one partition for a trial: some drivers accept the option and do no more."""
        control.await_answer("get_server_list", until)
        _, memory = ceiling_of(state)
        if memory is not None:
            self.set_default_memory(control, least_ceiling(memory))
        server = self.start(control, state, until)
        try:
            self._remove(control, self._make(control, 1))
        except ControlError as error:
            raise NotOffered(f"this driver makes no static partition: {error}") from error
        return server

    def loose(self, control: Control, state: SetState) -> bool:
        """Makes a partition and tries, as the first tenant, to remove it; returns true if MPS accepts that.

        Driver 595 lets every user make and remove partitions, and lists their names, whichever user its server runs as.
        """
        uid = state.tenants[0].uid
        if os.geteuid() != 0 or uid == 0:
            return uid == os.geteuid()
        made = self._make(control, 1)
        uuid, _, identity = made.partition("/")
        with suppress(ControlError):
            control.tell(f"sm_partition rm {uuid} {identity}", uid=uid)
        if identity not in control.tell("lspart"):
            return True
        self._remove(control, made)
        return False

    def admit(self, control: Control, state: SetState, tenant: Tenant) -> tuple[Tenant, dict[str, str]]:
        """Makes the tenant's partition, unless it has one already, and raises the memory ceiling for it."""
        server = self.server(control)
        if server is None:
            raise ControlError("MPS has lost its server; look at its control.log")
        _, memory = ceiling_of(state)
        self.set_memory(control, server, memory)
        if not tenant.partitions:
            tenant = replace(tenant, partitions=(self._make(control, chunks_of(state, tenant)),))
        return tenant, {"CUDA_MPS_SM_PARTITION": tenant.partitions[0]} | memory_environment(control, tenant)

    def leave(self, control: Control, state: SetState, tenant: Tenant) -> None:
        """Removes the partition; its clients must have ended, or are ended."""
        for partition in tenant.partitions:
            if not self._remove(control, partition):
                raise ControlError(f"partition {partition} is still in use; end the processes of job {tenant.job}")
        server = self.server(control)
        if server is not None:
            self.set_memory(control, server, ceiling_of(state)[1])

    def level(self, state: SetState, tenant: Tenant) -> Level:
        """Returns how firmly the tenant is held."""
        chunks = chunks_of(state, tenant)
        held = f"{chunks} of {state.chunks} parts of the GPU's multiprocessors are the job's alone"
        if state.loose:
            mine = "unless a job beside it takes or removes parts itself, as this driver allows"
            return Level("open-partition", f"{held}, {mine}; {memory_words(tenant)}")
        return Level("static-partition", f"{held}; {memory_words(tenant)}")

    def _make(self, control: Control, chunks: int) -> str:
        shown = control.tell(f"sm_partition add {control.uuids[0]} {chunks}")
        created = _CREATED.search(shown)
        if not created:
            raise ControlError(
                f"MPS makes no partition of {chunks} parts ({shown.strip()}); wait for another job to end"
            )
        return created[1]

    def _remove(self, control: Control, partition: str) -> bool:
        uuid, _, identity = partition.partition("/")
        control.tell(f"sm_partition rm {uuid} {identity}")
        return identity not in control.tell("lspart")


def chunks_of(state: SetState, tenant: Tenant) -> int:
    """Returns the number of parts for a share, rounded down, at least 1.

    Shares of 100 % together fit if none of them is smaller than a part. A smaller share gets a part all the same.
    Slurm's books do not count that, so the last of many small shares may find no part left: such a job is degraded, and
    moved.
    """
    if not state.chunks:
        raise CannotShare("the number of multiprocessors is not known; set [node] static_partitions = never")
    return max(1, tenant.share * state.chunks // 100)
