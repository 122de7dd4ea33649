# SPDX-License-Identifier: Apache-2.0
"""The command `berth web`, which serves a page of the machine room, the queue and past events."""

from __future__ import annotations

import argparse
import ipaddress
import os
import threading
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from policy.formats.errors import UsageError
from policy.site import page_options

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from policy.serve.web.access import WebAccess
    from policy.serve.web.model import WebRoom, WebSource
    from policy.serve.web.simulated import SimulatedSource
    from policy.site.config import Config
    from policy.site.overview import OverviewFile
    from policy.site.privacy import SlurmRules
    from policy.slurm.interface import Gateway

__all__ = ["register", "serve_page"]


def register(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the command."""
    parser = commands.add_parser("web", help="serve a page of GPUs, queue and history")
    parser.add_argument("--from-simulation", type=Path, metavar="FILE", help="show a run of simulate --history instead")
    parser.add_argument("--from-collect", type=Path, metavar="FILE", help="show past days, of a file of berth collect")
    parser.add_argument("--day", metavar="DATE", help="with --from-collect: this day alone, such as 2026-11-20")
    parser.add_argument("--gateway", default="auto", metavar="NAME", help="as berthd's (default: of berth.conf)")
    page_options.add(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Serves until it is interrupted."""
    page_options.check(options)
    if options.from_simulation or options.from_collect:
        _serve(options, _recorded(options), _access(options))
        return 0
    if options.day:
        raise UsageError("--day is for --from-collect FILE; add it, or leave --day out")
    from policy.site.config import config_path, load  # noqa: PLC0415 - keeps `berth --help` fast
    from policy.site.host import give_way  # noqa: PLC0415
    from policy.site.overview import OverviewFile, path_of  # noqa: PLC0415
    from policy.site.privacy import SlurmRules  # noqa: PLC0415
    from policy.slurm.gateways import open_gateway  # noqa: PLC0415

    give_way()
    config = load(config_path())
    name = config.gateway if options.gateway == "auto" else options.gateway
    # Two gateways, as each serves one thread at a time.
    rules = SlurmRules(open_gateway(name).config, os.geteuid())
    _serve_live(options, config, OverviewFile(path_of(config.socket)), open_gateway(name), rules)
    return 0


def serve_page(config: Config, overview: OverviewFile, gateway: Callable[[], Gateway], rules: SlurmRules) -> None:
    """Serves the live cluster, with the options that berth.conf names."""
    options = page_options.read(config.web_options or "")
    _serve_live(options, config, overview, gateway(), rules)


def _serve_live(
    options: argparse.Namespace, config: Config, overview: OverviewFile, gateway: Gateway, rules: SlurmRules
) -> None:
    from policy.serve.web.live import LiveSource  # noqa: PLC0415

    source = LiveSource(overview.read, gateway.job, rules, lambda: _known(config, ()).links)
    _serve(options, source, _access(options), source.read)


def _serve(
    options: argparse.Namespace, source: WebSource, access: WebAccess, read: Callable[[], object] | None = None
) -> None:
    """Serves a source; a live source is read again and again by `read`."""
    from policy.serve.web.server import Exhibit, WebServer, poll  # noqa: PLC0415

    exhibit, names = Exhibit(source), frozenset(options.host_name)
    with WebServer((options.bind, options.port), exhibit, access, names, options.embed_in) as server:
        if read is not None:
            threading.Thread(target=poll, args=(exhibit, read, options.every, server.stopped), daemon=True).start()
        host, port = server.server_address[:2]
        shown = f"[{host!s}]" if ":" in str(host) else str(host)
        print(f"berth web: http://{shown}:{port}/", flush=True)
        try:
            server.serve_forever()
        finally:
            server.stopped.set()


def _recorded(options: argparse.Namespace) -> SimulatedSource:
    from policy.serve.web.simulated import CollectedSource, SimulatedSource  # noqa: PLC0415
    from policy.site.config import config_path, load  # noqa: PLC0415

    if options.from_simulation:
        if options.from_collect or options.day:
            raise UsageError("--from-simulation stands alone; leave --from-collect and --day out")
        return SimulatedSource(options.from_simulation)
    since, until = 0.0, float("inf")
    if options.day:
        try:
            day = datetime.strptime(options.day, "%Y-%m-%d")  # noqa: DTZ007 - a day of this machine's clock
        except ValueError:
            raise UsageError(f"--day {options.day!r} is no day; write it as 2026-11-20") from None
        since, until = day.timestamp(), (day + timedelta(days=1)).timestamp()
    config = load(config_path())
    return CollectedSource(options.from_collect, lambda names: _known(config, names), since, until)


def _access(options: argparse.Namespace) -> WebAccess:
    from policy.serve.web.access import WebAccess, read_tokens  # noqa: PLC0415

    proxies = frozenset(str(ipaddress.ip_address(one)) for one in options.trust_proxy)
    tokens = read_tokens(options.tokens) if options.tokens else {}
    return WebAccess(proxies, options.user_header, tokens, must_be_known=page_options.check(options))


def _known(config: Config, names: Sequence[str]) -> WebRoom:
    """Returns these nodes, and all models' links, from the topology files, the fabric and the score table."""
    from policy.serve.web.model import WebNode, WebRoom  # noqa: PLC0415
    from policy.site.config import fabric_file  # noqa: PLC0415
    from policy.site.log import error  # noqa: PLC0415
    from topology import scores  # noqa: PLC0415
    from topology.errors import TopologyError  # noqa: PLC0415
    from topology.files import load_directory  # noqa: PLC0415
    from topology.network.fabric import Fabric  # noqa: PLC0415
    from topology.providers import slurm_fabric  # noqa: PLC0415

    machines, slurm, speed = {}, None, {}
    try:
        machines = load_directory(config.topology_dir, lambda problem: error(str(problem)))
        # Their links need neither the fabric nor the scores.
        source = fabric_file(config.fabric) if names else None
        slurm = slurm_fabric.read(source) if source else None
        table = scores.load(config.scores) if names and config.scores else ()
        speed = {(one.node, one.position): one.score for one in table if one.app_class == "compute"}
    except TopologyError as problem:
        error(f"{problem}; the page shows the nodes without it")
    fabric = Fabric.of(machines.values(), slurm)
    place = {name: number for number, name in enumerate(fabric.names)}

    def group(groups: Sequence[str], number: int) -> str:
        return groups[number] if 0 <= number < len(groups) else ""

    def node(name: str) -> WebNode:
        machine, at = machines.get(name), place.get(name)
        if machine is None or at is None:
            return WebNode(name, 0)
        found = [round(speed[name, gpu], 3) for gpu in range(machine.size) if (name, gpu) in speed]
        return WebNode(
            name,
            machine.size,
            group(fabric.leaves, int(fabric.leaf[at])),
            group(fabric.pods, int(fabric.pod[at])),
            group(fabric.domains, int(fabric.domain[at])),
            machine.model,
            found if len(found) == machine.size else (),
        )

    links = {one.model: [(link.a, link.b, link.gbps) for link in one.links] for one in machines.values()}
    return WebRoom([node(name) for name in names], links)
