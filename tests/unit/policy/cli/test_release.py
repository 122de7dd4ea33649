# SPDX-License-Identifier: Apache-2.0
from collections.abc import Mapping
from typing import Any

import pytest

from policy.cli import main as cli
from policy.formats.errors import SlurmError

ENDS = "job 7 is failed, only the place of a waiting job can change"


class EndingJob:
    """Slurm with one job that ends on its nodes, and comes back after some looks, or not at all."""

    name = "test"

    def __init__(self, looks: int, settings: Mapping[str, str]) -> None:
        self.looks = looks
        self.settings = settings
        self.released: list[int | str] = []

    def config(self) -> Mapping[str, str]:
        return self.settings

    def pinned_jobs(self, called: str = "") -> list[int | str]:
        assert not called
        return [] if self.released else [7]

    def release(self, job_id: int | str, reason: str, *, for_now: bool = False) -> bool:
        assert reason
        assert not for_now
        self.looks -= 1
        if self.looks >= 0:
            raise SlurmError(ENDS)
        self.released.append(job_id)
        return True

    def close(self) -> None:
        pass


def release(gateway: Any, monkeypatch: pytest.MonkeyPatch) -> tuple[int, float]:
    """The exit status of `berth release --all`, and the seconds that it waited."""
    now = [0.0]

    def sleep(seconds: float) -> None:
        now[0] += seconds

    monkeypatch.setattr("policy.slurm.gateways.open_gateway", lambda _: gateway)
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    monkeypatch.setattr("time.sleep", sleep)
    return cli.main(["release", "--all"]), now[0]


@pytest.mark.parametrize(
    "said",
    [
        "Job is no longer pending execution",
        # slurmctld looks at the list of nodes first, and takes it for a change of the job's size.
        "Requested operation not supported on this system",
        "Job has already finished",
    ],
)
def test_a_job_that_started_or_ended_a_moment_ago_is_no_failure(monkeypatch: pytest.MonkeyPatch, said: str) -> None:
    class StartsJustNow(EndingJob):
        def release(self, job_id: int | str, reason: str, *, for_now: bool = False) -> bool:
            assert reason
            assert not for_now
            raise SlurmError(f"job {job_id} could not be changed: {said}")

    assert release(StartsJustNow(0, {}), monkeypatch)[0] == 0


def test_release_waits_for_a_job_that_requeue_exit_may_put_back(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    gateway = EndingJob(5, {"RequeueExit": "3"})

    assert release(gateway, monkeypatch) == (0, 2.5)

    told = capsys.readouterr()
    assert gateway.released == [7]
    assert "1 job given back to Slurm" in told.out
    assert told.err.count("may be requeued by RequeueExit: waiting for them [BERTH-727]") == 1


def test_release_waits_for_such_a_job_no_longer_than_half_a_minute(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    gateway = EndingJob(10_000, {"RequeueExitHold": "1-5"})

    assert release(gateway, monkeypatch) == (1, 30.0)

    assert "jobs 7 still end on their nodes, and keep their place if they are requeued" in capsys.readouterr().err


def test_release_waits_for_nobody_where_no_exit_status_brings_a_job_back(monkeypatch: pytest.MonkeyPatch) -> None:
    gateway = EndingJob(10_000, {"RequeueExit": "(null)", "RequeueExitHold": "(null)"})

    assert release(gateway, monkeypatch) == (0, 0.0)
