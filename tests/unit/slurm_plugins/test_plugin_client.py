# SPDX-License-Identifier: Apache-2.0
"""The plugin's side of the socket: deadlines, a full queue, strangers, and the circuit breaker."""

import ctypes
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.unit.fake_berthd import berthd
from tests.unit.plugin_library import library

OK, DEAD, TIMEOUT, BAD = range(4)
#: What comes at once comes well before this on a loaded machine too.
LONG_MS, SOON_S = 20_000, 10.0
SIZE = 64


class Client:
    """struct client, opaque but for its room."""

    def __init__(self) -> None:
        self.room = ctypes.create_string_buffer(256)
        library().client_init(self.room)


def ask(
    path: Path, *, deadline_ms: int = LONG_MS, owner: int | None = None, client: Client | None = None
) -> tuple[int, bytes, float]:
    """Result, answer, seconds."""
    reply = ctypes.create_string_buffer(SIZE)
    length = ctypes.c_size_t()
    started = time.monotonic()
    result = library().client_ask(
        (client or Client()).room, str(path).encode(), os.getuid() if owner is None else owner,
        ctypes.c_uint32(deadline_ms), b"hello", ctypes.c_size_t(5), reply, ctypes.c_size_t(SIZE), ctypes.byref(length),
    )  # fmt: skip
    return result, reply.raw[: length.value], time.monotonic() - started


@contextmanager
def listener(path: Path, backlog: int = 8) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as server:
        server.bind(str(path))
        server.listen(backlog)
        yield server


@contextmanager
def answering(path: Path, answer: Callable[[bytes], bytes | None]) -> Iterator[None]:
    with listener(path) as server:

        def serve() -> None:
            connection, _ = server.accept()
            with connection:
                reply = answer(connection.recv(1000))
                if reply is not None:
                    connection.send(reply)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield
        finally:
            thread.join()


def test_an_answer_comes_back(tmp_path: Path) -> None:
    with answering(tmp_path / "s", lambda request: request + b" world"):
        assert ask(tmp_path / "s")[:2] == (OK, b"hello world")


def test_nobody_there_is_known_at_once(tmp_path: Path) -> None:
    result, _, seconds = ask(tmp_path / "none")
    assert result == DEAD
    assert seconds < SOON_S
    with listener(tmp_path / "left"):
        pass
    assert ask(tmp_path / "left")[0] == DEAD


def test_silence_ends_at_the_deadline(tmp_path: Path) -> None:
    with listener(tmp_path / "s"):
        result, _, seconds = ask(tmp_path / "s", deadline_ms=60)
    assert result == TIMEOUT
    assert 0.055 <= seconds < SOON_S


def test_a_full_queue_does_not_block(tmp_path: Path) -> None:
    with listener(tmp_path / "s", backlog=0):
        waiting = []
        for _ in range(3):
            client = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            client.setblocking(False)
            client.connect_ex(str(tmp_path / "s"))
            waiting.append(client)
        result, _, seconds = ask(tmp_path / "s")
        for client in waiting:
            client.close()
    assert result == TIMEOUT
    assert seconds < SOON_S


def test_a_hang_up_without_an_answer_is_no_answer(tmp_path: Path) -> None:
    with answering(tmp_path / "s", lambda _: None):
        assert ask(tmp_path / "s")[0] == DEAD


def test_a_longer_answer_than_there_is_room_for_is_bad(tmp_path: Path) -> None:
    with answering(tmp_path / "s", lambda _: b"x" * (SIZE + 1)):
        assert ask(tmp_path / "s")[0] == BAD


def listen_as_nobody(server: socket.socket) -> None:
    """The kernel keeps the credentials of whoever calls listen(); only root can borrow another's."""
    child = os.fork()
    if child == 0:
        os.setuid(65534)
        server.listen(8)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0


def test_a_strangers_socket_is_not_spoken_to(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as server:
        server.bind(str(tmp_path / "s"))
        if os.getuid() == 0:
            listen_as_nobody(server)
        else:
            server.listen(8)
        assert ask(tmp_path / "s", owner=os.getuid() + 1)[0] == BAD


def test_a_connection_is_kept_from_one_question_to_the_next(tmp_path: Path) -> None:
    client = Client()
    with berthd(tmp_path / "s", lambda request: request + b" world") as came:
        for _ in range(5):
            assert ask(tmp_path / "s", client=client)[:2] == (OK, b"hello world")
    assert came == [5]


def test_a_berthd_that_was_started_anew_is_found_at_once(tmp_path: Path) -> None:
    client = Client()
    for number in (b"1", b"2"):
        with berthd(tmp_path / "s", lambda _, number=number: number) as came:  # type: ignore[misc]
            assert [ask(tmp_path / "s", client=client)[:2] for _ in range(2)] == [(OK, number)] * 2
        assert came == [2]
    result, _, seconds = ask(tmp_path / "s", client=client)
    assert result == DEAD
    assert seconds < SOON_S


def test_an_answer_that_comes_too_late_is_not_taken_for_the_next(tmp_path: Path) -> None:
    answers, gone = iter([b"late", b"in time"]), threading.Event()

    def answer(_: bytes) -> bytes:
        reply = next(answers)
        assert reply != b"late" or gone.wait(60)
        return reply

    client = Client()
    with berthd(tmp_path / "s", answer) as came:
        assert ask(tmp_path / "s", client=client, deadline_ms=50)[0] == TIMEOUT
        gone.set()
        assert ask(tmp_path / "s", client=client)[:2] == (OK, b"in time")
    assert came == [1, 1]


def test_who_comes_while_another_waits_is_not_held_up(tmp_path: Path) -> None:
    held, let_go = threading.Event(), threading.Event()
    answers = iter([b"first", b"second"])

    def answer(_: bytes) -> bytes:
        reply = next(answers)
        if reply == b"first":
            held.set()
            let_go.wait(SOON_S)
        return reply

    client, got = Client(), []
    with berthd(tmp_path / "s", answer) as came:
        waits = threading.Thread(target=lambda: got.append(ask(tmp_path / "s", client=client)[:2]))
        waits.start()
        assert held.wait(SOON_S)
        assert ask(tmp_path / "s", client=client)[:2] == (OK, b"second")
        let_go.set()
        waits.join()
    assert got == [(OK, b"first")]
    assert came == [1, 1]


def test_a_connection_that_was_hung_up_is_not_asked_again(tmp_path: Path) -> None:
    client = Client()
    with berthd(tmp_path / "s", lambda request: request) as came:
        assert ask(tmp_path / "s", client=client)[0] == OK
        library().client_hang_up(client.room)
        assert ask(tmp_path / "s", client=client)[0] == OK
    assert came == [1, 1]


class Breaker:
    """struct breaker, opaque but for its room."""

    def __init__(self, failures: int, seconds: int) -> None:
        self.room = ctypes.create_string_buffer(4_096)
        library().breaker_init(self.room, ctypes.c_uint32(failures), ctypes.c_uint32(seconds))

    def allows(self, at_ms: int, uid: int = 7) -> bool:
        return bool(library().breaker_allows(self.room, ctypes.c_uint64(at_ms), ctypes.c_uint32(uid)))

    def not_tried(self) -> None:
        library().breaker_not_tried(self.room)

    def report(self, at_ms: int, uid: int = 7, *, ok: bool) -> None:
        library().breaker_report(self.room, ctypes.c_uint64(at_ms), ctypes.c_uint32(uid), ctypes.c_bool(ok))

    def set_aside(self, at_ms: int, uid: int, seconds: int) -> None:
        library().breaker_set_aside(self.room, ctypes.c_uint64(at_ms), ctypes.c_uint32(uid), ctypes.c_uint64(seconds))


def opened(at_ms: int = 0) -> Breaker:
    """Two users have failed."""
    breaker = Breaker(failures=2, seconds=5)
    for uid in (1, 2):
        assert breaker.allows(at_ms, uid)
        breaker.report(at_ms, uid, ok=False)
    return breaker


def test_who_has_not_tried_leaves_the_probe_to_the_next_one_and_says_nothing_of_berthd() -> None:
    breaker = opened()
    assert breaker.allows(5_000)
    breaker.not_tried()
    assert [breaker.allows(5_001) for _ in range(2)] == [True, False]
    breaker.report(5_001, ok=False)
    assert not breaker.allows(10_000)


def test_the_breaker_opens_after_failures_in_a_row_only() -> None:
    breaker = Breaker(failures=3, seconds=5)
    for uid, ok in ((1, False), (2, False), (3, True), (4, False), (5, False)):
        assert breaker.allows(0, uid)
        breaker.report(0, uid, ok=ok)
    assert breaker.allows(0)
    breaker.report(0, 6, ok=False)
    assert not breaker.allows(4999)


def test_one_caller_probes_while_the_others_go_without() -> None:
    breaker = opened()
    assert [breaker.allows(5000) for _ in range(3)] == [True, False, False]
    breaker.report(5050, ok=False)
    assert not breaker.allows(10049)
    assert breaker.allows(10050)
    breaker.report(10051, ok=True)
    assert all(breaker.allows(10052) for _ in range(3))


def test_one_users_failures_cost_nobody_else_anything() -> None:
    breaker = Breaker(failures=3, seconds=5)
    for _ in range(3):
        assert breaker.allows(0, 666)
        breaker.report(0, 666, ok=False)
    assert not breaker.allows(4_999, 666)
    assert breaker.allows(0, 1)
    breaker.report(0, 1, ok=True)
    # What went well for another is no reason to try that one's requests again.
    assert not breaker.allows(4_999, 666)
    assert breaker.allows(5_000, 666)


def test_a_user_who_fails_while_others_do_not_goes_without_all_the_same() -> None:
    breaker = Breaker(failures=3, seconds=5)
    for _ in range(3):
        breaker.report(0, 666, ok=False)
        breaker.report(0, 1, ok=True)

    assert [breaker.allows(4_999, uid) for uid in (666, 1)] == [False, True]


def test_a_success_in_between_is_no_row_of_a_users_failures() -> None:
    breaker = Breaker(failures=3, seconds=5)
    for ok in (False, False, True, False, False):
        breaker.report(0, 666, ok=ok)
        breaker.report(0, 1, ok=True)

    assert breaker.allows(0, 666)


@pytest.mark.parametrize("uid", [0, 666])
def test_of_whom_berthd_says_so_nobody_asks_for_a_while(uid: int) -> None:
    breaker = Breaker(failures=3, seconds=5)
    assert breaker.allows(0, uid)
    breaker.set_aside(1_000, uid, 4)

    assert not breaker.allows(4_999, uid)
    assert breaker.allows(4_999, 1)
    assert breaker.allows(5_000, uid)


def test_one_users_failures_count_once_with_those_of_others() -> None:
    breaker = Breaker(failures=3, seconds=5)
    for _ in range(30):
        breaker.report(0, 666, ok=False)
    breaker.report(0, 1, ok=False)
    assert [breaker.allows(0, uid) for uid in (1, 2, 666)] == [True, True, False]
    breaker.report(0, 2, ok=False)

    assert not any(breaker.allows(4_999, uid) for uid in (1, 2, 3, 666))


def test_two_users_that_fail_in_turn_count_as_two() -> None:
    breaker = Breaker(failures=3, seconds=5)
    for uid in (1, 2, 1, 2):
        breaker.report(0, uid, ok=False)
    assert breaker.allows(0, 3)
    for uid in (1, 2):
        breaker.report(0, uid, ok=False)

    assert [breaker.allows(4_999, uid) for uid in (1, 2, 3)] == [False, False, True]


def test_after_a_success_users_are_counted_anew() -> None:
    breaker = Breaker(failures=3, seconds=5)
    for uid, ok in ((1, False), (9, True), (1, False), (2, False)):
        breaker.report(0, uid, ok=ok)
    assert breaker.allows(0, 9)
    breaker.report(0, 3, ok=False)

    assert not breaker.allows(4_999, 9)


def test_of_many_users_that_fail_alone_each_goes_without() -> None:
    breaker = Breaker(failures=1, seconds=5)
    for uid in range(100):
        breaker.report(uid, uid, ok=False)
        breaker.report(uid, 1_000, ok=True)

    # The first ones have been forgotten for the last ones.
    assert [breaker.allows(100, uid) for uid in (0, 35, 36, 99)] == [True, True, False, False]


def test_lines_of_the_hook_log_are_whole_when_threads_write(tmp_path: Path) -> None:
    path = tmp_path / "hook.log"
    fd = library().hook_log_open(str(path).encode())
    assert fd >= 0

    def write() -> None:
        for number in range(200):
            library().hook_log_write(fd, ctypes.c_uint64(number), b"place", 1000)

    threads = [threading.Thread(target=write) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    os.close(fd)
    lines = [line.split("\t") for line in path.read_text().splitlines()]
    assert len(lines) == 800
    assert all(line[2:] == ["place", "1000"] and float(line[0]) > 1e9 and int(line[1]) < 200 for line in lines)
