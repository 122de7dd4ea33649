# SPDX-License-Identifier: Apache-2.0
import pytest

from policy.formats import flags
from policy.formats.errors import FormatError


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("5", 300),
        ("5:30", 330),
        ("1:00:00", 3_600),
        ("2-3", 183_600),
        ("2-3:4", 183_840),
        ("2-3:4:5", 183_845),
        ("0", 0),
    ],
)
def test_times_are_read_as_slurm_writes_them(text: str, seconds: int) -> None:
    assert flags.parse_time(text) == seconds


@pytest.mark.parametrize("text", ["", "-1", "1h", "1:2:3:4", "1-", "٣", "1 "])
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(FormatError, match="D-H:M:S"):
        flags.parse_time(text)


@pytest.mark.parametrize(
    ("name", "good"),
    [
        ("locality", "nvlink@5"),
        ("locality", "pod"),
        ("group", "64"),
        ("app-class", "memory"),
        ("gpu-tier", "opportunistic"),
        ("gpu-share", "30%"),
        ("gpu-share", "100"),
        ("gpu-mem", "10G"),
        ("preflight", ""),
        ("movable", ""),
        ("movable", "0:30"),
        ("retry", "auto"),
        ("retry", "100"),
        ("on-hang", "requeue"),
    ],
)
def test_good_values_pass(name: str, good: str) -> None:
    flags.check({name: good})


@pytest.mark.parametrize(
    ("name", "bad", "what"),
    [
        ("locality", "nvlnk", "did you mean nvlink"),
        ("locality", "node@", "not a time"),
        ("group", "0", "1 to 99999"),
        ("app-class", "big", "compute, mixed, memory"),
        ("gpu-tier", "", "exclusive"),
        ("gpu-share", "0", "1 to 100"),
        ("gpu-share", "101%", "1 to 100"),
        ("gpu-share", "0030", "1 to 100"),
        ("gpu-mem", "0G", "size"),
        ("gpu-mem", "1K", "size"),
        ("preflight", "0", "at least 1 s"),
        ("retry", "101", "0 to 100"),
        ("on-hang", "kill", "tell"),
        ("localty", "node", "did you mean locality"),
    ],
)
def test_bad_values_are_refused_with_what_is_right(name: str, bad: str, what: str) -> None:
    with pytest.raises(FormatError, match=what) as caught:
        flags.check({name: bad})

    assert f"--{name}" in str(caught.value)
