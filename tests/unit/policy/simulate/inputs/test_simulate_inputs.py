# SPDX-License-Identifier: Apache-2.0
"""What `berth simulate` reads: traces in all their forms, and what it says about broken ones."""

import gzip
import io
import os
import threading
from pathlib import Path

import pytest

from policy.formats.errors import FormatError, UsageError
from policy.simulate.inputs import Trace, read_traces
from policy.simulate.inputs.others import completed, read_events, read_quotas
from policy.simulate.inputs.traces import Unit
from policy.simulate.jobs import TraceJob

DATA = Path(os.environ.get("BERTH_DATA", Path(__file__).parents[6] / "shared" / "data"))

PAL = "job_id,num_gpus,submit_time,duration,model\n"
SACCT = "JobID|User|Account|JobName|Submit|Eligible|Start|End|ElapsedRaw|State|AllocTRES|Timelimit|NNodes\n"
DAY = "2026-10-01T"


def trace(tmp_path: Path, text: str, unit: Unit = "auto", name: str = "trace.csv") -> Trace:
    file = tmp_path / name
    file.write_text(text)
    return read_traces([str(file)], unit)


def problem(tmp_path: Path, text: str, unit: Unit = "auto") -> str:
    with pytest.raises(FormatError) as caught:
        trace(tmp_path, text, unit)
    return str(caught.value)


def line(**values: str) -> str:
    """One line of accounting, with ordinary values where nothing is said."""
    usual = dict.fromkeys(SACCT.strip().split("|"), "") | {
        "JobID": "1",
        "User": "ann",
        "Account": "lab",
        "JobName": "train",
        "Submit": f"{DAY}00:00:00",
        "Start": f"{DAY}00:01:00",
        "End": f"{DAY}01:01:00",
        "ElapsedRaw": "3600",
        "State": "COMPLETED",
        "AllocTRES": "billing=8,cpu=8,gres/gpu=4,mem=1G,node=2",
        "Timelimit": "1-00:00:00",
        "NNodes": "2",
    }
    return "|".join((usual | values).values()) + "\n"


def test_pal_counts_iterations_of_models_it_knows(tmp_path: Path) -> None:
    jobs = trace(tmp_path, PAL + "7,4,98,1000,BERT\n8,1,99,1000,vgg19\n").jobs

    assert jobs[0] == TraceJob("7", 4, 98.0, 179.0, "BERT", "mixed")
    assert jobs[1].work == pytest.approx(300.610341)
    assert jobs[1].app_class == "memory"


def test_pal_counts_seconds_for_other_models_and_says_so(tmp_path: Path) -> None:
    found = trace(tmp_path, PAL + "7,4,98,1000,res18\n")

    assert (found.jobs[0].work, found.jobs[0].app_class) == (1000.0, "compute")
    assert sum(found.notes.values()) == 1


def test_the_unit_can_be_forced(tmp_path: Path) -> None:
    assert trace(tmp_path, PAL + "7,4,98,1000,BERT\n", "seconds").jobs[0].work == 1000.0
    assert 'line 2: no iteration time of model "bert"' in problem(tmp_path, PAL + "7,4,98,9,bert\n", "iterations")


def test_columns_beyond_pals_are_ours_or_ignored(tmp_path: Path) -> None:
    head = "job_id,num_gpus,submit_time,duration,batch_size,class,limit,nodes,user,account\n"

    job = trace(tmp_path, head + "7,8,0,60,512,memory,1:00:00,2,ann,lab\n").jobs[0]

    assert (job.app_class, job.limit, job.nodes, job.user, job.account) == ("memory", 3600.0, 2, "ann", "lab")


def test_sia_draws_the_same_run_times_each_time(tmp_path: Path) -> None:
    text = "name,time,application,num_replicas,batch_size\nncf-0,50,ncf,1,32768\nyolov3-1,60,yolov3,4,128\n"

    small, large = trace(tmp_path, text).jobs

    assert (small, large) == tuple(trace(tmp_path, text).jobs)
    assert 60 <= small.work <= 3600
    assert 10 * 3600 <= large.work * large.gpus <= 100 * 3600


def test_philly_begins_at_its_first_submission(tmp_path: Path) -> None:
    head = "timestamp,duration,num_gpus,gpu_time,cluster\n"

    jobs = trace(
        tmp_path,
        f"{head}2017-10-16 00:01:00,60.0,2,120.0,b\n2017-10-16 00:00:00,30,1,30,a\n2017-10-16 09:00:00,0,1,0,a\n",
    )

    assert [(job.submit, job.work, job.gpus, job.account) for job in jobs.jobs] == [(0, 30, 1, "a"), (60, 60, 2, "b")]
    assert jobs.notes == {"left out: no GPUs or no run time": 1}


def test_sacct_tells_jobs_and_what_really_happened(tmp_path: Path) -> None:
    found = trace(tmp_path, SACCT + line() + line(JobID="1.batch") + line(JobID="1.0"), name="oct.txt")

    (job,) = found.jobs
    assert job == TraceJob("1", 4, 0.0, 3600.0, limit=86_400.0, nodes=2, user="ann", account="lab", name="train")
    assert (found.recorded["1"].start, found.recorded["1"].end) == (60.0, 3660.0)


@pytest.mark.parametrize(
    ("tres", "gpus"),
    [
        ("cpu=4,gres/gpu=8,node=1", 8),
        ("cpu=4,gres/gpu:a100=8,node=1", 8),
        ("gres/gpu:g0=1,gres/gpu:g3=1,cpu=2", 2),
        ("gres/gpu=2,gres/gpu:a100=2", 2),
    ],
)
def test_sacct_counts_gpus_in_every_spelling(tmp_path: Path, tres: str, gpus: int) -> None:
    assert trace(tmp_path, SACCT + line(AllocTRES=tres)).jobs[0].gpus == gpus


def test_sacct_leaves_out_what_tells_nothing_and_counts_it(tmp_path: Path) -> None:
    lines = [
        line(),
        line(JobID="2", State="PENDING", ElapsedRaw="0", Start="Unknown", End="Unknown"),
        line(JobID="3_[4-9]", State="PENDING", Start="Unknown"),
        line(JobID="4", AllocTRES="cpu=4"),
        line(JobID="5", State="CANCELLED by 0", ElapsedRaw="0", AllocTRES="", Start="None"),
        line(JobID="6_1", State="RUNNING", End="Unknown"),
        line(JobID="7+0"),
    ]

    found = trace(tmp_path, SACCT + "".join(lines))

    assert [job.id for job in found.jobs] == ["1", "6_1", "7+0"]
    assert found.notes == {
        "left out: still pending": 2,
        "left out: no GPUs": 1,
        "left out: never ran": 1,
        "still running: the time so far counts as the whole": 1,
    }


def test_sacct_waits_begin_when_a_job_may_start(tmp_path: Path) -> None:
    later = line(JobID="2", Eligible=f"{DAY}00:30:00")

    assert [job.submit for job in trace(tmp_path, SACCT + line() + later).jobs] == [0.0, 1800.0]


def test_sacct_takes_other_columns_and_epoch_seconds(tmp_path: Path) -> None:
    text = "JobID|Submit|Elapsed|ReqTRES\n1|1700000000|1-02:03:04|gres/gpu=2\n2|1700000060|00:10|gres/gpu=1\n"

    first, second = trace(tmp_path, text).jobs

    assert (first.work, first.gpus, second.submit, second.work) == (93_784.0, 2, 60.0, 10.0)


def test_sacct_job_names_may_hold_its_own_mark(tmp_path: Path) -> None:
    job = trace(tmp_path, SACCT + line(JobName='a|b "c|')).jobs[0]

    assert (job.name, job.gpus) == ('a|b "c|', 4)


def test_two_months_of_accounting_name_a_job_once(tmp_path: Path) -> None:
    (tmp_path / "sep").write_text(SACCT + line() + line(JobID="2", State="RUNNING", ElapsedRaw="60"))
    (tmp_path / "oct").write_text(SACCT + line(JobID="2"))

    found = read_traces([str(tmp_path / "sep"), str(tmp_path / "oct")])

    assert {job.id: job.work for job in found.jobs} == {"1": 3600.0, "2": 3600.0}


def test_jobs_of_several_traces_keep_apart(tmp_path: Path) -> None:
    for name in ("a.csv", "b.csv"):
        (tmp_path / name).write_text(PAL + "7,4,98,1000,BERT\n")

    found = read_traces([str(tmp_path / "a.csv"), str(tmp_path / "b.csv")])

    assert [job.id for job in found.jobs] == ["a/7", "b/7"]


def test_gzipped_files_and_standard_input_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    packed = tmp_path / "trace.csv.gz"
    packed.write_bytes(gzip.compress((PAL + "7,4,98,1000,BERT\n").encode()))
    monkeypatch.setattr("sys.stdin", io.StringIO(PAL + "7,4,98,1000,BERT\n"))

    assert read_traces([str(packed)]).jobs == read_traces(["-"]).jobs


def test_a_pipe_is_read_as_a_shell_hands_it_over(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_text, args=(PAL + "7,4,98,1000,BERT\n",))
    writer.start()

    assert len(read_traces([str(pipe)]).jobs) == 1
    writer.join()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "trace.csv: it is empty"),
        ("a,b\n1,2\n", "no known trace has the columns a,b"),
        (PAL, "there is no job to simulate"),
        (PAL + "1,two,3,4,BERT\n", 'line 2, column num_gpus: a number from 1 on is expected, not "two"'),
        (PAL + "\n1,1.5,3,4,BERT\n", "line 3, column num_gpus: a whole number from 1 on is expected"),
        (PAL + "1,1,,4,BERT\n", "line 2, column submit_time: a number from 0 on is expected, but it is empty"),
        (PAL + "1,1,nan,4,BERT\n", "line 2, column submit_time"),
        (PAL + "1,1,-5,4,BERT\n", "line 2, column submit_time"),
        (PAL + "1,1,3,4\n", "line 2: 5 values are expected, 4 are there"),
        (PAL + "1,1,3,4,BERT\n1,1,3,4,BERT\n", "job 1 is there twice"),
        ("job_id,job_id,num_gpus\n", "line 1: column job_id is there twice"),
        ("JobID|Submit|ElapsedRaw\n1|x|2\n", "there is no column AllocTRES"),
        ("JobID|Submit|AllocTRES\n1|x|2\n", "there is no column ElapsedRaw"),
        (SACCT + line(Submit="yesterday"), "line 2, column Submit: a date and time"),
        (SACCT + line(Timelimit="long"), "line 2, column Timelimit: a time"),
        ("name,time,application,num_replicas\nx,1,doom,1\n", "line 2, column application: one of ncf"),
        ("timestamp,duration,num_gpus,cluster\nnoon,1,1,a\n", "line 2, column timestamp: a date and time"),
    ],
)
def test_a_broken_trace_is_named_with_its_place(tmp_path: Path, text: str, says: str) -> None:
    assert says in problem(tmp_path, text)


def test_a_file_that_is_no_text_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "trace.csv"
    file.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(FormatError, match="not UTF-8"):
        read_traces([str(file)])
    file.write_bytes(gzip.compress(PAL.encode())[:-12])
    with pytest.raises(FormatError, match="cannot read"):
        read_traces([str(file)])
    with pytest.raises(FormatError, match="No such file"):
        read_traces([str(tmp_path / "none.csv")])


def test_limits_and_models_are_drawn_where_a_trace_has_none() -> None:
    jobs = [TraceJob(str(number), 1 + number % 2, 0.0, 600.0 * (number + 1)) for number in range(20)]

    drawn = completed(jobs, "drawn", "drawn", 1)

    assert all(job.limit is not None and job.limit >= 1.5 * job.work for job in drawn)
    assert all(bool(job.model) == (job.gpus > 1) for job in drawn)
    assert drawn == completed(jobs, "drawn", "drawn", 1)
    assert drawn != completed(jobs, "drawn", "drawn", 2)
    assert completed(jobs[:1], "2", "trace", 1)[0].limit == 1200.0
    assert completed(jobs, "trace", "trace", 1) == jobs
    for wrong in ("many", "0.5", "nan"):
        with pytest.raises(UsageError, match="--limits"):
            completed(jobs, wrong, "trace", 1)


def test_events_and_quotas(tmp_path: Path) -> None:
    file = tmp_path / "events.csv"
    file.write_text("node,start,end,factor\nn1,0,60,1.5\n0,60,120,down\n")
    slow, down = read_events(str(file), ["n0", "n1"])
    assert (slow.node, slow.factor, down.node, down.factor) == (1, 1.5, 0, float("inf"))

    file.write_text("node,start,end,factor\nn2,0,60,1.5\n")
    with pytest.raises(FormatError, match="column node: a node's name or a number up to 1 is expected"):
        read_events(str(file), ["n0", "n1"])
    file.write_text("node,start,end,factor\nn1,60,60,1.5\n")
    with pytest.raises(FormatError, match="column end"):
        read_events(str(file), ["n0", "n1"])

    file.write_text("account,gpus\nlab,64\n")
    assert read_quotas(str(file)) == {"lab": 64}


@pytest.mark.published
@pytest.mark.skipif(not DATA.is_dir(), reason="BERTH_DATA names no folder of traces")
@pytest.mark.parametrize(
    ("pattern", "jobs"),
    [
        ("pal/traces-sia-philly/*.csv", 160),
        ("pal/traces-shockwave/*.csv", 50),
        ("pal/sia-sosp23/*.csv", 160),
        ("traces/sia-workloads/*.csv.gz", 1_280),
        ("traces/philly/philly_jobs.csv.gz", 81_000),
        ("traces/philly/philly_week_2017-10-16.csv", 14_000),
    ],
)
def test_every_published_trace_is_read(pattern: str, jobs: int) -> None:
    files = sorted(DATA.glob(pattern))
    assert files
    for file in files:
        found = read_traces([str(file)]).jobs
        assert len(found) >= jobs
        assert all(job.work > 0 and job.gpus > 0 for job in found)
