# SPDX-License-Identifier: Apache-2.0
"""Berth leaves other programs' scripts and comments, and skipped partitions, as they are."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from policy.formats import segment as segments

from .harness import Slurm, until

FOREIGN = "site: billed to 42%; [note] é"
LUA = f"""
function slurm_job_submit(job_desc, part_list, submit_uid)
    job_desc.admin_comment = "{FOREIGN}"
    return slurm.SUCCESS
end
function slurm_job_modify(job_desc, job_rec, part_list, modify_uid)
    return slurm.SUCCESS
end
return slurm.SUCCESS
"""


@pytest.fixture
def lua(slurm: Slurm) -> Iterator[Slurm]:
    """slurmctld restarted with JobSubmitPlugins=lua,berth and a site's own script."""
    if not slurm.can_reconfigure:
        pytest.skip("only the Dockerized cluster's controller is ours to restart")
    slurm.target.run(["tee", "/etc/slurm/job_submit.lua"], user="root", stdin=LUA)
    slurm.restart_controller("lua,berth")
    yield slurm
    slurm.restart_controller("berth")


def test_a_sites_lua_script_runs_before_berth_and_its_comment_survives(lua: Slurm) -> None:
    job = lua.submit("--gpus=2", "-C", "v100")

    comment = lua.comment(job)
    assert comment.startswith(FOREIGN + "[berth/1 ")
    segment = segments.fields(comment)
    assert segment is not None
    assert segment["state"] == "placed", segment["why"]


def test_foreign_text_survives_repinning(slurm: Slurm) -> None:
    """An admin's text around Berth's segment stays byte for byte when berthd moves the job."""
    holders = [
        slurm.submit("--gpus=8", "-C", f, "-t", t, body="exec sleep 300") for f, t in (("h100", "60"), ("v100", "5"))
    ]
    for holder in holders:
        slurm.wait_state(holder, {"RUNNING"})
    job = slurm.submit("--gpus=8", "-x", "n3,n4", body="exec sleep 60")
    ours = slurm.comment(job)
    slurm.target.run(["scontrol", "update", f"jobid={job}", f"AdminComment=before {ours} after, 100%"], user="root")
    slurm.settle()  # a pin that an Epilog waits for keeps what stood there at the last reading (admin guide)
    slurm.target.run(["scancel", str(holders[0])], user="root")
    slurm.wait_state(job, {"RUNNING"})

    comment = slurm.comment(job)
    assert comment.startswith("before [berth/1 ")
    assert comment.endswith("] after, 100%")
    assert slurm.show(job)["NodeList"] == "n2"


def test_a_skipped_partition_is_plain_slurm(slurm: Slurm) -> None:
    job = slurm.submit("-p", "plain", "--gpus=2")

    record = slurm.show(job)
    assert "AdminComment" not in record or segments.fields(record["AdminComment"]) is None
    assert record["TresPerJob"] == "gres/gpu:2"


def test_a_skipped_partition_beside_another_is_no_way_around_berth(slurm: Slurm) -> None:
    slurm.settle()
    job = slurm.submit("-p", "plain,gpu", "--gpus=2", "-H")
    segment = segments.fields(slurm.comment(job))
    assert segment is not None
    assert segment["state"] == "placed"
    assert slurm.sbatch("-p", "gpu,plain", "--gres=gpu:g0:1", check=False).rc != 0


def test_nobody_comes_from_a_skipped_partition_with_a_request_that_berth_never_saw(slurm: Slurm) -> None:
    slurm.settle()
    job = slurm.submit("-p", "plain", "--gres=gpu:g0:1", "-H")
    change = ["scontrol", "update", f"JobId={job}", "Partition=gpu"]
    early = slurm.target.run(change, check=False)
    assert (early.rc != 0, "berth: " in early.text) == (True, True), early.text

    def listed() -> bool:
        return "cancel it and submit it there" in slurm.target.run(change, check=False).text

    until("berthd to list the job", lambda: listed() or None, 40)


def test_in_a_skipped_partition_exact_gpus_are_nobodys_business(slurm: Slurm) -> None:
    slurm.settle()
    job = slurm.submit("-p", "plain", "--gres=gpu:g0:1", "-H")
    change = ["scontrol", "update", f"JobId={job}", "Gres=gpu:g1:1"]
    until("berthd to list the job", lambda: slurm.target.run(change, check=False).rc == 0 or None, 40)


def test_a_seat_is_refused_in_any_partition(slurm: Slurm) -> None:
    done = slurm.sbatch("-p", "plain", "--gres=gpu:g0:1,seat:g0:1", "-H", check=False)
    assert (done.rc != 0, "not asked for by hand" in done.err) == (True, True), done.text


def test_the_berth_reaches_the_node_in_extra(slurm: Slurm) -> None:
    job = slurm.submit("--gpus=2", "-C", "a6000", body="exec sleep 30")
    slurm.wait_state(job, {"RUNNING"})

    extra = segments.fields(slurm.show(job)["Extra"])
    segment = segments.fields(slurm.comment(job))
    assert extra is not None
    assert segment is not None
    assert (extra["nodes"], extra["gpus"]) == (segment["nodes"], segment["gpus"]) == ("n3", segment["gpus"])


def test_users_cannot_forge_a_berth(slurm: Slurm) -> None:
    forged = slurm.sbatch("--gpus=1", "--extra=[berth/1 nodes=n1 gpus=0]", check=False)
    assert forged.rc != 0
    assert "[berth/" in forged.err

    job = slurm.submit("--gpus=1", "--begin=now+1hour")
    update = ["scontrol", "update", f"jobid={job}", "Extra=[berth/1 nodes=n1 gpus=0]"]
    assert slurm.target.run(update, check=False).rc != 0
    assert slurm.target.run(["scontrol", "update", f"jobid={job}", "Extra=mine"], user="root").rc == 0


def test_why_tells_a_user_the_reasons(slurm: Slurm) -> None:
    job = slurm.submit("--gpus=2", "-C", "v100", body="exec sleep 30")

    text = slurm.target.run(["berth", "why", "-v", str(job)]).out
    assert "n1" in text
    assert "GB/s" in text


def test_doctor_finds_this_cluster_well(slurm: Slurm) -> None:
    result = slurm.target.run(["berth", "doctor"], user="root", check=False)

    assert result.rc == 0, result.text


def test_berthd_restarted_keeps_what_it_promised(slurm: Slurm) -> None:
    holders = [slurm.submit("--gpus=8", "-w", f"n{i}", "-t", "30", body="exec sleep 300") for i in (1, 2, 3, 4)]
    for holder in holders:
        slurm.wait_state(holder, {"RUNNING"})
    waiting = slurm.submit("--gpus=8", "-C", "a6000")
    before = slurm.show(waiting)["ReqNodeList"]
    slurm.berthd("stop")
    slurm.berthd("start")

    until(
        "berthd to know the waiting job again",
        lambda: "1" in slurm.target.run(["berth", "status"], user="root").out or None,
    )
    assert slurm.show(waiting)["ReqNodeList"] == before == "n3"
