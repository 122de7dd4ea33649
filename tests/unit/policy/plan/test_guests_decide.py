# SPDX-License-Identifier: Apache-2.0
"""Tiers at submission: what a job is, what it may ask for, and what it is answered."""

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policy.formats import segment
from policy.formats.errors import ConfigError, FormatError, Never
from policy.formats.flags import TIERS, Tier, parse_tier
from policy.formats.job_plan import JobPlan
from policy.formats.slurm_facts import JobFacts, NodeFacts, PartitionFacts
from policy.placement.berth import BerthPolicy
from policy.plan.answer.explain import rows
from policy.plan.ledger.tracker import Tracker
from policy.request import tiers
from policy.request.settings import Settings, Sharing
from policy.site.config import load
from tests.unit.deciding import Decision, decide
from tests.unit.guest_world import NOW, book, fleet, host, node, reading, running
from tests.unit.policy_world import submit

FULL = 0xFF
ONE = {"tres_per_job": "gres/gpu:1", "gpus": "1"}
GUEST = {**ONE, "flag.gpu-tier": "opportunistic"}


def answer(
    nodes: list[NodeFacts], jobs: list[JobFacts], fields: dict[str, str], sharing: Sharing | None = None
) -> tuple[Decision, dict[str, str]]:
    """The decision, and its segment."""
    there = book(nodes, jobs, sharing)
    decision = decide(submit(**fields), there, BerthPolicy(), Settings(), NOW)
    return decision, segment.fields(f"[berth/1 {decision.fields.get('segment', '')}]") or {}


def test_a_host_with_several_gpus_on_a_node_shares_them_in_turn_though_it_would_bear_mps() -> None:
    decision, values = answer(
        [node("n1")], [], {"tres_per_job": "gres/gpu:2", "gpus": "2", "flag.gpu-tier": "guaranteed,mps"}
    )
    assert (decision.fields["way"], values["way"]) == ("time", "time")
    assert "in turn: under MPS only hosts with one GPU" in decision.fields["message"]


def test_a_guest_is_given_a_seat_that_is_free() -> None:
    decision, values = answer([node("n1", used=FULL)], [host(1, "n1", FULL)], {**GUEST, "flag.gpu-mem": "4G"})
    reply = decision.fields
    assert (decision.verb, reply["nodes"], reply["gpus"], reply["seats"]) == ("place", "n1", "0", "0")
    assert (reply["guest"], reply["way"], reply["mem"]) == ("1", "time", "4096")
    assert (values["tier"], values["way"], values["state"], values["gpu_mem"]) == (
        "opportunistic",
        "time",
        "placed",
        "4096",
    )
    assert "guest on n1 GPU 0, beside a guaranteed job" in reply["message"]


def test_a_guest_reads_how_many_seats_lack_cores_on_idle_gpus_and_beside_hosts() -> None:
    full = node("n1", used=0b111)
    decision, _ = answer([replace(full, cpus_used=full.cpus)], [host(1, "n1", 0b111)], GUEST)

    assert "has the cores and memory for one more guest (8 seats)" in decision.fields["message"]


def test_two_guests_in_a_row_get_two_seats() -> None:
    there = book([node("n1", used=FULL)], [host(1, "n1", 0b11), running(2, "n1", 0xFC, 9_000)])
    given = []
    for _ in range(3):
        decision = decide(submit(**GUEST), there, BerthPolicy(), Settings(), NOW)
        given.append((decision.verb, decision.fields.get("gpus")))
        if decision.claim is not None:
            there.claim(decision.claim)
    assert given == [("place", "0"), ("place", "1"), ("later", None)]


@pytest.mark.parametrize(
    "more", [{}, {"array": "1-4"}, {"held": "1"}, {"begin": str(int(NOW) + 60)}, {"dependency": "1"}]
)
def test_without_a_seat_or_before_its_time_it_is_parked(more: dict[str, str]) -> None:
    jobs = [] if more else [running(1, "n1", FULL, 9_000)]
    decision, values = answer([node("n1", used=0 if more else FULL)], jobs, {**GUEST, **more})
    assert (decision.verb, decision.fields["guest"]) == ("later", "1")
    assert int(decision.fields["begin"]) >= NOW + 86_400
    assert (values["state"], values["tier"], values["parked"]) == ("later", "opportunistic", more.get("begin", "0"))


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"tres_per_job": "gres/gpu:2", "gpus": "2"}, "has one GPU, not 2"),
        ({"client": "alloc"}, "only sbatch"),
        ({"exclusive": "1"}, "not whole nodes"),
        ({"het": "0"}, "heterogeneous"),
    ],
)
def test_what_no_guest_can_be_is_refused_with_a_sentence(fields: dict[str, str], says: str) -> None:
    decision, _ = answer([node("n1")], [], {**GUEST, **fields})
    assert decision.verb == "refuse"
    assert says in decision.fields["message"]


def test_a_host_leaves_its_seats_free_and_its_node_is_told() -> None:
    decision, values = answer([node("n1")], [], {**ONE, "flag.gpu-tier": "guaranteed,mps", "flag.gpu-mem": "8G"})
    assert (decision.fields["seats"], decision.fields["way"], decision.fields["mem"]) == ("0", "mps", "8192")
    assert (values["tier"], values["way"], values["gpu_mem"]) == ("guaranteed", "mps", "8192")
    assert "its fatal error ends both" in decision.fields["message"]
    assert "in one fault domain" in dict(rows(5, "RUNNING", JobPlan(values)))["sharing"]


def test_who_says_nothing_owns_its_gpus_alone() -> None:
    decision, values = answer([node("n1")], [], ONE)
    assert decision.fields["seats"] == "1"
    assert not {"tier", "way", "upgrade", "gpu_mem", "mps"} & values.keys()
    assert "way" not in decision.fields


def test_an_upgrade_takes_its_own_gpu_first_then_a_seat_then_it_waits() -> None:
    upgrade = {**ONE, "flag.gpu-tier": "opportunistic,upgrade"}
    decision, values = answer([node("n1")], [], upgrade)
    assert (decision.fields["seats"], "guest" in decision.fields, values["upgrade"]) == ("1", False, "0")
    decision, values = answer([node("n1", used=FULL)], [host(1, "n1", FULL)], upgrade)
    assert (decision.fields["guest"], values["tier"], values["upgrade"]) == ("1", "opportunistic", "0")
    decision, values = answer([node("n1", used=FULL)], [running(1, "n1", FULL, 900)], upgrade)
    assert (decision.verb, decision.fields["seats"], values["state"]) == ("place", "1", "waiting")
    assert "waits for a GPU of its own" in dict(rows(5, "PENDING", JobPlan(values)))["upgrade"]


def test_a_site_may_let_long_waiters_begin_as_guests() -> None:
    sharing = Sharing(guest_after=3_600)
    _, values = answer([node("n1")], [], ONE, sharing)
    assert values["upgrade"] == "3600"
    two = {"tres_per_job": "gres/gpu:2", "gpus": "2"}
    for other in (two, {"client": "alloc"}, {"flag.gpu-tier": "guaranteed"}, {"no_requeue": "1"}):
        assert "upgrade" not in answer([node("n1")], [], {**ONE, **other}, sharing)[1]
    asks_for_it = {**ONE, "flag.gpu-tier": "opportunistic,upgrade", "no_requeue": "1"}
    assert answer([node("n1")], [], asks_for_it, sharing)[1]["upgrade"] == "0"


def test_memory_that_hangs_on_gpus_is_said_for_who_may_lose_them() -> None:
    decision, _ = answer([node("n1")], [], {**GUEST, "mem_per_tres": "gres/gpu:500"})
    assert decision.fields["mem_per_node"] == "500"
    assert "mem_per_node" not in answer([node("n1")], [], {**ONE, "mem_per_tres": "gres/gpu:500"})[0].fields


def test_partition_and_qos_say_what_a_job_is_and_what_it_may_be() -> None:
    sharing = Sharing(
        tier_default=tiers.parse_default("qos=scavenger:opportunistic partition=gpu:guaranteed"),
        tier_allowed=tiers.parse_allowed("qos=scavenger:opportunistic partition=gpu:exclusive+guaranteed"),
    )
    there = [node("n1")]
    assert answer(there, [], ONE, sharing)[1]["tier"] == "guaranteed"
    assert answer(there, [], {**ONE, "qos": "scavenger"}, sharing)[1]["tier"] == "opportunistic"
    decision, _ = answer(there, [], GUEST, sharing)
    assert (decision.verb, "may be exclusive or guaranteed" in decision.fields["message"]) == ("refuse", True)
    decision, _ = answer(there, [], {**ONE, "qos": "scavenger", "flag.gpu-tier": "guaranteed"}, sharing)
    assert "QOS scavenger may be opportunistic" in decision.fields["message"]
    # Slurm takes the name of a QOS in any case.
    decision, _ = answer(there, [], {**ONE, "qos": "Scavenger", "flag.gpu-tier": "exclusive"}, sharing)
    assert "QOS scavenger may be opportunistic" in decision.fields["message"]
    assert answer(there, [], {**ONE, "qos": "SCAVENGER"}, sharing)[1]["tier"] == "opportunistic"
    assert answer(there, [], {**ONE, "flag.gpu-tier": "exclusive"}, sharing)[0].fields["seats"] == "1"


def test_the_tier_that_a_job_has_by_naming_none_has_to_be_allowed_too() -> None:
    allowed = tiers.parse_allowed("partition=low:opportunistic qos=prod:exclusive")
    for default, tier in (((), "exclusive"), (tiers.parse_default("guaranteed"), "guaranteed")):
        with pytest.raises(Never, match=f"which means {tier}: .* partition low may be opportunistic"):
            tiers.settle({}, "", "gpu,low", default, allowed)
        assert tiers.settle({}, "", "gpu", default, allowed).name == tier
    assert tiers.settle({}, "", "low", tiers.parse_default("partition=low:opportunistic"), allowed).name == (
        "opportunistic"
    )
    with pytest.raises(Never, match="QOS prod may be exclusive"):
        tiers.settle({}, "prod", "gpu", tiers.parse_default("guaranteed"), allowed)


def test_a_share_is_no_way_around_a_partition_of_guests_alone() -> None:
    share = {**ONE, "flag.gpu-share": "99"}
    there = [node("n1")]
    for rule, verb in (("opportunistic", "refuse"), ("exclusive", "place"), ("guaranteed+opportunistic", "place")):
        sharing = Sharing(tier_allowed=tiers.parse_allowed(f"partition=gpu:{rule}"))
        decision, _ = answer(there, [], share, sharing)
        assert decision.verb == verb, rule


@pytest.mark.parametrize(
    "option",
    [
        {"slurms_own": "--contiguous"},
        {"prefer": "rack1"},
        {"reservation": "r1"},
        {"features": "[a|b]"},
        {"min_nodes": "2", "max_nodes": "3"},
        {"tres_per_job": "", "tres_per_socket": "gres/gpu:1"},
        {"exc_nodes": "n["},
    ],
    ids=str,
)
def test_nor_is_an_option_by_which_only_slurm_can_choose(option: dict[str, str]) -> None:
    """Left to Slurm a job has its GPUs whole, and a guest no owner to leave them to."""
    there = [node("n1")]
    guests = tiers.parse_default("opportunistic")
    for rule, default, flags, verb in (
        ("opportunistic", (), {}, "refuse"),
        ("opportunistic", guests, {}, "refuse"),
        ("opportunistic", (), {"flag.gpu-tier": "opportunistic"}, "refuse"),
        ("guaranteed", (), {"flag.gpu-share": "50"}, "pass"),
        ("exclusive", (), {}, "pass"),
        ("exclusive", guests, {}, "refuse"),
        ("exclusive+opportunistic", guests, {}, "pass"),
    ):
        sharing = Sharing(tier_allowed=tiers.parse_allowed(f"partition=gpu:{rule}"), tier_default=default)
        decision, _ = answer(there, [], {**ONE, **option, **flags}, sharing)
        assert decision.verb == verb, (rule, default, flags)
        assert verb == "pass" or "[BERTH-403]" in decision.fields["message"]
    assert answer(there, [], {**ONE, **option, "flag.gpu-tier": "opportunistic"})[0].verb == "pass"


def test_nor_is_an_upgrade_which_ends_with_a_gpu_of_its_own() -> None:
    allowed = tiers.parse_allowed("partition=low:opportunistic partition=gpu:opportunistic+exclusive")
    flags = {"gpu-tier": "opportunistic,upgrade"}
    with pytest.raises(Never, match="opportunistic,upgrade: a job of partition low may be opportunistic"):
        tiers.settle(flags, "", "low", (), allowed)
    assert tiers.settle(flags, "", "gpu", (), allowed).upgrade
    # A site that makes it the default wants it so.
    assert tiers.settle({}, "", "low", tiers.parse_default("opportunistic,upgrade"), allowed).upgrade


@given(
    st.sampled_from(["", *TIERS, "opportunistic,upgrade"]),
    st.booleans(),
    st.dictionaries(
        st.sampled_from(["partition=a", "partition=b", "qos=x", ""]), st.sets(st.sampled_from(TIERS), min_size=1)
    ),
    st.sampled_from(["", "x", "y", "y,x"]),
    st.sampled_from(["a", "b", "c", "a,b", "c,a"]),
)
def test_whatever_a_job_says_or_leaves_out_each_rule_that_holds_for_it_allows_what_it_gets(
    asked: str, share: bool, rules: dict[str, set[str]], qos: str, partitions: str
) -> None:
    flags = {"gpu-tier": asked} if asked and not share else {}
    allowed = tiers.parse_allowed(" ".join(f"{of and of + ':'}{'+'.join(sorted(may))}" for of, may in rules.items()))
    holding = [
        rules.get(f"qos={one}") or rules.get(f"partition={name}") or rules.get("") or set(TIERS)
        for one in qos.split(",")
        for name in partitions.split(",")
    ]
    gets = {asked.partition(",")[0] or "exclusive"} | (
        {"exclusive"} if "upgrade" in flags.get("gpu-tier", "") else set()
    )
    fits = all(may - {"opportunistic"} if share else gets <= may for may in holding)
    try:
        tiers.settle(flags, qos, partitions, (), allowed, share=share)
    except Never:
        assert not fits
    else:
        assert fits


def test_of_several_partitions_each_has_to_allow_what_is_asked() -> None:
    allowed = tiers.parse_allowed("partition=b:exclusive")
    flags = {"gpu-tier": "guaranteed"}
    assert tiers.settle(flags, "", "a", (), allowed).name == "guaranteed"
    with pytest.raises(Never, match="partition b may be exclusive"):
        tiers.settle(flags, "", "a,b", (), allowed)


@pytest.mark.parametrize("in_all", [False, True])
def test_of_a_list_with_a_skipped_partition_the_rules_of_the_others_hold_and_their_nodes_count(in_all: bool) -> None:
    sharing = Sharing(tier_default=tiers.parse_default("partition=gpu:guaranteed exclusive"))
    nodes = [node("n1", partitions=frozenset({"plain"})), node("n2", partitions=frozenset({"plain", "gpu"}))]
    nodes.append(node("n3", partitions=frozenset({"gpu"}), up=False))
    parts = (PartitionFacts("gpu", default=True, time_limit=3_600), PartitionFacts("plain", time_limit=3_600))
    look = replace(reading(nodes, []), partitions=parts, in_all_partitions=in_all)
    tracker = Tracker(replace(fleet(look, sharing), skipped=frozenset({"plain"}), in_all_partitions=in_all))
    tracker.update(look)
    fields = submit(**{**ONE, "partition": "plain,gpu"})
    decision = decide(fields, tracker.book(), BerthPolicy(), Settings(), NOW)
    values = segment.fields(f"[berth/1 {decision.fields['segment']}]") or {}
    assert (decision.verb, decision.fields["nodes"], values["tier"]) == ("place", "n2", "guaranteed")


def test_of_several_qos_each_has_to_allow_what_is_asked_and_a_rule_for_any_makes_the_tier() -> None:
    default = tiers.parse_default("qos=borrow:opportunistic qos=late:guaranteed exclusive")
    for qos, tier in (
        ("borrow", "opportunistic"),
        ("vision,borrow", "opportunistic"),
        ("late,borrow", "guaranteed"),
        ("vision", "exclusive"),
        ("", "exclusive"),
        ("borrowed", "exclusive"),
    ):
        assert tiers.settle({}, qos, "gpu", default, ()).name == tier, qos
    allowed = tiers.parse_allowed("qos=borrow:opportunistic")
    assert tiers.settle({"gpu-tier": "guaranteed"}, "vision", "gpu", (), allowed).name == "guaranteed"
    for qos in ("vision,borrow", "borrow,vision"):
        with pytest.raises(Never, match="QOS borrow may be opportunistic"):
            tiers.settle({"gpu-tier": "guaranteed"}, qos, "gpu", (), allowed)


@pytest.mark.parametrize(
    "text", ["guarantied", "exclusive,mps", "guaranteed,upgrade", "opportunistic,mps,mps", "opportunistic,"]
)
def test_wrong_tiers_are_refused(text: str) -> None:
    with pytest.raises(FormatError):
        parse_tier(text)


def test_right_tiers_are_read() -> None:
    assert parse_tier("opportunistic,mps,upgrade") == Tier("opportunistic", upgrade=True, mps=True)


def test_the_sites_rules_are_read_and_checked(tmp_path: Path) -> None:
    conf = tmp_path / "berth.conf"
    conf.write_text(
        '[sharing]\ntier_default = "partition=low:opportunistic"\ntier_allowed = "exclusive+guaranteed"\n'
        'guest_way = "mps"\nguest_after = "1:00:00"\nevict_grace = 45\nevict_signal = "USR2"\n'
    )
    found = load(conf).settings.sharing
    assert (found.guest_after, found.guest_way, found.evict_grace, found.evict_signal) == (3_600, "mps", 45, "USR2")
    assert found.tier_allowed == (tiers.TierRule("", "", "exclusive+guaranteed"),)
    for wrong, says in (
        ('tier_default = "partiton=low:guaranteed"', "tier_default: 'partiton=low:guaranteed' is not"),
        ('tier_default = "guarantied"', "did you mean guaranteed"),
        ('tier_allowed = "opportunistic,upgrade"', "tier_allowed"),
        ("evict_grace = 46", "evict_grace is from 0 to 45 s, not 46"),
        ('evict_signal = "KILL"', "evict_signal is one of"),
        ('guest_after = "soon"', "guest_after: 'soon' is not a time"),
    ):
        conf.write_text(f"[sharing]\n{wrong}\n")
        with pytest.raises(ConfigError, match=says):
            load(conf)


@pytest.mark.parametrize("nodes", [[node("n1", used=FULL)], []], ids=["a seat is free", "none is"])
def test_an_extra_that_leaves_no_room_for_a_seat_brings_no_gpu_of_its_own(nodes: list[NodeFacts]) -> None:
    nodes = nodes or [node("n1", used=FULL, seats_used=FULL)]
    jobs = [host(1, "n1", FULL)] if not nodes[0].seats_used else [running(1, "n1", FULL, 9_000)]

    for own, verbs in (("800", {"place", "later"}), ("1000", {"refuse"})):
        decision, _ = answer(nodes, jobs, {**GUEST, "extra_bytes": own})
        assert decision.verb in verbs
    assert "a shorter --extra would do" in decision.fields["message"]
