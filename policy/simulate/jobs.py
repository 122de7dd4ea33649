# SPDX-License-Identifier: Apache-2.0
"""A job of a trace, as every simulator takes it."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TraceJob:
    """The data of one job in a trace; times are in seconds."""

    id: str
    gpus: int
    submit: float
    work: float
    """Run time on GPUs of score 1 on one node."""
    model: str = ""
    app_class: str = "compute"
    limit: float | None = None
    """Time limit that its user requested."""
    nodes: int | None = None
    """Number of nodes that its user requested; None: any number."""
    user: str = ""
    account: str = ""
    """Virtual cluster, account or queue; quotas apply to it."""
    name: str = ""
    priority: float = 0.0
    """Priority in addition to the order itself: QOS or nice."""
    cpus: int = 0
    """Cores on each of its nodes; 0: one for each GPU. A job with 0 GPUs needs only cores."""
