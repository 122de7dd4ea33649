# SPDX-License-Identifier: Apache-2.0
"""Plays the scripts of the faults that the whole world has found, each shrunk from its seed."""

from __future__ import annotations

from tests.world.whole.world import play_whole


def test_a_guest_that_started_since_the_last_reading_keeps_away_from_where_it_was_sent_away() -> None:
    # Its guard spoke in the moment of an Epilog's notice: the pin that this gave it took what it avoids away again.
    play_whole([
        ("site", 862, 1, 0, 2, 14, 241, 1, 1),
        ("start",),
        ("pass", 1),
        ("hear",),
        ("submit", "guest", 4, 200, "TIMEOUT", 0),
        ("submit", "guest", 9, 1, "NODE_FAIL", 0),
        ("submit", "guest", 5, 200, "COMPLETED", 1),
        ("people", "special-exit", 1),
        ("submit", "guest", 11, 60, "NODE_FAIL", 0),
        ("submit", "whole", 0, 20, "COMPLETED", 0),
        ("submit", "whole", 3, 200, "NODE_FAIL", 0),
        ("people", "hold", 0),
        ("submit", "guest", 11, 20, "TIMEOUT", 1),
        ("submit", "host", 5, 20, "TIMEOUT", 0),
    ])  # fmt: skip


def test_a_guest_that_leaves_as_its_gpu_is_needed_may_have_another_one_of_the_same_node() -> None:
    # The world's own fault: its guard says the same of it a moment later, which is no reason to avoid the node.
    play_whole([
        ("site", 284, 1, 2, 1, 3, 94, 1, 0),
        ("start",),
        ("on", "guard", 0),
        ("pass", 1),
        ("submit", "guest", 5, 20, "COMPLETED", 0),
        ("pass", 1),
        ("write", 50),
        ("submit", "whole", 6, 60, "COMPLETED", 0),
        ("pass", 1),
    ])  # fmt: skip


def test_a_guest_has_its_old_pin_until_a_pass_has_written_another() -> None:
    # The world's own fault: berthd made no pass within two minutes, or the next one could not read Slurm.
    play_whole([
        ("site", 115, 2, 1, 1, 14, 165, 1, 0),
        ("start",),
        ("pass", 1),
        ("on", "guard", 0),
        ("submit", "upgrade", 0, 20, "COMPLETED", 0),
        ("hear",),
        ("sched", 0),
        ("submit", "retry", 2, 200, "COMPLETED", 0),
        ("submit", "retry", 3, 5, "COMPLETED", 0),
        ("submit", "guest", 0, 5, "TIMEOUT", 0),
        ("wait", 100),
        ("wait", 100),
        ("sched", 1),
        ("wait", 1300),
        ("sched", 1),
    ])  # fmt: skip


def test_what_was_laid_for_a_job_that_could_not_share_goes_with_it() -> None:
    # Its Prolog came again and could not set the share up, and its Epilog was killed before it removed the words.
    play_whole([
        ("site", 592, 0, 2, 0, 14, 142, 1, 0),
        ("start",),
        ("pass", 1),
        ("hear",),
        ("on", "guard", 0),
        ("on", "guard", 1),
        ("submit", "host", 3, 200, "COMPLETED", 0),
        ("submit", "host", 1, 200, "COMPLETED", 0),
        ("submit", "host", 1, 200, "COMPLETED", 0),
        ("sched", 0),
        ("wait", 30),
        ("on", "again", "prolog", 8),
        ("on", "cut", "prolog", 3, 12),
        ("fault-of-change", "double", 0),
        ("pass", 50),
        ("control", 1),
        ("during-change", 2, "ends", 3),
        ("during-change", 0, "on", "run", "epilog", 11, 1),
        ("on", "cut", "epilog", 1, 6),
        ("write", 50),
        ("deliver", 1, "lose"),
        ("release", 1),
        ("deliver", 3, "keep"),
        ("on", "run", "epilog", 8, 30),
    ])  # fmt: skip


def test_a_share_does_not_start_where_a_guest_still_is() -> None:
    # Slurm does not count the guest: it started the share, and its node stopped it.
    play_whole([
        ("site", 852, 1, 1, 0, 14, 237, 1, 1),
        ("start",),
        ("pass", 1),
        ("hear",),
        ("submit", "host", 10, 200, "COMPLETED", 0),
        ("submit", "guest", 10, 5, "TIMEOUT", 0),
        ("submit", "upgrade", 10, 20, "TIMEOUT", 1),
        ("submit", "upgrade", 6, 60, "OUT_OF_MEMORY", 0),
        ("submit", "share", 7, 1, "COMPLETED", 1),
        ("submit", "guest", 10, 20, "TIMEOUT", 0),
        ("sched", 0),
        ("submit", "share", 9, 60, "COMPLETED", 0),
        ("sched", 0),
    ])  # fmt: skip


def test_an_upgrade_that_was_sent_away_does_not_start_on_its_old_seat() -> None:
    # It waited for a GPU of its own, and Slurm's record still had the pin to the seat.
    play_whole([
        ("site", 37, 1, 0, 0, 14, 255, 0, 0),
        ("submit", "gang", 1, 60, "COMPLETED", 0),
        ("start",),
        ("sched", 0),
        ("submit", "share", 5, 20, "COMPLETED", 0),
        ("pass", 50),
        ("hear",),
        ("submit", "retry", 11, 200, "OUT_OF_MEMORY", 2),
        ("submit", "upgrade", 10, 60, "NODE_FAIL", 0),
    ])  # fmt: skip


def test_nobody_gets_the_part_of_a_job_that_could_not_be_given_back() -> None:
    # The place was written before the job there was given back, and that answer was lost.
    play_whole([
        ("site", 216, 0, 0, 0, 14, 175, 2, 0),
        ("start",),
        ("pass", 1),
        ("hear",),
        ("node", "fewer-gpus", 4),
        ("submit", "share-array", 8, 1, "NODE_FAIL", 1),
        ("sched", 0),
        ("submit", "whole", 9, 5, "TIMEOUT", 1),
        ("wait", 30),
        ("node", "mute", 11),
        ("submit", "share", 6, 1, "TIMEOUT", 0),
        ("pass", 1),
        ("write", 50),
        ("sched", 0),
        ("fault-of-change", "lost", 2),
        ("submit", "share-array", 3, 20, "COMPLETED", 0),
        ("pass", 1),
        ("write", 50),
        ("sched", 0),
        ("wait", 30),
    ])  # fmt: skip


def test_nobody_joins_a_job_that_is_to_give_up_its_part_until_that_is_written() -> None:
    # The plan had it leave the GPU, so the next share was given its place there, and Slurm started both.
    play_whole([
        ("site", 300, 0, 2, 3, 14, 86, 0, 0),
        ("submit", "whole", 4, 200, "COMPLETED", 1),
        ("sched", 1),
        ("start",),
        ("submit", "share", 8, 20, "OUT_OF_MEMORY", 0),
        ("submit", "share", 3, 20, "OUT_OF_MEMORY", 0),
        ("submit", "share-array", 5, 20, "COMPLETED", 0),
        ("wait", 10),
        ("fault-of-change", "refuse", 1),
        ("on", "client", "crash", 10),
        ("wait", 3),
        ("sched", 0),
        ("pass", 1),
        ("hear",),
        ("submit", "share-array", 11, 1, "NODE_FAIL", 0),
        ("sched", 0),
        ("sched", 1),
        ("during", 4, "submit", "whole", 4, 20, "TIMEOUT", 0),
        ("wait", 1300),
        ("pass", 1),
        ("hear",),
        ("during", 0, "submit", "whole", 10, 5, "FAILED", 0),
        ("config-read",),
        ("submit", "share", 7, 200, "OUT_OF_MEMORY", 0),
        ("wait", 1),
        ("wait", 1),
        ("submit", "share-array", 7, 1, "NODE_FAIL", 0),
        ("sched", 0),
        ("wait", 30),
    ])  # fmt: skip


def test_a_gpu_that_is_lost_costs_no_guest_of_another_its_seat() -> None:
    # The driver was opened for all GPUs or for none, and a GPU without metrics keeps no guest.
    play_whole([
        ("site", 695, 1, 0, 0, 14, 226, 2, 1),
        ("start",),
        ("pass", 1),
        ("hear",),
        ("on", "guard", 2),
        ("submit", "host", 3, 200, "COMPLETED", 0),
        ("submit", "host", 1, 200, "COMPLETED", 0),
        ("submit", "host", 1, 200, "COMPLETED", 0),
        ("pass", 1),
        ("submit", "host", 5, 5, "TIMEOUT", 0),
        ("sched", 1),
        ("wait", 1),
        ("on", "cut", "prolog", 8, 258),
        ("wait", 1),
        ("pass", 2),
        ("on", "gpu", "lost", 2),
        ("pass", 2),
        ("wait", 1300),
        ("wait", 1300),
        ("pass", 1),
        ("hear",),
        ("submit", "guest", 10, 60, "COMPLETED", 0),
        ("sched", 1),
        ("config-read",),
        ("wait", 10),
    ])  # fmt: skip


def test_a_node_gives_the_share_that_was_asked_for_and_not_the_one_counted_for_memory() -> None:
    # A fault of the laws: they wanted the share that Slurm counts in the books of the node.
    play_whole([
        ("site", 917, 1, 0, 0, 14, 200, 1, 0),
        ("start",),
        ("pass", 1),
        ("hear",),
        ("submit", "share-memory-array", 2, 1, "TIMEOUT", 0),
        ("sched", 1),
        ("pass", 1),
        ("pass", 1),
        ("write", 50),
    ])  # fmt: skip


def test_an_array_whose_own_line_is_missing_closes_no_partition() -> None:
    # Its tasks were listed, and its own line was not: it was taken for one job.
    play_whole([
        ("site", 1827, 0, 2, 0, 14, 120, 0, 0),
        ("start",),
        ("pass", 1),
        ("hear",),
        ("submit", "gang", 2, 200, "COMPLETED", 0),
        ("submit", "array", 2, 5, "COMPLETED", 0),
        ("fault", "partial", 7),
        ("pass", 1),
        ("sched", 0),
        ("submit", "movable", 6, 200, "FAILED", 0),
        ("pass", 1),
        ("write", 50),
    ])  # fmt: skip


def test_the_epilog_of_an_earlier_run_that_comes_again_is_not_told_the_gpus_of_the_next_run() -> None:
    play_whole([
        ("site", 685, 2, 2, 1, 6, 115, 0, 1),
        ("start",),
        ("pass", 1),
        ("hear",),
        ("submit", "whole", 1, 60, "TIMEOUT", 0),
        ("during-change", 0, "ends", 1),
        ("submit", "share", 6, 200, "COMPLETED", 0),
        ("submit", "share-array", 11, 200, "COMPLETED", 1),
        ("submit", "whole", 6, 1, "COMPLETED", 0),
        ("submit", "whole", 5, 5, "COMPLETED", 0),
        ("sched", 0),
        ("wait", 1300),
        ("sched", 0),
        ("during-change", 0, "people", "expedite", 2),
        ("pass", 1),
        ("write", 50),
        ("wait", 1300),
        ("sched", 0),
        ("on", "again", "epilog", 0),
    ])  # fmt: skip


def test_an_owner_may_wait_for_a_guest_while_other_owners_have_its_other_gpus() -> None:
    # The world's own fault: it took the guest for all that was in the way.
    play_whole([
        ("site", 1945, 0, 1, 0, 14, 25, 2, 1),
        ("reserve", "counted", 5, 40000),
        ("start",),
        ("submit", "host", 6, 200, "FAILED", 1),
        ("pass", 1),
        ("during", 6, "people", "requeue-hold", 6),
        ("reserve", "counted", 10, 40000),
        ("write", 50),
        ("pass", 1),
        ("sched", 1),
        ("hear",),
        ("submit", "guest", 9, 200, "NODE_FAIL", 0),
        ("pass", 1),
        ("wait", 1300),
        ("submit", "guest", 3, 200, "NODE_FAIL", 1),
        ("submit", "guest", 11, 200, "NODE_FAIL", 1),
    ])  # fmt: skip
