# SPDX-License-Identifier: Apache-2.0
"""Pre-flights on a real Slurm: a job's script runs first on one GPU, and a failure there costs no more than that."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from .harness import Slurm, job_id, until
from .target import Result
from .test_planner import segment_of
from .test_retry import why

pytestmark = pytest.mark.any_slurm

WHOLE_CLUSTER = "#SBATCH -N4 --gpus-per-node=8 --ntasks-per-node=8 --mem=8000 -t 5\n"
FIRST_STEP = """
if [ "$BERTH_PREFLIGHT" = 1 ]; then
    /opt/berth/bin/python -c 'import time, berth_injob; berth_injob.step(0.1); time.sleep(100)'
    echo "not reached"
fi
"""


def sbatch(
    slurm: Slurm, *words: str, body: str, name: str = "job", check: bool = True, env: str = "", user: str = "alice"
) -> Result:
    """Submits a file, as users do; what it writes goes to the shared folder."""
    file = f"{slurm.shared}/{name}.sh"
    slurm._write(file, f"#!/bin/bash\n{body}\n")
    return slurm.target.bash(
        f"cd {slurm.shared} && {env} sbatch -o {slurm.shared}/%j.out {' '.join(words)} {file}",
        user=user,
        check=check,
    )


def fly(slurm: Slurm, *words: str, body: str, env: str = "", user: str = "alice") -> tuple[int, int]:
    """Submits a job with a pre-flight; the ids of both."""
    result = sbatch(slurm, "--preflight=2", *words, body=body, env=env, user=user)
    found = re.search(r"berth: pre-flight (\d+) runs first", result.err)
    assert found, result.text
    return int(found[1]), job_id(result)


def output(slurm: Slurm, job: int, preflight: bool = False) -> str:
    suffix = ".preflight" if preflight else ""
    return slurm.target.bash(f"cat {slurm.shared}/{job}.out{suffix}", user="root", check=False).out


def gpu_seconds(slurm: Slurm, job: int) -> float:
    """Returns the GPU seconds of a job that has ended."""
    record = slurm.show(job)
    gpus = sum(int(count) for count in re.findall(r"gres/gpu=(\d+)", record["AllocTRES"]))
    hours, minutes, seconds = map(int, record["RunTime"].split(":"))
    return gpus * (hours * 3600 + minutes * 60 + seconds)


def test_a_good_script_runs_on_one_gpu_until_its_first_step_and_then_in_full(slurm: Slurm) -> None:
    body = WHOLE_CLUSTER + 'echo "seen $SLURM_NNODES $SLURM_NTASKS"\nsrun -N4 -n32 bash -c "echo task"' + FIRST_STEP
    first, job = fly(slurm, body=body)
    waiting = slurm.show(job)
    assert f"afterany:{first}" in waiting["Dependency"]
    assert segment_of(slurm, job)["preflight"] == str(first)
    assert segment_of(slurm, first)["preflight"] == "run"

    text = slurm.finish(job)

    assert "seen 4 32\n" in text
    assert text.count("task") == 32
    assert slurm.state(first) == "COMPLETED"
    assert gpu_seconds(slurm, first) <= 60
    flight = output(slurm, first, preflight=True)
    assert "seen 1 1\n" in flight
    assert flight.count("task") == 1
    assert "the first step was done" in flight
    assert "not reached" not in flight


def test_a_typo_costs_a_job_of_32_gpus_less_than_a_gpu_minute(slurm: Slurm) -> None:
    first, job = fly(slurm, body=f"{WHOLE_CLUSTER}{TYPO}")
    slurm.wait_state(job, {"CANCELLED"})
    slurm.wait_state(first, {"FAILED"})

    print(f"{gpu_seconds(slurm, first):.0f} GPU s of the pre-flight, 0 of 32 GPUs")
    assert gpu_seconds(slurm, first) <= 60
    assert slurm.show(job)["RunTime"] == "00:00:00"
    shown = why(slurm, job)
    assert shown["failed"].startswith("in its pre-flight: import_error")
    assert "No module named 'apex_is_not_here'" in shown["known by"]
    assert shown["see"] == f"{slurm.shared}/{first}.out.preflight"


TYPO = "/opt/berth/bin/python -c 'import apex_is_not_here'"


def test_it_needs_no_berthd(slurm: Slurm) -> None:
    slurm.berthd("stop")
    good = fly(slurm, "--gpus=4", body="sleep 1")
    bad = fly(slurm, "--gpus=4", "--retry=auto", body=TYPO)
    ended = [slurm.wait_state(job, {"COMPLETED", "CANCELLED", "FAILED"}) for job in (*good, *bad)]

    assert ended == ["COMPLETED", "COMPLETED", "FAILED", "CANCELLED"]
    assert segment_of(slurm, good[1])["preflight"] == str(good[0])


def test_what_a_script_starts_within_it_is_one_process(slurm: Slurm) -> None:
    body = (
        "#SBATCH --gpus-per-node=4 -N2 --ntasks-per-node=4 -c2\n"
        "srun -N2 -n8 --gpus-per-task=1 --gpu-bind=single:1 -c2 -w $(scontrol show hostnames | head -1) "
        "bash -c 'echo task $SLURM_PROCID of $SLURM_NTASKS on $SLURM_CPUS_ON_NODE' &\n"
        "srun -N2 --ntasks-per-node=4 bash -c 'sleep 3; echo other' &\nwait\n"
        'id=$(sbatch --parsable --gpus=2 --preflight --wrap hostname)\necho "nested [$id] $?"\n'
        "pyhton\n"
    )
    first, job = fly(slurm, "-D", slurm.shared, body=body)
    slurm.wait_state(first, {"FAILED"})
    flight = output(slurm, first, preflight=True)

    assert flight.count("task 0 of 1") == 1
    assert flight.count("other") == 1
    assert "nested [] 0" in flight
    assert "pyhton: command not found" in flight
    slurm.wait_state(job, {"CANCELLED"})
    assert slurm.target.run(["squeue", "-h", "-o", "%i"]).out == ""


def test_a_job_goes_on_without_a_preflight_that_its_user_cancels(slurm: Slurm) -> None:
    up = f"{slurm.shared}/up"
    slurm.target.bash(f"rm -f {up}", user="root")
    body = f'[ "$BERTH_PREFLIGHT" = 1 ] || exit 0\ntouch {up}; sleep 90'
    first, job = fly(slurm, "--preflight=2,must", "--gpus=2", body=body)
    until("the script to run", lambda: slurm.target.bash(f"ls {up}", check=False).rc == 0, 60)
    slurm.target.run(["scancel", str(first)], user="alice")

    slurm.finish(job)
    assert slurm.state(first) == "CANCELLED"


def test_a_preflight_whose_job_was_cancelled_does_not_run_its_script(slurm: Slurm) -> None:
    first, job = fly(slurm, "--begin=now+3", "--gpus=2", body="echo seen")
    slurm.target.run(["scancel", str(job)], user="alice")
    slurm.wait_state(first, {"COMPLETED"}, 120)

    assert "no job waits for this pre-flight" in output(slurm, first, preflight=True)
    assert "seen" not in output(slurm, first, preflight=True)


def test_only_the_jobs_id_is_printed_and_a_dependency_is_added_to_the_users_own(slurm: Slurm) -> None:
    before = slurm.submit("--gpus=1", body="sleep 60")
    result = sbatch(slurm, "--preflight", "--parsable", "--gpus=2", f"-d afterany:{before}", body="true")
    job = int(result.out)
    first = segment_of(slurm, job)["preflight"]

    assert re.fullmatch(r"\d+\n?", result.out)
    assert f"afterany:{first}" in slurm.show(job)["Dependency"]
    assert f"afterany:{before}" in slurm.show(job)["Dependency"]
    assert f"afterany:{before}" in slurm.show(int(first))["Dependency"]
    assert slurm.show(int(first))["TimeLimit"] == "00:11:00"
    quiet = sbatch(slurm, "--preflight", "-Q", "--gpus=2", f"-d afterany:{before}", body="true")
    assert (quiet.out, quiet.err) == ("", "")
    assert len(slurm.target.run(["squeue", "-h"]).out.splitlines()) == 5


CANNOT = {
    "a heterogeneous job has none": ["--gpus=1", ":", "--gpus=1"],
    "an array has none": ["--gpus=1", "--array=3-5"],
    "the job is held": ["--gpus=2", "--hold"],
    "no other dependency can be added": ["--gpus=2", "-d", "afterany:{held}?afterany:{held}"],
    "the job asks for no GPUs": ["-n1"],
}


@pytest.mark.parametrize("reason", CANNOT)
def test_what_cannot_be_preflighted_is_said_and_goes_on_without(slurm: Slurm, reason: str) -> None:
    held = str(job_id(slurm.sbatch("-n1", "--hold")))
    words = [word.replace("{held}", held) for word in CANNOT[reason]]
    result = sbatch(slurm, "--preflight", *map(quoted, words), body="true")
    assert f"no pre-flight: {reason}" in result.err
    assert "afterany:" not in slurm.show(job_id(result))["Dependency"].replace(f"afterany:{held}", "")
    must = sbatch(slurm, "--preflight=5,must", *map(quoted, words), body="true", check=False)
    assert must.rc != 0
    assert reason in must.err
    assert "nothing is submitted" in must.err


def quoted(word: str) -> str:
    return f"'{word}'"


def test_srun_and_salloc_say_that_they_have_none(slurm: Slurm) -> None:
    for command in ("srun", "salloc"):
        result = slurm.target.run([command, "--preflight", "--gpus=1", "-t1", "true"], user="alice")
        assert "no pre-flight: it needs sbatch" in result.err


def test_it_asks_for_one_gpus_part_wherever_the_job_says_what_it_wants(slurm: Slurm) -> None:
    body = "#SBATCH -N2 --exclusive --gpus-per-node=4 --signal=USR1@100 --ntasks-per-node=1"
    env = "SBATCH_MEM_PER_NODE=8000 SBATCH_TIMELIMIT=60"
    first, job = fly(slurm, "--begin=now+3600", "-c8", "--error=elsewhere", body=body, env=env)
    record = slurm.show(first)

    assert {"cpu=2", "mem=2000M", "node=1"} <= set(record["ReqTRES"].split(",")), record["ReqTRES"]
    assert re.fullmatch(r"gres/gpu(:g\d)?:1(,gres/seat:g\d:1)?", record["TresPerNode"])
    assert (record["NumTasks"], record["OverSubscribe"], record["TimeLimit"]) == ("1", "OK", "00:03:00")
    assert record["StdErr"] == f"{slurm.shared}/{first}.out.preflight"
    assert (slurm.show(job)["NumNodes"][0], slurm.show(job)["TimeLimit"]) == ("2", "01:00:00")
    first, job = fly(slurm, "--begin=now+3600", "-n8", "--gpus-per-task=1", "-c2", "--mem=8000", body="true")
    record = slurm.show(first)
    assert {"cpu=2", "mem=1000M", "node=1"} <= set(record["ReqTRES"].split(",")), record["ReqTRES"]
    assert re.fullmatch(r"gres/gpu(:g\d)?:1(,gres/seat:g\d:1)?", record["TresPerNode"])


def test_a_script_from_a_file_or_a_here_document_and_a_wrapped_command(slurm: Slurm) -> None:
    here = slurm.target.bash(
        f"cd {slurm.shared} && sbatch --preflight=1 --gpus=2 -o %j.out <<'EOF'\n#!/bin/bash\necho here $#\nEOF",
        user="alice",
    )
    slurm._write(f"{slurm.shared}/from.sh", "#!/bin/bash\necho here $#\n")
    file = slurm.target.bash(f"cd {slurm.shared} && sbatch --preflight=1 --gpus=2 -o %j.out <from.sh", user="alice")
    wrap = slurm.target.bash(
        f"cd {slurm.shared} && sbatch --preflight=1 --gpus=2 -o %j.out --wrap 'echo here $#'", user="alice"
    )
    pipe = slurm.target.bash(
        f"cd {slurm.shared} && (sleep 1; cat from.sh) | sbatch --preflight=1 --gpus=2 -o %j.out", user="alice"
    )
    for result in (here, file, wrap, pipe):
        first = int(re.findall(r"pre-flight (\d+) runs", result.err)[0])
        assert "here 0" in slurm.finish(job_id(result))
        assert "here 0" in output(slurm, first, preflight=True)


def test_a_preflight_is_not_left_alone_by_a_job_that_is_refused(slurm: Slurm) -> None:
    result = sbatch(slurm, "--preflight", "-w", "nosuch", "--gpus=2", body="sleep 60", check=False)

    assert result.rc != 0
    assert "is cancelled: its job was not submitted" in result.err
    until("nothing to run", lambda: slurm.target.run(["squeue", "-h"]).out == "" or None)


@contextmanager
def site_rule(slurm: Slurm, text: str) -> Iterator[None]:
    conf = "/etc/slurm/berth.conf"
    slurm.target.bash(f"cp {conf} {conf}.kept; printf '\\n[preflight]\\n{text}\\n' >>{conf}", user="root")
    try:
        yield
    finally:
        slurm.target.bash(f"mv {conf}.kept {conf}", user="root")


FAILURES = {
    "too large for one GPU": "echo 'torch.OutOfMemoryError: CUDA out of memory.' >&2; exit 1",
    "a lost peer": "echo 'RuntimeError: NCCL communicator was aborted: Connection reset by peer' >&2; exit 1",
    "nothing known": "exit 3",
    "a typo": TYPO,
}
ENDED_BY = {"--preflight=1": {"nothing known", "a typo"}, "--preflight=1,must": {*FAILURES}, "": {"a typo"}}


def test_only_what_a_user_asked_for_or_a_mistake_ends_a_job(slurm: Slurm) -> None:
    """A job without a flag has its pre-flight by the site's rule, by which no job may fare worse."""
    with site_rule(slurm, "above = 1"):
        jobs = {}
        for flag in ENDED_BY:
            for failure, words in FAILURES.items():
                result = sbatch(slurm, flag, "--gpus=2", body=f'[ "$BERTH_PREFLIGHT" = 1 ] || exit 0\n{words}')
                jobs[flag, failure] = job_id(result)
        ended = {one: slurm.wait_state(job, {"CANCELLED", "COMPLETED", "FAILED"}, 120) for one, job in jobs.items()}

    assert ended == {
        (flag, failure): "CANCELLED" if failure in ENDED_BY[flag] else "COMPLETED" for flag, failure in jobs
    }


@pytest.mark.hard
def test_a_site_gives_large_jobs_a_preflight_in_its_pool(slurm: Slurm) -> None:
    with site_rule(slurm, 'above = 4\\npartition = "other"\\ntime = "1:30"'):
        small = sbatch(slurm, "--gpus=4", body="true")
        without = sbatch(slurm, "--gpus=8", "--preflight=no", body="true")
        large = sbatch(slurm, "--gpus=8", "--mem=16G", "-n8", "-c2", body="sleep 1")
        assert "pre-flight" not in small.err + without.err
        first = int(re.findall(r"pre-flight (\d+) runs first, on one GPU for at most 90 s", large.err)[0])
        record = slurm.show(first)
        assert record["Partition"] == "other"
        assert "cpu=2," in record["ReqTRES"]
        assert "mem=2G" in record["ReqTRES"]
        for result in (small, without, large):
            slurm.finish(job_id(result))


def test_a_preflight_that_does_not_begin_keeps_its_job_no_longer_than_the_site_allows(slurm: Slurm) -> None:
    slurm.hold_gpus("n4", range(8))
    with site_rule(slurm, 'partition = "other"\\nwait = "0:05"'):
        slurm.berthd("stop")
        slurm.berthd("start")
        first, job = fly(slurm, "--gpus=2", body="true")
        slurm.finish(job)
        assert slurm.state(first) == "CANCELLED"
        assert "did not begin within 5 s" in why(slurm, job)["pre-flight"]
    slurm.berthd("stop")
    slurm.berthd("start")
