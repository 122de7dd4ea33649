# SPDX-License-Identifier: Apache-2.0
"""The command `berth observe`, which reads a cluster that runs without Berth, and changes nothing there."""

from __future__ import annotations

import argparse
import re
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from policy.cli.output import print_json, some
from policy.formats.errors import SlurmError, UsageError
from policy.formats.plan_fields import ALL_REDUCE

if TYPE_CHECKING:
    from policy.cluster.fleet import Fleet
    from policy.formats.slurm_facts import Reading
    from policy.plan.answer.beside import RunningJob, Seen
    from topology.model import Machine

_FIRST = 30.0
"""The most seconds that the first reading takes on large clusters."""
_SHOWN = 10
"""The most jobs that each list shows."""
_DAYS = 7


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds `observe` to the parser of `berth`."""
    observe = subparsers.add_parser(
        "observe",
        help="what would be better on a cluster that runs without Berth; changes nothing",
        description="Reads nodes, jobs and accounting through Slurm's commands, as the user who calls it, and shows "
        "jobs with badly linked, spread or slow GPUs, and what jobs wait for.",
    )
    observe.add_argument(
        "--machine",
        action="append",
        default=[],
        metavar="WHERE=WHAT",
        help="describes nodes: WHERE is a host list, a GRES type or a feature; WHAT a topology FILE.json, FILE.txt "
        "with the output of nvidia-smi topo -m, or machine:NAME (machine:dgx-a100)",
    )
    observe.add_argument("--topology-dir", type=Path, metavar="DIR", help="topology files (default: of berth.conf)")
    observe.add_argument("--fabric", metavar="FILE", help="topology.conf or .yaml (default: beside slurm.conf)")
    observe.add_argument("--scores", type=Path, metavar="FILE", help="score table (default: scores of berth.conf)")
    observe.add_argument("--days", type=int, default=_DAYS, help=f"days of accounting; 0: none (default: {_DAYS})")
    observe.add_argument("--json", action="store_true", help="print JSON")
    observe.set_defaults(run=_run)


def _run(args: argparse.Namespace) -> int:
    from policy.cluster.untyped import numbered  # noqa: PLC0415 - keeps `berth --help` fast
    from policy.placement.registry import create  # noqa: PLC0415
    from policy.plan.answer.beside import Onlooker  # noqa: PLC0415
    from policy.plan.queue.plan import Plan  # noqa: PLC0415
    from policy.request.settings import Settings  # noqa: PLC0415
    from policy.slurm.by_command.command import CommandGateway  # noqa: PLC0415

    began = time.monotonic()
    gateway = CommandGateway()
    reading = numbered(_read(gateway))
    fleet, described = _fleet(args, reading)
    onlooker = Onlooker(fleet, described, create("berth"), Plan(create("berth"), Settings()))
    seen = onlooker.look(reading, _asked())
    took = time.monotonic() - began
    found: dict[str, Any] = {"took_s": round(took, 2), **_figures(seen, fleet)}
    if not args.json:
        sys.stdout.write("\n".join(_lines(seen, fleet, took)) + "\n")
        sys.stdout.flush()
    if args.days > 0:
        found["past"] = past = _past(args, fleet)
        if not args.json:
            sys.stdout.write(past["text"])
        past.pop("text")
    if args.json:
        print_json(found)
    return 0


def _read(gateway: Any) -> Reading:
    """Reads Slurm until the GPUs of all running jobs are known: each reading gets those of a few hundred jobs."""
    from policy.plan.answer.beside import holding  # noqa: PLC0415

    until = time.monotonic() + _FIRST
    reading: Reading = gateway.read(ended=False)
    missing = sum(not job.holds for job in holding(reading))
    while missing and time.monotonic() < until:
        reading = gateway.read(ended=False)
        before, missing = missing, sum(not job.holds for job in holding(reading))
        if missing >= before:
            break
    return reading


# Sources


def _fleet(args: argparse.Namespace, reading: Reading) -> tuple[Fleet, frozenset[str]]:
    """Returns the fleet, and the names of the nodes whose links are known."""
    from policy.cluster.cost import CostModel  # noqa: PLC0415
    from policy.cluster.fleet import build_fleet, scores_on  # noqa: PLC0415
    from policy.site.config import config_path, fabric_file, load  # noqa: PLC0415
    from topology import scores  # noqa: PLC0415
    from topology.files import load_directory  # noqa: PLC0415
    from topology.network.fabric import Fabric  # noqa: PLC0415
    from topology.providers import slurm_fabric  # noqa: PLC0415

    config = load(config_path())
    folder = args.topology_dir or config.topology_dir
    if args.topology_dir and not folder.is_dir():
        raise UsageError(f"--topology-dir: {folder} is no folder")
    machines = load_directory(folder, _say) if folder.is_dir() else {}
    machines |= _described(args.machine, reading)
    described = frozenset(machines)
    blank = {node.name: _blank(node.name, node.gpus) for node in reading.nodes if node.gpus}
    machines = {**blank, **machines}
    source = fabric_file(args.fabric or config.fabric)
    fabric = Fabric.of(machines.values(), slurm_fabric.read(source) if source else None)
    fleet = build_fleet(
        reading.nodes,
        reading.partitions,
        machines,
        reading.memory,
        memory_counts=reading.memory_counts,
        in_all_partitions=reading.in_all_partitions,
        fabric=fabric,
        costs=CostModel.of_site(config.cost_lines()),
    )
    table = args.scores or config.scores
    return (replace(fleet, scores=scores_on(fleet, scores.load(table))) if table else fleet), described


def _blank(node: str, size: int) -> Machine:
    """Returns a machine of which only the number of GPUs is known: gangs on it can still be counted."""
    from topology.model import Gpu, Machine  # noqa: PLC0415

    return Machine(node, "gpu", tuple(Gpu(place, place, f"GPU-{node}-{place}") for place in range(size)), ())


def _described(words: Sequence[str], reading: Reading) -> dict[str, Machine]:
    """Returns the machines of --machine by node; the last one that names a node counts."""
    from policy.cli.topo.sources import machines as meant  # noqa: PLC0415
    from topology.hostlist import expand  # noqa: PLC0415

    found: dict[str, Machine] = {}
    types = _types() if words else {}
    for word in words:
        where, equals, what = word.partition("=")
        if not (where and equals and what):
            raise UsageError(f"--machine {word!r}: write WHERE=WHAT, such as a100=machine:dgx-a100")
        named = set(expand(where))
        nodes = [
            node.name
            for node in reading.nodes
            if node.gpus
            and (node.name in named or where in node.features or where in types.get(node.name, frozenset()))
        ]
        if not nodes:
            raise UsageError(f"--machine {word!r}: no GPU node has this name, GRES type or feature")
        machine, *more = meant([what], argparse.Namespace(topology_dir=None))
        if more:
            raise UsageError(f"--machine {word!r}: {what} is a rack; name one node of it by a topology file")
        found |= {node: _on(machine, node) for node in nodes}
    return found


def _on(machine: Machine, node: str) -> Machine:
    """Returns the machine as that of a node, with place-holders as UUIDs, since no GPU is in two nodes."""
    gpus = tuple(replace(gpu, uuid=f"GPU-{node}-{gpu.position}") for gpu in machine.gpus)
    return replace(machine, node=node, gpus=gpus, domain="")


def _types() -> dict[str, frozenset[str]]:
    """Returns the GRES types of each node's GPUs."""
    from policy.slurm.by_command.command import run_command  # noqa: PLC0415

    printed = run_command("sinfo", "-h", "-a", "-N", "-O", "NodeList:|,Gres:|").decode("utf-8", "replace")
    lines = (line.strip().split("|") for line in printed.splitlines())
    return {line[0]: frozenset(re.findall(r"gpu:([A-Za-z_][^:,()]*):", line[1])) for line in lines if len(line) > 1}


_COUNT = re.compile(r"gres[:/]gpu(?:[:=][^:=,]*?)??(?:[:=](\d+))?(?=,|$)")


def _asked() -> dict[int, int]:
    """Returns by job the number of GPUs that waiting jobs ask for, if their requests have it."""
    from policy.slurm.by_command import text  # noqa: PLC0415
    from policy.slurm.by_command.command import run_command  # noqa: PLC0415

    mark = text.new_mark()
    fields = ("JobID", "NumNodes", "NumTasks", "tres-per-job", "tres-per-node", "tres-per-task")
    printed = run_command("squeue", "-h", "-a", "-r", "-t", "PENDING", "-O", text.squeue_format(fields, mark))
    found: dict[int, int] = {}
    for job, nodes, tasks, by_job, by_node, by_task in text.squeue_records(printed.decode("utf-8", "replace"), mark, 6):
        for request, times in ((by_job, "1"), (by_node, nodes), (by_task, tasks)):
            counts = [int(match or 1) for match in _COUNT.findall(request)]
            if counts and times.isdigit():
                found[int(job)] = sum(counts) * int(times)
                break
    return found


def _past(args: argparse.Namespace, fleet: Fleet) -> dict[str, Any]:
    """Returns the figures of the last days from the accounting, with tables on waits and places."""
    from policy.cli.past import report  # noqa: PLC0415

    gpus = {name: int(count) for name, count in zip(fleet.names, fleet.gpu_counts, strict=True) if count}
    try:
        return report.past(args.days, gpus, args.fabric)
    except SlurmError as problem:
        return {"problem": str(problem), "text": f"\nAccounting: {problem}\n"}


# Words


def _figures(seen: Seen, fleet: Fleet) -> dict[str, Any]:
    several = [one for one in seen.running if len(one.got.nodes) > 1]
    return {
        "gpus": seen.gpus,
        "free_gpus": seen.free,
        "nodes": seen.nodes,
        "links_not_known": seen.without_links,
        "running": len(seen.running) + seen.unread,
        "not_compared": seen.unread,
        "on_one_node": sum(_compared(one) for one in seen.running),
        "unlinked": [_job(one) for one in seen.running if one.unlinked],
        "weaker": [_job(one) for one in seen.running if one.weaker],
        "better_now": [_job(one) for one in seen.running if one.best is not None],
        "on_several_nodes": len(several),
        "more_leaves": [_job(one) for one in several if one.spread],
        "more_nodes": [_job(one) for one in several if one.scattered],
        "scores_known": bool(fleet.scores),
        "slow": [_job(one) for one in seen.running if one.slow],
        "waiting": {
            reason: {"jobs": len(jobs), "ids": [job.id for job in jobs[:_SHOWN]]} for reason, jobs in seen.waits.items()
        },
        "planned": [
            {"job": move.job.id, "nodes": move.berth.names, "gpus": move.berth.gpus, "start": move.start}
            for move in seen.planned
        ],
    }


def _job(one: RunningJob) -> dict[str, Any]:
    found: dict[str, Any] = {
        "job": one.job.id,
        "nodes": one.got.names,
        "gpus": [_positions(mask) for mask in one.got.masks],
        "min_gbps": one.got.min_gbps,
        "sum_gbps": one.got.sum_gbps,
        "all_reduce_gbps": round(ALL_REDUCE * one.got.cut, 1),
    }
    if one.best is not None:
        better = {"min_gbps": one.best.min_gbps, "all_reduce_gbps": round(ALL_REDUCE * one.best.cut, 1)}
        found["better"] = {"nodes": one.best.names, "gpus": one.best.gpus, **better}
    if one.leaves:
        found |= {"leaves": one.leaves, "leaves_needed": one.leaves_needed}
    if one.slow:
        found["slow"] = one.slow
    return found


def _positions(mask: int) -> list[int]:
    return [place for place in range(mask.bit_length()) if mask >> place & 1]


def _compared(one: RunningJob) -> bool:
    return len(one.got.nodes) == 1 and one.got.masks[0].bit_count() > 1


def _lines(seen: Seen, fleet: Fleet, took: float) -> Iterator[str]:
    single = [one for one in seen.running if _compared(one)]
    several = [one for one in seen.running if len(one.got.nodes) > 1]
    yield f"Read in {took:.1f} s with Slurm's commands; nothing was changed."
    yield (
        f"{seen.gpus} GPUs on {seen.nodes} nodes, {seen.free} free; {len(seen.running) + seen.unread} GPU jobs run, "
        f"{sum(map(len, seen.waits.values()))} wait. Links known on {seen.nodes - len(seen.without_links)} nodes."
    )
    if seen.without_links:
        yield (
            f"Links not known: {some(seen.without_links)}; describe these nodes with --machine TYPE=machine:NAME, or "
            "with TYPE=FILE.txt, which holds what `nvidia-smi topo -m` prints there."
        )
    for reason in list(fleet.not_ready.values())[:3]:
        yield f"Not compared: {reason}."
    yield ""
    yield f"Jobs with several GPUs of one node: {len(single)}"
    yield from _listed("a pair without NVLink, where the node has linked sets", [one for one in single if one.unlinked])
    weaker = [one for one in single if one.weaker and not one.unlinked]
    yield from _listed("linked, with a slower all-reduce than on the node's best set", weaker)
    yield from _listed("better GPUs are free at this moment", [one for one in single if one.best is not None])
    yield f"Jobs on several nodes: {len(several)}"
    yield from _listed("in more leaves than needed", [one for one in several if one.spread])
    yield from _listed(
        "on more nodes than their GPUs need (some may have asked for them)", [one for one in several if one.scattered]
    )
    if fleet.scores:
        yield from _listed("jobs with a slow GPU", [one for one in seen.running if one.slow])
    else:
        yield "Slow GPUs: not known, since there is no score table (berth calibrate makes one; --scores FILE)"
    yield f"Waiting GPU jobs: {sum(map(len, seen.waits.values()))}"
    for reason, jobs in sorted(seen.waits.items(), key=lambda item: -len(item[1])):
        yield f"  {reason}: {len(jobs)}"
    now = [move for move in seen.planned if move.start <= 0]
    if now:
        yield f"  of these, {len(now)} fit on free GPUs now without delaying an earlier one, by Berth's plan:"
        yield from (f"    JobId={move.job.id}: {_place(move.berth)}" for move in now[:_SHOWN])


def _listed(title: str, jobs: Sequence[RunningJob]) -> Iterator[str]:
    yield f"  {title}: {len(jobs)}"
    for one in jobs[:_SHOWN]:
        yield f"    {_line(one)}"
    if len(jobs) > _SHOWN:
        yield f"    and {len(jobs) - _SHOWN} more"


def _line(one: RunningJob) -> str:
    from policy.plan.answer import told  # noqa: PLC0415

    text = f"JobId={one.job.id} {_place(one.got)}"
    if len(one.got.nodes) == 1:
        text += f": {told.links(one.got)}"
    if one.leaves > one.leaves_needed:
        text += f", {one.leaves} leaves where {one.leaves_needed} would do"
    if one.slow:
        text += "".join(f", {node} GPU {gpu} takes {score - 1:.0%} longer" for node, gpu, score in one.slow[:3])
    if one.best is not None:
        text += f"; free now: {_place(one.best)} ({told.links(one.best)})"
    return text


def _place(berth: Any) -> str:
    from policy.formats.hostlist import fold_numbers  # noqa: PLC0415
    from policy.plan.answer import told  # noqa: PLC0415

    if len(set(berth.masks)) == 1:
        return told.place(berth)
    parts = (
        f"{name} GPUs {fold_numbers(tuple(_positions(mask)))}"
        for name, mask in zip(berth.names[:4], berth.masks[:4], strict=True)
    )
    return "; ".join(parts) + (f" and {len(berth.names) - 4} more" if len(berth.names) > 4 else "")


def _say(problem: object) -> None:
    sys.stderr.write(f"berth: {problem}\n")
