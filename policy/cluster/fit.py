"""Turns a `Request` into a `Demand` on this fleet: the number of nodes, and what each of them must give."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

import numpy as np

from policy.cluster.admission import Submitter
from policy.cluster.allowed import Allowed, AllowedNodes, BigEnough, described
from policy.cluster.fleet import Fleet
from policy.cluster.partitions import PartitionTerms, choose, first_for_some, pools, shut_to
from policy.formats.arrays import CUT, Bools
from policy.formats.errors import Impossible, LeftToSlurm, Never
from policy.formats.flags import Tier
from policy.formats.slurm_facts import Memory
from policy.request import splits, spread
from policy.request.demand import A_YEAR, Demand
from policy.request.locality import binding
from policy.request.parse import Request
from policy.request.share import Share
from policy.request.tiers import ALONE, EXCLUSIVE, OPPORTUNISTIC, settle


def on_fleet(request: "Request", fleet: "Fleet", known: AllowedNodes | None = None) -> Demand:
    """Returns the demand that fits this fleet: one node if one can hold it, else whole nodes.

    `known` caches what other requests were allowed on this fleet.
    """
    names = request.partition or fleet.default_partition
    if not names:
        raise LeftToSlurm("there is no default partition", 209)
    seen = AllowedNodes(fleet) if known is None else known
    terms = seen.terms(names)
    names = terms.names
    may_use = seen.of(terms.listed, request.features, request.only, request.excluded)
    _check_site(request, fleet, terms)
    if terms.whole_nodes:
        if request.share:
            raise Never(
                f"--gpu-share takes a part of a GPU, partition {names} hands out whole nodes: leave it out", 402
            )
        request = replace(request, whole_nodes=True)
    if request.share:
        may_use = described(fleet, _allowed_to_share(request, fleet, may_use.nodes, names))
    share = request.share is not None
    tier = settle(request.flags, request.qos, terms.rules_of, *fleet.sharing.tiers, share=share)
    if tier is not ALONE and fleet.sharing.guest_way == "mps":
        tier = replace(tier, mps=True)
    if tier.name == OPPORTUNISTIC:
        _refuse_what_no_guest_can_be(request, fleet, may_use.nodes, names)
    who = Submitter(request.account, request.qos, request.admitted)
    if first := first_for_some(fleet, names, request.limit, who):
        raise LeftToSlurm(
            f"partition {first} comes before others of {names} and admits some only: Slurm knows whom", 209
        )
    _explain_the_impossible(request, fleet, terms.listed, may_use)
    asked = _Asked(request, fleet, terms, seen, may_use, tier, who)
    tried = []
    for n, k in _layouts(request, may_use.sizes):
        room = asked.room(n, k)
        if tier.name == OPPORTUNISTIC and n * k != 1:
            raise Never(f"--gpu-tier=opportunistic: a guest has one GPU, not {n * k}; ask for --gpus=1", 405)
        if room.could_hold:
            return asked.with_splits(asked.demand(room, asked.spread(n)))
        tried.append(room)
    _explain_without_pins(fleet, may_use.nodes, names)
    why = _nothing_holds(request, tried, names)
    if fleet.in_all_partitions and len(terms.listed) > 1:
        why += ", and by EnforcePartLimits=ALL its nodes have to be in all of them"
    raise LeftToSlurm(why, 210)


@dataclass(frozen=True, slots=True)
class _Room:
    """Needs of a job on each of n nodes, and the nodes that could ever meet them."""

    n: int
    k: int
    least_cpus: int
    """CPUs that it asks for, which may be less than whole cores."""
    cpus: int
    mem: int | None
    allowed: Allowed
    big_enough: BigEnough
    pools: tuple[Bools, ...]

    @property
    def could_hold(self) -> bool:
        """Tells whether there are enough nodes that could ever hold it."""
        if not self.pools:
            return self.big_enough.total >= self.n
        return any(int(pool.sum()) >= self.n for pool in self.pools)


class _Asked:
    """A request on a fleet: all that does not depend on the number of its nodes."""

    def __init__(
        self,
        request: Request,
        fleet: Fleet,
        terms: PartitionTerms,
        known: AllowedNodes,
        may_use: Allowed,
        tier: Tier,
        who: Submitter,
    ) -> None:
        self._request, self._fleet, self._terms = request, fleet, terms
        self._known, self._may_use, self._tier, self._who = known, may_use, tier, who
        self._allowed_in = {terms.listed: may_use}
        self._memory = request.memory or terms.memory
        usable = terms.listed
        if len(usable) > 1:
            usable = choose(fleet, terms.names, request.limit, None, who=who).names
        limits = [fleet.partitions[name].time_limit for name in usable]
        most = max((A_YEAR if one is None else one) for one in limits)
        self._limit = most if request.limit is None else request.limit

    def room(self, n: int, k: int, task: Request | None = None) -> _Room:
        """Returns the needs on each of n nodes, or those of one `task` without the CPUs that it asks for in all."""
        request, fleet = task or self._request, self._fleet
        allowed, inside = self._allowed(n)
        least, cpus = self._cpus(request, allowed, n, k, request.min_cpus if task is None else 0)
        mem = _memory_needed(request, fleet, self._memory, cpus, k)
        big_enough = self._known.big_enough(allowed, k, cpus, mem)
        if not (request.whole_nodes or request.share or self._tier.name == OPPORTUNISTIC):
            _check_kept(cpus, k, fleet, self._may_use.nodes)
        return _Room(n, k, least, cpus, mem, allowed, big_enough, in_pools(big_enough.nodes, inside))

    def _allowed(self, n: int) -> "tuple[Allowed, list[Bools]]":
        """Returns the nodes of the partitions that may start it on n nodes, in all and by partition."""
        request, fleet = self._request, self._fleet
        if len(self._terms.listed) == 1:
            return self._may_use, [self._may_use.nodes]
        names = choose(fleet, self._terms.names, request.limit, n, who=self._who).names
        inside = pools(fleet, names, n)
        if request.share:
            return described(fleet, self._may_use.nodes & np.logical_or.reduce(inside)), inside
        if names not in self._allowed_in:
            self._allowed_in[names] = self._known.of(names, request.features, request.only, request.excluded)
        return self._allowed_in[names], inside

    def _cpus(self, request: Request, allowed: Allowed, n: int, k: int, min_cpus: int) -> tuple[int, int]:
        """Returns the CPUs on each of n nodes, as asked and in whole cores."""
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
        return least, cpus

    def demand(self, room: _Room, needs: spread.SpreadNeeds | None = None) -> Demand:
        """Returns the demand on these nodes; `needs` are those of a job that Slurm may lay on nodes in any way."""
        request, n, k = self._request, room.n, room.k
        by_node = self._memory.per_gpu is not None and _counts_by_node(request, self._fleet, n * k)
        return Demand(
            n=n,
            k=k,
            cpus=None if request.whole_nodes else room.cpus,
            mem=room.mem,
            level=binding("any", n),
            limit=self._limit,
            candidates=room.big_enough.nodes,
            elsewhere=room.big_enough.elsewhere,
            app_class=request.flags.get("app-class", "compute"),
            share=None if request.share is None else Share(request.share, request.gpu_mem, way=self._fleet.sharing.way),
            gpu_mem=None if request.share else request.gpu_mem,
            mem_per_node=room.mem if by_node else None,
            min_cpus_per_node=room.least_cpus if n > 1 and request.tied else None,
            min_cpus=max(request.min_cpus, request.cpus_per_gpu * k * n) if request.cpus_per_gpu else None,
            tier=self._tier,
            guest_after=_guest_after(request, self._fleet, self._tier, n * k),
            pools=room.pools,
            shut=shut_to(self._fleet, self._terms.names, self._who),
            spread=needs,
        )

    def spread(self, nodes: int) -> spread.SpreadNeeds | None:
        """Returns the needs on each node, where Slurm may lay its GPUs on nodes in any way; its place has `nodes`."""
        request, fleet, memory = self._request, self._fleet, self._memory
        if not spread.may_spread(request) or self._tier is not ALONE or fleet.nodes_alone:
            return None
        # The licences of other nodes than those of a place are known where all have the same.
        if (model := fleet.counted_model(self._may_use.nodes) if fleet.counted else "") is None:
            return None
        task = request
        if request.tasks or request.tasks_per_node:
            task = replace(request, min_cpus_per_node=0, tasks=None, tasks_per_node=None)
        with suppress(LeftToSlurm):
            one = self.room(request.nodes or 2, 1, task)
            if one.mem is not None and one.big_enough.total:
                could = one.big_enough.nodes, one.pools
                return spread.needs_of(request, memory, (one.cpus, one.mem), nodes, model, could)
        return None

    def with_splits(self, demand: Demand) -> Demand:
        """Returns the demand with the other numbers of nodes that the job may have."""
        # A limit of nodes, CPUs or memory would refuse a place on more nodes, and plain Slurm would wait for fewer.
        if not splits.may_split(self._request) or self._fleet.splits_limited:
            return demand
        threads = self._fleet.threads[demand.candidates]
        # A pin says the job's CPUs in whole cores, which have to be the same on all nodes.
        if threads.min() != threads.max():
            return demand
        others = []
        for n, k in splits.more_nodes(demand.n * demand.k, demand.n):
            with suppress(LeftToSlurm):
                others.append(self.demand(self.room(n, k)))
        return splits.joined(demand, others)


def in_pools(candidates: "Bools", inside: "Sequence[Bools]") -> "tuple[Bools, ...]":
    """Returns the pools of a demand with these candidates; empty if there is only one pool."""
    return tuple(candidates & pool for pool in inside) if len(inside) > 1 else ()


def _allowed_to_share(request: "Request", fleet: "Fleet", allowed: "Bools", names: str) -> "Bools":
    """Returns the nodes whose GPUs can be shared as asked; raises with the first condition that no node meets."""
    usable = allowed & fleet.ready
    if not usable.any():
        return allowed  # the later search raises with the reason
    if not (usable & fleet.shares).any():
        raise LeftToSlurm(
            f"partition {names} has no GPUs that Slurm counts in percent (berth topo export writes them)", 218
        )
    if not (usable := usable & able_to_share(fleet, None)).any():
        raise Never(f"--gpu-share={request.share}: the GPUs of partition {names} are cut by MIG: leave it out", 406)
    if request.gpu_mem is None:
        return usable
    if not (fleet.gpu_mem[usable] > 0).any():
        raise Never(f"--gpu-mem: the memory of the GPUs of partition {names} is not known: leave it out", 407)
    most = int(fleet.gpu_mem[usable].max()) - fleet.sharing.gpu_mem_reserve
    if request.gpu_mem > most:
        raise Never(
            f"--gpu-mem: no GPU of partition {names} has more than {most} MiB for packed jobs: ask for {most}M", 408
        )
    return usable & able_to_share(fleet, request.gpu_mem)


def _refuse_what_no_guest_can_be(request: "Request", fleet: "Fleet", allowed: "Bools", names: str) -> None:
    what = "--gpu-tier=opportunistic" if "gpu-tier" in request.flags else f"jobs of partition {names} are guests"
    if not request.batch:
        raise Never(f"{what}: a guest can be put back into the queue at any time, so only sbatch can submit one", 405)
    if request.whole_nodes:
        raise Never(f"{what}: a guest has a seat on one GPU, not whole nodes; leave --exclusive out", 405)
    if request.het:
        raise Never(f"{what}: a part of a heterogeneous job cannot be a guest; submit it as a job of its own", 405)
    if (allowed & fleet.ready).any() and not (allowed & fleet.ready & fleet.seats).any():
        raise Never(f"{what}: partition {names} has no seats in Slurm's books (berth topo export writes them)", 409)


def able_to_share(fleet: "Fleet", gpu_mem: int | None) -> "Bools":
    """Returns the nodes whose GPUs can be shared, and have that much memory."""
    able: Bools = fleet.shares & (fleet.gpu_mem != CUT)
    if gpu_mem is not None:
        able &= fleet.gpu_mem - fleet.sharing.gpu_mem_reserve >= gpu_mem
    return able


def may_wait_pinned(demand: Demand, fleet: "Fleet") -> bool:
    """Tells whether a job may be kept for nodes that are not free yet: it needs all of several nodes.

    Which GPUs of a node come free together with those of another, Slurm knows better than a plan that chooses none.
    """
    sizes = fleet.size[demand.candidates]
    return demand.n > 1 and not demand.may_go_elsewhere and bool((sizes == demand.k).all())


_AS_HET = "Slurm can only say so as a heterogeneous job, such as `-N1 --gres=gpu:8 : -N1 --gres=gpu:4` for 12"


def _layouts(request: "Request", sizes: Sequence[int]) -> list[tuple[int, int]]:
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


def _counts_by_node(request: "Request", fleet: "Fleet", gpus: int) -> bool:
    """Tells whether, now or later, Slurm may count no GPU for the job, so that memory per GPU would be nothing."""
    if request.whole_memory:
        return False
    may_be_guest = gpus == 1 and request.batch and (bool(fleet.sharing.tier_default) or "gpu-tier" in request.flags)
    return bool(request.share) or may_be_guest or (gpus == 1 and fleet.sharing.guest_after is not None)


def _guest_after(request: "Request", fleet: "Fleet", tier: Tier, gpus: int) -> int | None:
    """Returns the seconds after which it may begin as a guest while it waits for its own GPU; None: never."""
    if tier.upgrade:
        return 0
    one_gpu = gpus == 1 and request.batch and not (request.het or request.whole_nodes or request.share)
    return fleet.sharing.guest_after if one_gpu and tier.name == EXCLUSIVE else None


def _tasks_on_each(request: "Request", n: int) -> int:
    return request.tasks_per_node or -(-(request.tasks or n) // n)


def _least_cpus(request: "Request", n: int, k: int, min_cpus: int) -> int:
    return max(
        _tasks_on_each(request, n) * request.cpus_per_task,
        -(-min_cpus // n),
        request.min_cpus_per_node,
        request.cpus_per_gpu * k,
    )


def _of_whole_cores(least: int, request: "Request", allowed: Allowed, n: int) -> int:
    """Returns the CPUs per node, rounded up to whole cores, as Slurm hands these out."""
    fewest, most = allowed.threads
    if most and (request.threads_per_core or 1) > fewest:
        raise LeftToSlurm(f"not every node has {request.threads_per_core} threads per core", 207)
    threads = max(1, most)
    cores = -(-least // (request.threads_per_core or threads))
    if request.tasks_per_core:
        cores = max(cores, -(-_tasks_on_each(request, n) // request.tasks_per_core))
    return cores * threads


def _memory_needed(request: "Request", fleet: "Fleet", memory: "Memory", cpus: int, k: int) -> int | None:
    if request.whole_memory:
        return None if fleet.memory_counts else 0
    if memory.per_node is not None:
        return memory.per_node
    if memory.per_cpu is not None:
        return memory.per_cpu * cpus
    if memory.per_gpu is not None:
        return memory.per_gpu * k
    return None if fleet.memory_counts else 0


def _explain_without_pins(fleet: "Fleet", allowed: "Bools", partition: str) -> None:
    """Raises with the reason of the first allowed GPU node that cannot be placed on."""
    for place in np.flatnonzero(allowed & ~fleet.ready & (fleet.gpu_counts > 0)).tolist():
        raise LeftToSlurm(fleet.not_ready.get(fleet.names[place], f"partition {partition} has no placeable node"), 223)


def _nothing_holds(request: "Request", tried: "list[_Room]", partition: str) -> str:
    one = tried[0]
    needs = f"{one.k} GPU{'s' if one.k > 1 else ''}"
    if not request.whole_nodes:
        needs += f", {one.cpus} CPU{'s' if one.cpus > 1 else ''}"
    if one.mem:
        needs += f" and {one.mem} MB"
    if one.n > 1:
        return f"partition {partition} has no {one.n} nodes that each hold {needs}"
    constraint = " with what else was asked" if request.features or request.only or request.excluded else ""
    return f"no node of partition {partition}{constraint} holds {needs}"


def _check_site(request: "Request", fleet: "Fleet", terms: PartitionTerms) -> None:
    """Raises if the site has settings that Slurm does not apply to a pinned job."""
    by_gpu = fleet.cpus_by_gpu or terms.cpus_by_gpu
    if by_gpu and not request.cpus_per_gpu and request.cpus_per_task <= 1:
        raise LeftToSlurm("DefCpuPerGPU counts for no job with a place; [hook] def_cpu_per_gpu of berth.conf does", 211)
    if fleet.one_task_per_core and (request.cpus_per_gpu or (request.tasks or 1) > 1) and not request.tasks_per_core:
        raise LeftToSlurm("with CR_ONE_TASK_PER_CORE Slurm counts CPUs of tasks and GPUs otherwise than a place", 211)


def _check_kept(cpus: int, k: int, fleet: "Fleet", allowed: "Bools") -> None:
    """Raises if a job needs more CPUs than are kept for its GPUs: only Slurm knows which other CPUs are free."""
    if fleet.cpus_kept is None:
        return
    kept = fleet.cpus_kept[allowed & (fleet.size >= k) & (fleet.cpus_kept > 0)]
    least = int(kept.min(initial=cpus)) * k
    if cpus > least:
        raise LeftToSlurm(
            f"{cpus} CPUs beside {k} GPUs of a node are more than the {least} that "
            "RestrictedCoresPerGPU keeps for them",
            211,
        )


def _check_even(request: "Request", n: int, k: int) -> None:
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


def _check_cpus_of_nodes(request: "Request", n: int) -> None:
    """Raises if a job wants more CPUs of a node than its tasks there take.

    Slurm starts it only where as many cores are free on the sockets of its GPUs. Without a pin other GPUs do as well.
    """
    as_a_guest = request.share is not None or "gpu-tier" in request.flags
    of_tasks = _tasks_on_each(request, n) * request.cpus_per_task
    if request.min_cpus_per_node > of_tasks and not (request.whole_nodes or as_a_guest):
        raise LeftToSlurm("--mincpus with more CPUs than the tasks of a node take", 207)


def _explain_the_impossible(request: "Request", fleet: "Fleet", names: Sequence[str], may_use: Allowed) -> None:
    """Raises if no node has a named feature, or enough GPUs: Slurm's own message would not name the cause.

    This does not refuse the job: Berth may not see a powered-down node, and a booting node may have other features.
    """
    allowed, largest = may_use.nodes, may_use.most
    if not largest:
        _explain_missing_features(request, fleet, names)
        return
    n = request.nodes or 1
    if request.total is not None and request.nodes is None:
        k = request.total
    else:
        k = request.per_node if request.per_node is not None else -(-(request.total or 0) // n)
    if k <= largest:
        return
    if request.total is not None and request.nodes is None and int(fleet.gpu_counts[allowed].sum()) >= request.total:
        return
    models = set(request.features) & _models(fleet, allowed)
    what = f"{k} {models.pop()} GPUs" if len(models) == 1 else f"{k} GPUs"
    raise Impossible(f"no node of partition {','.join(names)} holds {what}; the largest has {largest}", 222)


def _explain_missing_features(request: "Request", fleet: "Fleet", names: Sequence[str]) -> None:
    """Raises if no node, or none of these partitions, has one of the features."""
    nothing = np.zeros(len(fleet.names), np.bool_)
    inside = np.logical_or.reduce([nothing, *pools(fleet, names, 1)])
    for feature in request.features:
        having = fleet.features.get(feature, nothing)
        if not having.any():
            everywhere = np.ones(len(fleet.names), np.bool_)
            raise Impossible(f"no node has the GPU model or feature {feature}{_models_in(fleet, everywhere)}", 221)
        if not (having & inside).any():
            where = f"partition {','.join(names)}"
            raise Impossible(
                f"no node of {where} has the GPU model or feature {feature}{_models_in(fleet, inside)}", 221
            )


MOST_MODELS = 8
"""Most GPU models that one message names."""


def _models(fleet: "Fleet", nodes: "Bools") -> set[str]:
    """Returns the GPU models on some nodes that users can ask for: those with a feature of that name."""
    found = (fleet.models_at(place) for place in np.flatnonzero(nodes).tolist())
    return {model for models in found for model in models if model in fleet.features}


def _models_in(fleet: "Fleet", nodes: "Bools") -> str:
    models = sorted(_models(fleet, nodes))
    more = f" and {len(models) - MOST_MODELS} more" if len(models) > MOST_MODELS else ""
    return f"; GPU models here: {', '.join(models[:MOST_MODELS])}{more}" if models else ""
