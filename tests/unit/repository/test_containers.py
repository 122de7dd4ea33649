# SPDX-License-Identifier: Apache-2.0
"""The test cluster's configuration and scripts, as far as they can be checked without Docker."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from containers import cluster, images
from tests.unit.node_world import is_alive
from tests.waiting import until

ROOT = Path(__file__).resolve().parents[3]
CONTAINERS = ROOT / "containers"
MACHINES = ROOT / "tests" / "fakes" / "nvml" / "machines"
MACHINE_OF_NODE = {"n1": "dgx-1v", "n2": "hgx-h100", "n3": "a6000-pairs", "n4": "l40s"}


def render(target: Path, *, berth: bool, profile: str, backup: bool = False, **more: str) -> dict[str, str]:
    environment = {
        **os.environ,
        "BERTH_CLUSTER_ETC": str(target),
        "BERTH": "yes" if berth else "no",
        "PROFILE": profile,
        "BACKUP": "yes" if backup else "no",
        **more,
    }
    subprocess.run([CONTAINERS / "config" / "render"], env=environment, check=True)
    return {path.name: path.read_text() for path in target.iterdir() if path.is_file()}


def simulated(name: str) -> tuple[dict[int, int], list[list[int]]]:
    """NUMA node of each minor, and NVLinks between minors, read from the machine file."""
    minor_of: dict[int, int] = {}
    numa: dict[int, int] = {}
    links = [[0] * 8 for _ in range(8)]
    for line in (MACHINES / name).read_text().splitlines():
        if gpu := re.match(r"gpu (\d+) minor=(\d+).* numa=(\d)", line):
            minor_of[int(gpu[1])] = int(gpu[2])
            numa[int(gpu[2])] = int(gpu[3])
        elif link := re.match(r"nvlink (\d+):(\d+)(?:-(\d+))? (\d+):", line):
            count = int(link[3] or link[2]) - int(link[2]) + 1
            a, b = minor_of[int(link[1])], minor_of[int(link[4])]
            links[a][b] += count
            links[b][a] += count
    for minor in range(8):
        links[minor][minor] = -1
    return numa, links


@pytest.mark.parametrize("node", sorted(MACHINE_OF_NODE))
def test_slurm_is_told_the_links_and_sockets_of_the_simulated_machine(tmp_path: Path, node: str) -> None:
    gres = render(tmp_path, berth=True, profile="base")["gres.conf"]
    numa, links = simulated(MACHINE_OF_NODE[node])
    told = re.findall(
        rf"^NodeName={node} Name=gpu Type=g(\d) File=/dev/nvidia(\d) Cores=(\S+) Links=(\S+)$", gres, re.MULTILINE
    )
    assert [(int(kind), int(device)) for kind, device, _, _ in told] == [(k, k) for k in range(8)]
    assert [[int(n) for n in words.split(",")] for *_, words in told] == links
    assert [cores for _, _, cores, _ in told] == ["0-7" if numa[k] == 0 else "8-15" for k in range(8)]


@pytest.mark.parametrize("profile", ["base", "scale", "accounting"])
@pytest.mark.parametrize("berth", [True, False])
def test_every_profile_renders_completely(tmp_path: Path, profile: str, berth: bool) -> None:
    files = render(tmp_path, berth=berth, profile=profile)
    for name, text in files.items():
        assert not re.search(r"@[A-Z0-9_]+@", text), name
    assert ("berth.conf" in files) == berth
    assert ("JobSubmitPlugins=berth" in files["slurm.conf"]) == berth
    assert ("AccountingStorageType" in files["slurm.conf"]) == (profile == "accounting")
    # Whatever a node's Gres= names needs as many lines in gres.conf.
    named = re.search(r"^NodeName=DEFAULT Gres=(\S+)$", files["slurm.conf"], re.MULTILINE)
    assert named is not None
    if berth:
        words = [f"{kind}:g{k}:{count}" for kind, count in (("gpu", 1), ("shard", 100), ("seat", 1)) for k in range(8)]
        assert named[1].split(",") == words
        assert len(re.findall("Name=(?:shard|seat) ", files["gres.conf"])) == 16
    else:
        assert named[1] == "gpu:8"
        assert "Type=" not in files["gres.conf"]


@pytest.mark.parametrize("berth", [True, False])
def test_a_backup_controller_shares_the_state_and_hears_notices(tmp_path: Path, berth: bool) -> None:
    files = render(tmp_path, berth=berth, profile="scale", backup=True)

    assert re.findall("^SlurmctldHost=(.*)$", files["slurm.conf"], re.MULTILINE) == ["ctl", "ctl2"]
    assert re.findall("^StateSaveLocation=(.*)$", files["slurm.conf"], re.MULTILINE) == ["/srv/state"]
    assert not berth or 'hosts = "ctl,ctl2"' in files["berth.conf"]


def test_nodes_that_register_themselves_bring_what_slurm_conf_would_say(tmp_path: Path) -> None:
    files = render(tmp_path, berth=True, profile="base", AUTH="slurm", NODES="dynamic")

    assert "AuthType=auth/slurm" in files["slurm.conf"]
    assert not re.search("^NodeName=", files["slurm.conf"], re.MULTILINE)
    lines = files[".dynamic-nodes"].splitlines()
    assert [line.partition(" ")[0] for line in lines] == ["n1", "n2", "n3", "n4"]
    assert all("Sockets=2" in line and "Gres=gpu:g0:1" in line for line in lines)
    assert lines[1].endswith("Feature=h100")


def test_build_context_holds_what_the_dockerfile_copies() -> None:
    allowed = [line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")]
    copied = [
        source.rstrip("/")
        for line in re.findall(r"^COPY (?!--from)(.*) \S+$", (CONTAINERS / "Dockerfile").read_text(), re.MULTILINE)
        for source in line.split()
    ]
    assert copied
    for source in copied:
        assert any(source == entry or source.startswith(f"{entry}/") for entry in allowed), source


@pytest.mark.parametrize("stage", ["plain", "berth", "accounting"])
def test_what_an_image_takes_from_a_checkout_is_readable_whatever_umask_made_it(stage: str) -> None:
    text = (CONTAINERS / "Dockerfile").read_text()
    body = re.split(rf"^FROM \w+ AS {stage}$", text, flags=re.MULTILINE)[1].partition("\nFROM ")[0]
    copied = re.findall(r"^COPY (?!--from).* (\S+)/$", body, re.MULTILINE)
    made_readable = re.findall(r"^RUN chmod -R a\+rX,go-w (\S+)", body, re.MULTILINE)
    assert copied
    assert [one for one in copied if not one.startswith(tuple(made_readable))] == []


def test_no_address_of_a_mirror_or_registry_in_the_tree() -> None:
    for path in [*CONTAINERS.rglob("*"), ROOT / ".dockerignore"]:
        if path.is_file() and "__pycache__" not in path.parts:
            assert "://" not in path.read_text().replace("unix://", ""), path


@pytest.mark.parametrize(
    ("lines", "shown"),
    [
        (["Step 2/9 : RUN make", " ---> Using cache", " ---> 0123"], []),
        (["Step 2/9 : RUN make", " ---> Running in 0123", "cc x.c"], ["  Step 2/9 : RUN make"]),
        (["#7 [slurm 1/2] RUN make", "#7 CACHED"], []),
        (["#7 [slurm 1/2] RUN make", "#7 0.1 cc x.c"], ["  #7 [slurm 1/2] RUN make"]),
    ],
)
def test_only_steps_that_really_run_are_shown(
    lines: list[str], shown: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    printer = images.StepPrinter()
    for line in lines:
        printer.feed(f"{line}\n")
    assert capsys.readouterr().out.splitlines() == shown


def container(name: str, state: str = "running", settings: str = "base berth -") -> cluster.Container:
    return cluster.Container(name=name, state=state, settings=settings, image="sha256:1")


def test_a_node_of_the_scale_profile_is_found_in_its_host(monkeypatch: pytest.MonkeyPatch) -> None:
    there = [container(f"berth2411-{name}") for name in ("ctl", "h1", "h2", "h3", "h4")]
    monkeypatch.setattr(cluster.Cluster, "containers", lambda _: there)
    monkeypatch.setattr(cluster, "PREFIX", "berth")
    small = cluster.Cluster("24.11", berth=True)
    assert small.container_of("ctl") == "berth2411-ctl"
    assert small.container_of("n16") == "berth2411-h1"
    assert small.container_of("n17") == "berth2411-h2"
    with pytest.raises(cluster.ClusterError, match="no node 'n65'; its containers: ctl, h1"):
        small.container_of("n65")


def test_two_builds_of_a_checkout_do_not_write_the_same_inputs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(images, "BUILD", tmp_path)
    with images.one_at_a_time(), (tmp_path / "images.lock").open() as other, pytest.raises(BlockingIOError):
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    with (tmp_path / "images.lock").open() as other:
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_clusters_of_several_workers_use_the_same_images(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "PREFIX", "berth-gw1-")
    monkeypatch.setattr(cluster, "IMAGES", "berth")
    second = cluster.Cluster("24.11", berth=True)
    assert second.project == "berth-gw1-2411"
    assert (second.image, second.accounting_image) == ("berth-cluster:24.11", "berth-cluster:24.11-accounting")


@pytest.mark.parametrize(
    "found",
    [
        container("berth2411-n1", state="exited"),
        container("berth2411-n1", settings="scale berth -"),
        container("berth2411-n1", settings="base lua,berth -"),
        cluster.Container("berth2411-n1", "running", "base berth -", "sha256:old"),
    ],
)
def test_a_cluster_in_another_state_is_started_anew(monkeypatch: pytest.MonkeyPatch, found: cluster.Container) -> None:
    monkeypatch.setattr(cluster, "docker", lambda *_: "sha256:1\n")
    wanted = cluster.Settings("base", "berth", "")
    mine = cluster.Cluster("24.11", berth=True)
    assert cluster.is_current(mine, [container("berth2411-n1")], wanted)
    assert not cluster.is_current(mine, [container("berth2411-ctl"), found], wanted)


def test_what_a_removed_cluster_left_is_gone_before_the_next_one_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []

    def docker(*words: str) -> str:
        done.append(" ".join(word for word in words if not word.startswith(("--", "label="))))
        return "berth2411_config\n" if words[:2] == ("volume", "ls") else ""

    monkeypatch.setattr(cluster.Cluster, "containers", lambda _: [])
    monkeypatch.setattr(cluster, "docker", docker)
    monkeypatch.setattr(cluster, "start", lambda *_: done.append("start"))
    monkeypatch.setattr(cluster, "wait", lambda *_: None)
    mine = cluster.Cluster("24.11", berth=True)
    cluster.up(mine, cluster.Settings("base", "berth", ""), time_limit=1, rebuild=False)

    assert done.index("volume rm berth2411_config") < done.index("start")


def test_waiting_stops_at_once_when_a_container_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster.Cluster, "containers", lambda _: [container("berth2411-n3", state="exited")])
    monkeypatch.setattr(cluster, "tail", lambda name: f"{name}: entry: no machine file")
    with pytest.raises(cluster.ClusterError, match=r"berth2411-n3 ended; .*\n.*no machine file"):
        cluster.wait(cluster.Cluster("24.11", berth=True), "base", time_limit=30)


@pytest.fixture
def tools(tmp_path: Path) -> Path:
    """A folder for PATH with what bootstrap's checks need, and a user who is not root."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("sh", "dirname", "sed", "head", "tr", "grep", "cat", "sort", "gcc", "make", "cppcheck"):
        (folder / name).symlink_to(shutil.which(name) or pytest.skip(f"{name} is not installed here"))
    stand_in(folder / "id", "echo 1000")
    stand_in(folder / "python3", f'exec "{sys.executable}" "$@"')
    return folder


def stand_in(path: Path, line: str = "exit 1") -> None:
    assert not path.is_symlink(), "the machine's own program would be written over"
    path.write_text(f"#!/bin/sh\n{line}\n")
    path.chmod(0o755)


def bootstrap(tools: Path, command: str, **more: str) -> str:
    """What it says when it cannot go on: one sentence."""
    environment = {"PATH": str(tools), "BERTH_RERUN": "make demo", **more}
    done = subprocess.run(
        [CONTAINERS / "bootstrap", command], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    [line] = done.stderr.splitlines()
    return line


def test_bootstrap_without_root_names_the_one_command(tools: Path) -> None:
    stand_in(tools / "apt-get")
    line = bootstrap(tools, "packages")
    assert re.match(r"bootstrap: installing .*clang.*docker.* needs root; run: sudo make demo$", line)
    assert "gcc" not in line


@pytest.mark.parametrize(
    ("manager", "words"),
    [
        ("dnf", "dnf install clang clang-tools-extra compiler-rt docker-compose moby-engine"),
        ("zypper", "zypper install clang clang-tools docker docker-compose"),
    ],
)
def test_without_apt_get_the_packages_have_the_names_that_this_machine_knows(
    tools: Path, manager: str, words: str
) -> None:
    stand_in(tools / manager, "echo it was run")
    assert bootstrap(tools, "packages") == f"bootstrap: this machine has no apt-get; run as root: {words}"


def test_without_any_package_manager_debians_names_are_named(tools: Path) -> None:
    assert "install by hand what Debian calls clang fuzzer clang-format" in bootstrap(tools, "packages")


@pytest.mark.parametrize("has_v2", [True, False], ids=["Ubuntu 24.04", "Debian"])
def test_a_compose_that_does_not_run_is_replaced_by_the_one_that_this_release_has(tools: Path, has_v2: bool) -> None:
    stand_in(tools / "id", "echo 0")
    stand_in(tools / "docker-compose")
    stand_in(tools / "apt-get", "exit 0")
    known = f"make | docker.io{' | docker-compose-v2' if has_v2 else ''}"
    stand_in(tools / "apt-cache", f'case $2 in {known}) ;; clang) echo "Depends: clang-18" ;; *) exit 1 ;; esac')
    done = subprocess.run(
        [CONTAINERS / "bootstrap", "packages"], env={"PATH": str(tools)}, capture_output=True, text=True, check=False
    )

    [line] = [line for line in done.stdout.splitlines() if line.startswith("bootstrap: installing")]
    assert ("docker-compose-v2" if has_v2 else "docker-compose") in line.split()


def test_units_need_neither_docker_nor_the_linters(tools: Path) -> None:
    done = subprocess.run([CONTAINERS / "bootstrap", "base-packages"], env={"PATH": str(tools)}, check=False)
    assert done.returncode == 0


def test_an_engine_that_only_root_may_start_is_one_sentence(tools: Path) -> None:
    stand_in(tools / "docker")
    assert bootstrap(tools, "engine-start") == ("bootstrap: starting the Docker engine needs root; run: sudo make demo")


def test_an_engine_that_may_not_run_here_is_one_sentence(tools: Path, tmp_path: Path) -> None:
    stand_in(tools / "docker")
    stand_in(tools / "id", "echo 0")
    stand_in(tools / "dockerd", "echo 'failed to start daemon: operation not permitted'; exit 1")
    for name in ("cut", "mkdir", "rm", "setsid", "sleep", "tail"):
        (tools / name).symlink_to(shutil.which(name) or pytest.skip(f"{name} is not installed here"))
    stand_in(tools / "unshare", 'while [ "${1#--}" != "$1" ]; do shift; done; exec "$@"')
    line = bootstrap(tools, "engine-start", BERTH_ENGINE_ROOT=str(tmp_path))
    log = tmp_path / "engine.log"
    assert line == (
        "bootstrap: the Docker engine did not start (failed to start daemon: operation not permitted);"
        f" its log is {log}"
    )


needs_engine = pytest.mark.skipif(os.geteuid() != 0 or shutil.which("dockerd") is None, reason="needs root and dockerd")


@needs_engine
@pytest.mark.slow
def test_an_engine_killed_hard_does_not_bar_the_next_start(tmp_path: Path) -> None:
    # A socket's path has a short limit, so the folder is not pytest's.
    root = Path("/var/tmp") / f"berth-engine-{os.getpid()}"
    environment = {**os.environ, "BERTH_ENGINE_ROOT": str(root)}

    def bootstrap(command: str) -> str:
        return subprocess.run(
            [CONTAINERS / "bootstrap", command], env=environment, capture_output=True, text=True, check=True
        ).stdout

    engine, supervisor = root / "docker.pid", root / "run" / "containerd" / "containerd.pid"
    bystander = subprocess.Popen(["sleep", "60"])
    try:
        try:
            bootstrap("engine-start")
        except subprocess.CalledProcessError as problem:
            if subprocess.run(["docker", "version"], capture_output=True, check=False).returncode:
                pytest.skip(f"no engine runs on this machine: {problem.stderr}")
            raise
        # Handles first: containerd ends with its dockerd, and its number may be another's at once.
        for handle in [os.pidfd_open(int(pid_file.read_text())) for pid_file in (engine, supervisor)]:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(handle, signal.SIGKILL)
            os.close(handle)
        # The worst case: their process ids belong to another program by now.
        engine.write_text(str(bystander.pid))
        supervisor.write_text(str(bystander.pid))
        assert "the Docker engine runs" in bootstrap("engine-start")
        assert bootstrap("engine-start") == ""
        running = int(engine.read_text())
        assert "is stopped" in bootstrap("engine-stop")
        assert not engine.exists()
        until("the engine to end", lambda: not is_alive(running))
        assert bystander.poll() is None
    finally:
        subprocess.run([CONTAINERS / "bootstrap", "engine-stop"], env=environment, check=False)
        bystander.kill()
        bystander.wait()
        shutil.rmtree(root, ignore_errors=True)
