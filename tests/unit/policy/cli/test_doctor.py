# SPDX-License-Identifier: Apache-2.0
"""berth doctor, on a recording of a cluster, and on one that was changed."""

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policy.cli.doctor import command as doctor
from policy.cli.doctor.conf import unknown_names, wrong_tables
from policy.formats.errors import ConfigError, DaemonError, SlurmError
from policy.request.settings import RelocationRules, Settings
from policy.site.config import Config, load
from policy.slurm.by_command.recorded import recorded_gateway
from tests.conf_keys import TABLES
from tests.examples import examples
from tests.unit.policy.cli.test_cli import slurm
from tests.unit.policy_world import machine
from topology.files import dump

__all__ = ["slurm"]


def examine(
    recording: Path,
    topology: Path,
    status: Mapping[str, str] | None = None,
    fabric: str = "none",
    **more: Any,
) -> dict[str, doctor.Finding]:
    def answer() -> Mapping[str, str]:
        if status is None:
            raise DaemonError("berthd does not answer on /x; is berthd running?")
        return status

    settings = replace(Config(topology_dir=topology, fabric=fabric), **more)
    findings = doctor.examine(recorded_gateway(recording), settings, answer)
    return {finding.name: finding for finding in findings}


def described(folder: Path, count: int = 4) -> Path:
    folder.mkdir()
    for number in range(1, count + 1):
        dump(machine(f"n{number}", "h100"), folder / f"n{number}.json")
    return folder


def test_doctor_finds_nothing_wrong_where_nothing_is(slurm: Path, tmp_path: Path) -> None:
    findings = examine(slurm, described(tmp_path / "t"), {"answers": "3"})

    assert [finding for finding in findings.values() if not finding.ok] == []
    assert len(findings) == 18
    assert findings["Berth"].text.endswith(", from a checkout, no plugins here")


def test_doctor_says_how_a_counted_reservation_is_written(slurm: Path, tmp_path: Path) -> None:
    (slurm / "scontrol-show-reservation").write_text(
        "ReservationName=r StartTime=1 EndTime=2000000000 Nodes=n[1-2] Flags=SPEC_NODES TRES=cpu=2,gres/gpu=8\n"
    )

    finding = examine(slurm, described(tmp_path / "t"), {"answers": "3"})["reservations"]

    assert finding.ok
    assert finding.text.startswith("reservation r counts GPUs of n[1-2]: Berth places no job there")
    assert "such as TresPerNode=gres/gpu:g0:1,gres/gpu:g1:1" in finding.text


@pytest.mark.parametrize(
    ("file", "old", "new", "check"),
    [
        ("scontrol-version", "26.05.5", "22.05.8", "Slurm version"),
        ("scontrol-show-config", "disable_job_shrink,", "", "disable_job_shrink"),
        ("scontrol-show-config", "SLURM_VERSION", "PreemptType = preempt/qos\nSLURM_VERSION", "preemption"),
        ("scontrol-show-config", "gpu,shard,seat", "gpu", "GresTypes"),
        ("scontrol-show-config", "JobDefaults             = (null)", "JobDefaults = DefCpuPerGPU=4", "DefCpuPerGPU"),
        (
            "scontrol-show-config",
            "SLURM_VERSION",
            "AccountingStorageTRES = cpu,gres/gpu:h100\nSLURM_VERSION",
            "limits by model",
        ),
        ("scontrol-show-partition", "JobDefaults=(null)", "JobDefaults=DefCpuPerGPU=4", "DefCpuPerGPU"),
        ("scontrol-show-config", "JobSubmitPlugins        = berth", "JobSubmitPlugins = berth,lua", "JobSubmitPlugins"),
        ("scontrol-show-config", "SLURM_VERSION", "Prolog = /etc/slurm/own.sh\nSLURM_VERSION", "Prolog and Epilog"),
        ("scontrol-show-config", "SLURM_VERSION", "Epilog[1] = /etc/own\nSLURM_VERSION", "Prolog and Epilog"),
        ("scontrol-show-node", "Gres=gpu:g0:1,", "Gres=gpu:a100:1,", "GPU types"),
        ("scontrol-show-node", "seat:g0:1,seat:g1:1", "seat:g1:1", "seats"),
    ],
)
def test_doctor_names_what_is_wrong(slurm: Path, tmp_path: Path, file: str, old: str, new: str, check: str) -> None:
    printed = (slurm / file).read_text()
    assert old in printed
    (slurm / file).write_text(printed.replace(old, new))

    findings = examine(slurm, described(tmp_path / "t"), {})

    assert not findings[check].ok


def test_doctor_finds_shards_for_everybody_on_gpus_of_berths(slurm: Path, tmp_path: Path) -> None:
    check, topology = "shards in skipped partitions", described(tmp_path / "t")
    plain = frozenset({"plain"})
    assert check not in examine(slurm, topology, {}, skip_partitions=plain)

    found = examine(slurm, topology, {}, skipped_shards=True, skip_partitions=plain)[check]
    assert (found.ok, "have shards on n1, n2, which" in found.text) == (False, True), found.text

    all_of_them = frozenset(re.findall(r"PartitionName=(\S+)", (slurm / "scontrol-show-partition").read_text()))
    for skipped in (frozenset[str](), all_of_them):
        assert examine(slurm, topology, {}, skipped_shards=True, skip_partitions=skipped)[check].ok


def untouched(recording: Path, nodes: str = "n1 n2 n3 n4", *, plugin: bool = False) -> None:
    """Makes a recording that of a site with plain GRES types, on some nodes."""
    lines = (recording / "scontrol-show-node").read_text().splitlines(keepends=True)
    changed = [
        re.sub(r" Gres=\S+", " Gres=gpu:h100:8(S:0-1)", re.sub(r"GresUsed=\S+", "GresUsed=gpu:h100:0(IDX:N/A)", line))
        if line.split()[0].removeprefix("NodeName=") in nodes.split()
        else line
        for line in lines
    ]
    (recording / "scontrol-show-node").write_text("".join(changed))
    if plugin:
        return
    config = recording / "scontrol-show-config"
    text = config.read_text()
    for old, new in (
        ("JobSubmitPlugins        = berth", "JobSubmitPlugins        = (null)"),
        ("gpu,shard,seat", "gpu"),
        ("disable_job_shrink,", ""),
        ("JobDefaults             = (null)", "JobDefaults = DefCpuPerGPU=4"),
    ):
        text = text.replace(old, new)
    config.write_text(text)


def test_doctor_asks_nothing_of_a_site_that_only_observes(slurm: Path, tmp_path: Path) -> None:
    untouched(slurm)

    findings = examine(slurm, tmp_path / "none")

    assert [finding for finding in findings.values() if not finding.ok] == []
    assert findings["rollout"].text.startswith("observe: ")
    assert "0 of 4 GPU nodes described" in findings["topology files"].text


def test_doctor_compares_topology_files_with_all_gpus_of_a_plain_node(slurm: Path, tmp_path: Path) -> None:
    untouched(slurm)

    found = examine(slurm, described(tmp_path / "t"))["topology files"]

    assert (found.ok, found.text) == (True, "4 GPU nodes described")


def test_doctor_on_the_plain_layout_asks_for_plugin_and_berthd_alone(slurm: Path, tmp_path: Path) -> None:
    untouched(slurm, plugin=True)
    findings = examine(slurm, tmp_path / "none", {"answers": "3"}, plain=True)
    assert [finding for finding in findings.values() if not finding.ok] == []
    assert findings["rollout"].text.startswith("advise: ")

    untouched(slurm)
    without = examine(slurm, tmp_path / "none", plain=True)
    assert {name for name, finding in without.items() if not finding.ok} == {"JobSubmitPlugins", "berthd"}


def test_doctor_finds_a_layout_that_berth_conf_does_not_name(slurm: Path, tmp_path: Path) -> None:
    exact = examine(slurm, described(tmp_path / "t"), {}, plain=True)["rollout"]
    untouched(slurm, plugin=True)
    plain = examine(slurm, described(tmp_path / "u"), {})["rollout"]

    assert (exact.ok, plain.ok) == (False, False)
    assert 'layout = "exact"' in exact.text
    assert 'layout = "plain"' in plain.text


def test_doctor_takes_a_cluster_of_both_layouts(slurm: Path, tmp_path: Path) -> None:
    untouched(slurm, "n3 n4", plugin=True)

    findings = examine(slurm, described(tmp_path / "t"), {})

    assert [finding for finding in findings.values() if not finding.ok] == []
    assert "2 of 4 GPU nodes have one GRES type for each GPU; on n3, n4 Slurm alone chooses" in findings["rollout"].text


def test_doctor_names_nodes_without_topology_and_a_daemon_that_is_away(slurm: Path, tmp_path: Path) -> None:
    findings = examine(slurm, described(tmp_path / "t", count=3))

    assert "n4" in findings["topology files"].text
    assert not findings["topology files"].ok
    assert "is berthd running?" in findings["berthd"].text


RUNGS = ("observe", "advise", "exact", "sharing")

FAULTS = {
    "old Slurm": ("scontrol-version", "26.05.5", "22.05.8"),
    "newer Slurm": ("scontrol-version", "26.05.5", "27.05.0"),
    "preemption": ("scontrol-show-config", "SLURM_VERSION", "PreemptType = preempt/qos\nSLURM_VERSION"),
    "shrink": ("scontrol-show-config", "disable_job_shrink,", ""),
    "GresTypes": ("scontrol-show-config", "gpu,shard,seat", "gpu"),
    "DefCpuPerGPU": ("scontrol-show-config", "JobDefaults             = (null)", "JobDefaults = DefCpuPerGPU=4"),
    "plugin not last": ("scontrol-show-config", "JobSubmitPlugins        = berth", "JobSubmitPlugins = berth,lua"),
    "limit by model": (
        "scontrol-show-config",
        "SLURM_VERSION",
        "AccountingStorageTRES = cpu,gres/gpu:h100\nSLURM_VERSION",
    ),
    "own Prolog": ("scontrol-show-config", "SLURM_VERSION", "Prolog[7] = /etc/slurm/own.sh\nSLURM_VERSION"),
    "blocks": ("scontrol-show-config", "SLURM_VERSION", "TopologyPlugin = topology/block\nSLURM_VERSION"),
}
"""What is changed in the recording of a cluster where nothing is wrong."""

FAILS = {
    "old Slurm": {"advise": "Slurm version", "exact": "Slurm version", "sharing": "Slurm version"},
    "newer Slurm": {"advise": "Slurm version", "exact": "Slurm version", "sharing": "Slurm version"},
    "preemption": {"advise": "preemption", "exact": "preemption", "sharing": "preemption"},
    "shrink": {"exact": "disable_job_shrink", "sharing": "disable_job_shrink"},
    "GresTypes": {"exact": "GresTypes", "sharing": "GresTypes"},
    "DefCpuPerGPU": {"exact": "DefCpuPerGPU", "sharing": "DefCpuPerGPU"},
    "plugin not last": {"advise": "JobSubmitPlugins", "exact": "JobSubmitPlugins", "sharing": "JobSubmitPlugins"},
    "limit by model": {"exact": "limits by model", "sharing": "limits by model"},
    "own Prolog": {"exact": "Prolog and Epilog", "sharing": "Prolog and Epilog"},
    "blocks": {"advise": "fabric", "exact": "fabric", "sharing": "fabric"},
}
"""The check that fails on each rung; on the others the change harms nothing."""


def on_rung(recording: Path, rung: str, topology: Path, **more: Any) -> dict[str, doctor.Finding]:
    """Makes a recording that of a site on this rung, and returns what doctor finds there."""
    config = recording / "scontrol-show-config"
    if rung == "observe":
        untouched(recording, plugin=True)
        config.write_text(re.sub(r"(?m)^JobSubmitPlugins .*", "JobSubmitPlugins = lua", config.read_text()))
    elif rung == "advise":
        untouched(recording, plugin=True)
    elif rung == "sharing":
        with config.open("a") as file:
            file.write("Prolog[0] = /opt/berth/bin/berth-prolog\nEpilog = /opt/berth/bin/berth-epilog\n")
            file.write("PrologFlags = Alloc\nLaunchParameters = use_interactive_step\n")
    status = None if rung == "observe" else {"answers": "3"}
    return examine(recording, topology, status, plain=rung == "advise", **more)


@pytest.mark.parametrize("rung", RUNGS)
def test_doctor_names_the_rung_and_finds_nothing_wrong_there(slurm: Path, tmp_path: Path, rung: str) -> None:
    findings = on_rung(slurm, rung, described(tmp_path / "t"))

    assert [finding for finding in findings.values() if not finding.ok] == []
    assert findings["rollout"].text.startswith(f"{rung}: ")


@pytest.mark.parametrize("rung", RUNGS)
@pytest.mark.parametrize("fault", FAULTS)
def test_a_check_fails_on_the_rungs_where_it_matters(slurm: Path, tmp_path: Path, fault: str, rung: str) -> None:
    file, old, new = FAULTS[fault]
    printed = (slurm / file).read_text()
    assert old in printed
    (slurm / file).write_text(printed.replace(old, new))

    findings = on_rung(slurm, rung, described(tmp_path / "t"))

    failed = {name for name, finding in findings.items() if not finding.ok}
    assert failed == ({FAILS[fault][rung]} if rung in FAILS[fault] else set())


@pytest.mark.parametrize(
    ("rung", "says"),
    [
        ("observe", "berth observe --machine describes others"),
        ("advise", "berth topo discover, its output in "),
        ("exact", "run berth topo discover there"),
        ("sharing", "run berth topo discover there"),
    ],
)
def test_nodes_without_topology_files_are_described_as_the_rung_needs_it(
    slurm: Path, tmp_path: Path, rung: str, says: str
) -> None:
    found = on_rung(slurm, rung, described(tmp_path / "t", count=3))["topology files"]

    assert found.ok == (rung in ("observe", "advise"))
    assert says in found.text


@pytest.mark.parametrize("rung", RUNGS)
def test_a_daemon_that_is_away_matters_from_advise_on(slurm: Path, tmp_path: Path, rung: str) -> None:
    on_rung(slurm, rung, described(tmp_path / "t"))

    found = examine(slurm, tmp_path / "t", plain=rung == "advise")["berthd"]

    assert found.ok == (rung == "observe")


@pytest.mark.parametrize("rung", RUNGS)
def test_a_fabric_that_contradicts_the_machines_is_mended_where_jobs_are_placed_by_it(
    slurm: Path, tmp_path: Path, rung: str
) -> None:
    fabric = tmp_path / "topology.conf"
    fabric.write_text("SwitchName=s Nodes=n[1-3]\n")

    found = on_rung(slurm, rung, described(tmp_path / "t"), fabric=str(fabric))["fabric"]

    assert found.ok == (rung == "observe")
    assert "does not name n4" in found.text


def test_the_advice_on_preemption_is_one_with_which_berthd_starts(slurm: Path, tmp_path: Path) -> None:
    with (slurm / "scontrol-show-config").open("a") as config:
        config.write("PreemptType = preempt/qos\n")
    topology = described(tmp_path / "t")
    free = Settings(pin_ahead=False)

    still = examine(slurm, topology, {})["preemption"]
    moving = examine(slurm, topology, {}, settings=Settings(moving=RelocationRules(enabled=True)))["preemption"]
    followed = examine(slurm, topology, {}, settings=free)["preemption"]

    assert still.text.endswith("; set [berthd] pin_ahead = false in berth.conf")
    assert "take enabled out of [moving]" in moving.text
    assert followed.ok


def test_a_plugin_on_the_plain_layout_that_berth_conf_does_not_name_is_all_that_is_wrong(
    slurm: Path, tmp_path: Path
) -> None:
    untouched(slurm, plugin=True)
    config = slurm / "scontrol-show-config"
    config.write_text(config.read_text().replace("gpu,shard,seat", "gpu"))

    findings = examine(slurm, described(tmp_path / "t"), {})

    assert {name for name, finding in findings.items() if not finding.ok} == {"rollout"}


FABRICS = {
    "agrees": ("SwitchName=s Nodes=n[1-4]\n", True, "leaves 1, pods 0, NVLink domains 0; from "),
    "node left out": ("SwitchName=s Nodes=n[1-3]\n", False, "does not name n4"),
    "node too many": ("SwitchName=s Nodes=n[1-5]\n", False, "line 1: Slurm has no node n5; did you mean n"),
    "broken": ("SwitchName=s Node=n[1-4]\n", False, "line 1: there is no key Node; did you mean Nodes?"),
}


@pytest.mark.parametrize(("text", "ok", "says"), FABRICS.values(), ids=FABRICS)
def test_doctor_reads_the_fabric(slurm: Path, tmp_path: Path, text: str, ok: bool, says: str) -> None:
    fabric = tmp_path / "topology.conf"
    fabric.write_text(text)
    found = examine(slurm, described(tmp_path / "t"), {}, str(fabric))["fabric"]
    assert found.ok == ok
    assert says in found.text


@pytest.mark.parametrize(
    ("fabric", "says"),
    [("none", "switched off in berth.conf"), ("", "Slurm has no topology.conf or topology.yaml")],
)
def test_doctor_says_why_there_are_no_leaves(
    slurm: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fabric: str, says: str
) -> None:
    monkeypatch.setenv("SLURM_CONF", f"{tmp_path}/slurm.conf")
    found = examine(slurm, described(tmp_path / "t"), {}, fabric)["fabric"]
    assert (found.ok, found.text) == (True, f"no leaves and pods: {says}")


@pytest.mark.parametrize(
    ("text", "ok"), [("", False), ("SwitchName=s Nodes=n[1-4]\n", False), ("BlockName=b Nodes=n[1-4]\n", True)]
)
def test_doctor_misses_blocks_where_slurm_goes_by_them(slurm: Path, tmp_path: Path, text: str, ok: bool) -> None:
    with (slurm / "scontrol-show-config").open("a") as config:
        config.write("TopologyPlugin          = topology/block\n")
    fabric = tmp_path / "topology.conf"
    fabric.write_text(text)

    found = examine(slurm, described(tmp_path / "t"), {}, str(fabric) if text else "none")["fabric"]

    assert found.ok == ok
    assert ok or "Slurm chooses by blocks" in found.text


def test_doctor_names_a_domain_across_leaves(slurm: Path, tmp_path: Path) -> None:
    folder = described(tmp_path / "t")
    for number in (1, 2):
        dump(replace(machine(f"n{number}", "h100"), domain="rack.1"), folder / f"n{number}.json")
    fabric = tmp_path / "topology.conf"
    fabric.write_text("SwitchName=a Nodes=n[1,3]\nSwitchName=b Nodes=n[2,4]\nSwitchName=c Switches=a,b\n")
    found = examine(slurm, folder, {}, str(fabric))["fabric"]
    assert not found.ok
    assert "1 NVLink domain lies across the border of a leaf" in found.text


def test_doctor_names_a_gpu_that_two_nodes_claim(slurm: Path, tmp_path: Path) -> None:
    folder = described(tmp_path / "t")
    dump(replace(machine("n1", "h100"), node="n3"), folder / "n3.json")
    found = examine(slurm, folder, {})["topology files"]
    assert not found.ok
    assert found.text == "GPU-n1-0 is in the files of n1 and n3; discover both again"


def test_doctor_says_when_there_is_no_slurm(tmp_path: Path) -> None:
    assert not examine(tmp_path, tmp_path)["Slurm"].ok


# Values that no table takes, and names that Slurm does not have.


def drawn_wrong(draw: st.DrawFn) -> tuple[str, str, object]:
    """Returns a table, one of its keys, and a wrong value: of another type, or a word that is none of the key's."""
    every = [(table.name, key, kind) for table in TABLES for key, kind in table.keys.items()]
    table, key, kind = draw(st.sampled_from(every))
    if "words" in kind and draw(st.booleans()):
        return table, key, draw(st.sampled_from(["kill", "Act", " exact", "", "none of these"]))
    right = {"int": int, "bool": bool, "float": float, "paths": list}.get(kind["type"], str)
    wrong = [one for one in (3, "x", True, 1.5, [1], {"a": 1}) if type(one) is not right or right is list]
    if right is float:
        wrong = [one for one in wrong if type(one) is not int]
    return table, key, draw(st.sampled_from(wrong))


@given(st.composite(drawn_wrong)())
@settings(max_examples=examples(80), deadline=None)
def test_a_wrong_value_of_any_key_is_refused(case: tuple[str, str, object]) -> None:
    table, key, value = case
    written = json.dumps(value) if not isinstance(value, dict) else "{ a = 1 }"
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "berth.conf"
        path.write_text(f"[{table}]\n{key} = {written}\n")
        try:
            load(path)
            told = wrong_tables(path)
        except ConfigError as problem:
            told = str(problem)
    assert key in told, f"[{table}] {key} = {written} passes in silence"


def test_berthd_check_config_tells_a_word_of_the_nodes_tables_that_is_none(tmp_path: Path) -> None:
    path = tmp_path / "berth.conf"
    path.write_text('[node]\nviolation = "kill"\n')
    words = [sys.executable, "-m", "policy.daemon.answer.main", "--config", str(path), "--check-config"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert "[node] violation is one of warn, terminate, requeue, not 'kill'" in done.stderr

    path.write_text('[node]\nviolation = "warn"\n')
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, f"{path}: ok\n")

    path.write_text('[web]\nenabled = true\noptions = "--every 0.1"\n')
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert "[web] options of berth.conf: --every is at least 1 s" in done.stderr


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("--from-simulation day.json", "unrecognized arguments: --from-simulation day.json"),
        ("--port 'x", "No closing quotation"),
        ("--port x", "argument --port: invalid int value: 'x'"),
        ("--embed-in", "argument --embed-in: expected one argument"),
        ("--t x", "ambiguous option"),
        ("--bind 192.0.2.1", "viewers have to be known"),
        ("--bind 192.0.2.1 --trust-proxy 192.0.2.2", ""),
        ("", ""),
    ],
)
def test_options_of_the_page_are_read_before_it_is_served(tmp_path: Path, options: str, said: str) -> None:
    path = tmp_path / "berth.conf"
    path.write_text(f'[web]\nenabled = true\noptions = "{options}"\n')
    assert said in wrong_tables(path)
    assert bool(said) == bool(wrong_tables(path))
    path.write_text(f'[web]\noptions = "{options}"\n')
    assert wrong_tables(path) == "", "there is no page"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('[hook]\nskip_partitions = "plian"\n', "the partition plian, which Slurm does not have; did you mean plain"),
        ('[preflight]\npartition = "gqu"\n', "[preflight] partition names the partition gqu"),
        ('[sharing]\ntier_default = "partition=gqu:opportunistic"\n', "names the partition gqu"),
        ('[berthd]\nend_idle = "plian@1:00:00"\n', "end_idle names the partition plian, which Slurm does not have"),
        ('[sharing]\ntier_allowed = "qos=hihg:exclusive"\n', "qos hihg, which Slurm does not have; did you mean high"),
        ('[preflight]\npartition = "plain,gqu"\n', "names the partition gqu, which Slurm does not have"),
        ('[preflight]\npartition = "plain, gpu"\n', ""),
        ('[hook]\nskip_partitions = "gpu"\n', ""),
    ],
)  # fmt: skip
def test_names_that_slurm_does_not_have_are_told_with_the_nearest(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "berth.conf"
    path.write_text(text)
    found = [*unknown_names(load(path), ["gpu", "plain"], lambda *_: b"normal\nhigh\n")]
    assert (said in found[0]) if said else not found, found


def test_where_slurmdbd_does_not_answer_qos_alone_stay_unchecked(tmp_path: Path) -> None:
    def down(*_: str) -> bytes:
        raise SlurmError("sacctmgr failed: Unable to contact slurmdbd")

    path = tmp_path / "berth.conf"
    path.write_text('[hook]\nskip_partitions = "gppu"\n[sharing]\ntier_default = "qos=high:guaranteed"\n')
    (said,) = unknown_names(load(path), ["gpu", "plain"], down)
    assert "the partition gppu" in said
