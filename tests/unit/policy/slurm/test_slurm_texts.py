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
