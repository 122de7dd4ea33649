# SPDX-License-Identifier: Apache-2.0
"""MPS as NVIDIA's real control programs keep it, drivers 535 to 595, with a stub server in the GPU's place."""

from __future__ import annotations

import json
import os
import signal
import struct
import subprocess
import time
from collections.abc import Iterator
from typing import Any

import pytest

from prolog_epilog import doctor
from prolog_epilog.errors import CannotShare, ControlError
from prolog_epilog.mps import detach, sweep
from prolog_epilog.mps.ceiling import Ceiling
from prolog_epilog.mps.control import Abilities, Control, Refused, abilities
from prolog_epilog.mps.losses import causes
from prolog_epilog.node import files, processes
from prolog_epilog.tenants import state
from prolog_epilog.tenants.state import SetState, Tenant
from tests.fakes.mps.programs import TRANSCRIPTS
from tests.fakes.mps.world import GPUS, Node, await_true, fresh_node
from tests.real.control_program import (
    LIBRARY,
    NOBODY,
    OTHER,
    OWNER,
    PARTITIONS,
    find_library_beside,
    install,
    running,
    tell,
    transcript,
)
from tests.real.packages import DEBIANS, DRIVERS, UBUNTUS, unpacked
from tests.rights import needs_root
from tests.unit.prolog_epilog.mps.status import server_status

pytestmark = [needs_root, pytest.mark.slow]


newer = pytest.mark.parametrize("driver", UBUNTUS, indirect=True)
"""From driver 580 on."""


@pytest.fixture(params=DRIVERS)
def driver(request: pytest.FixtureRequest) -> str:
    """Its name."""
    why = unpacked(str(request.param))
    if isinstance(why, str):
        pytest.skip(f"NVIDIA's {request.param} cannot be had: {why}")
    return str(request.param)


@pytest.fixture
def node(driver: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Node]:
    """A node with simulated GPUs, a real control program and the stub server."""
    if driver in UBUNTUS:
        find_library_beside(monkeypatch)
    with fresh_node(monkeypatch) as made:
        # Static partitions, which 595 has, have tests of their own.
        made.config = made.config._replace(mps_control=install(driver, made.root / "bin"))
        (made.root / "told").touch(0o666)
        (made.root / "told").chmod(0o666)
        wish(made)
        yield made


@pytest.fixture
def control(node: Node) -> Iterator[Control]:
    """A daemon started by hand, two GPUs in its sight."""
    with running(node.config.mps_control, node.root / "by-hand") as one:
        yield one


def limits(node: Node) -> dict[str, Any]:
    """What the stub server knows."""
    try:
        return dict(json.loads((node.root / "told").read_text()))
    except ValueError:  # it is being written
        return {}


def state_of(control: Control, *tenants: Tenant) -> SetState:
    return SetState(
        boot=processes.boot_id(), uuids=control.uuids, modes=(0,), method="ceiling", multi_user=False, tenants=tenants
    )


def test_it_answers_as_it_is_written_down(driver: str, control: Control) -> None:
    assert transcript(control) == json.loads((TRANSCRIPTS / f"{driver}.json").read_text())


@newer
@pytest.mark.parametrize("option", ["-M", "--multiuser-server", "--multiuser", "-multiuser-server"])
def test_it_answers_as_it_is_written_down_with_several_users(driver: str, node: Node, option: str) -> None:
    with running(node.config.mps_control, node.root / "by-hand", options=(option,)) as control:
        assert transcript(control) == json.loads((TRANSCRIPTS / f"{driver}-multiuser.json").read_text())
        assert processes.user_of(Ceiling().server(control) or 0) == 0


@pytest.mark.parametrize("driver", ["r595"], indirect=True)
@pytest.mark.parametrize("option", ["-S", "--static-partitioning"])
def test_it_answers_as_it_is_written_down_with_static_partitions(node: Node, option: str) -> None:
    with running(node.config.mps_control, node.root / "by-hand", options=(option,)) as control:
        assert transcript(control, PARTITIONS) == json.loads((TRANSCRIPTS / "r595-static.json").read_text())


def test_what_it_starts_with_is_tried_and_leaves_nothing(driver: str, node: Node) -> None:
    folder = node.root / "tries"

    found = abilities(node.config.mps_control, folder, GPUS[:1])

    several = "--multiuser" if driver in UBUNTUS else None
    assert found == Abilities(namespaces=False, multi_user=several)
    assert list(folder.iterdir()) == []


@newer
def test_nothing_is_found_where_no_gpu_is_seen(node: Node) -> None:
    found = abilities(node.config.mps_control, node.root / "tries", [])

    assert found == Abilities(namespaces=False, multi_user=None)


@newer
@pytest.mark.parametrize("several", [False, True])
def test_a_node_whose_linker_does_not_know_the_library_is_told_so(node: Node, several: bool) -> None:
    (node.root / "bin" / LIBRARY).unlink()
    node.config = node.config._replace(multi_user=several)
    began = time.monotonic()

    with pytest.raises(ControlError, match=r"does not find libcuda\.so\.1 \(it ended with status 244\); .*ldconfig"):
        node.attach(1, 30)

    assert time.monotonic() - began < node.config.mps_start_timeout / 2
    assert node.clean()
    (node.root / "berth.conf").write_text(f'[node]\nmps_control = "{node.config.mps_control}"\n')
    [found] = [one for one in doctor.examine(str(node.root / "berth.conf"), node.paths) if one.name == "MPS"]
    assert not found.ok
    assert "libcuda.so.1" in found.text


@newer
def test_a_node_whose_library_sees_no_gpu_is_told_so(driver: str, node: Node) -> None:
    # NVIDIA's own library, without a GPU.
    folder = unpacked(driver)
    assert not isinstance(folder, str)
    [real] = folder.glob(f"usr/lib/*/{LIBRARY}")
    (node.root / "bin" / LIBRARY).unlink()
    (node.root / "bin" / LIBRARY).symlink_to(real)

    with pytest.raises(ControlError, match=r"sees no GPU \(it ended with status 100\); "):
        node.attach(1, 30)

    assert node.clean()


def test_memory_is_limited_to_the_byte_though_it_is_shown_in_whole_gibibytes(node: Node, control: Control) -> None:
    way = Ceiling()
    way.set_default_memory(control, 5000)

    way.start(control, state_of(control, Tenant(1, OWNER, 30, 5000)), time.monotonic() + 20)

    way.set_memory(control, way.server(control) or 0, 1500)
    await_true(lambda: limits(node).get("memory") == [1500 << 20] * 2)
    way.set_memory(control, way.server(control) or 0, None)
    await_true(lambda: limits(node).get("memory") == [1 << 40] * 2)


def test_a_server_is_starting_then_active_then_gone(node: Node, control: Control) -> None:
    way = Ceiling()
    wish(node, busy=True)
    control.tell(f"start_server -uid {OWNER}")
    await_true(lambda: way.server(control) is not None)
    assert way.status(control) == "INITIALIZING"
    os.kill(way.server(control) or 0, signal.SIGKILL)
    await_true(lambda: way.status(control) == "GONE")
    wish(node)
    control.tell(f"start_server -uid {OWNER}")
    await_true(lambda: way.status(control) == "ACTIVE")
    assert processes.user_of(way.server(control) or 0) == OWNER


def test_a_fault_is_seen_where_the_driver_tells_it(driver: str, node: Node, control: Control) -> None:
    way = Ceiling()
    control.tell(f"start_server -uid {OWNER}")
    await_true(lambda: way.status(control) == "ACTIVE")
    wish(node, fault=True)
    assert way.status(control) == ("FAULT" if driver != "r535" else "ACTIVE")


def test_a_sentence_with_a_number_is_no_client(control: Control) -> None:
    with pytest.raises(Refused, match=f"Server {NOBODY} not found"):
        control.tell(f"get_client_list {NOBODY}")
    assert Ceiling().clients(control) == ()
    control.tell(f"start_server -uid {OWNER}")
    await_true(lambda: Ceiling().status(control) == "ACTIVE")
    assert not Ceiling().terminate(control, NOBODY)


def test_clients_are_counted(node: Node, control: Control) -> None:
    control.tell(f"start_server -uid {OWNER}")
    await_true(lambda: Ceiling().status(control) == "ACTIVE")
    wish(node, clients=[77, 78])
    assert Ceiling().clients(control) == (77, 78)


def test_that_a_user_can_raise_his_own_servers_limits_is_found_out(control: Control) -> None:
    control.tell(f"start_server -uid {OWNER}")
    await_true(lambda: Ceiling().status(control) == "ACTIVE")

    tried = state_of(control, Tenant(1, OWNER, 30, None))

    assert Ceiling().loose(control, tried)
    assert tell(control, f"get_active_thread_percentage {Ceiling().server(control)}") == "30.0\n"


def test_whether_another_user_can_depends_on_the_driver(driver: str, control: Control) -> None:
    control.tell(f"start_server -uid {OWNER}")
    await_true(lambda: Ceiling().status(control) == "ACTIVE")

    assert Ceiling().loose(control, state_of(control, Tenant(1, OTHER, 30, None))) == (driver == "r535")


def write_into_the_log(control: Control, words: bytes) -> None:
    """What any user can do who reaches the daemon."""
    code = "import os, sys; os.write(os.open(sys.argv[1], os.O_WRONLY), bytes.fromhex(sys.argv[2]))"
    subprocess.run(["/usr/bin/python3", "-c", code, control.pipe / "log", words.hex()], user=OTHER, check=True)


def test_a_user_can_forge_a_line_of_the_log(control: Control) -> None:
    """As docs/admin/node.md says: the cause of a fault that the log names is no proof against malice."""
    text = b"Client {PID: 4711, Context: 1} encountered a fatal GPU error.\n"
    of_a_server = 0xABCDE001
    write_into_the_log(control, struct.pack("<10Iq", of_a_server, 651, 2026, 11, 27, 5, 15, 0, 0, 0, len(text)) + text)

    await_true(lambda: causes(control.log) == (4711,))


def test_a_user_can_end_the_log_and_with_it_the_daemon(control: Control) -> None:
    tell(control, "get_server_list")
    write_into_the_log(control, b"x" * 64)

    def until_it_is_silent() -> None:
        for _ in range(1_000):
            control.tell("get_server_list", 2.0)

    with pytest.raises(ControlError, match="MPS did not answer"):
        until_it_is_silent()
    # Nobody read its words any more: with room in the pipe it goes on.
    pipe = os.open(control.pipe / "log", os.O_RDONLY | os.O_NONBLOCK)
    os.read(pipe, 1 << 16)
    os.close(pipe)
    assert tell(control, "get_server_list") == ""


def test_a_share_lives_and_ends(node: Node) -> None:
    attached = node.attach(1, 30, mem=5000)

    assert attached.level.name == "open-ceiling"
    known = state.load(node.paths, GPUS[1])
    assert known is not None
    log = node.paths.log(known.name) / "control.log"
    assert "NEW SERVER" in log.read_text()
    assert server_status(node.paths, node.config, GPUS[1]) == "ACTIVE"
    await_true(lambda: limits(node) == {"percent": 30.0, "memory": [5000 << 20]})
    node.attach(2, 50, mem=2000)
    await_true(lambda: limits(node) == {"percent": 50.0, "memory": [5000 << 20]})
    detach(node.paths, node.config, 2)
    detach(node.paths, node.config, 1)
    assert node.clean()


def test_jobs_of_two_users_are_held_by_a_server_of_root(driver: str, node: Node) -> None:
    node.config = node.config._replace(multi_user=True)
    if driver in DEBIANS:
        with pytest.raises(CannotShare, match="serves one user at a time"):
            node.attach(1, 30)
        assert node.clean()
        return

    assert node.attach(1, 30, mem=5000).level.name == "server-ceiling"
    assert node.attach(2, 50, mem=2000, uid=OTHER).level.name == "server-ceiling"

    [known] = state.everything(node.paths)
    assert [processes.user_of(server.pid) for server in known.servers] == [0]
    await_true(lambda: limits(node) == {"percent": 50.0, "memory": [5000 << 20]})
    detach(node.paths, node.config, 2)
    await_true(lambda: limits(node) == {"percent": 30.0, "memory": [5000 << 20]})
    detach(node.paths, node.config, 1)
    assert node.clean()


def test_two_gpus_of_one_job_are_seen_by_position_and_limited_alike(node: Node) -> None:
    attached = node.attach(1, 30, mem=3000, gpus=(1, 0))

    assert attached.environment["CUDA_VISIBLE_DEVICES"] == ",".join(gpu.uuid for gpu in node.gpus(0, 1))
    await_true(lambda: limits(node).get("memory") == [3000 << 20] * 2)
    detach(node.paths, node.config, 1)
    assert node.clean()


def test_two_daemons_serve_two_gpus(node: Node) -> None:
    node.attach(1, 30, gpus=(0,))
    node.attach(2, 40, gpus=(1,))
    assert len({known.name for known in state.everything(node.paths)}) == 2
    for job in (1, 2):
        detach(node.paths, node.config, job)
    assert node.clean()


@pytest.mark.parametrize(
    ("wishes", "said"), [({"dies": True}, "not ready in time"), ({"busy": True}, "it is INITIALIZING")]
)
def test_a_server_that_does_not_come_leaves_nothing(node: Node, wishes: dict[str, bool], said: str) -> None:
    wish(node, **wishes)
    node.config = node.config._replace(mps_start_timeout=4.0, mps_stop_timeout=3.0)

    with pytest.raises(ControlError, match=said):
        node.attach(1, 30)

    assert node.clean()


def test_a_server_that_is_nowhere_on_the_path_is_told(node: Node) -> None:
    (node.root / "bin/nvidia-cuda-mps-server").unlink()

    with pytest.raises(ControlError, match=r"not ready in time \(it is GONE\); look at its control.log"):
        node.attach(1, 30)

    assert node.clean()


def test_what_a_killed_daemon_leaves_is_swept_up(node: Node) -> None:
    node.attach(1, 30)
    [known] = state.everything(node.paths)
    assert known.daemon is not None
    os.kill(known.daemon.pid, signal.SIGKILL)
    await_true(lambda: server_status(node.paths, node.config, GPUS[1]) == "GONE")

    node.attach(2, 30)

    assert server_status(node.paths, node.config, GPUS[1]) == "ACTIVE"
    for job in (1, 2):
        detach(node.paths, node.config, job)
    sweep(node.paths, node.config)
    assert node.clean()


def wish(node: Node, **wishes: object) -> None:
    """What the stub servers of this node do from now on; a server that reads meanwhile reads the old or the new."""
    files.write(node.root / "stub-server.json", json.dumps(wishes | {"told": str(node.root / "told")}), 0o644)
