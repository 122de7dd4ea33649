# SPDX-License-Identifier: Apache-2.0
"""The read-only process itself, on a recorded Slurm and free ports of this host."""

import http.client
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.fakes import munge
from tests.fakes.munge import credential
from tests.waiting import until

ROOT = Path(__file__).parents[4]
RECORDING = ROOT / "tests" / "unit" / "data" / "slurm-26.05"
TOKEN = "made-up-word-for-scrapes"  # noqa: S105 - made up


@dataclass(frozen=True)
class Served:
    """A process that serves, and its ports."""

    process: subprocess.Popen[bytes]
    metrics: int
    questions: int
    page: int

    def scrape(self) -> int | None:
        """The status of a scrape; None while there is none."""
        return _get(self.metrics, "/metrics/scheduler")

    def look(self) -> int | None:
        """The status of the page; None while there is none."""
        return _get(self.page, "/")

    def ask(self) -> bytes | None:
        """The reply to a question; None while there is none."""
        try:
            with socket.create_connection(("127.0.0.1", self.questions), timeout=30) as connection:
                connection.sendall(credential(b"berth/1 status") + b"\n")
                return connection.makefile("rb").read()
        except OSError:
            return None


def _get(port: int, path: str) -> int | None:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        connection.request("GET", path, headers={"Authorization": f"Bearer {TOKEN}"})
        return connection.getresponse().status
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()


def free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


@contextmanager
def served(folder: Path, metrics: int = 0, web: str = "") -> Iterator[Served]:
    """The process, as soon as it answers questions; it may open few files if it does not see to that itself."""
    ports = free_ports(3)
    (folder / "token").write_text(TOKEN)
    (folder / "viewers").write_text(f"{TOKEN} root\n")
    (folder / "viewers").chmod(0o600)
    conf = folder / "berth.conf"
    conf.write_text(
        f'[hook]\nsocket = "{folder}/no.sock"\n[users]\nhosts = "127.0.0.1"\nport = {ports[0]}\n'
        f'[metrics]\nenabled = true\nport = {metrics or ports[1]}\ntoken_file = "{folder}/token"\n'
        f'[web]\nenabled = true\noptions = "--port {ports[2]} --tokens {folder}/viewers {web}"\n'
    )
    command = ["/bin/sh", "-c", 'ulimit -Sn 256; exec "$@"', "sh"]
    command += [sys.executable, "-m", "policy.serve.main", "--config", str(conf), "--gateway", f"recorded:{RECORDING}"]
    environment = {**os.environ, "LD_LIBRARY_PATH": str(munge.library().parent)}
    process = subprocess.Popen(
        [*command, "--socket", str(folder / "no.sock")], cwd=ROOT, env=environment, stdin=subprocess.PIPE
    )
    made = Served(process, metrics or ports[1], ports[0], ports[2])
    try:
        until("an answer to a question", made.ask)
        yield made
    finally:
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(20) == 0, "it ends with berthd"
