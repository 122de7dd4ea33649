# SPDX-License-Identifier: Apache-2.0
"""Which failed jobs are tried again, where, and when."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policy.retry.classes import CLASSES
from policy.retry.classify import Classification
from policy.retry.decision import Limits, RetryDecision, Trial, decide


def trial(failure: str, *nodes: str, ran_s: float = 7_200.0, **more: object) -> Trial:
    seen = Classification(failure, CLASSES[failure].transient, "the line that says so")
    return Trial(seen, nodes or ("n1",), ran_s, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "failure",
    [
        *("syntax_error", "incorrect_inputs", "permission_error", "import_error", "semantic_error"),
        *("cpu_out_of_memory", "gpu_out_of_memory", "cuda_version_mismatch", "cannot_load_libs", "model_diverged"),
    ],
)
def test_what_would_fail_again_is_not_tried_again_and_the_reason_says_what(failure: str) -> None:
    decision = decide([trial(failure)], Limits())

    assert not decision.again
    assert CLASSES[failure].what in decision.reason
    assert "the line that says so" in decision.reason


def test_inputs_that_are_only_out_of_reach_are_tried_again() -> None:
    away = Trial(Classification("incorrect_inputs", transient=True, reason="curl: (7)"), ("n1",), 30.0)

    assert decide([away], Limits()).again


def test_the_only_node_of_a_job_is_left_out() -> None:
    assert decide([trial("cuda_init_failed", "n4", ran_s=2)], Limits()).exclude_nodes == ("n4",)


def test_of_several_nodes_the_one_that_was_there_twice_is_left_out() -> None:
    first = trial("mpi_runtime_failure", "n1", "n2")

    assert decide([first], Limits()).exclude_nodes == ()
    assert decide([first, trial("mpi_runtime_failure", "n2", "n3")], Limits()).exclude_nodes == ("n2",)
    assert decide([trial("mpi_runtime_failure", "n1", "n2", bad_nodes=("n1",))], Limits()).exclude_nodes == ("n1",)


def test_no_more_nodes_are_left_out_than_can_be_spared() -> None:
    lost = [trial("mpi_runtime_failure", f"n{number}") for number in range(3)]

    assert decide(lost, Limits(spare_nodes=1)).exclude_nodes == ("n2",)
    assert decide(lost, Limits(spare_nodes=0)).exclude_nodes == ()
    assert decide(lost, Limits(spare_nodes=-1)).exclude_nodes == ()
    assert decide(lost, Limits()).exclude_nodes == ("n0", "n1", "n2")
    assert "without n0, n1, n2" in decide(lost, Limits()).reason


def test_a_gpu_at_fault_leaves_its_node_out() -> None:
    lost = trial("gpu_ecc_error", "n1")

    assert decide([lost], Limits()).exclude_nodes == ("n1",)
    assert decide([trial("model_ckpt_error", "n1")], Limits()).exclude_nodes == ()


def test_a_failure_that_comes_back_early_and_elsewhere_follows_the_job() -> None:
    lost = [trial("cuda_init_failed", node, ran_s=3) for node in ("n1", "n2")]
    late = [trial("mpi_runtime_failure", node) for node in ("n1", "n2")]

    assert not decide(lost, Limits()).again
    assert "it is the job" in decide(lost, Limits()).reason
    assert decide(late, Limits()).again


def test_waits_grow_and_end() -> None:
    waits = [decide([trial("model_ckpt_error")] * count, Limits(tries=99)).wait_s for count in range(1, 12)]

    assert waits[:7] == [60, 120, 240, 480, 960, 1_920, 3_600]
    assert waits[-1] == 3_600


def test_a_decision_says_which_try_comes_and_when() -> None:
    """Four tries are usual, and all nodes but the job's own may be left out."""
    first = decide([trial("mpi_runtime_failure", "n4")], Limits())

    assert first == RetryDecision(
        again=True,
        reason="a peer, a node or the network between them was lost: try 2 of 4, from the start, in 60 s, without n4",
        wait_s=60.0,
        exclude_nodes=("n4",),
    )
    assert decide([trial("model_ckpt_error")] * 3, Limits()).again
    assert not decide([trial("model_ckpt_error")] * 4, Limits()).again
    assert decide([trial("model_ckpt_error")] * 4, Limits()).reason.endswith("4 tries in a row failed")


def test_the_last_requeue_that_slurm_allows_is_used() -> None:
    assert decide([trial("model_ckpt_error")], Limits(requeues_left=1)).again


@pytest.mark.parametrize(("seconds", "again"), [(599.0, False), (600.0, True)])
def test_a_trial_of_ten_minutes_has_worked(seconds: float, again: bool) -> None:
    lost = [trial("cuda_init_failed", "n1", ran_s=3), trial("cuda_init_failed", "n2", ran_s=seconds)]

    assert decide(lost, Limits()).again is again


def test_what_follows_the_job_is_told_from_what_follows_a_node() -> None:
    def fails(*trials: tuple[str, str]) -> bool:
        return not decide([trial(failure, node, ran_s=3) for failure, node in trials], Limits(tries=9)).again

    assert fails(("cuda_init_failed", "n1"), ("cuda_init_failed", "n2"))
    assert not fails(("cuda_init_failed", "n1"), ("cuda_init_failed", "n1")), "the node may be at fault"
    assert not fails(("mpi_runtime_failure", "n1"), ("cuda_init_failed", "n2")), "another failure"
    assert not fails(("model_ckpt_error", "n1"), ("model_ckpt_error", "n2")), "no place is suspected of it"
    assert fails(("no_signature", "n1"), ("no_signature", "n1")), "nobody knows what it is, and it comes at once"


def test_evictions_are_no_tries() -> None:
    lost, out = trial("model_ckpt_error"), trial("job_preempted", state="PREEMPTED")

    def tries(*trials: Trial) -> str:
        return decide(trials, Limits(tries=99)).reason.partition("try ")[2].partition(" of")[0]

    assert tries(lost, lost) == "3"
    assert tries(lost, out, lost) == "3"
    assert tries(lost, out) == "2"
    assert tries(out, out) == "2"


def test_who_was_pushed_out_neither_waits_nor_loses_a_try() -> None:
    out = [trial("job_preempted", state="PREEMPTED")] * 9

    assert decide(out, Limits()) == decide(out[:1], Limits())
    assert decide(out, Limits()).wait_s == 0.0


@pytest.mark.parametrize(
    ("limits", "word"),
    [(Limits(requeue=False), "no-requeue"), (Limits(requeues_left=0), "max_batch_requeue"), (Limits(tries=1), "tries")],
)
def test_no_limit_is_passed(limits: Limits, word: str) -> None:
    decision = decide([trial("mpi_runtime_failure")], limits)

    assert not decision.again
    assert word in decision.reason


@pytest.mark.parametrize("state", ["COMPLETED", "CANCELLED by 1000", "CANCELLED+", "TIMEOUT", "DEADLINE"])
def test_what_was_ended_on_purpose_stays_ended(state: str) -> None:
    assert not decide([trial("mpi_runtime_failure", state=state)], Limits()).again


@given(
    st.lists(
        st.tuples(st.sampled_from(sorted(CLASSES)), st.integers(1, 4), st.floats(0, 1e6)), min_size=1, max_size=12
    ),
    st.integers(1, 5),
)
def test_tries_end_and_every_decision_has_a_reason(history: list[tuple[str, int, float]], tries: int) -> None:
    trials = [trial(failure, f"n{node}", ran_s=ran) for failure, node, ran in history]
    decision = decide(trials, Limits(tries=tries))

    assert decision.reason
    assert len(decision.exclude_nodes) <= 4
    if decision.again:
        failed = [one for one in trials if one.failure.failure != "job_preempted"]
        assert len(failed) < tries or not failed
        assert trials[-1].failure.transient
