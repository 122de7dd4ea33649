# SPDX-License-Identifier: Apache-2.0
"""Compares two outcomes of a request; docs/develop/like-plain.md lists the differences that are allowed."""

from __future__ import annotations

import re

from .outcome import Outcome, Request

Totals = tuple[int, int, int, int]


def totals(outcome: Outcome) -> Totals:
    """Nodes, tasks, CPUs of all nodes, and GPUs of all nodes as far as one task of each sees them."""
    nodes = [node for node in outcome.tasks if node]
    cpus = sum(node[0][0] for node in nodes)
    return len(nodes), sum(map(len, nodes)), cpus, sum(max(task[1] for task in node) for node in nodes)


ENVIRONMENT: dict[str, str] = {}
"""Variables that may differ where the tasks are the same, each with its reason (docs/develop/like-plain.md)."""

OF_FIRST_NODE = {"SLURM_CPUS_ON_NODE", "SLURM_GPUS_ON_NODE"}
"""Lists go by the nodes' names, and of unlike nodes another may be the first."""

ALLOCATES = {"srun", "SLURM_", "salloc", "SALLOC_"}
"""Commands whose allocation a step follows: a pin says their GPUs for the whole job."""

VISIBLE = {"CUDA_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL", "ROCR_VISIBLE_DEVICES", "ZE_AFFINITY_MASK"}
"""Beside --gpu-bind=none Slurm names GPUs in these as it likes, and a task can open them all."""


def difference(request: Request, plain: Outcome, berth: Outcome) -> str:
    """What a user would miss with Berth; empty where nothing."""
    if plain == berth:
        unlike = len(set(plain.tasks)) > 1
        names = changed_variables(plain, berth, in_parts=unlike or ":" in request.options) - ENVIRONMENT.keys()
        if unlike:
            names -= OF_FIRST_NODE
        if "--gpu-bind=none" in request.options:
            names -= VISIBLE
        return f"other variables: {', '.join(sorted(names))}" if names else ""
    if _allowed(request, plain, berth):
        return ""
    if plain.rc == berth.rc == 0 and plain.said != berth.said:
        return f"it says {berth.said!r}, not {plain.said!r}"
    if (plain.rc, plain.tasks, plain.steps) == (berth.rc, berth.tasks, berth.steps) and plain.rc == 0:
        return f"it holds {berth.has}, not {plain.has}"
    if plain.rc == 0 and berth.rc != 0:
        return "plain Slurm runs it, Berth does not"
    if plain.rc != 0:
        return "plain Slurm refuses it in other words"
    return "other tasks, CPUs or GPUs"


def changed_variables(plain: Outcome, berth: Outcome, *, in_parts: bool = False) -> set[str]:
    """The variables of the first task that differ; of parts, lists go by the names of their nodes."""
    one, other = plain.environment, berth.environment

    def shown(value: str | None) -> object:
        return sorted(value.split(",")) if value is not None and in_parts else value

    return {name for name in {*one, *other} if shown(one.get(name)) != shown(other.get(name))}


def names_other_gpus(plain: Outcome, berth: Outcome) -> bool:
    """Tells whether only the number of GPUs that CUDA_VISIBLE_DEVICES names differs."""
    one, other = ([task for node in outcome.tasks for task in node] for outcome in (plain, berth))
    same = [task[:2] for task in one] == [task[:2] for task in other] and plain.has == berth.has
    return same and all(task[2] <= task[1] for task in (*one, *other))


def other_cores(plain: Outcome, berth: Outcome) -> bool:
    """Tells whether only the cores of tasks differ."""
    one, other = ([task for node in outcome.tasks for task in node] for outcome in (plain, berth))
    return [task[1:] for task in one] == [task[1:] for task in other] and plain.has == berth.has


def single_beside_tasks_per_gpu(words: tuple[str, ...]) -> bool:
    """Whether srun asks for as many GPUs of each node as the first has (26.05), which Slurm then counts by type."""
    counted = ("--gpus", "--gres=gpu", "--tres-per-task")
    by_tasks = any(word.startswith("--ntasks-per-gpu") for word in words)
    return by_tasks and "--gpu-bind=single:1" in words and not any(word.startswith(counted) for word in words)


def nodes_of(outcome: Outcome) -> int:
    """Nodes that the jobs of a request hold together."""
    return sum(map(int, re.findall(r"\bnode=(\d+)", outcome.has)))


def cpus_held(outcome: Outcome) -> int:
    """CPUs that the jobs of a request hold together."""
    return sum(map(int, re.findall(r"\bcpu=(\d+)", outcome.has)))


def _waits_for_one_node(words: tuple[str, ...], plain: Outcome, berth: Outcome) -> bool:
    """Tells whether a job of a kind that waits for one place does so, where plain Slurm starts it on several nodes."""
    in_both_ways = "-n" in {word[:2] for word in words} and any(word.startswith("--ntasks-per-node") for word in words)
    if not (":" in words or in_both_ways):
        return False
    in_all = any(word.startswith(("--gpus=", "--gpus-per-task", "--tres-per-task")) for word in words)
    on_each = any(word.startswith(("-N", "-w", "--gres=gpu", "--gpus-per-node")) for word in words)
    waits = berth.rc == 124 or "Requested nodes are busy" in berth.said
    return in_all and not on_each and waits and plain.rc == 0 and nodes_of(plain) > 1


def _without_nodes(has: str) -> str:
    return re.sub(r"\bnode=\d+", "", has)


def _allowed(request: Request, plain: Outcome, berth: Outcome) -> bool:
    words = request.options
    if berth.steps != plain.steps and single_beside_tasks_per_gpu(words):
        return True
    if (plain.rc != 0 or not plain.tasks) and berth.rc == 0:
        # Slurm's own count refuses what there is room for.
        return True
    if _waits_for_one_node(words, plain, berth):
        return True
    if plain.rc != berth.rc:
        return False
    if "--gpu-bind=none" in words and names_other_gpus(plain, berth):
        # Slurm names some of the GPUs, all or none, by their types and where they lie.
        return True
    asks = any(word.startswith(("--gpus", "--gres=gpu", "--tres-per-task")) for word in words if word != "--gres=gpu:0")
    fewer_tasks = "-n1" in request.step and nodes_of(plain) > 1
    spare = fewer_tasks or "--exclusive" in words or any(word.startswith("--mincpus") for word in words)
    if spare and other_cores(plain, berth):
        # Where a job has cores to spare, 24.11 gives a step those beside its GPUs alone, or all, as these lie.
        return True
    on_each = any(word.startswith(("--gres=gpu", "--gpus-per-node")) for word in words)
    if asks and not on_each and plain.tasks == berth.tasks and nodes_of(berth) < nodes_of(plain):
        return _without_nodes(plain.has) == _without_nodes(berth.has)
    if cpus_held(berth) > cpus_held(plain):
        return False
    by_sockets = on_each and request.command in ALLOCATES and any(word.startswith("-n") for word in words)
    if by_sockets and totals(plain) == totals(berth) and plain.has == berth.has:
        # Slurm lays the tasks 2 and 2 where it lays 3 and 1 of GPUs of each node.
        return True
    if asks and on_each and not any(word.startswith("-N") for word in words) and nodes_of(berth) < nodes_of(plain):
        return totals(plain)[1] == totals(berth)[1]
    if asks and not on_each and max(len(plain.tasks), len(berth.tasks)) > 1:
        # GPUs of the whole job: Slurm lays tasks and GPUs as it likes, Berth alike on as few nodes as can be.
        return totals(plain)[1] == totals(berth)[1] and len(berth.tasks) <= len(plain.tasks)
    return False
