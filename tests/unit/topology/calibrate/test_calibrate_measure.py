# SPDX-License-Identifier: Apache-2.0
"""One GPU's measurement, on simulated devices."""

from ctypes.util import find_library
from dataclasses import replace
from pathlib import Path

import pytest

from policy.cli.main import main
from topology.calibrate.device.measure import PHASES, SimulatedDevice, measure, measure_all, summary
from topology.calibrate.health import Advice, watch_list
from topology.calibrate.links import slow_links
from topology.calibrate.runs import CopySpeed, GpuVisit, Visit, append, decode, load, seconds_of, verdict
from topology.calibrate.statistics import calibrate


def times(device: SimulatedDevice) -> dict[str, float]:
    return {run.app_class: run.time_ms for run in measure(device, 0).runs}


def test_a_slow_chip_shows_in_what_computes_and_not_in_what_waits_for_memory() -> None:
    typical, slow = times(SimulatedDevice("GPU-a")), times(SimulatedDevice("GPU-b", slow=1.2))

    assert slow["compute"] / typical["compute"] == pytest.approx(1.2, abs=0.005)
    assert slow["mixed"] / typical["mixed"] == pytest.approx(1.2**0.5, abs=0.005)
    assert slow["memory"] / typical["memory"] == pytest.approx(1.0, abs=0.005)


def test_three_runs_agree_within_half_a_percent_and_none_counts_the_cold_start() -> None:
    found = [times(SimulatedDevice("GPU-a", seed=seed))["compute"] for seed in range(3)]

    assert max(found) / min(found) < 1.005
    # A cold chip would run at 4 % more.
    assert min(found) > 149.0


def test_all_of_it_takes_less_than_a_minute() -> None:
    device = SimulatedDevice("GPU-a")
    visit = measure(device, 3)

    assert device.now() < 60.0
    assert (visit.position, visit.uuid, visit.power_limit_w) == (3, "GPU-a", 300.0)
    assert [run.app_class for run in visit.runs] == [phase.app_class for phase in PHASES]
    assert all(run.samples > 15 and run.kernel and not verdict(visit, run) for run in visit.runs)


def test_a_device_that_waits_shows_its_full_clock_and_little_power() -> None:
    (compute, *_) = measure(SimulatedDevice("GPU-a", waits=2.0), 0).runs

    assert compute.time_ms > 290.0
    assert compute.sm_mhz == pytest.approx(1530.0)
    assert compute.power_w < 0.8 * 300.0


def test_throughput_follows_the_clock_and_the_time_until_it_stood_is_told() -> None:
    typical, slow = measure(SimulatedDevice("GPU-a"), 0), measure(SimulatedDevice("GPU-b", slow=1.25), 0)

    assert typical.runs[0].tflops == pytest.approx(100.0, rel=0.01)
    assert slow.runs[0].tflops == pytest.approx(80.0, rel=0.01)
    assert slow.runs[2].gb_per_s == pytest.approx(1_000.0, rel=0.01)
    # Its clock falls by exp(-t / 5 s) of 4 %: to half a percent in ten seconds, less what the warm-up does not see.
    assert 4.0 < typical.steady_s < 12.0


def test_copies_are_measured_after_the_phases_with_every_other_gpu() -> None:
    visits = measure_all([(0, SimulatedDevice("GPU-a")), (3, SimulatedDevice("GPU-b", slow_links=2.0))])

    assert [(link.kind, link.peer) for link in visits[0].links] == [("to-host", None), ("to-device", None), ("peer", 3)]
    assert visits[1].links[0].gb_per_s == pytest.approx(12.5, rel=0.01)


def visits_with_links(slow: dict[tuple[str, int], float], nodes: int = 6) -> list[Visit]:
    found = []
    for number in range(3):
        for node in range(nodes):
            devices = [
                (gpu, SimulatedDevice(f"GPU-{node}-{gpu}", slow_links=slow.get((f"n{node}", gpu), 1.0), seed=number))
                for gpu in range(2)
            ]
            gpus = tuple(
                GpuVisit(gpu, one.uuid, one.model, links=one.copies({1 - gpu: devices[1 - gpu][1]}))
                for gpu, one in devices
            )
            found.append(Visit(f"n{node}", f"2026-11-{20 + number}T10:00:00Z", gpus))
    return found


def test_a_slow_link_is_found_by_the_same_link_of_other_nodes() -> None:
    visits = visits_with_links({("n2", 1): 2.0})
    found = slow_links(visits)

    assert {(one.node, one.position) for one in found} == {("n2", 1)}
    assert {one.kind for one in found} == {"to-host", "to-device", "peer"}
    assert "copies to the host at 12.5 GB/s, 25.0 GB/s on its peers, in 3 of 3 visits" in {
        str(one)[:74] for one in found
    }
    (watched,) = watch_list(calibrate(visits, seconds_of(visits[-1].at)))
    assert (watched.node, watched.position, watched.advice) == ("n2", 1, Advice.LINKS)


def test_a_link_that_was_slow_once_or_has_few_peers_is_not_named() -> None:
    visits = visits_with_links({})
    once = [replace(gpu, links=(CopySpeed("to-host", 5.0), *gpu.links[1:])) for gpu in visits[-1].gpus]

    assert slow_links([*visits[:-1], replace(visits[-1], gpus=tuple(once))]) == ()
    assert slow_links(visits_with_links({("n1", 1): 2.0}, nodes=3)) == ()


def test_links_are_kept_in_the_file(tmp_path: Path) -> None:
    visits = visits_with_links({}, nodes=1)
    append(visits, tmp_path / "runs")

    assert load(tmp_path / "runs") == tuple(visits)


def test_heat_is_told() -> None:
    visit = measure(SimulatedDevice("GPU-a", throttled=0.2), 0)

    assert {verdict(visit, run) for run in visit.runs} == {"throttled"}


def test_a_neighbour_that_leaves_costs_a_retry_and_one_that_stays_the_run() -> None:
    quiet, device = SimulatedDevice("GPU-a"), SimulatedDevice("GPU-a", foreign_until=20.0)
    alone, visit = measure(quiet, 0), measure(device, 0)

    assert visit.runs[0].foreign == ()
    assert device.now() > quiet.now() + 5.0
    assert visit.runs[0].time_ms == pytest.approx(alone.runs[0].time_ms, rel=0.005)

    shared = measure(SimulatedDevice("GPU-a", foreign_until=1e9), 0)
    assert {run.foreign for run in shared.runs} == {(4711,)}
    assert {verdict(shared, run) for run in shared.runs} == {"foreign"}


def test_outliers_are_left_out_and_counted() -> None:
    middle, mad, dropped = summary([10.0, 10.1, 9.9, 10.0, 10.05, 30.0])

    assert (middle, dropped) == (10.0, 1)
    assert mad == pytest.approx(0.05)
    assert summary([7.0]) == (7.0, 0.0, 0)


def test_a_node_on_paper_is_measured_and_added_to_the_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = tmp_path / "runs"
    for _ in range(2):
        assert main(["calibrate", "node", "--simulated", "4", "--node", "n1", "--output", str(runs)]) == 0
    said = capsys.readouterr().out
    assert "n1 GPU 3: compute 1" in said
    assert "(triad: 1000 GB/s)" in said or "(triad: 999 GB/s)" in said or "(triad: 1001 GB/s)" in said
    assert "peer 0 2" in said
    assert "steady after" in said

    found = load(runs)
    assert [(visit.node, visit.way, len(visit.gpus)) for visit in found] == [("n1", "together", 4)] * 2
    estimates = calibrate(found).estimates
    assert len(estimates) == 4 * len(PHASES)
    assert all(one.runs == 2 and abs(one.score - 1.0) < 0.01 for one in estimates)


def test_measuring_one_by_one_is_told_in_the_record(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["calibrate", "node", "--simulated", "2", "--node", "n1", "--alone"]) == 0

    (visit,) = decode(capsys.readouterr().out.splitlines())
    assert visit.way == "alone"


def test_a_node_without_a_driver_is_told_what_to_do(capsys: pytest.CaptureFixture[str]) -> None:
    if find_library("nvidia-ml"):
        pytest.skip("this node has NVIDIA's driver")

    assert main(["calibrate", "node"]) == 1
    assert capsys.readouterr().err.startswith("berth: error: ")
