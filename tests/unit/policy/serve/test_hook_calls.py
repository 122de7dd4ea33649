# SPDX-License-Identifier: Apache-2.0
"""Calls of the hook are counted from its log as it grows, is cut, or is replaced."""

import os
from pathlib import Path

import pytest

from policy.serve.metrics import hook_calls
from policy.serve.metrics.hook_calls import OUTCOMES, HookCalls
from policy.site.metrics_state import Histogram

ROOT = Path(__file__).parents[4]


def line(outcome: str, microseconds: int = 900) -> str:
    return f"1795211895.000001\t{microseconds}\t{outcome}\t1000\n"


def counted(calls: HookCalls) -> dict[str, int]:
    return {word: count for word, count in calls.outcomes.items() if count}


def test_the_outcomes_are_those_that_the_plugin_writes() -> None:
    source = (ROOT / "slurm_plugins" / "job_submit" / "ask.c").read_text()
    table = source.split("static const char *const names[] = {")[1].split("};")[0]

    assert {word.strip('"') for word in table.replace(",", " ").split() if word.startswith('"')} == set(OUTCOMES)


def test_calls_count_from_now_on_with_their_times(tmp_path: Path) -> None:
    log = tmp_path / "hook.log"
    log.write_text(line("place") * 3)
    calls = HookCalls(log)
    calls.look()
    assert counted(calls) == {}

    with log.open("a") as file:
        file.write(line("place", 250) + line("timeout", 50_000) + line("later", 2_000_000) + line("pla")[:-5])
    calls.look()
    assert counted(calls) == {"place": 1, "timeout": 1, "later": 1}
    assert calls.took.cumulative == [1] * 9 + [2, 2, 2, 3]
    assert calls.took.sum == pytest.approx(2.05025)
    calls.close()


def test_a_line_that_comes_in_two_parts_is_counted_once_and_other_lines_are_not(tmp_path: Path) -> None:
    log = tmp_path / "hook.log"
    log.touch()
    calls = HookCalls(log)
    for part in (line("pass")[:12], line("pass")[12:], "rubbish\n\x00\tx\tpass\t0\n1\t2\tnew_word\t0\n"):
        with log.open("a") as file:
            file.write(part)
        calls.look()

    assert counted(calls) == {"pass": 1}
    calls.close()


def test_a_log_that_is_cut_or_replaced_is_followed(tmp_path: Path) -> None:
    log = tmp_path / "hook.log"
    calls = HookCalls(log)
    calls.look()
    log.write_text(line("place") * 2)
    calls.look()
    assert counted(calls) == {"place": 2}, "one that comes later is read whole"

    os.truncate(log, 0)
    with log.open("a") as file:
        file.write(line("pass"))
    calls.look()
    assert counted(calls) == {"place": 2, "pass": 1}

    with log.open("a") as old:
        log.rename(tmp_path / "hook.log.1")
        calls.look()
        old.write(line("open"))
        old.flush()
        calls.look()
        log.write_text(line("refuse"))
        old.write(line("dead"))
        old.flush()
        for _ in range(4):
            calls.look()
    assert counted(calls) == {"place": 2, "pass": 1, "open": 1, "dead": 1, "refuse": 1}
    calls.close()


def test_a_log_that_grows_fast_is_read_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hook_calls, "_MOST_AT_ONCE", 100)
    log = tmp_path / "hook.log"
    log.touch()
    calls = HookCalls(log)
    log.write_text(line("place") * 50)
    calls.look()
    assert 0 < calls.outcomes["place"] < 4
    for _ in range(30):
        calls.look()

    assert counted(calls) == {"place": 50}
    calls.close()


def test_a_histogram_counts_up_to_and_with_each_bound() -> None:
    one = Histogram((1.0, 2.0))
    for value in (0.0, 1.0, 1.5, 2.0, 2.1):
        one.observe(value)

    assert one.cumulative == [2, 4, 5]
    assert one.sum == pytest.approx(6.6)


def test_a_log_that_cannot_be_read_ends_no_server_and_keeps_the_counts(tmp_path: Path) -> None:
    log = tmp_path / "hook.log"
    log.touch()
    calls = HookCalls(log)
    log.write_text(line("place"))
    calls.look()
    log.unlink()
    log.mkdir()
    for _ in range(3):
        calls.look()
    log.rmdir()
    log.write_text(line("pass"))
    for _ in range(3):
        calls.look()

    assert counted(calls) == {"place": 1, "pass": 1}
    calls.close()
