"""Straggler scores of nvidia-resiliency-ext 0.6.0 become lines of `berth-steps/1`, and so part of the living scores.

The examples are ours, in the form of its Lightning callback's log and of its `Report` as JSON.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from policy.cli import scores_learn
from policy.cli.main import main
from policy.formats.errors import FormatError
from policy.history.step_sources import read
from policy.history.told_scores import learned
from topology import files
from topology.calibrate.living import refresh
from topology.calibrate.steps import JobReport, load
from topology.model import Gpu, Machine
from topology.scores import Score

AT = "2026-11-26T10:00:00Z"


def log(*scores: tuple[int, str, float], reports: int = 3) -> list[str]:
    """Returns the lines of the callback's log for a job of at most six ranks: all are named, the worst first."""
    table = "".join(f"  Rank={rank} Node={node} Score={score:.2f}\n" for rank, node, score in scores)
    one = f"[INFO 2026-11-26 10:00:00] \nGPU relative performance:\n{table}\nGPU individual performance:\n{table}"
    return (one * reports).splitlines(keepends=True)


def gpus(node: str) -> list[Gpu]:
    """Two GPUs, of which the first has the later bus address."""
    return [Gpu(0, 0, f"GPU-{node}-0", bus_id="0000:81:00.0"), Gpu(1, 1, f"GPU-{node}-1", bus_id="0000:01:00.0")]


FOUR = [(3, "n2", 0.80), (2, "n2", 0.99), (1, "n1", 0.99), (0, "n1", 1.00)]


def test_a_log_becomes_a_report_with_ranks_in_the_order_of_the_bus() -> None:
    report = learned(read(log(*FOUR), "log"), "7", "compute", AT, gpus)

    assert (report.job, report.app, report.app_class) == ("7", "nvrx-7", "compute")
    slow = [(rank.node, rank.position, rank.uuid) for rank in report.ranks if rank.own_ms > 1_100]
    assert slow == [("n2", 0, "GPU-n2-0")]
    assert [round(rank.own_ms) for rank in report.ranks] == [1_000, 1_010, 1_010, 1_250]


def test_a_report_as_json_with_host_names_becomes_the_same() -> None:
    hosts = {"0": "n1.site", "1": "n1.site", "2": "n2.site", "3": "n2.site"}
    scores = {str(rank): score for rank, _, score in FOUR}
    lines = [json.dumps({"gpu_relative_perf_scores": scores, "rank_to_node": hosts}) for _ in range(3)]

    by_json = learned(read(lines, "json"), "7", "compute", AT, gpus)

    assert by_json == learned(read(log(*FOUR), "log"), "7", "compute", AT, gpus)


def test_several_jobs_tell_the_living_scores_of_a_gpu_that_became_slow() -> None:
    nodes = ("n1", "n2")
    scores = [Score(node, gpu.position, gpu.uuid, "compute", 1.0) for node in nodes for gpu in gpus(node)]
    now = time.time()
    at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(now - 60))
    reports = [learned(read(log(*FOUR), "log"), str(job), "compute", at, gpus) for job in range(1, 6)]

    living = {(one.score.node, one.score.position): one.score.score for one in refresh(scores, reports, now)}

    assert living["n2", 0] > 1.1
    assert all(score < 1.05 for where, score in living.items() if where != ("n2", 0))


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (log((0, "n1", 1.0), (1, "n1", 0.9), (2, "n1", 0.9)), "3 ranks and 2 GPUs"),
        ([*log((0, "n1", 1.0), (1, "n1", 0.9)), *log((0, "n1", 1.0), (2, "n2", 0.9))], "names some ranks only"),
        ([json.dumps({"gpu_relative_perf_scores": {"0": 1.0, "1": 0.9}})], "node of rank 0"),
        ([json.dumps({"format": "berth-ops/1"}), json.dumps({"step": 1, "rank": 0, "x_ms": 1}),
          json.dumps({"step": 1, "rank": 1, "x_ms": 1})], "nvidia-resiliency-ext"),
    ],
)  # fmt: skip
def test_what_does_not_tell_which_rank_has_which_gpu_is_not_learned(lines: Sequence[str], said: str) -> None:
    with pytest.raises(FormatError, match=said):
        learned(read(lines, "log"), "7", "compute", AT, gpus)


def test_the_command_adds_a_line_to_the_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for node in ("n1", "n2"):
        files.dump(Machine(node, "a100", tuple(gpus(node)), ()), tmp_path / f"{node}.json")
    conf, source, record = tmp_path / "berth.conf", tmp_path / "log", tmp_path / "steps"
    conf.write_text(f'[berthd]\ntopology_dir = "{tmp_path}"\nsteps = "{record}"\n')
    source.write_text("".join(log(*FOUR)))
    monkeypatch.setenv("BERTH_CONF", str(conf))
    monkeypatch.setattr(scores_learn, "_held", lambda *_: (0, 1))

    assert main(["scores", "learn", "7", "--from", str(source)]) == 0
    assert main(["scores", "learn", "8", "--from", str(source), "--class", "memory"]) == 0

    found = [(one.job, one.app_class, len(one.ranks)) for one in load(record) if isinstance(one, JobReport)]
    assert found == [("7", "compute", 4), ("8", "memory", 4)]
