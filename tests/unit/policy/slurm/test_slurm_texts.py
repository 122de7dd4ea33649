# SPDX-License-Identifier: Apache-2.0
"""The text that Slurm's commands print, read without a gateway around it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policy.formats.errors import SlurmError
from policy.slurm import fields
from policy.slurm.by_command import text


def test_a_request_that_names_no_gpu_that_can_be_costs_no_memory() -> None:
    assert fields.pinned("gres/gpu:g63:1") == 1 << 63
    assert fields.pinned("gres/gpu:g99999999999999999999:1") is None


@pytest.mark.parametrize(
    ("printed", "seconds"),
    [("7:00", 420), ("1:00:00", 3_600), ("2-00:00:01", 172_801), ("UNLIMITED", None), ("NOT_SET", None)],
)
def test_time_limits_are_read(printed: str, seconds: int | None) -> None:
    assert text.limit(printed) == seconds


def test_output_that_nobody_knows_is_an_error_not_a_guess() -> None:
    with pytest.raises(SlurmError, match="squeue printed"):
        text.jobs("1|2|3|~\n", "|~", {})
    with pytest.raises(SlurmError, match="squeue printed"):
        text.jobs("slurm_load_jobs error\n", "|~", {})
    with pytest.raises(SlurmError, match="scontrol show node printed"):
        text.nodes("NodeName=n1 nothing else\n")


TEXTS = st.text(st.characters(exclude_characters="|~") | st.sampled_from("\n\r"), max_size=8)


@given(st.lists(st.tuples(st.integers(1, 9).map(str), TEXTS, TEXTS, TEXTS), max_size=4))
def test_records_are_told_apart_whatever_their_texts_hold(records: list[tuple[str, ...]]) -> None:
    printed = "".join("".join(f"{field}|~" for field in record) + "\n" for record in records)

    assert text.squeue_records(printed, "|~", 4) == records


@pytest.mark.parametrize("printed", ["1|~2|~", "1|~2|~\n3|~\n", "1|~2|~3|~4|~\n", "1|~2|~\n\n", "error\n"])
def test_records_that_lack_a_field_or_an_end_are_an_error(printed: str) -> None:
    with pytest.raises(SlurmError, match="squeue printed a line that Berth cannot read"):
        text.squeue_records(printed, "|~", 2)


@pytest.mark.parametrize(
    ("words", "whole", "apart"),
    [
        ("OverSubscribe=NO ExclusiveUser=NO ExclusiveTopo=NO", False, False),
        ("OverSubscribe=EXCLUSIVE", True, False),
        ("OverSubscribe=NO Exclusive=NODE", True, False),
        ("OverSubscribe=NO Exclusive=USER", False, True),
        ("OverSubscribe=NO Exclusive=TOPO", False, True),
        ("OverSubscribe=NO ExclusiveUser=YES ExclusiveTopo=NO", False, True),
        ("OverSubscribe=NO ExclusiveUser=NO ExclusiveTopo=YES", False, True),
    ],
)
def test_what_a_partition_keeps_to_one_job_or_user_is_seen_in_old_and_new_words(
    words: str, *, whole: bool, apart: bool
) -> None:
    (one,) = text.partitions(f"PartitionName=gpu Default=YES State=UP {words}\n")
    assert (one.whole_nodes, one.apart) == (whole, apart)


@pytest.mark.parametrize(
    ("selects", "counts", "one_task"),
    [("CR_CORE", False, False), ("CR_Core_Memory", True, False), ("CR_CPU,CR_ONE_TASK_PER_CORE", False, True)],
)
def test_what_slurm_selects_by_is_read_of_its_configuration(selects: str, *, counts: bool, one_task: bool) -> None:
    found = text.of_config({"SelectTypeParameters": selects})
    assert (found["memory_counts"], found["one_task_per_core"]) == (counts, one_task)


@pytest.mark.parametrize(
    ("state", "nodes", "eligible", "begin"),
    [
        ("PENDING", "", 900, None),
        ("PENDING", "", 1_000, None),
        ("PENDING", "", 1_001, 1_001),
        ("RUNNING", "n1", 1_001, None),
        ("PENDING", "n1", 1_001, None),
    ],
)
def test_a_begin_time_is_one_after_the_submission_of_a_job_that_waits_on_no_node(
    state: str, nodes: str, eligible: int, begin: int | None
) -> None:
    """A job that ends on its nodes before it waits again still shows them."""
    told = {"JobID": "7", "NumNodes": "1", "SubmitTime": "1000", "JobArrayID": "7", "EligibleTime": str(eligible)}
    told |= {"State": state, "NodeList": nodes, "PriorityLong": "1", "NumCPUs": "1", "UserID": "1000"}
    mark = text.new_mark()
    printed = "".join(f"{told.get(name, '')}{mark}" for name in text._QUEUE_FIELDS) + "\n"
    (line,) = text.jobs(printed, mark, {})
    assert line.job.begin == begin
