# SPDX-License-Identifier: Apache-2.0
import json
import os
import pwd
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policy.cli.main import main
from policy.formats.errors import FormatError
from policy.sharing.profiles import FORMAT, Measured, ProfileKey, Store, Verdict

ANN, BOB = ProfileKey("ann", "lab", "train"), ProfileKey("bob", "lab", "serve")
DAY = 86_400.0

parts = st.floats(0, 1)
measurements = st.builds(
    Measured, at=st.floats(0, 1e9), runs=st.floats(0.1, 50), busy=parts | st.none(), bandwidth=parts | st.none(),
    memory=st.floats(0, 1e5) | st.none(), step=st.floats(0, 100) | st.none(),
)  # fmt: skip
words = st.text(max_size=8)


def measured(at: float = 0.0, **values: float) -> Measured:
    return Measured(**{"at": at, "runs": 1.0, "busy": 0.4, "bandwidth": 0.2, "memory": 3_000.0, **values})


@given(st.dictionaries(st.builds(ProfileKey, words, words, words), measurements, max_size=5))
def test_a_store_comes_back_as_it_was_written(profiles: dict[ProfileKey, Measured]) -> None:
    store = Store(measured=profiles)
    store.trial(ANN, BOB, (0.9, 0.7), at=5.0)
    store.fault(ANN, ProfileKey("é", "a/b", "x\ny"), at=6.0)

    again = Store.read(store.write())

    assert again == store
    assert json.loads(store.write().split("\n", 1)[0]) == {"format": FORMAT}


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ('{"profile":["a","b","c"],"at":0,"runs":1,"bussy":0.5}', "did you mean busy"),
        ('{"profile":["a","b","c"],"at":0,"runs":1,"busy":-1}', "busy is a number"),
        ('{"profile":["a","b","c"],"at":0,"runs":1,"busy":NaN}', "busy is a number"),
        ('{"profile":["a","b"],"at":0,"runs":1}', "line 2"),
        ('{"profile":["a","b","c"],"runs":1}', "line 2"),
        ('{"host":["a","b","c"],"guest":["a","b","c"],"at":0,"trials":1,"host_":1}', "unknown field"),
        ("nonsense", "line 2"),
        ("[]", "line 2"),
    ],
)
def test_a_wrong_line_is_named(line: str, says: str) -> None:
    with pytest.raises(FormatError, match=says):
        Store.read(json.dumps({"format": FORMAT}) + "\n" + line + "\n")


def test_another_format_is_refused() -> None:
    with pytest.raises(FormatError, match="berth-profiles/9"):
        Store.read('{"format":"berth-profiles/9"}\n')


def test_a_changed_job_is_believed_after_a_while() -> None:
    store = Store()
    for run in range(20):
        store.add(ANN, measured(at=run * DAY, busy=0.2))
    for run in range(5):
        store.add(ANN, measured(at=(200 + run) * DAY, busy=0.8))

    assert store.measured[ANN].busy == pytest.approx(0.8, abs=0.05)


@given(measurements, measurements)
def test_the_order_in_which_measurements_arrive_does_not_matter(one: Measured, other: Measured) -> None:
    forth, back = Store(), Store()
    forth.add(ANN, one)
    forth.add(ANN, other)
    back.add(ANN, other)
    back.add(ANN, one)

    if one.at != other.at:
        assert forth == back


def test_memory_keeps_its_peak_and_what_was_not_measured_stays() -> None:
    store = Store()
    store.add(ANN, measured(memory=8_000.0, step=0.5))
    store.add(ANN, measured(memory=2_000.0, at=1.0))

    found = store.measured[ANN]
    assert found.step == 0.5
    assert found.memory is not None
    assert 2_000 < found.memory <= 8_000


def test_other_users_profiles_are_neither_shown_nor_used() -> None:
    store = Store()
    store.add(BOB, measured())

    assert store.seen_by("ann") == {}
    assert store.best_for(ProfileKey("ann", "lab", "serve")) is None
    assert store.best_for(ProfileKey("bob", "other", "serve")) is not None


def test_a_job_of_an_unknown_name_is_taken_for_its_users_class() -> None:
    store = Store()
    store.add(ProfileKey("ann", "lab", "class:memory"), measured(busy=0.7))

    found = store.best_for(ANN, app_class="memory")

    assert found is not None
    assert found.busy == 0.7
    assert store.best_for(ANN) is None


def test_trials_are_learned_from_and_faults_are_for_ever() -> None:
    store = Store()
    assert store.verdict(ANN, BOB) is Verdict.UNKNOWN
    store.trial(ANN, BOB, (0.80, 0.5), at=0.0)
    assert store.verdict(ANN, BOB) is Verdict.HARMED
    for _ in range(8):
        store.trial(ANN, BOB, (0.99, 0.5), at=1.0)
    assert store.verdict(ANN, BOB) is Verdict.GOOD
    store.fault(BOB, ANN, at=2.0)
    store.trial(ANN, BOB, (1.0, 1.0), at=3.0)
    store.age(now=3_000 * DAY)

    assert store.verdict(ANN, BOB) is Verdict.FAULT
    assert store.verdict(BOB, ANN) is Verdict.FAULT


def test_many_names_of_one_user_push_out_no_profile_or_pair_of_another() -> None:
    store = Store()
    mine = [ProfileKey("mallory", "lab", f"run{number}") for number in range(50)]
    train, sweep = ProfileKey("ann", "lab", "train"), ProfileKey("bob", "lab", "sweep")
    for key in (train, sweep):
        store.add(key, measured(at=1.0))
    store.trial(train, sweep, (1.0, 0.8), 1.0)
    for number, key in enumerate(mine, 100):
        store.add(key, measured(at=number))
        store.trial(train, key, (1.0, 0.8), number)
        store.fault(key, mine[0], number)
    assert store.trim(20)
    assert {train, sweep} <= store.measured.keys()
    assert (train, sweep) in store.tried
    assert max(len(store.measured), len(store.tried)) == 20
    assert mine[-1] in store.measured
    assert (mine[-1], mine[0]) in store.tried, "a fault stays longer than what was only tried"
    assert not store.trim(20)


def test_old_profiles_are_forgotten() -> None:
    store = Store()
    store.add(ANN, measured(at=0.0))
    store.add(BOB, measured(at=300 * DAY))

    store.age(now=310 * DAY)

    assert list(store.measured) == [BOB]


def test_the_command_shows_ones_own_profiles_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    me = ProfileKey(pwd.getpwuid(os.getuid()).pw_name, "lab", "train")
    file = tmp_path / "profiles"
    file.write_text(Store({me: measured(), BOB: measured()}).write())
    monkeypatch.setenv("LOGNAME", "bob")

    assert main(["profile", "show", "--store", str(file), "--json"]) == 0
    assert list(json.loads(capsys.readouterr().out)["profiles"]) == [str(me)]
    assert main(["profile", "show", "--store", str(file)]) == 0
    assert "kernels 40% of the time" in capsys.readouterr().out

    # A container may have no name for its user.
    monkeypatch.setattr(os, "getuid", lambda: 4_000_000_000)
    assert main(["profile", "show", "--store", str(file)]) == 0
    assert not capsys.readouterr().out

    monkeypatch.setattr(os, "geteuid", lambda: 1_000)
    assert main(["profile", "show", "--store", str(file), "--all"]) == 2
    assert main(["profile", "show", "--store", str(tmp_path / "none")]) == 1
    assert "cannot be read" in capsys.readouterr().err
