# SPDX-License-Identifier: Apache-2.0
"""Namespaces and several users: what stronger drivers and other sites have."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from prolog_epilog.errors import CannotShare, ControlError
from prolog_epilog.mps import detach, tenants
from prolog_epilog.mps.control import Abilities, Control, Refused, abilities, mebibytes, why_not_started
from prolog_epilog.mps.limits import shows_memory, shows_percent
from prolog_epilog.mps.trouble import reset_after_fault, terminate_clients
from prolog_epilog.mps.walls import raise_wall
from prolog_epilog.tenants import state
from tests.fakes.mps.programs import TRANSCRIPTS
from tests.fakes.mps.world import GPUS, USER, Node, await_true, fresh_node
from tests.rights import needs_root
from tests.unit.prolog_epilog.mps.status import server_status

pytestmark = pytest.mark.slow

FIRST = GPUS[1]


@pytest.fixture
def node(monkeypatch: pytest.MonkeyPatch) -> Iterator[Node]:
    with fresh_node(monkeypatch) as made:
        yield made


EVERYTHING = {"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "100", "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=79G"}


def test_namespaces_hold_each_job_whatever_its_environment_says(node: Node) -> None:
    node.wish(driver="v3")
    small, large = node.attach(1, 30, 2048), node.attach(2, 50, 4096)
    assert small.level.name == large.level.name == "namespace"
    for attached, sms, memory in ((small, 38, 2048), (large, 66, 4096)):
        got = node.app("hold=60", given=attached.environment | EVERYTHING).says()
        assert (got["mps"], got["sms"], got["memory"]) == (True, [sms], [memory])
    # Past the namespace there is next to nothing.
    past = small.environment | EVERYTHING | {"CUDA_MPS_PIPE_DIRECTORY": str(node.paths.pipe(FIRST))}
    assert node.app("hold=60", given=past).says()["sms"] == [2]
    assert detach(node.paths, node.config, 1).leftovers == ()
    assert server_status(node.paths, node.config, FIRST) == "ACTIVE"
    detach(node.paths, node.config, 2)
    assert node.clean()


def test_a_namespace_is_read_back_and_a_second_prolog_finds_it(node: Node) -> None:
    node.wish(driver="v3")
    assert node.attach(1, 30) == node.attach(1, 30)
    node.wish(lie_percent=100)
    with pytest.raises(ControlError, match="would not hold"):
        node.attach(2, 50)
    assert [tenant.job for tenant in tenants(node.paths, FIRST)] == [1]


def test_faults_and_clients_under_namespaces(node: Node) -> None:
    node.wish(driver="v3")
    attached = node.attach(1, 30, 2048)
    one = node.app("hold=60", given=attached.environment)
    one.says()
    assert terminate_clients(node.paths, node.config, FIRST, [one.pid, 1]) == (one.pid,)
    guilty = node.app("ignore-errors", "fault", "hold=60", given=attached.environment)
    guilty.says()
    assert guilty.says() == {"error": 700}
    assert server_status(node.paths, node.config, FIRST) == "FAULT"
    done = reset_after_fault(node.paths, node.config, FIRST, patience=5)
    assert (done.restarted, done.causes) == (False, (guilty.pid,))


@needs_root
def test_a_namespace_is_open_to_its_own_user_alone(node: Node) -> None:
    node.wish(driver="v3")
    node.config = node.config._replace(multi_user=True)
    mine, other = node.attach(1, 30), node.attach(2, 50, uid=USER + 1)
    assert node.app("hold=60", given=mine.environment, user=USER).says()["sms"] == [38]
    assert node.app("hold=60", given=other.environment, user=USER + 1).says()["sms"] == [66]
    assert node.app("hold=60", given=other.environment, user=USER).says() == {"error": 46}


@needs_root
@pytest.mark.parametrize("driver", ["v2", "v3"])
def test_two_users_share_where_the_site_wants_it(node: Node, driver: str) -> None:
    node.wish(driver=driver)
    node.config = node.config._replace(multi_user=True)
    first, second = node.attach(1, 30), node.attach(2, 50, uid=USER + 1)
    mine = node.app("hold=60", given=first.environment, user=USER)
    other = node.app("hold=60", given=second.environment, user=USER + 1)
    assert (mine.says()["sms"], other.says()["sms"]) == ([38], [66])
    mine.end()
    other.end()
    detach(node.paths, node.config, 1)
    detach(node.paths, node.config, 2)
    assert node.clean()


def test_a_daemon_for_one_user_stays_that_though_the_site_now_wants_several(node: Node) -> None:
    if USER == 0:
        pytest.skip("root shares with nobody")
    node.attach(1, 30)
    node.config = node.config._replace(multi_user=True)
    with pytest.raises(CannotShare, match="no two users"):
        node.attach(2, 30, uid=USER + 1)


def test_what_a_driver_can_is_found_out_by_starting_it(node: Node) -> None:
    found = []
    for driver in ("r535", "v2", "r580", "r595", "v3"):
        node.wish(driver=driver)
        found.append(abilities(node.config.mps_control, node.paths.mps, GPUS[:1]))
    assert found == [
        Abilities(namespaces=False, multi_user=None),
        Abilities(namespaces=False, multi_user="-multiuser-server"),
        Abilities(namespaces=False, multi_user="--multiuser"),
        Abilities(namespaces=False, multi_user="--multiuser"),
        Abilities(namespaces=True, multi_user="--multiuser"),
    ]
    assert list(node.paths.mps.iterdir()) == []
    assert node.clean()


@pytest.mark.parametrize("several", [False, True])
def test_a_daemon_that_finds_no_library_is_named_at_once(node: Node, several: bool) -> None:
    node.wish(driver="r580", no_library=True)
    node.config = node.config._replace(multi_user=several)

    with pytest.raises(ControlError, match=r"does not find libcuda\.so\.1 .*; .* run ldconfig"):
        node.attach(1, 30)

    assert node.clean()


@needs_root
def test_a_server_of_several_users_comes_back_as_such_or_not_at_all(node: Node) -> None:
    node.wish(driver="r580")
    node.config = node.config._replace(multi_user=True)
    node.attach(1, 30)
    [known] = state.everything(node.paths)
    assert known.daemon is not None
    os.kill(known.daemon.pid, signal.SIGKILL)
    await_true(lambda: server_status(node.paths, node.config, FIRST) == "GONE")
    # As if another driver had been installed meanwhile.
    node.wish(driver="r550")

    with pytest.raises(CannotShare, match="serves one user at a time"):
        node.attach(2, 30, uid=USER + 1)

    node.wish(driver="r580")
    assert node.attach(2, 30, uid=USER + 1).level.name == "server-ceiling"
    for job in (1, 2):
        detach(node.paths, node.config, job)
    assert node.clean()


def test_why_no_daemon_starts_is_told(node: Node) -> None:
    program, folder = node.config.mps_control, node.paths.mps
    assert why_not_started(program, folder, []) == ""
    node.wish(driver="r580")
    assert why_not_started(program, folder, GPUS[:1]) == ""
    assert "sees no GPU (it ended with status 100); " in why_not_started(program, folder, [])
    assert "ends at once with status 0; start it by hand" in why_not_started("/bin/true", folder, [])
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize(
    ("shown", "wanted", "good"),
    [
        ("1044M", 1044, True),
        ("1G", 1044, True),  # as driver 595 shows it
        ("12G\n", 12288, True),
        ("1G", 2048, False),
        ("2G", 1044, False),
        ("0G", 512, False),
        ("0", 512, False),
        ("\n", 512, False),
        ("Invalid command", 512, False),
        ("536870912", 512, True),
        ("512MB", 512, True),
    ],
)
def test_memory_is_compared_as_far_as_mps_shows_it(shown: str, wanted: int, good: bool) -> None:
    assert shows_memory(shown, wanted) is good


#: What real control programs answer to a command that they carry out.
ANSWER = re.compile(
    r"|SERVER|INITIALIZING|ACTIVE|FAULT|\d+(\.\d)?|\d+[GM]|Partition \S+ (created|removed)|GPU +Partition .*", re.DOTALL
)
#: What a partition's maker and remover finds out by the list of partitions.
READ_BACK = ("Failed to create partition", "Failed to remove partition", "Static partitioning mode is not enabled")


@pytest.mark.parametrize("path", sorted(TRANSCRIPTS.glob("*.json")), ids=lambda path: path.stem)
def test_what_real_control_programs_refuse_is_read_as_a_refusal(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = ""
    monkeypatch.setattr("prolog_epilog.mps.control._run", lambda *_: said)
    one = Control("/nowhere", Path("/nowhere"), Path("/nowhere"), ())
    for _, command, said in json.loads(path.read_text()):
        if ANSWER.fullmatch(said.strip()) or said.startswith(READ_BACK):
            assert one.tell(command) == said
        else:
            with pytest.raises(Refused):
                one.tell(command)


@pytest.mark.parametrize(
    ("shown", "good"), [("30.0\n", True), ("30", True), ("30%", True), ("100.0", False), ("", False)]
)
def test_percentages_are_read_in_every_form(shown: str, good: bool) -> None:
    assert shows_percent(shown, 30) is good


def test_units_of_memory() -> None:
    assert mebibytes("3G") == (3072, "G")
    assert mebibytes("Device 0 default pinned memory limit: 8 GiB") == (8192, "G")
    assert mebibytes("none") is None


@pytest.mark.parametrize(("driver", "name"), [("v2", "open-ceiling+dmem"), ("v3", "namespace+dmem")])
def test_where_the_kernel_limits_memory_the_level_says_so(node: Node, driver: str, name: str) -> None:
    node.wish(driver=driver)
    attached = node.attach(1, 30, 2048)
    cgroup = Path("/sys/fs/cgroup/system.slice/slurmstepd.scope/job_1")
    assert raise_wall(node.paths, 1, cgroup) is None
    node.live("gpu 0-1 memory-limits=1")
    level = raise_wall(node.paths, 1, cgroup)
    assert level
    assert level.name == name
    assert level.text.endswith("the kernel holds its memory at 2048 MiB on each GPU")
    assert level.text.partition("; ")[0] == attached.level.text.partition("; ")[0]
    assert Path(f"{node.machine}.live").read_text().splitlines()[-1] == f"limit 1 {cgroup} 0 2048"


def test_a_job_that_asked_for_no_memory_gets_no_wall(node: Node) -> None:
    node.live("gpu 0-1 memory-limits=1")
    node.attach(1, 30)
    assert raise_wall(node.paths, 1, Path("/sys/fs/cgroup/job_1")) is None
    assert raise_wall(node.paths, 99, Path("/sys/fs/cgroup/job_99")) is None


TWO = (0, 1)
"""The positions of the GPUs of a share on two of them."""


def bare(environment: dict[str, str]) -> dict[str, str]:
    """Return what is left where a program drops the limit of its own: then the server's holds it."""
    return {name: value for name, value in environment.items() if name != "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"}


def test_the_server_holds_the_memory_of_each_gpu_of_a_share_on_two(node: Node) -> None:
    small = node.attach(1, 30, 2048, gpus=TWO)
    assert node.app("hold=60", given=bare(small.environment)).says()["memory"] == [2048, 2048]
    node.attach(2, 40, 4096, gpus=TWO)
    assert node.app("hold=60", given=bare(small.environment)).says()["memory"] == [4096, 4096]
    detach(node.paths, node.config, 2)
    assert node.app("hold=60", given=bare(small.environment)).says()["memory"] == [2048, 2048]


@pytest.mark.parametrize("ordinal", [0, 1])
@pytest.mark.parametrize("command", ["get_default_device_pinned_mem_limit", "get_device_pinned_mem_limit"])
def test_a_limit_that_one_of_two_gpus_does_not_show_is_no_share(
    node: Node, monkeypatch: pytest.MonkeyPatch, command: str, ordinal: int
) -> None:
    tell = Control.tell

    def other(control: Control, text: str, *words: Any, **more: Any) -> str:
        said = text.split()
        return "9G\n" if said[0] == command and said[-1] == str(ordinal) else tell(control, text, *words, **more)

    monkeypatch.setattr(Control, "tell", other)
    with pytest.raises(ControlError, match=f"memory limit of {sorted(GPUS[:2])[ordinal]}"):
        node.attach(1, 30, 2048, gpus=TWO)
    assert node.clean()
