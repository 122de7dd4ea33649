"""The planning process: reads Slurm, keeps the pins of waiting jobs right, hands pictures to the answerer.

It may take its time, and it may die: the answerer goes on with the last picture and starts a new one.
"""

import argparse
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from policy.cluster import Fleet, build_fleet
from policy.daemon import log
from policy.daemon.config import Config, load
from policy.daemon.handover import UNSEEN, Sender, Snapshot
from policy.daemon.topologies import Topologies
from policy.decide import berth_values
from policy.errors import BerthError, SlurmError
from policy.facts import Reading
from policy.placement.registry import create
from policy.plan import Move, Plan, Release, Settings
from policy.reading import open_book
from policy.slurm.gateways import open_gateway
from policy.slurm.interface import Gateway, Pin


class Planner:
    """One pass after another."""

    def __init__(self, gateway: Gateway, config: Config, sender: Sender) -> None:
        self._gateway = gateway
        self._sender = sender
        self._topologies = Topologies(config.topology_dir, config.fabric)
        self._plan = Plan(create(config.policy), Settings(config.locality_wait, config.repin))
        self._fleet: Fleet | None = None
        self._fleet_key: object = None
        self._problem = ""

    def one_pass(self, *, ended: bool) -> None:
        """Read, plan, hand over, then write: the answerer must not wait for updates."""
        try:
            reading = self._gateway.read(ended=ended)
        except SlurmError as problem:
            if str(problem) != self._problem:
                log.error(f"{problem}; the last picture of Slurm stays in use")
            self._problem = str(problem)
            self._sender.send(Snapshot(None, frozenset(), "", self._gateway.name, str(problem)))
            return
        if self._problem:
            log.info("Slurm can be read again")
            self._problem = ""
        book = open_book(self._fleet_of(reading), reading)
        changes = self._plan.replan(book, reading.jobs)
        self._sender.send(Snapshot(book.cluster, reading.seen, reading.version, self._gateway.name, ""))
        if reading.in_control:
            self._write(changes, reading)

    def _fleet_of(self, reading: Reading) -> Fleet:
        """The fleet, made anew only when something that seldom changes did."""
        new_files = self._topologies.refresh()
        key = (
            reading.partitions,
            reading.memory,
            reading.memory_counts,
            [
                replace(node, cpus_used=0, mem_used=0, up=True, completing=False, gpus_used=0, seats_used=0)
                for node in reading.nodes
            ],
        )
        if self._fleet is None or new_files or key != self._fleet_key:
            self._fleet = build_fleet(
                reading.nodes,
                reading.partitions,
                self._topologies.machines,
                reading.memory,
                memory_counts=reading.memory_counts,
                fabric=self._topologies.fabric,
            )
            self._fleet.tables.warm()
            self._fleet_key = key
            for reason in self._fleet.not_ready.values():
                log.error(f"{reason}; Berth places no job there")
        return self._fleet

    def _write(self, changes: Sequence[Move | Release], reading: Reading) -> None:
        for change in changes:
            job_id = change.job.id
            try:
                if isinstance(change, Release):
                    self._gateway.release(job_id, f"given back to Slurm: {change.reason}")
                    log.info(f"JobId={job_id} given back to Slurm: {change.reason}")
                    continue
                berth = change.berth
                values = moved(change, reading.at)
                self._gateway.pin(job_id, Pin(berth.names, berth.gpus, berth.seats, values))
                log.info(f"JobId={job_id} NodeList={values['nodes']} GPUs={values['gpus']} pinned: {change.reason}")
            except SlurmError as problem:
                log.error(f"JobId={job_id} keeps its place: {problem}")


def moved(move: Move, at: float) -> dict[str, str]:
    """The segment of a job after a move."""
    old = {key: value for key, value in (move.job.segment or {}).items() if key != "start"}
    values = {
        **old,
        "state": "waiting" if move.start else "placed",
        **berth_values(move.berth),
        "at": str(int(at)),
        "pins": str(int(old.get("pins", "0")) + 1),
        "why": f"{move.reason}; {move.berth.why}",
    }
    if move.start:
        values["start"] = str(int(move.start))
    return values


def main(arguments: Sequence[str] | None = None) -> int:
    """Plan until the answerer's end of the channel closes."""
    parser = argparse.ArgumentParser(prog="berthd-planner")
    parser.add_argument("--channel", type=int, required=True)
    parser.add_argument("--config", type=Path, required=True)
    parser.add_argument("--gateway", required=True)
    options = parser.parse_args(arguments)
    # The answerer decides when to end: it closes the channel.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Planning gives way to whatever answers a waiting user.
    os.nice(10)
    channel = socket.socket(fileno=options.channel)
    try:
        config = load(options.config)
        planner = Planner(open_gateway(options.gateway), config, Sender(channel))
        _passes(planner, channel, config.tick)
    except BerthError as problem:
        log.error(problem)
        return 1
    except (BrokenPipeError, ConnectionResetError):
        return 0
    return 0


def _passes(planner: Planner, channel: socket.socket, tick: float) -> None:
    ended = False
    while True:
        due = time.monotonic() + tick
        planner.one_pass(ended=ended)
        ended = False
        while (left := due - time.monotonic()) > 0:
            readable, _, _ = select.select([channel], [], [], left)
            if readable:
                word = channel.recv(64)
                if not word:
                    return
                ended = ended or word == UNSEEN


if __name__ == "__main__":
    sys.exit(main())
