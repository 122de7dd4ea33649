# SPDX-License-Identifier: Apache-2.0
"""The word between guard and job: what each side may do to it, and what the other makes of that."""

from __future__ import annotations

import os
import re
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from prolog_epilog.injob import word
from prolog_epilog.injob.errors import WordError
from prolog_epilog.injob.job import Job
from prolog_epilog.injob.word import OPEN, Order, OrderPage, WordSlot, read_beats
from tests.examples import examples

UUID = "GPU-00000000-0000-0000-0000-000000000000"


@pytest.fixture
def made(tmp_path: Path) -> Path:
    return word.create(tmp_path / "42", [UUID], os.getuid(), os.getgid())[0]


def test_only_root_writes_the_order_and_only_the_job_reads_its_beat(made: Path) -> None:
    order, beat = word.order_path(made), word.beat_path(made)

    assert stat.S_IMODE(order.stat().st_mode) == 0o644
    assert stat.S_IMODE(beat.stat().st_mode) == 0o600
    assert order.stat().st_size == beat.stat().st_size == 4096


@pytest.mark.skipif(os.getuid() != 0, reason="only root can make a word for another user")
def test_a_users_program_can_beat_but_not_order(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    for parent in tmp_path.parents[:-1]:
        parent.chmod(parent.stat().st_mode | 0o011)
    (made,) = word.create(tmp_path / "42", [UUID], 65534, 65534)
    code = (
        "import os,sys\nos.setgid(65534);os.setuid(65534)\n"
        f"open({str(word.beat_path(made))!r},'r+b').write(b'x')\n"
        f"try: open({str(word.order_path(made))!r},'r+b')\nexcept PermissionError: sys.exit(7)"
    )

    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 7


def test_what_the_guard_orders_the_job_reads(made: Path) -> None:
    page, job = OrderPage(made), Job((made,))

    assert (job.duty(), job.order()) == (OPEN, Order())
    first = page.give(400, 8 << 30, 1 << 30, quota=9 << 30, lease_s=60)
    assert job.order() == Order(400, 8 << 30, 1 << 30, 9 << 30, first)
    assert page.give(400, lease_s=60) == first
    assert page.give(0, lease_s=60) == first + 1
    assert job.duty() == 0


def test_made_again_a_word_keeps_its_order(made: Path) -> None:
    OrderPage(made).give(300, lease_s=60)

    word.create(made.parent, [UUID], os.getuid(), os.getgid())

    assert Job((made,)).duty() == 300


def test_an_order_that_nobody_renews_ends_with_its_lease(made: Path) -> None:
    job = Job((made,))
    began = time.monotonic()
    OrderPage(made).give(0, lease_s=0.05)

    job.gate()

    assert 0.03 < time.monotonic() - began < 10
    assert job.duty() == OPEN


@pytest.mark.parametrize("duty", [-1, 1001])
def test_a_duty_that_cannot_be_is_refused(made: Path, duty: int) -> None:
    with pytest.raises(WordError, match="a duty is 0 to 1000 permille"):
        OrderPage(made).give(duty, lease_s=1)


def test_what_the_job_tells_the_guard_reads(made: Path) -> None:
    job = Job((made,))
    assert job.ready()
    for _ in range(20):
        job.beat(0.05)
    job.beat(0.07)
    job.report_memory(5 << 30, 6 << 30, 1 << 30)

    (beat,) = read_beats(made)

    assert (beat.pid, beat.ready, beat.library, beat.steps) == (os.getpid(), True, False, 21)
    assert (beat.used, beat.peak, beat.spilled) == (5 << 30, 6 << 30, 1 << 30)
    assert beat.recent_us == (50_000,) * 15 + (70_000,)
    assert beat.step_ns / beat.steps == pytest.approx((20 * 0.05e9 + 0.07e9) / 21)
    job.beat(0.03)
    (later,) = read_beats(made)
    assert later.steps - beat.steps == 1
    assert later.step_ns - beat.step_ns == pytest.approx(0.03e9)


def test_each_process_has_its_own_slot_and_takes_it_along_when_it_dies(made: Path) -> None:
    code = (
        "import sys,pathlib\nfrom prolog_epilog.injob.job import Job\n"
        "job=Job((pathlib.Path(sys.argv[1]),))\njob.ready()\nprint(1,flush=True)\nsys.stdin.read()"
    )
    Job((made,)).ready()
    with subprocess.Popen(
        [sys.executable, "-c", code, str(made)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        other.stdout.readline()
        assert {beat.pid for beat in read_beats(made)} == {os.getpid(), other.pid}
        other.kill()
        other.wait()
    assert [beat.pid for beat in read_beats(made)] == [os.getpid()]


def test_a_forked_child_gets_a_place_of_its_own(made: Path) -> None:
    code = (
        "import os,sys,pathlib\nos.environ['BERTH_WORD']=sys.argv[1]\nfrom prolog_epilog import injob\n"
        "from prolog_epilog.injob.word import read_beats\ninjob.ready()\ninjob.step(0.1)\n"
        "if os.fork()==0:\n injob.ready()\n injob.step(0.2)\n injob.step(0.2)\n os._exit(0 if len("
        "read_beats(pathlib.Path(sys.argv[1])))==2 else 1)\n"
        "assert os.wait()[1]==0\nprint([b.steps for b in read_beats(pathlib.Path(sys.argv[1]))])"
    )

    done = subprocess.run([sys.executable, "-c", code, str(made)], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == "[1]"


def test_the_sixteenth_process_is_told_why_it_is_not_heard(made: Path) -> None:
    places = [WordSlot(made) for _ in word.SLOTS]
    job = Job((made,))

    assert not job.ready()
    assert "has 15 processes already" in job.why
    job.step(1.0)
    assert len(places) == 15


def test_without_a_word_everything_returns_at_once_and_says_why(tmp_path: Path) -> None:
    for job, why in (
        (Job(()), "BERTH_WORD is not set"),
        (Job((tmp_path / "42" / UUID,)), f"in a container, bind {tmp_path}/42 into it"),
    ):
        assert why in job.why
        assert not job.ready()
        job.gate()
        job.step()


def test_a_word_of_another_version_is_not_obeyed(made: Path) -> None:
    path = word.order_path(made)
    path.write_bytes(b"BERTHWD9" + path.read_bytes()[8:])

    assert "older or newer than the node's" in Job((made,)).why


@settings(max_examples=examples(60), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rubbish=st.binary(min_size=256, max_size=1024), slot=st.integers(1, 12))
def test_rubbish_in_the_beat_is_never_believed_nor_fatal(made: Path, rubbish: bytes, slot: int) -> None:
    places = [WordSlot(made) for _ in range(3)]
    with word.beat_path(made).open("r+b") as page:
        page.seek(slot * 256)
        page.write(rubbish)
    now = time.monotonic_ns()

    for beat in read_beats(made):
        assert beat.at_ns <= now
        assert beat.step_ns <= now
        assert len(beat.recent_us) <= 16
        assert max(beat.used, beat.peak, beat.steps) <= 1 << 62
    for place in places:
        place.close()


@pytest.mark.parametrize("size", [0, 10, 4095, 4097, 1 << 24])
def test_a_beat_that_the_job_cuts_or_grows_gets_its_size_back(made: Path, size: int) -> None:
    place = WordSlot(made)
    os.truncate(word.beat_path(made), size)

    read_beats(made)

    assert word.beat_path(made).stat().st_size == 4096
    place.close()


@pytest.mark.parametrize("size", [0, 8, 264, 300, 4095])
def test_a_beat_that_is_cut_while_it_is_read_is_as_unreadable_as_any(
    made: Path, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    place = WordSlot(made)
    pread = os.pread

    def cut_before(descriptor: int, count: int, at: int) -> bytes:
        os.ftruncate(descriptor, size)
        return pread(descriptor, count, at)

    monkeypatch.setattr(os, "pread", cut_before)
    with pytest.raises(WordError, match="is cut while it is read"):
        read_beats(made)
    monkeypatch.undo()

    read_beats(made)
    assert word.beat_path(made).stat().st_size == 4096
    place.close()


def test_a_link_in_the_place_of_a_page_is_never_followed(tmp_path: Path) -> None:
    folder, target = tmp_path / "42", tmp_path / "victim"
    folder.mkdir()
    target.write_text("precious")
    (folder / f"{UUID}.beat").symlink_to(target)

    with pytest.raises(WordError, match=re.escape(f"cannot open {folder}/{UUID}.beat")):
        word.create(folder, [UUID], os.getuid(), os.getgid())
    assert target.read_text() == "precious"


@pytest.mark.parametrize("name", ["", "a/b", "a:b", "../x"])
def test_what_cannot_name_a_word_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(WordError, match="cannot name a word"):
        word.create(tmp_path, [name], 0, 0)


def test_after_the_job_nothing_is_left(made: Path) -> None:
    word.remove(made.parent)
    word.remove(made.parent)

    assert not made.parent.exists()


def test_a_job_obeys_the_strictest_of_its_words(tmp_path: Path) -> None:
    words = word.create(tmp_path / "42", ["GPU-a", "GPU-b"], os.getuid(), os.getgid())
    OrderPage(words[0]).give(800, memory=1, lease_s=60)
    OrderPage(words[1]).give(300, memory=2, lease_s=60)

    second = Job(words, device=1)
    second.ready()

    assert second.duty() == 300
    assert second.order().memory == 2
    assert read_beats(words[0]) == ()
    assert len(read_beats(words[1])) == 1
    assert Job(words).sit(uuid="gpu-B") is not None
    assert len(read_beats(words[1])) == 2


@pytest.mark.parametrize("name", ["ready", "step", "gate"])
def test_the_header_declares_what_python_offers(name: str) -> None:
    header = (Path(word.__file__).parent / "c" / "berth_injob.h").read_text()

    assert re.search(rf"\bberth_{name}\(", header)


def test_an_order_holds_up_to_the_end_of_its_lease(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page, numbers = OrderPage(made), word.map_order(made)
    page.give(400, lease_s=60)
    until = numbers[word.UNTIL]
    found = list[int]()
    for now in (until, until + 1):
        monkeypatch.setattr(time, "monotonic_ns", lambda now=now: now)
        found.append(word.read_order(numbers).duty)
    assert found == [400, OPEN]


def test_a_page_that_is_read_leaves_no_file_open(made: Path) -> None:
    OrderPage(made).close()
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(5):
        word.map_order(made).release()
    assert len(list(Path("/proc/self/fd").iterdir())) == before


NOW = 10**12
TRUE_BEAT = {0: 77, 1: 1, 2: NOW, 3: 5, 4: 1_000, 13: 5, 14: 900, 15: 2**63 + 5}
"""Numbers of a slot by their place: the command's own number (15) may be any."""


def decoded(**changed: int) -> bool:
    """Tells whether a slot with these numbers in place of true ones is believed."""
    numbers = [0] * (16 + word.RECENT)
    for place, value in {**TRUE_BEAT, **{int(name[1:]): value for name, value in changed.items()}}.items():
        numbers[place] = value
    page = bytearray(word.PAGE)
    word._SLOT_NUMBERS.pack_into(page, word.SLOT, *numbers, *[0] * (len(numbers_of(page)) - len(numbers)))
    return word._decode(bytes(page), 1, NOW) is not None


def numbers_of(page: bytearray) -> tuple[int, ...]:
    return word._SLOT_NUMBERS.unpack_from(page, word.SLOT)


def test_a_beat_of_this_very_moment_is_believed_whatever_number_its_command_has() -> None:
    assert decoded()
    assert decoded(_15=0)


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (2, NOW + 1),  # in the future
        (2, 0),  # steps, and no time of the last
        *((place, NOW + 1) for place in (4, 5, 14)),  # longer than the machine has been up
        (3, 1_001),  # shorter than a nanosecond each
        *((place, (1 << 62) + 1) for place in range(3, 15)),
    ],
)
def test_a_beat_that_cannot_be_true_is_left_out(place: int, value: int) -> None:
    assert not decoded(**{f"_{place}": value})
