# SPDX-License-Identifier: Apache-2.0
"""Jobs unlike all measured ones are promised nothing until they were tried, and trials correct what comes next."""

from dataclasses import replace

import numpy as np
import pytest

from policy.cluster.shared.sharers import JobIdentity
from policy.daemon.known.profiles import load_fit
from policy.plan.opinions.guests.trial_ledger import LONGEST, TrialLedger
from policy.sharing.companions import Companions, Footing
from policy.sharing.predictor import profile
from policy.sharing.profiles import Measured, ProfileKey, Store
from tests.bench.training import Pairs, guess
from tests.bench.trial_replay import TrialReplay, replay

FIT = load_fit()
LIGHT = Measured(at=0.0, runs=5, busy=0.14, bandwidth=0.0, memory=2_048.0)
"""Like a job of the fit."""
NEW = Measured(at=0.0, runs=5, busy=0.02, bandwidth=0.0, memory=30_000.0)
"""Like none of them; its numbers alone would be promised any speed."""


def who(name: str) -> JobIdentity:
    return JobIdentity(1, "lab", name)


def key(name: str) -> ProfileKey:
    return ProfileKey("ann", "lab", name)


def companions(**jobs: Measured) -> Companions:
    return Companions(Store({key(name): one for name, one in jobs.items()}), FIT, lambda _: "ann")


def tried(known: Companions, host: str, guest: str, speed: float) -> None:
    known.store.trial(key(host), key(guest), (speed, 0.5), 0.0)
    known.tried(key(host), key(guest))


def test_a_job_unlike_all_measured_ones_is_on_trial_though_its_numbers_promise_the_speed() -> None:
    known = companions(light=LIGHT, other=LIGHT, new=NEW)

    assert known.pair(who("light"), who("other")).footing is Footing.PROMISED
    pair = known.pair(who("light"), who("new"))
    assert (pair.footing, pair.safe, pair.barred) == (Footing.TRIAL, False, False)
    assert "this is a trial" in pair.text


def test_two_good_trials_with_others_make_it_known() -> None:
    known = companions(light=LIGHT, one=LIGHT, two=LIGHT, new=NEW)

    tried(known, "one", "new", 1.0)
    assert known.pair(who("light"), who("new")).footing is Footing.TRIAL
    tried(known, "two", "new", 1.0)
    assert known.pair(who("light"), who("new")).footing is Footing.PROMISED


def test_trials_that_harmed_take_the_promise_away_from_other_pairs_too() -> None:
    known = companions(light=LIGHT, one=LIGHT, two=LIGHT, new=NEW)
    before = known.pair(who("light"), who("new")).host

    tried(known, "one", "new", 0.6)
    tried(known, "two", "new", 0.6)

    pair = known.pair(who("light"), who("new"))
    assert pair.footing is Footing.UNSURE
    assert pair.host < before - 0.05
    assert known.pair(who("one"), who("new")).footing is Footing.HARMED
    assert known.predicted(who("light"), who("new")).host == pytest.approx(before), "the bare prediction stays"


def test_a_host_that_every_guest_slows_is_promised_no_more() -> None:
    known = companions(light=LIGHT, one=LIGHT, two=LIGHT, other=LIGHT)

    for guest in ("one", "two"):
        tried(known, "light", guest, 0.8)

    assert known.pair(who("light"), who("other")).footing is Footing.UNSURE
    assert known.pair(who("other"), who("light")).footing is Footing.PROMISED, "it says nothing about it as a guest"


def of_users(jobs: dict[str, str]) -> Companions:
    """Returns what is known of light jobs, by name and user."""
    made = {ProfileKey(user, "lab", name): LIGHT for name, user in jobs.items()}
    return Companions(Store(made), FIT, lambda uid: f"user{uid}")


@pytest.mark.parametrize("names", [1, 3, 30])
def test_one_users_many_idle_guests_teach_about_an_owner_as_much_as_one_of_them(names: int) -> None:
    owner, victim = ProfileKey("user1", "lab", "owner"), JobIdentity(3, "lab", "guest")
    known = of_users({"owner": "user1", "guest": "user3", **{f"idle{n}": "user2" for n in range(names)}})
    for n in range(names):
        idle = ProfileKey("user2", "lab", f"idle{n}")
        known.store.trial(owner, idle, (0.5, 0.5), float(n))
        known.tried(owner, idle)

    assert len(known._errors_of(owner, as_host=True)) == 1, f"{names} guests of one user have one vote"
    one = of_users({"owner": "user1", "guest": "user3", "idle0": "user2"})
    one.store.trial(owner, ProfileKey("user2", "lab", "idle0"), (0.5, 0.5), 0.0)
    one.tried(owner, ProfileKey("user2", "lab", "idle0"))
    host = JobIdentity(1, "lab", "owner")
    assert known.pair(host, victim).host == pytest.approx(one.pair(host, victim).host)


def test_a_fault_teaches_no_speed() -> None:
    known = companions(light=LIGHT, one=LIGHT, other=LIGHT)
    known.store.fault(key("light"), key("one"), 0.0)
    known.tried(key("light"), key("one"))

    assert known.pair(who("light"), who("other")).footing is Footing.PROMISED


def test_a_renewed_store_brings_its_lessons() -> None:
    known = companions(light=LIGHT, one=LIGHT, two=LIGHT, new=NEW)
    store = Store(dict(known.store.measured))
    for host in ("one", "two"):
        store.trial(key(host), key("new"), (1.0, 0.5), 0.0)

    known.renew(store)

    assert known.pair(who("light"), who("new")).footing is Footing.PROMISED


def test_one_trial_of_a_pair_goes_on_at_a_time_and_an_owner_bears_so_many_a_day() -> None:
    ledger = TrialLedger(companions(), most_a_day=2)
    other_owner = replace_user(who("light"), 2)

    ledger.begin(who("light"), who("new"), 0.0)
    assert not ledger.may(who("light"), who("new"))
    assert ledger.may(who("light"), who("other"))
    ledger.begin(who("light"), who("other"), 1.0)
    ledger.look(LONGEST + 2.0)
    assert not ledger.may(who("light"), who("new")), "two were begun today"
    assert ledger.may(other_owner, who("new"))
    ledger.look(86_400.5)
    assert ledger.may(who("light"), who("new"))


def test_an_owner_that_tolerates_none_gets_none() -> None:
    assert not TrialLedger(companions(), most_a_day=0).may(who("light"), who("new"))


def replace_user(one: JobIdentity, user: int) -> JobIdentity:
    return one._replace(user=user)


def asked(speed: float, count: int = 20, busy: tuple[float, float] = (0.02, 0.14), bandwidth: float = 0.0) -> Pairs:
    """A new job beside jobs of the fit."""
    first = np.array([profile(busy[0], 0.0, 30_000.0)] * count)
    second = np.array([profile(busy[1], bandwidth, 2_048.0)] * count)
    return Pairs(first, second, np.full((count, 2), speed), [("New", "Light")] * count)


def test_a_replay_tries_a_new_job_twice_and_promises_it_then() -> None:
    found = replay(FIT, asked(1.0), 0.85)

    assert (found.trials, found.promised, found.found) == (2, 18, 18)
    assert (found.false_safe, found.safe_recall, found.safe_recall_with_trials) == (0.0, 0.9, 1.0)


def test_a_replay_stops_trying_a_job_that_harms() -> None:
    pairs = asked(0.6)
    assert guess(FIT, pairs).least.min() >= 0.9, "numbers alone would promise it"

    found = replay(FIT, pairs, 0.85)

    assert found.promised == 0
    assert 1 <= found.trials == found.trials_harmed <= 4


def test_a_replay_promises_a_job_that_is_better_than_its_numbers_after_two_trials() -> None:
    pairs = asked(1.0, busy=(0.6, 0.5), bandwidth=0.1)
    assert guess(FIT, pairs, 0.85).least.min() < 0.9, "numbers alone would not promise it"

    found = replay(FIT, pairs, 0.85)

    assert (found.trials, found.promised) == (2, 18)


def test_a_replay_of_hosts_alone_does_not_mind_what_guests_lose() -> None:
    pairs = asked(1.0)
    pairs.speeds[:, 1] = 0.5

    assert replay(FIT, pairs, 0.85).promised == 0
    found = replay(FIT, pairs, 0.85, hosts_only=True)
    assert (found.trials, found.promised, found.harmed, found.safe) == (2, 18, 0, 20)


def test_time_counts_where_trials_harm() -> None:
    found = TrialReplay(100, 80, promised=60, harmed=3, found=50, trials=20, trials_harmed=6, trials_found=10)

    assert found.false_safe == pytest.approx(0.05)
    assert found.false_safe_in_time == pytest.approx((3 + 0.1) / (60 + 14 + 0.1))
    assert replace(found, promised=0, harmed=0, trials=0, trials_harmed=0).false_safe_in_time == 0.0
