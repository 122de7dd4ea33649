# SPDX-License-Identifier: Apache-2.0
"""The read-only process, which berthd starts at low priority and can work without.

Each listener has a thread, a port and bounds of its own. A listener that fails is opened again later, and does not
affect the others.
"""

import argparse
import asyncio
import contextlib
import os
import resource
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from policy.formats.errors import BerthError
from policy.serve.status import BerthdStatus
from policy.site import ask, log
from policy.site.config import Config, load
from policy.site.host import give_way
from policy.site.overview import OverviewFile, path_of
from policy.site.privacy import SlurmRules
from policy.slurm.gateways import open_gateway
from policy.slurm.interface import Gateway

AGAIN_AFTER = 30.0
"""Seconds until a listener that failed is opened again."""
MOST_FILES = 4_096
"""The limit of open files; the listeners' bounds admit some 1,100 connections."""


class ReadOnlyProcess:
    """The parts that the listeners share: berth.conf, Slurm's rules, berthd's status and the state file."""

    def __init__(self, config: Config, gateway: Callable[[], Gateway], berthd: Path) -> None:
        """Each caller of `gateway` gets one of its own: a gateway serves one thread at a time."""
        self._config = config
        self._gateway = gateway
        self._state_file = path_of(berthd)
        self._overview = OverviewFile(self._state_file)
        self._rules = SlurmRules(gateway().config, os.geteuid())
        self._status = BerthdStatus(lambda: ask.status(berthd))

    def start(self) -> None:
        """Starts the listeners that berth.conf switches on; they end with the process."""
        listeners = {"metrics": self._metrics, "questions": self._questions, "page": self._page}
        for name, serve in listeners.items():
            if name in self._config.listeners:
                threading.Thread(target=_keep, args=(serve,), daemon=True).start()

    # Each is imported in its own thread: a package that is missing costs one listener.
    def _metrics(self) -> None:
        from policy.serve.metrics.endpoints import make_server  # noqa: PLC0415

        with make_server(self._config, self._rules, self._status, self._state_file) as server:
            server.serve_forever()

    def _questions(self) -> None:
        from policy.serve.questions.answers import Questions  # noqa: PLC0415
        from policy.serve.questions.port import QuestionPort  # noqa: PLC0415
        from policy.site.auth.credentials import Credentials  # noqa: PLC0415
        from policy.site.host import listen, listen_here  # noqa: PLC0415

        questions = Questions(self._gateway().job, self._rules, self._status, self._overview.read)
        port = QuestionPort(questions.answer, Credentials(self._config.munge_socket).decode)

        async def serve(*listeners: socket.socket) -> None:
            await asyncio.gather(*map(port.serve, listeners))

        with listen(self._config.users_port) as far, listen_here(self._config.users_socket) as near:
            asyncio.run(serve(far, near))

    def _page(self) -> None:
        from policy.serve.web.command import serve_page  # noqa: PLC0415

        serve_page(self._config, self._overview, self._gateway, self._rules)


def _keep(serve: Callable[[], None]) -> None:
    while True:
        try:
            serve()
        except BerthError as problem:
            log.error(problem)
        except Exception as fault:  # noqa: BLE001 - one listener's fault must not end the others
            log.error(f"a fault of berthd's own, a listener is opened again in {AGAIN_AFTER:.0f} s: {fault!r}", 653)
        time.sleep(AGAIN_AFTER)


def _leave_room() -> None:
    """Makes this process the first to end if memory runs out, and raises its limit of open files."""
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("500", encoding="ascii")
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(MOST_FILES, hard), hard))


def main(arguments: Sequence[str] | None = None) -> int:
    """Serves until berthd ends."""
    parser = argparse.ArgumentParser(prog="berthd-serve")
    parser.add_argument("--config", type=Path, required=True)
    parser.add_argument("--gateway", required=True)
    parser.add_argument("--socket", type=Path, required=True)
    options = parser.parse_args(arguments)
    # Python would run a handler when a call returns, and the call that waits for berthd may have just begun.
    told, tell = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(tell)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: None)
    give_way()
    _leave_room()
    try:
        config = load(options.config)
        name = config.gateway if options.gateway == "auto" else options.gateway
        ReadOnlyProcess(config, lambda: open_gateway(name), options.socket).start()
    except BerthError as problem:
        log.error(problem)
        return 1
    # berthd holds the other end of this pipe: when berthd is gone, the read ends.
    with contextlib.suppress(OSError):
        while told not in select.select([sys.stdin, told], [], [])[0] and os.read(sys.stdin.fileno(), 64):
            pass
    return 0


if __name__ == "__main__":
    sys.exit(main())
