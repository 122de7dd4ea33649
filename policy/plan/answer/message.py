"""The message: one line that a user reads after submission."""

import re
from collections.abc import Collection, Iterable

from policy.formats import hostlist
from policy.formats.job_plan import JobPlan
from policy.formats.messages import MOST_BYTES, tag
from policy.formats.plan_fields import LEVEL, NODES, START
from policy.placement.base import Berth
from policy.request.demand import Demand, binding
from policy.request.locality import Insistence
from policy.request.settings import Settings
from policy.request.share import Share
from policy.request.submission import Request

_NOT_PRINTABLE = re.compile(r"[^ -~]")


def placed(berth: Berth, share: Share | None = None) -> str:
    """Describes a place that is free now."""
    return f"{place(berth, share)}: {links(berth)}{_NEAR.get(berth.level, '') if len(berth.names) > 1 else ''}"


_NEAR = {"nvlink": ", all in one NVLink domain", "leaf": ", all in one leaf", "pod": ", all in one pod"}


def waiting(berth: Berth, demand: Demand, seconds: float, insists: Insistence | None) -> str:
    """Describes a place that comes free later."""
    text = f"waits for {place(berth, demand.share)}, expected in {duration(seconds)}"
    level = binding(insists.level, demand.n) if insists else ""
    if insists and insists.wait and level in _FOR and demand.gpus > 1:
        text += f"; waits up to {duration(insists.wait)} for {_FOR[level]}"
    return text


_FOR = {"nvlink": "NVLink between all pairs", "leaf": "nodes of one leaf", "pod": "nodes of one pod"}


def on_nodes(plan: JobPlan, now: float) -> str:
    """Returns the line about a place of which Slurm chooses the GPUs, from the plan."""
    names = plan[NODES]
    where = ",".join(names) if len(names) <= 4 else f"{','.join(names[:3])} and {len(names) - 3} more"
    near = _NEAR.get(plan.get(LEVEL, ""), "") if len(names) > 1 else ""
    if start := plan.get(START):
        return line(f"waits for {where}{near}, expected in {duration(max(0, start - int(now)))}", 102)
    return line(f"{where}{near}; Slurm chooses its GPUs there", 101)


def place(berth: Berth, share: Share | None = None) -> str:
    """Names nodes and GPUs in short, such as `n1 GPUs 0,3` or `30 % of n1 GPU 0, with 12288 MiB`."""
    names = (
        ",".join(berth.names)
        if len(berth.names) <= 4
        else f"{','.join(berth.names[:3])} and {len(berth.names) - 3} more"
    )
    gpus = f"{names} GPU{'s' if len(berth.gpus) > 1 else ''} {hostlist.fold_numbers(berth.gpus)}"
    if share is None:
        return gpus
    memory = "" if share.gpu_mem is None else f", with {share.gpu_mem} MiB{' of each' if len(berth.gpus) > 1 else ''}"
    counts = f", which counts as {berth.percent} %" if berth.percent > share.percent else ""
    return f"{share.percent} % of {gpus}{memory}{counts}"


def links(berth: Berth) -> str:
    """Describes how the GPUs on a node are linked."""
    pairs = len(berth.gpus) * (len(berth.gpus) - 1) // 2
    if not pairs:
        return "one GPU on each node" if len(berth.names) > 1 else "one GPU"
    on_each = " on each node" if len(berth.names) > 1 else ""
    if berth.min_gbps > 0:
        least = "" if abs(berth.sum_gbps - berth.min_gbps * pairs) < 0.05 * pairs else "at least "
        return f"NVLink {least}{gbps(berth.min_gbps)} between every pair{on_each}"
    if berth.sum_gbps > 0:
        return f"NVLink joins some pairs{on_each}, {gbps(berth.sum_gbps)} in all"
    without = "no NVLink between those of a node" if on_each else "no NVLink between them"
    return f"{without}, {gbps(berth.paths[0])} between the farthest two"


def notes(flags: Collection[str]) -> list[str]:
    """Returns notes about flags that do nothing by themselves."""
    if "gpu-mem" in flags and not {"gpu-share", "gpu-tier"} & set(flags):
        return ["--gpu-mem: accepted, it acts beside --gpu-share or --gpu-tier"]
    return []


def notes_of(request: Request, settings: Settings) -> list[str]:
    """Returns the notes about a request, with those on `--movable` by the site's settings."""
    said = notes(request.flags)
    if "movable" in request.flags:
        if not settings.moving.enabled:
            said.append("--movable: accepted, this site moves no jobs")
        elif why := _never_moved(request):
            said.append(f"--movable: accepted, {why} is never moved")
    return said


def _never_moved(request: Request) -> str:
    if not request.batch:
        return "a job without a script"
    if request.het:
        return "a part of a heterogeneous job"
    return "a packed job" if request.share else ""


def line(text: str, number: int, more: Iterable[str] = ()) -> str:
    """Returns one printable line of at most 512 bytes, with its id at the end."""
    whole = "; ".join([f"berth: {text}", *more])
    whole = _NOT_PRINTABLE.sub("?", whole)
    end = tag(number)
    most = MOST_BYTES - len(end)
    return (whole if len(whole) <= most else whole[: most - 3] + "...") + end


def gbps(value: float) -> str:
    """Formats a bandwidth with its unit."""
    return f"{value:.0f} GB/s" if value == int(value) or value >= 100 else f"{value:.1f} GB/s"


def duration(seconds: float) -> str:
    """Formats a time in a readable unit."""
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    if seconds < 90 * 60:
        return f"{round(seconds / 60)} min"
    if seconds < 48 * 3_600:
        return f"{round(seconds / 3_600)} h"
    return f"{round(seconds / 86_400)} days"
