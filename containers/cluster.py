#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs the Dockerized Slurm test cluster; `cluster.py --help` lists what it can do.

Needs nothing but Python's standard library, a Docker engine and either docker-compose 1.29 or Compose v2.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

HERE = Path(__file__).resolve().parent

# Two checkouts on one machine can each have their clusters: give one of them another prefix.
PREFIX = os.environ.get("BERTH_CLUSTER_PREFIX") or "berth"
IMAGES = os.environ.get("BERTH_CLUSTER_IMAGES") or PREFIX
VERSIONS = ("24.11", "26.05")
AUTHS = ("munge", "slurm")
KINDS_OF_NODES = ("static", "dynamic", "cloud")
NODES_OF_PROFILE = {"base": 4, "scale": 64, "accounting": 4}
NODES_PER_SCALE_HOST = 16
GPUS_PER_NODE = 8
PROJECT_LABEL = "com.docker.compose.project"
SETTINGS_LABEL = "berth.settings"


class ClusterError(Exception):
    """One sentence for the user: what failed, where, and what to do."""


def say(text: str) -> None:
    """Show progress at once, even through a pipe."""
    print(f"cluster: {text}", flush=True)


def run(*command: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Run a command and keep what it prints."""
    return subprocess.run(command, capture_output=True, text=True, check=False, env=env)


def docker(*arguments: str) -> str:
    """Run a docker command that has to succeed; its output."""
    done = run("docker", *arguments)
    if done.returncode != 0:
        raise ClusterError(f"docker {' '.join(arguments[:3])} failed: {done.stderr.strip()}")
    return done.stdout


def require_engine() -> None:
    """Say what to do when there is no Docker."""
    if shutil.which("docker") is None or run("docker", "version").returncode != 0:
        raise ClusterError("no Docker engine answers, or this user may not use it: run 'containers/bootstrap' as root")


def compose_command() -> list[str]:
    """Compose as a plugin of docker where there is one, else the command of its own (v1 or v2)."""
    if run("docker", "compose", "version").returncode == 0:
        return ["docker", "compose"]
    if shutil.which("docker-compose"):
        return ["docker-compose"]
    raise ClusterError("there is neither 'docker compose' nor 'docker-compose': run 'containers/bootstrap' as root")


@dataclass(frozen=True, slots=True)
class Container:
    """What the engine knows about one of the cluster's containers."""

    name: str
    state: str
    settings: str
    image: str


@dataclass(frozen=True, slots=True)
class Cluster:
    """One cluster: a Slurm version, with Berth or as a site without it."""

    slurm: str
    berth: bool

    @property
    def project(self) -> str:
        """The prefix of all its containers, networks and volumes."""
        return f"{PREFIX}{self.slurm.replace('.', '')}{'' if self.berth else '-plain'}"

    @property
    def image(self) -> str:
        """The image of the controller and the nodes."""
        return f"{IMAGES}-cluster:{self.slurm}{'' if self.berth else '-plain'}"

    @property
    def accounting_image(self) -> str:
        """The image of the database host."""
        return f"{IMAGES}-cluster:{self.slurm}-accounting"

    def containers(self) -> list[Container]:
        """All its containers, running or not."""
        ids = docker("ps", "--all", "--quiet", "--filter", f"label={PROJECT_LABEL}={self.project}").split()
        # Without docker(): one that has just been removed is no fault, the others are still printed.
        found = json.loads(run("docker", "inspect", *ids).stdout or "[]") if ids else []
        return sorted(
            (
                Container(
                    name=entry["Name"].lstrip("/"),
                    state=entry["State"]["Status"],
                    settings=entry["Config"]["Labels"].get(SETTINGS_LABEL, ""),
                    image=entry["Image"],
                )
                for entry in found
            ),
            key=lambda container: container.name,
        )

    def container_of(self, node: str) -> str:
        """The container in which a node lives; several nodes share one in the scale profile."""
        names = [container.name for container in self.containers()]
        name = f"{self.project}-{node}"
        if name in names:
            return name
        if number := re.fullmatch(r"n(\d+)", node):
            host = f"{self.project}-h{(int(number[1]) - 1) // NODES_PER_SCALE_HOST + 1}"
            if host in names:
                return host
        there = ", ".join(name.removeprefix(f"{self.project}-") for name in names) or "none: run 'cluster.py up'"
        raise ClusterError(f"{self.project} has no node '{node}'; its containers: {there}")


@dataclass(frozen=True, slots=True)
class Settings:
    """What a cluster is started with; a running one with other settings is started anew."""

    profile: str
    job_submit_plugins: str
    lua: str
    backup: bool = False
    """A second controller, `ctl2`, that takes over."""
    auth: str = "munge"
    nodes: str = "static"
    """dynamic: nodes register themselves (`slurmd -Z`); cloud: nodes are powered down and up."""
    sidecar: bool = False
    """berthd has a container of its own, which shares with slurmctld's what those of a pod share."""

    @property
    def profiles(self) -> str:
        """The profiles of compose.yaml."""
        return ",".join([self.profile, *["backup"] * self.backup, *["sidecar"] * self.sidecar])

    @property
    def label(self) -> str:
        """The settings as one short text, kept in a label of every container."""
        lua = hashlib.sha256(self.lua.encode()).hexdigest()[:12] if self.lua else "-"
        more = f" {self.auth} {self.nodes}" if (self.auth, self.nodes) != ("munge", "static") else ""
        more += " backup" * self.backup + " sidecar" * self.sidecar
        return f"{self.profile} {self.job_submit_plugins} {lua}{more}"


def build(cluster: Cluster, profile: str) -> None:
    """Bring the images up to date."""
    targets = ["berth" if cluster.berth else "plain"] + (["accounting"] if profile == "accounting" else [])
    command = [sys.executable, str(HERE / "images.py"), cluster.slurm, *targets]
    if subprocess.run(command, check=False).returncode != 0:
        raise ClusterError("the images could not be built; the lines above say why")


def start(cluster: Cluster, settings: Settings) -> None:
    """Create and start the containers."""
    environment = {
        **os.environ,
        "COMPOSE_PROFILES": settings.profiles,
        "PROJECT": cluster.project,
        "IMAGE": cluster.image,
        "ACCOUNTING_IMAGE": cluster.accounting_image,
        "BERTH": "yes" if cluster.berth else "no",
        "PROFILE": settings.profile,
        "BACKUP": "yes" if settings.backup else "no",
        "AUTH": settings.auth,
        "NODES": settings.nodes,
        "SIDECAR": "yes" if settings.sidecar else "no",
        "JOB_SUBMIT_PLUGINS": settings.job_submit_plugins,
        "JOB_SUBMIT_LUA": settings.lua,
        "SETTINGS": settings.label,
    }
    files = ["--project-name", cluster.project, "--file", str(HERE / "compose.yaml")]
    done = run(*compose_command(), *files, "up", "--detach", "--no-build", env=environment)
    if done.returncode != 0:
        raise ClusterError(f"compose could not start {cluster.project}:\n{done.stderr.strip()}")


def is_current(cluster: Cluster, found: list[Container], settings: Settings) -> bool:
    """Whether what runs is what would be started now."""
    images = {
        docker("image", "inspect", "--format", "{{.Id}}", image).strip()
        for image in (
            [cluster.image, cluster.accounting_image] if settings.profile == "accounting" else [cluster.image]
        )
    }
    return all(
        container.state == "running" and container.settings == settings.label and container.image in images
        for container in found
    )


def up(cluster: Cluster, settings: Settings, *, time_limit: float, rebuild: bool) -> None:
    """Bring the cluster up and wait until it can take jobs."""
    if rebuild:
        build(cluster, settings.profile)
    started = time.monotonic()
    found = cluster.containers()
    if found and not is_current(cluster, found, settings):
        say(f"{cluster.project} runs with other images or settings, or only in part: starting it anew")
        down(cluster)
        found = []
    if not found:
        # Volumes of a cluster whose containers somebody else removed: nodes would begin with its former key.
        down(cluster)
        say(f"starting {cluster.project} (Slurm {cluster.slurm}, profile {settings.profile}) ...")
        start(cluster, settings)
    wait(cluster, settings.profile, time_limit)
    say(f"{cluster.project} is up ({time.monotonic() - started:.1f} s)")


def down(cluster: Cluster) -> None:
    """Remove every container, network and volume of the cluster."""
    mark = ("--quiet", "--filter", f"label={PROJECT_LABEL}={cluster.project}")
    for kind, list_words, remove_words in (
        ("containers", ("ps", "--all"), ("rm", "--force", "--volumes")),
        ("networks", ("network", "ls"), ("network", "rm")),
        ("volumes", ("volume", "ls"), ("volume", "rm")),
    ):
        names = docker(*list_words, *mark).split()
        if names:
            say(f"removing {len(names)} {kind} of {cluster.project}")
            docker(*remove_words, *names)


def node_states(controller: str) -> dict[str, int]:
    """How many nodes are in each state; empty while slurmctld does not answer."""
    done = run("docker", "exec", controller, "sinfo", "--noheader", "--partition=gpu", "--format=%T %D")
    if done.returncode != 0:
        return {}
    pairs = (line.split() for line in done.stdout.splitlines())
    # A node that is powered down takes jobs.
    return {state.removesuffix("~"): int(count) for state, count in pairs}


def backup_stands_by(controller: str) -> bool:
    """Asks slurmctld whether its backup is up, too."""
    return run("docker", "exec", controller, "scontrol", "ping").stdout.count(" is UP") == 2


def berthd_answers(controller: str, gpus: int) -> bool:
    """Whether berthd knows all GPUs."""
    done = run("docker", "exec", controller, "berth", "status", "--json")
    return done.returncode == 0 and json.loads(done.stdout).get("gpus") == gpus


def tail(container: str, lines: int = 20) -> str:
    """The end of a container's log."""
    done = run("docker", "logs", "--tail", str(lines), container)
    return f"--- {container} ---\n{done.stdout}{done.stderr}"


def missing(cluster: Cluster, profile: str) -> str:
    """What is not there yet, in a few words; empty when all is well."""
    dead = [container.name for container in cluster.containers() if container.state != "running"]
    if dead:
        logs = "\n".join(tail(name) for name in dead)
        raise ClusterError(f"{', '.join(dead)} ended; the last lines of the log:\n{logs}")
    controller, nodes = f"{cluster.project}-ctl", NODES_OF_PROFILE[profile]
    states = node_states(controller)
    if not states:
        return "slurmctld does not answer"
    usable = states.get("idle", 0) + states.get("mixed", 0) + states.get("allocated", 0)
    if usable < nodes:
        return f"{usable} of {nodes} nodes are usable ({', '.join(sorted(states))})"
    backup = f"{cluster.project}-ctl2"
    controllers = [one for one in (controller, backup) if one in {container.name for container in cluster.containers()}]
    if backup in controllers and not backup_stands_by(controller):
        return "the backup's slurmctld does not answer"
    if cluster.berth and not all(berthd_answers(one, nodes * GPUS_PER_NODE) for one in controllers):
        return "berthd does not answer for all GPUs"
    return ""


def wait(cluster: Cluster, profile: str, time_limit: float) -> None:
    """Wait until every node takes jobs and berthd answers."""
    deadline = time.monotonic() + time_limit
    told, told_at = "", 0.0
    while lack := missing(cluster, profile):
        if time.monotonic() > deadline:
            raise ClusterError(
                f"{cluster.project} is not ready after {time_limit:.0f} s: {lack}; try 'cluster.py logs'\n"
                + tail(f"{cluster.project}-ctl")
            )
        if lack != told and time.monotonic() > told_at + 1.5:
            say(f"waiting: {lack}")
            told, told_at = lack, time.monotonic()
        time.sleep(0.25)


def enter(cluster: Cluster, node: str, user: str, command: list[str]) -> NoReturn:
    """Run a command inside a container in place of this process."""
    words = ["docker", "exec", "--interactive", "--user", user, "--env", f"USER={user}"]
    words += ["--workdir", "/root" if user == "root" else f"/home/{user}"]
    words += ["--tty"] if sys.stdin.isatty() and sys.stdout.isatty() else []
    os.execvp("docker", [*words, cluster.container_of(node), *command])


def show_status(cluster: Cluster) -> int:
    """Print what runs; 3 when nothing does."""
    found = cluster.containers()
    if not found:
        say(f"{cluster.project} is down")
        return 3
    for container in found:
        print(f"{container.name:24} {container.state:10} {container.settings}")
    for command in [["sinfo", "--partition=gpu"], *([["berth", "status"]] if cluster.berth else [])]:
        done = run("docker", "exec", f"{cluster.project}-ctl", *command)
        print(f"\n{(done.stdout or done.stderr).strip()}")
    return 0


def profile_of(cluster: Cluster) -> str:
    """The profile that runs now."""
    for container in cluster.containers():
        return container.settings.split()[0]
    raise ClusterError(f"{cluster.project} is down: run 'cluster.py up'")


def slurm_version(text: str) -> str:
    """Check a version; argparse checks its choices on the command line only, not in a default."""
    if text not in VERSIONS:
        raise argparse.ArgumentTypeError(f"no test cluster for Slurm '{text}', only for {' and '.join(VERSIONS)}")
    return text


def parser() -> argparse.ArgumentParser:
    """The command line."""
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument(
        "--slurm",
        type=slurm_version,
        metavar="VERSION",
        default=os.environ.get("SLURM") or "24.11",
        help="24.11 or 26.05 (default: the variable SLURM, else 24.11); both can be up at once",
    )
    common.add_argument(
        "--without-berth",
        action="store_true",
        help="a site without Berth: no plugins, GRES gpu:8; a cluster of its own",
    )
    profile = argparse.ArgumentParser(add_help=False)
    profile.add_argument("--profile", choices=sorted(NODES_OF_PROFILE), default="base", help="default: base, 4 nodes")
    limit = argparse.ArgumentParser(add_help=False)
    limit.add_argument("--time-limit", type=float, default=90, metavar="SECONDS", help="default: 90")
    top = argparse.ArgumentParser(prog="cluster.py", description="The Dockerized Slurm test cluster.")
    commands = top.add_subparsers(dest="command", required=True)
    add = commands.add_parser
    start_it = add("up", parents=[common, profile, limit], help="build, start, and wait until it takes jobs")
    start_it.add_argument("--backup", action="store_true", help="a second controller, ctl2, that takes over")
    start_it.add_argument("--auth", choices=AUTHS, default="munge", help="default: munge")
    start_it.add_argument("--nodes", choices=KINDS_OF_NODES, default="static", help="default: static")
    start_it.add_argument("--sidecar", action="store_true", help="berthd in a container of its own")
    start_it.add_argument("--no-build", action="store_true", help="take the images as they are")
    start_it.add_argument("--job-submit-plugins", default="berth", metavar="LIST", help="such as lua,berth")
    start_it.add_argument("--lua", type=Path, metavar="FILE", help="a job_submit.lua for the plugin lua")
    add("down", parents=[common], help="remove its containers, networks and volumes")
    add("status", parents=[common], help="show what runs")
    add("build", parents=[common, profile], help="bring the images up to date")
    add("wait", parents=[common, limit], help="wait until it takes jobs")
    inside = add("exec", parents=[common], help="run a command: exec [--user alice] NODE -- CMD ...")
    inside.add_argument("--user", default="root", help="alice, bob, carol, dave or root (default)")
    inside.add_argument("node")
    inside.add_argument("arguments", nargs=argparse.REMAINDER, metavar="-- COMMAND ...")
    shell = add("shell", parents=[common], help="a shell on a node (default: ctl, as alice)")
    shell.add_argument("node", nargs="?", default="ctl")
    shell.add_argument("--user", default="alice")
    logs = add("logs", parents=[common], help="show a container's log (default: ctl)")
    logs.add_argument("node", nargs="?", default="ctl")
    logs.add_argument("--follow", action="store_true")
    return top


def perform(arguments: argparse.Namespace) -> int:
    """Do what the command line says."""
    cluster = Cluster(arguments.slurm, berth=not arguments.without_berth)
    require_engine()
    match arguments.command:
        case "up":
            lua = arguments.lua.read_text() if arguments.lua else ""
            kind = (arguments.auth, arguments.nodes, arguments.sidecar)
            settings = Settings(arguments.profile, arguments.job_submit_plugins, lua, arguments.backup, *kind)
            up(cluster, settings, time_limit=arguments.time_limit, rebuild=not arguments.no_build)
        case "down":
            down(cluster)
        case "status":
            return show_status(cluster)
        case "build":
            build(cluster, arguments.profile)
        case "wait":
            wait(cluster, profile_of(cluster), arguments.time_limit)
        case "exec":
            command = arguments.arguments[1:] if arguments.arguments[:1] == ["--"] else arguments.arguments
            if not command:
                raise ClusterError("exec needs a command, such as 'cluster.py exec ctl -- sinfo'")
            enter(cluster, arguments.node, arguments.user, command)
        case "shell":
            enter(cluster, arguments.node, arguments.user, ["bash", "--login"])
        case "logs":
            follow = "--follow=true" if arguments.follow else "--follow=false"
            os.execvp("docker", ["docker", "logs", follow, cluster.container_of(arguments.node)])
    return 0


def main() -> int:
    """Turn a failure into one sentence and an exit status."""
    try:
        return perform(parser().parse_args())
    except (ClusterError, OSError) as error:
        print(f"cluster: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
