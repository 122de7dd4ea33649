# SPDX-License-Identifier: Apache-2.0
import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from policy.cli import ask
from policy.daemon.answer import memory
from policy.daemon.answer.answerer import SLICE, Answerer
from policy.daemon.answer.memory import KEPT_FOR, LEFT_FOR, MOST_MISSING, NOT_KEPT_FOR, RequestMemory
from policy.daemon.known.profiles import load_fit
from policy.daemon.passes.handover import Receiver, Sender, Snapshot
from policy.formats import segment, wire
from policy.formats.errors import DaemonError
from policy.plan.answer import case
from policy.plan.answer.case import Understanding
from policy.plan.ledger.claims import Claim
from policy.request.submission import read
from policy.sharing.neighbours import Neighbours
from policy.site.config import Config
from policy.site.overview import STALE_AFTER
from tests.unit.policy_world import NONCE, NOW, book, machine, node, reading, submit
from topology.files import dump

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[4]
UNHURRIED = "from policy.daemon.answer import main, server; server._ENOUGH = 10.0; raise SystemExit(main.main())"
"""berthd with time for each search: on a slow machine its first answer would be 'later'."""
RECORDING = Path(__file__).parents[2] / "data" / "slurm-24.11"


def answerer(nodes: int = 1, at: float = NOW) -> Answerer:
    made = Answerer(Config(), "0", 1)
    made.take(snapshot(nodes, at), at)
    return made


def snapshot(nodes: int = 1, at: float = NOW, seen: frozenset[str] = frozenset()) -> Snapshot:
    look = reading([node(f"n{i}") for i in range(1, nodes + 1)], at=at)
    return Snapshot(book(look).cluster, seen, "24.11.5", "recorded", "")


def put(made: Answerer, now: float = NOW, /, **fields: str) -> wire.Message:
    request = wire.encode("submit", submit(**{"tres_per_job": "gres/gpu:4", **fields}))
    reply = made.answer(request, now)
    assert reply is not None
    return wire.decode(reply)


def test_the_reply_carries_the_nonce_and_a_segment_that_tells_the_request() -> None:
    reply = put(answerer())

    assert (reply.verb, reply.fields["nonce"], reply.fields["seats"]) == ("place", NONCE, "1")
    values = segment.fields(f"[berth/1 {reply.fields['segment']}]")
    assert values is not None
    assert (values["id"], values["asked"], values["n"], values["k"]) == (NONCE, "tres_per_job:gres/gpu:4", "1", "4")


def test_a_place_is_kept_until_slurm_shows_the_job() -> None:
    made = answerer()
    first = put(made, nonce="1" * 16)

    made.take(snapshot(at=NOW + 1), NOW + 1)
    second = put(made, NOW + 1, nonce="2" * 16)
    made.take(snapshot(at=NOW + 2, seen=frozenset({"1" * 16, "2" * 16})), NOW + 2)
    third = put(made, NOW + 2, nonce="3" * 16)

    assert first.fields["gpus"] == "0,1,2,3"
    assert second.fields["gpus"] == "4,5,6,7"
    assert third.fields["gpus"] == "0,1,2,3"


def test_a_place_of_a_job_that_never_shows_up_comes_free_after_a_while() -> None:
    made = answerer()
    put(made, nonce="1" * 16)
    late = NOW + KEPT_FOR + 1

    made.take(snapshot(at=late), late)

    assert put(made, late).fields["gpus"] == "0,1,2,3"


def lost(made: Answerer, at: float, count: int, uid: str = "1000") -> float:
    """Give a user places for jobs that never show up; the time when that is known."""
    for number in range(count):
        put(made, at, nonce=f"{number:x}" * 16, uid=uid)
    late = at + KEPT_FOR + 1
    made.take(snapshot(at=late), late)
    return late


def test_who_has_places_refused_by_slurm_again_and_again_keeps_them_from_nobody(
    capsys: pytest.CaptureFixture[str],
) -> None:
    made = answerer()
    late = lost(made, NOW, MOST_MISSING)

    assert "uid 1000 " in capsys.readouterr().err
    for nonce in "abc":
        # Given as ever, but kept from nobody.
        assert put(made, late, nonce=nonce * 16, tres_per_job="gres/gpu:8").fields["gpus"] == "0,1,2,3,4,5,6,7"
    assert put(made, late, nonce="d" * 16, uid="1001").fields["gpus"] == "0,1,2,3"
    assert put(made, late, nonce="e" * 16, uid="1002").fields["gpus"] == "4,5,6,7"


def test_a_user_of_whom_one_job_was_refused_has_places_kept() -> None:
    made = answerer()
    late = lost(made, NOW, MOST_MISSING - 1)

    put(made, late, nonce="a" * 16)
    assert put(made, late, nonce="b" * 16, uid="1001").fields["gpus"] == "4,5,6,7"


def test_places_are_kept_again_after_a_while_or_once_slurm_shows_the_jobs() -> None:
    made = answerer()
    late = lost(made, NOW, MOST_MISSING)
    shown = snapshot(at=late + 1, seen=frozenset({"0" * 16}))
    made.take(shown, late + 1)
    put(made, late + 1, nonce="a" * 16)
    assert put(made, late + 1, nonce="b" * 16, uid="1001").fields["gpus"] == "4,5,6,7"

    made = answerer()
    later = lost(made, NOW, MOST_MISSING) + NOT_KEPT_FOR + 1
    made.take(snapshot(at=later), later)
    put(made, later, nonce="a" * 16)
    assert put(made, later, nonce="b" * 16, uid="1001").fields["gpus"] == "4,5,6,7"


def test_a_flood_of_places_that_nobody_takes_is_bounded() -> None:
    """Whatever users ask, in a thousand requests a second, and however many they are."""
    held = RequestMemory()
    claim = Claim((0,), 1, 1, 1, NOW, NOW + 60)
    for second in range(60):
        at = NOW + second
        for number in range(1_000):
            for uid in ("1", str(2 + number % 5_000)):
                if held.keeps(uid, at):
                    held.hold(f"{second}.{number}.{uid}", uid, claim, at)
        held.look(frozenset(), at, at)
        # A user's places are gone once they are missed, and no more are kept.
        mine = sum(place.uid == "1" for place in held.places())
        assert mine <= (memory.MOST_OF_A_USER if second <= 11 else 0)
        assert len(held.places()) <= memory.MOST


def refused(at: float, *nonces: str) -> Snapshot:
    found = frozenset(nonce * 16 for nonce in nonces)
    return replace(snapshot(at=at, seen=found), refused=found)


def test_who_was_refused_with_a_place_is_left_to_slurm_the_next_time() -> None:
    made = answerer()
    for nonce in "12":
        assert put(made, nonce=nonce * 16).verb == "place"
    late = NOW + 1
    made.take(refused(late, "2", "9"), late)

    again = put(made, late, nonce="3" * 16, name="other", time_limit="7")
    assert (again.verb, "refused a job like this" in again.fields["message"]) == ("pass", True)
    # Nobody else's, nothing else, and not for ever; nor is the answer kept for others.
    assert put(made, late, nonce="4" * 16, uid="1001").verb == "place"
    assert put(made, late, nonce="5" * 16, tres_per_job="gres/gpu:2").verb == "place"
    made.take(refused(late + 2, "2"), late + 2)
    assert put(made, late + 2, nonce="6" * 16).verb == "pass"
    after = late + LEFT_FOR + 1
    made.take(refused(after, "2"), after)
    assert put(made, after, nonce="7" * 16).verb == "place"


def test_a_reply_that_stood_ready_may_be_refused_too() -> None:
    made = answerer(nodes=4)
    for nonce in "1234":
        put(made, nonce=nonce * 16, tres_per_job="gres/gpu:1")
        made.look_ahead(NOW)
    made.take(refused(NOW + 1, "4"), NOW + 1)

    assert put(made, NOW + 1, nonce="5" * 16, tres_per_job="gres/gpu:1").verb == "pass"


def test_a_test_a_held_and_a_dependent_job_keep_no_place() -> None:
    made = answerer()

    for fields in ({"test": "1"}, {"held": "1"}, {"dependency": "1"}, {"begin": str(int(NOW) + 60)}):
        assert put(made, **fields).fields["gpus"] == "0,1,2,3"


def test_places_given_while_a_new_picture_is_taken_over_are_not_lost() -> None:
    made = answerer(nodes=SLICE)
    for number in range(SLICE):
        put(made, nonce=f"{number:016x}", tres_per_job="gres/gpu:8")

    unseen = made.take(snapshot(nodes=SLICE + 1, at=NOW + 1), NOW + 1)
    assert unseen
    assert made.catching_up
    assert "waits" in put(made, NOW + 1, nonce="a" * 16, tres_per_job="gres/gpu:8").fields["message"]
    made.catch_up()

    assert put(made, NOW + 1, nonce="b" * 16, tres_per_job="gres/gpu:8").fields["nodes"] == f"n{SLICE + 1}"


def test_by_a_stale_picture_no_place_is_chosen() -> None:
    made = answerer()
    made.take(Snapshot(None, frozenset(), "", "recorded", "squeue failed: no route"), NOW + 5)

    fresh = put(made, NOW + STALE_AFTER - 1)
    stale = put(made, NOW + STALE_AFTER + 1)

    assert fresh.verb == "place"
    assert stale.verb == "later"
    assert "squeue failed: no route" in stale.fields["message"]


def test_without_any_picture_jobs_are_left_to_slurm() -> None:
    assert put(Answerer(Config(), "0", 1)).verb == "pass"


def test_a_fault_of_ours_leaves_the_job_to_slurm_and_the_daemon_alive(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whatever a hostile user finds, it costs his own job Berth's help and nobody else's."""

    def broken(*_: object) -> None:
        raise KeyError("seven")

    made = answerer()
    monkeypatch.setattr("policy.daemon.answer.answerer.decide", broken)
    assert put(made).verb == "pass"
    assert "KeyError('seven')" in capsys.readouterr().err
    monkeypatch.undo()

    assert put(made).verb == "place"


GUEST = {"flag.gpu-tier": "opportunistic", "tres_per_job": "gres/gpu:1", "gpus": "1"}


@pytest.mark.parametrize("digits", [21, 5_000])
@pytest.mark.parametrize(
    ("asked", "key"),
    [({}, "begin"), ({}, "time_limit"), ({}, "gpus"), ({}, "extra_bytes"), (GUEST, "begin"), (GUEST, "time_limit")],
)
def test_a_number_of_so_many_digits_is_called_malformed(
    asked: dict[str, str], key: str, digits: int, capsys: pytest.CaptureFixture[str]
) -> None:
    reply = put(answerer(), **{**asked, key: "9" * digits})

    assert reply.verb == "pass"
    assert f"{key}=99" in reply.fields["message"]
    assert "fault" not in capsys.readouterr().err


@pytest.mark.parametrize("datagram", [b"", b"GET / HTTP/1.1\r\n", b"berth/1 submit\nnonce=x\n", b"berth/2 submit\n"])
def test_what_is_no_request_gets_no_answer(datagram: bytes) -> None:
    assert answerer().answer(datagram, NOW) is None


def test_status_counts_and_names_the_problem() -> None:
    made = answerer()
    put(made)
    put(made, prefer="x")
    put(made, tres_per_node="gres/gpu:8", min_nodes="2", max_nodes="2", **{"flag.locality": "nvlnk"})
    made.take(Snapshot(None, frozenset(), "", "recorded", "squeue failed"), NOW)

    status = wire.decode(made.answer(b"berth/1 status\n", NOW + 2) or b"").fields

    keys = ("answers", "placed", "passed", "refused", "gpus", "free_gpus", "empty_nodes")
    assert {key: status[key] for key in keys} == {
        "answers": "3",
        "placed": "1",
        "passed": "1",
        "refused": "1",
        "gpus": "8",
        "free_gpus": "4",
        "empty_nodes": "0",
    }
    assert (status["problem"], status["snapshot_age_ms"], status["slurm"]) == ("squeue failed", "2000", "24.11.5")


def test_the_newest_picture_is_handed_over_whole_and_the_fleet_only_once() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        sender, receiver = Sender(theirs), Receiver(ours)
        assert receiver.receive() is None
        first = snapshot(nodes=3)
        sender.send(first)
        got = receiver.receive()
        assert got is not None
        assert got.cluster is not None
        assert got.cluster.fleet.names == ("n1", "n2", "n3")
        assert first.cluster is not None

        sender.send(Snapshot(first.cluster, frozenset({"1"}), "", "", ""))
        sender.send(Snapshot(first.cluster, frozenset({"2"}), "", "", ""))
        newest = receiver.receive()

        assert newest is not None
        assert newest.seen == {"2"}
        assert newest.cluster is not None
        assert newest.cluster.fleet is got.cluster.fleet


def test_what_is_known_of_packed_jobs_travels_when_it_is_new_and_its_predictions_are_kept() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    fit, answers = load_fit(), answerer()
    with ours, theirs:
        sender, receiver = Sender(theirs), Receiver(ours)
        seen = []
        for known in ({}, {(1, "a"): (0.5, 0.2, 1.0)}):
            neighbours = Neighbours(known, fit, least=0.8, capped=False)
            first = snapshot()
            assert first.cluster is not None
            told = Snapshot(replace(first.cluster, neighbours=neighbours), frozenset(), "", "", "")
            for _ in range(2):
                sender.send(told)
                got = receiver.receive()
                assert got is not None
                assert got.cluster is not None
                assert isinstance(got.cluster.neighbours, Neighbours)
                answers.take(got, NOW)
                seen.append(got.cluster.neighbours)

        assert seen[0] is seen[1]
        assert seen[2] is seen[3]
        assert (seen[0].known, seen[2].known) == ({}, {(1, "a"): (0.5, 0.2, 1.0)})
        assert seen[2].table is seen[0].table


@dataclass
class Daemon:
    process: subprocess.Popen[str]
    path: Path
    recording: Path

    def ask(self, **fields: str) -> wire.Message:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as channel:
            channel.settimeout(30)
            channel.connect(str(self.path))
            channel.send(wire.encode("submit", submit(**fields)))
            return wire.decode(channel.recv(wire.REPLY_BYTES))

    def until(self, true: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 20
        while not true():
            assert time.monotonic() < deadline, "berthd did not get there"
            assert self.process.poll() is None, "berthd ended"
            time.sleep(0.05)

    def age_ms(self) -> int:
        try:
            return int(ask.status(self.path).get("snapshot_age_ms", "-1"))
        except DaemonError:
            return -1

    def planners(self) -> list[int]:
        task = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        return [int(pid) for pid in task.read_text().split()]


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    recording = Path(shutil.copytree(RECORDING, tmp_path / "recording"))
    topology = tmp_path / "topology"
    topology.mkdir()
    for name in ("n1", "n2", "n3"):
        dump(machine(name, "a6000"), topology / f"{name}.json")
    config = tmp_path / "berth.conf"
    config.write_text(f'[berthd]\ntopology_dir = "{topology}"\ntick_ms = 100\n[users]\nhosts = ""\n')
    path = tmp_path / "s"
    command = [sys.executable, "-c", UNHURRIED, "--config", str(config), "--socket", str(path)]
    with subprocess.Popen(
        [*command, "--gateway", f"recorded:{recording}"],
        cwd=ROOT,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        made = Daemon(process, path, recording)
        try:
            made.until(lambda: made.age_ms() >= 0)
            yield made
        finally:
            # Its planner too, which a test may have stopped.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def test_a_real_berthd_places_a_job_by_what_slurm_printed(daemon: Daemon) -> None:
    # In the recording n1 has 5 and 6 free, n2 none, n3 2 to 7 but reserved in an hour; n4 is drained.
    reply = daemon.ask(tres_per_job="gres/gpu:1", gpus="1")

    assert (reply.verb, reply.fields["nodes"], reply.fields["gpus"]) == ("place", "n1", "5")


def test_status_tells_how_long_looks_and_passes_take(daemon: Daemon) -> None:
    daemon.until(lambda: {"look_ms", "pass_ms"} <= ask.status(daemon.path).keys())

    status = ask.status(daemon.path)
    assert 0 < float(status["pass_ms"]) < 1_000
    assert 0 < float(status["look_ms"]) < 1_000


def test_its_socket_is_for_slurms_user_only(daemon: Daemon) -> None:
    assert daemon.path.stat().st_mode & 0o777 == 0o600


def test_a_planner_that_dies_is_started_again_and_answers_go_on(daemon: Daemon) -> None:
    [planner] = daemon.planners()

    os.kill(planner, signal.SIGKILL)
    assert daemon.ask(tres_per_job="gres/gpu:1").verb == "place"
    daemon.until(lambda: daemon.planners() not in ([], [planner]) and 0 <= daemon.age_ms() < 1_000)


def test_when_slurm_cannot_be_read_the_last_picture_serves_and_status_says_so(daemon: Daemon) -> None:
    (daemon.recording / "squeue").rename(daemon.recording / "gone")
    daemon.until(lambda: "problem" in ask.status(daemon.path))

    assert daemon.ask(tres_per_job="gres/gpu:1").verb == "place"


def test_new_topology_files_are_picked_up(daemon: Daemon, tmp_path: Path) -> None:
    shown = daemon.recording / "scontrol-show-node"
    shown.write_text(shown.read_text().replace("State=IDLE+DRAIN", "State=IDLE"))
    dump(machine("n4", "h100"), tmp_path / "topology" / "n4.json")

    daemon.until(lambda: daemon.ask(tres_per_job="gres/gpu:8").fields.get("nodes") == "n4")


def test_a_connection_is_kept_for_the_next_request_until_berthd_ends(daemon: Daemon) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as channel:
        channel.settimeout(30)
        channel.connect(str(daemon.path))
        for _ in range(3):
            channel.send(wire.encode("submit", submit(tres_per_job="gres/gpu:1")))
            assert wire.decode(channel.recv(wire.REPLY_BYTES)).verb == "place"
        # Its planner may take seconds to end; whoever asks meanwhile must not wait for nothing.
        [planner] = daemon.planners()
        os.kill(planner, signal.SIGSTOP)
        daemon.until(lambda: "State:\tT" in Path(f"/proc/{planner}/status").read_text())
        daemon.process.send_signal(signal.SIGTERM)
        assert channel.recv(wire.REPLY_BYTES) == b""
        assert "State:\tT" in Path(f"/proc/{planner}/status").read_text(), "berthd waited for its planner first"


def test_what_is_no_request_ends_its_connection(daemon: Daemon) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as channel:
        channel.settimeout(30)
        channel.connect(str(daemon.path))
        channel.send(b"hello")
        assert channel.recv(wire.REPLY_BYTES) == b""
    assert daemon.ask(tres_per_job="gres/gpu:1").verb == "place"


def test_a_silent_connection_does_not_keep_others_waiting(daemon: Daemon) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as silent:
        silent.connect(str(daemon.path))
        assert daemon.ask(tres_per_job="gres/gpu:1").verb == "place"


def test_a_second_berthd_does_not_take_the_socket_over(daemon: Daemon, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "policy.daemon.answer.main", "--config", str(tmp_path / "berth.conf")]
    second = subprocess.run(
        [*command, "--socket", str(daemon.path)], cwd=ROOT, capture_output=True, text=True, check=False, timeout=20
    )

    assert second.returncode == 1
    assert "another berthd answers" in second.stderr
    assert daemon.ask(tres_per_job="gres/gpu:1").verb == "place"


@pytest.mark.parametrize("in_its_way", [False, True])
def test_sigterm_ends_it_cleanly_with_its_planner_and_socket(daemon: Daemon, *, in_its_way: bool) -> None:
    [planner] = daemon.planners()
    if in_its_way:
        daemon.path.unlink()
        daemon.path.mkdir()

    daemon.process.send_signal(signal.SIGTERM)
    assert daemon.process.wait(10) == 0

    assert daemon.path.exists() == in_its_way
    assert not Path(f"/proc/{planner}").exists()


def test_what_a_request_means_is_remembered_but_not_beyond_its_fleet() -> None:
    understanding = Understanding()
    one, two = book(reading([node("n1")])), book(reading([node("n1"), node("n2")]))

    once = understanding.of(read(submit(tres_per_job="gres/gpu:4", nonce="0" * 16)), one.fleet)
    first = understanding.of(read(submit(tres_per_job="gres/gpu:4", nonce="1" * 16)), one.fleet)
    again = understanding.of(read(submit(tres_per_job="gres/gpu:4", nonce="2" * 16)), one.fleet)
    other = understanding.of(read(submit(tres_per_job="gres/gpu:2", nonce="3" * 16)), one.fleet)
    elsewhere = understanding.of(read(submit(tres_per_job="gres/gpu:4", nonce="4" * 16)), two.fleet)

    assert once == first
    assert again is first
    assert other.demand.k == 2
    assert elsewhere.demand.candidates.size == 2


@pytest.mark.parametrize("fields", [{"exc_nodes": "x[{0}-{1}]"}, {"name": "x", "comment": "{0}"}])
@pytest.mark.parametrize("limit", [128 << 10, 1 << 40])
def test_what_is_remembered_of_requests_is_bounded(
    fields: dict[str, str], limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(case, "_MOST_BYTES", limit)
    understanding, fleet = Understanding(), book(reading([node("n1")])).fleet
    understanding.of(read(submit(tres_per_job="gres/gpu:4")), fleet)
    tracemalloc.start()
    for number in range(600):
        more = {key: value.format(number // 2, number // 2 + 90) for key, value in fields.items()}
        understanding.of(read(submit(tres_per_job="gres/gpu:4", **more)), fleet)
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert (held < 128 << 10) is (limit == 128 << 10), held


def test_places_that_slurm_may_refuse_are_not_remembered_by_their_whole_requests() -> None:
    made = answerer()
    tracemalloc.start()
    for number in range(300):
        put(made, nonce=f"{number:016x}", exc_nodes=f"x{number}," * 4_000)
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert held < 4 << 20


def test_when_there_was_time_enough_no_further_places_are_looked_at() -> None:
    made = answerer()
    request = submit(tres_per_job="gres/gpu:4", client="batch")

    late = made.answer(wire.encode("submit", request), NOW, lambda: True)
    assert late is not None
    reply = wire.decode(late)
    assert (reply.verb, "the time for an answer" in reply.fields["message"]) == ("later", True)
    assert put(made, nonce="1" * 16).verb == "place"


def stop(daemon: Daemon) -> None:
    """Stop the answering process, and wait until it stands still."""
    os.kill(daemon.process.pid, signal.SIGSTOP)
    os.waitid(os.P_PID, daemon.process.pid, os.WSTOPPED)


def test_who_has_hung_up_gets_no_answer_and_no_place(daemon: Daemon) -> None:
    answers = int(ask.status(daemon.path)["answers"])
    stop(daemon)
    for _ in range(3):
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as channel:
            channel.connect(str(daemon.path))
            channel.send(wire.encode("submit", submit(tres_per_job="gres/gpu:1")))
    os.kill(daemon.process.pid, signal.SIGCONT)
    daemon.until(lambda: daemon.age_ms() >= 0)

    assert int(ask.status(daemon.path)["answers"]) == answers


def test_one_users_requests_do_not_stand_in_a_row_before_anothers(daemon: Daemon) -> None:
    """All are there when berthd wakes up; of each user one is answered in turn."""
    channels = [socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(9)]
    stop(daemon)
    for number, channel in enumerate(channels):
        channel.connect(str(daemon.path))
        uid = "1" if number == 8 else "666"
        channel.send(wire.encode("submit", submit(tres_per_job="gres/gpu:1", nonce=f"{number:016x}", uid=uid)))
    os.kill(daemon.process.pid, signal.SIGCONT)
    replies = {}
    for number, channel in enumerate(channels):
        channel.settimeout(20)
        replies[number] = wire.decode(channel.recv(wire.REPLY_BYTES))
        channel.close()

    # Eight GPUs are free: in the order in which they came the other user's would be the one that waits.
    soon = [number for number, reply in replies.items() if "waits" not in reply.fields.get("message", "")]
    assert len(soon) == 8
    assert 8 in soon


def test_a_request_of_another_release_is_named_once_in_the_log(capfd: pytest.CaptureFixture[str]) -> None:
    made = Answerer(Config(), "1.0", 1)

    for _ in range(3):
        assert made.answer(b"berth/1 submit\nnonce=0123456789abcdef\nuid=1\nmoon=full\n", NOW) is None

    said = capfd.readouterr().err
    assert said.count("unknown key moon in a submit request") == 1
    assert "of one release" in said
