# SPDX-License-Identifier: Apache-2.0
"""What a node says of a job that failed: who reads the log, with whose rights, and that nobody waits for it."""

from __future__ import annotations

import json
import os
import socket
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from policy.daemon.hear.endings import NodeWord, read_word
from prolog_epilog.errors import NodeError
from prolog_epilog.failed import aftermath, spool
from prolog_epilog.failed.aftermath import TAIL_BYTES, FailureWord
from prolog_epilog.guard.measure import xids
from prolog_epilog.guard.tell import notice
from prolog_epilog.here import Here
from prolog_epilog.job.job import NodeJob, first_node
from prolog_epilog.job.slurm import Scontrol
from prolog_epilog.node import files
from prolog_epilog.settings import config
from prolog_epilog.tenants import share_file
from prolog_epilog.tenants.share_file import ShareRecord
from tests.fakes import munge
from tests.unit.node_world import NODE, ROOT, World, berth

pytestmark = pytest.mark.slow

RECORD = """JobId={other} ArrayJobId=7 ArrayTaskId=1 JobName=train
   StdErr=/nowhere/other
   StdOut=/nowhere/other

JobId=7 ArrayJobId=7 ArrayTaskId=2 JobName=train
   StdErr={error}
   StdIn=/dev/null
   StdOut={out}
   TresPerNode=gres/gpu:1
"""
FAILED = {"SLURM_JOB_EXIT_CODE2": "1:0", "SLURM_JOB_NODELIST": NODE, "SLURM_JOB_START_TIME": "1000"}
ROOT_ONLY = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give up root")


@pytest.fixture
def world(tmp_path: Path) -> World:
    tmp_path.chmod(0o755)
    for folder in tmp_path.parents:
        # pytest's own folders are root's alone.
        if folder.stat().st_uid == os.geteuid() and Path(tempfile.gettempdir()) in folder.parents:
            folder.chmod(0o755)
    return World(tmp_path)


@pytest.fixture(autouse=True)
def nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """A checkout may be its owner's alone."""
    monkeypatch.setattr(aftermath, "_NOBODY", os.geteuid())


def here(world: World, **settings: object) -> Here:
    slurm = Scontrol(str(world.folder / "scontrol"))
    return Here(config.NodeConfig(**settings), slurm, print, str(world.root), conf=str(world.folder / "berth.conf"))  # type: ignore[arg-type]


def job(uid: int = os.geteuid(), **changes: str) -> NodeJob:
    return NodeJob(7, uid, NODE, berth(0), (0,), {**FAILED, **changes})


def logs(world: World, out: Path, error: Path) -> None:
    (world.folder / "record").write_text(RECORD.format(other=8, out=out, error=error))
    world.scontrol(f"cat {world.folder}/record")


@pytest.mark.parametrize(
    ("folded", "first"),
    [("n1", "n1"), ("n[07-12,3],x", "n07"), ("a[2-3]b[4]", "a2b4"), ("x,n[1-2]", "x"), ("", ""), ("[", "")],
)
def test_the_first_node_ran_the_script(folded: str, first: str) -> None:
    assert first_node(folded) == first


@pytest.mark.parametrize("sign", ["its log says: cuda out of memory", "100 % [x]", "-", "[" * 500, "x" * 500])
@pytest.mark.parametrize("degraded", [False, True])
def test_berthd_reads_what_the_node_writes(sign: str, *, degraded: bool) -> None:
    word = FailureWord(7, "n-1.x", "gpu_out_of_memory", transient=False, sign=sign, start=1_000, degraded=degraded)

    said = read_word(word.text.encode())

    assert said == NodeWord(
        7, "n-1.x", "gpu_out_of_memory", False, sign[: aftermath._MOST_SIGN], start=1_000, degraded=degraded
    )
    # With munge's own words it is no longer than a line may be.
    assert len(word.text) < 700


def test_what_no_node_of_ours_says_is_not_believed() -> None:
    good = FailureWord(7, "n1", "core_dump", transient=True, sign="x").text
    for bad in (good + " ", good.replace("=7", "=07"), good.replace("transient=1", "transient=2"), good + "%0A"):
        assert read_word(bad.encode()) is None


def test_the_end_of_a_log_is_classified_with_the_exit_code(world: World) -> None:
    out, error = world.folder / "7.out", world.folder / "7.err"
    out.write_bytes(b"epoch 1\n" * 100_000)
    error.write_text("Traceback (most recent call last):\nModuleNotFoundError: No module named 'apex'\n")
    logs(world, out, error)

    word = aftermath.look(job(), here(world), "1:0")

    assert (word.job, word.node, word.failure, word.transient, word.start) == (7, NODE, "import_error", False, 1_000)
    assert "apex" not in word.text
    assert aftermath.look(job(), here(world), "0:11").failure == "import_error"
    error.write_text("")
    assert aftermath.look(job(), here(world), "0:11").failure == "invalid_mem_access"


def test_a_site_has_signs_of_its_own(world: World) -> None:
    out, rules = world.folder / "7.out", world.folder / "rules.toml"
    out.write_text("FlexNet: licence server lic2 is down\n")
    rules.write_text(
        'format = "berth-failures/1"\n[[rule]]\nclass = "incorrect_inputs"\ntransient = true\n'
        "patterns = ['licence server .{1,40} is down']\n"
    )
    logs(world, out, out)

    word = aftermath.look(job(), here(world, failure_rules=(str(rules),)), "1:0")

    assert (word.failure, word.transient) == ("incorrect_inputs", True)
    with pytest.raises(NodeError, match="no-rules"):
        aftermath.look(job(), here(world, failure_rules=("/no-rules",)), "1:0")


def test_a_fault_of_the_jobs_gpu_that_the_guard_heard_of_stands_above_its_consequences(world: World) -> None:
    out = world.folder / "7.out"
    out.write_text("RuntimeError: CUDA error: unspecified launch failure\n")
    logs(world, out, out)
    files.prepare(world.paths)
    gpus = [{"position": number, "minor": number, "uuid": f"GPU-{number}"} for number in range(2)]
    files.write(world.paths.identity, json.dumps({"gpus": gpus}))
    assert aftermath.look(job(), here(world), "1:0").failure == "cuda_failure"

    # Another's GPU, a fault that may be a neighbour's, and one of an earlier run.
    xids.note(world.paths.xids, "GPU-1", 79)
    xids.note(world.paths.xids, "GPU-0", 31)
    assert aftermath.look(job(), here(world), "1:0").failure == "cuda_failure"
    xids.note(world.paths.xids, "GPU-0", 79)

    word = aftermath.look(job(), here(world), "1:0")
    assert (word.failure, word.sign) == ("gpu_ecc_error", "a GPU of the job reported Xid 79")
    assert xids.since(world.paths.xids, {"GPU-0"}, int(time.time()) + 60) == ()


def test_the_list_of_faults_does_not_grow_for_ever(tmp_path: Path) -> None:
    path = tmp_path / "xids"
    path.write_text("x" * 70_000)

    xids.note(path, "GPU-0", 48)
    xids.note(path, "GPU-0", 79)

    assert xids.since(path, {"GPU-0"}, 0) == (48, 79)
    assert path.stat().st_size < 100


def test_only_the_end_of_regular_files_is_read(tmp_path: Path) -> None:
    long, pipe, link = tmp_path / "long", tmp_path / "pipe", tmp_path / "link"
    long.write_bytes(b"a" * 10 + b"b" * TAIL_BYTES)
    os.mkfifo(pipe)
    link.symlink_to(long)

    assert aftermath.read_as(os.geteuid(), [str(long)], 5.0) == b"b" * TAIL_BYTES
    began = time.monotonic()
    found = [str(path) for path in (pipe, link, tmp_path, tmp_path / "none", Path("/dev/zero"), Path("/dev/tty"))]
    assert aftermath.read_as(os.geteuid(), found, 30.0) == b""
    assert time.monotonic() - began < 20.0


@ROOT_ONLY
def test_a_log_is_opened_with_the_rights_of_its_user_and_no_more(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("root's own")
    secret.chmod(stat.S_IRUSR)

    assert aftermath.read_as(os.geteuid(), [str(secret)], 5.0) == b"root's own"
    assert aftermath.read_as(65_534, [str(secret)], 5.0) == b""
    # Of a user that this node does not know nothing can be read.
    assert aftermath.read_as(3_999_999, ["/etc/passwd"], 5.0) == b""


def test_a_file_system_that_hangs_is_not_waited_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(aftermath, "_end_of", lambda _: time.sleep(60))
    began = time.monotonic()

    assert aftermath.read_as(os.geteuid(), [str(tmp_path)], 0.2) == b""
    assert time.monotonic() - began < 20.0


@pytest.mark.parametrize(
    "changes",
    [
        {"SLURM_JOB_EXIT_CODE2": "0:0"},
        {"SLURM_JOB_EXIT_CODE2": "0:15"},
        {"SLURM_JOB_EXIT_CODE2": "1:0; rm"},
        {"SLURM_JOB_NODELIST": "n0,n1"},
        {"SLURM_JOB_EXTRA": "theirs"},
    ],
)
def test_most_jobs_cost_nothing(world: World, changes: dict[str, str]) -> None:
    words = {**FAILED, **changes}
    done = world.run("epilog", words.pop("SLURM_JOB_EXTRA", berth(0)), "0", **words)  # type: ignore[arg-type]

    assert done.returncode == 0
    time.sleep(0.3)
    assert world.asked == ""


def test_the_epilog_ends_while_its_child_still_looks_and_berthd_is_told_until_it_says_yes(world: World) -> None:
    out = world.folder / "7.out"
    out.write_text("RuntimeError: CUDA out of memory\n")
    (world.folder / "record").write_text(RECORD.format(other=8, out=out, error=out))
    world.scontrol(f"while [ ! -e {world.folder}/go ]; do sleep 0.1; done; cat {world.folder}/record")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(60)
        with world.configure().open("a") as conf:
            conf.write(f'[notice]\nhosts = "127.0.0.1"\nport = {listener.getsockname()[1]}\n')
        done = epilog(world)
        (world.folder / "go").touch()
        heard = []
        for answer in (b"berth/1 standby\n", b"", b"berth/1 done\n"):
            with listener.accept()[0] as peer, peer.makefile("rb") as lines:
                heard.append(lines.readline())
                peer.sendall(answer)
        listener.settimeout(1.5)
        with pytest.raises(TimeoutError):
            listener.accept()

    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    payload = bytes.fromhex(heard[0].decode().strip().removeprefix("MUNGE:").removesuffix(":")).decode()
    assert "class=gpu_out_of_memory transient=0" in payload


# However many jobs fail, there is one process for them


@pytest.fixture
def another(world: World) -> Iterator[None]:
    """Another process looks into what failed already."""
    files.prepare(world.paths)
    files.own_folder(world.paths.failed)
    code = (
        "import fcntl, os, sys; fcntl.lockf(os.open(sys.argv[1], os.O_RDWR | os.O_CREAT, 0o600), fcntl.LOCK_EX);"
        " print(flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(world.paths.failed / ".lock")], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdout.readline()
        yield
        process.stdin.close()


def no_fork() -> int:
    raise AssertionError("a process more")


def test_a_storm_of_failed_jobs_costs_no_processes_and_few_files(
    world: World, another: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    there = here(world)._replace(say=said.append)
    monkeypatch.setattr(os, "fork", no_fork)
    for number in range(1, 501):
        aftermath.leave_behind(job(uid=1_000 + number % 2)._replace(id=number), there)
    assert len(spool.waiting(world.paths)) == 2 * spool.MOST_OF_A_USER
    for number in range(501, 1_001):
        aftermath.leave_behind(job(uid=number)._replace(id=number), there)

    assert len(spool.waiting(world.paths)) == len(list(world.paths.failed.glob("[0-9]*"))) == spool.MOST
    assert len(said) == 1_000 - spool.MOST
    assert said[-1].startswith("what job 1000 failed of is not looked into: 256 failed jobs wait for berthd")
    assert world.asked == ""


def test_each_users_second_failure_waits_for_everybodys_first(world: World) -> None:
    for number, uid in ((1, 1_000), (2, 1_000), (3, 1_000), (4, 1_001), (5, 0)):
        spool.add(world.paths, job(uid=uid)._replace(id=number), "1:0")
        os.utime(world.paths.failed / f"{uid}.{number}", ns=(number, number))

    assert spool.waiting(world.paths) == ["1000.1", "1001.4", "0.5", "1000.2", "1000.3"]


def told_by_one(world: World, monkeypatch: pytest.MonkeyPatch, answers: list[bool]) -> list[int]:
    """What berthd hears of the jobs in the folder; job 3 cannot be looked into."""
    heard = []

    def look(job: NodeJob, _: Here, code: str) -> FailureWord:
        if job.id == 3:
            raise ZeroDivisionError("a fault of ours")
        assert (code, job.node, job.extra, job.environment) == ("1:0", NODE, berth(0), {"SLURM_JOB_START_TIME": "1000"})
        return FailureWord(job.id, job.node, "core_dump", transient=True, sign="x")

    def tell(_: object, word: FailureWord) -> bool:
        heard.append(word.job)
        if not (answer := answers.pop(0) if answers else True):
            raise NodeError("munge signs nothing")
        return answer

    with world.configure().open("a") as conf:
        conf.write('[notice]\nhosts = "127.0.0.1"\n')
    monkeypatch.setattr(aftermath, "look", look)
    monkeypatch.setattr(notice, "tell", tell)
    monkeypatch.setattr(aftermath, "_log", lambda _: None)
    aftermath.go_through(here(world))
    return heard


def test_one_process_looks_into_all_and_goes_on_after_one_that_it_cannot_look_into(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(1, 6):
        spool.add(world.paths, job()._replace(id=number), "1:0")
    (world.paths.failed / f"{os.geteuid()}.4").write_text("{")
    spool.add(world.paths, job()._replace(id=5), "1:0")

    heard = told_by_one(world, monkeypatch, [True, False])

    assert sorted(heard) == [1, 2, 2, 5]
    assert spool.waiting(world.paths) == []


def test_a_job_that_has_waited_too_long_is_not_told_of(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in (1, 2):
        spool.add(world.paths, job()._replace(id=number), "1:0")
    path = world.paths.failed / f"{os.geteuid()}.1"
    path.write_text(json.dumps({**json.loads(path.read_text()), "at": time.time() - 1_000}))

    assert told_by_one(world, monkeypatch, []) == [2]


def test_what_another_process_goes_through_is_left_to_it(
    world: World, another: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    spool.add(world.paths, job(), "1:0")

    assert told_by_one(world, monkeypatch, []) == []
    assert len(spool.waiting(world.paths)) == 1


def epilog(world: World) -> subprocess.CompletedProcess[str]:
    """berth-epilog where nobody may not read this checkout."""
    code = f"""
from prolog_epilog import programs
from prolog_epilog.failed import aftermath
aftermath._NOBODY = {os.geteuid()}
programs.epilog()
"""
    words = ["--config", str(world.folder / "berth.conf"), "--root", str(world.root), "--dev", str(world.dev)]
    library = str(munge.library().parent)
    # Of a user that the node does not know nothing is read.
    known = {**FAILED, "SLURM_JOB_UID": str(os.geteuid())}
    return subprocess.run(
        [sys.executable, "-c", code, *words],
        cwd=ROOT,
        env=world.slurmd("epilog", berth(0), "0", LD_LIBRARY_PATH=library, **known),  # type: ignore[arg-type]
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize("first", [NODE, "n0"])
@pytest.mark.parametrize(
    ("why", "start", "degraded"), [("MPS is gone", 1_000, True), ("MPS is gone", 900, False), ("", 1_000, False)]
)
def test_a_node_that_could_not_set_the_share_up_says_so_once_more(
    world: World, another: None, first: str, why: str, start: int, *, degraded: bool
) -> None:
    share_file.write(world.paths, ShareRecord(7, os.geteuid(), why=why, start=start))

    aftermath.leave_behind(job(SLURM_JOB_NODELIST=f"{first},n9"), here(world))

    waits = spool.waiting(world.paths)
    assert bool(waits) is (degraded or first == NODE)
    found = [spool.take(world.paths, one) for one in waits]
    assert [one.degraded for one in found if one] == [degraded] * len(waits)


def test_what_waits_says_whether_the_share_was_set_up(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    heard = []

    def tell(_: object, word: FailureWord) -> bool:
        heard.append((word.job, word.degraded))
        return True

    for number, degraded in ((1, True), (2, False)):
        spool.add(world.paths, job()._replace(id=number), "1:0", degraded=degraded)
    with world.configure().open("a") as conf:
        conf.write('[notice]\nhosts = "127.0.0.1"\n')
    monkeypatch.setattr(aftermath, "look", lambda job, *_: FailureWord(job.id, job.node, "core_dump", True, "x"))
    monkeypatch.setattr(notice, "tell", tell)

    aftermath.go_through(here(world))

    assert sorted(heard) == [(1, True), (2, False)]
