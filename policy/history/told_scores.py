"""Makes a line of `berth-steps/1` of what a job itself told of its ranks, for the scores between calibrations."""

from collections import defaultdict
from collections.abc import Callable, Sequence

import numpy as np

from policy.formats.errors import FormatError
from policy.history.step_sources import StepRank, StepTimes
from topology.calibrate.steps import JobReport, Rank
from topology.model import Gpu

_BASE_MS = 1_000.0
"""The fastest rank's time where only ratios are known: logarithms are compared, within one job alone."""


def learned(times: StepTimes, job: str, app_class: str, at: str, gpus_on: Callable[[str], Sequence[Gpu]]) -> JobReport:
    """Returns the report of a job; `gpus_on` tells the GPUs that it holds on a node.

    Raises:
        FormatError: if it is not clear which rank has which GPU.

    """
    if times.source != "nvrx" or times.absolute:
        raise FormatError("scores are learned from what nvidia-resiliency-ext tells; give its JSON or its log")
    if times.partial:
        raise FormatError(
            "the log names some ranks only, and those between are not known: let the callback print all of them "
            "(num_gpu_perf_scores_to_print), or write its reports as JSON"
        )
    places: dict[str, list[tuple[int, StepRank]]] = defaultdict(list)
    for column, rank in enumerate(times.ranks):
        if not rank.node:
            raise FormatError(f"the node of rank {rank.rank} is not told; rank_to_node of the report has it")
        # It tells host names, of which Slurm mostly knows the first part.
        places[rank.node.partition(".")[0]].append((column, rank))
    own = np.median(times.own, axis=0)
    ranks = []
    for node, here in sorted(places.items()):
        gpus = sorted(gpus_on(node), key=lambda gpu: (gpu.bus_id, gpu.position))
        if len(gpus) != len(here):
            raise FormatError(
                f"{node} has {len(here)} ranks and {len(gpus)} GPUs of job {job}; "
                "only ranks with one GPU each can be told apart"
            )
        ranks += [
            Rank(node, gpu.position, gpu.uuid, round(_BASE_MS * float(own[column]), 3), len(times.own))
            for gpu, (column, _) in zip(gpus, here, strict=True)
        ]
    # A name of its own: ratios to the fastest rank say nothing about the runs of other jobs.
    return JobReport(job, f"nvrx-{job}", app_class, at, tuple(ranks))
