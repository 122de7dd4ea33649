# SPDX-License-Identifier: Apache-2.0
"""A warning to a job that has just ended must not keep berthd waiting: scancel would try for a minute and a half."""

import shutil
from pathlib import Path

import pytest

from policy.formats.errors import SlurmError
from policy.slurm.by_command.command import CommandGateway, run_command
from policy.slurm.by_command.recorded import recorded_gateway

DATA = Path(__file__).parents[2] / "data"
SCANCEL = r"""#!/bin/bash
# What scancel does for a job that waits or ends.
[[ " $* " == *" --ctld "* ]] || exec sleep 60
echo "$*" >$SAID
[ -z "$REFUSED" ] || echo "scancel: error: Kill job error on job id 7: Job can not be altered now, try again later" >&2
"""


@pytest.fixture
def gateway(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CommandGateway:
    """Slurm as it was recorded, but for scancel."""
    folder = Path(shutil.copytree(DATA / "slurm-26.05", tmp_path / "recording"))
    shutil.copy(folder / "squeue-json", folder / "scontrol-json")
    (tmp_path / "scancel").write_text(SCANCEL)
    (tmp_path / "scancel").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setenv("SAID", str(tmp_path / "said"))
    recorded = recorded_gateway(folder)._bytes
    return CommandGateway(lambda *words: (run_command if words[0] == "scancel" else recorded)(*words))


@pytest.mark.timeout(30)
def test_a_job_that_has_just_ended_is_not_warned_and_nobody_waits(
    gateway: CommandGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REFUSED", "yes")
    job = gateway.read(ended=False).jobs[0]
    with pytest.raises(SlurmError, match="can not be altered now"):
        gateway.warn(job.id, "USR1")


@pytest.mark.timeout(30)
def test_a_warning_goes_to_the_job_alone(gateway: CommandGateway, tmp_path: Path) -> None:
    job = next(job for job in gateway.read(ended=False).jobs if not job.array)
    gateway.warn(job.id, "USR1", batch=True)
    assert (tmp_path / "said").read_text().split() == ["--ctld", "--batch", "-s", "USR1", str(job.id)]


def test_what_a_user_has_set_for_slurms_commands_narrows_no_reading(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "squeue").write_text("#!/bin/sh\nenv\n")
    (tmp_path / "squeue").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    for name in ("SQUEUE_PARTITION", "SQUEUE_ARRAY", "SINFO_STATES", "SCANCEL_INTERACTIVE", "SLURM_CONF"):
        monkeypatch.setenv(name, "x")
    seen = run_command("squeue").decode()
    assert [word for word in ("SQUEUE_", "SINFO_", "SCANCEL_") if word in seen] == []
    assert "SLURM_CONF=x" in seen
