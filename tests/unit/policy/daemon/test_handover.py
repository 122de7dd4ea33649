# SPDX-License-Identifier: Apache-2.0
"""The snapshots on their way from the planner to the answerer: of the jobs that Slurm shows only changes travel."""

import random
import socket
from dataclasses import replace

from policy.daemon.passes.handover import Receiver, Sender, Snapshot
from tests.unit.policy_world import NOW, book, node, reading


def test_the_jobs_that_slurm_shows_are_the_same_at_both_ends() -> None:
    """Also where snapshots are left out, and where Slurm could not be read in between."""
    drawn = random.Random(1)
    cluster = book(reading([node("n1")], at=NOW)).cluster
    whole = Snapshot(cluster, frozenset(), "26.05", "recorded", "")
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        sender, receiver = Sender(theirs), Receiver(ours)
        for _ in range(200):
            seen = frozenset(f"{drawn.randrange(40):016x}" for _ in range(drawn.randrange(30)))
            for _ in range(drawn.randrange(1, 4)):
                if drawn.random() < 0.2:
                    sender.send(replace(whole, cluster=None, seen=frozenset(), problem="squeue failed"))
                seen = seen if drawn.random() < 0.5 else seen | {f"{drawn.randrange(40):016x}"}
                sender.send(replace(whole, seen=seen))
            got = receiver.receive()
            assert got is not None
            assert got.seen == seen
            assert not got.gone


def test_a_snapshot_of_a_long_queue_is_small_where_nothing_changed() -> None:
    cluster = book(reading([node("n1")], at=NOW)).cluster
    seen = frozenset(f"{number:016x}" for number in range(30_000))
    sizes = []
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        sender = Sender(theirs)
        for more in ((), ("new",), ()):
            seen |= set(more)
            sender.send(Snapshot(cluster, seen, "26.05", "recorded", ""))
            _, files, _, _ = socket.recv_fds(ours, 64, 1)
            with open(files[0], "rb") as file:  # noqa: PTH123 - a descriptor has no path
                sizes.append(file.seek(0, 2))
    first, *others = sizes
    assert first > 300_000
    assert max(others) < first // 20
