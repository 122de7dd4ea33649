from dataclasses import replace

import pytest

from policy.daemon.answer.answerer import Answerer
from policy.daemon.passes.handover import Snapshot
from policy.formats.errors import ConfigError
from policy.history.runtime import KnownAtSubmission
from policy.history.size_order import EndedJob, Runs, SizeOrder
from policy.site.config import Config, load
from tests.unit.policy.daemon.test_answerer import put
from tests.unit.policy_world import NOW, book, node, reading, running, submit, waiting


def asked(gpus: int, user: str = "1000", limit: float = 3_600.0) -> KnownAtSubmission:
    return KnownAtSubmission(user, "", "", gpus, limit)


def test_without_history_no_job_is_preferred() -> None:
    assert SizeOrder(1_000).points(asked(8)) == 0


def test_smaller_jobs_get_more_points_within_the_weight() -> None:
    order = SizeOrder(1_000)
    for gpus in (1, 2, 4, 8, 16, 32):
        order.learn([EndedJob(asked(gpus, f"u{gpus}"), 600.0)] * 5)

    points = [order.points(asked(gpus, f"u{gpus}")) for gpus in (1, 4, 32)]

    assert points == sorted(points, reverse=True)
    assert points[0] > 250
    assert points[-1] < -250
    assert max(map(abs, points)) <= 500


def test_what_counts_is_what_a_users_jobs_really_take_not_their_limits() -> None:
    order = SizeOrder(1_000)
    for more in range(30):
        order.learn([EndedJob(asked(1, "short"), 60.0 + more), EndedJob(asked(1, "long"), 3_000.0 + 10 * more)])

    assert order.points(asked(1, "short")) > order.points(asked(1, "long"))


def test_jobs_that_are_gone_since_the_last_reading_have_ended() -> None:
    runs = Runs()
    jobs = [running(1, "n1", 0b11, 600), running(2, "n1", 0b100, 600), waiting(3, "n1", 0b1)]
    assert runs.ended(jobs, NOW) == []

    [one] = runs.ended(jobs[1:], NOW + 20)

    assert (one.asked.gpus, one.seconds) == (2, 120.0)
    assert runs.ended(jobs[1:], NOW + 21) == []


def test_the_plugin_is_told_only_where_the_site_wants_an_order_of_its_own() -> None:
    look = reading([node("n1")])
    ended = tuple(EndedJob(asked(gpus, f"u{gpus}"), 600.0) for gpus in (2, 8, 8, 8))
    shown = Snapshot(book(look).cluster, frozenset(), "24.11.5", "recorded", "", ended=ended)
    for weight, expected in ((0, None), (1_000, "250")):
        made = Answerer(replace(Config(), order_weight=weight), "0", 1)
        made.take(shown, NOW)

        reply = put(made, uid="7", gpus="4", time_limit="10", tres_per_job="gres/gpu:4")

        assert reply.fields.get("site_factor") == expected
    assert "site_factor" not in submit()


def test_the_order_is_slurms_alone(tmp_path) -> None:  # type: ignore[no-untyped-def]
    path = tmp_path / "berth.conf"
    for line in ('order = "size"', "order_weight = 300"):
        path.write_text(f"[berthd]\n{line}\n")
        with pytest.raises(ConfigError, match=r"\[berthd\] order(_weight)? is gone; give PriorityWeightJobSize"):
            load(path)
