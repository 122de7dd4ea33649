"""Tells why a GPU is slow, from clocks and seconds at the power limit."""

from dataclasses import replace

from topology.calibrate.caps import slow_by
from topology.calibrate.runs import GpuVisit, KernelRun, Visit
from topology.calibrate.statistics import calibrate


def run(app_class: str, slow: float = 1.0, clock: float = 1_400.0, capped: float = 1.0, heat: float = 0.0) -> KernelRun:
    return KernelRun(
        app_class, 150.0 * slow, 0.01, 80, kernel=app_class, seconds=10.0, sm_mhz=clock, power_w=700.0,
        capped_s=10.0 * capped, thermal_s=10.0 * heat,
    )  # fmt: skip


def found(odd: tuple[KernelRun, ...]) -> dict[str, str]:
    """Returns by class why GPU 3 of node n1 is slow, over three visits of four nodes."""
    usual = (run("compute"), run("memory", capped=0.0, clock=1_700.0))
    visits = [
        Visit(
            f"n{node}",
            f"2026-11-{day:02}T10:00:00Z",
            tuple(
                GpuVisit(gpu, f"GPU-{node}-{gpu}", "H200", "580.1", 700.0, runs=odd if (node, gpu) == (1, 3) else usual)
                for gpu in range(8)
            ),
        )
        for day in (1, 8, 15)
        for node in range(4)
    ]
    calibration = calibrate(visits, now=1_795_000_000.0)
    told = slow_by(visits, calibration.estimates)
    assert {evidence.slow_by for (place, _), evidence in told.items() if place.uuid != "GPU-1-3"} == {""}
    return {app_class: evidence.slow_by for (place, app_class), evidence in told.items() if place.uuid == "GPU-1-3"}


FAST_BELOW = run("memory", capped=0.0, clock=1_700.0)


def test_a_chip_with_a_low_clock_at_its_power_limit_is_slow_only_there() -> None:
    assert found((run("compute", 1.2, 1_400.0 / 1.2), FAST_BELOW)) == {"compute": "power cap only", "memory": ""}


def test_one_that_is_slow_below_the_limit_too_is_not() -> None:
    odd = run("compute", 1.2, 1_400.0 / 1.2), run("memory", 1.2, 1_700.0, capped=0.0)

    assert found(odd) == {"compute": "power cap", "memory": "other"}


def test_a_low_clock_below_the_limit_is_no_cap() -> None:
    assert found((run("compute", 1.2, 1_400.0 / 1.2, capped=0.1), FAST_BELOW)) == {"compute": "low clock", "memory": ""}


def test_a_slow_chip_at_the_clock_of_others_is_slow_for_another_reason() -> None:
    assert found((run("compute", 1.2), FAST_BELOW)) == {"compute": "other", "memory": ""}


def test_heat_is_told_though_such_runs_do_not_count() -> None:
    assert found((run("compute", 1.2, 1_100.0, heat=0.3), FAST_BELOW))["compute"] == "heat"


def test_clocks_that_nobody_recorded_explain_nothing() -> None:
    odd = replace(run("compute", 1.2), sm_mhz=0.0)

    assert found((odd, FAST_BELOW)) == {"compute": "other", "memory": ""}
