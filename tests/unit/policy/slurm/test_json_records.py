# SPDX-License-Identifier: Apache-2.0
"""Slurm's JSON is read as the classes say, and what has another form is named."""

import json
from dataclasses import dataclass, field

import pytest

from policy.slurm.by_command import job_json, json_records


@dataclass(frozen=True)
class Inner:
    number: int = 0
    set: bool = False


@dataclass(frozen=True)
class Outer:
    name: str
    state: list[str] | str = ""
    inner: Inner = field(default_factory=Inner)
    many: list[Inner] = field(default_factory=list)


def test_fields_that_are_not_named_are_passed_over_and_those_not_there_have_their_defaults() -> None:
    text = b'{"name": "a", "other": {"x": [1]}, "inner": {"number": 3, "infinite": false}, "many": [{}, {"set": true}]}'

    assert json_records.read(Outer, text) == Outer("a", "", Inner(3), [Inner(), Inner(set=True)])


@pytest.mark.parametrize("state", [["RUNNING", "SUSPENDED"], "RUNNING"])
def test_a_union_takes_each_of_its_types(state: list[str] | str) -> None:
    text = json.dumps({"name": "a", "state": state}).encode()

    assert json_records.read(Outer, text).state == state


@pytest.mark.parametrize(
    ("text", "what"),
    [
        (b"{}", r"^\$ has no name$"),
        (b"[]", r"^\$ is a list, expected Outer$"),
        (b'{"name": 7}', r"^\$\.name is a int, expected str$"),
        (b'{"name": null}', r"^\$\.name is a NoneType, expected str$"),
        (b'{"name": "a", "inner": {"number": true}}', r"^\$\.inner\.number is a bool, expected int$"),
        (b'{"name": "a", "many": [{}, {"number": "1"}]}', r"^\$\.many\[1\]\.number is a str, expected int$"),
        (b'{"name": "a", "state": [1]}', r"^\$\.state\[0\] is a int, expected str$"),
        (b'{"name": "a", "state": 1}', r"^\$\.state is a int, expected list\[str\] \| str$"),
        (b'{"name": ', "Expecting value"),
    ],
)
def test_another_form_is_named(text: bytes, what: str) -> None:
    with pytest.raises(ValueError, match=what):
        json_records.read(Outer, text)


def test_a_users_bytes_are_kept_though_they_are_no_utf8() -> None:
    [job] = job_json.decode(b'{"jobs": [{"job_id": 1, "job_state": ["PENDING"], "admin_comment": "caf\xe9"}]}')

    assert job.admin_comment.encode("utf-8", "surrogateescape") == b"caf\xe9"
