# SPDX-License-Identifier: Apache-2.0
"""Plays the scripts of the faults that the world has found in the programs of a node, each shrunk from its seed."""

from __future__ import annotations

import pytest

from tests.world.nodes.invariants import read_books
from tests.world.nodes.world import NodeWorld, play_nodes


def test_a_compute_mode_that_could_not_be_restored_is_restored_later() -> None:
    # The driver failed in an Epilog: the books were closed, and the GPU stayed exclusive for ever.
    play_nodes([
        ("site", 41, 1, 8),
        ("submit", "share", 2, 5, 60, 0),
        ("sched",),
        ("wait", 20),
        ("people", "end", 10),
        ("gpu", "fails", 3),
        ("wait", 20),
    ])  # fmt: skip


@pytest.mark.parametrize("violation", [4, 8])
def test_an_owner_is_not_ended_while_its_guest_saves_its_work(violation: int) -> None:
    # The audit took it for a stranger on a shared GPU, and ended its processes or requeued it.
    play_nodes([
        ("site", violation | 64 | 128, 0, 8),
        ("guard", 0),
        ("wait", 20),
        ("submit", "guest", 0, 0, 60, 0),
        ("sched",),
        ("wait", 50),
        ("submit", "whole", 0, 4, 60, 1),
        ("sched",),
        ("wait", 150),
    ])  # fmt: skip


def test_an_owner_finds_its_gpu_though_mps_still_serves_the_guest_that_has_to_go() -> None:
    # The GPU was in exclusive mode until the guest's Epilog.
    play_nodes([
        ("site", 64, 0, 8),
        ("guard", 0),
        ("wait", 20),
        ("submit", "guest", 0, 11, 60, 1),
        ("sched",),
        ("wait", 100),
        ("submit", "whole", 0, 11, 20, 1),
        ("sched",),
        ("wait", 100),
    ])  # fmt: skip


@pytest.mark.parametrize("operations", range(21, 29))
def test_an_epilog_that_is_killed_leaves_nothing_that_the_guard_does_not_find(operations: int) -> None:
    # The share file went first, and by it alone the guard found the job's words.
    play_nodes([
        ("site", 128, 0, 5),
        ("submit", "guest", 0, 7, 50, 1),
        ("sched",),
        ("wait", 10),
        ("people", "end", 0),
        ("cut", "epilog", 0, operations),
    ])  # fmt: skip


@pytest.mark.parametrize("operations", range(18, 30))
def test_a_job_that_is_over_is_in_no_list_for_monitoring_though_its_epilog_was_killed(operations: int) -> None:
    # It was out of the node's own list first, so nobody knew that a file still named it; nor were drafts removed.
    play_nodes([
        ("site", 32, 0, 5),
        ("submit", "share", 0, 1, 50, 1),
        ("sched",),
        ("wait", 10),
        ("people", "end", 0),
        ("cut", "epilog", 0, operations),
    ])  # fmt: skip


def test_a_guard_that_cannot_begin_says_so_in_one_sentence() -> None:
    # /run was full: it ended with a traceback.
    play_nodes([
        ("site", 0, 0, 5),
        ("submit", "share", 0, 2, 20, 0),
        ("sched",),
        ("wait", 20),
        ("disk", "full", 0),
        ("guard", 0),
        ("wait", 20),
    ])  # fmt: skip


def test_shares_by_time_are_not_added_up_on_a_node() -> None:
    # The world's own fault: the tenant of a lost Epilog holds nothing there, and goes with the guard's next look.
    play_nodes([
        ("site", 137, 2, 8),
        ("submit", "share", 0, 9, 1, 0),
        ("wait", 50),
        ("cut", "epilog", 11, 21),
        ("submit", "share", 0, 9, 200, 0),
        ("wait", 50),
    ])  # fmt: skip


def test_an_owner_that_takes_a_lost_guest_out_of_the_books_leaves_nothing_of_it() -> None:
    # The words of the guest stayed for ever.
    play_nodes([
        ("site", 128, 0, 5),
        ("submit", "guest", 1, 2, 60, 0),
        ("sched",),
        ("wait", 10),
        ("people", "end", 0),
        ("kill", "epilog", 0),
        ("submit", "whole", 1, 3, 20, 1),
        ("wait", 50),
    ])  # fmt: skip


@pytest.mark.parametrize("what", ["fails", "lost"])
def test_a_driver_that_fails_keeps_no_guard_from_taking_back_what_a_lost_epilog_left(what: str) -> None:
    # The audit's error ended each look before lost Epilogs and MPS were looked after, on all GPUs.
    with NodeWorld() as world:
        world.play(
            [
                ("site", 0, 0, 5),
                ("guard", 0),
                ("submit", "share", 1, 2, 60, 0),
                ("submit", "share", 0, 8, 200, 0),
                ("sched",),
                ("wait", 100),
                ("people", "end", 0),
                ("kill", "epilog", 0),
                ("gpu", what, 0),
                ("wait", 700),
                ("wait", 700),
            ],
            calm=False,
        )
        booked = [job for tenants in read_books(world.side.machines["n1"]).values() for job in tenants]
    assert booked == [2]


def test_a_guest_whose_host_comes_while_its_prolog_runs_joins_it() -> None:
    # It had found no host under MPS, and then MPS in the books of its GPU: berthd was told to place it elsewhere.
    play_nodes([
        ("site", 72, 2, 5),
        ("submit", "guest", 0, 4, 20, 0),
        ("submit", "host", 0, 4, 200, 0),
        ("sched",),
        ("run", "prolog", 1, 30),
        ("run", "prolog", 5, 1),
        ("run", "prolog", 9, 30),
        ("wait", 50),
    ])  # fmt: skip


@pytest.mark.parametrize("first", [0, 1])
@pytest.mark.parametrize("kinds", [("host", "guest"), ("guest", "host")], ids="-".join)
def test_a_host_and_a_guest_that_start_at_the_same_moment_have_their_shares(kinds: tuple[str, str], first: int) -> None:
    # One Prolog stops after so many calls of the kernel's, and the other one runs to its end. It looked at the books
    # first, and then found them changed: one of the two was stopped.
    for calls in range(38, 88, 3):
        with NodeWorld() as world:
            world.play(
                [
                    ("site", 72, 2, 5),
                    *(("submit", kind, 0, 4, 200, 0) for kind in kinds),
                    ("sched",),
                    ("run", "prolog", first, calls),
                    ("run", "prolog", 1 - first, 300),
                    ("wait", 50),
                ],
                calm=False,
            )
            booked = [job for tenants in read_books(world.side.machines["n1"]).values() for job in tenants]
        assert sorted(booked) == [1, 2]


def test_a_guard_that_starts_late_sends_nobody_away_for_an_owner_that_has_gone() -> None:
    play_nodes([
        ("site", 244, 2, 3),
        ("guard", 6),
        ("submit", "guest", 0, 11, 200, 0),
        ("wait", 50),
        ("submit", "whole", 0, 10, 5, 0),
        ("stop", 2),
        ("wait", 200),
        ("wait", 100),
        ("wait", 100),
        ("wait", 700),
        ("guard", 0),
        ("wait", 700),
    ])  # fmt: skip


def test_a_guard_that_stood_still_sends_nobody_away_for_an_owner_that_has_gone() -> None:
    with NodeWorld() as world:
        world.play(
            [
                ("site", 244, 2, 3),
                ("guard", 6),
                ("submit", "guest", 0, 11, 200, 0),
                ("wait", 50),
                ("submit", "whole", 0, 10, 5, 0),
                ("hang", "guard", 0),
                ("wait", 200),
                ("wait", 100),
                ("wait", 100),
                ("go",),
                ("wait", 100),
            ],
            calm=False,
        )
        whole, told = world.cluster.jobs[2], [text for _, text in world.side.told if "word=evict" in text]
    assert (whole.state, told) == ("COMPLETED", [])


def test_a_guest_whose_prolog_runs_twice_keeps_its_share_though_its_host_has_gone() -> None:
    # While it looked like one without a share, a job with the whole GPU came, and was left with the guest's MPS.
    play_nodes([
        ("site", 108, 1, 8),
        ("submit", "share", 0, 8, 200, 0),
        ("submit", "host", 0, 4, 1, 0),
        ("submit", "guest", 0, 8, 60, 0),
        ("wait", 200),
        ("client", "crash", 8),
        ("submit", "guest", 1, 0, 5, 0),
        ("wait", 1),
        ("wait", 3),
        ("sched",),
        ("people", "requeue", 5),
        ("wait", 20),
        ("submit", "whole", 0, 7, 1, 0),
        ("again", "prolog", 1),
        ("wait", 50),
        ("wait", 100),
    ])  # fmt: skip


@pytest.mark.parametrize("size", [11, 1, 9])
def test_a_job_that_ends_during_its_prolog_tells_a_sites_scripts_the_gpus_that_slurm_names(size: int) -> None:
    # On one node, on two, and on two with both GPUs of each: on two Slurm had forgotten them, and "no GPU" was told.
    play_nodes([
        ("site", 347, 1, 8),
        ("submit", "whole", 4, size, 200, 0),
        ("sched",),
        ("people", "end", 7),
        ("wait", 700),
    ])  # fmt: skip


def test_an_epilog_that_is_repeated_once_its_job_waits_again_tells_the_gpu_that_slurm_names() -> None:
    # The world's law wanted both GPUs. The first Epilog was told them, and by the second Slurm has forgotten them.
    play_nodes([
        ("site", 474, 1, 3),
        ("submit", "whole", 2, 0, 200, 0),
        ("sched",),
        ("people", "requeue", 2),
        ("wait", 10),
        ("again", "epilog", 8),
        ("run", "", 4, 30),
    ])  # fmt: skip


def test_an_epilog_that_is_repeated_after_a_boot_may_tell_the_numbers_that_gpus_had_before() -> None:
    # The world's law wanted the new ones. The run is over, and Slurm names the last of the old ones alone.
    play_nodes([
        ("site", 415, 2, 5),
        ("guard", 0),
        ("submit", "whole", 0, 3, 1, 0),
        ("wait", 200),
        ("node", "reboot", 2),
        ("wait", 700),
        ("wait", 700),
        ("wait", 700),
        ("again", "epilog", 11),
        ("wait", 50),
    ])  # fmt: skip


def test_a_run_whose_epilog_was_lost_leaves_the_books_though_a_later_one_left_a_file() -> None:
    # Both Prologs of the job were cut off, and its first Epilog: by the second run's file the guard left the first one.
    play_nodes([
        ("site", 379, 0, 8),
        ("submit", "share", 1, 7, 60, 1),
        ("submit", "share", 0, 3, 60, 0),
        ("sched",),
        ("submit", "share", 4, 5, 60, 0),
        ("cut", "prolog", 10, 15),
        ("cut", "prolog", 2, 15),
        ("people", "cancel", 9),
        ("cut", "epilog", 11, 28),
        ("run", "", 10, 100),
        ("cut", "epilog", 1, 14),
        ("node", "resume", 0),
        ("submit", "share", 0, 1, 200, 0),
        ("people", "cancel", 6),
        ("people", "cancel", 9),
        ("sched",),
        ("submit", "share", 0, 1, 1, 0),
        ("cut", "prolog", 6, 155),
        ("people", "end", 0),
        ("run", "epilog", 8, 300),
        ("cut", "epilog", 11, 52),
        ("sched",),
        ("cut", "prolog", 7, 84),
        ("submit", "share", 0, 8, 20, 0),
        ("submit", "share", 4, 0, 5, 0),
        ("cut", "epilog", 7, 21),
        ("node", "resume", 0),
        ("people", "begin", 9),
        ("sched",),
        ("cut", "prolog", 8, 28),
        ("cut", "epilog", 3, 38),
    ])  # fmt: skip


def test_a_user_whose_program_brought_mps_down_shares_no_gpu_though_berthd_does_not_know() -> None:
    # The world's law wanted the share. The node refuses it for an hour, and berthd moves the job.
    with NodeWorld() as world:
        world.play([
            ("site", 387, 2, 5),
            ("submit", "share", 4, 9, 60, 0),
            ("guard", 2),
            ("wait", 200),
            ("mps", "fault", 10),
            ("wait", 700),
            ("wait", 700),
            ("wait", 700),
            ("submit", "share", 0, 11, 60, 0),
            ("submit", "share", 0, 2, 1, 1),
            ("wait", 50),
        ])  # fmt: skip
        refused = [run for run in world.slurm.past if run.stopped]
    assert refused
    assert all(run.meets_apart for run in refused)
