# SPDX-License-Identifier: Apache-2.0
"""Nodes that somebody else keeps from jobs stay so, whenever that was done, with the reason that was given."""

from pathlib import Path

import pytest

from policy.cli.main import main
from policy.cli.migrate.drained import DrainState, node_states, turn
from policy.formats.errors import BerthError

ROOT = Path(__file__).resolve().parents[5]
SCONTROL = """#!/bin/sh
if [ "$1" = show ]; then /bin/cat "$0.nodes"; else echo "$*" >>"$0.asked"; fi
"""
OURS = "berth migrate"


def line(node: str, state: str, reason: str = "") -> str:
    told = f" Reason={reason} [root@2026-11-27T02:00:00]" if reason else ""
    return f"NodeName={node} Arch=x86_64 State={state} ThreadsPerCore=1{told} Comment=x State=IDLE ReservationName=m"


@pytest.mark.parametrize(
    ("state", "reason", "drains", "resumes"),
    [
        ("IDLE", "", True, False),
        ("MIXED+COMPLETING", "", True, False),
        ("IDLE+CLOUD+POWERED_DOWN", "", True, False),
        ("DOWN*", "Not responding", True, False),
        ("IDLE+DRAIN", OURS, False, True),
        ("DOWN*+DRAIN", OURS, False, True),
        ("IDLE+DRAIN", "a bad fan", False, False),
        ("IDLE+DRAIN", "berth migrate broke it", False, False),
        ("MIXED+DRAIN", "", False, False),
        ("DOWN", "a bad fan", False, False),
        ("IDLE+FAIL", "a bad fan", False, False),
        ("IDLE", OURS, True, False),
    ],
)
def test_only_open_nodes_are_drained_and_only_those_are_resumed(
    state: str, reason: str, *, drains: bool, resumes: bool
) -> None:
    states = node_states([line("n1", state, reason)])

    assert states == {"n1": DrainState(state, reason)}
    assert bool(turn(["n1"], states, "drain")[0]) == drains
    assert bool(turn(["n1"], states, "resume")[0]) == resumes


def test_a_node_that_was_drained_by_others_is_named_with_their_reason() -> None:
    states = node_states([line("n1", "IDLE"), line("n2", "IDLE+DRAIN", "a bad fan"), line("n3", "IDLE+DRAIN", OURS)])

    kept = ["n2 stays IDLE+DRAIN: a bad fan"]
    for verb in ("drain", "resume"):
        assert turn(["n1", "n2", "n3"], states, verb)[1] == kept
    with pytest.raises(BerthError, match="no node n9"):
        turn(["n9"], states, "drain")


def test_the_commands_ask_slurm_each_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    scontrol, nodes = tmp_path / "scontrol", tmp_path / "scontrol.nodes"
    scontrol.write_text(SCONTROL)
    scontrol.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))

    nodes.write_text("\n".join([line("n1", "IDLE"), line("n2", "IDLE"), line("n3", "DOWN", "a bad fan")]))
    assert main(["migrate", "drain", "n[1-3]"]) == 0
    # Somebody finds a fault while jobs end.
    nodes.write_text(
        "\n".join([line("n1", "IDLE+DRAIN", OURS), line("n2", "IDLE+DRAIN", "XID 79"), line("n3", "DOWN")])
    )
    assert main(["migrate", "resume", "n[1-3]"]) == 0
    assert main(["migrate", "resume", "n[2-3]"]) == 0

    assert (tmp_path / "scontrol.asked").read_text().splitlines() == [
        "update NodeName=n[1-2] State=DRAIN Reason=berth migrate",
        "update NodeName=n1 State=RESUME",
    ]
    told = capsys.readouterr().out
    assert "n3 stays DOWN: a bad fan" in told
    assert "n2 stays IDLE+DRAIN: XID 79" in told


def test_nothing_else_of_berth_resumes_a_node() -> None:
    parts = (ROOT / part for part in ("policy", "prolog_epilog", "topology", "slurm_plugins", "deploy", "containers"))
    found = {
        path.relative_to(ROOT)
        for part in parts
        for path in part.rglob("*")
        if path.is_file()
        and path.suffix in {".py", ".c", ".sh", ".yml", ""}
        and "state=resume" in path.read_text(errors="replace").lower()
    }

    assert found == {Path("policy/cli/migrate/drained.py")}
