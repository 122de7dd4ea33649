# SPDX-License-Identifier: Apache-2.0
"""MPS from the first job that shares a GPU to the last, on a simulated GPU with real processes and sockets."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from prolog_epilog.errors import CannotShare
from prolog_epilog.mps import detach, sweep, tenants
from prolog_epilog.node import devices, processes
from prolog_epilog.tenants import state
from tests.fakes.mps.world import GPUS, USER, Node, await_true, fresh_node
from tests.rights import needs_root
from tests.unit.prolog_epilog.mps.status import server_status

pytestmark = pytest.mark.slow

FIRST = GPUS[1]  # position 0 is the GPU with minor 0


@pytest.fixture
def node(monkeypatch: pytest.MonkeyPatch) -> Iterator[Node]:
    with fresh_node(monkeypatch) as made:
        yield made


def end(node: Node, job: int) -> tuple[tuple[str, ...], tuple[str, ...]]:
    done = detach(node.paths, node.config, job)
    return done.stopped, done.leftovers


def test_no_user_may_write_the_daemons_files_though_it_writes_its_number_late(node: Node) -> None:
    node.wish(late_number=0.3)
    node.attach(41, 30)

    files = [path for path in node.paths.pipe(FIRST).iterdir() if path.is_file()]
    assert {path.name: path.stat().st_mode & 0o022 for path in files} == {
        "control_lock": 0,
        "nvidia-cuda-mps-control.pid": 0,
    }


def test_two_tenants_get_their_shares_and_the_last_one_out_leaves_nothing(node: Node) -> None:
    first = node.attach(41, 30, 12288)
    assert node.mode() == devices.EXCLUSIVE_PROCESS
    assert node.mode(1) == devices.DEFAULT
    second = node.attach(42, 50)
    assert [tenant.job for tenant in tenants(node.paths, FIRST)] == [41, 42]

    # 132 multiprocessors: 30 % are 39.6, 50 % are 66; MPS gives whole pairs.
    mine = node.app("alloc=12000", "alloc=500", "hold=60", given=first.environment)
    got = mine.says()
    assert (got["mps"], got["sms"], got["memory"], got["uuids"]) == (True, [38], [12288], [FIRST])
    assert mine.says() == {"alloc": 12000, "error": 0}
    assert mine.says() == {"alloc": 500, "error": 2}
    other = node.app("hold=60", given=second.environment)
    assert other.says()["sms"] == [66]

    with devices.driver() as driver:
        shown = {(one.pid, one.memory_mib) for one in driver.processes(FIRST) if one.kind == "mps"}
    assert shown == {(mine.pid, 12000), (other.pid, 0)}

    mine.end()
    assert end(node, 41) == ((), ())
    assert server_status(node.paths, node.config, FIRST) == "ACTIVE"
    other.end()
    assert end(node, 42) == ((FIRST,), ())
    assert node.clean()


def test_the_environment_names_the_gpu_by_uuid_and_drops_what_a_user_may_have_set(node: Node) -> None:
    attached = node.attach(1, 30, 2048)
    assert attached.environment == {
        "CUDA_MPS_PIPE_DIRECTORY": str(node.paths.pipe(FIRST)),
        "CUDA_VISIBLE_DEVICES": FIRST,
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "30",
        "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=2048M",
    }
    assert not set(attached.unset) & set(attached.environment)
    assert {"CUDA_MPS_LOG_DIRECTORY", "CUDA_MPS_CLIENT_PRIORITY", "CUDA_MPS_SM_PARTITION"} <= set(attached.unset)
    # Without a limit of memory a stale one of the user's must go too.
    assert "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT" in node.attach(2, 30).unset


def test_the_only_tenant_is_held_by_the_server_whatever_its_environment_says(node: Node) -> None:
    attached = node.attach(1, 30, 2048)
    assert attached.level.name == "open-ceiling"
    assert "30 %" in attached.level.text
    bold = {"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "100", "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=70G"}
    got = node.app("hold=60", given=attached.environment | bold).says()
    assert (got["sms"], got["memory"]) == ([38], [2048])


def test_beside_a_larger_tenant_the_level_says_what_the_ceiling_is(node: Node) -> None:
    node.attach(1, 50)
    small = node.attach(2, 30)
    assert "30 %" in small.level.text
    assert "50 %" in small.level.text
    end(node, 1)
    # The ceiling follows the largest that is left.
    bold = small.environment | {"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "100"}
    assert node.app("hold=60", given=bold).says()["sms"] == [38]


def test_a_memory_ceiling_goes_when_a_tenant_without_one_comes_and_returns_when_it_leaves(node: Node) -> None:
    held = node.attach(1, 30, 2048)
    node.attach(2, 30)
    free = {name: value for name, value in held.environment.items() if name != "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"}
    assert node.app("hold=60", given=free).says()["memory"] == [1 << 20]
    end(node, 2)
    assert node.app("hold=60", given=free).says()["memory"] == [2048]


def test_a_prolog_that_runs_twice_counts_once(node: Node) -> None:
    once = node.attach(7, 40)
    assert node.attach(7, 40) == once
    assert [tenant.job for tenant in tenants(node.paths, FIRST)] == [7]
    assert node.attach(7, 60).environment["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == "60"
    assert end(node, 7) == ((FIRST,), ())
    assert end(node, 7) == ((), ())
    assert node.clean()


def test_an_epilog_without_a_prolog_does_nothing(node: Node) -> None:
    assert end(node, 99) == ((), ())


def test_more_than_the_whole_gpu_is_not_shared_out(node: Node) -> None:
    node.attach(1, 60)
    with pytest.raises(CannotShare, match="101 %"):
        node.attach(2, 41)
    assert [tenant.job for tenant in tenants(node.paths, FIRST)] == [1]


def test_a_second_user_is_not_let_in_unless_the_site_wants_it(node: Node) -> None:
    node.attach(1, 30)
    with pytest.raises(CannotShare, match="no two users"):
        node.attach(2, 30, uid=USER + 1)
    assert [tenant.job for tenant in tenants(node.paths, FIRST)] == [1]
    end(node, 1)
    assert node.clean()


@needs_root
def test_another_user_cannot_pass_to_the_pipe_of_a_job(node: Node) -> None:
    attached = node.attach(1, 30)
    mine = node.app("hold=60", given=attached.environment, user=USER)
    assert mine.says()["mps"]
    # Without MPS the GPU is the server's alone: error 46, all devices are busy.
    assert node.app("hold=60", given=attached.environment, user=USER + 1).says() == {"error": 46}
    end(node, 1)


def test_a_job_that_leaves_its_pipe_finds_the_gpu_busy(node: Node) -> None:
    attached = node.attach(1, 30)
    alone = {"CUDA_VISIBLE_DEVICES": attached.environment["CUDA_VISIBLE_DEVICES"]}
    alone["CUDA_MPS_PIPE_DIRECTORY"] = str(node.root / "nothing")
    assert node.app("hold=60", given=alone).says() == {"error": 46}
    own = f"daemon={node.root}/own"
    assert "error" in node.app(own, "hold=60", given=alone).says()


def test_a_gpu_in_use_by_others_is_not_taken(node: Node) -> None:
    alone = node.app("hold=60", given={"CUDA_MPS_PIPE_DIRECTORY": "/nowhere", "CUDA_VISIBLE_DEVICES": FIRST})
    assert alone.says()["mps"] is False
    with pytest.raises(CannotShare, match=f"process {alone.pid}"):
        node.attach(1, 30)
    alone.end()
    node.attach(1, 30)


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("gpu 1 mig=1", "MIG"),
        ("gpu 1 remap-pending=1", "reset"),
        ("gpu 1 compute-mode=2", "PROHIBITED"),
        ("refuse nvmlDeviceSetComputeMode no-permission", "Permission"),
    ],
)
def test_a_gpu_that_must_not_be_shared_is_refused_and_left_alone(node: Node, line: str, sentence: str) -> None:
    node.live(line)
    with pytest.raises(CannotShare, match=sentence):
        node.attach(1, 30)
    assert tenants(node.paths, FIRST) == ()
    assert not list(node.paths.gpus.iterdir())


def test_a_site_that_runs_its_gpus_exclusively_gets_that_mode_back(node: Node) -> None:
    node.live("gpu 1 compute-mode=3")
    node.attach(1, 30)
    end(node, 1)
    assert node.mode() == devices.EXCLUSIVE_PROCESS


def test_a_job_on_two_gpus_has_one_daemon_that_spans_them(node: Node) -> None:
    attached = node.attach(1, 50, 4096, gpus=(0, 1))
    got = node.app("hold=60", given=attached.environment).says()
    by_position = [gpu.uuid for gpu in node.gpus(0, 1)]
    assert (got["uuids"], got["sms"], got["memory"]) == (by_position, [66, 66], [4096, 4096])
    assert by_position != sorted(GPUS)
    assert len([name for name in node.processes().values() if name.endswith("mps-control")]) == 1
    with pytest.raises(CannotShare, match="in another way"):
        node.attach(2, 30)
    # A second job on exactly these two may join.
    node.attach(3, 30, gpus=(1, 0))
    end(node, 1)
    end(node, 3)
    assert node.clean()


def test_after_a_reboot_the_files_of_before_mean_nothing(node: Node) -> None:
    node.attach(1, 60)
    node.reboot()
    assert server_status(node.paths, node.config, FIRST) == "NONE"
    # The requeued job and another one, whose shares together would not have fitted.
    node.attach(2, 70)
    assert [tenant.job for tenant in tenants(node.paths, FIRST)] == [2]
    end(node, 2)
    assert node.clean()


def test_after_a_reboot_an_epilog_removes_what_the_job_left(node: Node) -> None:
    node.attach(1, 60)
    node.attach(5, 60, gpus=(1,))
    node.reboot()
    end(node, 1)
    assert node.clean()


def test_a_pid_of_before_that_is_another_program_now_is_never_touched(node: Node) -> None:
    node.attach(1, 60)
    bystander = node.app("hold=60", given={"CUDA_MPS_PIPE_DIRECTORY": "/nowhere", "CUDA_VISIBLE_DEVICES": GPUS[0]})
    bystander.says()
    file = node.paths.state(FIRST)
    content = json.loads(file.read_text())
    daemon = content["daemon"]["pid"]
    content["daemon"]["pid"] = bystander.pid
    content["servers"][0]["pid"] = bystander.pid
    file.write_text(json.dumps(content))
    assert end(node, 1)[0] == (FIRST,)
    assert bystander.process.poll() is None
    # What is not in the books is not ours to end.
    assert daemon in node.processes()


def test_an_epilog_killed_half_way_is_finished_by_the_next_prolog(node: Node) -> None:
    node.attach(1, 60)
    # It took the job out of the books and was killed before it stopped MPS.
    found = state.load(node.paths, FIRST)
    assert found
    state.store(node.paths, found.without(1))
    node.attach(2, 80, gpus=(0, 1))
    assert [tenant.job for tenant in tenants(node.paths, GPUS[0])] == [2]
    end(node, 2)
    assert sweep(node.paths, node.config) == ()
    assert node.clean()


@pytest.mark.parametrize("next_one", ["the same job", "another job", "the epilog"])
def test_a_daemon_that_a_killed_prolog_could_not_write_down_is_found(node: Node, next_one: str) -> None:
    node.attach(1, 30)
    found = state.load(node.paths, FIRST)
    assert found
    assert found.daemon
    state.store(node.paths, replace(found, daemon=None, servers=()))
    if next_one != "the epilog":
        attached = node.attach(1 if next_one == "the same job" else 2, 50)
        assert found.daemon.pid not in node.processes()
        assert node.app(given=attached.environment).says()["sms"] == [66]
    end(node, 1)
    end(node, 2)
    assert node.clean()


@pytest.mark.parametrize("delay", [0.05, 0.2, 0.4, 0.7])
def test_a_prolog_killed_at_any_moment_leaves_what_its_epilog_can_clean(node: Node, delay: float) -> None:
    arriving = node.run(_one_job(node, job=1, arriving=True, ready=True))
    assert arriving.stdout
    arriving.stdout.readline()
    with contextlib.suppress(subprocess.TimeoutExpired):
        arriving.wait(delay)
    arriving.kill()
    arriving.wait()
    arriving.stdout.close()

    def cleaned() -> bool:
        """A command that was under way ends by itself, and a child that had not begun yet holds its parent's locks."""
        end(node, 1)
        return node.clean()

    await_true(cleaned)


def test_a_damaged_file_of_one_gpu_stops_no_epilog_of_another(node: Node) -> None:
    node.attach(1, 30)
    node.attach(2, 30, gpus=(1,))
    node.paths.state(FIRST).write_text("{")
    assert end(node, 2) == ((GPUS[0],), ())
    with pytest.raises(CannotShare, match="remove it"):
        node.attach(3, 30)


def _one_job(node: Node, *, job: int, arriving: bool, ready: bool = False) -> str:
    """A Prolog or an Epilog as a program of its own."""
    return f"""
from pathlib import Path
from prolog_epilog.settings.config import NodeConfig
from prolog_epilog.node.devices import gpus
from prolog_epilog.mps import Tenant, attach, detach
from prolog_epilog.node.paths import Paths
paths = Paths(root=Path({str(node.paths.root)!r}), boot_id=Path({str(node.paths.boot_id)!r}), systemd=Path("/nowhere"))
config = NodeConfig(mps_control={node.config.mps_control!r}, mps_start_timeout=50, mps_stop_timeout=5)
if {ready}:
    print("ready", flush=True)
if {arriving}:
    attach(paths, config, gpus(paths)[:1], Tenant({job}, {USER}, 12))
else:
    assert detach(paths, config, {job}).leftovers == ()
"""


def test_eight_prologs_at_once_and_eight_epilogs_at_once(node: Node) -> None:
    def all_at_once(arriving: bool) -> None:
        started = [node.run(_one_job(node, job=job, arriving=arriving)) for job in range(1, 9)]
        assert [(one.communicate(timeout=60)[0], one.returncode) for one in started] == [("", 0)] * 8

    all_at_once(arriving=True)
    assert sorted(tenant.job for tenant in tenants(node.paths, FIRST)) == list(range(1, 9))
    assert len([name for name in node.processes().values() if name.endswith("mps-control")]) == 1
    all_at_once(arriving=False)
    assert node.clean()


def test_the_daemon_is_no_child_of_the_prolog_and_has_nothing_of_its(node: Node) -> None:
    node.attach(1, 30)
    found = state.load(node.paths, FIRST)
    assert found
    assert found.daemon
    fields = Path(f"/proc/{found.daemon.pid}/stat").read_text().rpartition(")")[2].split()
    parent, session = int(fields[1]), int(fields[3])
    assert parent != os.getpid()
    assert session != os.getsid(0)
    environment = Path(f"/proc/{found.daemon.pid}/environ").read_bytes().split(b"\0")
    assert {one.partition(b"=")[0].decode() for one in environment if one} == {
        "PATH",
        "LC_ALL",
        "CUDA_MPS_PIPE_DIRECTORY",
        "CUDA_MPS_LOG_DIRECTORY",
        "CUDA_VISIBLE_DEVICES",
    }
    held = [str(Path(f"/proc/{found.daemon.pid}/fd/{number}").readlink()) for number in (0, 1, 2)]
    assert held == ["/dev/null", *[str(node.paths.log(found.name) / "control.log")] * 2]
    await_true(lambda: processes.user_of(found.servers[0].pid) == USER)


def test_folders_let_nobody_else_in(node: Node) -> None:
    node.attach(1, 30)
    rights = {
        path.name: oct(path.stat().st_mode & 0o7777)
        for path in (node.paths.gpus, node.paths.mps, node.paths.state(FIRST), node.paths.log(FIRST))
    }
    assert rights == {"gpus": "0o711", "mps": "0o711", "state.json": "0o600", "log": "0o700"}
    assert node.paths.pipe(FIRST).stat().st_mode & 0o007 == 0


def test_under_systemd_the_daemon_is_a_unit_of_its_own(node: Node) -> None:
    booted, log = node.root / "systemd", node.root / "systemd.log"
    booted.mkdir()
    run, ctl = node.root / "systemd-run", node.root / "systemctl"
    # What systemd-run does with these words, as far as it matters here: the program, alone with the given environment.
    run.write_text(
        f"""#!/bin/sh
echo "systemd-run $*" >>{log}
while [ "$1" != -- ]; do
    case $1 in --setenv=*) settings="$settings ${{1#--setenv=}}";; esac
    shift
done
shift
setsid env -i $settings "$@" >/dev/null 2>&1 </dev/null &
echo $! >{node.root}/main-pid
sleep 0.2
"""
    )
    ctl.write_text(f'#!/bin/sh\necho "systemctl $*" >>{log}\n[ $1 != show ] || cat {node.root}/main-pid\n')
    for program in (run, ctl):
        program.chmod(0o755)
    node.paths = replace(node.paths, systemd=booted, systemd_run=run, systemctl=ctl)
    attached = node.attach(1, 30)
    assert node.app("hold=60", given=attached.environment).says()["sms"] == [38]
    detach(node.paths, node.config, 1)
    said = log.read_text()
    unit = f"berth-mps-{FIRST}.service"
    assert f"--unit={unit}" in said
    assert "KillMode=control-group" in said
    assert said.rstrip().endswith(f"systemctl stop {unit}")


def test_systemd_that_refuses_is_a_sentence(node: Node) -> None:
    booted = node.root / "systemd"
    booted.mkdir()
    node.paths = replace(node.paths, systemd=booted, systemd_run=Path("/bin/false"), systemctl=Path("/bin/true"))
    with pytest.raises(CannotShare, match="systemd does not start"):
        node.attach(1, 30)
    assert node.mode() == devices.DEFAULT
