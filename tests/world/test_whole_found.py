# SPDX-License-Identifier: Apache-2.0
"""Plays the scripts of the faults that the whole world has found, each shrunk from its seed."""

from __future__ import annotations

from tests.world.nodes.invariants import read_books
from tests.world.whole.world import WholeWorld, play_whole


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


def test_a_guest_stays_while_its_gpu_is_kept_for_a_job_before_the_owner_that_has_its_place_there() -> None:
    # The law wanted the guest to go for that owner, which Slurm's order keeps from starting.
    play_whole([
        ("site", 1575, 0, 1, 0, 14, 162, 2, 2),
        ("start",),
        ("pass", 1),
        ("hear",),
        ("on", "guard", 0),
        ("on", "guard", 1),
        ("on", "guard", 2),
        ("submit", "host-mps", 3, 200, "COMPLETED", 0),
        ("submit", "host-mps", 1, 200, "COMPLETED", 0),
        ("submit", "host-mps", 1, 200, "COMPLETED", 0),
        ("pass", 1),
        ("write", 50),
        ("sched", 0),
        ("wait", 30),
        ("pass", 1),
        ("hear",),
        ("fault-of-change", "slow", 1),
        ("submit", "host", 11, 1, "COMPLETED", 1),
        ("pass", 1),
        ("write", 50),
        ("sched", 0),
        ("during", 5, "hear"),
        ("reserve", "counted", 7, 40),
        ("submit", "host-mps", 5, 1, "COMPLETED", 0),
        ("on", "run", "prolog", 0, 300),
        ("write", 2),
        ("unreserve", "types", 7, 40000),
        ("node", "maintain", 7),
        ("write", 1),
        ("on", "run", "", 0, 1),
        ("node", "resume", 4),
        ("on", "mps", "fault", 5),
        ("during", 7, "unreserve", "cores", 4, 40000),
        ("write", 1),
        ("write", 50),
        ("on", "run", "guard", 10, 100),
        ("on", "run", "prolog", 2, 300),
        ("on", "run", "epilog", 3, 100),
        ("pass", 1),
        ("submit", "host-mps", 7, 5, "FAILED", 0),
        ("on", "run", "", 3, 300),
        ("submit", "guest-mps", 1, 60, "FAILED", 0),
        ("pass", 1),
        ("write", 50),
        ("sched", 0),
        ("on", "go"),
        ("on", "run", "", 6, 1),
        ("wait", 10),
        ("wait", 3),
        ("write", 2),
        ("submit", "guest-mps", 1, 200, "FAILED", 0),
        ("submit", "host", 2, 200, "OUT_OF_MEMORY", 1),
        ("node", "resume", 8),
        ("on", "run", "epilog", 0, 3),
        ("on", "run", "guard", 8, 300),
        ("submit", "host-mps", 1, 5, "COMPLETED", 1),
        ("pass", 1),
        ("write", 50),
        ("sched", 0),
        ("during", 3, "unreserve", "cores", 7, 40),
        ("submit", "host-mps", 5, 60, "COMPLETED", 0),
        ("pass", 1),
        ("write", 50),
        ("sched", 0),
        ("wait", 30),
        ("wait", 1300),
        ("node", "reboot", 3),
        ("wait", 3),
        ("on", "slurm", "out"),
        ("on", "guard", 10),
        ("submit", "host", 8, 5, "COMPLETED", 0),
        ("during", 3, "node", "drain", 2),
        ("submit", "host", 1, 60, "OUT_OF_MEMORY", 1),
        ("on", "guard", 6),
        ("wait", 30),
        ("on", "mps", "server-dies", 6),
        ("fault-of-change", "stale", 2),
        ("submit", "guest-mps", 7, 60, "NODE_FAIL", 0),
        ("pass", 1),
        ("write", 50),
        ("sched", 0),
        ("wait", 10),
        ("pass", 50),
        ("on", "again", "prolog", 10),
        ("wait", 1),
        ("wait", 10),
        ("wait", 30),
        ("wait", 1),
        ("write", 1),
        ("on", "go"),
        ("on", "run", "epilog", 1, 300),
        ("reserve", "counted", 2, 40000),
        ("write", 2),
        ("people", "expedite", 0),
        ("submit", "guest-mps", 11, 200, "COMPLETED", 2),
        ("pass", 1),
        ("write", 50),
        ("sched", 0),
        ("submit", "host", 11, 5, "COMPLETED", 2),
        ("during", 0, "reserve", "nodes", 1, 300),
        ("during", 1, "sched", 0),
        ("wait", 10),
        ("on", "mps", "refuses", 5),
        ("wait", 1300),
        ("submit", "guest-mps", 0, 20, "COMPLETED", 0),
        ("pass", 1),
        ("write", 50),
        ("sched", 0),
        ("sched", 1),
        ("write", 2),
        ("unreserve", "counted", 10, 40000),
        ("pass", 50),
        ("wait", 30),
        ("submit", "host-mps", 1, 5, "COMPLETED", 1),
        ("pass", 1),
        ("write", 50),
        ("sched", 0),
        ("during", 7, "people", "gpus-alone", 8),
        ("wait", 10),
        ("on", "mps", "hangs", 1),
        ("fault-of-change", "late", 1),
        ("wait", 3),
        ("pass", 50),
        ("during", 0, "people", "limit", 3),
        ("node", "maintain", 0),
        ("wait", 30),
        ("on", "mps", "fault", 10),
        ("write", 1),
        ("on", "run", "prolog", 7, 3),
        ("hear",),
        ("wait", 100),
        ("wait", 30),
        ("hear",),
        ("start",),
        ("submit", "host", 2, 20, "COMPLETED", 0),
        ("pass", 1),
        ("write", 50),
        ("sched", 0),
        ("wait", 100),
        ("on", "run", "guard", 8, 1),
        ("hear",),
        ("wait", 1),
        ("pass", 1),
        ("wait", 100),
        ("on", "slurm", "out"),
        ("submit", "guest-mps", 7, 5, "NODE_FAIL", 0),
        ("wait", 100),
        ("during", 1, "people", "gpus-alone", 0),
        ("wait", 100),
        ("submit", "host-mps", 5, 200, "OUT_OF_MEMORY", 0),
        ("submit", "host", 3, 200, "OUT_OF_MEMORY", 1),
        ("on", "run", "epilog", 6, 300),
        ("during", 4, "on", "run", "prolog", 7, 1),
        ("on", "run", "prolog", 10, 1),
        ("wait", 10),
        ("write", 2),
        ("pass", 2),
        ("submit", "guest-mps", 11, 200, "TIMEOUT", 0),
        ("pass", 1),
        ("write", 50),
        ("sched", 0),
        ("fault-of-change", "slow", 0),
        ("submit", "guest-mps", 11, 60, "FAILED", 0),
        ("pass", 1),
        ("write", 50),
        ("sched", 0),
        ("submit", "host-mps", 2, 60, "TIMEOUT", 2),
        ("submit", "host-mps", 9, 5, "COMPLETED", 2),
        ("pass", 1),
        ("write", 50),
        ("sched", 0),
        ("deliver", 2, ""),
        ("wait", 1),
        ("node", "maintain", 6),
        ("wait", 1),
        ("on", "slurm", "back"),
        ("wait", 1),
        ("on", "run", "prolog", 1, 1),
        ("reserve", "nodes", 2, 300),
        ("wait", 100),
        ("write", 50),
        ("on", "run", "epilog", 9, 3),
        ("on", "client", "fork", 0),
        ("submit", "guest-mps", 8, 5, "COMPLETED", 0),
        ("write", 50),
        ("on", "run", "", 8, 100),
        ("fault-of-change", "double", 2),
        ("during", 5, "sched", 1),
        ("fault-of-change", "lost", 2),
        ("write", 50),
        ("wait", 1),
        ("wait", 100),
        ("wait", 10),
        ("during", 3, "submit", "host-mps", 11, 5, "TIMEOUT", 1),
        ("reserve", "types", 2, 300),
        ("wait", 3),
        ("wait", 10),
        ("on", "mps", "missing", 10),
        ("deliver", 1, "with-next"),
        ("fault-of-change", "lost", 0),
    ])  # fmt: skip


def test_a_guest_that_is_to_share_by_time_starts_in_one_moment_with_an_owner_under_mps() -> None:
    # The world's own fault: nothing ran there when the guest got its seat, and berthd gives it another one.
    play_whole([
        ("site", 525, 0, 1, 3, 14, 2, 1, 1),
        ("start",),
        ("pass", 1),
        ("hear",),
        ("submit", "host-mps", 1, 200, "COMPLETED", 0),
        ("submit", "host-mps", 1, 200, "COMPLETED", 0),
        ("submit", "host", 7, 20, "COMPLETED", 0),
        ("submit", "host-mps", 4, 60, "FAILED", 0),
        ("submit", "guest-mps", 6, 5, "COMPLETED", 0),
        ("submit", "host-mps", 4, 200, "COMPLETED", 0),
        ("sched", 0),
        ("wait", 30),
    ])  # fmt: skip


def test_a_share_that_a_node_refuses_for_an_mps_fault_that_berthd_forgot_goes_to_another_node() -> None:
    # Guards told berthd of the fault of user 1002 before it was started anew.
    passes = ("pass", 1), ("write", 50), ("sched", 0), ("wait", 30)
    share = ("submit", "share", 0, 1_500, "COMPLETED", 0)
    with WholeWorld() as world:
        world.play(
            [
                ("site", 1, 0, 2, 0, 14, 0, 2, 0),
                *(("start",), ("pass", 1), ("hear",)),
                *(("on", "guard", number) for number in range(3)),
                *(share, *passes, share, *passes, ("wait", 100)),
                *(("on", "mps", "fault", 2), ("wait", 30), *passes, ("wait", 1_300), *passes, ("wait", 1_300)),
                *(("kill", 1), ("start",), ("pass", 1), ("hear",)),
                *(share, *passes, share, *passes, *passes, ("wait", 1_300), *passes),
            ],
            calm=False,
        )
        refused = [run for run in world.nodes.slurm.past if run.stopped]
        moved = world.cluster.jobs[4]
    assert [(run.job.id, run.node) for run in refused] == [(4, "n3")]
    assert (moved.state, moved.nodes) == ("RUNNING", ("n2",))
    assert "n3%20could%20not%20set%20its%20share%20up" in moved.admin_comment


def test_reasons_and_moves_wait_for_a_plan_of_the_nodes_that_are_there() -> None:
    # A hint of an ended job was read when a node had come back: the plan still numbered the nodes without it.
    play_whole(
        [
            ("site", 888, 0, 2, 0, 14, 240, 1, 0),
            ("start",),
            ("pass", 1),
            ("hear",),
            ("reserve", "nodes", 10, 40000),
            ("submit", "nodelist", 1, 5, "COMPLETED", 0),
            ("submit", "nodelist", 4, 5, "TIMEOUT", 0),
            ("wait", 1300),
            ("node", "forget", 11),
            ("pass", 1),
            ("submit", "nodelist", 3, 5, "NODE_FAIL", 0),
            ("node", "recall", 7),
            ("sched", 1),
            ("wait", 10),
            ("wait", 30),
            ("wait", 10),
            ("write", 2),
        ]
    )


def test_the_share_of_a_run_whose_epilog_was_lost_goes_though_its_job_runs_on_another_node() -> None:
    # No seed found it: the guard did not run while the job waited. Slurm had the job, and so the share stayed.
    passes = ("pass", 1), ("write", 50), ("sched", 0), ("wait", 30)
    share = ("submit", "share", 0, 1_500, "COMPLETED", 0)
    with WholeWorld() as world:
        world.play(
            [
                ("site", 1, 0, 2, 0, 14, 2, 2, 0),
                *(("start",), ("pass", 1), ("hear",), ("on", "guard", 0), ("on", "guard", 1)),
                # The second one's script keeps the first one's Epilog waiting.
                *(share, *passes, ("on", "script", "hangs", 0), share, *passes[:3]),
                *(("people", "requeue", 0), ("on", "kill", "epilog", 0), ("node", "down", 2)),
                *(("on", "script", "works", 0), *passes, *passes, ("wait", 1_300), *passes, ("wait", 1_300)),
                *(("node", "resume", 2), ("on", "guard", 2), ("wait", 1_300)),
            ],
            calm=False,
        )
        job, books = world.cluster.jobs[1], read_books(world.nodes.side.machines["n3"])
    assert (job.state, job.nodes) == ("RUNNING", ("n2",))
    assert books == {}
