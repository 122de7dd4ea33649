# SPDX-License-Identifier: Apache-2.0
import re
from pathlib import Path
from urllib.parse import unquote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policy.formats import wire
from policy.formats.errors import FormatError

KEYS = st.from_regex(r"[a-z][a-z0-9_.-]{0,63}", fullmatch=True)
ANY_BYTES = st.binary(max_size=60).map(lambda raw: raw.decode("utf-8", "surrogateescape"))
SUBMIT = {"nonce": "0123456789abcdef", "uid": "0"}


@given(st.dictionaries(KEYS, ANY_BYTES, max_size=8))
def test_what_is_encoded_is_decoded(fields: dict[str, str]) -> None:
    message = wire.decode(wire.encode("submit", fields))

    assert message == wire.Message("submit", fields)


PIECES = ["%20", "%5B", "%5D", "%25", "%C3%A9", "%FF", "%0A", "2", "5", "B", "0", "%", "%2"]


@given(st.lists(st.sampled_from(PIECES), max_size=8).map("".join))
def test_each_escaped_byte_is_read_once_and_a_stray_percent_is_refused(text: str) -> None:
    if re.search("%(?![0-9A-F]{2})", text):
        with pytest.raises(FormatError, match="%25"):
            wire.unescape(text)
    else:
        assert wire.unescape(text) == unquote(text, errors="surrogateescape")


@given(st.dictionaries(KEYS, ANY_BYTES, max_size=8))
def test_a_value_never_makes_a_line_of_its_own(fields: dict[str, str]) -> None:
    datagram = wire.encode("place", fields)

    assert datagram.isascii()
    assert datagram.count(b"\n") == 1 + len(fields)


@pytest.mark.parametrize(
    ("datagram", "what"),
    [
        (b"berth/2 submit\n", "berth/1"),
        (b"", "berth/1"),
        (b"berth/1 SUBMIT\n", "first line"),
        (b"berth/1 submit", "does not end"),
        (b"berth/1 submit\nuid=0", "does not end"),
        (b"berth/1 submit\nuid=0\nuid=1\n", "twice"),
        (b"berth/1 submit\nUid=0\n", "key=value"),
        (b"berth/1 submit\nuid=a b\n", "percent-escaped"),
        (b"berth/1 submit\nuid=[0]\n", "percent-escaped"),
        (b"berth/1 submit\nuid=%2g\n", "%25"),
        (b"berth/1 submit\nuid=%5b\n", "%25"),
        (b"berth/1 submit\nuid=\xff\n", "ASCII"),
        (b"berth/1 submit\nuid=0\x00\n", "percent-escaped"),
        (b"berth/1 submit\n" + b"a" * 65_536, "allowed"),
    ],
)
def test_a_malformed_datagram_is_refused_with_what_is_wrong(datagram: bytes, what: str) -> None:
    with pytest.raises(FormatError, match=what):
        wire.decode(datagram)


@given(st.binary(max_size=200))
def test_random_bytes_are_refused_or_decoded_but_never_crash(noise: bytes) -> None:
    try:
        wire.decode(b"berth/1 submit\n" + noise)
    except FormatError:
        return


def test_a_submit_request_may_have_flags() -> None:
    wire.check_submit(wire.Message("submit", {**SUBMIT, "flag.locality": "node"}))


@pytest.mark.parametrize(
    ("message", "what"),
    [
        (wire.Message("submit", {**SUBMIT, "partitoin": "gpu"}), "did you mean partition"),
        (wire.Message("submit", {"uid": "0"}), "nonce"),
        (wire.Message("submit", {"nonce": "0123456789ABCDEF"}), "nonce"),
        (wire.Message("sumbit", SUBMIT), "unknown verb"),
    ],
)
def test_a_request_that_is_none_is_refused(message: wire.Message, what: str) -> None:
    with pytest.raises(FormatError, match=what):
        wire.check_submit(message)


@pytest.mark.parametrize("text", ["-1", "+1", "01", "", "1.0", "0x1", "1e3", "99999999999999999999"])
def test_a_number_is_decimal_without_sign_or_leading_zeros(text: str) -> None:
    with pytest.raises(FormatError, match="uid"):
        wire.number({"uid": text}, "uid")


def test_berthd_knows_every_key_that_the_plugin_sends() -> None:
    source = (Path(__file__).parents[4] / "slurm_plugins" / "request" / "request.c").read_text(encoding="utf-8")
    sent = set(re.findall(r'add_(?:string|number|mark)\(out, "([a-z_]+)"', source))
    sent |= set(re.findall(r'"(?:[^"]*\\n)?([a-z_]+)=(?:%|\\n|")', source))

    assert {"partition", "uid", "mem_per_node", "switch_wait", "slurms_own"} <= sent
    assert sent <= wire.SUBMIT_KEYS
