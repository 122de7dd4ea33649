# SPDX-License-Identifier: Apache-2.0
"""The command `berth nodes`, which shows the GPUs of the nodes: one row for each node, one cell for each GPU."""

import argparse
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from policy.cli import ask
from policy.cli.listing import Column, add_list_options, columns_of, list_parser, print_list, span
from policy.formats import hostlist
from policy.formats.errors import BerthError
from policy.site.config import config_path, load
from policy.site.overview import user_of

SLOW = 1.10
"""The score from which on a cell shows it: the GPU takes 10 % more time than is typical."""

_USUAL = ("node", "model", "state", "free", "gpus")

LEGEND = (
    "GPUs, with a bar between NVLink islands; 3:. is GPU 3, where an island's GPUs are not neighbours by number. "
    ". free; (7) free, job 7 starts there next; 7 owned by job 7; 60% packed jobs have so much of it; ? taken, Slurm "
    "does not say by whom; * a job that you may not see. Behind it: +8 with guest 8; x takes no guest; !1.13 takes "
    "13 % more time than is typical. A node that takes no jobs shows - for free. With --domains: UP, the trays that "
    "take jobs; WHOLE, those of which no job has a GPU; FREE, the free GPUs of each tray."
)


def register(commands: Any) -> None:
    """Adds the command."""
    parser = list_parser(
        commands, "nodes", help="the GPUs of the nodes: which jobs hold and share them, which are slow", epilog=LEGEND
    )
    parser.add_argument("-n", "--nodes", metavar="LIST", help="only these nodes, such as n[1-4]")
    parser.add_argument("-p", "--partition", metavar="NAMES", help="only nodes of these partitions")
    parser.add_argument("--domains", action="store_true", help="a row for each NVLink domain, a cell for each tray")
    parser.add_argument("--idle", action="store_true", help="only GPUs that a job holds and that run no kernel")
    add_list_options(parser, COLUMNS, _USUAL)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Prints the map of the GPUs."""
    columns = columns_of(options.format, COLUMNS)
    config = load(config_path())
    found = ask.fleet(config)
    nodes = chosen(found["nodes"], options.nodes, options.partition)
    names = {node["name"] for node in nodes} if options.nodes or options.partition else None
    held = [one for one in found["idle"] if names is None or one["node"] in names]
    about = {"schema_version": found["schema_version"], "at": found["at"]}
    if options.idle:
        rows = idle_gpus(held, ask.queue(config)["jobs"], found["at"])
        return print_list(options, {**about, "gpus": rows}, rows, _IDLE_COLUMNS)
    if options.domains:
        rows = domains_of(nodes)
        return print_list(options, {**about, "domains": rows}, rows, _DOMAIN_COLUMNS)
    return print_list(options, {**found, "nodes": nodes, "idle": held}, with_cells(nodes), columns)


def idle_gpus(idle: Iterable[Mapping[str, Any]], jobs: Iterable[Mapping[str, Any]], at: float) -> list[dict[str, Any]]:
    """Returns the idle GPUs with their jobs, the longest idle first, with the seconds until the time `at`."""
    by_id, found = {job["id"]: job for job in jobs}, []
    for one in idle:
        job = by_id.get(one["job"], {})
        held = {**{key: one[key] for key in ("node", "gpu", "job")}, "name": job.get("name", "")}
        ages = {f"{key}_s": since and int(at - since) for key in ("no_kernel", "no_process") for since in [one[key]]}
        found.append({**held, "user_id": job.get("user_id"), **ages, "memory_mib": one["memory_mib"]})
    return sorted(found, key=lambda one: -one["no_kernel_s"])


_IDLE_COLUMNS = (
    Column("NODE", lambda gpu: str(gpu["node"])),
    Column("GPU", lambda gpu: str(gpu["gpu"]), right=True),
    Column("JOBID", lambda gpu: str(gpu["job"]), right=True),
    # salloc calls a job "interactive" if its user gives it no name.
    Column("NAME", lambda gpu: str(gpu["name"]), width=16),
    Column("USER", lambda gpu: user_of(gpu["user_id"]) if gpu["user_id"] is not None else "-"),
    Column("NO_KERNEL", lambda gpu: span(gpu["no_kernel_s"]), right=True),
    Column("NO_PROCESS", lambda gpu: span(gpu["no_process_s"]) if gpu["no_process_s"] else "-", right=True),
    Column("MIB", lambda gpu: str(gpu["memory_mib"]), right=True),
)


def domains_of(nodes: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Returns the NVLink domains of the nodes, as the driver names them, or the blocks or leaves of Slurm's file.

    Each tray has its number of free GPUs; None if it takes no jobs.
    """
    found: dict[str, dict[str, Any]] = {}
    for node in nodes:
        name = node.get("domain") or node.get("leaf") or "-"
        domain = found.setdefault(name, {"domain": name, "trays": [], "up": 0, "whole": 0})
        up = node["state"] not in {"down", "reserved"}
        domain["trays"].append({"node": node["name"], "free": free_of(node) if up else None})
        domain["up"] += up
        domain["whole"] += up and free_of(node) == len(node["gpus"])
    return list(found.values())


_DOMAIN_COLUMNS = (
    Column("DOMAIN", lambda domain: str(domain["domain"])),
    Column("NODES", lambda domain: hostlist.fold([tray["node"] for tray in domain["trays"]])),
    Column("UP", lambda domain: f"{domain['up']}/{len(domain['trays'])}", right=True),
    Column("WHOLE", lambda domain: str(domain["whole"]), right=True),
    Column(
        "FREE",
        lambda domain: " ".join("-" if (free := tray["free"]) is None else str(free) for tray in domain["trays"]),
    ),
)


def chosen(nodes: Iterable[Mapping[str, Any]], names: str | None, partitions: str | None) -> list[Mapping[str, Any]]:
    """Returns the nodes that the user asked for; raises BerthError for a node that has no GPUs or does not exist."""
    found = list(nodes)
    if names is not None:
        wanted = hostlist.expand_short(names)
        by_name = {node["name"]: node for node in found}
        if missing := [name for name in wanted if name not in by_name]:
            raise BerthError(f"{hostlist.fold(missing)}: Slurm has no such nodes with GPUs; berth nodes lists all")
        found = [by_name[name] for name in wanted]
    if partitions is not None:
        inside = set(partitions.split(","))
        found = [node for node in found if not inside.isdisjoint(node["partitions"])]
    return found


def with_cells(nodes: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Returns the nodes with their cells as text, all of one width so that the rows make a map."""
    rows = [{**node, "groups": _groups(len(node["gpus"]), node["islands"])} for node in nodes]
    for row in rows:
        order = [place for group in row["groups"] for place in group]
        # If the GPUs of an island are not neighbours by number, each cell shows its GPU's number.
        numbered = order != sorted(order)
        row["cells"] = {place: f"{place}:{_cell(row, place)}" if numbered else _cell(row, place) for place in order}
    width = max((len(cell) for row in rows for cell in row["cells"].values()), default=1)
    return [{**row, "map": _joined(row["groups"], row["cells"], width)} for row in rows]


def _groups(count: int, islands: Sequence[Sequence[int]]) -> list[list[int]]:
    """Returns the positions by NVLink island; all in one group if islands overlap, or there are none.

    >>> _groups(4, [[0, 3], [1, 2]]), _groups(3, [[0, 1], [1, 2]]), _groups(2, [])
    ([[0, 3], [1, 2]], [[0, 1, 2]], [[0, 1]])
    """
    inside = [position for island in islands for position in island if position < count]
    if not inside or len(inside) != len(set(inside)):
        return [list(range(count))]
    alone = [[position] for position in range(count) if position not in inside]
    return sorted([*map(list, islands), *alone])


def slowest(node: Mapping[str, Any], place: int) -> float:
    """Returns the worst score of a GPU, over all application classes."""
    return max((row[place] for row in node.get("scores", {}).values() if place < len(row)), default=1.0)


def _cell(node: Mapping[str, Any], place: int) -> str:
    gpu = node["gpus"][place]
    state = gpu["state"]
    if state == "owned":
        text = _job(gpu["owner"])
    elif state == "packed":
        text = f"{sum(part['percent'] for part in gpu['packed'])}%"
    elif state == "taken":
        text = "?"
    elif "planned" in gpu:
        text = f"({_job(gpu['planned'])})"
    else:
        text = "-" if node["state"] in {"down", "reserved"} else "."
    if "guest" in gpu:
        text += f"+{_job(gpu['guest'])}"
    if gpu.get("closed"):
        text += "x"
    if (score := slowest(node, place)) >= SLOW:
        text += f"!{score:.2f}"
    return text


def _job(number: int | None) -> str:
    return "*" if number is None else str(number)


def _joined(groups: Sequence[Sequence[int]], cells: Mapping[int, str], width: int) -> str:
    """Joins cells, with a bar between islands."""
    return " | ".join(" ".join(cells[place].ljust(width) for place in group) for group in groups)


def free_of(node: Mapping[str, Any]) -> int:
    """Returns the number of a node's free GPUs; 0 if the node takes no jobs."""
    return 0 if node["state"] in {"down", "reserved"} else sum(gpu["state"] == "free" for gpu in node["gpus"])


COLUMNS = {
    "node": Column("NODE", lambda node: str(node["name"])),
    "model": Column("MODEL", lambda node: node["model"] or "-"),
    "partition": Column("PARTITION", lambda node: ",".join(node["partitions"])),
    "state": Column("STATE", lambda node: str(node["state"])),
    "free": Column("FREE", lambda node: f"{free_of(node)}/{len(node['gpus'])}", right=True),
    "gpus": Column("GPUS", lambda node: str(node["map"])),
    "domain": Column("DOMAIN", lambda node: node.get("domain", "-")),
    "leaf": Column("LEAF", lambda node: node.get("leaf", "-")),
    "pod": Column("POD", lambda node: node.get("pod", "-")),
    "slowest": Column(
        "SLOWEST", lambda node: f"{max((slowest(node, place) for place in range(len(node['gpus']))), default=1.0):.2f}"
    ),
    "problem": Column("PROBLEM", lambda node: node.get("problem", "")),
}
