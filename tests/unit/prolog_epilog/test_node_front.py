# SPDX-License-Identifier: Apache-2.0
"""The shell script before the Python program: it ends a call only where the program would do nothing."""

from __future__ import annotations

import json
import stat
import subprocess
import sys
from itertools import product
from pathlib import Path

import pytest

from prolog_epilog.job.slurm import PREFIXES
from prolog_epilog.settings.config import NodeConfig, load
from tests.examples import sample_or_all, sampled
from tests.unit.node_world import JOB_TEXT, NODE, ROOT, World, berth

FRONT = ROOT / "prolog_epilog" / "front"
CONTEXTS = ("prolog", "epilog")
SHELLS: tuple[list[str], ...] = ([], ["/bin/bash", "--posix"])
"""This system's, and what others have as /bin/sh."""

# Tells, by Python's own audit events, whatever the program does to the world; and what it says.
WATCHED = """
import io, json, os, sys
sys.path.insert(0, sys.argv[1])
from prolog_epilog import epilog, programs, prolog
world = {"open", "os", "fcntl", "shutil", "socket", "subprocess", "syslog", "tempfile", "ctypes", "mmap", "pty"}
harmless = {"os.listdir", "os.scandir", "os.putenv", "os.unsetenv"}
seen, done = [], []
def hook(event, arguments):
    if event == "open" and not (arguments[2] or 0) & ~os.O_CLOEXEC:
        return
    if event.partition(".")[0] in world and event not in harmless:
        seen.append(event)
sys.addaudithook(hook)
for context, environment, words in json.load(sys.stdin):
    os.environ.clear()
    os.environ.update(environment)
    seen.clear()
    sys.stderr = io.StringIO()
    run = {"prolog": prolog.run, "epilog": epilog.run}[context]
    code = programs._main(context, run, words)
    done.append([code, list(seen), sys.stderr.getvalue()])
print(json.dumps(done))
"""


class Node:
    """The front on a node in a folder; in place of the Python program something that says that it was called."""

    def __init__(self, folder: Path) -> None:
        self.world = World(folder)
        self.folder = folder
        text = (FRONT / "berth-prolog").read_text()
        for path, other in (
            ("/run/berth/", f"{self.world.root}/"),
            ("/dev/nvidia", f"{self.world.dev}/nvidia"),
            ("/etc/slurm/berth.conf", f"{folder}/none"),
            (" ".join(PREFIXES), f"{folder}/usr {folder}/opt"),
        ):
            assert path in text
            text = text.replace(path, other)
        for context in CONTEXTS:
            self.install(f"bin/berth-{context}", text)
            self.install(f"bin/berth-{context}-python", '#!/bin/sh\necho python "$@"\n')

    def install(self, name: str, text: str) -> None:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)

    def configure(self, text: str) -> None:
        (self.folder / "berth.conf").write_text(text)

    def front(self, context: str, environment: dict[str, str], *words: str, name: str = "") -> str:
        """What came of a call: nothing, or the words with which the Python program was called."""
        path = str(self.folder / (name or f"bin/berth-{context}"))
        found = set()
        for shell in SHELLS:
            done = subprocess.run(
                [*shell, path, *words], env=environment, capture_output=True, text=True, timeout=60, check=True
            )
            assert done.stderr == ""
            found.add(done.stdout.strip())
        assert len(found) == 1
        return found.pop()

    def program(self, calls: list[tuple[str, dict[str, str]]]) -> list[tuple[int, list[str], str]]:
        """What the Python program does in each: its exit status, what it touched, what it said."""
        words = ["--root", str(self.world.root), "--dev", str(self.world.dev)]
        done = subprocess.run(
            [sys.executable, "-c", WATCHED, str(ROOT)],
            input=json.dumps([(context, environment, words) for context, environment in calls]),
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
        return [(code, events, said) for code, events, said in json.loads(done.stdout)]


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


EXTRAS = {
    "none": "",
    "a user's": "project=a; $(touch owned) `id` 'x' \"y\"\n* [ber] berth/1",
    "whole": berth(0, 3),
    "whole, and a user's": f"gpus=1 share=3 {berth(3)} tier=guaranteed",
    "other GPUs": berth(0, 33),
    "other node": berth(3).replace("n1", "n2"),
    "two nodes": berth(3).replace("n1", "n1,n2"),
    "no end": berth(3)[:-1],
    "no number": berth(3).replace("3", "3x"),
    "twice": berth(3) + berth(3),
    "exclusive": berth(3, tier="exclusive"),
    "shared": berth(3, share=30, way="mps"),
    "seat": berth(3, tier="opportunistic", way="time"),
    "forged": "[berth/9 [berth/",
}


def put(path: Path, what: str) -> None:
    """A share file of job 7, in one of the forms that may be found."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.is_symlink() or path.is_file():
        path.unlink()
    if what == "file":
        path.write_text("berth-share/1\njob=7\n")
    elif what == "link":
        path.symlink_to("nowhere")


CALLS = [
    (context, gpus, extra, code)
    for context, codes in (("prolog", ("",)), ("epilog", ("0:0", "0:15", "1:0", "")))
    for gpus, extra, code in product(("", "3", "0,3", "x"), EXTRAS, codes)
]
STATES = [("none", False), ("none", True), ("file", False), ("link", False)]
"""The job's share file, and whether any GPU of the node is shared."""
ASKS = {"fcntl.fcntl", "os.killpg", "os.posix_spawn", "open"}
"""What it takes the program to ask scontrol."""


def gave(node: Node, extra: str, gres: str = "") -> None:
    """What Slurm gave job 7: what its Extra says, or GPU 3."""
    (node.world.folder / "records" / "7").unlink(missing_ok=True)
    node.world.slurm_gave(extra, 7)
    if gres or not (node.world.folder / "records" / "7").exists():
        text = JOB_TEXT.format(job=7, node=NODE, gres=gres or "gpu:g3:1(IDX:3),seat:g3:1(IDX:3)")
        (node.world.folder / "records" / "7").write_text(text)


def asks_slurm(node: Node) -> None:
    node.configure(f'[node]\nscontrol = "{node.world.folder}/scontrol"\n')


@pytest.mark.slow
@sample_or_all(25)
def test_what_it_ends_is_nothing_for_the_program(node: Node, count: int | None) -> None:
    ended, tried = set(), []
    asks_slurm(node)
    for share, books in STATES:
        put(node.world.jobs / "7", share)
        put(node.world.root / "gpus" / "GPU-1", "file" if books else "none")
        for context, gpus, extra, code in sampled(CALLS, count):
            tried.append(((context, gpus, extra, code), (share, books)))
            environment = node.world.slurmd(context, EXTRAS[extra], gpus, SLURM_JOB_NODELIST=NODE)
            if code:
                environment["SLURM_JOB_EXIT_CODE2"] = code
            gave(node, EXTRAS[extra])
            if node.front(context, environment):
                continue
            ended.add((context, gpus, extra, code, share, books))
            before = sorted(node.folder.rglob("*"))
            [(status, events, said)] = node.program([(context, environment)])
            assert (status, said) == (0, "")
            assert set(events) <= (ASKS if context == "prolog" and gpus else set())
            assert sorted(node.folder.rglob("*")) == before
    # It does end what it is there for, and no more.
    plain = {"none", "a user's"}
    whole = {"whole", "whole, and a user's"}
    assert ended == {
        (context, gpus, extra, code, share, books)
        for (context, gpus, extra, code), (share, books) in tried
        if (extra in plain or (extra in whole and gpus == "3" and code in {"", "0:0", "0:15"}))
        and share == "none"
        and not (context == "prolog" and gpus and books)
    }


WHOLE = "gpu:g3:1(IDX:3)"
GIVEN = {
    WHOLE: True,
    f"{WHOLE},seat:g3:1(IDX:3)": True,
    f"{WHOLE},nic:1": True,
    "gpu:g0:1(IDX:0)": False,
    f"gpu:g0:1(IDX:0),{WHOLE}": False,
    f"{WHOLE},seat:g0:1(IDX:0)": False,
    f"{WHOLE},shard:g3:30(30/100)": False,
    "shard:g3:1(1/100)": False,
    "seat:g3:1(IDX:3)": False,
    "gpu:1(IDX:3)": False,
    "": False,
}


@pytest.mark.parametrize("extra", [berth(3), ""])
@pytest.mark.parametrize("gres", GIVEN)
def test_what_slurm_gave_is_compared(node: Node, extra: str, gres: str) -> None:
    asks_slurm(node)
    gave(node, extra, gres or "x")
    call = ("prolog", node.world.slurmd("prolog", extra, "3", SLURM_JOB_NODELIST=NODE))

    over = node.front(*call) == ""

    # Without a berth any whole GPUs are right.
    others = not extra and gres in {"gpu:g0:1(IDX:0)", f"gpu:g0:1(IDX:0),{WHOLE}"}
    assert over == (GIVEN[gres] or others)
    if over:
        assert node.program([call])[0][::2] == (0, "")


@pytest.mark.parametrize(
    ("change", "more"),
    [
        (("JobName=train", "JobName=x GRES=gpu:g3:1(IDX:3)"), {}),
        (("JobState=RUNNING", "JobState=COMPLETING"), {}),
        ((" GRES=", " SERG="), {}),
        (("x", "x"), {"SLURM_JOB_NODELIST": "n[1-2]"}),
    ],
)
def test_what_slurm_says_unclearly_is_the_programs(node: Node, change: tuple[str, str], more: dict[str, str]) -> None:
    asks_slurm(node)
    gave(node, berth(3))
    record = node.world.folder / "records" / "7"
    record.write_text(record.read_text().replace(*change))
    environment = node.world.slurmd("prolog", berth(3), "3", SLURM_JOB_NODELIST=NODE)

    assert node.front("prolog", environment | more) == "python"


@pytest.mark.slow
def test_a_slurm_that_does_not_answer_is_the_programs(node: Node) -> None:
    asks_slurm(node)
    call = ("prolog", node.world.slurmd("prolog", berth(3), "3", SLURM_JOB_NODELIST=NODE))
    for body in ("exit 1", "exec sleep 60"):
        node.world.scontrol(body)
        assert node.front(*call) == "python"
    (node.world.folder / "scontrol").unlink()
    assert node.front(*call) == "python"


def test_device_files_are_counted_as_the_program_does(node: Node) -> None:
    asks_slurm(node)
    gave(node, berth(3))
    call = ("prolog", node.world.slurmd("prolog", berth(3), "3", SLURM_JOB_NODELIST=NODE))
    assert node.front(*call) == ""
    (node.world.dev / "nvidia1").unlink()

    assert node.front(*call) == "python"
    assert "names other GPUs than Slurm gave it" in node.program([call])[0][2]


BY_KEY = {
    "chain_prolog": "['/bin/false']",
    "chain_epilog": "['/bin/false']",
    "failure_rules": "['/etc/slurm/rules.toml']",
    "log": "'{folder}/lines'",
    "mps_control": "'/opt/mps'",
    "scontrol": "'/opt/slurm/bin/scontrol'",
    "inject_from": "'/opt'",
    "jobs_for_dcgm": "'{folder}/dcgm'",
    "jobs_for_jobstats": "'{folder}/gpustat'",
    "inject": "'all'",
    "violation": "'requeue'",
}
NOT_THE_TABLE = """
# nodes [node] chain_prolog = ["/bin/false"]
[notice]
hosts = "node1,login1"
log = "/var/log/notice"
 # log
"""
CONFS = {
    "no table": (NOT_THE_TABLE, True, True),
    "empty": ("", True, True),
    "table after": ("[notice]\nhosts = 'n'\n[node]\nlog = '{folder}/lines'\n", False, False),
    "table before": (f"[node]\nmulti_user = true\n{NOT_THE_TABLE}", True, True),
    "blanks": ("  [ node ]\n\tlog = '{folder}/lines'\n", False, False),
    "quoted": ("['node']\n\"log\" = '{folder}/lines'\n", False, False),
    "dotted": ("node . log = '{folder}/lines'\n[hook]\n", False, False),
    "dotted, quoted": ("'node'.log = '{folder}/lines'\n", False, False),
    "inline": ("node = {{ log = '{folder}/lines' }}\n", False, False),
    "escaped": ('[node]\n"l\\u006fg" = "{folder}/lines"\n', False, False),
    "escaped chain": ('[node]\n"ch\\u0061in_prolog" = ["/bin/false"]\n', False, False),
    "twice": ("[node]\nmulti_user = true\n[hook]\n[[other]]\nlog = 'x'\n", True, True),
    "other first": ("[hook]\n[node]\n# chain_prolog = ['/bin/false']\nchain_epilog = ['/bin/false']\n", True, False),
    "long text": ("[node]\nmps_control = '''/x\n[hook]\n'''\nlog = '{folder}/lines'\n", False, False),
    "long inline": ('node = {{ mps_control = """/x\n# """, log = "{folder}/lines" }}\n', False, False),
    "lines of a list": ("[node]\nchain_prolog = [\n  # first\n  '/bin/false',\n]\n", False, True),
    "of windows": ("[node]\r\nlog = '{folder}/lines'\r\n", False, False),
    "no end": ("[node]\nlog = '{folder}/lines'", False, False),
}


@pytest.mark.parametrize("name", [*CONFS, *NodeConfig._fields])
def test_scripts_and_log_of_the_site_are_never_left_out(node: Node, name: str) -> None:
    if name in CONFS:
        text, prolog, epilog = CONFS[name]
    else:
        value = getattr(NodeConfig(), name)
        valid = BY_KEY.get(name) or ("true" if value is False else str(value))
        text = f"[node]\n{name} = {valid}\n"
        prolog, epilog = name not in {"chain_prolog", "log"}, name not in {"chain_epilog", "log"}
    node.configure(text.format(folder=node.folder))
    load(str(node.folder / "berth.conf"))
    calls = [(context, node.world.slurmd(context)) for context in CONTEXTS]

    ends = [not node.front(*call) for call in calls]

    assert ends == [prolog, epilog]
    quiet = [call for call, over in zip(calls, ends, strict=True) if over]
    assert node.program(quiet) == [(0, [], "")] * len(quiet)
    rest = [call for call, over in zip(calls, ends, strict=True) if not over]
    assert not rest or any(code or events for code, events, _ in node.program(rest))


@pytest.mark.parametrize("key", ["jobs_for_dcgm", "jobs_for_jobstats"])
@pytest.mark.parametrize("extra", ["", berth(3)])
def test_where_monitoring_is_told_of_jobs_those_with_gpus_are_the_programs(node: Node, key: str, extra: str) -> None:
    node.configure(f"[node]\n{key} = '{node.folder}/jobs'\n")

    assert [node.front(context, node.world.slurmd(context, extra, "3")) for context in CONTEXTS] == ["python"] * 2


@pytest.mark.parametrize(("extra", "says"), [("", "python"), (berth(3), "")])
def test_where_the_site_has_scripts_behind_the_epilog_jobs_without_a_berth_are_the_programs(
    node: Node, extra: str, says: str
) -> None:
    """The Prolog has to keep their GPUs: the Epilog learns them no more."""
    asks_slurm(node)
    text = (node.folder / "berth.conf").read_text()
    node.configure(f"{text}chain_epilog = ['/bin/false']\n")
    gave(node, berth(3))
    call = ("prolog", node.world.slurmd("prolog", extra, "3", SLURM_JOB_NODELIST=NODE))

    assert node.front(*call) == says
    assert node.program([call])[0][0] == 0
    assert (node.world.root / "given").exists() == bool(says)
    assert node.front("prolog", node.world.slurmd("prolog")) == ""


def test_a_berth_conf_that_cannot_be_read_is_the_programs(node: Node) -> None:
    (node.folder / "berth.conf").mkdir()

    assert node.front("prolog", node.world.slurmd("prolog")) == "python"


def test_berth_conf_is_looked_for_where_the_program_does(node: Node) -> None:
    node.configure("[node]\nlog = '/x'\n")
    (node.folder / "none").write_text("[node]\nlog = '/x'\n")
    there = node.world.slurmd("epilog")

    assert node.front("epilog", there) == "python"
    (node.folder / "berth.conf").write_text("")
    assert node.front("epilog", there) == ""
    (node.folder / "berth.conf").unlink()
    assert node.front("epilog", there) == "python"
    (node.folder / "none").unlink()
    assert node.front("epilog", there) == ""
    assert node.front("epilog", {**there, "SLURM_CONF": "slurm.conf"}) == "python"


@pytest.mark.parametrize(
    "change",
    [{"SLURM_SCRIPT_CONTEXT": "epilog_slurmd"}, {"SLURM_SCRIPT_CONTEXT": "prolog"}, {"SLURM_SCRIPT_CONTEXT": ""}],
)
def test_a_call_that_is_not_slurmds_is_the_programs(node: Node, change: dict[str, str]) -> None:
    assert node.front("prolog", node.world.slurmd("prolog") | change) == "python"


NOTICE = '#!/bin/sh\necho "notice $SLURM_SCRIPT_CONTEXT $SLURM_JOB_ID" "$@"\n'


@pytest.mark.parametrize("prefix", ["usr", "opt"])
def test_an_epilog_ends_with_the_notice_and_a_prolog_does_not(node: Node, prefix: str) -> None:
    node.install(f"{prefix}/libexec/berth/berth-notice", NOTICE)
    quiet, busy = ("", ""), (berth(3, share=30, way="mps"), "3")

    for context, last in (("prolog", []), ("epilog", ["notice epilog_slurmd 7"])):
        assert node.front(context, node.world.slurmd(context, *quiet)).splitlines() == last
        assert node.front(context, node.world.slurmd(context, *busy), "--root", "/a  b").splitlines() == [
            "python --root /a  b",
            *last,
        ]
        node.configure("[node]\nmulti_user = true\n")
        assert node.front(context, node.world.slurmd(context, *quiet)).splitlines() == last


def test_an_epilog_that_fails_tells_nobody_and_keeps_its_status(node: Node) -> None:
    node.install("usr/libexec/berth/berth-notice", NOTICE)
    node.install("bin/berth-epilog-python", "#!/bin/sh\necho python\nexit 3\n")
    sent = node.world.slurmd("epilog", berth(3, share=30, way="mps"), "3")

    done = subprocess.run([node.folder / "bin/berth-epilog"], env=sent, capture_output=True, text=True, check=False)

    assert (done.returncode, done.stdout) == (3, "python\n")


def test_options_are_handed_on_as_they_are(node: Node) -> None:
    environment = node.world.slurmd("prolog")

    assert node.front("prolog", environment, "--root", "/a  b", "*") == "python --root /a  b *"


def test_a_link_from_elsewhere_finds_the_program(node: Node) -> None:
    (node.folder / "10-berth").symlink_to("bin/berth-prolog")

    assert node.front("prolog", node.world.slurmd("prolog", berth(3), "3"), name="10-berth") == "python"


def test_both_are_installed_beside_the_programs_that_they_call() -> None:
    folder = Path(sys.executable).parent
    for context in CONTEXTS:
        program = folder / f"berth-{context}"
        assert program.read_bytes() == (FRONT / "berth-prolog").read_bytes()
        assert program.stat().st_mode & stat.S_IXUSR
        done = subprocess.run([program], env={}, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 2
        assert f"berth-{context} is run by slurmd alone" in done.stderr


def test_what_the_shell_puts_into_the_environment_reaches_no_script_of_the_site(node: Node) -> None:
    # A "#!" line takes no path with a space, and a checkout may have one; a shell before it would add variables.
    python = str(Path(sys.executable).resolve())
    own = node.world.script("own", "import os, json; print(json.dumps(dict(os.environ)))", interpreter=python)
    node.configure(f"[node]\nchain_prolog = ['{own}']\n")
    sent = node.world.slurmd("prolog")
    folder = Path(sys.executable).parent

    done = subprocess.run([folder / "berth-prolog"], env=sent, capture_output=True, text=True, timeout=60, check=True)

    seen = json.loads(done.stdout)
    seen.pop("LC_CTYPE", None)  # of the script's own Python
    assert seen == sent
