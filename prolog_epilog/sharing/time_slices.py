# SPDX-License-Identifier: Apache-2.0
"""Sharing by time: the driver's own time slices, any two users, no MPS; the guard controls the shares.

The books are those of MPS (prolog_epilog.tenants.state), with the method `time` and without processes of ours. Each GPU
has its own books: a job on several GPUs may have a guest, or a neighbour, on one of them.
"""

from collections.abc import Sequence

from prolog_epilog.errors import CannotShare
from prolog_epilog.job.extra import GUARANTEED, OPPORTUNISTIC
from prolog_epilog.mps.lifecycle import UNSET, Attached
from prolog_epilog.mps.limits import Level
from prolog_epilog.node import files, processes
from prolog_epilog.node.devices import NodeGpu
from prolog_epilog.node.paths import Paths
from prolog_epilog.tenants import share_file, state
from prolog_epilog.tenants.share_file import ShareRecord
from prolog_epilog.tenants.state import SetState, Tenant

METHOD = "time"

_PACKED = Level(
    "audit",
    "nothing stops the job: each second its processes and memory are compared with its share, and excess is answered",
)
_TIERED = Level(
    "guard",
    "the driver shares the GPU out by time slices, and the guard holds the guest back as far as its host needs it",
)
_LOCK_SECONDS = 30.0


def tenant_of(file: ShareRecord) -> Tenant:
    """Returns the entry of a job in the books."""
    # The guard decides what an owner leaves to its guest, so MPS lets both have all.
    share = file.share or (100 if file.tier else 0)
    return Tenant(file.job, file.uid, share, file.mem_mib, tier=file.tier, start=file.start)


def attach(paths: Paths, gpus: Sequence[NodeGpu], tenant: Tenant) -> Attached:
    """Writes the job into the books of its GPUs."""
    uuids = tuple(sorted(gpu.uuid for gpu in gpus))
    files.prepare(paths)
    with state.held(paths, uuids, _LOCK_SECONDS):
        boot = processes.boot_id(paths.boot_id)
        books = [_books(paths, uuid, boot, with_owner=tenant.tier == OPPORTUNISTIC) for uuid in uuids]
        for one in books:
            state.store(paths, one.with_tenant(tenant))
    level = _TIERED if tenant.tier else _PACKED
    if tenant.tier == GUARANTEED:
        # Its GPUs are whole, and Slurm binds tasks to them.
        return Attached({}, (), level)
    # Name them by UUID, because the job sees all devices if Slurm does not constrain them.
    return Attached({"CUDA_VISIBLE_DEVICES": ",".join(uuids)}, ("CUDA_MPS_PIPE_DIRECTORY", *UNSET), level)


def _books(paths: Paths, uuid: str, boot: str, *, with_owner: bool) -> SetState:
    found = state.load(paths, uuid)
    if found is None or found.boot != boot:
        # An owner that found a guest under MPS here is in no books: the next guest writes it into them.
        owner = _owner_in_turn(paths, uuid) if with_owner else ()
        return SetState(boot, (uuid,), modes=(), method=METHOD, multi_user=True, tenants=owner)
    if found.method != METHOD or found.uuids != (uuid,):
        raise CannotShare(f"GPU {uuid} is shared in another way now; berthd places the job elsewhere")
    return found


def has_guest(paths: Paths, uuids: Sequence[str]) -> bool:
    """Tells whether a guest shares one of these GPUs by time."""
    in_turn = [one for one in _shared_now(paths, uuids).values() if one.method == METHOD]
    return any(tenant.tier == OPPORTUNISTIC for one in in_turn for tenant in one.tenants)


def host_under_mps(paths: Paths, uuids: Sequence[str]) -> bool:
    """Tells whether an owner shares all these GPUs under MPS."""
    found = _shared_now(paths, uuids)
    under_mps = [one for one in found.values() if one.method != METHOD]
    hosts = [one for one in under_mps if any(tenant.tier == GUARANTEED for tenant in one.tenants)]
    return len(hosts) == len(uuids)


def guests_under_mps(paths: Paths, uuids: Sequence[str]) -> tuple[str, ...]:
    """Returns those of these GPUs on which guests alone share under MPS: their owners have gone."""
    found = {uuid: one for uuid, one in _shared_now(paths, uuids).items() if one.method != METHOD and one.tenants}
    return tuple(uuid for uuid, one in found.items() if all(tenant.tier == OPPORTUNISTIC for tenant in one.tenants))


def _shared_now(paths: Paths, uuids: Sequence[str]) -> dict[str, SetState]:
    """Returns the books of those of these GPUs that are shared since this boot."""
    boot = processes.boot_id(paths.boot_id)
    found = {uuid: state.load(paths, uuid) for uuid in uuids}
    return {uuid: one for uuid, one in found.items() if one is not None and one.boot == boot}


def _owner_in_turn(paths: Paths, uuid: str) -> tuple[Tenant, ...]:
    """Returns the entry of the owner that shares a GPU in turn, in the books or not; of several the latest."""
    found = [file for file in share_file.sharing(paths, (uuid,), GUARANTEED) if file.way == METHOD]
    return tuple(map(tenant_of, sorted(found, key=lambda file: file.start)[-1:]))


def detach(paths: Paths, job: int, start: int = 0) -> bool:
    """Takes the job out of the books; False if it shares nothing by time. A later run than `start` stays."""
    theirs = [one for one in state.everything(paths) if one.method == METHOD and one.tenant(job)]
    for known in theirs:
        with state.held(paths, known.uuids, _LOCK_SECONDS):
            found = state.load(paths, known.uuids[0])
            tenant = found.tenant(job) if found else None
            if found is None or found.method != METHOD or tenant is None or tenant.is_later_than(start):
                continue
            left = found.without(job)
            if left.tenants:
                state.store(paths, left)
            else:
                state.forget(paths, found.uuids)
    return bool(theirs)
