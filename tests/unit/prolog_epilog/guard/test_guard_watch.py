# SPDX-License-Identifier: Apache-2.0
"""The guard's audit where one GPU or one job makes trouble again and again: the others are looked after as ever."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from prolog_epilog.errors import ControlError, DriverError, NodeError, StateError
from prolog_epilog.guard.seats import watch as watches
from prolog_epilog.guard.seats.watch import Watch
from prolog_epilog.job.slurm import Scontrol
from prolog_epilog.mps import lifecycle, losses, trouble
from prolog_epilog.mps.losses import LossRecord
from prolog_epilog.mps.trouble import Reset
from prolog_epilog.node import cgroups, files, processes
from prolog_epilog.node.devices import GpuProcess
from prolog_epilog.node.paths import Paths
from prolog_epilog.node.processes import Proven
from prolog_epilog.settings.config import NodeConfig
from prolog_epilog.sharing import tenancy
from prolog_epilog.tenants import share_file, state
from prolog_epilog.tenants.audit import Judge
from prolog_epilog.tenants.share_file import ShareRecord
from prolog_epilog.tenants.state import SetState, Tenant

BOOT = processes.boot_id()
SICK, WELL = "GPU-a", "GPU-b"
PROBLEM = "MPS cannot be started on GPU-a"


class Slurm(Scontrol):
    """Slurm, the states of its jobs, and what it was asked to requeue."""

    def __init__(self) -> None:
        super().__init__("/bin/false")
        self.requeued: list[int] = []
        self.states: dict[int, str] = {}

    def requeue(self, job: int, **_: bool) -> None:
        self.requeued.append(job)

    def state(self, job: int) -> str:
        return self.states.get(job, "FAILED")


@pytest.fixture
def watch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Watch:
    """Two GPUs, each with a job under MPS whose daemon is gone."""
    monkeypatch.setattr(cgroups, "jobs", set)
    paths = Paths(tmp_path)
    files.prepare(paths)
    gone = Proven(2, 2, "/usr/bin/nvidia-cuda-mps-control", BOOT)
    for uuid, job in ((SICK, 7), (WELL, 8)):
        tenants = (Tenant(job, 1_000 + job, 30, 1_024, start=1_000),)
        state.store(paths, SetState(BOOT, (uuid,), (0,), "ceiling", multi_user=True, daemon=gone, tenants=tenants))
        share_file.write(paths, ShareRecord(job, 1_000 + job, gpus=(0,), uuids=(uuid,), node="n1", start=1_000))
    return Watch(paths, NodeConfig(), Slurm(), Judge("requeue"), BOOT)


def step(watch: Watch, times: int = 1) -> None:
    for _ in range(times):
        watches.step(watch)


class Device:
    """A driver that does not answer for one GPU, and a process without MPS on the other."""

    def processes(self, uuid: str) -> tuple[GpuProcess, ...]:
        if uuid == SICK:
            raise DriverError(f"the NVIDIA driver failed on {uuid} (Unknown Error); look at nvidia-smi")
        return (GpuProcess(os.getpid(), "compute", 100),)


def test_a_gpu_of_which_the_driver_tells_nothing_costs_the_audit_of_no_other(
    watch: Watch, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cgroups, "job_of", lambda _: 8)
    for _ in range(2):
        watch.driver = Device()  # type: ignore[assignment]
        with pytest.raises(NodeError, match="Unknown Error"):
            watch.audit()

    assert "job 8 uses GPU GPU-b past MPS" in capsys.readouterr().err


def test_mps_that_cannot_be_mended_on_one_gpu_is_mended_on_the_others(
    watch: Watch, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def reset(paths: Paths, _config: NodeConfig, uuid: str) -> Reset:
        if uuid == SICK:
            raise ControlError(PROBLEM)
        found = state.load(paths, uuid)
        assert found is not None
        state.store(paths, replace(found, daemon=processes.prove(os.getpid(), BOOT)))
        return Reset(found.tenants, (), restarted=True)

    monkeypatch.setattr(trouble, "reset_after_fault", reset)
    monkeypatch.setattr(Watch, "audit", lambda _: None)
    monkeypatch.setattr(tenancy, "is_over", lambda *_: False)
    losses.leave(watch.paths, LossRecord(9, 1_009, 1_000, "n1", 1, (WELL,), ()))
    step(watch, 3)

    assert watch.slurm.requeued == [8, 9]  # type: ignore[attr-defined]
    assert capsys.readouterr().err.count(PROBLEM) == 1


@pytest.mark.parametrize("ended", ["COMPLETED", "CANCELLED", "TIMEOUT"])
def test_of_the_victims_of_a_fault_those_that_ended_otherwise_do_not_run_again(
    watch: Watch, monkeypatch: pytest.MonkeyPatch, ended: str
) -> None:
    """While MPS is mended their Epilogs wait for the lock: a user may cancel a job, or its work may be done."""
    slurm = watch.slurm
    assert isinstance(slurm, Slurm)
    slurm.states = {7: "COMPLETING", 8: "RUNNING", 9: "COMPLETING"}
    tenants = tuple(Tenant(job, 1_000 + job, 30, start=1_000) for job in (7, 8, 9))
    one = SetState(BOOT, (SICK,), (0,), "ceiling", multi_user=True, tenants=tenants)
    monkeypatch.setattr(Watch, "audit", lambda _: None)
    monkeypatch.setattr(tenancy, "is_over", lambda *_: False)
    state.forget(watch.paths, (SICK, WELL))

    watch._requeue_victims(one, tenants, set())
    step(watch)
    assert slurm.requeued == [8]
    slurm.states = {7: ended, 9: "FAILED"}
    step(watch, 3)

    assert slurm.requeued == [8, 9]


def test_a_full_disk_keeps_no_victim_of_a_fault_from_running_again(
    watch: Watch, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise StateError("cannot write: No space left on device")

    slurm = watch.slurm
    assert isinstance(slurm, Slurm)
    slurm.states = {7: "COMPLETING", 8: "RUNNING"}
    monkeypatch.setattr(losses, "leave", full)
    tenants = tuple(Tenant(job, 1_000 + job, 30, start=1_000) for job in (7, 8))
    one = SetState(BOOT, (SICK,), (0,), "ceiling", multi_user=True, tenants=tenants)

    watch._requeue_victims(one, tenants, set())

    assert slurm.requeued == [8]


def test_a_share_that_cannot_be_taken_back_keeps_no_other(
    watch: Watch, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    detach = lifecycle.detach

    def stuck(paths: Paths, config: NodeConfig, job: int, start: int) -> object:
        if job == 7:
            raise ControlError(PROBLEM)
        return detach(paths, config, job, start)

    def stop(paths: Paths, _config: NodeConfig, one: SetState) -> list[str]:
        state.forget(paths, one.uuids)
        return []

    monkeypatch.setattr(lifecycle, "detach", stuck)
    monkeypatch.setattr(lifecycle, "sweep", lambda *_: ())
    monkeypatch.setattr(lifecycle, "_stop", stop)
    monkeypatch.setattr(Watch, "audit", lambda _: None)
    monkeypatch.setattr(Watch, "mend", lambda _: None)
    monkeypatch.setattr(tenancy, "is_over", lambda *_: True)
    watch.paths.given.mkdir()
    (watch.paths.given / "6").write_text("of a job that is over")
    monkeypatch.setattr(watches, "_SELDOM", 0.0)
    step(watch, 3)

    assert [one.uuids for one in state.everything(watch.paths)] == [(SICK,)]
    assert list(watch.paths.given.iterdir()) == []
    assert capsys.readouterr().err.count(PROBLEM) == 1
