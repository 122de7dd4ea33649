# SPDX-License-Identifier: Apache-2.0
"""The metrics: their names in one table, and their values from berthd's processes.

Labels are names of nodes, GPU positions, models, application classes, and words of fixed lists. Job numbers stand only
in `berth_gpu_job_info`, which a site has to ask for.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from policy.serve.metrics.hook_calls import HookCalls
from policy.site.metrics_state import ClusterState, Durations, Histogram

Kind = Literal["gauge", "counter", "histogram", "info"]
PageName = Literal["nodes", "gpus", "fabric", "jobs", "scheduler"]


class MetricSpec(NamedTuple):
    """One metric in the table."""

    page: PageName
    name: str
    """The name in Prometheus, with `_total` or `_info`; for a histogram without `_bucket`."""
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()


PAGES: dict[PageName, str] = {
    "nodes": "GPUs by node and owner state",
    "gpus": "slow GPUs, GPUs closed to guests, and which job holds which GPU",
    "fabric": "free NVLink islands and fragmentation",
    "jobs": "waiting jobs by reason, running jobs, failures",
    "scheduler": "the hook, planning passes, pins, evictions and relocations",
}
"""The content of each page under /metrics, in words."""

TABLE = (
    MetricSpec("nodes", "berth_gpus", "gauge", "GPUs by model and owner state.", ("model", "state")),
    MetricSpec(
        "nodes", "berth_node_gpus", "gauge", "GPUs of a node, if any, by owner state.", ("node", "model", "state")
    ),
    MetricSpec("nodes", "berth_nodes_not_ready", "gauge", "GPU nodes on which Berth cannot place jobs."),
    MetricSpec("nodes", "berth_empty_nodes", "gauge", "GPU nodes that are up and on which no GPU is held."),
    MetricSpec("gpus", "berth_slow_gpus", "gauge", "GPUs with a score of 1.05 or more.", ("model", "app_class")),
    MetricSpec(
        "gpus",
        "berth_gpu_slowdown_ratio",
        "gauge",
        "Score of a slow GPU less 1: 0.1 is 10 % slower than typical.",
        ("node", "gpu", "app_class"),
    ),
    MetricSpec("gpus", "berth_gpu_closed", "gauge", "1 for a GPU whose guard admits no guest.", ("node", "gpu")),
    MetricSpec(
        "gpus",
        "berth_gpu_idle_seconds",
        "gauge",
        "Time for which a held GPU or a job on it has idled.",
        ("node", "gpu"),
    ),
    MetricSpec("gpus", "berth_gpu_job_info", "info", "The job that holds a GPU, if asked for.", ("uuid", "jobid")),
    MetricSpec(
        "fabric",
        "berth_free_islands",
        "gauge",
        "Sets of free GPUs that NVLink joins, by the number of their GPUs.",
        ("model", "gpus"),
    ),
    MetricSpec(
        "fabric", "berth_largest_free_island_gpus", "gauge", "GPUs of the largest free NVLink island.", ("model",)
    ),
    MetricSpec("fabric", "berth_stranded_gpus", "gauge", "Free GPUs that usual jobs cannot use, as expected."),
    MetricSpec("fabric", "berth_leaf_empty_nodes", "gauge", "Empty nodes of the leaf that has most of them."),
    MetricSpec("jobs", "berth_jobs_waiting", "gauge", "Jobs that wait for GPUs, by reason.", ("reason",)),
    MetricSpec("jobs", "berth_jobs_running", "gauge", "Jobs on GPUs, by how they share them.", ("sharing",)),
    MetricSpec("jobs", "berth_jobs_failed_total", "counter", "GPU jobs that failed, by class.", ("class",)),
    MetricSpec("jobs", "berth_jobs_retried_total", "counter", "Failed jobs that were tried again."),
    MetricSpec("scheduler", "berth_answering", "gauge", "1 if berthd answers."),
    MetricSpec(
        "scheduler", "berth_build_info", "info", "Releases of Berth and Slurm.", ("version", "slurm", "gateway")
    ),
    MetricSpec("scheduler", "berth_in_control", "gauge", "1 if this host's slurmctld is the one in control."),
    MetricSpec("scheduler", "berth_slurm_readable", "gauge", "1 if the last reading of Slurm succeeded."),
    MetricSpec("scheduler", "berth_reading_age_seconds", "gauge", "Age of the reading that jobs are placed by."),
    MetricSpec("scheduler", "berth_answers_total", "counter", "Answers to the hook, by kind.", ("answer",)),
    MetricSpec("scheduler", "berth_hook_calls_total", "counter", "Calls of the hook, by outcome.", ("outcome",)),
    MetricSpec("scheduler", "berth_hook_duration_seconds", "histogram", "Time of the hook, as slurmctld waited."),
    MetricSpec("scheduler", "berth_look_duration_seconds", "histogram", "Time of one reading of Slurm."),
    MetricSpec("scheduler", "berth_pass_duration_seconds", "histogram", "Time of one planning pass."),
    MetricSpec("scheduler", "berth_pins_total", "counter", "Pins that the planner wrote, by kind.", ("kind",)),
    MetricSpec("scheduler", "berth_updates_total", "counter", "Changes of jobs that berthd asked Slurm for."),
    MetricSpec("scheduler", "berth_evictions_total", "counter", "Guests that were sent away."),
    MetricSpec("scheduler", "berth_relocations_total", "counter", "Running jobs that were moved."),
    MetricSpec("scheduler", "berth_relocations_called_off_total", "counter", "Relocations that were called off."),
    MetricSpec("scheduler", "berth_relocating_jobs", "gauge", "Jobs that are being relocated."),
    MetricSpec("scheduler", "berth_notices_total", "counter", "Epilogs' notices."),
    MetricSpec("scheduler", "berth_notices_late_total", "counter", "Epilogs that went on before the pins."),
    MetricSpec("scheduler", "berth_disagreements_total", "counter", "Starts on other GPUs than those pinned."),
    MetricSpec(
        "scheduler", "berth_promises_kept_total", "counter", "Starts as soon as plain Slurm would have planned them."
    ),
    MetricSpec("scheduler", "berth_promises_late_total", "counter", "Starts later than that, by cause.", ("cause",)),
    MetricSpec("scheduler", "berth_plan_faults_total", "counter", "Faults of Berth's own in the plan."),
)

_VERBS = {"place": "placed", "later": "later", "pass": "passed", "refuse": "refused"}
_PLANNERS = {
    "berth_updates_total": "updates",
    "berth_evictions_total": "evictions",
    "berth_relocations_total": "moves",
    "berth_relocations_called_off_total": "moves_called_off",
    "berth_relocating_jobs": "moving",
    "berth_notices_total": "notices",
    "berth_notices_late_total": "notices_late",
    "berth_disagreements_total": "disagreements",
    "berth_plan_faults_total": "plan_faults",
    "berth_promises_kept_total": "promises_kept",
    "berth_jobs_retried_total": "retried",
}
"""The planner's counters, with their names in `berth status`; a missing counter is 0."""


@dataclass(frozen=True, slots=True)
class Sources:
    """The data that the metrics are made from."""

    state: ClusterState | None
    """The planner's state; None if it has not written any."""
    status: Mapping[str, str]
    """The answering process's status; empty if it does not answer."""
    hook: HookCalls | None = None
    """The counts of the hook log; None if the plugin writes none."""


_Labels = tuple[str, ...]
_Found = Iterable[tuple[_Labels, float]] | Durations | Histogram


class MetricsPage(Collector):
    """One page of metrics, for an encoder of prometheus-client."""

    def __init__(self, name: PageName, sources: Sources) -> None:
        self._name = name
        self._sources = sources

    def collect(self) -> Iterator[Metric]:
        """Yields the metrics that are known now."""
        values = _values(self._name, self._sources)
        for spec in TABLE:
            if spec.page == self._name and (found := values.get(spec.name)) is not None:
                yield _family(spec, found)


def _family(spec: MetricSpec, found: _Found) -> Metric:
    if isinstance(found, Durations | Histogram):
        histogram = HistogramMetricFamily(spec.name, spec.help)
        bounds = [*(f"{bound:g}" for bound in found.bounds), "+Inf"]
        histogram.add_metric([], list(zip(bounds, map(float, found.cumulative), strict=True)), found.sum)
        return histogram
    if spec.kind == "info":
        info = InfoMetricFamily(spec.name.removesuffix("_info"), spec.help)
        for labels, _ in found:
            info.add_metric([], dict(zip(spec.labels, labels, strict=True)))
        return info
    made: CounterMetricFamily | GaugeMetricFamily
    if spec.kind == "counter":
        made = CounterMetricFamily(spec.name.removesuffix("_total"), spec.help, labels=spec.labels)
    else:
        made = GaugeMetricFamily(spec.name, spec.help, labels=spec.labels)
    for labels, value in found:
        made.add_metric(labels, value)
    return made


def _values(name: PageName, sources: Sources) -> dict[str, _Found]:
    found: dict[str, _Found] = {}
    if sources.state is not None:
        found |= _OF_THE_PLANNER[name](sources.state)
    if name == "scheduler":
        found |= _answers(sources.status)
        if sources.hook is not None:
            found["berth_hook_calls_total"] = [((word,), count) for word, count in sources.hook.outcomes.items()]
            found["berth_hook_duration_seconds"] = sources.hook.took
    return found


def _one(value: float) -> list[tuple[_Labels, float]]:
    return [((), value)]


def _nodes(state: ClusterState) -> dict[str, _Found]:
    totals: dict[_Labels, float] = {}
    by_node: list[tuple[_Labels, float]] = []
    for word, column in state.gpus.items():
        for node, model, count in zip(state.names, state.models, column, strict=True):
            totals[model, word] = totals.get((model, word), 0) + count
            if count:
                by_node.append(((node, model, word), count))
    models = {model for (model, _), count in totals.items() if count}
    return {
        "berth_gpus": [(labels, count) for labels, count in totals.items() if labels[0] in models],
        "berth_node_gpus": by_node,
        "berth_nodes_not_ready": _one(state.not_ready),
        "berth_empty_nodes": _one(state.empty_nodes),
    }


def _gpus(state: ClusterState) -> dict[str, _Found]:
    return {
        "berth_slow_gpus": [((model, app_class), count) for model, app_class, count in state.slow_counts],
        "berth_gpu_slowdown_ratio": [
            ((node, str(gpu), app_class), round(score - 1.0, 4)) for node, gpu, app_class, score in state.slow
        ],
        "berth_gpu_closed": [((node, str(gpu)), 1.0) for node, gpu in state.closed],
        "berth_gpu_idle_seconds": [((node, gpu), seconds) for node, gpu, seconds in state.idle],
        "berth_gpu_job_info": [((uuid, str(job)), 1.0) for uuid, job in state.holds],
    }


def _fabric(state: ClusterState) -> dict[str, _Found]:
    largest = dict.fromkeys(filter(None, state.models), 0)
    for model, size, _ in state.islands:
        largest[model] = max(largest.get(model, 0), size)
    return {
        "berth_free_islands": [((model, str(size)), count) for model, size, count in state.islands],
        "berth_largest_free_island_gpus": [((model,), size) for model, size in sorted(largest.items())],
        "berth_stranded_gpus": _one(state.stranded_gpus),
        "berth_leaf_empty_nodes": _one(state.empty_nodes_of_a_leaf),
    }


def _jobs(state: ClusterState) -> dict[str, _Found]:
    return {
        "berth_jobs_waiting": [((reason,), count) for reason, count in state.waiting.items()],
        "berth_jobs_running": [((sharing,), count) for sharing, count in state.running.items()],
        "berth_jobs_failed_total": [((failure,), count) for failure, count in sorted(state.failed.items())],
        **_counters(state),
    }


def _scheduler_of_the_plan(state: ClusterState) -> dict[str, _Found]:
    return {
        "berth_in_control": _one(state.in_control),
        "berth_promises_late_total": [
            ((cause,), state.counts.get(f"promises_late.{cause}", 0.0))
            for cause in ("node", "priority", "end", "berth")
        ],
        "berth_pins_total": [((kind,), state.counts.get(f"pins_{kind}", 0.0)) for kind in ("first", "again")],
        "berth_look_duration_seconds": state.looks,
        "berth_pass_duration_seconds": state.passes,
        **_counters(state),
    }


def _counters(state: ClusterState) -> dict[str, _Found]:
    return {name: _one(state.counts.get(key, 0.0)) for name, key in _PLANNERS.items()}


def _answers(status: Mapping[str, str]) -> dict[str, _Found]:
    if not status:
        return {"berth_answering": _one(0.0)}
    found: dict[str, _Found] = {
        "berth_answering": _one(1.0),
        "berth_build_info": [((status.get("version", ""), status.get("slurm", ""), status.get("gateway", "")), 1.0)],
        "berth_slurm_readable": _one(float("problem" not in status)),
        "berth_answers_total": [((verb,), float(status.get(key, "0"))) for verb, key in _VERBS.items()],
    }
    if age := status.get("snapshot_age_ms"):
        found["berth_reading_age_seconds"] = _one(int(age) / 1_000)
    return found


_OF_THE_PLANNER: dict[PageName, Callable[[ClusterState], dict[str, _Found]]] = {
    "nodes": _nodes,
    "gpus": _gpus,
    "fabric": _fabric,
    "jobs": _jobs,
    "scheduler": _scheduler_of_the_plan,
}
