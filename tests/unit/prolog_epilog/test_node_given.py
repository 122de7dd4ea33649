# SPDX-License-Identifier: Apache-2.0
"""What Slurm gave a job beside what its Extra says: a job that pays for one thing and has another does not start."""

from __future__ import annotations

from pathlib import Path

import pytest

from prolog_epilog import given
from prolog_epilog.job.extra import read
from prolog_epilog.job.slurm import HeldGres
from prolog_epilog.tenants import share_file
from tests.unit.node_world import JOB_TEXT, NODE, World, berth

PACKED = berth(0, share=90, mem=61440, way="mps")
HOST = berth(0, tier="guaranteed", way="time")
GUEST = berth(2, tier="opportunistic", way="time")
GUEST_UNDER_MPS = berth(2, tier="opportunistic", share=40, way="mps")
WHOLE = berth(0, 3)
G3 = "gpu:g3:1(IDX:3)"


def held(**kinds: object) -> HeldGres:
    return HeldGres(**{"gpus": frozenset(), "seats": frozenset(), "shards": {}, **kinds})  # type: ignore[arg-type]


def objection(what: HeldGres, extra: str) -> str:
    return given.objection(what, read(extra, NODE))


ALL_SEATS = frozenset({0, 3})
AGREES = [
    (held(gpus=frozenset({0, 3}), seats=ALL_SEATS), WHOLE),
    (held(gpus=frozenset({0, 3})), WHOLE),  # another has the seats, or the node has none
    (held(gpus=frozenset({5})), WHOLE),  # it has what it pays for
    (held(gpus=frozenset({5})), ""),
    (held(), ""),
    (held(shards={0: 90}), PACKED),
    (held(shards={1: 20, 2: 20}), berth(1, 2, share=20, way="mps")),
    (held(gpus=frozenset({0})), HOST),
    (held(gpus=frozenset({0}), seats=frozenset({0})), HOST),
    (held(seats=frozenset({2})), GUEST),
    (held(seats=frozenset({2})), GUEST_UNDER_MPS),
]
DISAGREES = [
    (held(shards={0: 1}), PACKED, "1 % of GPU 0 here, and its Extra says 90 % of GPU 0"),
    (held(shards={0: 90, 1: 90}), PACKED, "90 % of GPU 0, 90 % of GPU 1 here"),
    (held(shards={0: 90}, seats=frozenset({0})), PACKED, "90 % of GPU 0, a seat on GPU 0"),
    (held(gpus=frozenset({0})), PACKED, "GPU 0 here, and its Extra says 90 %"),
    (held(shards={1: 90}), PACKED, "90 % of GPU 1"),
    (held(), PACKED, "no GPU here"),
    (held(shards={0: 5}), WHOLE, "5 % of GPU 0 here, and its Extra says GPU 0,3"),
    (held(seats=frozenset({0})), WHOLE, "a seat on GPU 0 here"),
    (held(gpus=frozenset({0}), seats=frozenset({0, 1})), WHOLE, "GPU 0, a seat on GPU 1"),
    (held(seats=frozenset({0})), HOST, "a seat on GPU 0"),
    (held(gpus=frozenset({1})), HOST, "GPU 1 here, and its Extra says GPU 0"),
    (held(shards={0: 1}), HOST, "1 % of GPU 0"),
    (held(seats=frozenset({3})), GUEST, "a seat on GPU 3 here, and its Extra says a seat on GPU 2"),
    (held(gpus=frozenset({2})), GUEST, "GPU 2 here"),
    (held(seats=frozenset({2, 3})), GUEST, "a seat on GPU 2, a seat on GPU 3"),
    (held(shards={2: 40}), GUEST_UNDER_MPS, "40 % of GPU 2"),
    (held(shards={0: 1}), "", "1 % of GPU 0 here, and its Extra says nothing of GPUs"),
    (held(seats=frozenset({0})), "", "a seat on GPU 0 here, and its Extra says nothing"),
]


@pytest.mark.parametrize(("what", "extra"), AGREES)
def test_what_berth_writes_agrees_with_what_slurm_gives_for_it(what: HeldGres, extra: str) -> None:
    assert objection(what, extra) == ""


@pytest.mark.parametrize(("what", "extra", "says"), DISAGREES)
def test_kinds_and_numbers_have_to_be_the_same(what: HeldGres, extra: str, says: str) -> None:
    assert says in objection(what, extra)


def why(world: World) -> str:
    found = share_file.read(world.paths, 7)
    return found.why if found else ""


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def slurm_gave(world: World, gres: str, *, held_by_slurm: bool = True) -> None:
    """Slurm tells this of the job, and takes or refuses to put it back into the queue."""
    (world.folder / "job").write_text(JOB_TEXT.format(job=7, node=NODE, gres=gres))
    refusal = "" if held_by_slurm else "echo 'Only batch jobs are accepted' >&2; exit 1"
    world.scontrol(
        f"""case "$1 $2" in
        "show job") exec /bin/cat {world.folder}/job ;;
        "show config") echo "SlurmUser               = slurm(64030)" ;;
        "requeuehold Incomplete") {refusal} ;;
        *) exit 1 ;;
        esac"""
    )


def test_a_job_that_pays_for_less_than_it_holds_does_not_start(world: World) -> None:
    slurm_gave(world, "shard:g0:1(1/100)")

    done = world.run("prolog", PACKED, "0")

    # The node is none the worse for it.
    assert done.returncode == 0
    assert "requeuehold Incomplete 7\n" in world.asked
    assert f"{why(world)} [BERTH-919]" == done.stderr.split("berth-prolog: ")[1].strip()
    assert "Slurm gave the job 1 % of GPU 0 here, and its Extra says 90 % of GPU 0" in why(world)
    assert "cancel it and submit it again" in why(world)
    assert "job 7 is held" in done.stderr
    assert world.books() == {}


@pytest.mark.parametrize("gres", ["shard:g0:5(5/100)", "seat:g0:1(IDX:0)"])
def test_neither_does_one_whose_extra_says_that_its_gpus_are_whole(world: World, gres: str) -> None:
    world.settings["chain_prolog"] = [str(world.script("own", f'echo "[$SLURM_JOB_GPUS]" >>{world.folder}/seen'))]
    slurm_gave(world, gres)

    world.run("prolog", WHOLE, "0" if gres.startswith("shard") else "")

    assert "requeuehold Incomplete 7\n" in world.asked
    # Others may be on that GPU.
    assert (world.folder / "seen").read_text() == "[]\n"


@pytest.mark.parametrize("extra", ["", "[berth/1 nodes=n1 gpus=0 share=x way=mps]", berth(0).replace("n1", "n2")])
def test_neither_do_shards_without_a_berth_that_can_be_read(world: World, extra: str) -> None:
    slurm_gave(world, "shard:g0:5(5/100)")

    world.run("prolog", extra, "0", user=1_000, SLURM_JOB_PARTITION="gpu")

    assert "requeuehold Incomplete 7\n" in world.asked
    assert "5 % of GPU 0" in why(world)


def test_a_job_that_is_cancelled_meanwhile_is_not_brought_back(world: World) -> None:
    """Slurm has forgotten what it held, or still says it; either way there is nothing to hold."""
    for gres, state in (("", "CANCELLED"), ("", "COMPLETING"), ("shard:g0:1(1/100)", "COMPLETING")):
        slurm_gave(world, gres)
        text = (world.folder / "job").read_text().replace("JobState=RUNNING", f"JobState={state}")
        if not gres:
            text = text[: text.index("   JOB_GRES=")] + text[text.index("   MinCPUsNode") :]
        (world.folder / "job").write_text(text)

        assert world.run("prolog", PACKED, "0").returncode == 0

        assert "requeuehold" not in world.asked
        assert ("Slurm gave the job" in why(world)) is bool(gres)


def test_whoever_is_held_is_held_only_while_it_runs(world: World) -> None:
    slurm_gave(world, "shard:g0:1(1/100)")

    world.run("prolog", PACKED, "0")

    assert world.asked.splitlines()[-1] == "requeuehold Incomplete 7"


def test_a_job_that_slurm_does_not_hold_is_stopped_by_spank(world: World) -> None:
    slurm_gave(world, "shard:g0:1(1/100)", held_by_slurm=False)

    done = world.run("prolog", PACKED, "0")

    assert done.returncode == 0
    assert "1 % of GPU 0" in why(world)
    assert "is stopped, and not held" in done.stderr
    assert "Only batch jobs are accepted" in done.stderr


def took_back(world: World, *, takes: bool = True) -> None:
    """Slurm has given the job its share by type, and takes or refuses to requeue the job."""
    (world.folder / "job").write_text(JOB_TEXT.format(job=7, node=NODE, gres="shard:g0:90(90/100)"))
    world.scontrol(
        f"""case "$1 $2" in
        "show job") exec /bin/cat {world.folder}/job ;;
        "requeue Incomplete") {"" if takes else "echo 'Requested operation is presently disabled' >&2; exit 1"} ;;
        *) exit 1 ;;
        esac"""
    )


@pytest.mark.parametrize(("gpus", "says"), [("", "none on this node"), ("3", "other GPUs than Slurm gave it (3)")])
def test_a_share_that_slurm_tied_to_no_gpu_of_its_own_is_requeued(world: World, gpus: str, says: str) -> None:
    """A share that starts between a start of slurmctld and the node's registration has no GPU in its environment."""
    took_back(world)

    done = world.run("prolog", PACKED, gpus, SLURM_JOB_RESTART_COUNT="2")

    assert done.returncode == 0
    assert world.asked.splitlines()[-1] == "requeue Incomplete 7"
    assert says in done.stderr
    # SPANK starts no share without a file, and the Epilog speaks of no node that failed.
    assert why(world) == ""
    assert not (world.paths.jobs / "7").exists()
    assert world.books() == {}


@pytest.mark.parametrize(("takes", "restarts"), [(False, "0"), (True, "3")])
def test_one_that_cannot_be_requeued_or_was_thrice_is_stopped(world: World, restarts: str, *, takes: bool) -> None:
    took_back(world, takes=takes)

    done = world.run("prolog", PACKED, "", SLURM_JOB_RESTART_COUNT=restarts)

    assert done.returncode == 0
    assert "none on this node" in why(world)
    assert ("requeue Incomplete 7" in world.asked) is not takes


@pytest.mark.parametrize(
    ("user", "partition", "gres", "starts"),
    [
        (0, "gpu", "shard:g0:5(5/100)", True),
        (0, "gpu", "seat:g0:1(IDX:0)", True),
        (64030, "gpu", "seat:g0:1(IDX:0)", True),  # Slurm's own user
        (1000, "plain", "shard:g0:5(5/100)", True),
        (1000, "plain", "seat:g0:1(IDX:0)", False),  # seats are Berth's everywhere
        (1000, "gpu", "shard:g0:5(5/100)", False),
    ],
)
def test_administrators_and_skipped_partitions_do_as_they_like(
    world: World, user: int, partition: str, gres: str, *, starts: bool
) -> None:
    world.skipped = "other, plain"
    slurm_gave(world, gres)

    world.run("prolog", "", "0", user=user, SLURM_JOB_PARTITION=partition)

    assert ("requeuehold" not in world.asked) is starts


@pytest.mark.parametrize("where", ["JobName=train", "WorkDir=/home/alice"])
def test_a_job_whose_texts_pose_as_slurms_word_does_not_start(world: World, where: str) -> None:
    slurm_gave(world, "shard:g0:1(1/100)")
    forged = "\n   Socks/Node=\n   JOB_GRES=shard:90\n     Nodes=n1 CPU_IDs=0 Mem=0 GRES=shard:g0:90(90/100)\n"
    text = (world.folder / "job").read_text()
    (world.folder / "job").write_text(text.replace(where, where + forged))

    world.run("prolog", PACKED, "0")

    # Its output says why; nobody could tell its user of a hold.
    assert "imitate what scontrol prints" in why(world)
    assert "requeuehold" not in world.asked


def test_one_forged_line_where_slurm_has_none_is_not_believed(world: World) -> None:
    slurm_gave(world, "")
    text = (world.folder / "job").read_text()
    real = text[text.index("   JOB_GRES=") : text.index("   MinCPUsNode")]
    forged = "\n   JOB_GRES=shard:90\n     Nodes=n1 CPU_IDs=0 Mem=0 GRES=shard:g0:90(90/100)\n"
    (world.folder / "job").write_text(text.replace(real, "").replace("JobName=train", "JobName=x" + forged))

    world.run("prolog", PACKED, "")

    assert "imitate what scontrol prints" in why(world)


@pytest.mark.parametrize(
    ("nodes", "first"),
    [
        ("n1", True),
        ("n[1-3]", True),
        ("n[0-3]", False),
        ("a,n1", False),
        ("n[01-12]", False),
        ("n[1,5]", True),
        ("", True),
    ],
)
def test_whole_gpus_are_asked_of_slurm_once_for_all_nodes(world: World, nodes: str, *, first: bool) -> None:
    done = world.run("prolog", berth(0), "0", SLURM_JOB_NODELIST=nodes)

    assert (done.returncode, done.stderr) == (0, "")
    assert world.asked == ("show job 7 -d\n" if first else "")


def test_a_part_of_a_heterogeneous_job_is_asked_for_alone_and_held_with_all(world: World) -> None:
    head = "JobId=7 HetJobId=7 HetJobOffset=0 JobName=train"
    alone = JOB_TEXT.format(job=7, node=NODE, gres="shard:g0:1(1/100)").replace("JobId=7 JobName=train", head)
    other = JOB_TEXT.format(job=8, node="n2", gres=G3).replace("JobId=8 ", "JobId=8 HetJobId=7 HetJobOffset=1 ")
    (world.folder / "alone").write_text(alone)
    (world.folder / "all").write_text(f"{alone}\n{other}")
    world.scontrol(
        f"""case "$1 $2 $3" in
        "show job 7") exec /bin/cat {world.folder}/all ;;
        "show job 7+0") exec /bin/cat {world.folder}/alone ;;
        requeuehold*) ;;
        *) exit 1 ;;
        esac"""
    )

    world.run("prolog", PACKED, "0")

    assert "requeuehold Incomplete 7\n" in world.asked
    assert "1 % of GPU 0 here" in why(world)
