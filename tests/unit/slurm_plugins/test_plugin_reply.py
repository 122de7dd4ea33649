# SPDX-License-Identifier: Apache-2.0
"""A reply of berthd is believed only where it obeys every limit of the format."""

import ctypes

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policy.formats.wire import escape
from tests.unit.plugin_library import (
    REPLY_MAX_BYTES,
    Expected,
    NodeExists,
    Reply,
    library,
    taken,
    text,
)

NONCE = "0123456789abcdef"
PLACE, LATER, PASS, REFUSE = range(4)
node_exists = NodeExists(lambda name: name.startswith(b"n") and name[1:].isdigit())

GOOD = {
    "nonce": NONCE,
    "nodes": "n1,n2",
    "gpus": "0,3",
    "seats": "1",
    "segment": "state=placed%20asked=tres_per_job:gres/gpu:4%20why=a%2520b",
    "message": "berth:%20placed",
}

GOOD_LATER = {
    "nonce": NONCE,
    "k": "2",
    "n": "2",
    "segment": "state=later%20asked=tres_per_job:gres/gpu:4",
    "message": "berth:%20each%20task%20is%20placed%20when%20it%20comes%20near",
}


def wire(verb: str, **values: str) -> str:
    return f"berth/1 {verb}\n" + "".join(f"{key}={value}\n" for key, value in values.items())


def parse(
    reply_text: bytes | str,
    *,
    gpus: int = 4,
    per_node: int = 0,
    cpus_per_tres: bool = False,
    min_cpus: int = 0,
    share: int = 0,
    batch: bool = True,
    excludes: bool = False,
    exists: object = node_exists,
) -> tuple[Reply, str]:
    """The parsed reply and "", or the reason why it was dropped."""
    raw = reply_text.encode() if isinstance(reply_text, str) else reply_text
    reply, error = Reply(), ctypes.create_string_buffer(160)
    # As the controller's stack may be: what an answer does not say is none all the same.
    ctypes.memset(ctypes.addressof(reply), 0xFF, ctypes.sizeof(reply))
    ctypes.memmove(ctypes.addressof(reply) + Reply.text.offset, raw[:REPLY_MAX_BYTES], min(len(raw), REPLY_MAX_BYTES))
    expected = Expected(NONCE.encode(), gpus, per_node, min_cpus, share, cpus_per_tres, batch, excludes, exists)
    ok = library().reply_parse(ctypes.byref(reply), ctypes.c_size_t(len(raw)), ctypes.byref(expected), error)
    assert ok or error.value
    return reply, "" if ok else error.value.decode()


def test_a_right_place_is_taken_whole() -> None:
    reply, error = parse(wire("place", **GOOD))
    assert error == ""
    assert (reply.verb, reply.nodes, reply.node_count, reply.seats) == (PLACE, b"n1,n2", 2, True)
    assert list(reply.gpus[: reply.gpu_count]) == [0, 3]
    assert reply.segment == b"state=placed asked=tres_per_job:gres/gpu:4 why=a%20b"
    assert reply.message == b"berth: placed"
    assert (reply.share, reply.asked_share, reply.gpu_mem, reply.way) == (0, 0, 0, None)


@pytest.mark.parametrize("others", ["n3", "n[3-9]", "n[3,5-1024]", "n[03-09,10]", "n3,n[4-5],n77", "n[1000-1001]"])
def test_the_other_nodes_are_taken_as_they_are_told(others: str) -> None:
    reply, error = parse(wire("place", **GOOD, exc_nodes=escape(others)))
    assert (error, reply.exc_nodes) == ("", others.encode())


@pytest.mark.parametrize(
    ("others", "names"),
    [
        ("n[8-11]", "n8 n9 n10 n11"),
        ("n[08-11]", "n08 n09 n10 n11"),
        ("n[098-101,7]", "n098 n099 n100 n101 n7"),
        ("n[99-100],n[999998-1000001]", "n99 n100 n999998 n999999 n1000000 n1000001"),
        ("n[999999998-999999999]", "n999999998 n999999999"),
        ("n[007-007]", "n007"),
    ],
)
def test_slurm_is_asked_for_each_of_the_others(others: str, names: str) -> None:
    asked: list[str] = []

    def exists(name: bytes) -> bool:
        asked.append(name.decode())
        return True

    parse(wire("place", **GOOD, exc_nodes=escape(others)), exists=NodeExists(exists))

    assert asked == [*GOOD["nodes"].split(","), *names.split()]


@pytest.mark.parametrize(
    ("others", "why"),
    [
        ("n[2-9]", "excludes a node that it places the job on"),
        ("n3,n1", "excludes a node that it places the job on"),
        ("n[1-1]", "excludes a node that it places the job on"),
        ("n3,m4", "no list of nodes that Slurm knows"),
        ("n[3-4],m[1-2]", "no list of nodes that Slurm knows"),
        ("n[3-4]x", "no list of nodes"),
        ("n[3-4][1-2]", "no list of nodes"),
        ("n[3-4],", "no list of nodes"),
        (",n3", "no list of nodes"),
        ("n[3-4", "no list of nodes"),
        ("n3]", "no list of nodes"),
        ("n[]", "no list of nodes"),
        ("n[9-3]", "no list of nodes"),
        ("n[3-]", "no list of nodes"),
        ("n[3--5]", "no list of nodes"),
        ("n[3;4]", "no list of nodes"),
        ("n[3-99999999999]", "no list of nodes"),
        ("n[3-999999999]", "no list of nodes"),
        ("n" * 250 + "[3-4]", "no list of nodes"),
        ("", "no list of nodes"),
    ],
)
def test_a_list_of_others_that_slurm_would_refuse_drops_the_reply(others: str, why: str) -> None:
    _, error = parse(wire("place", **GOOD, exc_nodes=escape(others)))
    assert why in error


def test_nobody_excludes_nodes_where_the_user_does() -> None:
    _, error = parse(wire("place", **GOOD, exc_nodes="n3"), excludes=True)
    assert "where the user does so" in error


def test_pass_and_refuse() -> None:
    reply, error = parse(wire("pass", nonce=NONCE, segment="state=passed"))
    assert (error, reply.verb, reply.segment) == ("", PASS, b"state=passed")
    reply, error = parse(wire("refuse", nonce=NONCE, message="no%20such%20place"))
    assert (error, reply.verb, reply.message) == ("", REFUSE, b"no such place")


def test_a_job_may_be_placed_later_in_the_shape_that_it_will_have() -> None:
    reply, error = parse(wire("later", **GOOD_LATER))
    assert error == ""
    assert (reply.verb, reply.node_count, reply.gpu_count, reply.nodes) == (LATER, 2, 2, None)
    assert reply.segment == b"state=later asked=tres_per_job:gres/gpu:4"
    reply, error = parse(
        wire("later", **GOOD_LATER, min_cpus="8", pn_min_cpus="4", mem_per_node="100"), cpus_per_tres=True
    )
    assert (error, reply.min_cpus, reply.pn_min_cpus, reply.mem_per_node) == ("", 8, 4, 100)


@pytest.mark.parametrize(
    "change",
    [
        {"k": "0"},
        {"k": "65", "n": "1"},
        {"k": "4"},
        {"k": "two"},
        {"n": "0"},
        {"n": "1025"},
        {"n": "1"},
        {"nodes": "n1,n2"},
        {"gpus": "0,1"},
        {"seats": "1"},
        {"min_cpus": "4"},
        {"segment": "a%5Bb"},
        {"nonce": "0" * 16},
    ],
)
def test_one_wrong_field_drops_a_later_too(change: dict[str, str]) -> None:
    assert parse(wire("later", **{**GOOD_LATER, **change}))[1]


@pytest.mark.parametrize("missing", ["nonce", "k", "n", "segment"])
def test_a_later_needs_all_that_undoing_it_needs(missing: str) -> None:
    assert "missing" in parse(wire("later", **{key: GOOD_LATER[key] for key in GOOD_LATER if key != missing}))[1]


SHARE = {**GOOD, "seats": "0", "share": "30", "mem": "12288", "way": "mps"}


def test_a_share_comes_with_its_way_and_its_memory() -> None:
    reply, error = parse(wire("place", **SHARE), share=30)
    assert error == ""
    assert (reply.share, reply.gpu_mem, reply.way, reply.seats) == (30, 12288, b"mps", False)
    without_memory = {key: SHARE[key] for key in SHARE if key != "mem"} | {"share": "35", "way": "time"}
    reply, error = parse(wire("place", **without_memory), share=30)
    assert (error, reply.share, reply.gpu_mem, reply.way) == ("", 35, 0, b"time")


GUEST = {**GOOD, "nodes": "n1", "gpus": "3", "seats": "0", "guest": "1", "way": "time"}


def test_a_guest_has_one_seat_and_its_way() -> None:
    reply, error = parse(wire("place", **GUEST, mem="4096"), gpus=1)
    assert (error, reply.guest, reply.way, reply.gpu_mem, reply.share) == ("", True, b"time", 4096, 0)
    parked = {**GOOD_LATER, "k": "1", "n": "1", "guest": "1", "begin": "1800000000"}
    reply, error = parse(wire("later", **parked), gpus=1)
    assert (error, reply.guest, reply.begin) == ("", True, 1_800_000_000)


@pytest.mark.parametrize(
    "change",
    [{"guest": "0"}, {"seats": "1"}, {"gpus": "3,4"}, {"way": "mtp"}, {"begin": "1800000000"}, {"share": "30"}],
)
def test_one_wrong_field_of_a_guest_drops_the_reply(change: dict[str, str]) -> None:
    assert parse(wire("place", **{**GUEST, **change}), gpus=1)[1]


def test_only_a_job_with_a_script_becomes_a_guest_and_one_without_a_seat_has_a_begin() -> None:
    assert "no script" in parse(wire("place", **GUEST), gpus=1, batch=False)[1]
    assert "begin" in parse(wire("later", **{**GOOD_LATER, "k": "1", "n": "1", "guest": "1"}), gpus=1)[1]


def test_a_host_has_a_way_and_no_seats() -> None:
    reply, error = parse(wire("place", **{**GOOD, "seats": "0", "way": "mps"}))
    assert (error, reply.way, reply.guest, reply.seats) == ("", b"mps", False, False)
    assert parse(wire("place", **GOOD, way="mps"))[1]


def test_who_asked_for_a_share_may_get_whole_gpus() -> None:
    reply, error = parse(wire("place", **GOOD), share=30)
    assert (error, reply.share, reply.way) == ("", 0, None)


@pytest.mark.parametrize(
    "change",
    [
        {"share": "0"},
        {"share": "29"},
        {"share": "101"},
        {"share": "30%25"},
        {"share": ""},
        {"seats": "1"},
        {"way": "MPS"},
        {"way": ""},
        {"mem": "0"},
        {"mem": "16777217"},
        {"mem": "12G"},
    ],
)
def test_one_wrong_word_about_sharing_drops_the_reply(change: dict[str, str]) -> None:
    assert parse(wire("place", **{**SHARE, **change}), share=30)[1]


@pytest.mark.parametrize("missing", ["share", "way"])
def test_share_and_way_stand_together(missing: str) -> None:
    assert parse(wire("place", **{key: SHARE[key] for key in SHARE if key != missing}), share=30)[1]


def test_nobody_gets_a_share_who_wants_whole_gpus() -> None:
    assert "whole" in parse(wire("place", **SHARE))[1]


def test_a_job_that_is_placed_later_may_be_told_its_share_only() -> None:
    reply, error = parse(wire("later", **GOOD_LATER, share="30"), share=30)
    assert (error, reply.share) == ("", 30)
    for key in ("way", "mem"):
        assert parse(wire("later", **GOOD_LATER, share="30", **{key: SHARE[key]}), share=30)[1]


@pytest.mark.parametrize(
    "change",
    [
        {"nonce": "0" * 16},
        {"nodes": "n1,n1"},
        {"nodes": "n1,x9"},
        {"nodes": "n1,"},
        {"nodes": "n[1-2]"},
        {"nodes": "n1;n2"},
        {"nodes": ""},
        {"nodes": "n1"},
        {"nodes": ",".join(f"n{i}" for i in range(1025))},
        {"gpus": "3,0"},
        {"gpus": "0,0"},
        {"gpus": "0,64"},
        {"gpus": "0,03"},
        {"gpus": "0"},
        {"gpus": "0,1,2"},
        {"gpus": "0,-1"},
        {"gpus": ""},
        {"seats": "2"},
        {"seats": "yes"},
        {"min_cpus": "4"},
        {"pn_min_cpus": "0"},
        {"pn_min_cpus": "65534"},
        {"mem_per_node": "0"},
        {"mem_per_node": str(2**40 + 1)},
        {"mem_per_node": "18446744073709551617"},
        {"segment": "a%5Bb"},
        {"segment": "a%0Ab"},
        {"segment": "x" * 4097},
        {"segment": "a%zz"},
        {"segment": "a%00b"},
        {"segment": "a%"},
        {"message": "x" * 513},
        {"message": "a%1B[31m"},
        {"unknown": "1"},
        {"licenses": "1"},
        {"k": "2"},
        {"n": "2"},
    ],
)
def test_one_wrong_field_drops_the_whole_reply(change: dict[str, str]) -> None:
    assert parse(wire("place", **{**GOOD, **change}))[1]


@pytest.mark.parametrize("missing", ["nonce", "nodes", "gpus", "seats", "segment"])
def test_a_missing_field_drops_it_too(missing: str) -> None:
    assert "missing" in parse(wire("place", **{key: GOOD[key] for key in GOOD if key != missing}))[1]


@pytest.mark.parametrize(
    "reply_text",
    [
        "",
        "\n",
        "berth/1 place",
        wire("place", **GOOD).rstrip("\n"),
        wire("place", **GOOD) + "nodes=n3,n4\n",
        wire("place", **GOOD).replace("berth/1", "berth/2"),
        wire("status", nonce=NONCE),
        wire("pass", nonce=NONCE, nodes="n1"),
        wire("refuse", nonce=NONCE),
        wire("refuse", nonce=NONCE, message=""),
        wire("pass", nonce=NONCE) + "\n",
        wire("pass", nonce=NONCE) + "line without equals sign\n",
        wire("pass", nonce=NONCE) + "\0\n",
        "x" * (REPLY_MAX_BYTES + 1),
    ],
)
def test_a_misshapen_reply_is_dropped(reply_text: str) -> None:
    assert parse(reply_text)[1]


def test_gpus_must_be_as_many_as_asked() -> None:
    assert parse(wire("place", **GOOD), gpus=4)[1] == ""
    assert parse(wire("place", **GOOD), gpus=3)[1]
    assert parse(wire("place", **GOOD), gpus=0, per_node=2)[1] == ""
    assert parse(wire("place", **GOOD), gpus=0, per_node=4)[1]
    assert parse(wire("place", **GOOD), gpus=0, per_node=0)[1]


def test_cpus_never_sink_below_what_the_user_asked() -> None:
    with_cpus = wire("place", **GOOD, min_cpus="8")
    assert parse(with_cpus, cpus_per_tres=True, min_cpus=8)[0].min_cpus == 8
    assert parse(with_cpus, cpus_per_tres=True, min_cpus=9)[1]
    assert parse(wire("place", **GOOD, min_cpus="1000001"), cpus_per_tres=True)[1]


mutations = st.lists(st.tuples(st.integers(0, 400), st.integers(0, 255)), min_size=1, max_size=6)


@given(mutations)
def test_no_mutation_passes_a_bad_field(changes: list[tuple[int, int]]) -> None:
    raw = bytearray(wire("place", **GOOD).encode())
    for at, byte in changes:
        raw[at % len(raw)] = byte
    reply, error = parse(bytes(raw))
    if error or reply.verb != PLACE:
        return
    names = reply.nodes.split(b",")
    assert len(set(names)) == len(names) == reply.node_count
    assert all(node_exists(name) for name in names)
    positions = list(reply.gpus[: reply.gpu_count])
    assert positions == sorted(set(positions))
    assert len(names) * len(positions) == 4
    assert not set(reply.segment) & set(b"[]\n")


foreign = st.text(alphabet=st.characters(codec="utf-8", exclude_characters="\0"), max_size=40)


def set_segment(old: str | None, body: str) -> str:
    out = text()
    library().segment_set(ctypes.byref(out), old.encode() if old is not None else None, body.encode())
    return taken(out).decode()


@given(foreign.filter(lambda s: "[berth/" not in s), foreign.filter(lambda s: "[berth/" not in s))
def test_foreign_text_around_the_segment_is_kept_byte_for_byte(before: str, after: str) -> None:
    assert set_segment(before, "state=placed") == before + "[berth/1 state=placed]"
    if "[berth/1 " not in before + after:
        changed = set_segment(f"{before}[berth/1 state=waiting]{after}", "state=placed")
        assert changed == f"{before}[berth/1 state=placed]{after}"


def test_segments_are_never_doubled() -> None:
    assert set_segment(None, "a=1") == "[berth/1 a=1]"
    assert set_segment("x[berth/1 a=1]y[berth/1 b=2]z", "c=3") == "x[berth/1 c=3]yz"
    assert set_segment("cut [berth/1 a=1", "c=3") == "cut [berth/1 a=1[berth/1 c=3]"


def test_a_user_cannot_claim_a_segment_of_any_version() -> None:
    assert library().segment_claimed(b"mine [berth/2 nodes=n1]")
    assert not library().segment_claimed(b"berth/1 in words")
    assert not library().segment_claimed(None)


@given(st.binary(max_size=60).filter(lambda raw: b"\0" not in raw))
def test_escaping_is_undone_exactly(raw: bytes) -> None:
    out = text()
    library().text_add_escaped(ctypes.byref(out), raw)
    escaped = taken(out)
    assert all(0x21 <= byte <= 0x7E and byte not in b"[]" for byte in escaped)
    buffer = ctypes.create_string_buffer(escaped)
    assert library().unescape(buffer)
    assert buffer.value == raw


def test_only_a_pass_is_urgent() -> None:
    reply, error = parse(wire("pass", nonce=NONCE, message="no", urgent="1"))
    assert (error, reply.urgent) == ("", True)
    assert not parse(wire("pass", nonce=NONCE))[0].urgent
    assert "urgent" in parse(wire("pass", nonce=NONCE, urgent="0"))[1]
    assert parse(wire("refuse", nonce=NONCE, message="no", urgent="1"))[1]
    assert parse(wire("place", **GOOD, urgent="1"))[1]


def test_a_busy_berthd_says_for_how_long() -> None:
    reply, error = parse(wire("busy", nonce=NONCE, seconds="4"))
    assert (error, reply.seconds, reply.ours) == ("", 4, True)
    assert parse(wire("pass", nonce=NONCE))[0].seconds == 0


@pytest.mark.parametrize(
    "fields", [{}, {"seconds": ""}, {"seconds": "0"}, {"seconds": "61"}, {"seconds": "4", "message": "no"}]
)
def test_a_misshapen_busy_is_dropped(fields: dict[str, str]) -> None:
    assert parse(wire("busy", nonce=NONCE, **fields))[1]


def test_only_a_busy_berthd_names_seconds() -> None:
    assert "does not belong" in parse(wire("pass", nonce=NONCE, seconds="4"))[1]
