# SPDX-License-Identifier: Apache-2.0
"""Jobs that share a GPU, by the real programs on a simulated driver and MPS."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from prolog_epilog.tenants import share_file, state
from prolog_epilog.tenants.share_file import ShareRecord
from tests.fakes.mps.world import USER
from tests.rights import needs_root
from tests.unit.node_world import NODE, World, berth, is_alive
from tests.waiting import until

pytestmark = pytest.mark.slow

CHAINED = (
    'echo "${SLURM_SCRIPT_CONTEXT%%_*} $SLURM_JOB_ID [$SLURM_JOB_GPUS] $BERTH_GPUS $BERTH_SHARE" >>"${0%/*}/calls"'
)
SLOW_START = {"slow_start": 60}


@pytest.fixture
def world() -> Iterator[World]:
    # Not in pytest's own folder: the path of a socket must stay short.
    with tempfile.TemporaryDirectory(prefix="bn") as folder:
        made = World(Path(folder))
        made.with_gpus()
        yield made
        for pid in made.daemons():
            os.kill(pid, signal.SIGKILL)


def share(world: World, job: int = 7) -> ShareRecord:
    found = share_file.read(world.paths, job)
    assert found is not None
    return found


def modes(world: World) -> list[str]:
    """Compute modes that were set, in their order."""
    live = world.folder / "machine.live"
    words = live.read_text().split() if live.exists() else []
    return [word for word in words if word.startswith("compute-mode=")]


def nothing_is_left(world: World) -> bool:
    kept = {path.relative_to(world.root).as_posix() for path in world.root.rglob("*")}
    return world.books() == {} and world.daemons() == [] and kept <= {"jobs", "jobs/.lock", "gpus", "mps", "gpus.json"}


def begin(world: World, job: int, share: int, user: int = USER, **more: object) -> subprocess.CompletedProcess[str]:
    return world.run("prolog", berth(2, share=share, way="mps", **more), "2", job=job, user=user)


def test_two_jobs_come_and_go(world: World) -> None:
    for job, percent in ((7, 30), (8, 50)):
        done = begin(world, job, percent, mem=4096)
        assert (done.returncode, done.stderr) == (0, "")
    assert world.books() == {7: 30, 8: 50}
    assert len(world.daemons()) >= 1
    first = share(world, 7)
    assert (first.degraded, first.gpus, first.minors, first.share, first.mem_mib) == (False, (2,), (2,), 30, 4096)
    assert first.environment["CUDA_MPS_PIPE_DIRECTORY"].startswith(str(world.root / "mps"))
    assert first.environment["CUDA_VISIBLE_DEVICES"] == first.uuids[0]
    # Who runs as nobody else cannot keep a user from MPS's server.
    assert first.level == ("server-ceiling" if os.geteuid() != USER else "open-ceiling")
    assert first.level_text
    assert "CUDA_MPS_LOG_DIRECTORY" in first.unset

    assert world.run("epilog", berth(2, share=30, way="mps"), "2", job=7).returncode == 0
    assert world.books() == {8: 50}
    assert world.run("epilog", job=8).returncode == 0
    assert nothing_is_left(world)


def test_an_epilog_may_come_twice_or_without_a_prolog(world: World) -> None:
    assert world.run("epilog", berth(2, share=30, way="mps"), "2").returncode == 0
    begin(world, 7, 30)
    for _ in range(2):
        done = world.run("epilog", berth(2, share=30, way="mps"), "2")
        assert (done.returncode, done.stderr) == (0, "")
    assert nothing_is_left(world)


def test_a_requeued_job_begins_anew(world: World) -> None:
    begin(world, 7, 30)
    begin(world, 7, 40)
    assert world.books() == {7: 40}
    world.run("epilog", berth(2, share=40, way="mps"), "2")
    assert begin(world, 7, 30).returncode == 0
    assert not share(world).degraded


def test_a_run_that_shares_nothing_is_not_stopped_for_what_stopped_an_earlier_one(world: World) -> None:
    # Slurm gave it a whole GPU after it was given back, and SPANK read why its last run had no share here.
    begin(world, 8, 30)
    begin(world, 7, 30, user=USER + 1)
    world.run("epilog", berth(2, share=30, way="mps"), "2", job=7)
    assert share(world).degraded

    assert world.run("prolog", berth(3), "3", job=7).returncode == 0

    assert not world.paths.job(7).exists()
    assert not share(world, 8).degraded


def has_share_file(world: World) -> bool:
    return world.paths.job(7).exists()


def has_daemon(world: World) -> bool:
    return any(one.daemon for one in state.everything(world.paths))


@pytest.mark.parametrize("until", [has_share_file, has_daemon])
def test_a_prolog_that_was_killed_half_way_leaves_nothing(world: World, until: Callable[[World], bool]) -> None:
    world.mps_wishes(SLOW_START)
    program = world.start("prolog", berth(2, share=30, way="mps"), "2")
    while not until(world):
        time.sleep(0.002)
    os.killpg(program.pid, signal.SIGKILL)
    program.wait()
    world.mps_wishes({})

    assert "did not come to its end on this node" in share(world).why
    assert world.run("epilog", berth(2, share=30, way="mps"), "2").returncode == 0
    share_file.remove(world.paths, 7)
    assert nothing_is_left(world)
    assert begin(world, 8, 30).returncode == 0
    assert not share(world, 8).degraded


def test_another_users_job_is_not_put_beside_and_says_so(world: World) -> None:
    begin(world, 7, 30)

    done = begin(world, 8, 30, user=USER + 1)

    assert done.returncode == 0
    assert "this site lets no two users share one" in share(world, 8).why
    assert share(world, 8).why in done.stderr
    assert world.books() == {7: 30}
    # berth-notice, which comes after the Epilog, reads why.
    world.run("epilog", berth(2, share=30, way="mps"), "2", job=8)
    assert share(world, 8).degraded


@needs_root
def test_the_site_may_let_users_share(world: World) -> None:
    world.settings["multi_user"] = True
    begin(world, 7, 30)
    begin(world, 8, 30, user=USER + 1)

    assert not share(world, 8).degraded


@pytest.mark.parametrize(
    ("extra", "gpus", "says"),
    [
        (berth(2, share=30, way="mps"), "3", "names other GPUs than Slurm gave it"),
        (berth(2, share=30, way="mps"), "", "Slurm gave it none on this node"),
        (berth(2, share=300, way="mps"), "2", "a number from 1 to 100"),
        (berth(2, share="$(reboot)", way="mps"), "2", "a number from 1 to 100"),
    ],
)
def test_a_share_that_slurm_did_not_give_is_refused(world: World, extra: str, gpus: str, says: str) -> None:
    done = world.run("prolog", extra, gpus, SLURM_JOB_RESTART_COUNT="3")

    assert done.returncode == 0
    assert says in share(world).why
    assert world.books() == {}
    assert world.run("epilog", extra, gpus).returncode == 0


def test_the_scripts_see_no_gpu_of_a_job_that_is_refused(world: World) -> None:
    own = str(world.script("own", CHAINED))
    world.settings |= {"chain_prolog": [own], "chain_epilog": [own]}
    extra = berth(2, share=300, way="mps")

    assert (world.run("prolog", extra, "2").returncode, world.run("epilog", extra, "2").returncode) == (0, 0)
    assert (world.folder / "calls").read_text().splitlines() == ["prolog 7 []  ", "epilog 7 []  "]
    assert world.asked == "show job 7 -d\n"


def test_more_than_a_whole_gpu_is_refused(world: World) -> None:
    begin(world, 7, 60)
    begin(world, 8, 60)

    assert "120 %" in share(world, 8).why


def test_a_host_that_bears_mps_goes_in_turn_with_a_guest_that_is_there_already(world: World) -> None:
    guest = berth(2, tier="opportunistic", way="time")
    assert world.run("prolog", guest, "", job=8).returncode == 0

    done = world.run("prolog", berth(2, tier="guaranteed", mem=1024, way="mps"), "2", job=7)

    assert (done.returncode, done.stderr) == (0, "")
    assert (share(world).degraded, share(world).way, share(world).tier) == (False, "time", "guaranteed")
    assert sorted(world.books()) == [7, 8]
    for job, extra, gpus in ((7, berth(2, tier="guaranteed", mem=1024, way="mps"), "2"), (8, guest, "")):
        assert world.run("epilog", extra, gpus, job=job).returncode == 0
    assert world.books() == {}


HOSTS = {
    "in turn": (berth(2, tier="guaranteed", mem=1024, way="time"), "2"),
    "by MPS, of another user": (berth(2, tier="guaranteed", mem=1024, way="mps"), "2"),
    "on two GPUs": (berth(2, 3, tier="guaranteed", mem=1024, way="time"), "2,3"),
}


@pytest.mark.parametrize("host", HOSTS.values(), ids=HOSTS)
def test_a_guest_under_mps_whose_host_has_gone_makes_way_for_one_that_cannot_join_it(
    world: World, host: tuple[str, str]
) -> None:
    extra, gpus = host
    under_mps, in_turn = (berth(2, tier="opportunistic", way=way) for way in ("mps", "time"))
    assert world.run("prolog", *HOSTS["by MPS, of another user"], job=6).returncode == 0
    assert world.run("prolog", under_mps, "", job=8).returncode == 0
    assert world.run("epilog", *HOSTS["by MPS, of another user"], job=6).returncode == 0
    assert (list(world.books()), len(world.daemons())) == ([8], 2)

    done = world.run("prolog", extra, gpus, job=7, user=USER + 1)

    assert done.returncode == 0
    assert "job 8 sits as a guest on a GPU of job 7, and berth-guard does not run" in done.stderr
    assert (share(world).why, share(world).way, share(world).tier) == ("", "time", "guaranteed")
    assert modes(world)[-1] == "compute-mode=0"

    # The next guests go in turn with it, also one that would go by MPS.
    world.run("epilog", under_mps, "", job=8)
    assert world.daemons() == []
    for job, guest in ((9, under_mps), (10, in_turn)):
        assert world.run("prolog", guest, "", job=job).returncode == 0
        assert (share(world, job).why, share(world, job).way) == ("", "time")
        assert sorted(world.books()) == [7, job]
        assert world.run("epilog", guest, "", job=job).returncode == 0
    assert world.run("epilog", extra, gpus, job=7).returncode == 0
    assert world.books() == {}


def test_a_guest_whose_prolog_comes_twice_keeps_its_share_though_its_host_has_gone(world: World) -> None:
    host = berth(2, tier="guaranteed", mem=1024, way="mps")
    guest = berth(2, tier="opportunistic", way="mps")
    own = str(world.script("own", CHAINED))
    world.settings["chain_prolog"] = [own]
    world.run("prolog", host, "2", job=6)
    world.run("prolog", guest, "", job=8, SLURM_JOB_START_TIME="1700")
    world.run("epilog", host, "2", job=6)
    before, books = share(world, 8), world.books()

    again = world.run("prolog", guest, "", job=8, SLURM_JOB_START_TIME="1700")

    kept = "berth-prolog: job 8 has its share already, and keeps it [BERTH-901]\n"
    assert (again.returncode, again.stderr) == (0, kept)
    assert (share(world, 8), world.books()) == (before, books)
    # It uses the GPU by now: no script may reset it.
    assert (world.folder / "calls").read_text().splitlines()[-1] == "prolog 8 [] 2 "


def test_a_guest_whose_host_has_gone_starts_no_mps(world: World) -> None:
    """It would close the GPU to an owner that comes at the same moment."""
    assert world.run("prolog", berth(2, tier="opportunistic", way="mps"), "", job=8).returncode == 0

    assert (share(world, 8).why, share(world, 8).way) == ("", "time")
    assert (modes(world), world.daemons()) == ([], [])


def test_by_time_any_two_users_share(world: World) -> None:
    for job, user in ((7, USER), (8, USER + 1)):
        done = world.run("prolog", berth(2, share=50, way="time"), "2", job=job, user=user)
        assert (done.returncode, done.stderr) == (0, "")
    assert world.books() == {7: 50, 8: 50}
    assert world.daemons() == []
    assert share(world).environment == {"CUDA_VISIBLE_DEVICES": share(world).uuids[0]}
    assert {"CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"} <= set(share(world).unset)
    assert share(world).level == "audit"

    begin(world, 9, 10)
    assert "MPS" in share(world, 9).why or "share" in share(world, 9).why
    assert world.books() == {7: 50, 8: 50}

    for job in (7, 8, 9):
        world.run("epilog", job=job)
    share_file.remove(world.paths, 9)
    assert nothing_is_left(world)


MISSING = "/usr/bin/there-is-no-such-program"


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"mps_control": MISSING}, f"{MISSING} is not on this node"),
        ({"mps_contrl": "x"}, "did you mean mps_control?"),
    ],
)
def test_what_is_missing_or_wrong_is_said_and_drains_nothing(
    world: World, settings: dict[str, object], says: str
) -> None:
    world.settings |= settings

    done = begin(world, 7, 30)

    assert done.returncode == 0
    assert says in share(world).why
    assert says in done.stderr
    assert world.run("epilog", berth(2, share=30, way="mps"), "2").returncode == 0
    assert "DRAIN" not in world.asked


@pytest.mark.parametrize("what", ["driver", "pynvml"])
def test_no_driver_is_a_sentence(world: World, what: str) -> None:
    if what == "driver":
        (world.folder / "machine").unlink()
    else:
        blocked = world.folder / "python" / "pynvml.py"
        blocked.parent.mkdir()
        blocked.write_text("raise ImportError\n")
        world.environment["PYTHONPATH"] = str(blocked.parent)

    done = begin(world, 7, 30)

    assert done.returncode == 0
    assert {"driver": "is the NVIDIA driver loaded?", "pynvml": "install slurm-berth[node]"}[what] in share(world).why


def test_a_server_that_does_not_come_is_given_up(world: World) -> None:
    world.mps_wishes(SLOW_START)
    world.settings["mps_start_timeout"] = 1.0

    done = begin(world, 7, 30)

    assert done.returncode == 0
    assert share(world).degraded
    assert world.books() == {}
    assert world.daemons() == []


def test_a_broken_gpu_drains_the_node_with_a_reason(world: World) -> None:
    begin(world, 8, 30)
    world.run("epilog", job=8)
    world.happens("gpu 2 lost=1")
    world.scontrol("exit 0")

    done = begin(world, 7, 30)

    assert done.returncode == 1
    assert f"\nupdate NodeName={NODE} State=DRAIN Reason=berth: GPU GPU-" in world.asked
    assert "fallen off the bus; power-cycle the node" in world.asked
    assert share(world).degraded
    assert world.run("epilog", berth(2, share=30, way="mps"), "2").returncode == 0


def test_a_slurm_that_takes_no_reason_does_not_hang_it(world: World) -> None:
    world.happens("gpu 2 lost=1")

    assert begin(world, 7, 30).returncode == 1


def fill(folder: Path) -> None:
    file = os.open(folder / "ballast", os.O_WRONLY | os.O_CREAT)
    with suppress(OSError):
        while os.write(file, bytes(1 << 12)):
            pass
    os.close(file)


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts file systems, which only root may")
@pytest.mark.parametrize(
    ("options", "says"), [("ro", "Read-only file system"), ("size=64k", "No space left on device")]
)
@pytest.mark.parametrize("others", [0, 1])
def test_a_folder_that_cannot_be_written_drains_nothing(world: World, options: str, says: str, others: int) -> None:
    if others and options == "ro":
        pytest.skip("MPS keeps its log open, so the folder does not become read-only under it")
    world.root.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", options, "berth", str(world.root)], check=False).returncode:
        pytest.skip("this machine mounts no tmpfs")
    try:
        if others:
            begin(world, 8, 30)
        if options != "ro":
            fill(world.root)

        done = begin(world, 7, 30)
        ended = world.run("epilog", berth(2, share=30, way="mps"), "2")
        with suppress(OSError):
            (world.root / "ballast").unlink()
        world.run("epilog", berth(2, share=30, way="mps"), "2", job=8)

        assert (done.returncode, ended.returncode) == (0, 0)
        assert says in done.stderr
        assert "cannot share a GPU on this node until that is mended" in done.stderr
        assert "fault in Berth" not in done.stderr + ended.stderr
        assert world.books() == {}
        assert world.daemons() == []
    finally:
        subprocess.run(["umount", "--lazy", str(world.root)], check=True)


@pytest.mark.parametrize("name", ["run", "run/jobs", "run/gpus", "run/mps"])
def test_a_link_in_place_of_a_folder_is_not_followed(world: World, name: str) -> None:
    treasure = world.folder / "treasure"
    treasure.mkdir()
    (world.folder / name).parent.mkdir(exist_ok=True)
    (world.folder / name).symlink_to(treasure)

    done = begin(world, 7, 30)

    assert done.returncode == 0
    assert "remove it" in done.stderr
    assert list(treasure.iterdir()) == []
    assert world.run("epilog", berth(2, share=30, way="mps"), "2").returncode == 0
    assert world.daemons() == []


def test_a_sites_script_sees_only_gpus_that_no_other_job_uses(world: World) -> None:
    own = str(world.script("own", CHAINED))
    world.settings |= {"chain_prolog": [own], "chain_epilog": [own]}

    begin(world, 7, 30)
    begin(world, 8, 50)
    world.run("epilog", berth(2, share=30, way="mps"), "2", job=7)
    world.run("epilog", berth(2, share=50, way="mps"), "2", job=8)

    assert (world.folder / "calls").read_text().splitlines() == [
        "prolog 7 [2] 2 30",
        "prolog 8 [] 2 50",
        "epilog 7 [] 2 30",
        "epilog 8 [2] 2 50",
    ]
    assert nothing_is_left(world)


def test_a_sites_scripts_are_told_no_gpu_of_a_guest_whose_owner_is_not_in_the_books(world: World) -> None:
    # Slurm calls a job RUNNING before its Prolog began, and lets an owner end before berthd sends its guest away.
    own = str(world.script("own", CHAINED))
    world.settings |= {"chain_prolog": [own], "chain_epilog": [own]}
    guest = berth(2, tier="opportunistic", way="time")

    for program in ("prolog", "epilog"):
        assert world.run(program, guest, "", job=8).returncode == 0

    assert (world.folder / "calls").read_text().splitlines() == ["prolog 8 [] 2 ", "epilog 8 [] 2 "]


def test_a_sites_no_comes_before_mps(world: World) -> None:
    world.settings["chain_prolog"] = [str(world.script("own", "exit 3"))]

    assert begin(world, 7, 30).returncode == 3
    assert world.daemons() == []
    assert share(world).degraded


def test_one_hand_over_of_a_gpu_at_a_time(world: World) -> None:
    body = f"echo in >>{world.folder}/order; /bin/sleep 0.5; echo out >>{world.folder}/order"
    world.settings["chain_prolog"] = [str(world.script("own", body))]
    first = world.start("prolog", berth(2, share=30, way="time"), "2")
    world.environment["SLURM_JOB_ID"] = "8"
    second = world.start("prolog", berth(2, share=30, way="time"), "2")

    assert (first.wait(30), second.wait(30)) == (0, 0)
    assert (world.folder / "order").read_text().split() == ["in", "out", "in", "out"]
    assert world.books() == {7: 30, 8: 30}


def test_a_job_waits_for_an_epilogs_scripts_where_the_site_has_none_for_the_prolog(world: World) -> None:
    world.settings["chain_epilog"] = [
        str(world.script("own", f"touch {world.folder}/in; until [ -e {world.folder}/go ]; do /bin/sleep 0.05; done"))
    ]
    begin(world, 7, 30)
    ends = world.start("epilog", berth(2, share=30, way="mps"), "2")
    until("the Epilog's script", (world.folder / "in").exists)

    world.settings["chain_timeout"] = 1
    done = begin(world, 8, 30)
    had = world.books()
    (world.folder / "go").touch()

    assert ends.wait(30) == 0
    assert "another job's Prolog or Epilog kept GPU 2 for too long" in done.stderr
    assert had == {}
    assert share(world, 8).degraded


def test_a_whole_job_finds_its_gpu_free_of_a_lost_epilogs_share(world: World) -> None:
    begin(world, 7, 30)
    daemons = world.daemons()
    world.scontrol("echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1")

    done = world.run("prolog", berth(2, 3), "3", job=9)

    assert done.returncode == 0
    assert "job 7 was still in the books of a GPU of job 9: its Epilog was lost" in done.stderr
    assert nothing_is_left(world)
    assert not any(map(is_alive, daemons))


def test_a_whole_job_finds_its_gpu_free_of_the_share_of_a_job_that_runs_on_another_node(world: World) -> None:
    begin(world, 7, 30)
    # Its Epilog was lost, and it was requeued.
    world.slurm_knows("shard:g2:30(30/100)")
    world.scontrol(f"sed 's/NodeList=.*/NodeList=other[1-2]/' {world.folder}/job")

    done = world.run("prolog", berth(2, 3), "3", job=9)

    assert "job 7 was still in the books of a GPU of job 9: its Epilog was lost" in done.stderr
    assert nothing_is_left(world)


@pytest.mark.parametrize("way", ["mps", "time"])
@pytest.mark.parametrize("gpus", [(3,), (2, 3)])
def test_a_job_that_runs_again_on_other_gpus_leaves_the_share_of_its_lost_epilog(
    world: World, way: str, gpus: tuple[int, ...]
) -> None:
    world.run("prolog", berth(2, share=30, way=way), "2", SLURM_JOB_START_TIME="100")

    done = world.run("prolog", berth(*gpus, share=30, way=way), "3", SLURM_JOB_START_TIME="200")

    assert not share(world).degraded, done.stderr
    books = [(one.uuids, tenant.start) for one in state.everything(world.paths) for tenant in one.tenants]
    assert {uuid for uuids, _ in books for uuid in uuids} == {*share(world).uuids}
    assert {start for _, start in books} == {200}


def test_a_whole_job_finds_its_gpu_as_it_was_after_an_epilog_that_was_killed(world: World) -> None:
    begin(world, 7, 30)
    [left] = state.everything(world.paths)
    # Slurm's limit came while MPS was being stopped.
    state.store(world.paths, left.without(7))
    world.paths.job(7).unlink()
    assert world.daemons()

    assert world.run("prolog", berth(2, 3), "3", job=9).returncode == 0

    assert nothing_is_left(world)


def test_a_job_that_slurm_still_has_keeps_its_share_whatever_an_extra_says(world: World) -> None:
    begin(world, 7, 30)
    world.slurm_knows("shard:g2:30(30/100)")

    done = world.run("prolog", berth(2, 3), "3", job=9)

    assert done.returncode == 0
    assert "job 7 shares a GPU that Slurm gave to job 9 as a whole" in done.stderr
    assert world.books() == {7: 30}


def test_a_whole_job_leaves_the_shares_of_other_gpus_alone(world: World) -> None:
    begin(world, 7, 30)

    assert world.run("prolog", berth(0, 3), "3", job=9).stderr == ""
    assert world.books() == {7: 30}
