# SPDX-License-Identifier: Apache-2.0
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

    shown = capsys.readouterr().out
    assert ("reservation r counts GPUs of n1: " in shown) == told
    assert "sinfo %G and scontrol show node list each GPU of l40s by itself (gpu:g0:1,gpu:g1:1,gpu:g2..., " in shown
    assert "license/berth_l40s=2 where it had gres/gpu:l40s=2" in shown
    assert "jobs_for_dcgm" in shown


SLURM = """#!/bin/sh
cd "${0%/*}"
case "$(basename "$0") $*" in
"squeue "*" -O "*) cat shares ;;
squeue*) cat busy ;;
"scontrol show node"*) cat nodes ;;
"scontrol show job"*) cat jobs ;;
"scontrol update"*) echo "$*" >>asked ;;
esac
"""


@pytest.fixture
def cluster(site: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A site with a Slurm that answers: n1 is drained, and no job is on it."""
    for name in ("n1", "n2"):
        files.dump(machine("l40s", name), site / f"{name}.json")
    (site / "slurm.conf").write_text("ClusterName=c\nNodeName=n[1-2] \\\n  Gres=gpu:l40s:4 # by model\nProlog=/own\n")
    (site / "gres.conf").write_text("Name=gpu Type=l40s File=/dev/nvidia[0-3]\n")
    for name in ("squeue", "scontrol"):
        (site / name).write_text(SLURM)
        (site / name).chmod(0o755)
    for name in ("shares", "busy", "jobs"):
        (site / name).write_text("")
    (site / "nodes").write_text(
        "NodeName=n1 State=IDLE+DRAIN Reason=berth migrate [root@now]\nNodeName=n2 State=IDLE\n"
    )
    monkeypatch.setenv("PATH", f"{site}:/bin:/usr/bin")
    return site


def exact(site: Path, nodes: str) -> int:
    return run(site, "apply", nodes, "--yes", "--no-cores", "--topology-dir", str(site))


def texts(site: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in site.glob("*.conf")}


def test_all_steps_up_and_back_leave_the_bytes_of_the_beginning(
    cluster: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    seen = [texts(cluster)]
    (cluster / "nodes").write_text((cluster / "nodes").read_text().replace("IDLE\n", "IDLE+DRAIN\n"))
    for words in (["advise"], ["exact", "n1"], ["exact", "n2"], ["sharing"]):
        exact_ones = ["--no-cores", "--topology-dir", str(cluster)]
        assert run(cluster, "apply", *words[1:], "--rung", words[0], "--yes", *exact_ones) == 0
        seen.append(texts(cluster))
    assert run(cluster, "status") == 0
    assert "In force: sharing; 2 of 2 GPU nodes have the exact layout" in capsys.readouterr().out
    assert b'chain_prolog = ["/own"]' in seen[-1]["berth.conf"]

    for before in reversed(seen[:-1]):
        assert run(cluster, "undo", "--yes") == 0
        assert texts(cluster) == before


@pytest.mark.parametrize(
    ("busy", "nodes", "says"),
    [("7\n7\n8\n", "n1", "jobs 7, 8 are on n1; drain the nodes"), ("", "n[1-2]", "n2: jobs may start there at any")],
)
def test_a_node_with_a_job_or_that_takes_jobs_keeps_its_layout(
    cluster: Path, capsys: pytest.CaptureFixture[str], busy: str, nodes: str, says: str
) -> None:
    before = texts(cluster)
    (cluster / "busy").write_text(busy)

    assert exact(cluster, nodes) == 1

    assert says in capsys.readouterr().err
    assert texts(cluster) == before


@pytest.mark.parametrize(
    ("share", "rungs", "says"),
    [
        ("gres/shard:g0:30", 1, "jobs 9 share GPUs and need"),
        ("gres/shard:g0:30", 2, "jobs 9 shared GPUs of these nodes"),
    ],
)
def test_undo_waits_for_jobs_that_shared(
    cluster: Path, capsys: pytest.CaptureFixture[str], share: str, rungs: int, says: str
) -> None:
    (cluster / "nodes").write_text((cluster / "nodes").read_text().replace("IDLE\n", "IDLE+DRAIN\n"))
    assert [exact(cluster, "n1"), exact(cluster, "n2"), run(cluster, "apply", "--yes")] == [0, 0, 0]
    for _ in range(rungs - 1):
        assert run(cluster, "undo", "--yes") == 0
    before = texts(cluster)
    (cluster / "shares").write_text(f"{'9':20}{'':1000}{share:1000}\n")

    assert run(cluster, "undo", "--yes") == 1

    assert says in capsys.readouterr().err
    assert texts(cluster) == before


def test_waiting_jobs_are_rewritten_after_the_exact_layout_came(
    cluster: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (cluster / "jobs").write_text(
        "JobId=7 JobState=PENDING Reason=Resources Features=(null) Licenses=(null) TresPerNode=gres/gpu:l40s:2\n"
        "JobId=8 JobState=RUNNING Reason=None Features=(null) Licenses=(null) TresPerNode=gres/gpu:l40s:2\n"
    )
    assert main(["migrate", "jobs", "--yes"]) == 0
    assert "No waiting job" in capsys.readouterr().out
    assert exact(cluster, "n1") == 0

    assert main(["migrate", "jobs", "--yes"]) == 0

    assert (cluster / "asked").read_text() == "update JobId=7 TresPerNode=gres/gpu:2 Features=l40s\n"
