# SPDX-License-Identifier: Apache-2.0
"""Whatever a user writes, the plugin takes the reply: one that it drops makes it turn from berthd, for everybody."""

import re

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from policy.daemon.answer.answerer import Answerer, within
from policy.daemon.passes.handover import Snapshot
from policy.formats import segment, wire
from policy.formats.job_plan import JobPlan
from policy.formats.reply import Reply
from policy.plan.answer.case import Decision
from policy.request.submission import read
from policy.site.config import Config
from tests.examples import examples
from tests.unit.policy_world import NONCE, NOW, book, node, reading, submit
from tests.unit.slurm_plugins.test_plugin_reply import PASS, parse

MOST = 60_000

long_texts = st.builds(
    lambda text, times: (text * times)[:MOST],
    st.one_of(
        st.sampled_from(
            ["a&", "a|b", "n1,", "n[1-9],", "gres/gpu:1,", "gres/nic:1,", "100%", "[", "]", "\n", "é", " "]
        ),
        st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=20),
    ),
    st.integers(1, MOST),
)
FREE = (
    *("name", "account", "qos", "partition", "reservation", "licenses", "features", "prefer", "req_nodes", "exc_nodes"),
    *("tres_per_node", "tres_per_task", "tres_per_socket", "cpus_per_tres", "mem_per_tres", "array", "slurms_own"),
)
flags = st.one_of(
    st.just({}),
    st.sampled_from([{"flag.gpu-tier": "opportunistic"}, {"flag.gpu-share": "30"}, {"flag.locality": "nvlink@0"}]),
    st.dictionaries(st.sampled_from(["flag.gpu-mem", "flag.app-class"]), long_texts.map(lambda text: text[:255])),
)


def answerer(*, observe: bool = False, picture: bool = True) -> Answerer:
    made = Answerer(Config(observe=observe), "0", 1)
    if picture:
        look = reading([node(f"n{number}") for number in range(1, 5)])
        made.take(Snapshot(book(look).cluster, frozenset(), "24.11.5", "recorded", ""), NOW)
    return made


def said(made: Answerer, fields: dict[str, str]) -> tuple[wire.Message, str]:
    """The reply, and why the plugin would drop it."""
    reply = made.answer(wire.encode("submit", submit(**fields)), NOW)
    assert reply is not None
    share = int(fields.get("flag.gpu-share", "0"))
    dropped = parse(reply, gpus=int(fields["gpus"]), share=share, cpus_per_tres="cpus_per_tres" in fields)[1]
    return wire.decode(reply), dropped


@settings(deadline=None, max_examples=examples(120), suppress_health_check=[HealthCheck.too_slow])
@given(
    st.dictionaries(st.sampled_from(FREE), long_texts, max_size=2),
    flags,
    st.integers(1, 9),
    st.booleans(),
    st.booleans(),
)
def test_no_request_makes_a_reply_that_the_plugin_drops(
    more: dict[str, str], flags: dict[str, str], gpus: int, observe: bool, picture: bool
) -> None:
    fields = {"tres_per_job": f"gres/gpu:{gpus}", "gpus": str(gpus), "client": "batch", **more, **flags}
    if len(wire.encode("submit", submit(**fields))) > wire.REQUEST_BYTES:
        return  # the plugin does not ask
    assert said(answerer(observe=observe, picture=picture), fields)[1] == ""


def test_a_long_constraint_is_left_to_slurm_with_a_reason_that_is_cut() -> None:
    reply, dropped = said(answerer(), {"tres_per_job": "gres/gpu:1", "gpus": "1", "features": "a|" * 2_501})
    assert (reply.verb, dropped) == ("pass", "")
    values = segment.fields(f"[berth/1 {reply.fields['segment']}]")
    assert values is not None
    assert (values["state"], values["id"]) == ("passed", NONCE)
    assert "more than features joined by &" in values["why"]


def test_a_long_list_of_wanted_nodes_is_no_place_that_could_be_undone() -> None:
    nodes = "n1," * 2_000
    reply, dropped = said(
        answerer(), {"tres_per_node": "gres/gpu:1", "gpus": "1", "client": "batch", "req_nodes": nodes}
    )
    assert (reply.verb, dropped) == ("pass", "")


@pytest.mark.parametrize(
    "text", ["n[1-60000]", f"n[{'1-8000,' * 7_000}1]", "a[1-300][1-300]", ",".join(f"a{i}[1-9]" for i in range(4_000))]
)
def test_a_list_of_more_nodes_than_any_cluster_has_is_not_opened(text: str) -> None:
    for key in ("req_nodes", "exc_nodes"):
        reply, dropped = said(answerer(), {"tres_per_job": "gres/gpu:1", "gpus": "1", key: text})
        assert (reply.verb, dropped) == ("pass", "")
        assert re.search("names more than [0-9]+ hosts", reply.fields["message"])


def test_of_a_reply_that_is_too_long_first_the_reason_goes_then_the_place() -> None:
    submission = read({"nonce": NONCE})
    values = {"state": "later", "asked": "x", "why": "because of " + "100 % " * 1_000}
    cut = wire.decode(within(Decision(Reply("later", NONCE, plan=JobPlan(values))), submission, NOW)[1])
    found = segment.fields(f"[berth/1 {cut.fields['segment']}]")
    assert cut.verb == "later"
    assert found is not None
    assert found["why"].startswith("because of 100 % ")
    assert found["why"].endswith("...")
    values["asked"] = "x" * 5_000
    passed = wire.decode(within(Decision(Reply("later", NONCE, plan=JobPlan(values))), submission, NOW)[1])
    assert passed.verb == "pass"
    assert "longer than can be kept" in passed.fields["message"]


@pytest.mark.parametrize(
    ("change", "ours"),
    [
        ({"segment": "x" * 4_097}, True),
        ({"colour": "blue"}, True),
        ({"message": "x" * 513}, True),
        ({"nonce": "0" * 16}, False),
        ({"nonce": "0" * 16, "segment": "x" * 4_097}, False),
    ],
)
def test_a_reply_with_the_right_nonce_comes_from_a_berthd_that_lives_whatever_else_is_wrong(
    change: dict[str, str], ours: bool
) -> None:
    lines = "".join(f"{key}={value}\n" for key, value in {"nonce": NONCE, "segment": "state=passed", **change}.items())
    reply, error = parse(f"berth/1 pass\n{lines}")
    assert (bool(error), reply.ours) == (True, ours)
    assert parse(f"berth/1 pass\nnonce={NONCE}\n")[0].verb == PASS
    assert not parse(f"berth/2 pass\nnonce={NONCE}\n")[0].ours


def test_a_job_on_more_nodes_than_a_reply_can_name_is_left_to_slurm() -> None:
    made = Answerer(Config(), "0", 1)
    look = reading([node(f"n{number}", used=0xFF) for number in range(1_100)])
    made.take(Snapshot(book(look).cluster, frozenset(), "24.11.5", "recorded", ""), NOW)
    fields = {"tres_per_node": "gres/gpu:1", "min_nodes": "1050", "gpus": "1050", "client": "batch"}
    reply, dropped = said(made, fields)
    assert (reply.verb, dropped) == ("pass", "")
