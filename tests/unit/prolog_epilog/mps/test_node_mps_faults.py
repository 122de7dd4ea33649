# SPDX-License-Identifier: Apache-2.0
"""What MPS does wrong, and what becomes of it: each gives its sentence, and nothing runs without its limits."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from prolog_epilog.errors import CannotShare, ControlError, HardwareFault
from prolog_epilog.mps import detach, tenants
from prolog_epilog.mps.trouble import causes, reset_after_fault, terminate_clients
from prolog_epilog.node import devices
from prolog_epilog.tenants import state
from tests.fakes.mps.world import GPUS, Node, await_true, fresh_node
from tests.rights import needs_root
from tests.unit.prolog_epilog.mps.status import server_status

pytestmark = pytest.mark.slow

FIRST = GPUS[1]


@pytest.fixture
def node(monkeypatch: pytest.MonkeyPatch) -> Iterator[Node]:
    with fresh_node(monkeypatch) as made:
        yield made


def daemon_of(node: Node) -> int:
    found = state.load(node.paths, FIRST)
    assert found
    assert found.daemon
    return found.daemon.pid


def server_of(node: Node) -> int:
    found = state.load(node.paths, FIRST)
    assert found
    return found.servers[0].pid


@pytest.mark.parametrize("lie", [{"lie_percent": 100}, {"lie_memory": 70000}])
def test_a_limit_that_reads_back_wrong_is_refused_and_nothing_stays(node: Node, lie: dict[str, int]) -> None:
    node.wish(**lie)
    with pytest.raises(ControlError, match="would not hold"):
        node.attach(1, 30, 2048)
    assert node.clean()


def test_a_driver_that_does_not_know_how_to_show_a_limit_is_refused(node: Node) -> None:
    node.wish(no_verbs=["get_default_device_pinned_mem_limit"])
    with pytest.raises(ControlError, match='Unknown command "get_default_device_pinned_mem_limit"'):
        node.attach(1, 30, 2048)
    node.wish(no_verbs=["start_server"])
    with pytest.raises(ControlError, match='Unknown command "start_server"'):
        node.attach(1, 30)
    assert node.clean()


def test_a_second_tenant_whose_limit_does_not_hold_stays_out_and_the_first_keeps_its(node: Node) -> None:
    first = node.attach(1, 30)
    node.wish(lie_percent=30)
    with pytest.raises(ControlError, match="would not hold"):
        node.attach(2, 50)
    node.wishes.pop("lie_percent")
    node.wish()
    assert [tenant.job for tenant in tenants(node.paths, FIRST)] == [1]
    bold = first.environment | {"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "100"}
    assert node.app("hold=60", given=bold).says()["sms"] == [38]


def test_a_slow_server_is_awaited_and_one_that_is_too_slow_is_refused(node: Node) -> None:
    node.wish(slow_start=1.5)
    assert node.app("hold=60", given=node.attach(1, 30).environment).says()["mps"]
    detach(node.paths, node.config, 1)
    node.config = node.config._replace(mps_start_timeout=10, mps_stop_timeout=1)
    node.wish(slow_start=60)
    with pytest.raises(ControlError, match="INITIALIZING"):
        node.attach(2, 30)
    assert node.clean()


def test_a_server_that_dies_at_its_start_is_refused(node: Node) -> None:
    node.wish(server_dies=True)
    with pytest.raises(ControlError, match="not ready in time"):
        node.attach(1, 30)
    assert node.clean()


@needs_root
def test_a_server_of_the_wrong_user_is_refused(node: Node) -> None:
    node.wish(wrong_user=True)
    with pytest.raises(ControlError, match="runs as user 1001"):
        node.attach(1, 30)
    assert node.clean()


def test_a_node_without_mps_says_so(node: Node) -> None:
    node.config = node.config._replace(mps_control="/nowhere/nvidia-cuda-mps-control")
    with pytest.raises(ControlError, match="is not on this node"):
        node.attach(1, 30)
    assert node.mode() == devices.DEFAULT


def test_a_daemon_that_does_not_quit_is_ended(node: Node) -> None:
    node.attach(1, 30)
    node.wish(hang_quit=True)
    node.config = node.config._replace(mps_stop_timeout=1)
    done = detach(node.paths, node.config, 1)
    assert done.stopped == (FIRST,)
    assert len(done.leftovers) == 2
    assert all("had to be ended" in sentence for sentence in done.leftovers)
    assert node.clean()


def test_a_client_that_outlives_its_job_is_sent_away_before_the_end(node: Node) -> None:
    attached = node.attach(1, 30)
    stubborn = node.app("ignore-term", "hold=60", given=attached.environment)
    stubborn.says()
    done = detach(node.paths, node.config, 1)
    assert done.leftovers == (f"process {stubborn.pid} was still connected to MPS after its job, and was sent away",)
    assert stubborn.says() == {"error": 810}
    assert node.clean()


def test_a_dead_daemon_is_started_anew_for_the_next_job_with_all_limits(node: Node) -> None:
    first = node.attach(1, 30, 2048)
    old, orphan = daemon_of(node), server_of(node)
    os.kill(old, signal.SIGKILL)
    await_true(lambda: server_status(node.paths, node.config, FIRST) == "GONE")
    node.attach(2, 50, 4096)
    assert daemon_of(node) != old
    assert orphan not in node.processes()
    bold = first.environment | {"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "100", "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": ""}
    got = node.app("hold=60", given=bold).says()
    assert (got["sms"], got["memory"]) == ([66], [4096])


def test_after_a_dead_daemon_the_last_job_still_leaves_a_clean_node(node: Node) -> None:
    node.attach(1, 30)
    node.attach(2, 30)
    os.kill(daemon_of(node), signal.SIGKILL)
    assert "died" in detach(node.paths, node.config, 1).leftovers[0]
    detach(node.paths, node.config, 2)
    assert node.clean()


def test_a_dead_server_is_started_anew_for_the_next_job(node: Node) -> None:
    node.attach(1, 30)
    os.kill(server_of(node), signal.SIGKILL)
    await_true(lambda: server_status(node.paths, node.config, FIRST) == "GONE")
    node.attach(2, 50)
    assert server_status(node.paths, node.config, FIRST) == "ACTIVE"


def test_one_tenants_fault_is_everybodys_and_is_over_when_all_clients_are_gone(node: Node) -> None:
    attached = node.attach(1, 30, 2048)
    other = node.attach(2, 50, 2048)
    victim = node.app("ignore-errors", "hold=60", given=attached.environment)
    victim.says()
    guilty = node.app("fault", "hold=60", given=other.environment)
    guilty.says()
    assert guilty.says() == {"error": 700}
    assert victim.says() == {"error": 700}
    assert server_status(node.paths, node.config, FIRST) == "FAULT"
    assert node.app(given=attached.environment).says() == {"error": 807}
    with pytest.raises(CannotShare, match="has just failed"):
        node.attach(3, 10)

    done = reset_after_fault(node.paths, node.config, FIRST, patience=5)
    assert (done.restarted, done.causes) == (False, (guilty.pid,))
    assert [tenant.job for tenant in done.tenants] == [1, 2]
    assert server_status(node.paths, node.config, FIRST) == "ACTIVE"
    node.attach(3, 10)


def test_a_server_that_does_not_recover_is_started_anew_with_all_limits(node: Node) -> None:
    attached = node.attach(1, 30, 2048)
    node.config = node.config._replace(mps_stop_timeout=1)
    node.wish(no_verbs=["terminate_client"])
    guilty = node.app("ignore-errors", "fault", "hold=60", given=attached.environment)
    guilty.says()
    guilty.says()
    assert causes(node.paths, FIRST) == (guilty.pid,)
    old = daemon_of(node)
    done = reset_after_fault(node.paths, node.config, FIRST, patience=0.2)
    assert done.restarted
    assert daemon_of(node) != old
    bold = attached.environment | {"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "100", "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": ""}
    got = node.app("hold=60", given=bold).says()
    assert (got["sms"], got["memory"]) == ([38], [2048])


def test_clients_are_terminated_by_their_process_and_only_if_they_are_there(node: Node) -> None:
    attached = node.attach(1, 30)
    one, two = (node.app("hold=60", given=attached.environment) for _ in range(2))
    one.says(), two.says()
    assert terminate_clients(node.paths, node.config, FIRST, [one.pid, os.getpid()]) == (one.pid,)
    assert one.says() == {"error": 810}
    assert two.silent()
    assert terminate_clients(node.paths, node.config, GPUS[0], [two.pid]) == ()


@pytest.mark.parametrize(("line", "sentence"), [("gpu 1 lost=1", "fallen off"), ("gpu 1 remap-failed=1", "replaced")])
def test_broken_hardware_is_told_apart(node: Node, line: str, sentence: str) -> None:
    gpus = node.gpus(0)
    assert gpus[0].uuid == FIRST
    node.live(line)
    with pytest.raises(HardwareFault, match=sentence):
        node.attach(1, 30)
    assert tenants(node.paths, FIRST) == ()


def test_a_gpu_lost_under_a_job_is_told_when_all_is_put_away(node: Node) -> None:
    node.attach(1, 30)
    node.live("gpu 1 lost=1")
    with pytest.raises(HardwareFault, match="fallen off"):
        detach(node.paths, node.config, 1)
    assert not [name for name in node.processes().values() if "mps-" in name]
    assert tenants(node.paths, FIRST) == ()


def test_a_socket_path_that_is_too_long_is_named(node: Node) -> None:
    node.paths = replace(node.paths, root=node.root / ("long" * 20))
    with pytest.raises(ControlError, match="too long for a socket"):
        node.attach(1, 30)


def test_what_others_put_in_the_place_of_our_folders_is_refused(node: Node) -> None:
    node.paths.root.mkdir()
    elsewhere = node.root / "elsewhere"
    elsewhere.mkdir()
    node.paths.mps.symlink_to(elsewhere)
    with pytest.raises(CannotShare, match="only root may change"):
        node.attach(1, 30)
    assert list(elsewhere.iterdir()) == []


@needs_root
def test_a_read_only_run_is_a_sentence_and_changes_nothing(node: Node) -> None:
    node.paths = replace(node.paths, root=Path("/proc/berth"))
    with pytest.raises(CannotShare, match=r"cannot make /proc/berth"):
        node.attach(1, 30)
    assert node.mode() == devices.DEFAULT
