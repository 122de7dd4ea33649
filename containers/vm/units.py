#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs as root where systemd is process 1: berthd and berth-guard by their units, beside Debian's slurmctld and slurmd.

That is the virtual machine, or a container. What it finds it prints as lines `VM-RESULT KEY=VALUE`, as guest.py does.
The driver is simulated (tests/fakes/nvml).
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from containers.vm.guest import describe, guarded, tell  # noqa: E402 (the repository is not installed here)

NODE = "vm"
ETC = Path("/etc/slurm")
CGROUPS = Path("/sys/fs/cgroup")
UNIFIED = (CGROUPS / "cgroup.controllers").exists()
UNITS = ("berthd", "berth-guard")
# An emulated processor is ten to thirty times slower than the one that the units' times are for.
PATIENCE = 900.0
SLOW = "[Service]\nTimeoutStartSec=900\nWatchdogSec=600\n"
GPUS = range(8)
IN_CONTAINER = "container" in os.environ
EMULATED = "BERTH_EMULATED" in os.environ
MEMORY_FILES = {True: ("memory.max", "memory.current"), False: ("memory.limit_in_bytes", "memory.usage_in_bytes")}
SLURM_CONF = f"""
ClusterName=vm
SlurmctldHost={NODE}
SlurmUser=slurm
StateSaveLocation=/var/lib/slurm/slurmctld
SlurmdSpoolDir=/var/lib/slurm/slurmd
SlurmctldPidFile=/run/slurmctld.pid
SlurmdPidFile=/run/slurmd.pid
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
SchedulerParameters=disable_job_shrink,batch_sched_delay=0,bf_interval=2,bf_continue
ProctrackType=proctrack/cgroup
TaskPlugin=task/cgroup
MessageTimeout=100
SlurmdTimeout=3000
PrologEpilogTimeout=600
ReturnToService=2
SlurmdParameters=config_overrides
DefMemPerCPU=100
JobSubmitPlugins=berth
CliFilterPlugins=berth
GresTypes=gpu,shard,seat
PrologFlags=Alloc
Prolog=/opt/berth/bin/berth-prolog
Epilog=/opt/berth/bin/berth-epilog
PartitionName=gpu Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""
BERTH_CONF = f"""
[hook]
deadline_ms = 1000

[notice]
hosts = "{NODE}"
"""
# What somebody might try who runs code of theirs in berthd; each line must end with "denied".
PROBES = {
    "write_etc": "open('/etc/slurm/slurm.conf', 'a')",
    "write_usr": "open('/usr/bin/mine', 'w')",
    "write_opt": "open('/opt/berth/bin/berthd', 'a')",
    "read_home": "os.listdir('/home/alice')",
    "a_device": "open('/dev/vda')",
    "a_gpu": "open('/dev/nvidia0')",
    "kernel_log": "open('/dev/kmsg')",
    "sysctl": "open('/proc/sys/kernel/hostname', 'w')",
    "root": "os.setuid(0)",
    "namespace": "os.unshare(os.CLONE_NEWUSER)",
    "suid": "(open('/run/berth/x', 'w'), os.chmod('/run/berth/x', 0o4755))",
    "mount": "lib('mount', b'none', b'/mnt', b'tmpfs', 0, None)",
    "trace": "lib('ptrace', 16, 1, 0, 0)",
    "module": "lib('syscall', 313, -1, b'', 0)",
    "clock": "time.clock_settime(time.CLOCK_REALTIME, 0)",
    "kill_others": "os.kill(1, 9)",
    "raw_packets": "socket.socket(socket.AF_PACKET, socket.SOCK_RAW)",
}
# What it has to be able to do.
NEEDS = {
    "write_run": "open('/run/berth/y', 'w')",
    "write_state": "open('/var/lib/berth/y', 'w')",
    "munge": "subprocess.run(['munge', '-n'], check=True, capture_output=True)",
    "slurm": "subprocess.run(['squeue'], check=True, capture_output=True)",
    "listen": "socket.create_server(('', 6999))",
}
PROBE = """
import ctypes, os, socket, subprocess, time
def lib(name, *words):
    libc = ctypes.CDLL(None, use_errno=True)
    if getattr(libc, name)(*words) < 0:
        raise OSError(ctypes.get_errno(), "")
for name, code in PROBES.items():
    try:
        eval(code)
        print("PROBE", name, "done")
    except Exception as problem:
        print("PROBE", name, "denied", type(problem).__name__)
"""
HOG = """
import sys
held = []
while True:
    held.append(bytearray(16 << 20))
"""


def run(*command: str, check: bool = True, user: str = "root") -> str:
    """Run a command and return what it printed."""
    words = [*command] if user == "root" else ["runuser", "-u", user, "--", *command]
    done = subprocess.run(words, check=False, capture_output=True, text=True, cwd="/", timeout=PATIENCE)
    if check and done.returncode:
        raise RuntimeError(f"{' '.join(words)}: status {done.returncode}: {(done.stdout + done.stderr)[-400:]}")
    return (done.stdout + done.stderr).strip()


def until(what: str, holds: Callable[[], bool]) -> None:
    """Wait for an event."""
    ends = time.monotonic() + PATIENCE
    while not holds():
        if time.monotonic() > ends:
            raise RuntimeError(f"waited {PATIENCE:.0f} s for {what}")
        time.sleep(1)


def shown(unit: str, name: str) -> str:
    """Return a property of a unit."""
    return run("systemctl", "show", "--value", "--property", name, unit)


def is_up(unit: str) -> bool:
    """Tell whether a unit runs and has said that it is ready."""
    return shown(unit, "ActiveState") == "active"


def is_another(unit: str, before: str) -> bool:
    """Tell whether a unit is up again, with another process."""
    return is_up(unit) and shown(unit, "MainPID") not in {before, "0"}


def bound(unit: str, controller: str, name: str) -> Path:
    """Return a file of a unit's control group, in either version of these."""
    group = shown(unit, "ControlGroup").strip("/")
    return (CGROUPS if UNIFIED else CGROUPS / controller) / group / name


def configure() -> None:
    """Write Slurm's and Berth's files, by Berth's own commands where it has them."""
    if not IN_CONTAINER:
        run("hostname", NODE)
        # Slurm asks for no address where there is none but the loopback's.
        run("ip", "link", "add", "dummy0", "type", "dummy")
        run("ip", "address", "add", "192.0.2.1/24", "dev", "dummy0")
        run("ip", "link", "set", "dummy0", "up")
        with Path("/etc/hosts").open("a") as hosts:
            hosts.write(f"192.0.2.1 {NODE}\n")
    for minor in GPUS:
        run("mknod", "-m", "666", f"/dev/nvidia{minor}", "c", "195", str(minor))
    for folder in ("slurmctld", "slurmd"):
        run("install", "-d", "-o", "slurm", "-g", "slurm", f"/var/lib/slurm/{folder}")
    Path("/etc/berth-fake").mkdir(exist_ok=True)
    shutil.copy("/usr/share/berth-fake/machines/dgx-1v", "/etc/berth-fake/machine")
    ETC.joinpath("berth.conf").write_text(BERTH_CONF)
    ETC.joinpath("cgroup.conf").write_text("ConstrainDevices=yes\n" + "IgnoreSystemd=yes\n" * IN_CONTAINER)
    ETC.joinpath("plugstack.conf").write_text("optional spank_berth.so\n")
    run("berth", "topo", "discover", "--node", NODE)
    gres = "\n".join(
        f"NodeName={NODE} Name={kind} Type=g{k} {count}File=/dev/nvidia{k}"
        for kind, count in (("gpu", ""), ("shard", "Count=100 "), ("seat", ""))
        for k in GPUS
    )
    ETC.joinpath("gres.conf").write_text(gres + "\n")
    each = ",".join(f"{kind}:g{k}:{count}" for kind, count in (("gpu", 1), ("shard", 100), ("seat", 1)) for k in GPUS)
    machine = f"NodeName={NODE} Sockets=2 CoresPerSocket=8 RealMemory=64000 Feature=v100 Gres={each}\n"
    ETC.joinpath("slurm.conf").write_text(SLURM_CONF.replace("PartitionName", machine + "PartitionName"))
    if EMULATED:
        for unit in UNITS:
            extra = Path(f"/etc/systemd/system/{unit}.service.d")
            extra.mkdir(parents=True)
            extra.joinpath("slow.conf").write_text(SLOW)
        run("systemctl", "daemon-reload")


def start() -> None:
    """Start all daemons as an admin does."""
    for unit in ("munge", "slurmctld", "slurmd"):
        run("systemctl", "restart", unit)
        until(unit, partial(is_up, unit))
    until("the node to be idle", lambda: "idle" in run("sinfo", "-h", "-o", "%T", check=False))
    # The guard first: its folders are root's, and stay so when berthd gets the folder around them.
    for unit in reversed(UNITS):
        started = time.monotonic()
        run("systemctl", "start", unit)
        until(unit, partial(is_up, unit))
        tell(f"{unit}_start_seconds", round(time.monotonic() - started, 1))
    tell("berthd_user", run("ps", "-o", "user=", "-p", shown("berthd", "MainPID")))


def describe_units() -> None:
    """Tell what systemd makes of the units, and which bounds the kernel has."""
    for unit in UNITS:
        limit, used = MEMORY_FILES[UNIFIED]
        tell(f"{unit}_memory_max", bound(unit, "memory", limit).read_text().strip())
        tell(f"{unit}_memory_mib", int(bound(unit, "memory", used).read_text()) >> 20)
        tell(f"{unit}_pids_max", bound(unit, "pids", "pids.max").read_text().strip())
        report = run("systemd-analyze", "security", "--no-pager", f"{unit}.service", check=False)
        found = re.search(r"Overall exposure level for \S+: ([\d.]+)", report)
        tell(f"{unit}_exposure", found[1] if found else report[-200:])
    tell("systemd", run("systemctl", "--version").split("\n")[0])


def finished(job: str) -> str:
    """Wait for a job's end; its record."""
    ended = re.compile(r"JobState=(?!PENDING|CONFIGURING|RUNNING|COMPLETING)")
    until(f"job {job} to end", lambda: ended.search(run("scontrol", "show", "job", job)) is not None)
    return run("scontrol", "-d", "show", "job", job)


def submit(*words: str, body: str = "sleep 1") -> str:
    """Submit as alice."""
    line = ["sbatch", "--parsable", "-n1", "-t", "5", "-o", "/dev/null", *words, "--wrap", body]
    return run(*line, user="alice").split("\n")[-1]


def try_jobs() -> None:
    """A whole job, and one with a share, which the guard has to see."""
    until("berthd to answer", lambda: "version" in status())
    whole = submit("--gpus=2")
    record = finished(whole)
    tell("whole_state", (re.search(r"JobState=(\w+)", record) or ["", "?"])[1])
    tell("whole_placed", "[berth/1 state=placed" in record)
    share = submit("--gpus=1", "--gpu-share=30", "--gpu-mem=1G", body="scontrol show job -d $SLURM_JOB_ID; sleep 20")
    until("the share to run", lambda: "JobState=RUNNING" in run("scontrol", "show", "job", share))
    until("its share file", Path(f"/run/berth/jobs/{share}").exists)
    tell("share_file", f"{Path(f'/run/berth/jobs/{share}').stat().st_mode & 0o7777:o}")
    record = finished(share)
    tell("share_state", (re.search(r"JobState=(\w+)", record) or ["", "?"])[1])
    until("the share file to go", lambda: not Path(f"/run/berth/jobs/{share}").exists())


def make_next_version() -> None:
    """Lay packages of the same content and a higher version into /srv/next."""
    run("rm", "-rf", "/srv/next", "/srv/one")
    run("mkdir", "/srv/next")
    for path in sorted(Path("/packages").glob("*.deb")):
        run("dpkg-deb", "-R", str(path), "/srv/one")
        control = Path("/srv/one/DEBIAN/control")
        control.write_text(control.read_text().replace("-1~", "-2~"))
        run("dpkg-deb", "-Znone", "-b", "/srv/one", "/srv/next")
        run("rm", "-r", "/srv/one")


def kept(job: str) -> dict[str, object]:
    """Returns what an upgrade must leave alone: the job, its share, its MPS, and the daemons."""
    record = run("scontrol", "show", "job", job)
    names = ("JobState", "Restarts", "StartTime")
    return {
        "job": [(re.search(rf"{name}=(\S+)", record) or ["", "?"])[1] for name in names],
        "share": Path(f"/run/berth/jobs/{job}").read_text(),
        "mps": run("pgrep", "-f", "nvidia-cuda-mps-(control|server)"),
        "modes": run("stat", "-c", "%n %U %a %y", f"/run/berth/jobs/{job}"),
    }


def differing(before: dict[str, object], now: dict[str, object]) -> str:
    """Returns what is not as it was."""
    return (
        "; ".join(f"{name}: {before[name]} > {now[name]}" for name in before if before[name] != now[name]) or "nothing"
    )


def try_upgrade() -> None:
    """A share is held while all packages are replaced and the daemons begin anew; removal is refused meanwhile."""
    make_next_version()
    words = ("--gpus=1", "--gpu-share=30", "--gpu-mem=1G", "-t", "60")
    go = Path("/home/alice/go")
    held = submit(*words, body=f"until [ -e {go} ]; do sleep 0.5; done")
    share = Path(f"/run/berth/jobs/{held}")
    # Until its Prolog is over it says "degraded".
    until("the share to be held", lambda: share.exists() and "\nstatus=ok\n" in share.read_text())
    until("the share to run", lambda: "JobState=RUNNING" in run("scontrol", "show", "job", held))
    before, pids = kept(held), [shown(unit, "MainPID") for unit in UNITS]
    said = run("dpkg", "-i", *map(str, Path("/srv/next").glob("*.deb")))
    tell("upgrade_version", run("dpkg-query", "-W", "-f", "${Version}", "berth-node").rpartition("-")[2])
    tell("upgrade_says", "systemctl restart berth-guard" in said)
    tell("upgrade_leaves_daemons", pids == [shown(unit, "MainPID") for unit in UNITS])
    tell("upgrade_changes", differing(before, kept(held)))
    for unit, pid in zip(UNITS, pids, strict=True):
        run("systemctl", "restart", unit)
        until(f"another {unit}", partial(is_another, unit, pid))
    until("berthd to answer", lambda: "version" in status())
    # The Prolog of the new release, beside a share of the old one.
    second = submit(*words, body="sleep 5")
    record = finished(second)
    tell("upgrade_second_state", (re.search(r"JobState=(\w+)", record) or ["", "?"])[1])
    gpus = [re.search(r"gpus=(\d+)", run("scontrol", "show", "job", job)) for job in (held, second)]
    tell("upgrade_same_gpu", len({found[1] for found in gpus if found}) == 1)
    until("the second share to go", lambda: not Path(f"/run/berth/jobs/{second}").exists())
    tell("upgrade_changes_later", differing(before, kept(held)))
    refused = run("dpkg", "--remove", "berth-node", check=False)
    tell("upgrade_refuses_removal", "drain this node" in refused and Path("/opt/berth/bin/berth-epilog").exists())
    go.touch()
    record = finished(held)
    tell("upgrade_held_state", (re.search(r"JobState=(\w+)", record) or ["", "?"])[1])
    until("the share file to go", lambda: not share.exists())
    until("MPS to end", lambda: not run("pgrep", "-f", "nvidia-cuda-mps-(control|server)", check=False))
    tell("upgrade_ends", "reached")


def status() -> dict[str, object]:
    """Returns what `berth status` says; empty while berthd does not answer."""
    told: dict[str, object] = json.loads(run("berth", "status", "--json", check=False) or "{}")
    return told


def try_sandbox() -> None:
    """Run the probes under berthd's own unit file, with another program in berthd's place."""
    text = Path("/usr/lib/systemd/system/berthd.service").read_text()
    text = re.sub(
        r"^(ExecStopPost|Restart\w*|WatchdogSec|NotifyAccess|RuntimeDirectory\w*)=.*\n", "", text, flags=re.MULTILINE
    )
    text = re.sub(r"^Type=.*", "Type=oneshot", text, flags=re.MULTILINE)
    # Both folders are there for the probe as they are for berthd.
    program = "ReadWritePaths=/run/berth\nExecStart=/usr/bin/python3 /srv/probe.py"
    text = re.sub(r"^ExecStart=.*", program, text, flags=re.MULTILINE)
    Path("/srv/probe.py").write_text(PROBE.replace("PROBES", repr({**PROBES, **NEEDS})))
    Path("/etc/systemd/system/probe.service").write_text(text)
    run("systemctl", "daemon-reload")
    run("systemctl", "start", "probe", check=False)
    said = dict(re.findall(r"PROBE (\w+) (\w+)", run("journalctl", "--no-pager", "-u", "probe", "-o", "cat")))
    tell("sandbox_let_through", " ".join(name for name in PROBES if said.get(name) != "denied") or "nothing")
    tell("sandbox_missing", " ".join(name for name in NEEDS if said.get(name) != "done") or "nothing")


def try_memory() -> None:
    """A process in each unit's group that never has enough: it is ended, and the unit goes on."""
    Path("/srv/hog.py").write_text(HOG)
    for unit in UNITS:
        before = shown(unit, "MainPID")
        group = bound(unit, "memory", "cgroup.procs")
        ended = subprocess.run(
            ["sh", "-c", f"echo $$ >{group} && exec python3 /srv/hog.py"], check=False, timeout=PATIENCE
        ).returncode
        tell(f"{unit}_hog", ended)
        tell(f"{unit}_after_hog", f"{shown(unit, 'ActiveState')} {shown(unit, 'MainPID') == before}")
    until("berthd to answer", lambda: "version" in status())


def try_watchdog() -> None:
    """A berthd that hangs is ended by its watchdog, and another one starts."""
    if EMULATED:
        return
    before, started = shown("berthd", "MainPID"), time.monotonic()
    run("kill", "-STOP", before)
    until("another berthd", partial(is_another, "berthd", before))
    tell("watchdog_seconds", round(time.monotonic() - started, 1))


def try_ends() -> None:
    """Killed, each unit comes back; stopped, berthd leaves no pin behind."""
    for unit in UNITS:
        before = shown(unit, "MainPID")
        run("kill", "-9", before)
        until(f"another {unit}", partial(is_another, unit, before))
        tell(f"{unit}_restarts", shown(unit, "NRestarts"))
    until("berthd to answer", lambda: "version" in status())
    waits = submit("--gpus=1", "--begin=now+1day")
    until("a pin", lambda: "ReqNodeList=vm" in run("scontrol", "show", "job", waits))
    run("systemctl", "stop", "berthd")
    record = run("scontrol", "show", "job", waits)
    tell("pin_after_stop", (re.search(r"ReqNodeList=(\S+)", record) or ["", "?"])[1])
    tell("berthd_result", shown("berthd", "Result"))
    run("systemctl", "stop", "berth-guard")
    tell("berth-guard_result", shown("berth-guard", "Result"))


def show_logs() -> None:
    """Prints the last lines of each daemon's log."""
    for unit in (*UNITS, "slurmctld", "slurmd", "probe"):
        print(f"--- {unit}", flush=True)
        print(run("journalctl", "--no-pager", "-u", unit, "-n", "40", check=False), flush=True)


def try_units() -> None:
    """Takes all steps of the trial in turn."""
    describe()
    tell("emulated", EMULATED)
    steps = (configure, start, describe_units, try_jobs, try_upgrade, try_sandbox, try_memory, try_watchdog, try_ends)
    for step in steps:
        print(f"--- {step.__name__}", flush=True)
        step()


if __name__ == "__main__":
    sys.exit(guarded(try_units, show_logs))
