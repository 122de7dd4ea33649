# SPDX-License-Identifier: Apache-2.0
"""The guard's hand in a world of its own: what a host, its guest and the device do, and what then happens to whom."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from prolog_epilog.guard.seats import metrics
from prolog_epilog.injob.word import OPEN
from prolog_epilog.node import cgroups, freezer
from prolog_epilog.settings.guard_keys import ActionSettings, GuardSettings
from prolog_epilog.tenants import arrivals
from prolog_epilog.tenants.arrivals import Arrival
from tests.unit.guard_world import GIB, UUID, World

pytestmark = pytest.mark.slow

GUEST, HOST, OTHER = 7, 107, 108


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    made = World(tmp_path)
    monkeypatch.setattr(cgroups, "job_of", made.job_of)
    yield made
    made.close()


def test_a_guest_begins_when_its_host_is_known_and_harms_it_within_the_bound(world: World) -> None:
    world.harm = 0.2
    host = world.comes(HOST, "guaranteed", step=0.4)
    world.seconds(70)
    assert world.state == "Healthy"
    guest = world.comes(GUEST, "opportunistic", step=0.2)
    world.seconds(0.2)
    assert guest.order().duty < OPEN

    before = host.done
    world.seconds(60)

    assert guest.order().duty > 100
    assert guest.done > 10
    assert host.done - before > 60 / 0.4 * 0.95
    assert any("is Healthy, was Init" in said for said in world.said)


def test_berthd_is_told_what_a_job_does_alone_and_how_two_do_beside_each_other(world: World) -> None:
    world.harm = 0.2
    world.berthd = True
    world.comes(HOST, "guaranteed", step=0.4)
    world.seconds(130)
    alone = dict(world.told[-1].figures)
    assert (alone["alone"], alone["busy"]) == (HOST, 0.5)
    assert alone["sms"] == pytest.approx(0.3)
    assert alone["alone_s"] == pytest.approx(60.0, abs=3.0)
    assert alone["step"] == pytest.approx(0.4, rel=0.01)
    assert alone["memory"] == pytest.approx(0.4 * 80 * 1024, rel=0.5)
    assert "host" not in alone

    world.comes(GUEST, "opportunistic", step=0.2)
    world.seconds(180)
    together = dict(world.told[-1].figures)
    assert together["host"] == HOST
    assert 0.95 <= together["speed"] < 1.0
    assert 0.05 < together["duty"] < 1.0
    assert "alone" not in together

    world.goes(HOST)
    world.seconds(130)
    assert dict(world.told[-1].figures)["alone"] == GUEST


def test_a_guest_alone_has_the_gpu_and_stays_when_an_owner_comes_that_bears_it(world: World) -> None:
    guest = world.comes(GUEST, "opportunistic", step=0.2)
    world.seconds(0.2)
    assert guest.order().duty == OPEN
    world.sm_active = 1.0
    world.seconds(40)
    assert guest.order().duty == OPEN
    world.sm_active = 0.3

    world.comes(HOST, "guaranteed", step=0.4)
    world.seconds(0.2)
    assert guest.order().duty == 0
    world.seconds(20)
    assert guest.order().duty > 0
    world.goes(HOST)
    world.seconds(0.2)
    assert guest.order().duty == OPEN
    assert guest.process.poll() is None
    assert world.slurm.asked == []


def test_a_guest_whose_gate_does_not_answer_is_held_by_the_freezer_for_its_share_of_time(world: World) -> None:
    world.harm = 0.2
    world.comes(HOST, "guaranteed", step=0.4)
    world.seconds(20)
    guest = world.comes(GUEST, "opportunistic", step=0.2)
    guest.obeys = False

    world.seconds(60)
    held = world.seat.held
    assert held is not None
    frozen, duties = 0, 0.0
    for _ in range(400):
        world.tick()
        frozen += guest.frozen
        duties += held.duty
        # One of the two holds it back, not both.
        assert guest.order().duty == (OPEN if held.duty else 0)

    assert held.by_freezer
    assert 0.05 < duties / 400 < 0.95
    assert frozen / 400 == pytest.approx(1.0 - duties / 400, abs=0.05)
    assert any("held by the freezer" in said for said in world.said)
    world.goes(GUEST)
    world.seconds(0.2)
    assert not guest.frozen
    assert not list(world.paths.frozen.iterdir())


def test_a_program_without_a_gate_is_frozen_once_it_uses_the_gpu(world: World) -> None:
    world.comes(HOST, "guaranteed", step=2.0)
    world.seconds(1)
    guest = world.comes(GUEST, "opportunistic")
    world.seconds(3.5)

    assert guest.frozen


def test_a_job_without_a_berth_is_safe_at_once_and_its_guest_gone_in_seconds(world: World) -> None:
    guest = world.comes(GUEST, "opportunistic", step=0.2)
    with subprocess.Popen(["/bin/sleep", "600"]) as bystander:
        world.seconds(2)
        arrive(world, OTHER, planned=False)
        world.tick()
        assert guest.frozen

        took = world.seconds(6, until=lambda: safe(world, OTHER))

        assert took < 2.0  # sleep ends at SIGTERM
        assert guest.process.wait(5) == -15
        assert world.slurm.asked == [f"requeue {GUEST}"]
        assert bystander.poll() is None
        bystander.kill()
    assert [one.word for one in world.told if one.word != "state"] == ["evict"]
    world.goes(GUEST)
    world.seconds(0.3)
    assert arrivals.pending(world.paths) == []


def test_a_guest_that_ignores_everything_is_killed_within_6_s(world: World) -> None:
    world.comes(GUEST, "opportunistic", step=0.2)
    stubborn(world, GUEST)
    world.seconds(2)
    arrive(world, OTHER, planned=False)

    took = world.seconds(10, until=lambda: safe(world, OTHER))

    assert took < 6.0
    assert world.programs[GUEST].process.wait(5) == -9
    assert world.seat.counts.killed == 1


def test_berthd_puts_the_guest_back_itself_where_it_answers(world: World) -> None:
    world.berthd = True
    world.comes(GUEST, "opportunistic", step=0.2)
    world.seconds(2)
    arrive(world, OTHER, planned=False)
    world.seconds(4)

    assert world.slurm.asked == []
    assert (world.told[-1].gpu, world.told[-1].job, world.told[-1].word) == (3, GUEST, "evict")


def test_a_guest_that_ended_by_itself_in_that_moment_is_not_run_again(world: World) -> None:
    guest = world.comes(GUEST, "opportunistic", step=0.2)
    world.seconds(2)
    guest.process.kill()
    guest.process.wait()
    world.seconds(0.1)
    arrive(world, OTHER, planned=False)
    world.seconds(8)

    assert world.slurm.asked == []
    assert safe(world, OTHER)


def test_slurm_that_does_not_answer_does_not_save_the_guest(world: World) -> None:
    world.slurm.fails = True
    guest = world.comes(GUEST, "opportunistic", step=0.2)
    world.seconds(2)
    arrive(world, OTHER, planned=False)
    world.seconds(4)

    assert guest.process.wait(5.0)
    assert "slurmctld is gone [BERTH-921]" in world.said


def test_an_owner_with_a_berth_waits_until_its_guest_is_gone_which_has_two_seconds(world: World) -> None:
    guest = world.comes(GUEST, "opportunistic", step=0.2)
    world.seconds(2)
    arrive(world, OTHER, planned=True)

    assert world.seconds(1.8, until=lambda: guest.process.poll() is not None) == pytest.approx(1.8)
    assert not safe(world, OTHER)
    assert guest.order().duty == 0
    took = world.seconds(6, until=lambda: safe(world, OTHER))
    assert took + 1.8 < arrivals.WAIT_SECONDS - 1.0
    assert guest.process.wait(5.0)
    words = [one for one in world.told if one.word != "state"]
    assert [one.word for one in words] == ["leave", "evict"]


@pytest.mark.parametrize("obeys", [True, False])
def test_an_owner_is_not_told_that_it_is_safe_before_its_guests_memory_is_free(world: World, *, obeys: bool) -> None:
    guest = world.comes(GUEST, "opportunistic", step=30.0)
    guest.obeys = obeys
    stubborn(world, GUEST)
    world.seconds(4)
    arrive(world, OTHER, planned=True)

    took = world.seconds(6, until=lambda: safe(world, OTHER))

    assert guest.process.poll() is not None
    assert took < arrivals.WAIT_SECONDS


def test_an_owner_does_not_wait_for_a_guest_that_has_nothing_on_the_gpu(world: World) -> None:
    guest = world.comes(GUEST, "opportunistic")
    world.off_gpu.add(GUEST)
    world.seconds(4)
    arrive(world, OTHER, planned=True)

    assert world.seconds(6, until=lambda: safe(world, OTHER)) < 1.5
    assert not guest.frozen


def test_a_program_whose_steps_last_longer_than_a_gate_may_is_held_by_the_freezer(world: World) -> None:
    guest = world.comes(GUEST, "opportunistic", step=30.0)
    guest.obeys = False
    world.seconds(40)
    assert not guest.frozen
    world.comes(HOST, "guaranteed", step=0.4)

    took = world.seconds(10, until=lambda: guest.frozen)

    assert took < 3.5
    assert any("the gate has not answered" in said for said in world.said)


def test_a_program_that_computes_nothing_between_its_steps_is_left_to_its_gate(world: World) -> None:
    guest = world.comes(GUEST, "opportunistic", step=0.2)
    world.seconds(10)
    # It evaluates, or its user thinks.
    guest.step = 0.0
    world.seconds(2)
    world.comes(HOST, "guaranteed", step=0.4)
    world.seconds(20)

    assert not guest.frozen
    assert not any("held by the freezer" in said for said in world.said)


def test_at_grace_0_the_owner_waits_for_the_end(tmp_path: Path, world: World) -> None:
    world.settings = GuardSettings(action=ActionSettings(evict_grace_s=0.0))
    world.restart()
    guest = world.comes(GUEST, "opportunistic", step=0.2)
    world.seconds(2)
    arrive(world, OTHER, planned=True)

    assert world.seconds(6, until=lambda: safe(world, OTHER)) < 2.0
    assert guest.process.wait(5.0)


@pytest.mark.parametrize("gate", [True, False])
def test_what_ignores_slurms_word_is_killed_where_berthd_sent_it_away(
    world: World, monkeypatch: pytest.MonkeyPatch, *, gate: bool
) -> None:
    world.comes(HOST, "guaranteed", step=0.4)
    guest = world.comes(GUEST, "opportunistic", step=0.2 if gate else 0.0)
    stubborn(world, GUEST)
    world.seconds(4)
    assert guest.frozen is not gate

    signals = sent(monkeypatch)
    slurm_ends(world, GUEST)
    # The world's time runs faster than the kernel's, which takes its own to end a process.
    took = world.seconds(10, until=lambda: signal.SIGKILL in signals)

    assert 1.5 <= took < 8.0
    assert guest.process.wait(5) == -9
    world.seconds(2, until=lambda: world.seat.counts.killed > 0)
    assert world.slurm.asked == [f"is {GUEST} sent away"]
    assert world.seat.counts.killed == 1
    assert any("was sent away, and Slurm has sent it SIGTERM" in said for said in world.said)


def test_who_was_sent_away_as_soon_as_it_began_is_not_left_to_killwait(world: World) -> None:
    """Slurm wrote to its freezers before the guard had a look at them."""
    guest = world.comes(GUEST, "opportunistic")
    stubborn(world, GUEST)
    world.slurm.ends.add(GUEST)
    world.seconds(10, until=lambda: guest.process.poll() is not None)

    assert guest.process.wait(5) == -9
    assert world.slurm.asked == [f"is {GUEST} sent away"]


def test_what_its_user_ends_has_the_time_that_slurm_gives_it(world: World) -> None:
    world.slurm.sends_away = False
    guest = world.comes(GUEST, "opportunistic", step=0.2)
    stubborn(world, GUEST)
    world.seconds(2)
    for _ in range(20):
        slurm_ends(world, GUEST)
        world.seconds(0.5)

    assert guest.process.poll() is None
    # However often somebody sends SIGCONT.
    assert len(world.slurm.asked) <= 6


def test_a_full_gpu_is_answered_by_memory_first_and_then_by_eviction(world: World) -> None:
    world.comes(HOST, "guaranteed", step=0.4)
    guest = world.comes(GUEST, "opportunistic", step=0.2, mem=40 * 1024)
    guest.holds(30 * GIB)
    world.seconds(20)
    assert guest.order().quota == 40 * GIB
    assert guest.order().memory == 0

    world.memory = 0.9
    world.seconds(2)
    assert guest.order().memory == pytest.approx(30 * GIB - 0.1 * 80 * GIB, rel=0.01)
    assert guest.order().host_bound == 16 * GIB
    assert world.state != "Overlimit"

    world.memory = 0.97
    world.seconds(5)
    assert world.state == "Overlimit"
    assert guest.order().duty == 0
    world.seconds(40)
    assert guest.process.wait(5.0)
    assert world.slurm.asked == [f"requeue {GUEST}"]


def test_memory_comes_back_slowly(world: World) -> None:
    world.comes(HOST, "guaranteed", step=0.4)
    guest = world.comes(GUEST, "opportunistic", step=0.2)
    guest.holds(30 * GIB)
    world.memory = 0.9
    world.seconds(5)
    asked = guest.order().memory
    world.memory = 0.5
    world.seconds(20)
    assert guest.order().memory == asked
    world.seconds(20)
    assert guest.order().memory == asked + 5 * GIB
    world.seconds(60)
    assert guest.order().memory == 0


def test_a_hardware_fault_ends_the_guest_and_drains_the_node(world: World) -> None:
    world.comes(HOST, "guaranteed", step=0.4)
    guest = world.comes(GUEST, "opportunistic", step=0.2)
    world.seconds(3)
    world.devices.came.append((UUID, 79))
    world.seconds(5)

    assert world.state == "Disabled"
    assert guest.process.wait(5.0)
    assert f"drain n1 berth: GPU {UUID}: Xid 79" in world.slurm.asked
    assert world.told[-1].state == "disabled"
    world.goes(GUEST)
    world.seconds(100)
    assert world.state == "Disabled"  # a human has to look


def test_by_time_a_programs_fault_is_its_own(world: World) -> None:
    world.comes(HOST, "guaranteed", step=0.4)
    guest = world.comes(GUEST, "opportunistic", step=0.2)
    world.seconds(3)
    world.devices.came.append((UUID, 31))
    world.seconds(5)

    assert guest.process.poll() is None
    assert world.state != "Disabled"


def test_by_mps_a_programs_fault_clears_the_gpu_for_a_minute(world: World) -> None:
    world.comes(HOST, "guaranteed", step=0.4, way="mps")
    guest = world.comes(GUEST, "opportunistic", step=0.2, way="mps")
    world.seconds(3)
    world.devices.came.append((UUID, 31))
    world.seconds(5)
    assert guest.process.wait(5.0)
    assert world.state == "Disabled"
    world.goes(GUEST)
    world.seconds(65)
    assert world.state == "Init"


def test_a_host_that_falls_silent_bounds_its_guest(world: World) -> None:
    host = world.comes(HOST, "guaranteed", step=0.4)
    world.seconds(20)
    guest = world.comes(GUEST, "opportunistic", step=0.2)
    world.seconds(60)
    assert guest.order().duty > 100
    host.step = 0.0
    world.seconds(15)

    assert 0 < guest.order().duty <= 100


def test_a_driver_that_says_nothing_costs_the_guest_its_seat(world: World) -> None:
    world.comes(HOST, "guaranteed", step=0.4)
    guest = world.comes(GUEST, "opportunistic", step=0.2)
    world.seconds(20)
    world.driver = False
    world.seconds(20)
    assert world.state == "Disabled"
    assert guest.order().duty == 0
    world.seconds(40)
    assert guest.process.wait(5.0)


def test_a_guard_that_begins_anew_shuts_the_gate_until_it_knows_the_host(world: World) -> None:
    world.comes(HOST, "guaranteed", step=0.4)
    world.seconds(20)
    guest = world.comes(GUEST, "opportunistic", step=0.2)
    world.seconds(60)
    assert guest.order().duty > 0

    world.restart()
    world.tick()
    assert guest.order().duty == 0
    world.seconds(20)
    assert guest.order().duty > 0


def test_a_guard_that_ends_lets_everybody_go(world: World) -> None:
    world.comes(HOST, "guaranteed", step=2.0)
    world.seconds(1)
    guest = world.comes(GUEST, "opportunistic")
    world.seconds(4)
    assert guest.frozen

    world.keeper.release()
    assert guest.group.joinpath("cgroup.freeze").read_text() == "0"
    assert guest.order().duty == OPEN


def test_berthd_is_told_each_change_and_each_minute(world: World) -> None:
    world.comes(HOST, "guaranteed", step=0.4)
    world.seconds(130)

    assert [one.state for one in world.told] == ["init", "healthy", "healthy"]
    assert world.told[0].text.startswith("berth/1 guard node=n1 gpu=3 job=0 state=init word=state")


def test_nobody_is_watched_where_nobody_shares(world: World) -> None:
    world.seconds(1)
    assert world.devices.watched == frozenset()
    world.comes(HOST, "guaranteed", step=0.4)
    world.seconds(1)
    assert world.devices.watched == {UUID}
    world.goes(HOST)
    world.seconds(1)
    assert world.devices.watched == frozenset()
    assert world.keeper.seats == {}


@pytest.mark.parametrize("cause", ["a program's fault under MPS", "a full GPU", "a host that has just left"])
def test_a_gpu_that_was_closed_is_said_to_be_open_again_though_nobody_uses_it(world: World, cause: str) -> None:
    world.berthd = True
    way = "mps" if "MPS" in cause else "time"
    world.comes(HOST, "guaranteed", step=0.4, way=way)
    world.comes(GUEST, "opportunistic", step=0.2, way=way)
    world.seconds(3)
    if "MPS" in cause:
        world.devices.came.append((UUID, 31))
    elif "full" in cause:
        world.memory = 0.97
    world.seconds(56.5)
    assert world.told[-1].state != "healthy"
    world.goes(GUEST)
    world.goes(HOST)
    world.memory = 0.1

    took = world.seconds(300, until=lambda: world.told[-1].state == "healthy")

    assert took < 200
    assert world.told[-1].job == 0
    world.seconds(1)
    assert world.devices.watched == frozenset()


def test_a_gpu_whose_cool_down_is_kept_in_mind_is_not_taken_for_silent(world: World) -> None:
    # Nobody watches an empty GPU: after 15 s it was Disabled, and a guest that came then had to go.
    world.comes(HOST, "guaranteed", step=0.4)
    world.comes(GUEST, "opportunistic", step=0.2)
    world.seconds(3)
    world.memory = 0.97
    world.seconds(56.5)
    world.goes(GUEST)
    world.goes(HOST)
    world.memory = 0.1
    world.seconds(300, until=lambda: world.told[-1].state == "healthy")
    world.seconds(15)
    world.comes(OTHER, "opportunistic", step=0.2)
    world.seconds(3)
    assert (world.state, world.told[-1].state) == ("Healthy", "healthy")


def test_a_gpu_that_does_not_recover_is_not_watched_for_ever(world: World) -> None:
    world.comes(HOST, "guaranteed", step=0.4)
    world.memory = 0.9
    world.seconds(61)
    world.goes(HOST)
    world.seconds(5)
    assert world.devices.watched
    world.now += 600.0
    world.seconds(5)
    assert {one.state for one in world.told} == {"init"}
    assert world.devices.watched == frozenset()
    assert world.keeper.seats == {}


def test_metrics_are_written_whole(tmp_path: Path, world: World) -> None:
    file = tmp_path / "berth.prom"
    world.settings = GuardSettings(metrics=str(file))
    world.restart()
    world.comes(HOST, "guaranteed", step=0.4)
    world.seconds(20)
    world.comes(GUEST, "opportunistic", step=0.2)
    world.seconds(60)

    text = file.read_text()
    assert f'berth_guard_state{{gpu="3",uuid="{UUID}",state="healthy"}} 1' in text
    assert f'berth_guard_guests{{gpu="3",uuid="{UUID}"}} 1' in text
    assert f'berth_guard_guest_duty_ratio{{gpu="3",uuid="{UUID}"}} ' in text
    assert "berth_guard_host_slowdown_bound_ratio 0.05" in text
    assert "_job" not in text, "jobs are told by berthd, and only if the site wants that"
    assert 'berth_guard_actions_total{gpu="3",' in text
    assert oct(file.stat().st_mode & 0o777) == "0o644"
    assert not list(tmp_path.glob("berth.prom.*"))
    assert "mend [guard] metrics" in metrics.write(str(tmp_path / "none" / "berth.prom"), [], {}, 0.05)


def test_metrics_that_cannot_be_written_do_not_fill_the_log(tmp_path: Path, world: World) -> None:
    world.settings = GuardSettings(metrics=str(tmp_path / "none" / "berth.prom"))
    world.restart()
    world.seconds(30)
    assert sum("mend [guard] metrics" in said for said in world.said) == 1


def arrive(world: World, job: int, *, planned: bool) -> None:
    world.paths.arrivals.mkdir(mode=0o700, exist_ok=True)
    one = Arrival(job, (UUID,), planned)
    arrivals.announce(world.paths, one)


def slurm_ends(world: World, job: int) -> None:
    """What is seen of it by somebody whose processes ignore SIGTERM."""
    world.slurm.ends.add(job)
    (world.programs[job].group.parent.parent / "cgroup.freeze").write_text("0\n")


def safe(world: World, job: int) -> bool:
    return (world.paths.arrivals / f"{job}.safe").exists()


def sent(monkeypatch: pytest.MonkeyPatch) -> list[signal.Signals]:
    """The signals that the guard sends to jobs from now on."""
    signals: list[signal.Signals] = []
    really = freezer.send

    def send(job: int, number: signal.Signals, **more: Any) -> int:
        signals.append(number)
        return really(job, number, **more)

    monkeypatch.setattr(freezer, "send", send)
    return signals


def stubborn(world: World, job: int) -> None:
    program = world.programs[job]
    program.process.kill()
    program.process.wait()
    program.process = subprocess.Popen(["/bin/sh", "-c", "trap '' TERM INT HUP USR1; while :; do sleep 1; done"])
