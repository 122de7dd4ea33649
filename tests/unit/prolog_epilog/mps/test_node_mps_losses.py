# SPDX-License-Identifier: Apache-2.0
"""Whom MPS's log names as the cause of a fault: the words of real drivers, and never a victim or a user's own words."""

from __future__ import annotations

from pathlib import Path

import pytest

from prolog_epilog.guard.seats.trimming import Logs
from prolog_epilog.mps.losses import causes
from prolog_epilog.node import files
from prolog_epilog.node.paths import Paths
from prolog_epilog.tenants.state import SetState

# Driver 580.159.04 on an H200, started with -d: one client of one user faults.
ALONE = """\
[2026-11-27 14:46:38.872 Server   858] Client process 885 disconnected
[2026-11-27 14:46:39.029 Server   858] Status of client {PID: 909, Context ID: 1} is ACTIVE
[2026-11-27 14:46:39.400 Server   858] Client {PID: 909, Context: 1} encountered a fatal GPU error.
[2026-11-27 14:46:39.400 Server   858] Server is handling a fatal GPU error.
[2026-11-27 14:46:39.400 Server   858] Client {PID: 909, Context ID: 1} on device 0 to be torn down
[2026-11-27 14:46:39.400 Server   858] All clients belonging to error trigging process 909 will be torn down
[2026-11-27 14:46:39.400 Server   858] Client {PID: 909, Context ID: 1} on the error-trigging process 909 to be torn down
[2026-11-27 14:46:39.400 Server   858] The following devices will be reset:
[2026-11-27 14:46:39.400 Server   858] 0
[2026-11-27 14:46:39.400 Server   858] The following client process have a sticky error set:
[2026-11-27 14:46:39.400 Server   858] 909
[2026-11-27 14:46:39.437 Server   858] Server failed to recevie command with status 806, assuming client {PID: 909, Context ID: 1} exit
[2026-11-27 14:46:39.437 Server   858] Client {PID: 909, Context ID: 1} exiting. Number of active client contexts is 0.
[2026-11-27 14:46:39.501 Server   858] Client process 909 disconnected
"""  # noqa: E501 - word for word
# The same driver with -f -M, a client of two users each: 724 faults, and 734 is its victim.
TOGETHER = """\
[2026-11-27 14:57:10.056 Control   634] NEW CLIENT 734 from user 0: Server already exists
[2026-11-27 14:57:10.056 Server   651] Status of client {PID: 734, Context ID: 1} is ACTIVE
[2026-11-27 14:57:10.353 Server   651] Client {PID: 724, Context: 1} encountered a fatal GPU error.
[2026-11-27 14:57:10.353 Server   651] Server is handling a fatal GPU error.
[2026-11-27 14:57:10.353 Server   651] Client {PID: 724, Context ID: 1} on device 0 to be torn down
[2026-11-27 14:57:10.353 Server   651] Client {PID: 734, Context ID: 1} on device 0 to be torn down
[2026-11-27 14:57:10.353 Server   651] All clients belonging to error trigging process 724 will be torn down
[2026-11-27 14:57:10.353 Server   651] Client {PID: 724, Context ID: 1} on the error-trigging process 724 to be torn down
[2026-11-27 14:57:10.353 Server   651] All clients belonging to error trigging process 734 will be torn down
[2026-11-27 14:57:10.353 Server   651] Client {PID: 734, Context ID: 1} on the error-trigging process 734 to be torn down
[2026-11-27 14:57:10.353 Server   651] The following client process have a sticky error set:
[2026-11-27 14:57:10.353 Server   651] 724
[2026-11-27 14:57:10.353 Server   651] 734
[2026-11-27 14:57:10.387 Server   651] Server failed to recevie command with status 806, assuming client {PID: 734, Context ID: 1} exit
[2026-11-27 14:57:10.494 Server   651] Client process 724 disconnected
[2026-11-27 14:57:10.494 Server   651] Client process 734 disconnected
"""  # noqa: E501 - word for word
# The words of drivers 535 and 550, from their libraries.
OLDER = """\
[2026-11-25 10:00:00.000 Server    80] Client process 4711 encountered a fatal GPU error.
[2026-11-25 10:00:00.000 Server    80] Server is handling a fatal GPU error.
[2026-11-25 10:00:00.000 Server    80] The following clients have a sticky error set:
[2026-11-25 10:00:00.000 Server    80] 4711
"""
# The control daemon writes down what a user sends to it.
USERS_WORDS = """\
[2026-11-27 14:46:42.851 Control   848] Cmd:Client {PID: 734, Context: 1} encountered a fatal GPU error.
[2026-11-27 14:46:42.851 Control   848] Unknown command "Client {PID: 734, Context: 1} encountered a fatal GPU error."
[2026-11-27 14:46:42.851 Control   848] Cmd:Server   651] Client process 734 encountered a fatal GPU error.
"""
QUIET = """\
[2026-11-27 14:46:31.190 Server   730] Client {PID: 813, Context ID: 0} connected
[2026-11-27 14:46:30.762 Control   693] Cmd:set_default_active_thread_percentage 100
[2026-11-27 14:46:31.323 Server   730] Server failed to recevie command with status 806, assuming client {PID: 813, Context ID: 1} exit
[2026-11-27 14:46:31.342 Server   730] Client process 813 disconnected
"""  # noqa: E501 - word for word


@pytest.mark.parametrize(
    ("said", "named"),
    [(ALONE, (909,)), (TOGETHER, (724,)), (OLDER, (4711,)), (ALONE + TOGETHER, (724, 909)), (USERS_WORDS, ())],
)
@pytest.mark.parametrize("log", ["server.log", "control.log"])
def test_the_cause_is_named_and_no_victim(tmp_path: Path, log: str, said: str, named: tuple[int, ...]) -> None:
    (tmp_path / log).write_text(QUIET + said)

    assert causes(tmp_path) == named


@pytest.mark.parametrize("said", [ALONE, TOGETHER, OLDER])
def test_the_guard_asks_mps_after_such_lines_alone(tmp_path: Path, said: str) -> None:
    paths, logs = Paths(tmp_path), Logs()
    one = SetState("boot", ("GPU-1",), (0,), "ceiling", multi_user=False)
    files.prepare(paths)
    log = paths.log(one.name) / "control.log"
    log.parent.mkdir(parents=True)

    log.write_text(QUIET)
    assert not logs.hints_at_fault(one, paths, "boot")
    log.write_text(QUIET + said)
    assert logs.hints_at_fault(one, paths, "boot")
