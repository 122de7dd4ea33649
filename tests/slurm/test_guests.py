# SPDX-License-Identifier: Apache-2.0
"""Hosts and guests on the real Slurm: seats, evictions, and jobs that never run twice."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from .harness import Slurm, until
from .nodes import berth_conf, nodes_of, output
from .test_planner import segment_of

pytestmark = pytest.mark.any_slurm

SLEEP = "exec sleep 300"
SAVES = "trap 'echo saved; exit' TERM; echo listens; sleep 300 & wait"
STUBBORN = "trap '' TERM; echo listens; while :; do sleep 0.2; done"


def sit(slurm: Slurm, *options: str, body: str = SLEEP, user: str = "alice") -> int:
    """Submits a guest that has to get a seat."""
    job = slurm.submit("--gpu-tier=opportunistic", "--gpus=1", "-t", "20", *options, body=body, user=user)
    slurm.wait_state(job, {"RUNNING"})
    return job


def occupy(slurm: Slurm, tier: str, *nodes: str, gpus: int = 8) -> list[int]:
    """Jobs of a tier on these nodes."""
    # A host that does not say what memory it needs has no guest.
    need = ["--gpu-mem=1G"] if tier.startswith("guaranteed") else []
    options = (f"--gpu-tier={tier}", f"--gpus={gpus}", *need, "-t", "30")
    jobs = [slurm.submit(*options, "-w", node, body=SLEEP) for node in nodes]
    for job in jobs:
        slurm.wait_state(job, {"RUNNING"})
    return jobs


def all_nodes(slurm: Slurm) -> list[str]:
    return sorted(slurm.machines)


def seat(slurm: Slurm, job: int) -> tuple[str, str]:
    values = segment_of(slurm, job)
    return values["nodes"], values["gpus"]


def test_a_guest_sits_beside_a_host_with_a_device_and_no_gpu_in_the_books(slurm: Slurm) -> None:
    nodes = all_nodes(slurm)
    occupy(slurm, "guaranteed", nodes[0])
    occupy(slurm, "exclusive", *nodes[1:])
    job = sit(slurm)
    record = slurm.show(job)
    node, gpu = seat(slurm, job)
    assert node == nodes[0]
    assert record["TresPerNode"] == f"gres/seat:g{gpu}:1"
    assert record["Extra"] == f"[berth/1 nodes={node} gpus={gpu} tier=opportunistic way=time]"
    assert record["Requeue"] == "1"


def test_without_a_seat_a_guest_is_parked_and_sits_as_soon_as_there_is_one(slurm: Slurm) -> None:
    nodes = all_nodes(slurm)
    owners = occupy(slurm, "exclusive", *nodes)
    job = slurm.submit("--gpu-tier=opportunistic", "--gpus=1", body=SLEEP)
    record = slurm.show(job)
    assert (record["JobState"], record["Reason"]) == ("PENDING", "BeginTime")
    assert "ReqNodeList" not in record or record["ReqNodeList"] == "(null)"
    assert segment_of(slurm, job)["state"] == "later"
    # It keeps its node from nobody: a job of one CPU starts everywhere.
    other = slurm.submit("-n1", "--mem=10", "-w", nodes[0], body=SLEEP)
    slurm.wait_state(other, {"RUNNING"})
    slurm.target.run(["scancel", str(owners[0])], user="root")
    slurm.wait_state(job, {"RUNNING"})
    assert seat(slurm, job)[0] == nodes[0]


def test_an_administrators_start_time_of_a_guest_without_a_seat_holds(slurm: Slurm) -> None:
    owners = occupy(slurm, "exclusive", *all_nodes(slurm))
    job = slurm.submit("--gpu-tier=opportunistic", "--gpus=1", body=SLEEP)
    slurm.target.run(["scontrol", "update", f"JobId={job}", "StartTime=now+1hour"], user="root")
    until("berthd to keep it", lambda: float(segment_of(slurm, job)["parked"]) > time.time() + 3_000)
    slurm.target.run(["scancel", str(owners[0])], user="root")
    slurm.passes(8)
    assert slurm.state(job) == "PENDING"


def evict(slurm: Slurm, body: str) -> tuple[int, float, int]:
    """Fill the cluster but for a guest's node, and submit an owner: guest, seconds until the owner ran, owner."""
    nodes = all_nodes(slurm)
    guest = sit(slurm, "-w", nodes[0], body=body)
    until("the guest to listen", lambda: "listens" in output(slurm, guest))
    occupy(slurm, "exclusive", *nodes[1:])
    slurm.settle()
    began = time.monotonic()
    owner = slurm.submit("--gpus=8", body=SLEEP)
    slurm.wait_state(owner, {"RUNNING"})
    return guest, time.monotonic() - began, owner


def test_a_guest_that_behaves_leaves_an_owner_before_it_is_killed(slurm: Slurm) -> None:
    guest, took, owner = evict(slurm, SAVES)
    # Two seconds on an idle machine.
    print(f"owner ran {took:.2f} s after its submission, over a guest that behaves")
    assert "saved" in output(slurm, guest)
    record = slurm.show(guest)
    assert record["Restarts"] == "1"
    values = segment_of(slurm, guest)
    assert values["evicted"] == "1"
    assert "needed" in values["evicted_text"]
    until("the guest to wait on no node", lambda: segment_of(slurm, guest)["state"] == "later" or None)
    slurm.target.run(["scancel", str(owner)], user="root")
    slurm.wait_state(guest, {"RUNNING"})


def test_one_that_ignores_every_signal_is_ended_by_its_guard(slurm: Slurm) -> None:
    guest, took, _ = evict(slurm, STUBBORN)
    print(f"owner ran {took:.2f} s after its submission, over a guest that ignores SIGTERM")
    assert slurm.show(guest)["Restarts"] == "1"


LONGEST_WAIT = 60.0
"""Seconds that an owner waits at most for a guest that Slurm does not requeue."""


def unrequeuable(slurm: Slurm, guests: list[int]) -> None:
    """Says of guests that Slurm may not requeue them, in a way that no plugin refuses."""
    for guest in guests:
        slurm.target.run(["scontrol", "update", f"JobId={guest}", "Requeue=0"], user="root")
        assert slurm.show(guest)["Requeue"] == "0"


def test_guests_that_may_not_be_requeued_leave_all_the_same_and_come_back(slurm: Slurm) -> None:
    nodes = all_nodes(slurm)
    guests = [sit(slurm, "-w", nodes[0]) for _ in range(2)]
    array = slurm.submit("--gpu-tier=opportunistic", "--gpus=1", "-a", "1-2", "-t", "20", "-w", nodes[0], body=SLEEP)
    slurm.wait_state(array, {"RUNNING"})
    guests.append(array)
    unrequeuable(slurm, guests)
    occupy(slurm, "exclusive", *nodes[1:])
    slurm.settle()
    began = time.monotonic()
    owner = slurm.submit("--gpus=8", body=SLEEP)
    slurm.wait_state(owner, {"RUNNING"}, LONGEST_WAIT)
    print(f"owner ran {time.monotonic() - began:.2f} s after its submission, over guests with Requeue=0")
    for guest in guests[:2]:
        record = slurm.show(guest)
        assert (record["JobState"], record["Restarts"], record["Requeue"]) == ("PENDING", "1", "1")


def test_a_guest_that_slurm_never_requeues_is_ended_and_its_user_is_told_why(slurm: Slurm) -> None:
    nodes = all_nodes(slurm)
    guest = sit(slurm, "-w", nodes[0])
    occupy(slurm, "exclusive", *nodes[1:])
    slurm.settle()
    again = f"while scontrol update JobId={guest} Requeue=0; do :; done"
    slurm.target.bash(f"for i in 1 2 3; do ({again}) >/dev/null 2>&1 & done", user="root")
    began = time.monotonic()
    owner = slurm.submit("--gpus=8", body=SLEEP)
    slurm.wait_state(owner, {"RUNNING"}, LONGEST_WAIT)
    took = time.monotonic() - began
    print(f"owner ran {took:.2f} s after its submission, over a guest that Slurm never requeues: {slurm.state(guest)}")
    assert took < LONGEST_WAIT
    if slurm.state(guest) == "CANCELLED":
        assert "Slurm did not requeue it" in segment_of(slurm, guest)["evicted_text"]
    slurm.target.run(["scancel", str(guest)], user="root")


def test_a_host_comes_over_a_guest_and_nobody_leaves(slurm: Slurm) -> None:
    nodes = all_nodes(slurm)
    guest = sit(slurm, "-w", nodes[0])
    occupy(slurm, "exclusive", *nodes[1:])
    [host] = occupy(slurm, "guaranteed", nodes[0])
    assert slurm.state(guest) == "RUNNING"
    assert slurm.show(guest)["Restarts"] == "0"
    assert segment_of(slurm, host)["seats"] == "0"


def test_no_bystander_leaves_and_a_guest_that_ended_is_not_run_again(slurm: Slurm) -> None:
    nodes = all_nodes(slurm)
    occupy(slurm, "guaranteed", nodes[1])
    bystander = sit(slurm, "-w", nodes[1])
    ends = slurm.submit("--gpu-tier=opportunistic", "--gpus=1", "-w", nodes[0], body="sleep 1.5")
    slurm.wait_state(ends, {"RUNNING"})
    occupy(slurm, "exclusive", *nodes[2:])
    owner = slurm.submit("--gpus=8", body=SLEEP)
    slurm.wait_state(owner, {"RUNNING"})
    assert slurm.state(bystander) == "RUNNING"
    state = slurm.state(ends)
    assert slurm.show(ends)["Restarts"] == ("0" if state == "COMPLETED" else "1")


def test_an_upgrade_begins_as_a_guest_and_is_given_its_gpu(slurm: Slurm) -> None:
    nodes = all_nodes(slurm)
    [host] = occupy(slurm, "guaranteed", nodes[0])
    occupy(slurm, "exclusive", *nodes[1:])
    slurm.settle()
    job = slurm.submit("--gpu-tier=opportunistic,upgrade", "--gpus=1", "--no-requeue", "-t", "20", body=SLEEP)
    slurm.wait_state(job, {"RUNNING"})
    assert (segment_of(slurm, job)["tier"], slurm.show(job)["Requeue"]) == ("opportunistic", "1")
    slurm.target.run(["scancel", str(host)], user="root")
    until("the guest to own its GPU", lambda: "owns" in segment_of(slurm, job) or None)
    assert slurm.show(job)["Requeue"] == "0"
    owner = slurm.submit("--gpus=8", "-t", "30", body=SLEEP)
    # Slurm counts the GPU as free: only a job with a place waits for it.
    assert segment_of(slurm, owner)["state"] == "waiting"
    slurm.passes(8)
    assert (slurm.state(job), slurm.state(owner)) == ("RUNNING", "PENDING")


@pytest.mark.parametrize("command", ["srun", "salloc"])
def test_only_sbatch_submits_guests(slurm: Slurm, command: str) -> None:
    result = slurm.target.run([command, "--gpu-tier=opportunistic", "--gpus=1", "true"], check=False)
    assert result.rc != 0
    assert "only sbatch can submit one" in result.err


def test_a_tier_without_gpus_runs_as_on_plain_slurm(slurm: Slurm) -> None:
    batch = slurm.submit("--gpu-tier=opportunistic", "-n1", body="echo a script; srun -n1 echo a step")
    assert {"a script", "a step"} <= set(slurm.finish(batch).splitlines())
    for command in ("srun", "salloc"):
        ran = slurm.target.run([command, "--gpu-tier=opportunistic", "-n1", "echo", "it runs"], check=False)
        assert (ran.rc, ran.out.strip()) == (0, "it runs"), ran.err


def test_berth_release_gives_a_parked_guest_back(slurm: Slurm) -> None:
    occupy(slurm, "exclusive", *all_nodes(slurm))
    job = slurm.submit("--gpu-tier=opportunistic", "--gpus=1", body=SLEEP)
    slurm.berthd("stop")
    slurm.target.run(["berth", "release", "--all"], user="root")
    record = slurm.show(job)
    assert record["TresPerNode"] == "gres/gpu:1"
    assert record["Reason"] != "BeginTime" or record["EligibleTime"] <= record["SubmitTime"]


PROFILES = "/var/lib/berth/profiles"
HEAVY = {"busy": 0.95, "bandwidth": 0.6, "memory": 12_000.0}
HALF = {"busy": 0.4, "bandwidth": 0.2, "memory": 4_000.0}
LIGHT = {"busy": 0.1, "bandwidth": 0.04, "memory": 2_500.0}


@contextmanager
def measured(slurm: Slurm, *more: str) -> Iterator[Slurm]:
    """Alice's jobs were measured, and berthd knows it."""
    rows = [{"format": "berth-profiles/1"}]
    for name, alone in (("heavy", HEAVY), ("half", HALF), ("light", LIGHT)):
        rows.append({"profile": ["alice", "", name], "at": int(time.time()), "runs": 5.0, **alone})  # type: ignore[dict-item]
    text = "".join(f"{json.dumps(row)}\n" for row in rows)
    owner = "install -o slurm -d /var/lib/berth && install -o slurm -m 600 /dev/stdin"
    slurm.target.bash(f"{owner} {PROFILES} <<'END'\n{text}END", user="root")
    with berth_conf(slurm, "\n".join(["[sharing]", f'profiles = "{PROFILES}"', *more])):
        yield slurm
    slurm.target.bash(f"rm -f {PROFILES}", user="root")


@pytest.fixture
def known(slurm: Slurm) -> Iterator[Slurm]:
    with measured(slurm):
        yield slurm


@pytest.fixture
def known_in_turn(slurm: Slurm) -> Iterator[Slurm]:
    with measured(slurm, 'way = "time"', 'company_wait = "1"'):
        yield slurm


def test_of_two_guests_the_heavy_one_goes_beside_the_light_host(known: Slurm) -> None:
    nodes = all_nodes(known)
    occupy(known, "exclusive", *nodes[2:])
    for node, name in zip(nodes, ("half", "light"), strict=False):
        host = known.submit(
            "--gpu-tier=guaranteed", "--gpu-mem=1G", "--gpus=8", "-w", node, "-J", name, "-t", "30", body=SLEEP
        )
        known.wait_state(host, {"RUNNING"})
    known.settle()
    options = ("--gpu-tier=opportunistic", "--gpus=1", "--begin=now+3", "-t", "20")
    guests = {name: known.submit(*options, "-J", name, body=SLEEP) for name in ("light", "heavy")}
    for job in guests.values():
        known.wait_state(job, {"RUNNING"}, 60)

    assert {name: seat(known, job)[0] for name, job in guests.items()} == {"light": nodes[0], "heavy": nodes[1]}
    why = known.target.run(["berth", "why", "-v", str(guests["heavy"])], user="root").out
    assert "predicted speeds: its host 0.9" in why
    assert "slope=0." in known.show(guests["heavy"])["Extra"]
    assert "predicted speeds: its host 1.00" in segment_of(known, guests["light"])["why"]


@pytest.mark.hard
def test_heavy_packed_jobs_are_kept_apart_and_wait_for_better_company_so_long_and_no_longer(
    known_in_turn: Slurm,
) -> None:
    slurm = known_in_turn
    node = all_nodes(slurm)[1]
    slurm.hold_gpus(node, range(2, 8))
    packed = ("--gpu-share=30", "-n1", "-w", node, "-t", "20")
    jobs = [slurm.submit(*packed, "-J", name, body=SLEEP) for name in ("heavy", "heavy", "light")]
    for job in jobs:
        slurm.wait_state(job, {"RUNNING"})
    places = [segment_of(slurm, job)["gpus"] for job in jobs]
    assert places[0] != places[1], "each heavy one has a GPU"
    why = slurm.target.run(["berth", "why", "-v", str(jobs[2])], user="root").out
    assert "predicted speeds: it " in why

    third = slurm.submit(*packed, "-J", "heavy", body=SLEEP)
    slurm.settle()
    assert slurm.state(third) == "PENDING", "there is room, and bad company"
    slurm.wait_state(third, {"RUNNING"}, 100)
    assert "no better company came free in time" in segment_of(slurm, third)["why"]


@pytest.mark.hard
def test_a_guest_under_mps_is_held_to_what_its_host_leaves(known: Slurm) -> None:
    # Volta tells nobody how many of its SMs are active; Hopper does.
    node = all_nodes(known)[1]
    occupy(known, "exclusive", *(one for one in all_nodes(known) if one != node))
    occupy(known, "exclusive", node, gpus=7)
    host = known.submit(
        "--gpu-tier=guaranteed,mps", "--gpu-mem=1G", "--gpus=1", "-w", node, "-J", "serve", "-t", "30", body=SLEEP
    )
    known.wait_state(host, {"RUNNING"})
    # A guard speaks of its host once a minute.
    time.sleep(75)
    job = sit(known, "--gpu-tier=opportunistic,mps", "-J", "light")

    extra = known.show(job)["Extra"]
    assert " tier=opportunistic share=" in extra
    percent = extra.split("share=")[1].split()[0]
    assert f"held to {percent} % of the multiprocessors, which its host leaves" in segment_of(known, job)["why"]
    share_file = f"cat /run/berth/jobs/{job}"
    file = until(
        "the guest's Prolog to end",
        lambda: text if "status=ok" in (text := nodes_of(known)[node].bash(share_file, check=False)) else None,
    )
    assert f"share={percent}\n" in file
    assert f"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE={percent}\n" in file
