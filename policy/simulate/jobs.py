"""A job of a trace, as every simulator takes it."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Job:
    """What a trace says of one job; times are in seconds."""

    id: str
    gpus: int
    submit: float
    work: float
    """Run time on GPUs of score 1 on one node."""
    model: str = ""
    app_class: str = "compute"
    limit: float | None = None
    """Time limit that its user gave."""
    nodes: int | None = None
    """Number of nodes that its user asked for; None: as it comes."""
    user: str = ""
    account: str = ""
    """Virtual cluster, account or queue: what quotas are for."""
    name: str = ""
    priority: float = 0.0
    """Beyond what the order itself gives: QOS or nice."""
