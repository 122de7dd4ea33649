# SPDX-License-Identifier: Apache-2.0
"""Berth's packages, built by packaging/build.py, in clean containers: installed, asked, upgraded, removed, purged."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DIST = ROOT / "dist"
ROLES = ("berth-common", "berth-controller", "berth-login", "berth-node", "berth-report", "berth-simulate")
OLDER = {"bookworm": ("debian:bookworm-slim", "deb-debian12"), "ubuntu:24.04": ("ubuntu:24.04", "deb-ubuntu24.04")}
"""Suites whose own Slurm is older than 24.11: there are no plugins in their packages."""
PLUGINS = re.compile(r"berth-slurm-plugins-(\d+\.\d+\.\d+)")
# Of everything but what the kernel shows and the package managers' own books.
LIST = (
    "find / -xdev \\( -path /proc -o -path /sys -o -path /dist -o -path /packaging -o -path /var/lib/dpkg"
    " -o -path /var/log \\) -prune -o -print | grep -v '^/dev' | sort"
)
AS_USERS = (
    "berth plan --help",
    "berth why --help",
    "berth topo show --help",
)
"""What users run without a Slurm, beside a simulation."""
pytestmark = [pytest.mark.hard, pytest.mark.timeout(3600)]


def build(kind: str, suite: str, folder: str) -> Path:
    """Builds the packages; BERTH_PACKAGES_BUILT=1 takes those that lie in dist/ already."""
    if not (os.environ.get("BERTH_PACKAGES_BUILT") and (DIST / folder).is_dir()):
        subprocess.run([sys.executable, ROOT / "packaging" / "build.py", kind, "--in", suite], check=True)
    return DIST / folder


@pytest.fixture(scope="module")
def debs() -> Path:
    return build("deb", "trixie", "deb-debian13")


@pytest.fixture(scope="module")
def rpms() -> Path:
    return build("rpm", "bookworm", "rpm-debian12")


class Container:
    """A container that waits for commands."""

    def __init__(self, image: str, *more: str) -> None:
        folders = ["--volume", f"{DIST}:/dist:ro", "--volume", f"{ROOT / 'packaging'}:/packaging:ro"]
        words = ["docker", "run", "--detach", "--rm", *folders, *more, image, "sleep", "infinity"]
        self.name = subprocess.run(words, check=True, capture_output=True, text=True).stdout.strip()

    def tries(self, script: str) -> subprocess.CompletedProcess[str]:
        """Runs a script, which may fail."""
        words = ["docker", "exec", self.name, "sh", "-ec", script]
        return subprocess.run(words, check=False, capture_output=True, text=True)

    def runs(self, script: str) -> str:
        """Runs a script, which may not fail."""
        done = self.tries(script)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def end(self) -> None:
        """Takes the container away."""
        subprocess.run(["docker", "rm", "--force", self.name], check=True, capture_output=True)


def started(slurm: str) -> Iterator[Container]:
    """A computer with Slurm and Python, and nothing of Berth."""
    subprocess.run([sys.executable, ROOT / "containers" / "images.py", slurm, "plain"], check=True)
    container = Container(f"{os.environ.get('BERTH_CLUSTER_PREFIX') or 'berth'}-cluster:{slurm}-plain")
    yield container
    container.end()


@pytest.fixture
def computer() -> Iterator[Container]:
    yield from started("24.11")


@pytest.fixture
def newer() -> Iterator[Container]:
    yield from started("26.05")


@pytest.fixture
def tools(rpms: Path) -> Iterator[Container]:
    container = Container("berth-packaging:bookworm")
    yield container
    container.end()


@pytest.fixture(params=sorted(OLDER))
def older(request: pytest.FixtureRequest) -> Iterator[tuple[Container, str]]:
    """A computer with a distribution's Python, whose Slurm is too old for the plugins; and its folder in dist/."""
    suite: str = request.param
    image, folder = OLDER[suite]
    if (
        ":" in suite
        and subprocess.run(["docker", "image", "inspect", image], check=False, capture_output=True).returncode
    ):
        pytest.skip(f"there is no image {image}")
    build("deb", suite, folder)
    container = Container(image, "--network", "host")
    container.runs(
        "apt-get update; DEBIAN_FRONTEND=noninteractive apt-get install -y python3 libstdc++6 procps; apt-get clean"
    )
    yield container, folder
    container.end()


def next_version(computer: Container, folder: str) -> str:
    """Lays packages of the same content and a higher version into /tmp/next, and names them."""
    computer.runs(
        f"mkdir /tmp/next; for one in /dist/{folder}/berth-[clnrs]*.deb; do dpkg-deb -R $one /tmp/one;"
        " sed -i 's/-1~/-2~/g' /tmp/one/DEBIAN/control; dpkg-deb -Znone -b /tmp/one /tmp/next; rm -r /tmp/one;"
        " done"
    )
    return " ".join(f"/tmp/next/{name}_*.deb" for name in ROLES)


def names(*packages: str, folder: str = "deb-debian13") -> str:
    return " ".join(f"/dist/{folder}/{name}_*.deb" for name in packages)


def plugins_of(folder: Path) -> tuple[str, str]:
    """The package of plugins, and the Slurm that it is for."""
    [found] = {match[0]: match[1] for path in folder.iterdir() if (match := PLUGINS.match(path.name))}.items()
    return found


def assert_simulates(computer: Container) -> None:
    """Plays a trace under the default policies, in processes of their own."""
    trace = "printf 'job_id,num_gpus,submit_time,duration\\n1,1,0,100\\n2,8,0,100\\n' >trace.csv"
    play = "berth simulate trace.csv --nodes 2 --machine hgx-h100 --workers 2 --json"
    said = computer.runs(f"cd $(mktemp -d) && {trace} && {play} && rm -r $PWD")
    assert {run["policy"] for run in json.loads(said)["runs"]} == {"slurm", "packed", "berth"}


def test_installed_asked_and_purged_a_computer_has_the_files_that_it_had(debs: Path, computer: Container) -> None:
    plugins, _ = plugins_of(debs)
    before = computer.runs(LIST)

    computer.runs(f"dpkg -i {names(*ROLES, plugins)}")

    installed = computer.runs(LIST)
    for path in ("/usr/bin/berth", "/opt/berth/bin/berthd", "/opt/berth/bin/berth-prolog", "/etc/slurm/berth.conf"):
        assert f"{path}\n" in installed
    assert re.search(r"/usr/lib/\S+/job_submit_berth\.so\n", installed)
    assert re.fullmatch(
        r"berth \S+ \(revision \S+, built for debian13 and python3\.\d+\)\n", computer.runs("berth --version")
    )
    for script in AS_USERS:
        assert computer.runs(script).strip(), script
    computer.runs("grep -q nvidia-ml-py /usr/share/doc/berth-node/NOTICE")
    computer.runs("grep -q Redistribution /opt/berth/lib/python3*/site-packages/nvidia_ml_py-*.dist-info/LICENSE")
    # There is no slurmctld here, and doctor says so; nothing of Berth or of its packages is missing.
    doctor = computer.tries("berth doctor")
    assert (doctor.returncode, doctor.stderr) == (1, "")
    assert doctor.stdout.startswith("FAIL  Slurm: ")
    assert "cgroups" in computer.tries("berth doctor node").stdout
    assert "NV18" in computer.runs("berth topo show machine:hgx-h100")
    assert "berthd" in computer.runs("/opt/berth/bin/berthd --help")
    assert_simulates(computer)
    computer.runs("/opt/berth/bin/python -c 'import pynvml, scipy.optimize, msgspec, networkx, yaml'")
    assert computer.runs("/usr/libexec/berth/berth-slurm --version").strip()
    # As root, and still nothing was written beside what dpkg put there.
    assert computer.runs(LIST) == installed

    computer.runs(f"dpkg --purge {' '.join(ROLES)} {plugins}")

    assert computer.runs(LIST).splitlines() == before.splitlines()


def test_nothing_is_started_or_enabled(debs: Path, computer: Container) -> None:
    computer.runs(f"dpkg -i {names(*ROLES)}")

    assert not computer.runs("ls /etc/systemd/system/*/*berth* /etc/rc*.d/*berth* 2>/dev/null || true")
    assert "berth" not in computer.runs("ps -e -o comm=")


@pytest.mark.parametrize("role", ["berth-login", "berth-node"])
def test_a_role_needs_its_own_packages_only(debs: Path, computer: Container, role: str) -> None:
    computer.runs(f"dpkg -i {names('berth-common', role)}")

    assert "NV18" in computer.runs("berth topo show machine:hgx-h100")
    site = computer.runs("ls /opt/berth/lib/python3*/site-packages").split()
    others = {name for name in site if not re.match(r"policy|prolog_epilog|topology|slurm_berth|__pycache__", name)}
    assert others <= ({"pynvml.py", "example.py"} | {name for name in others if name.startswith("nvidia_ml_py-")})
    assert bool(others) == (role == "berth-node")


def test_plugins_refuse_another_slurm(debs: Path, computer: Container, newer: Container) -> None:
    plugins, release = plugins_of(debs)

    packaged = newer.tries(f"dpkg -i {names(plugins)}")
    computer.runs(
        "dpkg-query -W -f '${Package}\\n' | grep -E '^slurm|^libslurm' | xargs dpkg --force-depends --purge >/dev/null;"
        " mkdir -p /opt/slurm/bin; printf '#!/bin/sh\\necho slurm 25.05.1\\n' >/opt/slurm/bin/scontrol;"
        " chmod +x /opt/slurm/bin/scontrol"
    )
    by_hand = computer.tries(f"dpkg -i {names(plugins)}")

    assert packaged.returncode != 0
    assert re.search(r"breaks|break ", packaged.stderr)
    assert by_hand.returncode != 0
    assert f"is of Slurm 25.05.1, and these plugins fit {release} alone" in by_hand.stderr
    assert "job_submit_berth" not in newer.runs(LIST) + computer.runs(LIST)


def test_an_upgrade_and_the_way_back_keep_what_jobs_and_admins_left(debs: Path, computer: Container) -> None:
    computer.runs(f"dpkg -i {names(*ROLES)}")
    kept = ("/run/berth/jobs/7", "/run/berth/pinned", "/var/lib/berth/steps", "/etc/slurm/berth/topology/n1.json")
    computer.runs("".join(f"mkdir -p $(dirname {path}); echo mine >{path};" for path in kept))
    computer.runs("echo '# ours' >>/etc/slurm/berth.conf")

    upgraded = f"{next_version(computer, debs.name)}; rm -r /tmp/next"
    for packages, release in ((upgraded, "-2~"), (names(*ROLES), "-1~")):
        # There, and back again.
        computer.runs(f"dpkg -i {packages}")

        assert release in computer.runs("dpkg-query -W -f '${Version}' berth-node")
        assert computer.runs(f"cat {' '.join(kept)}") == "mine\n" * len(kept)
        assert computer.runs("tail -n 1 /etc/slurm/berth.conf") == "# ours\n"
    # A job shares a GPU: its Epilog has to stay.
    refused = computer.tries("dpkg --purge berth-node")
    assert refused.returncode != 0
    assert "drain this node" in refused.stderr
    computer.runs("test -x /opt/berth/bin/berth-epilog; rm /run/berth/jobs/7")
    computer.runs(f"dpkg --purge {' '.join(ROLES)}")
    assert "berth" not in "".join(line for line in computer.runs(LIST).splitlines() if "berth-cluster" not in line)


def test_on_other_distributions_all_roles_install_upgrade_and_leave_nothing(older: tuple[Container, str]) -> None:
    computer, folder = older
    before = computer.runs(LIST)

    computer.runs(f"dpkg -i {names(*ROLES, folder=folder)}")

    installed = computer.runs(LIST)
    assert computer.runs("berth --version").startswith("berth ")
    for script in AS_USERS:
        assert computer.runs(script).strip(), script
    assert computer.tries("berth doctor").stdout.startswith("FAIL  Slurm: ")
    assert "NV18" in computer.runs("berth topo show machine:hgx-h100")
    assert_simulates(computer)
    computer.runs("/opt/berth/bin/python -c 'import pynvml, scipy.optimize, msgspec, networkx, yaml'")
    assert computer.runs(LIST) == installed
    computer.runs(f"dpkg -i {next_version(computer, folder)}; rm -r /tmp/next")
    assert "-2~" in computer.runs("dpkg-query -W -f '${Version}' berth-controller")
    assert computer.runs(LIST) == installed
    computer.runs(f"dpkg --purge {' '.join(ROLES)}")

    assert computer.runs(LIST).splitlines() == before.splitlines()


def test_a_folder_made_by_hand_is_not_overwritten(debs: Path, computer: Container) -> None:
    computer.runs("mkdir -p /opt/berth; echo mine >/opt/berth/pyvenv.cfg")

    refused = computer.tries(f"dpkg -i {names('berth-common')}")

    assert refused.returncode != 0
    assert "move it away" in refused.stderr
    assert computer.runs("cat /opt/berth/pyvenv.cfg") == "mine\n"


def test_debian_packages_have_no_errors_and_these_sizes(debs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    container = Container("berth-packaging:trixie")
    try:
        checked = container.tries("lintian --allow-root --fail-on error /dist/deb-debian13/*.deb")
        assert checked.returncode == 0, checked.stdout
        query = "dpkg-deb -W --showformat '${Package} ${Installed-Size}\\n'"
        shown = container.runs(f"for one in /dist/deb-debian13/*.deb; do {query} $one; done").split()
    finally:
        container.end()
    sizes = {name: int(size) * 1024 / 1e6 for name, size in zip(shown[::2], shown[1::2], strict=True)}
    with capsys.disabled():
        for path in sorted(debs.glob("*.deb")):
            name = path.name.partition("_")[0]
            print(f"\n{name}: {path.stat().st_size / 1e6:.1f} MB, installed {sizes[name]:.1f} MB", end="")
        print()
    assert sizes["berth-common"] + sizes["berth-simulate"] + sizes["berth-controller"] < 200
    assert sizes["berth-common"] + sizes["berth-node"] < 20


def test_rpms_install_and_go_without_a_trace(rpms: Path, tools: Container) -> None:
    # rpm's books of an empty system know no Python and no libraries, so what packages need is not looked at here.
    rpm = "rpm --root /root/system"
    ours = f"$({rpm} --query --all | grep ^berth)"
    files = "cd /root/system && find . ! -path './var/lib/rpm*' ! -path './usr/lib/sysimage*' | sort"
    tools.runs(f"mkdir -p /root/system/usr/bin /root/system/opt && {rpm} --initdb")
    before = tools.runs(files)

    tools.runs(f"{rpm} --install --nodeps --noscripts /dist/{rpms.name}/*.rpm")

    there = tools.runs(files)
    assert "./opt/berth/bin/berthd\n" in there
    assert "./etc/slurm/berth.conf\n" in there
    tools.runs(f"{rpm} --verify --nodeps {ours}")
    tools.runs(f"{rpm} --erase --nodeps --noscripts {ours}")
    after = tools.runs(files)
    left = set(after.splitlines()) - set(before.splitlines())
    assert {path for path in left if "berth" in path} == set()


def test_rpms_name_what_they_need_and_rpmlint_finds_no_error(rpms: Path, tools: Container) -> None:
    needs = {role: tools.runs(f"rpm -qp --requires /dist/{rpms.name}/{role}-[0-9]*.rpm").splitlines() for role in ROLES}

    assert any(re.fullmatch(r"/usr/bin/python3\.\d+", one) for one in needs["berth-common"])
    for role in set(ROLES) - {"berth-common"}:
        assert any(one.startswith("berth-common = ") for one in needs[role])
    # No library of the machine that built them but glibc, in a version that Enterprise Linux 9 has (2.34), and gcc's.
    for one in {one for role in ROLES for one in needs[role] if ".so" in one}:
        assert re.match(r"(libc|libdl|librt|libpthread|libstdc\+\+|libgcc_s)\.so|ld-linux", one), one
        if version := re.search(r"GLIBC_2\.(\d+)", one):
            assert int(version[1]) <= 34, one
    checked = tools.tries(f"rpmlint --config /packaging/rpm/rpmlint.toml /dist/{rpms.name}/*.rpm")
    assert re.search(r" 0 errors", checked.stdout), checked.stdout[-4000:]


def test_an_rpm_of_plugins_is_built_beside_a_slurm_and_fits_it_alone() -> None:
    """On Debian 13 with its rpm 4.20: the Slurm of Debian 12 is too old."""
    folder = build("rpm", "trixie", "rpm-debian13")
    [package] = [f"/dist/{folder.name}/{path.name}" for path in folder.glob("berth-slurm-plugins-*.rpm")]
    release = PLUGINS.search(package)[1]  # type: ignore[index]
    tools = Container("berth-packaging:trixie")
    by_hand = "echo 'echo slurm {}' >/usr/local/bin/scontrol; chmod +x /usr/local/bin/scontrol; "
    # rpm would give each script a mount namespace, which a container may not.
    install = f"rpm --define '__transaction_unshare %{{nil}}' --install --nodeps {package}"
    try:
        assert f"slurm < {release}\n" in tools.runs(f"rpm -qp --conflicts {package}")
        refused = tools.tries(by_hand.format("25.05.1") + install)
        assert f"these plugins fit {release} alone" in refused.stderr
        tools.runs(by_hand.format(release) + install)
        files = tools.runs(f"rpm --verify --nodeps berth-slurm-plugins-{release}; rpm -qlp {package}").split()
    finally:
        tools.end()
    assert {Path(path).name for path in files} >= {"job_submit_berth.so", "cli_filter_berth.so", "spank_berth.so"}
