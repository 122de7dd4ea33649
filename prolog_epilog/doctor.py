# SPDX-License-Identifier: Apache-2.0
"""Checks whether a node is ready for jobs that share GPUs, and what earlier such jobs left behind."""

import os
import stat
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from prolog_epilog import chain
from prolog_epilog.errors import HardwareFault, NodeConfigError, NodeError, NodeSlurmError
from prolog_epilog.guard import options
from prolog_epilog.guard.measure import xids
from prolog_epilog.job.extra import OPPORTUNISTIC
from prolog_epilog.job.slurm import PREFIXES, Scontrol
from prolog_epilog.mps import control
from prolog_epilog.mps.control import Abilities
from prolog_epilog.node import cgroups, devices, processes
from prolog_epilog.node.paths import Paths
from prolog_epilog.node.xid_list import remedy
from prolog_epilog.settings import config
from prolog_epilog.settings.config import NodeConfig
from prolog_epilog.sharing import inject
from prolog_epilog.tenants import share_file, state

LEAST_KILL_WAIT = 60
# Slurm prints 65534 if it has no limit.
_NO_LIMIT = (0, 65534)
# Newer releases of Slurm also have one for each.
_LIMITS = ("PrologEpilogTimeout", "PrologTimeout", "EpilogTimeout")
OLDEST_DRIVER = 535
"""The oldest driver whose own control program is in the tests."""
# Seconds for what has no limit in berth.conf: Slurm's own answers, signals, the driver.
_MARGIN = 15
_DAEMON = "nvidia-cuda-mps-control"
_NOTICES = tuple(Path(prefix, "libexec", "berth", "berth-notice") for prefix in PREFIXES)
"""The places where berth-epilog looks for it."""


@dataclass(frozen=True, slots=True)
class NodeFinding:
    """The result of one check; if it failed, the text ends with the cure."""

    name: str
    ok: bool
    text: str


def examine(path: str, paths: Paths, slurm_conf: str = "") -> Iterator[NodeFinding]:
    """Runs all checks, in the order in which an admin would mend things."""
    settings = NodeConfig()
    try:
        settings = config.load(path)
        options.load(path)
        yield NodeFinding("berth.conf", ok=True, text=f"{path}, violation = {settings.violation}")
    except NodeConfigError as problem:
        yield NodeFinding("berth.conf", ok=False, text=str(problem))
    slurm = Scontrol(settings.scontrol, slurm_conf, settings.scontrol_timeout)
    shares = not config.plain(path)
    if not shares:
        text = "advise: no job shares a GPU, so a node needs berth-epilog for classes of failures, and nothing else"
        yield NodeFinding("rollout", ok=True, text=text)
    try:
        found = slurm.configuration()
    except NodeSlurmError as problem:
        yield NodeFinding("Slurm", ok=False, text=str(problem))
    else:
        yield from wiring(found, settings) if shares else wiring_of_failures(found)
    yield from scripts(settings)
    if shares:
        yield from injected(settings)
    yield from listed_jobs(settings)
    yield from _driver(paths)
    if shares:
        yield from _mps(settings, paths)
        yield _cgroups()
        yield from words_apart(paths)
        yield _guard()
    yield from leftovers(paths, cgroups.jobs(), slurm.is_there)


def wiring(slurm: Mapping[str, str], settings: NodeConfig, notices: Sequence[Path] = _NOTICES) -> Iterator[NodeFinding]:
    """Checks how slurm.conf calls Berth."""
    for name in ("Prolog", "Epilog"):
        yield _called(slurm, name)
    yield _notice(slurm, notices)
    flags = {flag.lower() for flag in slurm.get("PrologFlags", "").split(",")}
    starts = bool(flags & {"alloc", "contain", "x11"})
    text = (
        "the Prolog runs when a job starts" if starts else "without Alloc the Prolog waits for the first step; add it"
    )
    yield NodeFinding("PrologFlags", starts, text)
    steps = "use_interactive_step" in slurm.get("LaunchParameters", "").split(",")
    advice = "add use_interactive_step; without it the shell of salloc has no share"
    yield NodeFinding("LaunchParameters", steps, "salloc's shell runs on the node" if steps else advice)
    wait = _seconds(slurm.get("KillWait", ""))
    advice = f"{wait} s; set {LEAST_KILL_WAIT} or more, so that MPS clients leave before they are killed"
    yield NodeFinding("KillWait", wait >= LEAST_KILL_WAIT, f"{wait} s" if wait >= LEAST_KILL_WAIT else advice)
    for name in _LIMITS:
        if name in slurm:
            yield _limit(name, _seconds(slurm[name]), longest(settings))


def wiring_of_failures(slurm: Mapping[str, str], notices: Sequence[Path] = _NOTICES) -> Iterator[NodeFinding]:
    """Checks what classes of failures need of slurm.conf; a site may do without them."""
    if any(Path(call).name == "berth-epilog" for call in _calls(slurm, "Epilog")):
        yield NodeFinding("Epilog", ok=True, text="berth-epilog")
        yield _notice(slurm, notices)
    else:
        yield NodeFinding("Epilog", ok=True, text="not berth-epilog, so berthd learns no classes of failures")


def longest(settings: NodeConfig) -> int:
    """Returns the seconds that a Prolog or Epilog may take by our own limits, after which it ends in order.

    It may have to wait for the Prolog or Epilog of another job on the same GPU, which takes as long.
    """
    chained = settings.chain_timeout if settings.chain_prolog or settings.chain_epilog else 0
    one = settings.mps_start_timeout + settings.mps_stop_timeout + settings.scontrol_timeout + chained
    return round(2 * one) + _MARGIN


def _limit(name: str, limit: int, least: int) -> NodeFinding:
    if limit in _NO_LIMIT:
        return NodeFinding(name, ok=True, text="no limit")
    if limit > least:
        return NodeFinding(name, ok=True, text=f"{limit} s")
    advice = (
        f"{limit} s is less than MPS and the site's scripts may take: Slurm would kill the Prolog and drain the node; "
        f"set more than {least}, or lower mps_start_timeout, mps_stop_timeout, scontrol_timeout or chain_timeout in "
        "[node] of berth.conf"
    )
    return NodeFinding(name, ok=False, text=advice)


def _called(slurm: Mapping[str, str], name: str) -> NodeFinding:
    calls = _calls(slurm, name)
    ours = f"berth-{name.lower()}"
    ok = any(Path(call).name == ours for call in calls)
    if not ok:
        advice = (
            f"{', '.join(calls) or 'none'}; set {name}=/opt/berth/bin/{ours}, and name yours in [node] of berth.conf"
        )
        return NodeFinding(name, ok=False, text=advice)
    if len(calls) > 1 and name == "Prolog":
        text = (
            f"{ours}, but also {len(calls) - 1} that see only the last GPU of a job; move them to [node] chain_prolog"
        )
        return NodeFinding(name, ok=False, text=text)
    return NodeFinding(name, ok=True, text=ours)


def _notice(slurm: Mapping[str, str], notices: Sequence[Path]) -> NodeFinding:
    own = next((call for call in _calls(slurm, "Epilog") if Path(call).name == "berth-notice"), "")
    found = next((path for path in notices if os.access(path, os.X_OK)), None)
    if found and own:
        advice = f"berth-epilog calls {found}; Epilog={own} is not needed, and costs each job 5 ms of CPU on each node"
        return NodeFinding("berth-notice", ok=True, text=advice)
    if found or own:
        return NodeFinding("berth-notice", ok=True, text=f"berth-epilog calls {found}" if found else own)
    advice = (
        f"not found as {', '.join(map(str, notices))}, so berthd learns of free GPUs by its timer only; "
        f"make -C slurm_plugins install, or link {notices[0]} to it"
    )
    return NodeFinding("berth-notice", ok=False, text=advice)


def _calls(slurm: Mapping[str, str], name: str) -> list[str]:
    return [value for key, value in slurm.items() if key == name or key.startswith(f"{name}[")]


def scripts(settings: NodeConfig) -> Iterator[NodeFinding]:
    """Checks the site's own scripts."""
    for key, patterns in (("chain_prolog", settings.chain_prolog), ("chain_epilog", settings.chain_epilog)):
        if patterns:
            left_out: list[str] = []
            count = len(list(chain.scripts(patterns, left_out.append)))
            yield NodeFinding(key, not left_out, left_out[0] if left_out else f"{count} scripts")


def injected(settings: NodeConfig) -> Iterator[NodeFinding]:
    """Checks what jobs get into their programs, by trying it on a program of ours."""
    for name, path in inject.wanted(settings, OPPORTUNISTIC).items():
        problem = inject.fault(name, path)
        yield NodeFinding(name, not problem, problem or path)


def listed_jobs(settings: NodeConfig) -> Iterator[NodeFinding]:
    """Checks the folders in which monitoring programs look which jobs are on which GPU."""
    for key, path in (("jobs_for_dcgm", settings.jobs_for_dcgm), ("jobs_for_jobstats", settings.jobs_for_jobstats)):
        if not path:
            continue
        problem = ""
        if not Path(path).parent.is_dir():
            problem = f"{Path(path).parent} is not there; make it at each boot, or name a folder in /run"
        elif os.path.lexists(path):
            found = os.lstat(path)
            if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o022:
                problem = f"{path} is not a folder that only root may change; remove it"
        yield NodeFinding(key, not problem, problem or path)


def _driver(paths: Paths) -> Iterator[NodeFinding]:
    try:
        with devices.driver() as driver:
            gpus, version = driver.gpus(), driver.version()
            files = len(chain.minors())
            ok = len(gpus) == files
            lost = "" if ok else f", but {files} device files; look at dmesg for Xid 79"
            tried = f"shares were tried from {OLDEST_DRIVER} on"
            yield NodeFinding("driver", ok, f"{len(gpus)} GPUs{lost}; version {version}, {tried}")
            shared = {uuid for one in state.everything(paths) for uuid in one.uuids}
            faults = xids.last(paths.xids)
            for gpu in gpus:
                yield from _gpu(driver, gpu, is_shared=gpu.uuid in shared)
                if gpu.uuid in faults:
                    yield _fault(gpu.position, *faults[gpu.uuid], paths.xids)
    except NodeError as problem:
        yield NodeFinding("driver", ok=False, text=str(problem))


def _fault(position: int, at: int, number: int, path: Path) -> NodeFinding:
    when = time.strftime("%d %b %H:%M", time.localtime(at))
    text = f"reported Xid {number} on {when}: {remedy(number)}, then remove {path}"
    return NodeFinding(f"GPU {position}", ok=False, text=text)


def _gpu(driver: devices.Driver, gpu: devices.NodeGpu, *, is_shared: bool) -> Iterator[NodeFinding]:
    """Checks one GPU; yields nothing if all is well, since a node has eight of them."""
    name = f"GPU {gpu.position}"
    try:
        obstacle = driver.obstacle(gpu.uuid)
        mode = driver.compute_mode(gpu.uuid)
    except HardwareFault as fault:
        yield NodeFinding(name, ok=False, text=str(fault))
        return
    if obstacle:
        yield NodeFinding(name, ok=False, text=obstacle)
    if mode != devices.DEFAULT and not is_shared:
        cure = f"nvidia-smi -i {gpu.uuid} -c DEFAULT"
        yield NodeFinding(
            name, ok=False, text=f"compute mode {mode}, but no job shares it: jobs will fail on it; {cure}"
        )


def _mps(settings: NodeConfig, paths: Paths) -> Iterator[NodeFinding]:
    uuids: list[str] = []
    # Without a driver there is a finding of its own; what the program says is one more.
    with suppress(NodeError), devices.driver() as driver:
        uuids = [gpu.uuid for gpu in driver.gpus()]
    try:
        able = control.abilities(settings.mps_control, paths.mps, uuids)
        why = control.why_not_started(settings.mps_control, paths.mps, uuids)
    except NodeError as problem:
        yield NodeFinding("MPS", ok=False, text=str(problem))
        return
    if why:
        yield NodeFinding("MPS", ok=False, text=why)
        return
    yield _program(settings, able)


def _program(settings: NodeConfig, able: Abilities) -> NodeFinding:
    tried = ("namespaces", able.namespaces), ("several users", able.multi_user is not None)
    said = ", ".join(f"{what} {'yes' if there else 'no'}" for what, there in tried)
    text = f"shares are held by {'namespaces' if able.namespaces else 'server ceilings'} (tried: {said})"
    if settings.multi_user and able.multi_user is None:
        advice = f"{text}; [node] multi_user needs driver 580 or later: this one has no option for it"
        return NodeFinding("MPS", ok=False, text=advice)
    return NodeFinding("MPS", ok=True, text=text)


def _cgroups() -> NodeFinding:
    version = cgroups.version()
    if version == "none":
        return NodeFinding(
            "cgroups", ok=False, text="none; shares are watched by job, set ProctrackType=proctrack/cgroup"
        )
    wall = "dmem" in cgroups.controllers()
    return NodeFinding(
        "cgroups", ok=True, text=f"{version}, {'with' if wall else 'without'} a wall for GPU memory (dmem)"
    )


def words_apart(paths: Paths) -> Iterator[NodeFinding]:
    """Checks the file systems in which owners and guests write; yields nothing if there is no such job now."""
    folders = sorted(paths.words.iterdir()) if paths.words.is_dir() else []
    together = ", ".join(folder.name for folder in folders if not folder.is_mount())
    text = "each job's pages are a file system of their own"
    if together and paths.words.is_mount():
        text = f"{paths.words} is a file system of its own, which a hostile job could fill for the other jobs"
    elif together:
        text = (
            f"the pages of job {together[:60]} are part of /run's file system, which a hostile job could fill there; "
            "let slurmd mount file systems that the guard sees (docs/user/injob.md, Safety)"
        )
    if folders:
        yield NodeFinding("words", ok=not together or paths.words.is_mount(), text=text)


def _guard() -> NodeFinding:
    runs = any("berth-guard" in words for words in _commands().values())
    advice = "does not run, so nothing sees a job that takes more than its share; systemctl enable --now berth-guard"
    return NodeFinding("berth-guard", runs, "runs" if runs else advice)


def leftovers(paths: Paths, here: set[int], is_there: Callable[[int], bool]) -> Iterator[NodeFinding]:
    """Reports what jobs left; `here` are the jobs with a control group, `is_there` asks Slurm for the others."""
    found = list(_left(paths, here, is_there))
    yield from found
    if not found:
        yield NodeFinding("leftovers", ok=True, text="none")


def _left(paths: Paths, here: set[int], is_there: Callable[[int], bool]) -> Iterator[NodeFinding]:
    with suppress(FileNotFoundError):
        mode = paths.root.stat().st_mode
        if mode & (stat.S_IWGRP | stat.S_IWOTH):
            yield NodeFinding("leftovers", ok=False, text=f"others may write {paths.root}; chmod go-w {paths.root}")
    try:
        books = list(state.everything(paths))
        gone = {tenant.job for one in books for tenant in one.tenants if tenant.job not in here}
        old = {
            job for job, written in share_file.jobs(paths).items() if time.time() - written > share_file.KEEP_SECONDS
        }
        for job in sorted(gone | old - here):
            if not is_there(job):
                text = f"job {job} is over, but has a share; berth-guard takes it back within a minute, is it running?"
                yield NodeFinding("leftovers", ok=False, text=text)
        boot = processes.boot_id(paths.boot_id)
        daemons = {one.daemon.pid for one in books if one.daemon and processes.alive(one.daemon, boot)}
        for pid, words in _commands().items():
            if _DAEMON in words and pid not in daemons and not set(processes.children(pid)) & daemons:
                text = f"process {pid} is an MPS daemon that Berth did not start; end it: echo quit | {_DAEMON}"
                yield NodeFinding("leftovers", ok=False, text=text)
        names = {one.name for one in books}
        for folder in sorted(paths.mps.iterdir()) if paths.mps.is_dir() else ():
            if folder.name not in names:
                yield NodeFinding("leftovers", ok=False, text=f"{folder} belongs to no GPU in use; remove it")
    except NodeError as problem:
        yield NodeFinding("leftovers", ok=False, text=str(problem))


def _commands() -> dict[int, set[str]]:
    """Returns the names of the programs that run on this node; for an interpreter, also that of its script."""
    found = {}
    # A process in a container with its own pid namespace is not the node's.
    here = (Path("/proc/self/ns") / "pid").readlink()
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            with suppress(OSError):
                if (folder / "ns" / "pid").readlink() != here:
                    continue
                program, *words = (folder / "cmdline").read_bytes().decode(errors="replace").split("\0")
                script = next((word for word in words if not word.startswith("-")), "")
                names = [program, script] if "python" in program else [program]
                found[int(folder.name)] = {Path(name).name for name in names}
    return found


def _seconds(text: str) -> int:
    """Returns the seconds of `30 sec`; 0 if there is no limit."""
    first = text.split(" ", maxsplit=1)[0]
    return int(first) if first.isdecimal() else 0
