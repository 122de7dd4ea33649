# SPDX-License-Identifier: Apache-2.0
"""The checks of `berth doctor --before-upgrade`, and the steps of the upgrade in their order."""

import re
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from policy.cli import ask
from policy.cli.doctor.models import Printed
from policy.cli.doctor.steps import step_of
from policy.cli.output import Check, installed, some
from policy.formats.errors import BerthError, UsageError
from policy.formats.plan_fields import NODES
from policy.formats.slurm_facts import JobFacts
from policy.formats.wire import VERSION
from policy.site.config import Config
from policy.slurm.interface import Gateway
from policy.slurm.releases import NEWEST, release_of

MAJORS = ("22.05", "23.02", "23.11", "24.05", "24.11", "25.05", "25.11", "26.05")
"""Slurm's releases in their order."""
SUPPORTED = MAJORS[4:]
PLUGINS = ("job_submit_berth.so", "cli_filter_berth.so", "spank_berth.so")
_BACK = 3
"""The number of releases by which a slurmd may be older than its slurmctld, since 24.11."""


def built_for(library: bytes) -> str:
    """Returns the Slurm release that a plugin was built for; empty if the file does not have it.

    Slurm compares the same number, `plugin_version`, and refuses a plugin if it differs.
    """
    try:
        number = _number(library)
    except (struct.error, IndexError, ValueError):
        return ""
    return f"{number >> 16 & 0xFF}.{number >> 8 & 0xFF:02}.{number & 0xFF}" if number else ""


def _number(library: bytes) -> int:
    """Returns the value of the symbol `plugin_version` of a 64-bit little-endian ELF file; 0 without one."""
    if library[:6] != b"\x7fELF\x02\x01":
        return 0
    (offset,) = struct.unpack_from("<Q", library, 40)
    size, count = struct.unpack_from("<HH", library, 58)
    # type, address, offset, size, link to the names
    sections = []
    for index in range(count):
        _, kind, _, address, start, length, link = struct.unpack_from("<IIQQQQI", library, offset + index * size)
        sections.append((kind, address, start, length, link))
    for kind, _, start, length, link in sections:
        if kind not in (2, 11):
            continue
        names = sections[link][2]
        for place in range(start, start + length, 24):
            name, _, _, where, value, _ = struct.unpack_from("<IBBHQQ", library, place)
            end = library.index(b"\0", names + name)
            if library[names + name : end] == b"plugin_version" and 0 < where < count:
                _, address, begin, _, _ = sections[where]
                (found,) = struct.unpack_from("<I", library, begin + value - address)
                return int(found)
    return 0


def release_found(present: str, to: str) -> Iterator[Check]:
    """Yields what speaks against a release of Slurm; nothing if all is well."""
    if to and _major(to) not in SUPPORTED:
        text = f"this Berth supports {SUPPORTED[0]} to {SUPPORTED[-1]}, not {to}; upgrade Berth first"
        if release_of(to) > NEWEST:
            text += ", or try this one: after the upgrade jobs are left to Slurm until berth doctor release has passed"
        yield "Slurm to come", False, text
    elif to and _place(to) < _place(present):
        text = f"{to} is older than {present}, and slurmctld does not read the state of a newer one"
        yield "Slurm to come", False, text


def plugins_found(folder: Path, present: str, to: str) -> Iterator[Check]:
    """Yields the checks of the plugins: they fit the Slurm that runs, and those that the next one needs."""
    yield from release_found(present, to)
    for name in PLUGINS:
        try:
            found = built_for((folder / name).read_bytes())
        except OSError as problem:
            yield name, False, f"{folder / name}: {problem.strerror}; slurmctld or sbatch does not start without it"
            continue
        if not found:
            yield name, False, f"{folder / name} does not tell its Slurm release; build it anew"
        elif found != present:
            yield name, False, f"built for {found}, and slurmctld is {present}; install the plugins for {present}"
        elif to and to != present:
            text = f"built for {found}: install berth-slurm-plugins-{to} in the step that installs Slurm {to}"
            yield name, True, text
        else:
            yield name, True, f"built for {found}, as slurmctld is"


def slurmds_found(releases: Mapping[str, str], present: str, to: str) -> Check:
    """Returns the check of the slurmds: none may be too old for the slurmctld to come."""
    target = to or present
    newest = _place(target)
    old = [node for node, one in releases.items() if one and newest - _place(one) > _BACK]
    if old:
        return "slurmds", False, f"{some(old)}: more than {_BACK} releases older than {target}; upgrade these first"
    behind = [node for node, one in releases.items() if one and _major(one) != _major(target)]
    if behind:
        text = f"{len(behind)} of {len(releases)} are not of {_major(target)}: each needs plugins of its own release"
        return "slurmds", True, text
    return "slurmds", True, f"{len(releases)} of release {_major(target)}"


def jobs_found(jobs: Iterable[JobFacts]) -> Iterator[Check]:
    """Yields rows on waiting pins, shares and guests; none of these jobs has to end for an upgrade."""
    pinned = shares = guests = 0
    for job in jobs:
        if job.state in ("PENDING", "ARRAY"):
            pinned += bool(job.required and NODES in job.known)
        elif job.guest:
            guests += 1
        elif job.share:
            shares += 1
    yield "waiting pins", True, f"{pinned}: they stand in Slurm's job records and outlive each restart"
    text = f"{shares}: they stand in /run/berth of their nodes; do not reboot these nodes before the jobs end"
    yield "shares", True, text if shares else "0"
    text = f"{guests} run; each stands still until berth-guard has measured its host anew: restart guards node by node"
    yield "guests", True, text if guests else "0 run"


def scripts_found(own: str) -> Check:
    """Returns the row on the nodes' Prolog, Epilog and guard."""
    return (
        "node scripts",
        True,
        f"no record tells the controller their release: berth --version on each node has to be {own}",
    )


def berth_found(own: str, running: str) -> Check:
    """Returns the check that the running berthd is the one that is installed here."""
    if running and running != own:
        text = (
            f"runs {running}, and {own} is installed here; restart it soon, it starts processes from what is installed"
        )
        return "berthd's release", False, text
    return "berthd's release", True, f"{own}, as installed" if running else f"{own} is installed, and no berthd answers"


def notices_found(program: Path, *, listens: bool) -> Check:
    """Returns the check of the notices that nodes send at a job's end: both sides have to speak one protocol."""
    if not listens:
        return "notices", True, "switched off: [notice] of berth.conf names no host"
    try:
        speaks = f"{VERSION} epilog".encode() in program.read_bytes()
    except OSError:
        return "notices", True, f"{program} is not on this computer; berthd of this release hears {VERSION}"
    if not speaks:
        return "notices", False, f"{program} does not speak {VERSION}, which berthd hears; install both of one release"
    return "notices", True, f"{program} speaks {VERSION}, as berthd hears it"


def order(rung: str, to: str, controllers: Sequence[str], *, accounting: bool) -> list[str]:
    """Returns the steps of an upgrade in their order; `to` is the Slurm to come, empty for Berth alone."""
    there = rung != "observe"
    steps = []
    first = ", then ".join([*controllers[1:], controllers[0]]) if len(controllers) > 1 else "the controller"
    if to and accounting:
        steps.append(f"slurmdbd: install Slurm {to} there and restart it; it has no part of Berth")
    if to and there:
        steps.append(f"On {first}: Slurm {to} with the plugins for {to} in one step, then restart slurmctld")
    elif to:
        steps.append(f"On {first}: Slurm {to}, then restart slurmctld; no plugin of Berth is named")
    if not to:
        steps.append("Berth's Python code and the plugins on all computers; commands and node scripts are new at once")
    if not to and there:
        steps.append(f"Restart slurmctld on {first}: it loads job_submit_berth.so at its start")
    if there:
        steps.append("Restart berthd on each controller at once: waiting jobs are pinned anew within two seconds")
    if to:
        with_plugins = f" with the plugins for {to}" if there else ""
        steps.append(f"Node by node: Slurm {to}{with_plugins}, then restart slurmd; jobs go on")
        steps.append(f"Login nodes last: Slurm {to}{with_plugins} in one step")
    if rung in ("exact", "sharing"):
        steps.append("On each GPU node: berth --version, which is to be that of the controller, and berth doctor node")
    if rung == "sharing":
        steps.append("Restart berth-guard node by node: guests stand still until their hosts are measured anew")
    if there and not to:
        steps.append("New keys go into berth.conf last: an old berthd would not start with a key that it does not know")
    return [*steps, "berth doctor"]


def _major(release: str) -> str:
    return ".".join(release.split(".")[:2])


def _place(release: str) -> int:
    """Returns a release's place in the order; unknown ones come before or after all others."""
    major = _major(release)
    if major in MAJORS:
        return MAJORS.index(major)
    numbers = [int(part) for part in re.findall(r"\d+", major)]
    return -1 if numbers < [22, 5] else len(MAJORS)


def before_upgrade(
    gateway: Gateway, settings: Config, printed: Printed, to: str, programs: Path = Path("/usr/libexec/berth")
) -> tuple[list[Check], list[str]]:
    """Returns the checks of a site, and the steps in their order; `to` is the Slurm to come, empty for Berth alone."""
    if to and not re.fullmatch(r"\d\d\.\d\d(\.\d+)?", to):
        raise UsageError(f"{to} is no release of Slurm such as 26.05.5")
    present, config, reading = gateway.version(), gateway.config(), gateway.read(ended=False)
    rung = step_of(config, [node for node in reading.nodes if node.gpus or node.loose], plain=settings.plain).name
    rows: list[Check] = []
    if rung != "observe":
        rows += plugins_found(Path(config.get("PluginDir", "").split(":")[0]), present, to)
    elif to:
        rows += release_found(present, to)
    rows.append(slurmds_found(_releases(printed), present, to))
    if rung != "observe":
        rows += jobs_found(reading.jobs)
        rows.append(notices_found(programs / "berth-notice", listens=bool(settings.notice_port)))
        rows.append(scripts_found(installed()))
        rows.append(berth_found(installed(), _running(settings)))
    controllers = [re.sub(r"\(.*\)", "", host) for key, host in config.items() if key.startswith("SlurmctldHost")]
    accounting = "slurmdbd" in config.get("AccountingStorageType", "")
    return rows, order(rung, to, controllers, accounting=accounting)


def _releases(printed: Printed) -> dict[str, str]:
    lines = printed("scontrol", "show", "node", "--oneliner").decode("utf-8", "replace").splitlines()
    found = (re.match(r"NodeName=(\S+)(?:.*? Version=(\S+))?", line) for line in lines)
    return {match[1]: match[2] or "" for match in found if match}


def _running(settings: Config) -> str:
    try:
        return ask.status(settings.socket).get("version", "")
    except BerthError:
        return ""
