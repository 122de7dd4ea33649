# SPDX-License-Identifier: Apache-2.0
"""`berth observe` reads what waiting jobs ask for, and says what it found."""

from __future__ import annotations

import pytest

from policy.cli import observe
from policy.formats.errors import UsageError
from policy.slurm.by_command import command, text
from tests.unit.policy_world import node, reading


def printed(monkeypatch: pytest.MonkeyPatch, *records: tuple[str, ...]) -> None:
    """Makes Slurm's commands print these records."""
    monkeypatch.setattr(text, "new_mark", lambda: "|~")
    lines = "".join("".join(f"{value}|~" for value in record) + "\n" for record in records)
    monkeypatch.setattr(command, "run_command", lambda *_: lines.encode())


@pytest.mark.parametrize(
    ("record", "gpus"),
    [
        (("7", "1", "1", "gres/gpu:4", "N/A", "N/A"), 4),
        (("7", "1", "1", "gres/gpu:h100:4", "N/A", "N/A"), 4),
        (("7", "2", "2", "N/A", "gres/gpu:h100:2", "N/A"), 4),
        (("7", "2", "8", "N/A", "N/A", "gres/gpu:1"), 8),
        (("7", "1", "1", "N/A", "gres/gpu", "N/A"), 1),
        (("7", "1", "1", "N/A", "gres/gpu:a:1,gres/gpu:b:2", "N/A"), 3),
        (("7", "1", "1", "N/A", "gres/nic:1", "N/A"), None),
    ],
)
def test_what_a_waiting_job_asks_for_is_read(
    monkeypatch: pytest.MonkeyPatch, record: tuple[str, ...], gpus: int | None
) -> None:
    printed(monkeypatch, record)

    assert observe._asked().get(7) == gpus


def test_a_machine_is_given_to_nodes_by_name_feature_or_gres_type(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "run_command", lambda *_: b"n1|gpu:a100:8(S:0-1)|\nn2|gpu:h100:8|\nn3|(null)|\n")
    look = reading([node("n1"), node("n2", features=frozenset({"big"})), node("n3", gpus=0)])

    for where, names in (("a100", {"n1"}), ("big", {"n2"}), ("n[1-3]", {"n1", "n2"})):
        assert set(observe._described([f"{where}=machine:dgx-a100"], look)) == names


@pytest.mark.parametrize("word", ["a100", "=machine:dgx-a100", "nothing=machine:dgx-a100"])
def test_a_wrong_machine_is_a_sentence(monkeypatch: pytest.MonkeyPatch, word: str) -> None:
    monkeypatch.setattr(command, "run_command", lambda *_: b"")

    with pytest.raises(UsageError, match="--machine"):
        observe._described([word], reading([node("n1")]))
