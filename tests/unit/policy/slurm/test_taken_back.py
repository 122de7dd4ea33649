"""slurmctld writes lists of nodes before it looks at licences and GRES: a pin that it then refuses is taken back."""

import shutil
from pathlib import Path

import pytest

from policy.formats.errors import SlurmError
from policy.slurm.by_command.command import CommandGateway
from policy.slurm.by_command.recorded import recorded_gateway
from policy.slurm.interface import Pin

DATA = Path(__file__).parents[2] / "data"
PLACE = Pin(("n3",), (0, 5), seats=True, values={"state": "placed", "why": "50 % [x]"}, others="n[1-2]")


@pytest.mark.parametrize(
    ("said", "puts_back"),
    [
        ("Invalid license specification", True),
        ("Invalid generic resource (gres) specification", True),
        ("Invalid GRES specification (with and without type identification)", True),
        ("Job is no longer pending execution", False),
        ("Unable to contact slurm controller (connect failure)", False),
    ],
)
def test_nodes_are_taken_back_where_slurm_wrote_them_and_refused_the_rest(
    tmp_path: Path, said: str, puts_back: bool
) -> None:
    folder = Path(shutil.copytree(DATA / "slurm-26.05", tmp_path / "recording"))
    shutil.copy(folder / "squeue-json", folder / "scontrol-json")
    reads, updates = recorded_gateway(folder)._bytes, []

    def run(*words: str) -> bytes:
        if words[:2] == ("scontrol", "update"):
            updates.append(words[2:])
            raise SlurmError(f"scontrol update failed: {said}")
        return reads(*words)

    gateway = CommandGateway(run)
    job = next(job for job in gateway.read(ended=False).jobs if job.state == "PENDING" and not job.array)

    with pytest.raises(SlurmError, match="scontrol update failed"):
        gateway.pin(job.id, PLACE)

    back = (f"JobId={job.id}", f"ReqNodeList={','.join(job.required)}", "ExcNodeList=")
    assert updates[1:] == [back] * puts_back


def test_a_change_in_an_inactive_partition_is_written_though_slurm_reports_an_error(tmp_path: Path) -> None:
    folder = Path(shutil.copytree(DATA / "slurm-26.05", tmp_path / "recording"))
    shutil.copy(folder / "squeue-json", folder / "scontrol-json")
    reads, updates = recorded_gateway(folder)._bytes, []

    def run(*words: str) -> bytes:
        if words[:2] == ("scontrol", "update"):
            updates.append(words)
            raise SlurmError("scontrol update failed: Requested partition configuration not available now for job 7")
        return reads(*words)

    gateway = CommandGateway(run)
    job = next(job for job in gateway.read(ended=False).jobs if job.state == "PENDING" and not job.array)

    gateway.pin(job.id, PLACE)
    assert len(updates) == 1
