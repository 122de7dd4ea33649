# SPDX-License-Identifier: Apache-2.0
"""The site's own scripts behind berth-prolog and berth-epilog, and jobs with whole GPUs."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from prolog_epilog import chain
from prolog_epilog.errors import NodeSlurmError
from prolog_epilog.job import slurm
from tests.fakes.mps.world import USER
from tests.unit.node_world import JOB_TEXT, NODE, ROOT, World, berth, is_alive
from tests.waiting import until

HEALTH_CHECK = """
# Looks at each GPU of the job before it starts; a bad one takes the node out of service.
for gpu in ${CUDA_VISIBLE_DEVICES//,/ }; do
    state=$(cat "$(dirname "$0")/health-$gpu" 2>/dev/null || echo good)
    echo "gpu $gpu $state" >>"$(dirname "$0")/checked"
    if [ "$state" != good ]; then echo "GPU $gpu is $state"; exit 1; fi
done
"""
GPU_RESET = """
# Resets the GPUs of the job that ended.
IFS=, read -ra gpus <<<"$SLURM_JOB_GPUS"
for gpu in "${gpus[@]}"; do echo "reset -i $gpu" >>"$(dirname "$0")/resets"; done
"""
JOB_STATISTICS = """
# Begins or ends the statistics of a job's group of GPUs.
case $SLURM_SCRIPT_CONTEXT in
prolog_slurmd) verb=begin ;;
epilog_slurmd) verb=end ;;
esac
echo "$verb $SLURM_JOB_ID $SLURM_JOB_UID $GPU_DEVICE_ORDINAL" >>"$(dirname "$0")/statistics"
"""


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


@pytest.fixture
def site(world: World) -> World:
    world.script("site/10-health", HEALTH_CHECK)
    world.script("site/20-statistics", JOB_STATISTICS)
    reset = world.script("reset/gpu-reset", GPU_RESET)
    world.settings["chain_prolog"] = [str(world.folder / "site/[0-9]*")]
    world.settings["chain_epilog"] = [str(world.folder / "site/20-statistics"), str(reset)]
    return world


def written(world: World, name: str) -> list[str]:
    path = world.folder / name
    return path.read_text().splitlines() if path.exists() else []


def test_three_scripts_of_a_site_work_unmodified(site: World) -> None:
    # With one GRES type a GPU, Slurm names the last GPU only.
    assert site.run("prolog", berth(0, 3), "3").returncode == 0
    assert site.run("epilog", berth(0, 3), "3").returncode == 0

    assert written(site, "site/checked") == ["gpu 0 good", "gpu 3 good"]
    assert written(site, "site/statistics") == [f"begin 7 {USER} 0,3", f"end 7 {USER} 0,3"]
    assert written(site, "reset/resets") == ["reset -i 0", "reset -i 3"]
    assert not site.root.exists()


def test_their_verdict_is_passed_on_and_ends_the_chain(site: World) -> None:
    (site.folder / "site/health-0").write_text("hot")

    done = site.run("prolog", berth(0, 3), "3")

    assert done.returncode == 1
    assert "GPU 0 is hot" in done.stdout
    assert "10-health failed with exit status 1" in done.stderr
    assert written(site, "site/statistics") == []


def test_the_exit_status_itself_is_passed_on(world: World) -> None:
    world.settings["chain_epilog"] = [str(world.script("own", "exit 42"))]

    assert world.run("epilog").returncode == 42
    world.script("own", "kill -9 $$")
    assert world.run("epilog").returncode == 137


def test_the_scripts_see_slurmds_environment_and_the_right_gpus(world: World) -> None:
    world.settings["chain_prolog"] = [str(world.script("own", f"/usr/bin/env >{world.folder}/seen"))]

    # As an AMD or Intel plugin of Slurm's would say it.
    world.run("prolog", berth(0, 3), "3", ROCR_VISIBLE_DEVICES="3", SLURM_JOB_COMMENT="$(touch /tmp/owned); `id`")

    seen = dict(line.split("=", 1) for line in written(world, "seen"))
    sent = world.slurmd("prolog", berth(0, 3), "3")
    right = dict.fromkeys((*chain.GPU_VARIABLES, "ROCR_VISIBLE_DEVICES"), "0,3")
    of_the_shell = {"PWD", "SHLVL", "_", "OLDPWD"}
    assert {name: value for name, value in seen.items() if name not in of_the_shell} == {
        **sent,
        **right,
        "SLURM_JOB_COMMENT": "$(touch /tmp/owned); `id`",
    }


@pytest.mark.parametrize("left_out", [("GPU_DEVICE_ORDINAL",), ("CUDA_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL")])
def test_a_variable_that_gres_conf_turns_off_stays_off(left_out: tuple[str, ...]) -> None:
    base = {name: "3" for name in chain.GPU_VARIABLES if name not in left_out}

    assert chain.environment(base, (0, 3), {}) == dict.fromkeys(base, "0,3")
    assert chain.environment(base, (), {}) == {}


def test_a_guest_of_whom_slurm_names_no_gpu_has_the_common_variables() -> None:
    assert chain.environment({}, (2,), {}) == dict.fromkeys(chain.GPU_VARIABLES, "2")


def test_minors_are_told_where_they_are_not_positions(site: World) -> None:
    for minor in (0, 1, 2):
        (site.dev / f"nvidia{minor}").unlink()

    site.run("epilog", berth(0, 2), "5")

    assert written(site, "reset/resets") == ["reset -i 3", "reset -i 5"]


def test_a_job_without_a_berth_is_asked_of_slurm_once(site: World) -> None:
    site.slurm_knows("gpu:g0:0(IDX:),gpu:g1:1(IDX:1),gpu:g4:1(IDX:4)")

    site.run("prolog", gpus="4")

    assert site.asked == "show job 7 -d\n"
    assert written(site, "site/checked") == ["gpu 1 good", "gpu 4 good"]


def over(site: World, gres: str = "gpu:g1:1,gpu:g4:1") -> None:
    """The job of the next call is at its end: Slurm has forgotten its GPUs, and knows the sum over all its nodes."""
    text = JOB_TEXT.format(job=7, node=NODE, gres="").replace("JOB_GRES=gpu:2", f"JOB_GRES={gres}")
    (site.folder / "job").write_text(text.replace("JobState=RUNNING", "JobState=COMPLETING"))


def test_the_epilog_is_told_what_slurm_has_forgotten(site: World) -> None:
    site.slurm_knows("gpu:g1:1(IDX:1),gpu:g4:1(IDX:4)")
    site.run("prolog", gpus="4", SLURM_JOB_START_TIME="1700000000", SLURM_JOB_NODELIST="n[1-2]")
    over(site, "gpu:g1:2,gpu:g4:2")
    asked = site.asked
    (kept,) = (site.root / "given").iterdir()
    assert (stat.S_IMODE(kept.stat().st_mode), stat.S_IMODE(kept.parent.stat().st_mode)) == (0o600, 0o700)

    site.run("epilog", gpus="4", SLURM_JOB_START_TIME="1700000000", SLURM_JOB_NODELIST="n[1-2]")

    assert written(site, "reset/resets") == ["reset -i 1", "reset -i 4"]
    assert site.asked == asked, "it costs no question"
    assert list((site.root / "given").iterdir()) == []


def test_what_was_kept_of_another_run_is_not_believed(site: World) -> None:
    site.slurm_knows("gpu:g1:1(IDX:1),gpu:g4:1(IDX:4)")
    site.run("prolog", gpus="4", SLURM_JOB_START_TIME="1700000000", SLURM_JOB_NODELIST="n[1-2]")
    over(site)

    site.run("epilog", gpus="6", SLURM_JOB_START_TIME="1700000099", SLURM_JOB_NODELIST="n[1-2]")

    # Of the GPUs of this run one is known, by Slurm's own word.
    assert written(site, "reset/resets") == ["reset -i 6"]
    assert [one.name for one in (site.root / "given").iterdir()] == ["7"]


@pytest.mark.parametrize(("nodes", "expected"), [(NODE, ["1", "4"]), ("n[1-2]", ["4"])])
def test_where_the_prolog_kept_nothing_the_sum_counts_for_a_job_of_one_node(
    site: World, nodes: str, expected: list[str]
) -> None:
    """As after an update of Berth while a job runs, or where the Prolog never ran."""
    site.slurm_knows("")
    over(site)

    site.run("epilog", gpus="4", SLURM_JOB_NODELIST=nodes)

    assert written(site, "reset/resets") == [f"reset -i {gpu}" for gpu in expected]


@pytest.mark.parametrize(("nodes", "expected"), [(NODE, ["1", "4"]), ("n[1-2]", ["4"])])
def test_a_prolog_of_a_job_that_ends_already_tells_the_gpus_that_slurm_still_names(
    site: World, nodes: str, expected: list[str]
) -> None:
    """As when a job is cancelled while its Prolog runs: its scripts set up what the Epilog's scripts take back."""
    site.slurm_knows("")
    over(site)

    site.run("prolog", gpus="4", SLURM_JOB_NODELIST=nodes)

    assert written(site, "site/checked") == [f"gpu {gpu} good" for gpu in expected]


def test_a_job_whose_extra_tells_its_gpus_costs_no_file(site: World) -> None:
    site.run("prolog", berth(1, 4), "4")

    assert not (site.root / "given").exists()


@pytest.mark.parametrize("text", ["", "berth-given/1 start=0 gpus=\n", "berth-given/1 start=0 gpus=1;x\n", "\x00"])
def test_a_file_that_says_nothing_is_not_believed(site: World, text: str) -> None:
    site.slurm_knows("")
    over(site)
    (site.root / "given").mkdir(parents=True)
    (site.root / "given" / "7").write_text(text)

    site.run("epilog", gpus="4", SLURM_JOB_NODELIST=NODE)

    assert written(site, "reset/resets") == ["reset -i 1", "reset -i 4"]


def test_a_job_without_gpus_asks_nobody(site: World) -> None:
    assert site.run("prolog").returncode == 0
    assert site.asked == ""
    assert written(site, "site/statistics") == [f"begin 7 {USER} "]


@pytest.mark.parametrize(
    ("body", "says"),
    [
        pytest.param("exec /bin/sleep 30", "did not end within 1 s", marks=pytest.mark.slow),
        ("echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1", "Invalid job id specified"),
        ("exit 0", "shows nothing of job 7"),
        ("echo 'JobId=7 JobName=train'", "job 7 is about to end"),
    ],
)
def test_a_slurm_that_does_not_answer_costs_a_second_and_no_node(site: World, body: str, says: str) -> None:
    site.scontrol(body)
    if "sleep" in body:
        del site.settings["scontrol_timeout"]
    start = time.monotonic()

    done = site.run("prolog", gpus="4")

    assert done.returncode == 0
    assert says in done.stderr
    assert time.monotonic() - start < 25
    assert written(site, "site/checked") == ["gpu 4 good"]


def test_a_guests_seat_is_nothing_that_a_script_may_reset(site: World) -> None:
    # Slurm names no GPU for a seat: it is on the GPU of another job.
    assert site.run("epilog", berth(2)).returncode == 0
    assert written(site, "reset/resets") == []


def test_an_extra_that_names_other_gpus_than_slurm_is_not_believed(site: World) -> None:
    site.slurm_knows("gpu:g3:1(IDX:3)")

    done = site.run("prolog", berth(0, 1), "3")

    assert done.returncode == 0
    assert "the job's Extra names GPUs 0,1, and Slurm gave it 3: these count" in done.stderr
    assert written(site, "site/checked") == ["gpu 3 good"]
    site.run("epilog", berth(0, 1), "3")
    assert written(site, "reset/resets") == ["reset -i 3"]


def test_nor_where_slurm_does_not_answer(site: World) -> None:
    site.scontrol("exit 1")

    done = site.run("prolog", berth(0, 1), "3")

    assert done.returncode == 0
    assert "names other GPUs than Slurm gave it (3)" in done.stderr
    assert written(site, "site/checked") == ["gpu 3 good"]


@pytest.mark.slow
def test_a_script_that_hangs_is_ended_with_all_it_started(world: World) -> None:
    body = f"/bin/sleep 1000 & echo $! >{world.folder}/child; wait"
    world.settings |= {"chain_prolog": [str(world.script("own", body))], "chain_timeout": 1}

    done = world.run("prolog", berth(0), "0")

    assert done.returncode == 1
    assert "own did not end within 1 s; find out what it waits for" in done.stderr
    until("its child to be gone", lambda: not is_alive(int(written(world, "child")[0])))


def test_what_a_script_leaves_behind_does_not_hold_the_prolog(world: World) -> None:
    world.settings["chain_prolog"] = [
        str(world.script("own", f"/bin/sleep 1000 >/dev/null 2>&1 & echo $! >{world.folder}/child"))
    ]

    assert world.run("prolog", berth(0), "0").returncode == 0
    # As Slurm itself does with what a Prolog leaves in its process group.
    until("its child to be gone", lambda: not is_alive(int(written(world, "child")[0])))


def test_slurms_own_time_out_ends_the_scripts_too(world: World) -> None:
    body = f"echo $$ >{world.folder}/child; exec /bin/sleep 1000"
    world.settings["chain_prolog"] = [str(world.script("own", body))]
    program = world.start("prolog", berth(0), "0")
    while not written(world, "child"):
        time.sleep(0.01)

    os.killpg(program.pid, signal.SIGTERM)

    assert program.wait(10) == 1
    until("its child to be gone", lambda: not is_alive(int(written(world, "child")[0])))


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (lambda path: path.unlink(), "No such file or directory; mend [node] chain_prolog"),
        (lambda path: path.chmod(0o644), "it is not executable; chmod +x"),
        (lambda path: path.chmod(0o777), "others than root may write it"),
        (lambda path: (path.unlink(), path.mkdir()), "it is not a file"),
    ],
    ids=["missing", "not executable", "writable by all", "folder"],
)
def test_a_script_that_root_must_not_run_is_left_out(world: World, spoil: object, says: str) -> None:
    first, last = world.script("first", "exit 1"), world.script("last", f"touch {world.folder}/ran")
    world.settings["chain_prolog"] = [str(first), str(last)]
    spoil(first)  # type: ignore[operator]

    done = world.run("prolog", berth(0), "0")

    assert done.returncode == 0
    assert says in done.stderr
    assert (world.folder / "ran").exists()


def test_a_script_without_its_interpreter_fails_as_with_slurm(world: World) -> None:
    world.settings["chain_prolog"] = [str(world.script("own", "exit 0", interpreter="/bin/no-such-shell"))]

    done = world.run("prolog", berth(0), "0")

    assert done.returncode == 127
    assert "does its first line name a shell?" in done.stderr


def test_a_wrong_berth_conf_takes_no_node_out_of_service(world: World) -> None:
    world.settings["chain_prolg"] = []

    done = world.run("prolog", berth(0), "0")

    assert done.returncode == 0
    assert "did you mean chain_prolog?; until then nothing is chained" in done.stderr
    assert "Traceback" not in done.stderr


def test_each_call_is_a_line_of_the_log(world: World) -> None:
    world.settings |= {"log": str(world.folder / "log"), "chain_prolog": [str(world.folder / "missing")]}

    world.run("prolog", berth(0), "0")
    world.run("epilog", berth(0), "0")

    lines = [line.split("\t") for line in written(world, "log")]
    assert [line[1:3] for line in lines] == [["prolog", "7"], ["epilog", "7"]]
    assert abs(float(lines[0][0]) - time.time()) < 60
    assert int(lines[0][3]) > 0
    assert lines[0][4:] == ["0", lines[0][5]]
    assert "missing is left out" in lines[0][5]


@pytest.mark.parametrize("change", [{"SLURM_JOB_ID": "7;reboot"}, {"SLURMD_NODENAME": "../n1"}, {"SLURM_JOB_UID": ""}])
def test_a_call_that_is_not_slurmds_does_nothing(world: World, change: dict[str, str]) -> None:
    world.settings["chain_prolog"] = [str(world.script("own", f"touch {world.folder}/ran"))]

    world.environment = change

    assert world.run("prolog", berth(0), "0").returncode == 0
    assert not (world.folder / "ran").exists()


def test_by_hand_it_says_what_it_is_for(world: World) -> None:
    done = world.run("prolog", SLURM_SCRIPT_CONTEXT="epilog_slurmd")

    assert "berth-prolog is slurmd's Prolog, and runs nowhere else" in done.stderr


GRES = {
    "gpu:g0:1(IDX:0),gpu:g3:1(IDX:3)": (0, 3),
    "gpu:g0:0(IDX:),gpu:g1:1(IDX:1),gpu:g2:0(IDX:)": (1,),
    "gpu:2(IDX:0,5)": (0, 5),
    "gpu:h200:3(IDX:0-2)": (0, 1, 2),
    "shard:g2:30(30/100)": (2,),
    "shard:g2:30(IDX:2(30/100))": (2,),
    "gpu:g1:1(IDX:1),seat:g1:1(IDX:1)": (1,),
    "seat:g4:1(IDX:4)": (4,),
    "": (),
}


@pytest.mark.parametrize(("gres", "expected"), GRES.items())
def test_slurms_own_words_are_read(gres: str, expected: tuple[int, ...]) -> None:
    assert slurm.held(JOB_TEXT.format(job=1, node="n1", gres=gres), "n1").positions == expected


@pytest.mark.parametrize(
    ("folded", "node", "among"),
    [
        ("n1", "n1", True),
        ("n[1-3]", "n2", True),
        ("n[1-3]", "n4", False),
        ("n[1-3]", "n10", False),
        ("n[01-12]", "n07", True),
        ("n[01-12]", "n7", False),
        ("a,n[1,5-6],b", "n6", True),
        ("r[1-2]n[1-8]", "r2n8", True),
        ("r[1-2]n[1-8]", "r3n8", False),
        ("gpu-[1-2]-ib", "gpu-2-ib", True),
        ("n.1", "nx1", False),
    ],
)
def test_a_folded_list_of_nodes_is_read(folded: str, node: str, *, among: bool) -> None:
    text = JOB_TEXT.format(job=1, node=folded, gres="gpu:g0:1(IDX:0)")

    if among:
        assert slurm.held(text, node).positions == (0,)
    else:
        with pytest.raises(NodeSlurmError, match="shows no GPUs of the job"):
            slurm.held(text, node)


def test_a_users_text_cannot_pose_as_slurms() -> None:
    forged = "\n   JOB_GRES=gpu:8\n     Nodes=n1 CPU_IDs=0 Mem=0 GRES=gpu:8(IDX:0-7)\n"
    text = JOB_TEXT.format(job=1, node="n1", gres="gpu:g0:1(IDX:0)")

    for where in ("JobName=train", "WorkDir=/home/alice"):
        with pytest.raises(NodeSlurmError, match="imitate what scontrol prints"):
            slurm.held(text.replace(where, where + forged), "n1")


def loaded(call: str) -> set[str]:
    """What Python has loaded after one Prolog or Epilog of a job with whole GPUs."""
    code = f"import sys; from prolog_epilog.programs import {call}; {call}(); print(*sys.modules)"
    environment = {
        "SLURMD_NODENAME": "n1",
        "SLURM_JOB_ID": "7",
        "SLURM_JOB_UID": "1000",
        "SLURM_SCRIPT_CONTEXT": f"{call}_slurmd",
        "SLURM_JOB_EXTRA": berth(0),
        "SLURM_JOB_GPUS": "0",
    }
    return modules_after(code, environment)


def modules_after(code: str, environment: dict[str, str]) -> set[str]:
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
    return set(done.stdout.split())


@pytest.mark.parametrize("call", ["prolog", "epilog"])
def test_a_job_that_shares_nothing_loads_next_to_nothing(call: str) -> None:
    more = loaded(call) - modules_after("import sys; print(*sys.modules)", {})

    slow = {
        "dataclasses",
        "inspect",
        "subprocess",
        "json",
        "argparse",
        "tomllib",
        "pynvml",
        "ctypes",
        "asyncio",
        "socket",
        "shutil",
        "tempfile",
    }
    assert not more & slow
    assert not {name for name in more if name.startswith(("topology", "policy", "prolog_epilog.mps"))}
    assert len(more) < 62
