# SPDX-License-Identifier: Apache-2.0
"""A compute node in a folder: device files, berth.conf, a scontrol that writes down what it is asked, programs."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from prolog_epilog.errors import ExtraError
from prolog_epilog.job.extra import OPPORTUNISTIC, NodeBerth, read
from prolog_epilog.node import files
from prolog_epilog.node.paths import Paths
from prolog_epilog.tenants import state
from tests.fakes import nvml
from tests.fakes.mps import programs
from tests.fakes.mps.world import USER

ROOT = Path(__file__).resolve().parents[2]
FAKES = ROOT / "tests" / "fakes"
NODE = "n1"
JOB_TEXT = """JobId={job} JobName=train
   UserId=alice(1000) GroupId=alice(1000) MCS_label=N/A
   JobState=RUNNING Reason=None Dependency=(null)
   NodeList={node}
   Socks/Node=* NtasksPerN:B:S:C=0:0:*:* CoreSpec=*
   JOB_GRES=gpu:2
     Nodes={node} CPU_IDs=0 Mem=1000 GRES={gres}
   MinCPUsNode=1 MinMemoryCPU=1000M MinTmpDiskNode=0
   Command=/home/alice/train.sh
   WorkDir=/home/alice
""".replace("(1000)", f"({USER})")


@dataclass(slots=True)
class World:
    """One node; `shared_environment` reaches the programs beside slurmd's own."""

    folder: Path
    settings: dict[str, object] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)
    skipped: str = ""
    """Partitions that Berth leaves alone."""

    def __post_init__(self) -> None:
        self.dev.mkdir()
        for minor in range(8):
            (self.dev / f"nvidia{minor}").touch()
        (self.dev / "nvidiactl").touch()
        (self.folder / "records").mkdir()
        answer = f"[ -e {self.folder}/records/$3 ] || exit 1\nexec /bin/cat {self.folder}/records/$3"
        self.settings["scontrol"] = str(self.script("scontrol", f'echo "$@" >>{self.folder}/asked\n{answer}'))
        # What a guest gets by default is not installed here.
        self.settings["inject"] = "none"
        # A loaded machine may need a second to start a shell.
        self.settings["scontrol_timeout"] = 30.0

    def with_gpus(self) -> None:
        """A simulated driver with eight GPUs, and a simulated MPS."""
        machine = self.folder / "machine"
        machine.write_text((FAKES / "nvml" / "machines" / "dgx-1v").read_text())
        self.mps_wishes({})
        self.environment |= {"LD_LIBRARY_PATH": str(nvml.library().parent), "BERTH_FAKE_NVML": str(machine)}
        self.settings |= {"mps_control": programs.control(), "mps_start_timeout": 60.0, "mps_stop_timeout": 3.0}

    def mps_wishes(self, wishes: Mapping[str, object]) -> None:
        """How the simulated MPS behaves from now on."""
        content = {"machine": str(self.folder / "machine"), "devices": "", **wishes}
        files.write(self.folder / "fake-mps.json", json.dumps(content), 0o644)

    def happens(self, statement: str) -> None:
        """Something changes on the simulated machine."""
        with (self.folder / "machine.live").open("a") as live:
            live.write(statement + "\n")

    @property
    def paths(self) -> Paths:
        return Paths(self.root)

    def books(self) -> dict[int, int]:
        """Jobs in the books of the shared GPUs, and their shares."""
        return {tenant.job: tenant.share for one in state.everything(self.paths) for tenant in one.tenants}

    def daemons(self) -> list[int]:
        """The MPS processes of this world that run."""
        found = []
        for folder in Path("/proc").iterdir():
            with contextlib.suppress(OSError):
                environment = (folder / "environ").read_bytes()
                if str(self.root).encode() in environment and b"nvidia-cuda-mps" in (folder / "cmdline").read_bytes():
                    found.append(int(folder.name))
        return found

    @property
    def dev(self) -> Path:
        return self.folder / "dev"

    @property
    def root(self) -> Path:
        return self.folder / "run"

    @property
    def jobs(self) -> Path:
        return self.root / "jobs"

    @property
    def asked(self) -> str:
        """What scontrol was asked so far."""
        path = self.folder / "asked"
        return path.read_text() if path.exists() else ""

    def script(self, name: str, body: str, *, interpreter: str = "/bin/bash") -> Path:
        path = self.folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"#!{interpreter}\n{body}\n")
        path.chmod(0o755)
        return path

    def scontrol(self, body: str) -> None:
        self.script("scontrol", f'echo "$@" >>{self.folder}/asked\n{body}')

    def slurm_knows(self, gres: str, job: int = 7) -> None:
        (self.folder / "job").write_text(JOB_TEXT.format(job=job, node=NODE, gres=gres))
        self.scontrol(f"cat {self.folder}/job")

    def slurm_gave(self, extra: str, job: int) -> None:
        """Slurm gave a job just what its Extra says; where nobody can read that it knows no such job."""
        with contextlib.suppress(ExtraError):
            if found := read(extra, NODE):
                (self.folder / "records" / str(job)).write_text(
                    JOB_TEXT.format(job=job, node=NODE, gres=",".join(map(_gres(found), found.gpus)))
                )

    def configure(self) -> Path:
        path = self.folder / "berth.conf"
        lines = [f"{key} = {_toml(value)}" for key, value in self.settings.items()]
        hook = ["[hook]", f'skip_partitions = "{self.skipped}"', ""] if self.skipped else [""]
        path.write_text("\n".join(["[node]", *lines, *hook]))
        return path

    def slurmd(
        self, context: str, extra: str = "", gpus: str = "", job: int = 7, user: int = USER, **more: str
    ) -> dict[str, str]:
        """The environment that slurmd gives: no PATH, no HOME."""
        found = {
            "SLURMD_NODENAME": NODE,
            "SLURM_CONF": str(self.folder / "slurm.conf"),
            "SLURM_JOB_ID": str(job),
            "SLURM_JOB_UID": str(user),
            "SLURM_SCRIPT_CONTEXT": f"{context}_slurmd",
            **({"SLURM_JOB_EXTRA": extra} if extra else {}),
        }
        if gpus:
            found |= {"SLURM_JOB_GPUS": gpus, "CUDA_VISIBLE_DEVICES": gpus, "GPU_DEVICE_ORDINAL": gpus}
        return {**found, **self.environment, **more}

    def command(self, context: str) -> list[str]:
        # What a test that failed has mounted would stay.
        code = "from prolog_epilog.node import mounts; mounts.mount_small = mounts.is_seen = lambda *_: True;"
        code += f"from prolog_epilog.programs import {context}; raise SystemExit({context}())"
        words = ["--config", str(self.configure()), "--root", str(self.root), "--dev", str(self.dev)]
        return [sys.executable, "-c", code, *words]

    def run(
        self, context: str, extra: str = "", gpus: str = "", job: int = 7, user: int = USER, **more: str
    ) -> subprocess.CompletedProcess[str]:
        self.slurm_gave(extra, job)
        return subprocess.run(
            self.command(context),
            cwd=ROOT,
            env=self.slurmd(context, extra, gpus, job, user, **more),
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    def start(self, context: str, extra: str = "", gpus: str = "") -> subprocess.Popen[bytes]:
        self.slurm_gave(extra, 7)
        return subprocess.Popen(
            self.command(context),
            cwd=ROOT,
            env=self.slurmd(context, extra, gpus),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            process_group=0,
        )


def _gres(found: NodeBerth) -> Callable[[int], str]:
    """What Slurm says of each GPU."""
    if found.tier == OPPORTUNISTIC:
        return lambda gpu: f"seat:g{gpu}:1(IDX:{gpu})"
    if found.share is None or found.tier:
        return lambda gpu: f"gpu:g{gpu}:1(IDX:{gpu})"
    return lambda gpu: f"shard:g{gpu}:{found.share}({'0/100,' * gpu}{found.share}/100)"


def _toml(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return str(value)
    if isinstance(value, Sequence) and not isinstance(value, str):
        return "[" + ", ".join(map(_toml, value)) + "]"
    return str(value) if isinstance(value, int) else f"'{value}'"


def berth(*gpus: int, **sharing: object) -> str:
    """An Extra as the plugin writes it."""
    words = [f"nodes={NODE}", f"gpus={','.join(map(str, gpus))}", *[f"{key}={value}" for key, value in sharing.items()]]
    return f"[berth/1 {' '.join(words)}]"


def is_alive(pid: int) -> bool:
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1][:4]
    except (FileNotFoundError, ProcessLookupError):
        return False
