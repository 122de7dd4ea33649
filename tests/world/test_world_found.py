# SPDX-License-Identifier: Apache-2.0
"""Plays the scripts of the faults that the world has found, each shrunk from its seed."""

from __future__ import annotations

import pytest

from tests.world.world import play


def test_places_that_were_given_outlive_a_node_that_leaves_the_cluster() -> None:
    # The answering process died: the number of the job's node meant none in the new fleet.
    play([
        ("site", 746, 1, 1),
        ("start",),
        ("pass", 1),
        ("hear",),
        ("node", "forget", 3),
        ("pass", 1),
        ("submit", "share", 6, 60, "COMPLETED", 0),
        ("hear",),
    ])  # fmt: skip


def test_moves_of_an_earlier_berthd_are_taken_over_though_one_look_for_them_fails() -> None:
    # It was looked for once, and a failed call was counted as a defect of the plan.
    play([
        ("site", 128, 0, 2),
        ("start",),
        ("fault", "lost", 7),
        ("pass", 2),
    ])  # fmt: skip


def test_release_gives_back_the_rest_of_an_array_of_which_a_task_runs() -> None:
    # By the array's number Slurm would mean the running task too, and refuses it.
    play([
        ("site", 862, 1, 2),
        ("start",),
        ("pass", 1),
        ("hear",),
        ("submit", "share-array", 6, 5, "COMPLETED", 0),
        ("sched", 1),
        ("release", 1),
    ])  # fmt: skip


def test_release_finds_a_job_whose_reservation_was_deleted() -> None:
    # Slurm shows it as RESV_DEL_HOLD, and squeue not among those that are PENDING.
    play([
        ("site", 0, 0, 0),
        ("start",),
        ("pass", 1),
        ("hear",),
        ("submit", "whole", 2, 60, "COMPLETED", 0),
        ("people", "reservation-gone", 0),
        ("release", 0),
    ])  # fmt: skip


@pytest.mark.parametrize("call", [3, 4])
def test_release_says_in_one_sentence_that_an_answer_was_cut_off(call: int) -> None:
    play([
        ("site", 0, 0, 2),
        ("start",),
        ("pass", 1),
        ("hear",),
        ("submit", "array", 8, 5, "COMPLETED", 0),
        ("fault", "cut", call),
        ("release", 1),
    ])  # fmt: skip


def test_a_job_that_starts_while_release_comes_to_it_is_no_failure() -> None:
    # Slurm said that it is no longer pending, and `berth release --all` ended with an error.
    play([
        ("site", 0, 0, 2),
        ("start",),
        ("pass", 1),
        ("hear",),
        ("submit", "whole", 2, 60, "COMPLETED", 0),
        ("during-change", 0, "sched", 0),
        ("release", 0),
    ])  # fmt: skip


def test_release_finds_a_job_that_ends_on_its_nodes_to_wait_again() -> None:
    # Slurm shows such a job as COMPLETING alone, and takes every change of it.
    play([
        ("site", 716, 1, 2, 0, 3),
        ("start",),
        ("pass", 2),
        ("hear",),
        ("submit", "alloc", 11, 1, "TIMEOUT", 0),
        ("sched", 0),
        ("people", "expedite", 0),
        ("release", 0),
    ])  # fmt: skip


def test_a_job_whose_node_has_left_costs_no_pass_where_models_are_counted() -> None:
    # Its list of excluded nodes was to be written anew, and the node it names was looked up in the new fleet.
    play([
        ("site", 669, 2, 2, 0, 6),
        ("node", "forget", 8),
        ("submit", "gang", 10, 200, "COMPLETED", 0),
        ("node", "drain", 2),
        ("start",),
        ("pass", 2),
        ("write", 1),
        ("node", "forget", 10),
        ("clock", 3600),
        ("pass", 50),
        ("write", 2),
    ])  # fmt: skip


def test_a_long_array_whose_tasks_run_one_by_one_is_no_job_that_does_not_start() -> None:
    # The world's own fault: the array took longer than the calm at the end.
    play([
        ("site", 280, 2, 1, 3, 14),
        ("submit", "array", 2, 5, "FAILED", 0),
        ("submit", "array", 6, 200, "OUT_OF_MEMORY", 0),
        ("sched", 1),
        ("submit", "array", 2, 200, "COMPLETED", 1),
        ("submit", "array", 10, 60, "COMPLETED", 1),
        ("submit", "array", 10, 200, "FAILED", 1),
        ("submit", "array", 11, 5, "COMPLETED", 0),
        ("config-read",),
    ])  # fmt: skip


def test_a_place_given_after_the_clock_was_set_back_is_no_others() -> None:
    # A reading from before the clock was set lacked the job, and looked late enough to show it.
    play([
        ("site", 1007, 1, 2, 0, 3),
        ("start",),
        ("pass", 1),
        ("hear",),
        ("pass", 1),
        ("clock", -60),
        ("submit", "retry", 9, 1, "NODE_FAIL", 0),
        ("hear",),
        ("submit", "movable", 6, 60, "NODE_FAIL", 0),
    ])  # fmt: skip


def test_nor_where_many_readings_from_before_come_late() -> None:
    play([
        ("site", 910, 0, 2, 0, 14),
        ("start",),
        ("pass", 2),
        ("hear",),
        ("config-read",),
        ("pass", 1),
        ("during", 4, "submit", "whole", 5, 200, "COMPLETED", 0),
        ("pass", 50),
        ("clock", -3600),
        ("submit", "retry", 6, 20, "COMPLETED", 0),
        ("hear",),
        ("pass", 2),
    ])  # fmt: skip


def test_a_pin_of_which_slurm_writes_the_nodes_alone_is_taken_back() -> None:
    # request and segment name other nodes, job 2
    play(
        [
            ("site", 54, 2, 0, 0, 6),
            ("start",),
            ("pass", 1),
            ("hear",),
            ("node", "mute", 7),
            ("fault-of-change", "half", 1),
            ("submit", "host", 4, 1, "FAILED", 0),
            ("submit", "whole", 0, 1, "NODE_FAIL", 0),
            ("pass", 2),
            ("write", 50),
        ]
    )


def test_release_leaves_a_request_that_was_changed_between_its_look_and_its_change() -> None:
    # Slurm refused the GPUs of the whole job beside new ones of each node, and release said that it kept its place.
    play([
        ("site", 984, 1, 0, 0, 14),
        ("start",),
        ("pass", 50),
        ("hear",),
        ("during-change", 0, "people", "gpus", 11),
        ("submit", "alloc", 1, 5, "OUT_OF_MEMORY", 0),
        ("release", 1),
    ])  # fmt: skip


@pytest.mark.parametrize("kind", ["whole", "alloc", "share", "nodelist", "gang"])
@pytest.mark.parametrize("when", [(), ("during-change", 0)])
def test_release_gives_back_the_nodes_of_a_job_whose_gpus_an_administrator_changed(
    kind: str, when: tuple[str | int, ...]
) -> None:
    # It had no typed GPUs any more, and was not looked for.
    play([
        ("site", 984, 1, 0, 0, 14),
        ("start",),
        ("pass", 50),
        ("hear",),
        ("submit", kind, 1, 5, "COMPLETED", 0),
        (*when, "people", "gpus-alone", 0),
        ("release", 1),
    ])  # fmt: skip


def test_a_guest_is_sent_away_with_the_record_that_it_has_by_now() -> None:
    # A pass had pinned it elsewhere since the last picture, and its guard spoke before the next one.
    play([
        ("site", 969, 2, 1, 0, 14),
        ("start",),
        ("pass", 1),
        ("hear",),
        ("submit", "movable", 1, 20, "NODE_FAIL", 0),
        ("submit", "movable", 3, 1, "TIMEOUT", 1),
        ("submit", "guest", 2, 200, "OUT_OF_MEMORY", 0),
        ("pass", 2),
        ("write", 50),
        ("sched", 0),
        ("guard", "fault", 4),
        ("epilog-ends", 11),
    ])  # fmt: skip


@pytest.mark.parametrize("person", ["no-requeue", "never-requeue"])
def test_an_owner_does_not_wait_for_a_guest_that_is_not_to_be_requeued(person: str) -> None:
    # berthd tried every 30 s for ever.
    play([
        ("site", 0, 0, 2),
        ("start",),
        ("pass", 1),
        ("hear",),
        ("submit", "guest", 0, 900, "COMPLETED", 0),
        ("sched", 1),
        ("people", person, 0),
        ("submit", "gang", 3, 900, "COMPLETED", 0),
        ("submit", "whole", 1, 900, "COMPLETED", 0),
    ])  # fmt: skip


def test_a_reason_is_not_written_over_a_release_that_a_stale_answer_hides() -> None:
    # The reading was older than `berth release`, and its segment was written with the reason.
    play([
        ("site", 429, 2, 0, 2, 14),
        ("start",),
        ("pass", 1),
        ("hear",),
        ("submit", "whole", 11, 60, "TIMEOUT", 0),
        ("during", 5, "sched", 1),
        ("submit", "whole", 4, 200, "COMPLETED", 1),
        ("pass", 1),
        ("release", 1),
        ("start",),
        ("fault", "stale", 4),
        ("wait", 1300),
        ("pass", 1),
        ("write", 50),
    ])  # fmt: skip


def test_shares_that_hold_more_memory_than_their_percent_are_counted_by_it() -> None:
    # They paid for 1 % and held all of the GPU's memory.
    play([
        ("site", 1, 0, 2),
        ("start",),
        ("pass", 1),
        ("hear",),
        *[("submit", kind, size, 60, "COMPLETED", 0) for kind in ("share-memory", "share", "share-memory-array")
          for size in (3, 4, 2, 8, 9)],
        ("pass", 1),
        ("write", 50),
        ("sched", 0),
        ("node", "down", 0),
        ("pass", 1),
        ("write", 50),
        ("sched", 1),
    ])  # fmt: skip


def test_a_task_that_slurm_shows_with_its_arrays_limit_opens_no_partition() -> None:
    # The model: backfill starts it, as on plain Slurm.
    play(
        [
            ("site", 57, 2, 2, 3, 14),
            ("start",),
            ("pass", 1),
            ("hear",),
            ("submit", "whole", 3, 1500, "COMPLETED", 0),
            ("submit", "whole", 3, 1500, "COMPLETED", 0),
            ("submit", "whole", 3, 1500, "COMPLETED", 0),
            ("submit", "whole", 1, 1500, "COMPLETED", 0),
            ("pass", 1),
            ("write", 50),
            ("sched", 0),
            ("submit", "array", 10, 5, "NODE_FAIL", 0),
            ("epilog", 1),
            ("fault-of-change", "late", 0),
            ("submit", "whole", 11, 200, "FAILED", 0),
            ("submit", "whole", 0, 1, "COMPLETED", 0),
            ("submit", "array", 5, 20, "FAILED", 0),
            ("submit", "share", 7, 1, "TIMEOUT", 0),
            ("submit", "nodelist", 11, 200, "COMPLETED", 0),
            ("hear",),
            ("submit", "share", 9, 60, "COMPLETED", 1),
            ("submit", "whole", 0, 60, "COMPLETED", 1),
            ("fault", "partial", 0),
            ("node", "down", 7),
            ("wait", 10),
            ("submit", "whole", 11, 5, "OUT_OF_MEMORY", 0),
            ("reserve", "nodes", 4, 40000),
            ("hear",),
            ("clock", 3600),
            ("submit", "share", 9, 5, "COMPLETED", 2),
            ("outage", 10),
            ("degrade", 11),
            ("release", 1),
            ("fault-of-change", "stale", 0),
            ("wait", 1),
            ("people", "no-requeue", 7),
            ("epilog-ends", 0),
            ("people", "hold", 9),
            ("hear",),
            ("pass", 2),
            ("submit", "nodelist", 3, 60, "COMPLETED", 0),
            ("unreserve", "counted", 6, 40000),
            ("people", "exclude", 9),
        ]
    )


def test_an_owner_excludes_nodes_just_as_a_closing_job_is_to_get_another_place() -> None:
    # The model: that update requires its nodes again.
    play(
        [
            ("site", 1412, 2, 1, 1, 14),
            ("start",),
            ("pass", 1),
            ("hear",),
            ("submit", "whole", 3, 1500, "COMPLETED", 0),
            ("submit", "whole", 3, 1500, "COMPLETED", 0),
            ("submit", "whole", 3, 1500, "COMPLETED", 0),
            ("submit", "whole", 10, 60, "COMPLETED", 0),
            ("submit", "whole", 10, 200, "COMPLETED", 2),
            ("submit", "gang", 8, 5, "COMPLETED", 0),
            ("pass", 1),
            ("write", 50),
            ("node", "reboot", 4),
            ("people", "exclude", 10),
            ("pass", 50),
        ]
    )


def test_an_owner_may_wait_for_its_array_while_a_guest_has_its_gpus() -> None:
    # The model: with a limit of the array in its way it does not wait for the guest.
    play(
        [
            ("site", 996, 1, 0, 2, 14),
            ("start",),
            ("pass", 1),
            ("hear",),
            ("submit", "guest", 6, 200, "FAILED", 0),
            ("submit", "array", 10, 60, "COMPLETED", 0),
            ("submit", "guest", 0, 1, "TIMEOUT", 0),
            ("sched", 0),
            ("clock", -60),
            ("reserve", "types", 11, 40000),
        ]
    )


def test_an_owner_excludes_nodes_while_an_update_of_the_lists_is_on_its_way() -> None:
    # The model: an update of Slurm cannot say which list it replaces, so the later one stands.
    play(
        [
            ("site", 1799, 0, 0, 0, 14),
            ("start",),
            ("pass", 1),
            ("hear",),
            ("submit", "whole", 3, 1500, "COMPLETED", 0),
            ("submit", "whole", 3, 1500, "COMPLETED", 0),
            ("submit", "whole", 3, 1500, "COMPLETED", 0),
            ("submit", "whole", 1, 1500, "COMPLETED", 0),
            ("during-change", 2, "people", "exclude", 9),
            ("submit", "share", 10, 60, "TIMEOUT", 0),
            ("submit", "share", 5, 5, "COMPLETED", 0),
            ("sched", 1),
            ("submit", "share", 1, 5, "TIMEOUT", 2),
            ("submit", "nodelist", 7, 5, "FAILED", 0),
            ("pass", 2),
            ("write", 2),
            ("pass", 50),
            ("submit", "whole", 9, 1, "COMPLETED", 0),
            ("write", 1),
            ("pass", 1),
            ("write", 50),
            ("release", 0),
        ]
    )


def test_a_retried_task_that_avoids_its_node_passes_no_reservation() -> None:
    # Its node was not for it any more, so the plan took it for a job without a pin and left the pin.
    play(
        [
            ("site", 1387, 0, 0, 1, 14),
            ("during", 1, "submit", "share-memory", 8, 5, "COMPLETED", 0),
            ("submit", "share-memory", 7, 20, "OUT_OF_MEMORY", 0),
            ("submit", "array", 8, 1, "TIMEOUT", 0),
            ("start",),
            ("pass", 1),
            ("node", "fewer-gpus", 9),
            ("hear",),
            ("sched", 0),
            ("submit", "share-memory-array", 9, 20, "COMPLETED", 0),
            ("sched", 0),
            ("pass", 50),
            ("write", 1),
            ("sched", 1),
            ("degrade", 8),
            ("during-change", 2, "reserve", "nodes", 9, 40000),
            ("release", 1),
            ("reserve", "counted", 10, 40000),
        ]
    )


def test_a_guest_is_not_ended_because_calls_got_no_answer() -> None:
    play(
        [
            ("site", 727, 2, 0, 2, 3),
            ("start",),
            ("pass", 1),
            ("hear",),
            ("submit", "guest", 0, 60, "OUT_OF_MEMORY", 0),
            ("reserve", "nodes", 1, 40000),
            ("node", "power-off-soon", 2),
            ("sched", 0),
            ("fault-of-change", "late", 0),
            ("submit", "share-array", 6, 5, "NODE_FAIL", 0),
            ("node", "drain", 4),
            ("fault-of-change", "lost", 2),
            ("pass", 2),
            ("write", 1),
            ("pass", 1),
            ("write", 50),
        ]
    )


def test_what_puts_a_half_written_change_right_is_tried_again() -> None:
    play(
        [
            ("site", 914, 0, 2, 0, 14),
            ("start",),
            ("pass", 2),
            ("fault-of-change", "refuse", 1),
            ("during", 6, "submit", "gang", 9, 5, "COMPLETED", 0),
            ("hear",),
            ("during-change", 0, "node", "forget", 9),
            ("config-read",),
            ("config-read",),
            ("pass", 1),
            ("pass", 2),
            ("write", 1),
            ("release", 1),
        ]
    )


def test_nor_do_tasks_that_slurm_shows_in_one_record_with_their_arrays_limit() -> None:
    # The world's own fault: it knew the limit of a record of one task alone.
    play([
        ("site", 539, 1, 0, 0, 14),
        ("start",),
        ("pass", 1),
        ("hear",),
        ("submit", "gang", 11, 1, "NODE_FAIL", 0),
        ("clock", 60),
        ("submit", "gang", 3, 5, "NODE_FAIL", 0),
        ("submit", "share-array", 9, 200, "TIMEOUT", 0),
        ("submit", "share-array", 2, 5, "NODE_FAIL", 0),
        ("sched", 1),
        ("sched", 0),
    ])  # fmt: skip


def test_a_pin_in_a_hurry_leaves_a_list_of_excluded_nodes_that_no_reading_has_shown() -> None:
    # The place was written over the list that the user had given since the last look.
    play([
        ("site", 735, 1, 1, 2, 14),
        ("submit", "whole", 3, 1500, "COMPLETED", 0),
        ("submit", "whole", 3, 1500, "COMPLETED", 0),
        ("submit", "whole", 3, 1500, "COMPLETED", 0),
        ("fault-of-change", "late", 2),
        ("submit", "whole", 3, 200, "TIMEOUT", 1),
        ("sched", 1),
        ("submit", "share", 7, 1, "COMPLETED", 1),
        ("submit", "whole", 0, 20, "COMPLETED", 1),
        ("start",),
        ("clock", 3600),
        ("pass", 50),
        ("write", 2),
        ("write", 1),
        ("wait", 1),
        ("epilog", 11),
        ("people", "exclude", 0),
        ("deliver", 5, "with-next"),
        ("release", 1),
    ])  # fmt: skip


def test_a_node_that_came_back_is_open_to_a_closing_job_until_its_move_is_written() -> None:
    # The law wanted a new list, or the nodes of the next place, at the end of the pass that planned the move.
    play([
        ("site", 1937, 1, 1, 0, 14),
        ("submit", "upgrade", 8, 20, "NODE_FAIL", 0),
        ("submit", "gang", 6, 5, "COMPLETED", 1),
        ("reserve", "nodes", 8, 300),
        ("submit", "share", 5, 200, "OUT_OF_MEMORY", 0),
        ("node", "forget", 3),
        ("sched", 1),
        ("submit", "guest", 8, 5, "COMPLETED", 0),
        ("submit", "share", 3, 20, "TIMEOUT", 0),
        ("start",),
        ("pass", 1),
        ("write", 50),
        ("pass", 1),
        ("write", 50),
    ])  # fmt: skip
