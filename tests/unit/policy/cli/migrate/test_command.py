"""The commands of `berth migrate` on a site without a Slurm that answers."""

from pathlib import Path

import pytest

from policy.cli.main import main
from topology import files
from topology.machines import machine

CONF = "ClusterName=c\nNodeName=n1 Gres=gpu:2\n"


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "slurm.conf").write_text(CONF)
    monkeypatch.setenv("SLURM_CONF", str(tmp_path / "slurm.conf"))
    monkeypatch.setenv("BERTH_CONF", str(tmp_path / "berth.conf"))
    monkeypatch.setenv("PATH", "")
    return tmp_path


def run(site: Path, *words: str) -> int:
    return main(["migrate", words[0], "--state", str(site / "state"), *words[1:]])


def test_a_plan_writes_nothing(site: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(site, "plan", "advise") == 0

    told = capsys.readouterr().out
    assert "+JobSubmitPlugins=berth" in told
    assert "Restart slurmctld" in told
    assert [path.name for path in site.iterdir()] == ["slurm.conf"]


def test_apply_asks_and_nobody_is_no_yes(site: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(site, "apply") == 2
    assert "--yes" in capsys.readouterr().err
    assert (site / "slurm.conf").read_text() == CONF


def test_a_site_goes_up_and_back(site: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(site, "apply", "--yes") == 0
    assert run(site, "status") == 0
    assert "In force: advise" in capsys.readouterr().out

    assert run(site, "undo", "--yes") == 0

    assert (site / "slurm.conf").read_text() == CONF
    assert not (site / "berth.conf").exists()
    assert run(site, "undo", "--yes") == 1
    assert "nothing is left to undo" in capsys.readouterr().err


def test_undo_names_what_others_changed_and_restores_nothing(site: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(site, "apply", "--yes")
    (site / "slurm.conf").write_text((site / "slurm.conf").read_text() + "MaxJobCount=7\n")
    capsys.readouterr()

    assert run(site, "undo", "--yes") == 1

    assert "slurm.conf was changed since" in capsys.readouterr().err
    assert (site / "berth.conf").exists()


def test_nodes_are_not_changed_while_slurm_cannot_say_that_they_are_empty(
    site: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(site, "apply", "n1", "--yes", "--topology-dir", str(site)) == 1
    assert "n1 cannot be laid out" in capsys.readouterr().err
    assert run(site, "apply", "n9", "--yes") == 2
    assert "n9: slurm.conf has no GPUs there" in capsys.readouterr().err


SCONTROL = """#!/bin/sh
cd "${0%/*}"
[ "$1" = show ] && exec cat nodes
echo "$2" >>asked
[ -e registered ] || { : >registered; echo "slurm_update error: Invalid node state specified" >&2; exit 1; }
"""


def test_resume_waits_for_a_slurmd_that_has_just_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "scontrol").write_text(SCONTROL)
    (tmp_path / "scontrol").chmod(0o755)
    (tmp_path / "nodes").write_text("NodeName=n1 State=UNKNOWN+DRAIN Reason=berth migrate [root@now]\n")
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    monkeypatch.setattr("time.sleep", lambda _: None)

    assert main(["migrate", "resume", "n1"]) == 0

    assert (tmp_path / "asked").read_text() == "NodeName=n1\n" * 2
    assert capsys.readouterr().out == "scontrol update NodeName=n1 State=RESUME\n"


RESERVED = """#!/bin/sh
cat "${0%/*}/reserved"
"""


@pytest.mark.parametrize(
    ("tres", "nodes", "told"),
    [
        ("gres/gpu=4", "n1", True),
        ("gres/gpu=2,gres/gpu:g0=1,gres/gpu:g1=1", "n1", False),
        ("gres/gpu=4", "n3", False),
    ],
)
def test_a_plan_tells_of_a_reservation_that_counts_gpus(
    site: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tres: str,
    nodes: str,
    *,
    told: bool,
) -> None:
    files.dump(machine("l40s", "n1"), site / "n1.json")
    (site / "scontrol").write_text(RESERVED)
    (site / "scontrol").chmod(0o755)
    (site / "reserved").write_text(
        f"ReservationName=r StartTime=0 EndTime=9 Duration=9 Nodes={nodes} NodeCnt=1 CoreCnt=4 Features=(null)"
        f" PartitionName=(null) Flags= TRES=cpu=4,{tres} Users=ada Groups=(null) Accounts=(null) Licenses=(null)"
        " State=ACTIVE BurstBuffer=(null) MaxStartDelay=(null)\n"
    )
    monkeypatch.setenv("PATH", f"{site}:/bin:/usr/bin")

    assert run(site, "plan", "exact", "n1", "--no-cores", "--topology-dir", str(site)) == 0

    assert ("reservation r counts GPUs of n1: " in capsys.readouterr().out) == told
