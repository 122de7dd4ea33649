# SPDX-License-Identifier: Apache-2.0
"""The configuration of each rung, made from drawn configurations; and that to undo it is the identity."""

import tomllib
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policy.cli.doctor.steps import step_of
from policy.cli.migrate.berth_conf import set_key
from policy.cli.migrate.conf_text import entries, value_of, words_of
from policy.cli.migrate.node_lines import ExactNode, exact_gres, exact_nodes, listed
from policy.cli.migrate.rungs import Rung, Texts, changed, rung_of
from policy.cli.migrate.site import read_files
from policy.cli.migrate.state import Change, ChangeStore
from policy.formats.errors import ConfigError, FormatError, UsageError
from policy.formats.hostlist import expand
from tests.examples import examples
from tests.unit.policy.cli.migrate.drawn import exact, gres_confs, slurm_confs
from tests.unit.policy_world import node as facts_of

NODES = st.sets(st.sampled_from([f"n{number}" for number in range(1, 7)]))
BERTH_CONF = st.sampled_from(
    ["", '[hook]\nmessage = "never" # quiet\n', "[berthd]\ntick_ms = 250", '# ours\n[hook]\nlayout="plain"\n']
)


def layout(texts: Texts, chosen: set[str]) -> dict[str, ExactNode]:
    return {name: exact(name) for name in chosen & texts.nodes.keys()}


@given(slurm_confs(), gres_confs(), BERTH_CONF, NODES)
@settings(max_examples=examples(60), deadline=None)
def test_apply_and_undo_leave_the_same_bytes(conf: str, gres: str, berth: str, chosen: set[str]) -> None:
    with TemporaryDirectory() as name:
        folder = Path(name)
        paths = {"slurm.conf": conf, "gres.conf": gres, "berth.conf": berth}
        for file, text in paths.items():
            if text:
                (folder / file).write_bytes(text.encode())
        store = ChangeStore(folder / "state")
        before = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
        for rung in ("advise", "exact", "exact", "sharing"):
            files = read_files(folder / "slurm.conf", folder / "berth.conf")
            wanted = layout(files.texts, chosen if rung_of(files.texts) == "advise" else set(files.texts.nodes))
            if rung == "sharing" and rung_of(files.texts) != "exact":
                continue
            new = changed(files.texts, rung, wanted)
            assert changed(new, rung) == new
            with store.locked():
                changes = tuple(files.changes(new))
                store.apply(Change(0, rung, rung_of(files.texts), (), 0.0, changes, ()))
        store.undo(store.changes()[::-1])

        assert {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()} == before
        assert store.changes() == []


@given(slurm_confs(), NODES)
@settings(max_examples=examples(100), deadline=None)
def test_the_exact_nodes_and_no_others_change_their_gpus(conf: str, chosen: set[str]) -> None:
    before = listed([conf])
    wanted = {name: exact(name) for name in chosen if before[name].gpus}

    (text,) = exact_nodes([conf], wanted)

    after = listed([text])
    assert after.keys() == before.keys()
    for name, node in before.items():
        assert set(node.features) <= set(after[name].features)
        assert set(node.models) <= set(after[name].features)
        if name in wanted:
            assert after[name].exact
            assert wanted[name].model in after[name].features
            kept = [word for word in words_of(node.gres) if not word.startswith("gpu")]
            assert words_of(after[name].gres)[: len(kept)] == kept
        else:
            assert after[name].gres == node.gres
    for entry in entries(text):
        if entry.get("NodeAddr"):
            addresses = [word.rpartition(".")[2] for word in expand(entry.get("NodeAddr") or "")]
            assert [f"n{number}" for number in addresses] == list(expand(entry.get("NodeName") or ""))


@given(gres_confs(), NODES)
def test_gres_conf_names_each_gpu_of_a_node_once(text: str, chosen: set[str]) -> None:
    every = [f"n{number}" for number in range(1, 7)]

    after = exact_gres(text, every, {name: exact(name) for name in chosen})

    for name in chosen:
        lines = [
            entry
            for entry in entries(after)
            if (entry.get("Name") or "").lower() == "gpu" and name in expand(entry.get("NodeName") or name)
        ]
        assert [entry.get("Type") for entry in lines] == ["g0", "g1"]
    assert after.count("fpga") == text.count("fpga")


def test_a_range_that_does_not_fit_its_nodes_is_refused_with_its_line() -> None:
    conf = "NodeName=n[1-4] NodeAddr=10.0.0.[1-3] Gres=gpu:2\n"

    with pytest.raises(FormatError, match=r"NodeAddr=10\.0\.0\.\[1-3\].*split the line by hand"):
        exact_nodes([conf], {"n1": exact("n1")})


def test_limits_and_weights_by_model_become_licences() -> None:
    conf = (
        "AccountingStorageTRES=gres/gpu:a100\nNodeName=n[1-4] Gres=gpu:a100:8\n"
        'PartitionName=gpu Nodes=ALL TRESBillingWeights="CPU=1,gres/gpu:a100=10"\n'
    )

    (new,) = changed(Texts((conf,)), "exact", {"n1": exact("n1")}, {"a100"}).slurm_conf

    assert 'TRESBillingWeights="CPU=1,license/berth_a100=10"' in new
    assert value_of([new], "AccountingStorageTRES") == "license/berth_a100,gres/gpu"
    assert value_of([new], "Licenses") == "berth_a100:32"


def test_the_sites_own_prolog_is_called_by_berths_from_the_exact_layout_on() -> None:
    texts = Texts(("NodeName=n1 Gres=gpu:2\nProlog=/a\nprolog=/b/*\n",))

    advised = changed(texts, "advise")
    new = changed(advised, "exact", {"n1": exact("n1")})

    assert value_of(advised.slurm_conf, "Prolog") == "/b/*"
    assert value_of(new.slurm_conf, "Prolog") == "/opt/berth/bin/berth-prolog"
    assert tomllib.loads(new.berth_conf) == {"hook": {"layout": "exact"}, "node": {"chain_prolog": ["/a", "/b/*"]}}
    assert value_of(new.slurm_conf, "Epilog") == ""


def test_down_is_undo() -> None:
    texts = changed(Texts(("NodeName=n1 Gres=gpu:2\n",)), "exact", {"n1": exact("n1")})

    assert rung_of(texts) == "exact"
    assert rung_of(changed(texts, "sharing")) == "sharing"
    with pytest.raises(UsageError, match="undo"):
        changed(texts, "advise")


def test_a_key_of_berth_conf_is_changed_and_the_rest_stays() -> None:
    text = '# ours\n[hook] # plugin\nlayout = "plain" # for now\nmessage = "never"\n'

    assert set_key(text, "hook", "layout", '"exact"') == text.replace('"plain" # for now', '"exact"')
    assert set_key(text, "node", "layout", "1") == f"{text}[node]\nlayout = 1\n"
    assert set_key("[hook]", "hook", "layout", '"plain"') == '[hook]\nlayout = "plain"\n'
    assert set_key("", "hook", "layout", '"plain"') == '[hook]\nlayout = "plain"\n'
    with pytest.raises(ConfigError, match="by hand"):
        set_key('hook.layout = "plain"\n', "hook", "layout", '"exact"')


@pytest.mark.parametrize("rung", ["advise", "exact"])
def test_a_comment_in_berth_conf_changes_nothing(rung: Rung) -> None:
    comment, wanted = '# layout = "plain"\n', {"n1": exact("n1")}
    without = Texts(("NodeName=n1 Gres=gpu:2\n",), berth_conf="[hook]\n")
    new = changed(without, rung, wanted)

    commented = changed(replace(without, berth_conf=f"[hook]\n{comment}"), rung, wanted)

    assert commented.berth_conf.replace(comment, "") == new.berth_conf
    assert replace(commented, berth_conf="") == replace(new, berth_conf="")


def test_scripts_that_berth_calls_are_not_yet_sharing() -> None:
    texts = Texts(("NodeName=n1 Gres=gpu:2\nProlog=/a\nEpilog=/b\n",))

    exact_one = changed(texts, "exact", {"n1": exact("n1")})

    assert rung_of(exact_one) == "exact"
    assert rung_of(changed(exact_one, "sharing")) == "sharing"


def test_plugins_that_are_named_in_full_are_not_named_twice() -> None:
    conf = "JobSubmitPlugins=job_submit/berth,lua\nCliFilterPlugins=cli_filter/berth\nNodeName=n1 Gres=gpu:2\n"

    new = changed(Texts((conf,)), "advise")

    assert value_of(new.slurm_conf, "JobSubmitPlugins") == "lua,berth"
    assert value_of(new.slurm_conf, "CliFilterPlugins") == "cli_filter/berth"
    assert changed(new, "advise") == new


def test_a_spank_plugin_of_an_included_file_is_not_loaded_twice(tmp_path: Path) -> None:
    (tmp_path / "slurm.conf").write_text("ClusterName=c\nNodeName=n1 Gres=gpu:2\n")
    (tmp_path / "plugstack.conf").write_text("include plugstack.conf.d/*.conf\n")
    (tmp_path / "plugstack.conf.d").mkdir()
    (tmp_path / "plugstack.conf.d" / "berth.conf").write_text("optional spank_berth.so\n")

    texts = read_files(tmp_path / "slurm.conf", tmp_path / "berth.conf").texts

    assert changed(texts, "advise").plugstack_conf == texts.plugstack_conf


@pytest.mark.parametrize("launch", ["", "use_interactive_step", "mpir_use_nodeaddr,use_interactive_step"])
@pytest.mark.parametrize("flags", ["", "Alloc", "alloc", "Contain", "X11", "NoHold", "Serial", "Contain,Serial"])
@pytest.mark.parametrize("prolog", ["/opt/berth/bin/berth-prolog", "/site/berth-prolog-old", ""])
def test_migrate_and_doctor_name_the_same_step(prolog: str, flags: str, launch: str) -> None:
    keys = {"Prolog": prolog, "Epilog": "/opt/berth/bin/berth-epilog", "PrologFlags": flags, "LaunchParameters": launch}
    lines = "".join(f"{key}={value}\n" for key, value in keys.items() if value)
    layout = "NodeName=n1 Gres=gpu:g0:1,gpu:g1:1\nNodeName=n2 Gres=gpu:l40s:2\nJobSubmitPlugins=berth\n"
    # As Slurm shows its settings: with what a flag implies.
    shown = {**keys, "PrologFlags": f"Alloc,{flags}" if {"Contain", "X11"} & set(flags.split(",")) else flags}
    nodes = [facts_of("n1", gpus=2), facts_of("n2", gpus=0, loose=2, seats=0)]

    told = step_of({**shown, "JobSubmitPlugins": "berth"}, nodes, plain=False)

    assert told.name == rung_of(Texts((layout + lines,)))
    assert (told.name == "sharing") == (
        prolog.endswith("berth-prolog") and "use_i" in launch and "lloc" in shown["PrologFlags"]
    )
