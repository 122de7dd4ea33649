# SPDX-License-Identifier: Apache-2.0
"""The tasks of an array that wait, as Slurm lists them."""

import pytest

from policy.formats.slurm_syntax.array_tasks import waiting_tasks, waits


@pytest.mark.parametrize(
    ("text", "tasks"),
    [
        ("7", [7]),
        ("1,3-5", [1, 3, 4, 5]),
        ("0-8:4,20%2", [0, 4, 8, 20]),
        ("1-2,...", [1, 2]),
        ("", []),
    ],
)
def test_a_task_waits_just_where_slurm_lists_it(text: str, tasks: list[int]) -> None:
    assert waiting_tasks(text) == tasks
    assert [task for task in range(30) if waits(task, text)] == tasks or text.endswith("...")


def test_behind_the_end_of_a_list_that_slurm_cut_off_any_task_may_wait() -> None:
    assert [waits(task, "3-5,...") for task in (4, 6, 999)] == [True] * 3
    assert not waits(6, "3-5,8")


def test_of_a_long_array_no_more_tasks_are_listed_than_one_pass_can_start() -> None:
    listed = waiting_tasks("1-1000000:3,2000000")

    assert listed == list(range(1, 1 + 3 * len(listed), 3))
    assert len(listed) < 1_000
    assert waits(999_997, "1-1000000:3"), "but each is known to wait"
