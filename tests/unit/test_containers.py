"""The test cluster's configuration and scripts, as far as they can be checked without Docker."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

from containers import cluster, images

ROOT = Path(__file__).resolve().parents[2]
CONTAINERS = ROOT / "containers"
MACHINES = ROOT / "tests" / "fakes" / "nvml" / "machines"
MACHINE_OF_NODE = {"n1": "dgx-1v", "n2": "hgx-h100", "n3": "a6000-pairs", "n4": "l40s"}


def render(target: Path, *, berth: bool, profile: str) -> dict[str, str]:
    environment = {
        **os.environ,
        "BERTH_CLUSTER_ETC": str(target),
        "BERTH": "yes" if berth else "no",
        "PROFILE": profile,
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
    for name in ("sh", "dirname", "sed", "head", "tr", "uname", "grep", "cat", "python3", "gcc", "make", "cppcheck"):
        (folder / name).symlink_to(shutil.which(name) or pytest.skip(f"{name} is not installed here"))
    (folder / "id").write_text("#!/bin/sh\necho 1000\n")
    (folder / "id").chmod(0o755)
    return folder


def test_bootstrap_without_root_names_the_one_command(tools: Path) -> None:
    environment = {"PATH": str(tools), "BERTH_RERUN": "make demo"}
    done = subprocess.run(
        [CONTAINERS / "bootstrap", "packages"], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert re.search(
        r"^bootstrap: installing .*clang.*docker.* needs root; run: sudo make demo$", done.stderr, re.MULTILINE
    )
    assert "gcc" not in done.stderr


needs_engine = pytest.mark.skipif(os.geteuid() != 0 or shutil.which("dockerd") is None, reason="needs root and dockerd")


@needs_engine
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
        bootstrap("engine-start")
        for pid_file in (engine, supervisor):
            os.kill(int(pid_file.read_text()), signal.SIGKILL)
        # The worst case: their process ids belong to another program by now.
        engine.write_text(str(bystander.pid))
        supervisor.write_text(str(bystander.pid))
        assert "the Docker engine runs" in bootstrap("engine-start")
        assert bootstrap("engine-start") == ""
        running = int(engine.read_text())
        assert "is stopped" in bootstrap("engine-stop")
        time.sleep(0.1)
        assert not engine.exists()
        assert (
            Path(f"/proc/{running}/status").exists() is False
            or "Z (zombie)" in Path(f"/proc/{running}/status").read_text()
        )
        assert bystander.poll() is None
    finally:
        subprocess.run([CONTAINERS / "bootstrap", "engine-stop"], env=environment, check=False)
        bystander.kill()
        bystander.wait()
        shutil.rmtree(root, ignore_errors=True)
