# SPDX-License-Identifier: Apache-2.0
"""Requests that plain Slurm runs, run with Berth too, and with the same tasks, CPUs and GPUs."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from containers.cluster import PREFIX
from tests.differential.compare import difference, names_other_gpus
from tests.differential.draw import covering
from tests.differential.outcome import Outcome, Request, outcome_of, prepare
from tests.differential.side_by_side import all_of, both
from tests.differential.updates import at_random, differing

from .conftest import OWN, cluster
from .deal import dealt
from .harness import Slurm, until
from .target import Container, Target

FOLDER = "/home/differential"

SAME = """
srun -n1 --gpus=1
srun -n1 --gpus=2 --cpus-per-gpu=4
srun -N1 --ntasks-per-node=1 --gres=gpu:8 --cpus-per-gpu=2
sbatch -N1 --ntasks-per-node=1 --gres=gpu:8 --cpus-per-gpu=2
sbatch -N2 --ntasks-per-node=1 --gpus-per-node=8 --cpus-per-gpu=2
srun -N1 --gres=gpu:2 --ntasks-per-gpu=2
srun -N2 --gres=gpu:2 --ntasks-per-gpu=1
sbatch -N2 --gres=gpu:2 --ntasks-per-gpu=1
sbatch -n8 --ntasks-per-gpu=2
srun -N2 -n4 --gpus-per-node=2 --cpus-per-gpu=2
sbatch -N2 -n4 --gpus-per-node=2 --cpus-per-gpu=2
sbatch -n5 -N2 --gpus-per-node=2
srun -n2 --gpus-per-task=1 --cpus-per-gpu=2
srun -n2 --gpus-per-task=1 -c2
srun --tres-per-task=cpu=2,gres/gpu=1 -n2
sbatch --gpus=4 --ntasks-per-gpu=1
sbatch -N2 --gpus=4 --ntasks-per-gpu=1
srun -n2 --gpus=1 --cpus-per-task=3
sbatch -N2 --gpus-per-node=4 --ntasks-per-node=2 --cpus-per-task=2
srun -n2 -N2 --gpus-per-task=2 --cpus-per-task=3
srun -N1 -n3 --gpus=2 --cpus-per-gpu=5
srun --gpus=2 --cpus-per-gpu=9 -n1
srun -n2 --gres=gpu:1 --cpus-per-gpu=3
srun --gres=gpu:1 --mem-per-cpu=200 -c2
srun -N2 --gres=gpu:4 --exclusive
sbatch --gres=gpu:1 --exclusive --gpu-bind=closest
sbatch --gres=gpu:2 -n2 --exclusive --gpu-bind=single:1
sbatch -N2 --gres=gpu:2 --exclusive --gpu-bind=closest
sbatch --exclusive --gpu-bind=closest
sbatch --gpus=2 --ntasks-per-gpu=1 -c2
srun --gpus=1 -n1 --ntasks-per-gpu=2 -c3
srun --gres=none
srun -N1 --gres=gpu:9
srun -N1 -n2 --gpus=2 --gpu-bind=map_gpu:0,1
sbatch -n2 --tres-per-task=cpu:2,gres/gpu:1
srun -n2 --gres=gpu:2 --gpu-bind=single:1
srun -n4 --gres=gpu:4 --gpu-bind=per_task:1
srun -n4 --gpus-per-task=1 --gpu-bind=none
sbatch -n5 --gres=gpu:1 --cpus-per-gpu=3
sbatch -n4 --gpus=2 --ntasks-per-gpu=1
sbatch -n5 --gres=gpu:2 --cpus-per-gpu=3 --overcommit
sbatch --gpus-per-node=2 -n5 --ntasks-per-node=2 --cpus-per-gpu=3
salloc --gres=gpu:2 -N2 -- srun -n1
salloc --gres=gpu:2 -N2 -- srun -n1 --gpus=1
salloc --gres=gpu:2 -N2 -- srun -n2 --gpus-per-task=1
salloc --gpus=2 -n2 -- srun -n1 --gres=gpu:1
salloc --gres=gpu:1 -N2 -c3 --hint=nomultithread -- srun -n1
srun -n1 --gpus=2 --gpu-freq=low
sbatch -N1 --gres=gpu:1 --gpu-freq=high,memory=low
srun -n1 --gpus=2 --exclusive=topo
sbatch -N2 --gres=gpu:2 --exclusive=topo
sbatch -n1 -c12 --gpus=2 --gres-flags=enforce-binding
sbatch -n1 --gpus=1 --mem-per-cpu=0
sbatch -N1,3 --gpus-per-node=1
sbatch -N1-3 --use-min-nodes --gpus-per-node=1
sbatch -n1 --gpus=1 --time-min=1
srun -m arbitrary -w n2,n1 -n2 --gres=gpu:1
slurmrestd tres_per_node=gres/gpu:2
slurmrestd tres_per_job=gres/gpu
slurmrestd tres_per_job=gres/gpu:2 minimum_cpus=4
slurmrestd tres_per_job=gres/gpu:1 cpus_per_task=3 tasks=2
slurmrestd tres_per_task=cpu=2,gres/gpu=1 tasks=2
slurmrestd tres_per_node=gres/gpu:2 nodes=2 tasks=4
slurmrestd tres_per_node=gres/gpu:2 minimum_nodes=1 maximum_nodes=2
slurmrestd tres_per_node=gres/gpu:2 cpus_per_tres=gres/gpu:2
slurmrestd tres_per_node=gres/gpu:2 memory_per_tres=gres/gpu:300
slurmrestd tasks=2
""".strip().splitlines()

ASKED_WHEN = """
srun --test-only --gpus=1
srun --test-only -n2 --gpus-per-task=1
srun --test-only -N2 --gres=gpu:8
sbatch --test-only --gpus=2
sbatch --test-only -N1 --gres=gpu:3 --contiguous
#SBATCH --test-only --gpus=1 -n1
sbatch --test-only -n1
""".strip().splitlines()
"""Who asks by no flag of Berth when a job would start reads what plain Slurm says, and no more."""

EVENLY = """
sbatch -n4 -N2 --gpus=4
srun -n4 -N2 --gpus=4
srun -n4 -N2 --gpus-per-task=2
srun -N2 -n4 --gpus=4 --mem-per-gpu=2000
srun --gpus=9 -N3
""".strip().splitlines()
"""Slurm may lay these as it likes, and Berth lays them evenly: what they have in all is the same."""

LAID_BY_SLURM = """
srun -N2 -n4 --gpus-per-node=2
salloc -N2 -n4 --gres=gpu:2 -- srun -n4
""".strip().splitlines()
"""Slurm lays these tasks 3 and 1, with Berth 2 and 2 where the GPUs lie at one socket: as many in all."""

WAITING = """
sbatch -N1 --gres=gpu:2 -n2 --gpu-bind=single:1
sbatch -N1 --gres=gpu:2 -n2 --gpu-bind=map_gpu:0,1
sbatch -N1 --gres=gpu:2 -n2 --gpu-bind=mask_gpu:1,2
sbatch -N1 --gpus=2 -n2 --gpu-bind=none
sbatch -n2 --gpus-per-task=1 --gpu-bind=closest
sbatch -n1 --gpus=1 --gpu-freq=low
sbatch -n1 --gpus=2 --cpus-per-gpu=2
sbatch -N1 --gres=gpu:1 -n2 --gpu-bind=per_task:1
""".strip().splitlines()


@pytest.fixture(scope="module")
def plain(slurm: Slurm) -> Iterator[Target]:
    """A cluster of the same nodes without Berth."""
    if OWN:
        pytest.skip("there is no second Slurm beside the machine's own")
    cluster("up", "--slurm", slurm.name, "--without-berth")
    try:
        yield Container(f"{PREFIX}{slurm.name.replace('.', '')}-plain-ctl")
    finally:
        cluster("down", "--slurm", slurm.name, "--without-berth")


def asked(text: str) -> Request:
    """A line of the tables as a request."""
    words, _, step = text.partition(" -- srun ")
    command, *options = shlex.split(words)
    return Request(command, tuple(options), tuple(shlex.split(step)))


def is_other(request: Request, plain: Outcome, berth: Outcome) -> bool:
    """Tells whether anything differs but how many GPUs Slurm names beside --gpu-bind=none."""
    return plain != berth and not ("--gpu-bind=none" in request.options and names_other_gpus(plain, berth))


def in_all(outcome: Outcome) -> tuple[int, int, int]:
    """Nodes, tasks, and CPUs of all nodes."""
    nodes = [node for node in outcome.tasks if node]
    return len(nodes), sum(map(len, nodes)), sum(node[0][0] for node in nodes)


def test_a_request_becomes_the_same_as_on_plain_slurm(slurm: Slurm, plain: Target) -> None:
    for target in (plain, slurm.target):
        prepare(target, FOLDER)

    tables = SAME, EVENLY, LAID_BY_SLURM
    same, evenly, laid = ({asked(text): text for text in dealt(table, slurm.name)} for table in tables)

    def differs(request: Request, one: Outcome, other: Outcome) -> bool:
        if request in same:
            return is_other(request, one, other)
        uneven = request in evenly and len(set(other.tasks)) != 1
        return uneven or (one.rc, in_all(one)) != (other.rc, in_all(other))

    found = all_of((plain, slurm.target), (*same, *evenly, *laid), differs, folder=FOLDER)

    # The tables in which plain Slurm itself ran nothing would compare nothing.
    assert sum(bool(one.tasks) for one, _ in found.values()) >= len(found) * 9 // 10
    for request, text in same.items():
        one, other = found[request]
        assert not is_other(request, one, other), f"{text}: plain {one.text()}, with Berth {other.text()}"
    for request, text in (evenly | laid).items():
        one, other = found[request]
        assert (one.rc, in_all(one)) == (other.rc, in_all(other)), text
        assert request in laid or len(set(other.tasks)) == 1, text


def test_who_only_asks_when_it_would_start_reads_the_same(slurm: Slurm, plain: Target) -> None:
    pair = plain, slurm.target
    for target in pair:
        prepare(target, FOLDER)
    for text in ASKED_WHEN:
        one, other = both(pair, asked(text), folder=FOLDER)
        # 26.05 has a word more.
        assert re.search(r" to start at N (a )?using N processors on nodes NODES in partition gpu", one.said), text
        assert one == other, f"{text}: plain {one.text()}, with Berth {other.text()}"


def test_a_job_that_waits_before_it_starts_becomes_the_same(slurm: Slurm, plain: Target) -> None:
    pair = plain, slurm.target
    full = "for n in 1 2 3 4; do sbatch -Q -o /dev/null -t9 -w n$n --gres=gpu:8 --wrap 'exec sleep 999'; done"
    for target in pair:
        prepare(target, FOLDER)
        target.bash(full, user="bob")
    count = ["squeue", "-h", "-u"]

    def in_state(target: Target, user: str, state: str) -> int:
        return len(target.run([*count, user, "-t", state, "-o", "%i"], user="root").out.split())

    for target in pair:
        until("the nodes to be full", lambda one=target: in_state(one, "bob", "R") == 4 or None)  # type: ignore[misc]
    with ThreadPoolExecutor(2 * len(WAITING)) as pool:
        found = {text: pool.submit(both, pair, asked(text), folder=FOLDER) for text in WAITING}
        for target in pair:
            until("all to wait", lambda one=target: in_state(one, "alice", "PD") == len(WAITING) or None)  # type: ignore[misc]
        for target in pair:
            target.run(["scancel", "-u", "bob"], user="root")
        outcomes = {text: future.result() for text, future in found.items()}

    assert sum(bool(one.tasks) for one, _ in outcomes.values()) >= len(WAITING) - 1
    for text, (one, other) in outcomes.items():
        why = difference(asked(text), one, other)
        assert not why, f"{text}: {why}: plain {one.text()}, with Berth {other.text()}"


def test_a_job_that_comes_without_sbatch_has_a_place(slurm: Slurm) -> None:
    prepare(slurm.target, FOLDER)
    before = slurm.submit("-n1", body="true")

    outcome = outcome_of(slurm.target, Request("slurmrestd", ("tres_per_node=gres/gpu:2",)), folder=FOLDER)

    assert (outcome.rc, outcome.tasks) == (0, (((1, 2, 2),),))
    assert slurm.comment(before + 1).startswith("[berth/1 state=placed ")


@pytest.mark.timeout(1_200)
def test_requests_in_which_each_two_words_meet_become_the_same(slurm: Slurm, plain: Target) -> None:
    pair = (plain, slurm.target)
    for target in pair:
        prepare(target, FOLDER)

    # All of them on each version in make test-hard.
    every = dealt(covering(2), slurm.name)
    found = all_of(pair, every, difference, folder=FOLDER, seconds=20)

    for request, (one, other) in found.items():
        why = difference(request, one, other)
        assert not why, f"{request.text()}: {why}: {one.text()}, with Berth {other.text()}"
    assert sum(bool(one.tasks) for one, _ in found.values()) > len(found) // 6


def test_an_owners_change_of_a_job_becomes_the_same(slurm: Slurm, plain: Target) -> None:
    pair = (plain, slurm.target)
    for target in pair:
        prepare(target, FOLDER)
    # 300 of them on each version in make test-hard, which also lets the jobs run.
    assert differing(pair, at_random(1, 40), folder=FOLDER, run=False) == {}


def test_the_node_of_least_weight_is_taken_as_on_plain_slurm(slurm: Slurm, plain: Target) -> None:
    targets = (plain, slurm.target)
    where = ["srun", "-Q", "--gpus=2", "hostname"]
    weigh = "scontrol update NodeName=n{} Weight={}"
    try:
        for cheap in (3, 4, 1):
            for target in targets:
                target.bash("\n".join(weigh.format(n, 1 if n == cheap else 100) for n in range(1, 5)), user="root")
            assert plain.run(where).out.strip() == f"n{cheap}"

            def taken(node: str = f"n{cheap}") -> bool | None:
                return slurm.target.run(where).out.strip() == node or None

            until(f"berthd to take n{cheap}, whose weight is the least now", taken)
    finally:
        for target in targets:
            target.bash("\n".join(weigh.format(n, 1) for n in range(1, 5)), user="root")
