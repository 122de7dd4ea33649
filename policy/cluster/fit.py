# SPDX-License-Identifier: Apache-2.0
"""Turns a `Request` into a `Demand` on this fleet: the number of nodes, and what each of them must give."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TypedDict, Unpack

from policy.cluster import segments, unmet
from policy.cluster.allowed import Allowed, AllowedNodes, SizedRoom, Where, able_to_share
from policy.cluster.fleet import Fleet
from policy.cluster.partitions import PartitionTerms, Submitter, first_for_some, shut_to
from policy.formats.arrays import Bools
from policy.formats.errors import LeftToSlurm, Never
from policy.formats.flags import Tier
from policy.formats.slurm_facts import Memory
from policy.request import spread
from policy.request.demand import A_YEAR, Demand, Size, Written, binding
from policy.request.settings import Sharing
from policy.request.share import Share
from policy.request.submission import Request
from policy.request.tiers import ALONE, EXCLUSIVE, OPPORTUNISTIC, settle


class OnAnyNodes(TypedDict, total=False):
    """Values of a `Demand` that are the same on each number of nodes."""

    app_class: str
    model: str
    share: Share | None
    tier: Tier
    gpu_mem: int | None
    user: int
    written: Written


def demand(
    rooms: Sequence[SizedRoom], limit: int, needs: spread.SpreadNeeds | None = None, **rest: Unpack[OnAnyNodes]
) -> Demand:
    """Returns the demand of a job, be it read from a submission, from its plan or from a trace.

    The first of `rooms` has its size and its nodes, the others are its splits. `needs` are those of a job that Slurm
    may lay on nodes in any way.
    """
    first, *others = [
        Demand(
            *room.size,
            binding("any", room.size.n) if room.size.k else "any",
            limit,
            room.nodes,
            elsewhere=room.elsewhere,
            pools=room.pools,
            spread=needs if room is rooms[0] else None,
            **rest,
        )
        for room in rooms
    ]
    return first.with_splits(others) if others else first


def on_fleet(request: Request, fleet: Fleet, known: AllowedNodes | None = None) -> Demand:
    """Returns the demand that fits this fleet: one node if one can hold it, else whole nodes.

    `known` caches what other requests were allowed on this fleet.
    """
    names = request.partition or fleet.default_partition
    if not names:
        raise LeftToSlurm("there is no default partition", 209)
    known = AllowedNodes(fleet) if known is None else known
    terms = known.terms(names)
    _check_site(request, fleet, terms)
    if terms.whole_nodes:
        if request.share:
            raise Never(
                f"--gpu-share takes a part of a GPU, partition {terms.names} hands out whole nodes: leave it out", 402
            )
        request = replace(request, whole_nodes=True)
    who = Submitter(request.account, request.qos, request.admitted)
    where = Where(known, terms.names, request.limit, request.features, request.only, request.excluded, who=who)
    if request.share is not None:
        where = replace(where, share=_share(request, fleet, where.allowed(terms.listed).nodes, terms.names))
    may_use = where.allowed(terms.listed)
    tier = _tier(request, fleet.sharing, terms.rules_of)
    if tier.name == OPPORTUNISTIC:
        _refuse_what_no_guest_can_be(request, fleet, may_use.nodes, terms.names)
    several = len(terms.listed) > 1
    if several and (first := first_for_some(fleet, terms.names, request.limit, who)):
        raise LeftToSlurm(
            f"partition {first} comes before others of {terms.names} and admits some only: Slurm knows whom", 209
        )
    if (most_on_one := _most_on_one(request)) > may_use.most or not may_use.most:
        unmet.explain_the_impossible(request, fleet, terms.listed, may_use, most_on_one)
    asked = _Asked(request, where, terms, tier, shut_to(fleet, terms.names, who) if several else ())
    tried = []
    for n, k in _layouts(request, may_use.sizes):
        if n > 1 and (request.group or fleet.fabric.topology):
            segments.check(request, fleet, terms.listed, may_use.nodes, n, k)
        room = asked.room(n, k)
        if tier.name == OPPORTUNISTIC and n * k != 1:
            raise Never(f"--gpu-tier=opportunistic: a guest has one GPU, not {n * k}; ask for --gpus=1", 405)
        if room.could_hold:
            return asked.demand(room)
        tried.append(room)
    unmet.explain_without_pins(fleet, may_use.nodes, terms.names)
    why = unmet.nothing_holds(request, tried[0].size, terms.names)
    if fleet.in_all_partitions and len(terms.listed) > 1:
        why += ", and by EnforcePartLimits=ALL its nodes have to be in all of them"
    raise LeftToSlurm(why, 210)


class _Asked:
    """A request on a fleet: all that does not depend on the number of its nodes."""

    def __init__(
        self, request: Request, where: Where, terms: PartitionTerms, tier: Tier, shut: tuple[str, ...]
    ) -> None:
        self._request, self._where, self._terms, self._tier, self._shut = request, where, terms, tier, shut
        self._fleet, self._may_use = where.known.fleet, where.allowed(terms.listed).nodes
        self._memory = request.memory or terms.memory

    def room(self, n: int, k: int, task: Request | None = None) -> SizedRoom:
        """Returns the room of the job on n nodes, or that of one `task` without the CPUs that it asks for in all."""
        request, fleet = task or self._request, self._fleet
        names = self._where.names(n)
        cpus = self._cpus(request, self._where.allowed(names), n, k, request.min_cpus if task is None else 0)
        if not (request.whole_nodes or request.share or self._tier.name == OPPORTUNISTIC):
            _check_kept(cpus, k, fleet, self._may_use, bound=request.enforce_binding)
        return self._where.room(Size(n, k, cpus, _memory_needed(request, fleet, self._memory, cpus, k)), names)

    def _cpus(self, request: Request, allowed: Allowed, n: int, k: int, min_cpus: int) -> int:
        """Returns the CPUs on each of n nodes, in whole cores."""
        least = _least_cpus(request, n, k, min_cpus)
        if request.cpus_per_gpu and least > request.cpus_per_gpu * k:
            # Slurm would then take more nodes, and so more GPUs, or refuse the job.
            raise LeftToSlurm(
                f"--cpus-per-gpu={request.cpus_per_gpu} gives {k} GPUs fewer CPUs than else was asked", 207
            )
        _check_even(request, n, k)
        _check_cpus_of_nodes(request, n)
        if request.whole_nodes and self._memory.per_gpu is not None:
            raise LeftToSlurm("memory for each GPU of whole nodes: Slurm would count it for their seats too", 207)
        cpus = _of_whole_cores(least, request, allowed, n)
        if cpus > self._terms.most_cpus:
            raise LeftToSlurm(
                f"{cpus} CPUs on a node are more than the {self._terms.most_cpus} that its partition gives", 207
            )
        return cpus

    def demand(self, room: SizedRoom) -> Demand:
        """Returns the demand of the job, whose place is to have the size of `room`."""
        request, fleet, tier, (n, k, _, mem) = self._request, self._fleet, self._tier, room.size
        usable = self._terms.listed if len(self._terms.listed) == 1 else self._where.partitions(None).names
        limits = [fleet.partitions[name].time_limit for name in usable]
        most = max((A_YEAR if one is None else one) for one in limits)
        by_node = self._memory.per_gpu is not None and _counts_by_node(request, fleet, n * k)
        written = Written(
            min_cpus=max(request.min_cpus, request.cpus_per_gpu * k * n) if request.cpus_per_gpu else None,
            min_cpus_per_node=_least_cpus(request, n, k, request.min_cpus) if n > 1 and request.tied else None,
            mem_per_node=mem if by_node else None,
            shut=self._shut,
            guest_after=_guest_after(request, fleet, tier, n * k),
        )
        needs = self._spread(n)
        if request.whole_nodes:
            room = replace(room, size=room.size._replace(cpus=None))
        return demand(
            [room, *self._splits(room)],
            most if request.limit is None else request.limit,
            app_class=request.flags.get("app-class", "compute"),
            model=request.account if request.account in fleet.costs.accounts else "",
            share=self._where.share,
            tier=tier,
            gpu_mem=None if request.share else request.gpu_mem,
            needs=needs,
            written=written,
        )

    def _spread(self, nodes: int) -> spread.SpreadNeeds | None:
        """Returns the needs on each node, where Slurm may lay its GPUs on nodes in any way; its place has `nodes`."""
        request, fleet = self._request, self._fleet
        if not spread.may_spread(request) or self._tier is not ALONE or fleet.nodes_alone:
            return None
        # The licences of other nodes than those of a place are known where all have the same.
        if (model := fleet.counted_model(self._may_use) if fleet.counted else "") is None:
            return None
        task = request
        if request.tasks or request.tasks_per_node:
            task = replace(request, min_cpus_per_node=0, tasks=None, tasks_per_node=None)
        with suppress(LeftToSlurm):
            one = self.room(nodes, request.per_node) if request.per_node else self.room(request.nodes or 2, 1, task)
            if request.per_node and not (fleet.size[one.nodes] > request.per_node).any():
                return None  # whole nodes have all GPUs in common
            _, _, cpus, mem = one.size
            if cpus is not None and mem is not None and one.nodes.any():
                could = one.nodes, one.pools
                return spread.needs_of(request, self._memory, (cpus, mem), nodes, model, could)
        return None

    def _splits(self, room: SizedRoom) -> list[SizedRoom]:
        """Returns the rooms on the other numbers of nodes that the job may have."""
        # A limit of nodes, CPUs or memory would refuse a place on more nodes, and plain Slurm would wait for fewer.
        if not spread.may_split(self._request) or self._fleet.splits_limited:
            return []
        threads = self._fleet.threads[room.nodes]
        # A pin says the job's CPUs in whole cores, which have to be the same on all nodes.
        if threads.min() != threads.max():
            return []
        others = []
        for n, k in spread.more_nodes(room.size.n * room.size.k, room.size.n):
            with suppress(LeftToSlurm):
                others.append(self.room(n, k))
        return others


def _tier(request: Request, site: Sharing, partitions: str) -> Tier:
    """Returns the tier of a job; raises if a rule of the site does not allow it."""
    if not ("gpu-tier" in request.flags or site.tier_default or site.tier_allowed):
        return ALONE
    rules = site.tier_default, site.tier_allowed
    tier = settle(request.flags, request.qos, partitions, *rules, share=request.share is not None)
    return tier if tier is ALONE or site.guest_way != "mps" else replace(tier, mps=True)


def _share(request: Request, fleet: Fleet, allowed: Bools, names: str) -> Share | None:
    """Returns a packed job's share, None if no node is usable; raises with the first condition that no node meets."""
    usable = allowed & fleet.ready
    if not usable.any():
        return None  # the later search raises with the reason
    if not (usable & fleet.shares).any():
        raise LeftToSlurm(
            f"partition {names} has no GPUs that Slurm counts in percent (berth topo export writes them)", 218
        )
    if not (usable := usable & able_to_share(fleet, None)).any():
        raise Never(f"--gpu-share={request.share}: the GPUs of partition {names} are cut by MIG: leave it out", 406)
    if request.gpu_mem is not None:
        if not (fleet.gpu_mem[usable] > 0).any():
            raise Never(f"--gpu-mem: the memory of the GPUs of partition {names} is not known: leave it out", 407)
        most = int(fleet.gpu_mem[usable].max()) - fleet.sharing.gpu_mem_reserve
        if request.gpu_mem > most:
            raise Never(
                f"--gpu-mem: no GPU of partition {names} has more than {most} MiB for packed jobs: ask for {most}M", 408
            )
    return Share(request.share or 0, request.gpu_mem, way=fleet.sharing.way)


def _refuse_what_no_guest_can_be(request: Request, fleet: Fleet, allowed: Bools, names: str) -> None:
    what = "--gpu-tier=opportunistic" if "gpu-tier" in request.flags else f"jobs of partition {names} are guests"
    if not request.batch:
        raise Never(f"{what}: a guest can be put back into the queue at any time, so only sbatch can submit one", 405)
    if request.whole_nodes:
        raise Never(f"{what}: a guest has a seat on one GPU, not whole nodes; leave --exclusive out", 405)
    if request.het:
        raise Never(f"{what}: a part of a heterogeneous job cannot be a guest; submit it as a job of its own", 405)
    if (allowed & fleet.ready).any() and not (allowed & fleet.ready & fleet.seats).any():
        raise Never(f"{what}: partition {names} has no seats in Slurm's books (berth topo export writes them)", 409)


def may_wait_pinned(demand: Demand, fleet: Fleet) -> bool:
    """Tells whether a job may be kept for nodes that are not free yet: it needs all of several nodes.

    Which GPUs of a node come free together with those of another, Slurm knows better than a plan that chooses none.
    """
    sizes = fleet.size[demand.candidates]
    return demand.n > 1 and not demand.may_go_elsewhere and bool((sizes == demand.k).all())


_AS_HET = "Slurm can only say so as a heterogeneous job, such as `-N1 --gres=gpu:8 : -N1 --gres=gpu:4` for 12"


def _layouts(request: Request, sizes: Sequence[int]) -> list[tuple[int, int]]:
    """Returns pairs of nodes and GPUs per node, preferred first; `sizes` are the distinct machine sizes, ascending."""
    if request.per_node is not None:
        return [(request.nodes or 1, request.per_node)]
    total = request.total or 0
    if request.nodes is not None:
        if total % request.nodes:
            raise LeftToSlurm(f"{total} GPUs cannot be the same on each of {request.nodes} nodes; {_AS_HET}", 207)
        layouts = [(request.nodes, total // request.nodes)]
    else:
        whole = [(total // size, size) for size in reversed(sizes) if size and total % size == 0]
        layouts = [(1, total), *(layout for layout in whole if layout[0] > 1)]
        if total > max(sizes, default=total) and len(layouts) == 1:
            raise LeftToSlurm(f"{total} GPUs are more than a node has, and no number of whole nodes; {_AS_HET}", 207)
    if request.per_task is not None:
        per_task = request.per_task
        layouts = [(n, k) for n, k in layouts if k % per_task == 0]
        if not layouts:
            raise LeftToSlurm(f"tasks of {per_task} GPUs cannot be the same on each of {request.nodes} nodes", 207)
    return layouts


def _most_on_one(request: Request) -> int:
    """Returns the GPUs that one node must have, if the job's number of nodes is as asked, or one."""
    return request.per_node if request.per_node is not None else -(-(request.total or 0) // (request.nodes or 1))


def _counts_by_node(request: Request, fleet: Fleet, gpus: int) -> bool:
    """Tells whether, now or later, Slurm may count no GPU for the job, so that memory per GPU would be nothing."""
    if request.whole_memory:
        return False
    may_be_guest = gpus == 1 and request.batch and (bool(fleet.sharing.tier_default) or "gpu-tier" in request.flags)
    return bool(request.share) or may_be_guest or (gpus == 1 and fleet.sharing.guest_after is not None)


def _guest_after(request: Request, fleet: Fleet, tier: Tier, gpus: int) -> int | None:
    """Returns the seconds after which it may begin as a guest while it waits for its own GPU; None: never."""
    if tier.upgrade:
        return 0
    one_gpu = gpus == 1 and request.batch and not (request.het or request.whole_nodes or request.share)
    may = one_gpu and tier.name == EXCLUSIVE and not request.no_requeue
    return fleet.sharing.guest_after if may else None


def _tasks_on_each(request: Request, n: int) -> int:
    return request.tasks_per_node or -(-(request.tasks or n) // n)


def _least_cpus(request: Request, n: int, k: int, min_cpus: int) -> int:
    return max(
        _tasks_on_each(request, n) * request.cpus_per_task,
        -(-min_cpus // n),
        request.min_cpus_per_node,
        request.cpus_per_gpu * k,
    )


def _of_whole_cores(least: int, request: Request, allowed: Allowed, n: int) -> int:
    """Returns the CPUs per node, rounded up to whole cores, as Slurm hands these out."""
    fewest, most = allowed.threads
    if most and (request.threads_per_core or 1) > fewest:
        raise LeftToSlurm(f"not every node has {request.threads_per_core} threads per core", 207)
    threads = max(1, most)
    cores = -(-least // (request.threads_per_core or threads))
    if request.tasks_per_core:
        cores = max(cores, -(-_tasks_on_each(request, n) // request.tasks_per_core))
    return cores * threads


def _memory_needed(request: Request, fleet: Fleet, memory: Memory, cpus: int, k: int) -> int | None:
    if request.whole_memory:
        return None if fleet.memory_counts else 0
    if memory.per_node is not None:
        return memory.per_node
    if memory.per_cpu is not None:
        return memory.per_cpu * cpus
    if memory.per_gpu is not None:
        return memory.per_gpu * k
    return None if fleet.memory_counts else 0


def _check_site(request: Request, fleet: Fleet, terms: PartitionTerms) -> None:
    """Raises if the site has settings that Slurm does not apply to a pinned job."""
    by_gpu = fleet.cpus_by_gpu or terms.cpus_by_gpu
    if by_gpu and not request.cpus_per_gpu and request.cpus_per_task <= 1:
        raise LeftToSlurm("DefCpuPerGPU counts for no job with a place; [hook] def_cpu_per_gpu of berth.conf does", 211)
    if fleet.one_task_per_core and (request.cpus_per_gpu or (request.tasks or 1) > 1) and not request.tasks_per_core:
        raise LeftToSlurm("with CR_ONE_TASK_PER_CORE Slurm counts CPUs of tasks and GPUs otherwise than a place", 211)


def _check_kept(cpus: int, k: int, fleet: Fleet, allowed: Bools, *, bound: bool) -> None:
    """Raises if a job needs more CPUs than are kept for its GPUs: only Slurm knows which other CPUs are free.

    The cores that a `bound` job may use are those of its GPUs' sockets; each GPU counts as its even part of the node.
    """
    of_gpu = fleet.cpus // fleet.size.clip(1) if bound else fleet.cpus_kept
    if of_gpu is None:
        return
    kept = of_gpu[allowed & (fleet.size >= k) & (of_gpu > 0)]
    least = int(kept.min(initial=cpus)) * k
    if cpus > least:
        raise LeftToSlurm(
            f"{cpus} CPUs beside {k} GPUs of a node are more than the {least} that "
            + ("--gres-flags=enforce-binding is sure to leave" if bound else "RestrictedCoresPerGPU keeps for them"),
            211,
        )


def _check_even(request: Request, n: int, k: int) -> None:
    """Raises if the tasks cannot share CPUs evenly: a pinned job gives CPUs per task, so Slurm must place such jobs."""
    if not (request.tasks or request.tasks_per_node):
        return
    if request.array and request.tasks and request.tasks < (request.tasks_per_node or 0) * n:
        # Slurm 24.11 counts the tasks anew when one of the array's jobs is given a place.
        raise LeftToSlurm("an array of jobs with fewer tasks than --ntasks-per-node says", 207)
    if request.cpus_per_gpu and request.tasks and request.tasks < (request.tasks_per_node or 0) * n:
        # The last node has fewer tasks, and Slurm would count its CPUs as those of a full one.
        raise LeftToSlurm("CPUs for each GPU, with fewer tasks than --ntasks-per-node says", 207)
    follow_gpus = request.per_node is None or request.tied
    if n > 1 and follow_gpus and not request.tasks_per_node and (request.tasks or 0) % n:
        # Slurm 26.05 would count as many tasks on each node as on the fullest node.
        raise LeftToSlurm(f"{request.tasks} tasks cannot be the same number on each of {n} nodes", 207)
    tasks = _tasks_on_each(request, n)
    if request.cpus_per_gpu * k % tasks and not request.whole_nodes:
        raise LeftToSlurm(f"{tasks} tasks cannot share the {request.cpus_per_gpu * k} CPUs of {k} GPUs evenly", 207)


def _check_cpus_of_nodes(request: Request, n: int) -> None:
    """Raises if a job wants more CPUs of a node than its tasks there take.

    Slurm starts it only where as many cores are free on the sockets of its GPUs. Without a pin other GPUs do as well.
    """
    as_a_guest = request.share is not None or "gpu-tier" in request.flags
    of_tasks = _tasks_on_each(request, n) * request.cpus_per_task
    if request.min_cpus_per_node > of_tasks and not (request.whole_nodes or as_a_guest):
        raise LeftToSlurm("--mincpus with more CPUs than the tasks of a node take", 207)
