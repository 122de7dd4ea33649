# SPDX-License-Identifier: Apache-2.0
"""The paths of the node side's files. Tests give other roots; nothing here comes from a user's environment."""

import re
from dataclasses import dataclass
from pathlib import Path

from prolog_epilog.errors import StateError

#: A UUID or the name of a set: it becomes a file name, so nothing else is allowed.
_NAME = re.compile(r"[A-Za-z0-9-]{1,64}")


@dataclass(frozen=True, slots=True)
class Paths:
    """The files and folders on a node."""

    root: Path = Path("/run/berth")
    boot_id: Path = Path("/proc/sys/kernel/random/boot_id")
    #: Exists if systemd is process 1.
    systemd: Path = Path("/run/systemd/system")
    systemd_run: Path = Path("/usr/bin/systemd-run")
    systemctl: Path = Path("/usr/bin/systemctl")

    @property
    def jobs(self) -> Path:
        """The folder of the share files."""
        return self.root / "jobs"

    @property
    def gpus(self) -> Path:
        """A folder for each GPU that is shared now."""
        return self.root / "gpus"

    @property
    def mps(self) -> Path:
        """A folder for each MPS daemon."""
        return self.root / "mps"

    @property
    def words(self) -> Path:
        """A folder for each job that the guard may talk to: its words."""
        return self.root / "words"

    @property
    def frozen(self) -> Path:
        """The folder of the leases: one for each job whose processes are frozen."""
        return self.root / "frozen"

    @property
    def arrivals(self) -> Path:
        """The folder of jobs that came to a GPU on which a guest runs."""
        return self.root / "arrivals"

    @property
    def fault_users(self) -> Path:
        """The folder of users whose programs brought MPS down recently."""
        return self.root / "culprits"

    @property
    def lost(self) -> Path:
        """The folder of jobs that failed when MPS had failed under them."""
        return self.root / "lost"

    @property
    def failed(self) -> Path:
        """The folder of failed jobs of which berthd is to be told."""
        return self.root / "failed"

    @property
    def given(self) -> Path:
        """The folder of the GPUs that jobs have, for the site's scripts behind the Epilog."""
        return self.root / "given"

    @property
    def xids(self) -> Path:
        """The file of GPU faults that the guard has heard of."""
        return self.root / "xids"

    @property
    def guard(self) -> Path:
        """The file that is locked while the guard lives."""
        return self.root / "guard.lock"

    @property
    def identity(self) -> Path:
        """The file of positions, minors and UUIDs as the driver gave them at this boot."""
        return self.root / "gpus.json"

    @property
    def listed(self) -> Path:
        """The file of the jobs that monitoring is told of."""
        return self.root / "listed.json"

    def job(self, job: int) -> Path:
        """The job's share file."""
        return self.jobs / str(job)

    def word(self, job: int) -> Path:
        """The folder of the job's words."""
        return self.words / str(job)

    def gpu(self, uuid: str) -> Path:
        """The folder of a GPU."""
        return self.gpus / _checked(uuid)

    def lock(self, uuid: str) -> Path:
        """The lock that a process holds while it changes anything about the GPU."""
        return self.gpu(uuid) / "lock"

    def state(self, uuid: str) -> Path:
        """The file that says which jobs share the GPU, and which processes of ours serve them."""
        return self.gpu(uuid) / "state.json"

    def mps_set(self, name: str) -> Path:
        """The folder of a daemon."""
        return self.mps / _checked(name)

    def pipe(self, name: str) -> Path:
        """CUDA_MPS_PIPE_DIRECTORY of a daemon."""
        return self.mps_set(name) / "pipe"

    def log(self, name: str) -> Path:
        """CUDA_MPS_LOG_DIRECTORY of a daemon."""
        return self.mps_set(name) / "log"


def _checked(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise StateError(f"{name!r} is not a GPU's UUID; check the GPUs of this node with nvidia-smi -L")
    return name
