# SPDX-License-Identifier: Apache-2.0
"""The flags as users meet them: in the help, on the command line, in #SBATCH lines, and when they are wrong."""

from __future__ import annotations

import pytest

from policy.formats import segment as segments

from .harness import PROBE, Slurm, job_id, seen

FLAGS = {
    "--locality": "nvlink@10:00",
    "--app-class": "memory",
    "--gpu-tier": "guaranteed",
    "--gpu-share": "30",
    "--gpu-mem": "10G",
    "--preflight": "5",
    "--movable": "2:00",
    "--retry": "auto",
}
BAD = (
    "--locality=rack",
    "--locality=nvlink@soon",
    "--app-class=fast",
    "--gpu-tier=gold",
    "--gpu-share=0",
    "--gpu-share=130",
    "--gpu-mem=lots",
    "--preflight=never",
    "--movable=-3",
    "--retry=always",
)


@pytest.mark.parametrize("command", ["sbatch", "srun", "salloc"])
def test_help_lists_every_flag(slurm: Slurm, command: str) -> None:
    text = slurm.target.run([command, "--help"]).text

    assert [flag for flag in FLAGS if flag not in text] == []


@pytest.mark.parametrize("bad", BAD)
def test_a_bad_value_is_refused_with_a_sentence_and_nothing_is_submitted(slurm: Slurm, bad: str) -> None:
    result = slurm.sbatch(bad, "--gpus=1", check=False)

    assert result.rc != 0
    flag, value = bad.split("=")
    assert flag in result.err
    assert value.split("@")[-1] in result.err
    assert not slurm.target.run(["squeue", "-h"]).out


@pytest.mark.parametrize("command", ["srun", "salloc"])
def test_srun_and_salloc_refuse_too(slurm: Slurm, command: str) -> None:
    result = slurm.target.run([command, "--gpu-share=130", "--gpus=1", "true"], check=False)

    assert result.rc != 0
    assert "--gpu-share" in result.err
    assert "1 to 100" in result.err


def test_a_bad_sbatch_line_is_refused(slurm: Slurm) -> None:
    result = slurm.sbatch(head="#SBATCH --gpus=1\n#SBATCH --locality=moon", check=False)

    assert result.rc != 0
    assert "moon" in result.err


@pytest.mark.parametrize("without", [["--gpu-tier"], ["--gpu-share", "--gpu-mem"]])
def test_all_flags_are_kept_in_the_admin_comment(slurm: Slurm, without: list[str]) -> None:
    """A packed job has no tier."""
    flags = {flag: value for flag, value in FLAGS.items() if flag not in without}
    job = slurm.submit("--gpus=2", "-C", "h100", *(f"{flag}={value}" for flag, value in flags.items()))

    segment = segments.fields(slurm.comment(job))
    assert segment is not None
    assert {f"--{key[2:]}": value for key, value in segment.items() if key.startswith("f.")} == flags


def test_sbatch_lines_do_what_options_do(slurm: Slurm) -> None:
    head = "#SBATCH --gpus=2\n#SBATCH -C a6000\n#SBATCH --locality=nvlink@1"
    job = slurm.submit(head=head)

    segment = segments.fields(slurm.comment(job))
    assert segment is not None
    assert segment["f.locality"] == "nvlink@1"
    assert segment["level"] == "nvlink"
    assert len(seen(slurm.finish(job))[0].gpus) == 2


def test_a_flag_without_gpus_is_not_silent(slurm: Slurm) -> None:
    result = slurm.sbatch("-n1", "--locality=nvlink")

    assert "no GPUs" in result.err
    slurm.finish(job_id(result))


@pytest.mark.parametrize(
    "words",
    [
        ["srun", "--locality=nvlink", "--gpus=2", "-C", "a6000", "-n1", "-t1"],
        ["salloc", "-Q", "--locality=nvlink", "--gpus=2", "-C", "a6000", "-n1", "-t1", "srun"],
    ],
)
def test_srun_and_salloc_get_a_berth_too(slurm: Slurm, words: list[str]) -> None:
    result = slurm.target.run([*words, f"{slurm.shared}/probe.sh"])

    gpus = seen(result.out)[0].gpus
    machine = slurm.machines["n3"]
    assert len(gpus) == 2
    assert machine.gbps[gpus[0]][gpus[1]] > 0


def test_locality_that_no_machine_can_give_is_refused(slurm: Slurm) -> None:
    result = slurm.sbatch("--gpus=4", "-C", "l40s", "--locality=nvlink", check=False)

    assert result.rc != 0
    assert "nvlink" in result.err


@pytest.mark.parametrize("gres", ["gpu:g1:1", "shard:10", "seat:1", "gpu:g0:1,gpu:g1:1", "shard:g0:10"])
def test_users_cannot_ask_for_exact_gpus_shards_or_seats(slurm: Slurm, gres: str) -> None:
    result = slurm.sbatch(f"--gres={gres}", check=False)

    assert result.rc != 0
    assert "berth" in result.err.lower()
    assert not slurm.target.run(["squeue", "-h"]).out


def test_probe_outside_a_gpu_job_opens_nothing(slurm: Slurm) -> None:
    """The isolation that every other test relies on."""
    assert slurm.run_probe("-n1", "--mem=50")[0].gpus == ()
    assert "PROBE" in PROBE
