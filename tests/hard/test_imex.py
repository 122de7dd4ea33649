# SPDX-License-Identifier: Apache-2.0
"""Slurm's IMEX channels (switch/nvidia_imex) beside Berth, without a driver: who can open which, and who waits."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from tests.hard.test_profiles import VERSIONS, configured
from tests.slurm.harness import Slurm, until
from tests.slurm.test_blocks import CONF, RESTART

COUNT = 3
TURN_ON = f"""
printf '{CONF}' > /etc/slurm/topology.conf
cat >> /etc/slurm/slurm.conf <<'END'
TopologyPlugin=topology/block
SwitchType=switch/nvidia_imex
SwitchParameters=imex_dev_major=240,imex_channel_count={COUNT}
END
{RESTART}"""
SEE = "echo at $SLURMD_NODENAME $(ls /dev/nvidia-caps-imex-channels)"
PER_SEGMENT = "--network=unique-channel-per-segment"
pytestmark = [pytest.mark.hard, pytest.mark.timeout(600)]


@pytest.fixture(scope="module", params=VERSIONS)
def imex(request: pytest.FixtureRequest) -> Iterator[Slurm]:
    yield from configured(str(request.param), "base", TURN_ON)


def channels(slurm: Slurm, *asked: str, body: str = "") -> dict[str, str]:
    """The channel files that a job sees on each node; by a step, or as `body` looks."""
    job = slurm.submit(*asked, body=body or f"srun --ntasks-per-node=1 bash -c '{SEE}'")
    return dict(re.findall(r"at (\w+) ?(\w*)", slurm.finish(job, 60)))


def per_segment(slurm: Slurm) -> bool:
    """Slurm has channels of segments from 25.11 on."""
    return slurm.version >= (25, 11)


@pytest.mark.parametrize("asked", [("-N1", "--gpus=1"), ("-N4", "--gpus-per-node=8"), ("-p", "plain", "-N4")])
def test_a_job_has_one_channel_on_all_its_nodes(imex: Slurm, asked: tuple[str, ...]) -> None:
    seen = channels(imex, *asked)
    assert len(seen) == (1 if "-N1" in asked else 4)
    assert set(seen.values()) == {"channel1"}


def test_a_batch_script_sees_no_channel_on_24_11(imex: Slurm) -> None:
    assert set(channels(imex, "-N1", "--gpus=1", body=SEE).values()) == {"channel1" if per_segment(imex) else ""}


def test_two_jobs_have_two_channels(imex: Slurm) -> None:
    held = imex.submit("-N1", "--gpus=1", body="sleep 60")
    imex.wait_state(held, {"RUNNING"})
    assert set(channels(imex, "-N2", "--gpus-per-node=1").values()) == {"channel2"}
    imex.clear()


@pytest.mark.parametrize("group", [("--group=16",), ("-p", "plain", "--segment=2")])
def test_each_segment_has_a_channel_where_its_user_asks_for_that(imex: Slurm, group: tuple[str, ...]) -> None:
    seen = channels(imex, "-N4", "--gpus-per-node=8", *group, PER_SEGMENT)
    assert (seen["n1"], seen["n3"]) == (seen["n2"], seen["n4"])
    assert len(set(seen.values())) == (2 if per_segment(imex) else 1)


def test_a_job_of_more_segments_than_channels_starts_without_any(imex: Slurm) -> None:
    """Slurm looks for one free channel before the start, and gives all back when it finds too few (26.05)."""
    seen = channels(imex, "-N4", "--gpus-per-node=8", "--group=8", PER_SEGMENT)
    assert set(seen.values()) == ({""} if per_segment(imex) else {"channel1"})


def test_without_a_free_channel_a_job_waits_and_on_24_11_starts_without(imex: Slurm) -> None:
    """Of so many channels 24.11 counts channel 0, which is nobody's, as one."""
    most = COUNT if per_segment(imex) else COUNT - 1
    held = [imex.submit("-N1", "--gpus=1", body="sleep 120") for _ in range(most)]
    for job in held:
        imex.wait_state(job, {"RUNNING"})
    late = imex.submit("-N1", "--gpus=1", body=f"srun bash -c '{SEE}'")
    if per_segment(imex):
        until("Slurm to say why", lambda: imex.show(late)["Reason"] == "NvidiaImexChannels" or None, 30)
        why = ["berth", "why", str(late)]
        until("berthd to say so too", lambda: "IMEX channels" in imex.target.run(why).out or None, 60)
        imex.target.run(["scancel", str(held[0])], user="root")
    found = re.search(r"at \w+ ?(\w*)", imex.finish(late, 60))
    assert found is not None
    assert found[1] == ("channel1" if per_segment(imex) else "")
    imex.clear()
