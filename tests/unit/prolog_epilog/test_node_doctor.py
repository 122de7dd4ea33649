# SPDX-License-Identifier: Apache-2.0
"""`berth doctor node` and `berth job-gpus`."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from policy.cli.main import main
from prolog_epilog import doctor
from prolog_epilog.doctor import NodeFinding
from prolog_epilog.mps.control import Abilities
from prolog_epilog.settings.config import NodeConfig
from prolog_epilog.tenants import share_file
from prolog_epilog.tenants.share_file import ShareRecord
from tests.unit.node_world import ROOT, World, berth

SLURM = {
    "Prolog[0]": "/opt/berth/bin/berth-prolog",
    "Epilog[0]": "/opt/berth/bin/berth-epilog",
    "Epilog[1]": "/usr/libexec/berth/berth-notice",
    "PrologFlags": "Alloc,Contain",
    "LaunchParameters": "use_interactive_step",
    "KillWait": "60 sec",
    "PrologEpilogTimeout": "65534",
}

EXAMINE = """
import json, sys
from pathlib import Path
from prolog_epilog import doctor
from prolog_epilog.node.paths import Paths
found = doctor.examine(sys.argv[1], Paths(Path(sys.argv[2])))
print(json.dumps([[one.name, one.ok, one.text] for one in found]))
"""


@pytest.fixture
def world() -> Iterator[World]:
    with tempfile.TemporaryDirectory(prefix="bn") as folder:
        made = World(Path(folder))
        made.with_gpus()
        yield made
        for pid in made.daemons():
            os.kill(pid, signal.SIGKILL)


def failed(found: Iterator[NodeFinding]) -> dict[str, str]:
    return {one.name: one.text for one in found if not one.ok}


def test_folders_for_monitoring_are_looked_at(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir(0o755)
    (tmp_path / "everybodys").mkdir()
    (tmp_path / "everybodys").chmod(0o777)
    (tmp_path / "link").symlink_to(tmp_path / "mine")

    def wrong(dcgm: str, jobstats: str) -> dict[str, str]:
        named = NodeConfig(jobs_for_dcgm=f"{tmp_path}/{dcgm}", jobs_for_jobstats=f"{tmp_path}/{jobstats}")
        return failed(doctor.listed_jobs(named))

    assert wrong("mine", "not-yet") == {}
    assert failed(doctor.listed_jobs(NodeConfig())) == {}
    assert list(wrong("everybodys", "link")) == ["jobs_for_dcgm", "jobs_for_jobstats"]
    assert "is not there" in wrong("none/at/all", "mine")["jobs_for_dcgm"]


def test_a_good_slurm_conf_passes() -> None:
    assert failed(doctor.wiring(SLURM, NodeConfig())) == {}


@pytest.mark.parametrize(
    ("change", "name", "says"),
    [
        ({"Prolog[0]": "/etc/slurm/prolog"}, "Prolog", "/etc/slurm/prolog; set Prolog=/opt/berth/bin/berth-prolog"),
        ({"Prolog[1]": "/etc/slurm/own"}, "Prolog", "move them to [node] chain_prolog"),
        ({"Epilog[0]": "/x"}, "Epilog", "set Epilog=/opt/berth/bin/berth-epilog"),
        ({"PrologFlags": "(null)"}, "PrologFlags", "without Alloc"),
        ({"LaunchParameters": "(null)"}, "LaunchParameters", "add use_interactive_step"),
        ({"KillWait": "30 sec"}, "KillWait", "30 s; set 60 or more"),
        ({"PrologEpilogTimeout": "30"}, "PrologEpilogTimeout", "30 s is less than"),
        ({"PrologEpilogTimeout": "177"}, "PrologEpilogTimeout", "set more than 177"),
        ({"PrologTimeout": "100"}, "PrologTimeout", "would kill the Prolog and drain the node"),
        ({"EpilogTimeout": "100"}, "EpilogTimeout", "set more than 177"),
    ],
)
def test_each_fault_of_slurm_conf_has_its_cure(change: dict[str, str], name: str, says: str) -> None:
    found = failed(doctor.wiring(SLURM | change, NodeConfig()))

    assert list(found) == [name]
    assert says in found[name]


def test_a_limit_that_lets_our_own_ones_end_first_passes() -> None:
    chained = NodeConfig(chain_prolog=("/x",), chain_timeout=100)
    assert failed(doctor.wiring(SLURM | {"PrologEpilogTimeout": "178"}, NodeConfig())) == {}
    assert failed(doctor.wiring(SLURM | {"PrologEpilogTimeout": "0 sec"}, NodeConfig())) == {}
    assert list(failed(doctor.wiring(SLURM | {"PrologEpilogTimeout": "377"}, chained))) == ["PrologEpilogTimeout"]


def test_the_notice_is_called_by_berth_epilog_or_has_a_line_of_its_own(tmp_path: Path) -> None:
    there, absent = tmp_path / "berth-notice", tmp_path / "absent"
    there.touch(0o755)
    alone = {key: value for key, value in SLURM.items() if key != "Epilog[1]"}

    def says(slurm: dict[str, str], *paths: Path) -> tuple[bool, str]:
        found = {one.name: one for one in doctor.wiring(slurm, NodeConfig(), paths)}["berth-notice"]
        return found.ok, found.text

    assert says(alone, absent, there) == (True, f"berth-epilog calls {there}")
    assert says(SLURM, absent) == (True, "/usr/libexec/berth/berth-notice")
    ok, text = says(SLURM, there)
    assert ok
    assert "Epilog=/usr/libexec/berth/berth-notice is not needed" in text
    ok, text = says(alone, absent)
    assert not ok
    assert text.endswith(f"make -C slurm_plugins install, or link {absent} to it")


def test_scripts_that_will_be_left_out_are_named(world: World) -> None:
    good = world.script("good", "exit 0")
    settings = NodeConfig(chain_prolog=(str(good),), chain_epilog=(str(world.folder / "missing"),))

    assert failed(doctor.scripts(settings)) == {
        "chain_epilog": f"{world.folder}/missing is left out: No such file or directory; "
        "mend [node] chain_prolog or chain_epilog in berth.conf"
    }


def leftovers(world: World, here: set[int], slurm: set[int]) -> list[str]:
    found = doctor.leftovers(world.paths, here, slurm.__contains__)
    return [one.text for one in found if (not one.ok and str(world.root) in one.text) or one.text.startswith("job")]


def test_what_is_left_is_found_and_named(world: World) -> None:
    world.run("prolog", berth(2, share=30, way="mps"), "2")
    assert leftovers(world, {7}, set()) == []
    assert leftovers(world, set(), {7}) == []
    assert leftovers(world, set(), set()) == [
        "job 7 is over, but has a share; berth-guard takes it back within a minute, is it running?"
    ]

    world.run("epilog")
    assert leftovers(world, set(), set()) == []
    (world.root / "mps" / "GPU-old").mkdir()
    share_file.write(world.paths, ShareRecord(5, 0, why="no"))
    share_file.write(world.paths, ShareRecord(6, 0))
    hour = time.time() - 3600
    os.utime(world.paths.job(6), (hour, hour))
    world.root.chmod(0o777)
    assert [text.rpartition("; ")[2] for text in leftovers(world, set(), set())] == [
        f"chmod go-w {world.root}",
        "berth-guard takes it back within a minute, is it running?",
        "remove it",
    ]


def test_a_daemon_that_is_not_ours_is_found(world: World) -> None:
    pipe = world.folder / "private"
    pipe.mkdir()
    environment = {"CUDA_MPS_PIPE_DIRECTORY": str(pipe), "CUDA_MPS_LOG_DIRECTORY": str(pipe)}
    program = str(world.settings["mps_control"])
    with subprocess.Popen([program, "-f"], env={**os.environ, **world.environment, **environment}) as daemon:
        try:
            until = time.monotonic() + 20
            found: list[str] = []
            while not found and time.monotonic() < until:
                texts = [one.text for one in doctor.leftovers(world.paths, set(), lambda _: False)]
                found = [text for text in texts if text.startswith(f"process {daemon.pid} is an MPS daemon")]
            assert len(found) == 1
            assert found[0].endswith("that Berth did not start; end it: echo quit | nvidia-cuda-mps-control")
        finally:
            daemon.kill()


def examined(world: World, slurm: dict[str, str] = SLURM, also: str = "") -> dict[str, tuple[bool, str]]:
    """In a program of its own: the simulated driver is one for each process."""
    lines = "\n".join(f"{key} = {value}" for key, value in slurm.items())
    (world.folder / "slurm").write_text(lines)
    world.scontrol(f"cat {world.folder}/slurm")
    with world.configure().open("a") as berth_conf:
        berth_conf.write(also)
    done = subprocess.run(
        [sys.executable, "-c", EXAMINE, berth_conf.name, str(world.root)],
        cwd=ROOT,
        env={**os.environ, **world.environment},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return {name: (ok, text) for name, ok, text in json.loads(done.stdout)}


def test_a_whole_node_is_examined(world: World) -> None:
    world.happens("gpu 3 compute-mode=3")

    uuid = re.search(r"-i (GPU-\S+)", examined(world)["GPU 3"][1])
    assert uuid is not None
    (world.root / "xids").write_text(f"1700000000 {uuid[1]} 63\n1700000000 {uuid[1]} 119\n")

    found = examined(world)

    assert found["berth.conf"][0]
    assert found["Prolog"] == (True, "berth-prolog")
    assert found["driver"][1].endswith("; version 550.54.15, shares were tried from 535 on")
    assert found["GPU 3"][0] is False
    assert re.fullmatch(
        r"reported Xid 119 on 1[45] Nov \d\d:\d\d: reset the GPU, then remove \S+/xids", found["GPU 3"][1]
    )
    (world.root / "xids").unlink()
    found = examined(world)
    assert found["GPU 3"][0] is False
    assert "compute mode 3, but no job shares it: jobs will fail on it; nvidia-smi -i GPU-" in found["GPU 3"][1]
    tried = "namespaces no, several users yes"
    assert found["MPS"] == (True, f"shares are held by server ceilings (tried: {tried})")
    assert found["cgroups"][1].startswith(("v1", "v2"))
    assert found["berth-guard"] == (
        False,
        "does not run, so nothing sees a job that takes more than its share; systemctl enable --now berth-guard",
    )
    assert "words" not in found


@pytest.mark.parametrize(("option", "ok"), [(None, False), ("-multiuser-server", True)])
def test_several_users_on_one_gpu_need_a_driver_that_knows_them(option: str | None, *, ok: bool) -> None:
    found = doctor._program(NodeConfig(multi_user=True), Abilities(namespaces=True, multi_user=option))

    assert (found.name, found.ok) == ("MPS", ok)
    assert found.text.startswith("shares are held by namespaces (tried: namespaces yes, several users ")
    assert ("multi_user needs driver 580 or later" in found.text) is not ok


def test_a_wrong_key_of_the_guard_is_a_finding(world: World) -> None:
    assert not examined(world, also='[guard]\nmetrics = "x"\n')["berth.conf"][0]


def test_on_the_plain_layout_nothing_is_asked_that_shares_need(world: World) -> None:
    untouched = {"Prolog": "/etc/slurm/own.sh", "Epilog": "(null)", "PrologFlags": "(null)", "KillWait": "30 sec"}

    found = examined(world, untouched, '[hook]\nlayout = "plain"\n')

    # The simulated machine has no device files, and other tests run MPS daemons beside this one.
    assert {name for name, (ok, _) in found.items() if not ok} <= {"driver", "leftovers"}
    assert found["rollout"][1].startswith("advise: no job shares a GPU")
    assert not {"MPS", "berth-guard", "KillWait", "PrologFlags", "Prolog"} & found.keys()


@pytest.mark.parametrize(
    ("mounted", "ok", "says"),
    [
        ((), False, "the pages of job 41, 42 are part of /run's file system"),
        (("41",), False, "the pages of job 42 are part"),
        (("41", "42"), True, "each job's pages are a file system of their own"),
        (("words",), True, "which a hostile job could fill for the other jobs"),
    ],
)
def test_pages_that_may_fill_run_are_told(
    world: World, monkeypatch: pytest.MonkeyPatch, mounted: tuple[str, ...], ok: bool, says: str
) -> None:
    assert list(doctor.words_apart(world.paths)) == []
    for job in (41, 42):
        world.paths.word(job).mkdir(parents=True)
    monkeypatch.setattr(Path, "is_mount", lambda path: path.name in mounted)

    [found] = doctor.words_apart(world.paths)

    assert found.ok is ok
    assert says in found.text


def test_a_node_without_anything_is_told_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "berth.conf").write_text(f"[node]\nscontrol = '{tmp_path}/no'\nmps_control = '{tmp_path}/no'\n")
    monkeypatch.setenv("SLURM_CONF", str(tmp_path / "slurm.conf"))
    monkeypatch.setenv("BERTH_FAKE_NVML", str(tmp_path / "no"))

    assert main(["doctor", "node"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert all(line.startswith(("ok    ", "FAIL  ")) for line in lines)
    assert any(line.startswith("FAIL  Slurm: ") for line in lines)
    assert any(line.startswith("FAIL  MPS: ") and "is not on this node" in line for line in lines)
    assert main(["doctor", "node", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["schema_version"] == 1


def test_the_users_commands_load_nothing_of_the_node() -> None:
    code = "from policy.cli.main import build_parser; build_parser(); import sys; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True, timeout=60
    )

    assert not [name for name in done.stdout.split() if name.startswith("prolog_epilog.")]


def job_gpus(world: World, monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    world.configure()
    monkeypatch.setenv("SLURM_CONF", str(world.folder / "slurm.conf"))
    monkeypatch.setenv("SLURMD_NODENAME", "n1")
    monkeypatch.setattr("prolog_epilog.node.paths.Paths", lambda: world.paths)
    return main(["job-gpus", *words])


def test_a_script_learns_all_gpus_of_a_job(
    world: World, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    world.slurm_knows("gpu:g0:1(IDX:0),gpu:g3:1(IDX:3)")
    monkeypatch.setattr("prolog_epilog.chain.minors", lambda: (0, 1, 2, 5))

    assert job_gpus(world, monkeypatch, "7") == 0
    assert capsys.readouterr().out == "0,5\n"
    assert job_gpus(world, monkeypatch, "7", "--node", "n1") == 0
    assert capsys.readouterr().out == "0,3\n"
    assert job_gpus(world, monkeypatch, "7", "--node", "n2") == 1
    assert "scontrol shows no GPUs of the job on n2" in capsys.readouterr().err


def test_a_job_that_shares_is_asked_of_nobody(
    world: World, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from prolog_epilog.node import files  # noqa: PLC0415 - the only test that needs it

    files.prepare(world.paths)
    share_file.write(world.paths, ShareRecord(7, 1000, gpus=(2,), minors=(4,), uuids=("GPU-1",)))

    assert job_gpus(world, monkeypatch, "7") == 0
    assert job_gpus(world, monkeypatch, "7", "--uuids") == 0
    assert capsys.readouterr().out == "4\nGPU-1\n"
    assert world.asked == ""
    assert job_gpus(world, monkeypatch, "8", "--uuids") == 1
    assert job_gpus(world, monkeypatch, "x") == 2
