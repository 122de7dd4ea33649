# SPDX-License-Identifier: Apache-2.0
"""What the guard says to berthd, over TCP with a credential, and where berthd is."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import pytest

from policy.daemon.hear.guards import Alone, Together, read_word
from prolog_epilog.errors import NodeConfigError, NodeError
from prolog_epilog.guard import options
from prolog_epilog.guard.measure.baseline import Baseline
from prolog_epilog.guard.measure.signals import HostBeat
from prolog_epilog.guard.options import NoticeOptions
from prolog_epilog.guard.tell import notice
from prolog_epilog.guard.tell.figures import Figures
from prolog_epilog.guard.tell.notice import GuardNotice
from tests.fakes import munge

ROOT = Path(__file__).resolve().parents[4]

ONE = GuardNotice("n1", 3, "overlimit", "evict", 42)
SECONDS = 5.0


def sign(payload: bytes, _socket: str) -> bytes:
    return b"MUNGE:" + payload.hex().encode() + b":"


@contextmanager
def berthd(answer: bytes | None, heard: list[bytes]) -> Iterator[NoticeOptions]:
    """One that takes lines and answers; None: it never does."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            with suppress(OSError):
                while True:
                    with listener.accept()[0] as peer, peer.makefile("rb") as lines:
                        heard.append(lines.readline())
                        if answer is None:
                            lines.read()
                        else:
                            peer.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        yield NoticeOptions(("127.0.0.1",), listener.getsockname()[1])
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()


@pytest.mark.parametrize(
    ("answer", "taken"), [(b"berth/1 done\n", True), (b"berth/1 standby\n", False), (b"", False), (b"x" * 200, False)]
)
def test_one_notice_and_its_answer(answer: bytes, taken: bool) -> None:
    heard: list[bytes] = []
    with berthd(answer, heard) as where:
        assert notice.tell(where, ONE, sign, SECONDS) is taken
    assert heard == [sign(b"berth/1 guard node=n1 gpu=3 job=42 state=overlimit word=evict", "") + b"\n"]


def test_berthd_reads_what_the_guard_writes() -> None:
    said = read_word(ONE.text.encode())
    assert said is not None
    assert (said.node, said.gpu, said.job, said.state, said.word) == ("n1", 3, 42, "overlimit", "evict")


def test_berthd_reads_the_guards_figures() -> None:
    alone = (("alone", 107), ("alone_s", 60.0), ("step", 0.21), ("busy", 0.5), ("memory", 3012.25))
    said = read_word(replace(ONE, figures=alone).text.encode())
    assert said is not None
    assert said.alone == Alone(107, 60.0, step=0.21, busy=0.5, memory=3012.25)
    assert said.together is None

    beside = (("host", 107), ("shared_s", 58.1), ("speed", 0.97), ("duty", 0.0))
    said = read_word(replace(ONE, figures=beside).text.encode())
    assert said is not None
    assert (said.job, said.together) == (42, Together(107, 58.1, 0.97, 0.0))


def test_an_owner_that_lies_about_its_steps_keeps_no_order_from_berthd() -> None:
    heartbeat = Baseline()
    for second in range(60):
        heartbeat.add(HostBeat(1e4 + 1e3 * second, 1, 1e3))
    lies = Figures()
    lies.turn(0.0, 0.5)
    lies.turn(60.0, 0.5)
    lies.beat(HostBeat(1e5, 10**9, 1.0))

    said = read_word(replace(ONE, figures=lies.told(0, 2**32 - 1, heartbeat)).text.encode())

    assert said is not None
    assert (said.word, said.job) == ("evict", 42)
    assert said.together is not None
    assert said.together.host == 2**32 - 1


@pytest.mark.parametrize("figures", [" busy=0.5", " alone=1", " alone=x alone_s=1", " host=1 shared_s=1", "  x=1"])
def test_figures_that_make_no_sense_are_refused(figures: str) -> None:
    assert read_word((ONE.text + figures).encode()) is None


def test_nobody_is_waited_for_longer_than_the_deadline() -> None:
    with berthd(None, []) as where:
        began = time.monotonic()
        assert notice.tell(where, ONE, sign, 0.3) is False
        assert time.monotonic() - began < 3.0
    assert notice.tell(where, ONE, sign, SECONDS) is False
    assert notice.tell(NoticeOptions(), ONE, sign) is False


def test_no_munged_is_a_sentence() -> None:
    with pytest.raises(NodeError, match=r"munge"):
        notice.credential(b"x", "/nowhere/munge.socket")


def test_munge_vouches_for_the_text() -> None:
    code = "from prolog_epilog.guard.tell.notice import credential; print(credential(b'hello', '/run/m').decode())"
    environment = {**os.environ, "LD_LIBRARY_PATH": str(munge.library().parent)}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, text=True, check=True, timeout=60
    )

    content = bytes.fromhex(done.stdout.strip().removeprefix("MUNGE:").removesuffix(":")).decode()
    assert content.startswith(f"{os.geteuid()}:")
    assert content.endswith(":hello")


def test_where_berthd_is_stands_in_berth_conf(tmp_path: Path) -> None:
    conf = tmp_path / "berth.conf"
    assert options.load(str(conf))[1] == NoticeOptions()
    conf.write_text(
        '[notice]\nhosts = "ctl, ctl2"\nport = 7000\nlog = "/x"\n[guard]\nmetrics = "/var/lib/x.prom"\n'
        "[guard.action]\nevict_grace_s = 5\n"
    )
    settings, where = options.load(str(conf))
    assert where == NoticeOptions(("ctl", "ctl2"), 7000)
    assert (settings.metrics, settings.action.evict_grace_s) == ("/var/lib/x.prom", 5.0)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('[guard]\nmetrics = "x.prom"', "is a path from / on"),
        ("[guard]\nboond = 1", "did you mean bound"),
        ("guard = 1", "guard is a table"),
        ("[notice]\nport = 0", "port is from 1 to 65535, not 0"),
        ("[notice]\nhosts = 3", "hosts is a text in quotes"),
        ("[guard", "berth.conf"),
    ],
)
def test_a_wrong_berth_conf_is_named(tmp_path: Path, text: str, said: str) -> None:
    conf = tmp_path / "berth.conf"
    conf.write_text(text)
    with pytest.raises(NodeConfigError, match=said):
        options.load(str(conf))
