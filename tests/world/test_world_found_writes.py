# SPDX-License-Identifier: Apache-2.0
"""Scripts of seeds by which a write or an answer of berthd's took what was another job's, or what its user wrote."""

from __future__ import annotations

from tests.world.world import play


def test_a_list_that_its_user_writes_as_berth_wrote_it_stays_when_the_job_moves() -> None:
    play([
        ("site", 1084, 1, 0, 0, 14),
        ("start",),
        ("pass", 1),
        ("hear",),
        ("submit", "whole", 3, 1500, "COMPLETED", 0),
        ("submit", "whole", 3, 1500, "COMPLETED", 0),
        ("submit", "whole", 3, 1500, "COMPLETED", 0),
        ("submit", "whole", 1, 1500, "COMPLETED", 0),
        ("pass", 1),
        ("fault-of-change", "slow", 2),
        ("submit", "whole", 3, 5, "NODE_FAIL", 0),
        ("sched", 1),
        ("pass", 2),
        ("submit", "gang", 10, 5, "TIMEOUT", 0),
        ("during", 7, "node", "power-on", 1),
        ("submit", "gang", 0, 1, "TIMEOUT", 0),
        ("node", "heard", 3),
        ("submit", "gang", 2, 1, "TIMEOUT", 1),
        ("hear",),
        ("epilog", 5),
        ("submit", "gang", 3, 60, "FAILED", 0),
        ("pass", 1),
        ("during", 5, "submit", "gang", 7, 1, "FAILED", 1),
        ("submit", "whole", 5, 5, "FAILED", 0),
        ("partition", "UP"),
        ("node", "drain", 8),
        ("wait", 1),
        ("submit", "whole", 0, 200, "COMPLETED", 0),
        ("release", 1),
        ("submit", "gang", 10, 1, "COMPLETED", 0),
        ("fault-of-change", "double", 1),
        ("sched", 0),
        ("submit", "gang", 1, 200, "COMPLETED", 1),
        ("start",),
        ("word", 3),
        ("write", 2),
        ("pass", 1),
        ("fault-of-change", "late", 0),
        ("write", 1),
        ("during", 0, "ends", 11),
        ("pass", 1),
        ("epilog", 5),
        ("write", 2),
        ("epilog-ends", 9),
        ("pass", 2),
        ("pass", 1),
        ("outage", 2),
        ("pass", 1),
        ("pass", 50),
        ("kill", 1),
        ("epilog", 0),
        ("write", 1),
        ("pass", 2),
        ("people", "exclude", 9),
    ])  # fmt: skip


def test_why_the_last_task_of_an_array_waits_is_written_to_no_other_task() -> None:
    # By scontrol it was named by the array's number, which stands for tasks with a place of their own too.
    play([
        ("site", 1438, 2, 2, 0, 3),
        ("start",),
        ("pass", 1),
        ("hear",),
        ("submit", "share", 8, 1, "OUT_OF_MEMORY", 0),
        ("submit", "begin", 4, 60, "COMPLETED", 0),
        ("sched", 0),
        ("reserve", "counted", 11, 40),
        ("submit", "share-memory-array", 11, 60, "OUT_OF_MEMORY", 0),
        ("pass", 1),
        ("write", 50),
        ("sched", 1),
        ("wait", 1300),
        ("pass", 50),
        ("write", 1),
        ("sched", 0),
        ("pass", 50),
        ("write", 50),
        ("sched", 0),
        ("pass", 2),
        ("write", 2),
        ("fault", "cut", 7),
        ("outage", 40),
        ("pass", 2),
        ("pass", 50),
        ("wait", 1300),
        ("reserve", "counted", 0, 300),
        ("pass", 50),
        ("write", 50),
    ])  # fmt: skip


def test_a_half_written_pin_is_put_right_though_a_node_of_the_list_before_has_gone() -> None:
    # Slurm refused the list before too, and the half written one was taken for the user's.
    play([
        ("site", 1044, 2, 0, 0, 14),
        ("start",),
        ("pass", 1),
        ("hear",),
        ("submit", "guest", 0, 5, "COMPLETED", 1),
        ("during-change", 0, "node", "forget", 7),
        ("submit", "share-memory-array", 0, 20, "OUT_OF_MEMORY", 1),
        ("sched", 0),
        ("sched", 0),
        ("wait", 10),
        ("wait", 30),
        ("submit", "whole", 1, 5, "COMPLETED", 2),
        ("submit", "upgrade", 8, 20, "COMPLETED", 0),
        ("wait", 10),
        ("pass", 1),
        ("write", 50),
        ("release", 0),
    ])  # fmt: skip


def test_an_array_s_owner_excludes_nodes_while_its_tasks_are_given_back_one_by_one() -> None:
    # The model: each task keeps in mind that a list crossed the update, as its array's record does.
    play(
        [
            ("site", 157, 1, 2, 0, 14),
            ("start",),
            ("pass", 1),
            ("hear",),
            ("submit", "whole", 3, 200, "COMPLETED", 0),
            ("submit", "array", 2, 200, "FAILED", 0),
            ("submit", "whole", 0, 20, "NODE_FAIL", 0),
            ("submit", "whole", 4, 200, "FAILED", 1),
            ("submit", "whole", 1, 5, "OUT_OF_MEMORY", 0),
            ("submit", "whole", 6, 200, "COMPLETED", 0),
            ("submit", "array", 4, 1, "COMPLETED", 0),
            ("during-change", 2, "people", "exclude", 10),
            ("submit", "whole", 0, 200, "COMPLETED", 0),
            ("submit", "share", 4, 5, "TIMEOUT", 0),
            ("release", 0),
        ]
    )


def test_a_place_given_by_an_old_snapshot_is_taken_after_the_clock_was_set_back() -> None:
    # Its claim began an hour later by the new clock, and the next job was given the same GPUs.
    play(
        [
            ("site", 1446, 2, 0, 0, 14),
            ("start",),
            ("pass", 1),
            ("hear",),
            ("clock", -3600),
            ("clock", -60),
            ("pass", 50),
            ("submit", "retry", 11, 200, "TIMEOUT", 0),
            ("hear",),
            ("submit", "whole", 3, 1, "OUT_OF_MEMORY", 2),
        ]
    )


def test_a_job_excludes_no_node_that_an_answer_of_slurm_lacked() -> None:
    # The model: such a node is as one that comes back into slurm.conf, and is excluded by the next pass.
    play(
        [
            ("site", 1802, 0, 2, 2, 14),
            ("start",),
            ("pass", 1),
            ("hear",),
            ("submit", "whole", 3, 1500, "COMPLETED", 0),
            ("submit", "whole", 3, 1500, "COMPLETED", 0),
            ("submit", "whole", 2, 1, "TIMEOUT", 0),
            ("submit", "whole", 10, 5, "NODE_FAIL", 0),
            ("fault", "partial", 0),
            ("pass", 1),
            ("write", 50),
        ]
    )


def test_an_array_whose_gpus_an_administrator_changed_leaves_its_place() -> None:
    # It was required to run on its old node, and no pass looked after it any more.
    play(
        [
            ("site", 1846, 2, 2, 4, 6),
            ("start",),
            ("pass", 1),
            ("hear",),
            ("submit", "array", 8, 60, "COMPLETED", 0),
            ("people", "gpus-alone", 6),
        ]
    )
