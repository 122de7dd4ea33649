# SPDX-License-Identifier: Apache-2.0
"""The plugin in slurmstepd: a task gets the environment of its share, or does not start."""

import functools
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests import building

STEPD = Path(__file__).parents[1] / "data" / "stepd"
BATCH, INTERACTIVE, STEP = 0xFFFFFFFB, 0xFFFFFFFA, 0
PIPE = "/run/berth/mps/GPU-a/pipe"
HOOKS, LIBRARY = "/usr/share/berth/injob", "/usr/lib/berth/libberth_injob.so"
INJECTED = ("status=ok", "set.BERTH_WORD=/run/berth/words/42/GPU-a", f"prepend.PYTHONPATH={HOOKS}",
            f"prepend.LD_PRELOAD={LIBRARY}")  # fmt: skip
PACKED_ENVIRONMENT = {"SLURM_SHARDS_ON_NODE": "30", "PATH": "/bin"}


@functools.cache
def program() -> Path:
    names = (
        "spank/spank_node.c",
        "spank/spank_injected.c",
        "node/share_file.c",
        "text/path_list.c",
        "node/devices.c",
    )
    sources = [
        STEPD / "stepd.c",
        *(building.PLUGINS / name for name in (*names, "text/text.c", "node/mps_listens.c")),
    ]
    return building.built("stepd", sources, (STEPD, building.PLUGINS))


@dataclass(frozen=True)
class Task:
    """What came of a task: its environment, or why it did not start."""

    environment: dict[str, str] | None
    said: str


@dataclass
class Node:
    """A node with share files, GPUs 0 and 1 open to the job, and 2 and 3 not."""

    shares: Path
    devices: str = "oodd"
    plugstack: list[str] = field(default_factory=list)

    def share(self, *lines: str, job: int = 42) -> Path:
        path = self.shares / str(job)
        path.write_text("\n".join(["berth-share/1", f"job={job}", "uid=1000", *lines]) + "\n")
        path.chmod(0o644)
        return path

    def start(
        self, environment: dict[str, str], *, flag: str = "30", step: int = BATCH, task: int = 0, job: int = 42
    ) -> Task:
        words = (job, 1000, step, task, flag, self.devices, f"shares={self.shares}", *self.plugstack)
        done = subprocess.run(
            [program(), *map(str, words)], env=environment, capture_output=True, text=True, timeout=20, check=False
        )
        if done.returncode:
            assert done.returncode == 1
            return Task(None, done.stderr)
        return Task(dict(line.split("=", 1) for line in done.stdout.splitlines()), done.stderr)


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


@pytest.fixture
def pipe() -> Iterator[str]:
    """The pipe directory of an MPS daemon that lives; a short path, as sockets need it."""
    with (
        tempfile.TemporaryDirectory(prefix="bn") as folder,
        socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as one,
    ):
        one.bind(f"{folder}/control")
        one.listen()
        yield folder


@pytest.mark.parametrize("step", [BATCH, INTERACTIVE, STEP])
def test_a_packed_job_gets_the_environment_of_its_share(node: Node, pipe: str, step: int) -> None:
    node.share("status=ok", "minors=0,1", f"set.CUDA_MPS_PIPE_DIRECTORY={pipe}", "set.MOTTO=30%20%25", "unset.OTHER=")
    started = node.start({**PACKED_ENVIRONMENT, "OTHER": "x"}, step=step)
    assert started == Task({**PACKED_ENVIRONMENT, "CUDA_MPS_PIPE_DIRECTORY": pipe, "MOTTO": "30 %"}, "")


@pytest.mark.parametrize("kind", [socket.SOCK_SEQPACKET, socket.SOCK_STREAM])
@pytest.mark.parametrize("step", [BATCH, STEP])
@pytest.mark.parametrize("gone", ["no folder", "no socket", "nobody listens", "a plain file", "a long path"])
def test_a_task_that_would_find_no_mps_does_not_start_and_its_share_is_degraded(
    node: Node, pipe: str, gone: str, step: int, kind: socket.SocketKind
) -> None:
    control = Path(pipe, "control")
    control.unlink()
    folder = pipe
    if gone == "no folder":
        folder += "/none"
    elif gone == "nobody listens":
        with socket.socket(socket.AF_UNIX, kind) as one:
            one.bind(str(control))
    elif gone == "a plain file":
        control.touch()
    elif gone == "a long path":
        folder += "/long" * 30
    path = node.share("minors=0,1", "status=ok", "gpus=0", f"set.CUDA_MPS_PIPE_DIRECTORY={folder}", "share=30")
    before = path.read_text()

    stopped = node.start(PACKED_ENVIRONMENT, step=step)

    assert stopped.environment is None
    assert "job 42 is stopped before it starts: MPS is gone from its GPU" in stopped.said
    assert path.read_text() == before.replace(
        "status=ok\n", "status=degraded\nwhy=MPS%20is%20gone%20from%20its%20GPU%20on%20this%20node\n"
    )
    assert path.stat().st_mode & 0o777 == 0o644
    assert [one.name for one in node.shares.iterdir()] == ["42"]
    # The next task finds that, and says it once more.
    assert "MPS is gone" in node.start(PACKED_ENVIRONMENT).said


@pytest.mark.parametrize("kind", [socket.SOCK_SEQPACKET, socket.SOCK_STREAM])
def test_mps_that_hangs_does_not_hold_up_a_task(node: Node, pipe: str, kind: socket.SocketKind) -> None:
    folder = f"{pipe}/own"
    Path(folder).mkdir()
    with socket.socket(socket.AF_UNIX, kind) as hung:
        hung.bind(f"{folder}/control")
        hung.listen(0)
        waiting = [socket.socket(socket.AF_UNIX, kind | socket.SOCK_NONBLOCK) for _ in range(3)]
        for one in waiting:
            one.connect_ex(f"{folder}/control")
        node.share("status=ok", "minors=0,1", f"set.CUDA_MPS_PIPE_DIRECTORY={folder}")
        began = time.monotonic()
        assert node.start(PACKED_ENVIRONMENT).environment is not None
        assert time.monotonic() - began < 5.0
        for one in waiting:
            one.close()


def test_a_share_without_mps_needs_none(node: Node) -> None:
    node.share("status=ok", "minors=0,1", "unset.CUDA_MPS_PIPE_DIRECTORY=", "set.CUDA_VISIBLE_DEVICES=GPU-a")
    assert node.start(PACKED_ENVIRONMENT).environment is not None


def test_what_the_user_says_of_mps_is_not_believed(node: Node, pipe: str) -> None:
    node.share("status=ok", f"set.CUDA_MPS_PIPE_DIRECTORY={pipe}", "set.CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=30")
    hostile = {
        "CUDA_MPS_PIPE_DIRECTORY": "/tmp/mine",
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "100",
        "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=80G,1=80G",
        "CUDA_MPS_" + "X" * 200: "long",
        "CUDA_MPSX": "kept",
    }
    environment = node.start({**PACKED_ENVIRONMENT, **hostile}).environment
    assert environment is not None
    found = {key: value for key, value in environment.items() if key.startswith("CUDA_MPS") and len(key) < 60}
    assert found == {
        "CUDA_MPS_PIPE_DIRECTORY": pipe,
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "30",
        "CUDA_MPSX": "kept",
    }


def test_a_share_in_turns_leaves_the_users_own_mps_alone(node: Node) -> None:
    node.share("status=ok", "set.BERTH_GATE=/run/berth/gates/42")
    environment = node.start({**PACKED_ENVIRONMENT, "CUDA_MPS_PIPE_DIRECTORY": "/tmp/mine"}).environment
    assert environment is not None
    assert environment["CUDA_MPS_PIPE_DIRECTORY"] == "/tmp/mine"
    assert environment["BERTH_GATE"] == "/run/berth/gates/42"


@pytest.mark.parametrize(("task", "voices"), [(0, 1), (1, 0)])
def test_a_degraded_share_stops_the_task_and_says_why_once(node: Node, task: int, voices: int) -> None:
    node.share("status=degraded", "why=MPS%20did%20not%20start%20within%2060%20s%20on%20GPU%200.")
    stopped = node.start(PACKED_ENVIRONMENT, task=task)
    assert stopped.environment is None
    assert stopped.said.count("MPS did not start within 60 s on GPU 0.") == voices


def test_without_a_file_whole_gpus_start_and_a_share_does_not(node: Node) -> None:
    whole = {"PATH": "/bin"}
    assert node.start(whole, flag="") == Task(whole, "")
    assert node.start(whole, flag="30") == Task(whole, ""), "berthd was away: the job has whole GPUs"
    assert node.start(PACKED_ENVIRONMENT, flag="").environment, "shards by an administrator's hand"
    stopped = node.start(PACKED_ENVIRONMENT, flag="30")
    assert stopped.environment is None
    assert "berth-prolog" in stopped.said


@pytest.mark.parametrize("step", [BATCH, STEP])
@pytest.mark.parametrize("tier", ["opportunistic", "opportunistic,upgrade"])
def test_a_guest_without_a_file_does_not_start_on_its_seat_and_a_job_without_gpus_does(
    node: Node, tier: str, step: int
) -> None:
    seat = {"PATH": "/bin", "BERTH_SEAT_ASKED": "1"}
    stopped = node.start(seat, flag=tier, step=step)
    assert stopped.environment is None
    assert "no share file" in stopped.said
    # Without ConstrainDevices any job opens all GPUs of its node.
    for devices in ("oooo", "dddd", ""):
        node.devices = devices
        assert node.start({"PATH": "/bin"}, flag=tier, step=step) == Task({"PATH": "/bin"}, "")
    assert node.start({**seat, "SLURM_GPUS_ON_NODE": "1"}, flag=tier, step=step).environment, "whole GPUs"


@pytest.mark.parametrize("wrong", ["another user", "writable", "broken", "link"])
def test_a_file_that_cannot_be_right_is_named_and_starts_whole_gpus_only(node: Node, wrong: str) -> None:
    path = node.share("status=ok", "set.EVIL=1")
    if wrong == "another user":
        path.write_text(path.read_text().replace("uid=1000", "uid=1001"))
    elif wrong == "writable":
        path.chmod(0o666)
    elif wrong == "broken":
        path.write_text("berth-share/9\n")
    else:
        path.symlink_to(path.rename(node.shares / "real"))
    started = node.start({"PATH": "/bin"}, flag="")
    assert started.environment == {"PATH": "/bin"}
    assert "share file" in started.said
    assert node.start(PACKED_ENVIRONMENT).environment is None


def test_a_job_from_inside_a_packed_job_does_not_inherit_its_pipe(node: Node) -> None:
    inherited = {"CUDA_MPS_PIPE_DIRECTORY": PIPE, "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "30", "PATH": "/bin"}
    assert node.start(inherited, flag="").environment == {"PATH": "/bin"}
    own = {"CUDA_MPS_PIPE_DIRECTORY": "/tmp/mine", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "30"}
    assert node.start(own, flag="").environment == own, "a private MPS on whole GPUs is the user's business"


@pytest.mark.parametrize(
    ("devices", "step", "word"),
    [
        ("oodd", BATCH, ""),
        ("oo", BATCH, ""),
        ("oood", BATCH, "can open /dev/nvidia2"),
        ("oood", STEP, "can open /dev/nvidia2"),
        ("oddd", BATCH, "cannot open /dev/nvidia1"),
        ("oddd", INTERACTIVE, "cannot open /dev/nvidia1"),
        ("oddd", STEP, ""),
        ("dddd", STEP, ""),
        ("o-dd", BATCH, "cannot open /dev/nvidia1"),
    ],
)
@pytest.mark.parametrize("check", ["warn", "stop"])
def test_the_device_cgroup_is_compared_with_the_berth(
    node: Node, check: str, devices: str, step: int, word: str
) -> None:
    node.devices, node.plugstack = devices, [f"devices={check}"]
    node.share("status=ok", "minors=0,1")
    started = node.start(PACKED_ENVIRONMENT, step=step)
    assert (word in started.said) if word else not started.said
    assert (started.environment is None) == (bool(word) and check == "stop")


def test_all_tasks_of_a_node_are_stopped_and_one_says_why(node: Node) -> None:
    node.devices, node.plugstack = "oood", ["devices=stop"]
    node.share("status=ok", "minors=0,1")
    assert node.start(PACKED_ENVIRONMENT, step=STEP, task=0).said
    assert node.start(PACKED_ENVIRONMENT, step=STEP, task=1) == Task(None, "")


def test_the_comparison_can_be_left_out(node: Node) -> None:
    node.devices, node.plugstack = "oood", ["devices=off"]
    node.share("status=ok", "minors=0,1")
    assert node.start(PACKED_ENVIRONMENT) == Task(PACKED_ENVIRONMENT, "")


def test_a_word_in_plugstack_that_nobody_knows_is_named_and_harmless(node: Node) -> None:
    node.plugstack = ["device=stop"]
    started = node.start({"PATH": "/bin"}, flag="")
    assert "device=stop" in started.said
    assert "devices=off|warn|stop" in started.said
    assert started.environment == {"PATH": "/bin"}


def given(node: Node, before: dict[str, str], *, step: int = BATCH, job: int = 42) -> dict[str, str]:
    """What a task of this job finds."""
    environment = node.start(before, flag="", step=step, job=job).environment
    assert environment is not None
    return environment


@pytest.mark.parametrize("step", [BATCH, INTERACTIVE, STEP])
def test_hooks_and_library_go_before_what_the_user_has(node: Node, step: int) -> None:
    node.share(*INJECTED)
    found = given(node, {"PATH": "/bin", "PYTHONPATH": ":/home/a b:", "LD_PRELOAD": "/a.so /b.so"}, step=step)
    assert found["PYTHONPATH"] == f"{HOOKS}::/home/a b:"
    assert found["LD_PRELOAD"] == f"{LIBRARY}:/a.so /b.so"
    assert found["BERTH_WORD"] == "/run/berth/words/42/GPU-a"
    found = given(node, {"PATH": "/bin", "PYTHONPATH": ""}, step=step)
    assert (found["PYTHONPATH"], found["LD_PRELOAD"]) == (HOOKS, LIBRARY)


def test_a_step_has_them_once_and_first_whatever_its_script_did(node: Node) -> None:
    node.share(*INJECTED)
    script = given(node, {"PATH": "/bin", "PYTHONPATH": "/home/a"})
    assert given(node, script, step=STEP) == script
    script |= {"PYTHONPATH": f"/mine:{script['PYTHONPATH']}", "LD_PRELOAD": f"{LIBRARY} /mine.so"}
    step = given(node, script, step=STEP)
    assert step["PYTHONPATH"] == f"{HOOKS}:/mine:/home/a"
    assert step["LD_PRELOAD"] == f"{LIBRARY}:/mine.so"
    del script["BERTH_INJECTED"]
    assert given(node, script, step=STEP)["PYTHONPATH"] == script["PYTHONPATH"]


@pytest.mark.parametrize("inner", [None, ("status=ok", "set.OTHER=1")])
def test_a_job_from_inside_such_a_job_gets_nothing_of_it(node: Node, inner: tuple[str, ...] | None) -> None:
    node.share(*INJECTED)
    outer = given(node, {"PATH": "/bin", "PYTHONPATH": "/home/a", "BERTH_MOTTO": "x"})
    if inner:
        node.share(*inner, job=43)
    added = {"OTHER": "1"} if inner else {}
    assert given(node, outer, job=43) == {"PATH": "/bin", "PYTHONPATH": "/home/a", "BERTH_MOTTO": "x"} | added


def test_a_user_may_do_without(node: Node) -> None:
    node.share(*INJECTED)
    script = given(node, {"PATH": "/bin", "PYTHONPATH": "/home/a"})
    step = given(node, script | {"BERTH_INJOB": "off"}, step=STEP)
    assert step["PYTHONPATH"] == "/home/a"
    assert "LD_PRELOAD" not in step
    assert "BERTH_INJECTED" not in step
    loud = given(node, {"PATH": "/bin", "BERTH_INJOB": "verbose"})
    assert loud["PYTHONPATH"] == HOOKS


def test_a_users_own_word_is_no_word_of_ours(node: Node) -> None:
    node.share(*INJECTED)
    hostile = {"PATH": "/bin", "BERTH_WORD": "/tmp/open"}
    assert given(node, hostile)["BERTH_WORD"] == "/run/berth/words/42/GPU-a"
    assert given(node, hostile, job=43) == hostile
    stale = {"PATH": "/bin", "BERTH_WORD": "/run/berth/words/41/GPU-a"}
    assert given(node, stale, job=43) == {"PATH": "/bin"}


@pytest.mark.parametrize(
    "claim", ["", "=", "PYTHONPATH", "PYTHONPATH=", "=/x", "PYTHONPATH=x", ":::", "PATH=/bin x", "PYTHONPATH=/a=b"]
)
def test_a_claim_that_is_not_ours_takes_nothing_away(node: Node, claim: str) -> None:
    before = {"PATH": "/bin", "PYTHONPATH": "x:/home/a"}
    assert given(node, before | {"BERTH_INJECTED": claim}) == before


@pytest.mark.parametrize(("room", "fits"), [(0, True), (-1, False)])
def test_a_list_that_the_kernel_could_not_take_is_left_alone(node: Node, room: int, fits: bool) -> None:
    """With one byte more, the program could not be started at all."""
    node.share(*INJECTED)
    kernel = 128 * 1024 - len(f"PYTHONPATH={HOOKS}:") - 1
    mine = "/" + "x" * (kernel - 1 - room)
    found = given(node, {"PATH": "/bin", "PYTHONPATH": mine})
    assert found["PYTHONPATH"] == (f"{HOOKS}:{mine}" if fits else mine)
    subprocess.run(["/bin/true"], env=found, check=True)


FLIES = {"SLURM_SPANK_BERTH_PREFLIGHT_SECONDS": "600,must", "PATH": "/bin"}


def test_the_script_of_a_preflight_starts_under_the_runner(node: Node) -> None:
    node.plugstack = ["preflight=/bin/true"]
    started = node.start(FLIES, flag="")
    words = "/bin/true -I -m prolog_epilog.preflight.runner 600,must -- SCRIPT"
    assert started == Task({**FLIES, "words": words}, "")
    node.plugstack = []
    own = words.replace("/bin/true", "/opt/berth/bin/python")
    assert node.start(FLIES, flag="") == Task({**FLIES, "words": own}, "")
    # A word that is told to be wrong does nothing.
    node.plugstack = ["preflight=bin/true"]
    started = node.start(FLIES, flag="")
    assert started.environment is not None
    assert started.environment["words"] == own
    assert started.said.count("preflight=bin/true is not known") == 1


@pytest.mark.parametrize(
    ("environment", "step"),
    [
        (FLIES, STEP),
        (FLIES, INTERACTIVE),
        ({**FLIES, "SLURM_SPANK_BERTH_PREFLIGHT_SECONDS": "9" * 40}, BATCH),
        ({"PATH": "/bin"}, BATCH),
    ],
)
def test_nothing_else_does(node: Node, environment: dict[str, str], step: int) -> None:
    node.plugstack = ["preflight=/bin/true"]
    assert node.start(environment, flag="", step=step) == Task(environment, "")
