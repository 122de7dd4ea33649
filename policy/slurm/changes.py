"""What is written into a job to pin, release or annotate it: the same through every gateway.

The keys are the names that the fields have in Slurm's job description.
"""

from collections.abc import Mapping

from policy import segment
from policy.errors import FormatError, SlurmError
from policy.slurm.interface import JobText, Pin


def pin(job: JobText, place: Pin) -> dict[str, str]:
    """A place. `disable_job_shrink` keeps an update that comes too late from harming a running job."""
    _must_wait(job)
    nodes = ",".join(place.nodes)
    return {
        **_typed(job, place),
        "req_nodes": nodes,
        "admin_comment": segment.put(job.admin_comment, place.values),
        "extra": segment.put(job.extra, {"nodes": nodes, "gpus": ",".join(map(str, place.gpus))}),
    }


def release(job: JobText, reason: str) -> dict[str, str] | None:
    """A request equal to the user's; None where the job has no pin (any more)."""
    _must_wait(job)
    values = segment.fields(job.admin_comment)
    if values is None or values.get("state") not in segment.PINNED_STATES:
        return None
    asked = dict(item.partition(":")[::2] for item in values.get("asked", "").split(";"))
    kept = {key: value for key, value in values.items() if key not in {"nodes", "gpus", "seats", "start"}}
    return {
        **_untyped(job, values),
        "req_nodes": asked.get("req_nodes", ""),
        "admin_comment": segment.put(job.admin_comment, {**kept, "state": "released", "why": reason}),
        "extra": segment.remove(job.extra),
    }


def annotate(job: JobText, values: Mapping[str, str]) -> dict[str, str]:
    """Another segment."""
    return {"admin_comment": segment.put(job.admin_comment, values)}


def segment_of(admin_comment: str) -> dict[str, str] | None:
    """The segment of a job, or None where it has none that this Berth can read."""
    try:
        return segment.fields(admin_comment)
    except FormatError:
        return None


def _must_wait(job: JobText) -> None:
    if job.state != "PENDING":
        raise SlurmError(f"job {job.id} is {job.state.lower()}, only the place of a waiting job can change")


def _pinned_by_job(job: JobText) -> bool:
    # The plugin pins a job without a script by job, because srun would trip over the other form; keep its choice.
    return "gres/gpu:g" in job.tres_per_job


def _typed(job: JobText, place: Pin) -> dict[str, str]:
    """The request for exactly these GPUs; by job, each type counts once for each node."""
    by_job = _pinned_by_job(job)
    count = len(place.nodes) if by_job else 1
    kinds = ("gpu", "seat") if place.seats else ("gpu",)
    tres = ",".join(f"gres/{kind}:g{gpu}:{count}" for kind in kinds for gpu in place.gpus)
    if by_job:
        return {"tres_per_job": tres}
    # A job that no plugin saw may ask by job; Slurm refuses such a number beside typed GPUs.
    return {"tres_per_node": tres, **({"tres_per_job": ""} if job.tres_per_job else {})}


def _untyped(job: JobText, values: Mapping[str, str]) -> dict[str, str]:
    """As many GPUs, of Slurm's choice."""
    try:
        n, k = int(values["n"]), int(values["k"])
    except (KeyError, ValueError):
        raise SlurmError(f"the segment of job {job.id} does not say how many GPUs it asked for") from None
    if _pinned_by_job(job):
        return {"tres_per_job": f"gres/gpu:{n * k}"}
    return {"tres_per_node": f"gres/gpu:{k}"}
