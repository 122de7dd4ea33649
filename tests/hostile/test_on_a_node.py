# SPDX-License-Identifier: Apache-2.0
"""What programs of running jobs try on their node: no other job there loses anything, and none is told of another."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.slurm.harness import Slurm, until
from tests.slurm.nodes import Node, assert_nothing_left, berth_conf, nodes_of, output
from tests.slurm.test_guests import all_nodes, evict

pytestmark = [pytest.mark.any_slurm, pytest.mark.slurm, pytest.mark.timeout(600)]

NODE = "n3"
ROOM = "2m"
"""The room on the node's file system for /run, which is memory."""
OWNER = ("-w", NODE, "-n1", "--gpus=1", "--gpu-tier=guaranteed", "--gpu-mem=1G")
GUEST = ("-w", NODE, "-n1", "--gpus=1", "--gpu-tier=opportunistic")
SHARE = ("-w", NODE, "-n1", "--gpu-share=20")
PAGE = "page=${BERTH_WORD%%:*}\n"
STAY = "echo ready\nexec sleep 600"

# Blocks beyond the end of the page: its size stays, and the file system is full.
FILL = f"""{PAGE}
for round in 1 2 3; do
    at=4096
    for size in 1048576 65536 4096; do
        while fallocate -n -o $at -l $size $page.beat 2>/dev/null; do at=$((at + size)); done
    done
    sleep 0.1
done
{STAY}
"""
HEARS = f"""{PAGE}
echo "word=$(head -c 8 $page.order)$(head -c 8 $page.beat)"
{STAY}
"""
FLOOD = f"""{PAGE}
python3 - $page.beat <<'PY' &
import fcntl, os, struct, sys, time
page = os.open(sys.argv[1], os.O_RDWR)
print("ready", flush=True)
for number in range(1 << 30):
    # Every other byte: the kernel can put no two of these locks together.
    fcntl.fcntl(page, fcntl.F_OFD_SETLK, struct.pack("@hhqqi4x", fcntl.F_WRLCK, 0, 4096 + 2 * number, 1, 0))
PY
wait
"""
FORKS = """
trap '' TERM
echo listens
run() { while :; do (trap '' TERM; sleep 0.05; exec setsid true) & done; }
run & run
"""


@contextmanager
def little_room(node: Node) -> Iterator[None]:
    """A node whose /run holds two megabytes."""
    node.bash(
        "svc berth-guard stop; cp -a /run/berth /root/berth-before;"
        f" mount -t tmpfs -o size={ROOM},mode=755 none /run/berth; cp -a /root/berth-before/. /run/berth;"
        " rm -rf /root/berth-before; svc berth-guard start"
    )
    try:
        yield
    finally:
        node.bash("svc berth-guard stop; umount -l /run/berth; svc berth-guard start")


def begin(slurm: Slurm, *options: str, body: str, user: str, sign: str = "ready") -> int:
    """Submit a job and wait until its program says so."""
    job = slurm.submit(*options, "-t", "20", body=body, user=user)
    until(f"job {job} to say {sign}", lambda: sign in output(slurm, job) or None, 90)
    return job


def end(slurm: Slurm, *jobs: int) -> None:
    """End jobs, and see that they left nothing."""
    slurm.target.run(["scancel", *map(str, jobs)], user="root")
    for job in jobs:
        slurm.wait_state(job, {"CANCELLED", "COMPLETED", "FAILED"})
    assert_nothing_left(slurm, NODE)
    assert (
        nodes_of(slurm)[NODE].bash("ls /run/berth/words; grep -c /run/berth/words/ /proc/mounts", check=False) == "0\n"
    )


@pytest.mark.parametrize("attacker", [OWNER, GUEST], ids=["an owner", "a guest"])
def test_a_job_that_fills_its_page_takes_no_room_of_others(slurm: Slurm, attacker: tuple[str, ...]) -> None:
    with little_room(nodes_of(slurm)[NODE]):
        host = [begin(slurm, *OWNER, body=HEARS, user="carol")] if attacker == GUEST else []
        filler = begin(slurm, *attacker, body=FILL, user="alice")
        owner = begin(slurm, *OWNER, body=HEARS, user="bob")
        share = begin(slurm, *SHARE, body=STAY, user="bob")

        assert "word=BERTHWD1BERTHBT1" in output(slurm, owner)
        end(slurm, filler, owner, share, *host)


def test_no_user_finds_the_name_of_anothers_job_on_a_node(slurm: Slurm) -> None:
    """By a walk through all that the node keeps of jobs: names and texts tell the same whoever shares its GPUs."""
    look = "find /run/berth 2>/dev/null; find /run/berth -type f -readable -exec cat {} + 2>/dev/null; true"

    def found(user: str) -> set[str]:
        return set(nodes_of(slurm)[NODE].bash(look, user=user).splitlines())

    with berth_conf(slurm, '[node]\njobs_for_dcgm = "/run/berth-dcgm"'):
        before = found("bob")
        jobs = [begin(slurm, *OWNER, body=STAY, user="alice"), begin(slurm, *SHARE, body=STAY, user="alice")]
        jobs += [begin(slurm, *GUEST, body=STAY, user="carol")]
        seen = found("bob") - before

        assert all(any(name.endswith(f"/{job}") for name in found("root")) for job in jobs)
        # Folders, and the list of the node's GPUs, may be new.
        assert [line for line in seen if re.search(r"\d", line) and '"format": "berth-gpus/1"' not in line] == []
        end(slurm, *jobs)


def test_a_job_can_write_nothing_that_lies_on_the_nodes_own_file_system(slurm: Slurm) -> None:
    look = "find /run/berth -xdev -writable ! -type s ! -type p 2>/dev/null"
    jobs = [begin(slurm, *OWNER, body=f"{look}\n{STAY}", user="alice") for _ in range(2)]
    # She cannot list this folder; but the names in it are MPS's, and are the same everywhere.
    pipe = "cd $CUDA_MPS_PIPE_DIRECTORY; find control_lock nvidia-cuda-mps-control.pid -writable -printf '/run %p\\n'"
    jobs += [begin(slurm, *SHARE, body=f"{look}; {pipe}\n{STAY}", user="alice")]
    # Nor that of her own pages, whose names she is told.
    pages = "stat -f -c %b ${BERTH_WORD%/*}; for f in $page.beat $page.order; do [ ! -w $f ] || echo may write $f; done"
    page = begin(slurm, *OWNER, body=f"{PAGE}\n{pages}\n{STAY}", user="bob")

    for job in jobs:
        assert [line for line in output(slurm, job).splitlines() if line.startswith("/run")] == []
    blocks, *written, _ = output(slurm, page).splitlines()
    assert (blocks, [line.rpartition(".")[2] for line in written]) == ("2", ["beat"])
    end(slurm, *jobs, page)


def test_a_flood_of_locks_on_a_page_keeps_the_guard_from_nobody(slurm: Slurm) -> None:
    """The guard asks the kernel for locks at each reading; meanwhile it has to answer the Prolog of another job."""
    node = nodes_of(slurm)[NODE]
    flood = begin(slurm, *OWNER, body=FLOOD, user="alice")
    host = begin(slurm, *OWNER, body=HEARS, user="carol")
    guest = begin(slurm, *GUEST, body=STAY, user="bob")
    slurm.target.run(["scancel", str(host)], user="root")
    rest = slurm.submit("-w", NODE, "-n1", "--gpus=7", body="true", user="carol")
    slurm.finish(rest)

    assert "the guard did not answer" not in node.bash("cat /var/log/cluster/slurmd*.log")
    assert slurm.state(flood) == "RUNNING"
    end(slurm, flood, guest)


def test_a_guest_that_forks_and_exits_all_the_time_leaves_an_owner(slurm: Slurm) -> None:
    guest, _, owner = evict(slurm, FORKS)

    assert slurm.show(guest)["Restarts"] == "1"
    node = nodes_of(slurm)[all_nodes(slurm)[0]]
    until("no process of the guest to be left", lambda: not node.bash("pgrep -u alice -f setsid", check=False) or None)
    slurm.target.run(["scancel", str(owner), str(guest)], user="root")
