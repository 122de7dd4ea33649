"""berth vc plan: the script, played on a sacctmgr that remembers."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from policy.cli.main import main
from policy.formats.errors import FormatError
from policy.slurm import virtual_clusters
from tests.programs import python_program

TWO = """
format = "berth-vc/1"
gpus = 32
exempt = "00:10:00"

[[vc]]
name = "vision"
gpus = 16
users = ["ann", "bob"]

[[vc]]
name = "speech"
gpus = 16
users = ["carol"]
"""

SACCTMGR = """
import pathlib, sys
words = [word for word in sys.argv[1:] if not word.startswith('--')]
folder = pathlib.Path(__file__).parent.parent
had = set((folder / 'had').read_text().split(';')) if (folder / 'had').exists() else set()
said = folder / 'said'
said.write_text((said.read_text() if said.exists() else '') + ' '.join(words) + chr(10))
values = dict(word.split('=', 1) for word in words if '=' in word and '+=' not in word)
name = words[2] if len(words) > 2 else ''
key = 'qos ' + name
if words[1] in ('assoc', 'account', 'user'):
    key = 'assoc ' + values.get('account', name) + ' ' + (values.get('user', name if words[1] == 'user' else ''))
if words[0] == 'show':
    if key in had:
        print(key)
elif words[0] == 'add':
    if key in had:
        sys.exit('already there: ' + key)
    (folder / 'had').write_text(';'.join([*had, key]))
elif words[0] == 'modify':
    if ' '.join(words) in had:
        print(' Nothing modified')
        sys.exit(1)
    if 'refused' in words:
        sys.exit('you may not')
    (folder / 'had').write_text(';'.join([*had, ' '.join(words)]))
"""


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    commands = tmp_path / "bin"
    commands.mkdir()
    python_program(commands / "sacctmgr", SACCTMGR)
    (commands / "scontrol").write_text("#!/bin/sh\necho 'ClusterName             = hall'\n")
    (commands / "scontrol").chmod(0o755)
    monkeypatch.setenv("PATH", f"{commands}:{os.environ['PATH']}")
    return tmp_path


def played(script: str, folder: Path) -> list[str]:
    (folder / "said").unlink(missing_ok=True)
    done = subprocess.run(["sh", "-c", script], cwd=folder, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    return (folder / "said").read_text().splitlines()


@pytest.mark.slow
def test_the_script_dumps_first_adds_what_is_missing_and_takes_nothing_away(slurm: Path) -> None:
    script = "\n".join(virtual_clusters.commands(virtual_clusters.read(TWO, "two.toml")))
    first, again = played(script, slurm), played(script, slurm)

    assert first[0].startswith("dump hall File=accounts-")
    assert [line for line in first if line.startswith("add")] == [
        "add qos borrow",
        "add qos vision",
        "add account vision cluster=hall QOS=vision,borrow",
        "add user ann account=vision cluster=hall",
        "add user bob account=vision cluster=hall",
        "add qos speech",
        "add account speech cluster=hall QOS=speech,borrow",
        "add user carol account=speech cluster=hall",
    ]
    assert "modify qos vision set Priority=1000 GrpTRES=gres/gpu=16 Preempt=borrow" in first
    assert "modify qos borrow set Priority=0 PreemptMode=requeue PreemptExemptTime=00:10:00" in first
    assert not [line for line in first + again if line.startswith(("delete", "add")) and line in again]
    assert {line.partition(" ")[0] for line in again} == {"dump", "show", "modify"}


def test_a_failure_of_sacctmgr_ends_the_script(slurm: Path) -> None:
    script = "\n".join(virtual_clusters.commands(virtual_clusters.read(TWO, "two.toml"))).replace(
        "set Priority=0", "set refused"
    )
    done = subprocess.run(["sh", "-c", script], cwd=slurm, capture_output=True, text=True, check=False, timeout=60)

    assert done.returncode == 1
    assert "you may not" in done.stderr
    assert "vision" not in (slurm / "said").read_text()


def test_without_borrowing_nobody_is_preempted() -> None:
    plan = virtual_clusters.read(TWO.replace('exempt = "00:10:00"', 'borrow = ""'), "two.toml")
    lines = [*virtual_clusters.commands(plan), *virtual_clusters.slurm_conf(plan)]

    assert not [line for line in lines if "reempt" in line]
    assert "set_to account vision cluster=$cluster set Fairshare=16 QOS+=vision DefaultQOS=vision" in lines


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("berth-vc/1", "berth-vc/2", 'format = "berth-vc/1"'),
        ("gpus = 32", "gpus = 31", "have 32 GPUs together, the cluster has 31"),
        ('name = "speech"', 'name = "vision"', "vision is there twice"),
        ('name = "speech"', 'name = "borrow"', "borrow is there twice"),
        ('name = "speech"', 'name = "a b; rm"', "vc 2: name is 'a b; rm'"),
        ('users = ["carol"]', 'users = ["$(id)"]', "vc 2: users is '$(id)'"),
        ('users = ["carol"]', 'user = ["carol"]', "there is no key user; did you mean users?"),
        ('exempt = "00:10:00"', 'exempt = "soon"', "exempt is 'soon'"),
        ('name = "vision"\ngpus = 16', 'name = "vision"\ngpus = 0', "vc 1: gpus is 0"),
        ("[[vc]]", "[[vcs]]", "there is no key vcs"),
    ],
)
def test_what_is_wrong_is_named(old: str, new: str, says: str) -> None:
    with pytest.raises(FormatError) as problem:
        virtual_clusters.read(TWO.replace(old, new), "two.toml")
    assert says in str(problem.value)


def test_the_command_prints_the_script_or_the_lines_of_slurm_conf(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "two.toml").write_text(TWO)

    assert main(["vc", "plan", str(tmp_path / "two.toml")]) == 0
    assert capsys.readouterr().out.startswith("#!/bin/sh\n")
    assert main(["vc", "plan", "--slurm-conf", str(tmp_path / "two.toml")]) == 0
    assert "PreemptType=preempt/qos\n" in capsys.readouterr().out
    assert main(["vc", "plan", "/nowhere"]) == 2
