# SPDX-License-Identifier: Apache-2.0
"""`berth web` from its words to its server: what it listens on, whom it must know, what it knows of the nodes."""

import socket
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from policy.cli.main import main
from policy.formats.errors import ConfigError
from policy.serve.web import command
from policy.serve.web.model import WebJob
from policy.serve.web.server import WebServer
from policy.site.config import load
from policy.site.overview import OverviewFile
from policy.site.privacy import SlurmRules
from policy.slurm.by_command.command import CommandGateway
from policy.slurm.by_command.recorded import recorded_gateway
from tests.unit.policy_world import machine
from topology import files, scores
from topology.scores import Score

RECORDED = f"recorded:{Path(__file__).parents[3]}/data/slurm-26.05"
LEAVES = "SwitchName=leaf1 Nodes=n1\nSwitchName=leaf2 Nodes=n2\nSwitchName=pod Switches=leaf[1-2]\n"


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A site with two nodes, a tree of switches and a score for each GPU of the first."""
    (tmp_path / "topology").mkdir()
    for name, kind in (("n1", "h100"), ("n2", "v100")):
        files.dump(machine(name, kind), tmp_path / "topology" / f"{name}.json")
    (tmp_path / "leaves.conf").write_text(LEAVES)
    at = "2026-11-20T10:00:00Z"
    table = [Score("n1", gpu, f"GPU-n1-{gpu}", "compute", 1.0 + gpu / 100, 3, 0.01, at, 0.02) for gpu in range(8)]
    (tmp_path / "scores.csv").write_text(scores.encode([*table, replace(table[0], node="n2", uuid="GPU-n2-0")]))
    conf = tmp_path / "berth.conf"
    conf.write_text(
        f'[berthd]\ntopology_dir = "{tmp_path}/topology"\nfabric = "{tmp_path}/leaves.conf"\n'
        f'scores = "{tmp_path}/scores.csv"\n'
    )
    monkeypatch.setenv("BERTH_CONF", str(conf))
    return conf


@pytest.fixture(autouse=True)
def niceness(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """What was added to the niceness of the process, which goes on here after the page has ended."""
    added: list[int] = []
    monkeypatch.setattr("os.nice", added.append)
    return added


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[WebServer]:
    """The servers that began to serve; each ends at once."""
    servers: list[WebServer] = []

    def serve(server: WebServer) -> None:
        servers.append(server)

    monkeypatch.setattr(WebServer, "serve_forever", serve)
    return servers


def test_it_tells_its_address_serves_and_ends(
    site: Path, opened: list[WebServer], niceness: list[int], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["web", "--port", "0", "--gateway", RECORDED]) == 0

    [server] = opened
    assert niceness == [10], "berthd goes first"
    host, port = server.server_address[:2]
    assert (host, capsys.readouterr().out) == ("127.0.0.1", f"berth web: http://127.0.0.1:{port}/\n")
    assert server.stopped.is_set()
    assert not server.access.must_be_known


def test_options_that_are_none_cost_no_gateway(site: Path, opened: list[WebServer]) -> None:
    def gateway() -> CommandGateway:
        raise AssertionError("opened each half minute for nothing")

    config, rules = replace(load(site), web_options="--every 0.1"), SlurmRules(dict, 0)
    with pytest.raises(ConfigError, match=r"\[web\] options of berth.conf: --every is at least 1 s"):
        command.serve_page(config, OverviewFile(site), gateway, rules)
    assert opened == []


def test_decisions_and_slurms_rules_have_a_gateway_each(
    site: Path, opened: list[WebServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    gateways: list[CommandGateway] = []
    asked: list[object] = []

    def gateway(_: str) -> CommandGateway:
        gateways.append(recorded_gateway(Path(RECORDED.partition(":")[2])))
        return gateways[-1]

    def config(gateway: CommandGateway) -> dict[str, str]:
        asked.append(gateway)
        return {}

    monkeypatch.setattr("policy.slurm.gateways.open_gateway", gateway)
    monkeypatch.setattr(CommandGateway, "config", config)
    monkeypatch.setattr(CommandGateway, "job", lambda gateway, _: asked.append(gateway))
    assert main(["web", "--port", "0"]) == 0
    source = opened[0].exhibit.source
    source.visibility()
    with suppress(AttributeError):
        source.decision(WebJob("7", "RUNNING", "a", 1, "", "", "", 1, 0.0))

    # A gateway serves one thread at a time.
    assert len(gateways) == 2
    assert set(map(id, asked)) == set(map(id, gateways))


def test_other_hosts_are_served_where_viewers_are_known(site: Path, opened: list[WebServer], tmp_path: Path) -> None:
    tokens = tmp_path / "tokens"
    tokens.write_text("0123456789abcdef root\n")
    tokens.chmod(0o600)
    words = ["web", "--port", "0", "--bind", "0.0.0.0", "--gateway", RECORDED]  # noqa: S104

    assert main(words) != 0
    for more in (["--tokens", str(tokens)], ["--trust-proxy", "192.0.2.7"]):
        assert main([*words, *more]) == 0
    assert [server.access.must_be_known for server in opened] == [True] * 2


def test_a_port_in_use_and_an_address_that_is_none_are_named(
    site: Path, opened: list[WebServer], capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert main(["web", "--port", str(port), "--gateway", RECORDED]) != 0
    assert f"cannot listen on 127.0.0.1 port {port}: " in capsys.readouterr().err

    assert main(["web", "--bind", "ctl1", "--gateway", RECORDED]) != 0
    assert "take IP addresses" in capsys.readouterr().err
    assert opened == []


def test_nodes_have_their_groups_and_whole_rows_of_scores(site: Path) -> None:
    room = command._known(load(site), ["n1", "n2", "n9"])

    first, second, unknown = room.nodes
    assert (first.gpus, first.leaf, first.pod, first.model) == (8, "leaf1", "pod", "h100")
    assert first.scores == [round(1.0 + gpu / 100, 3) for gpu in range(8)]
    assert (second.leaf, list(second.scores)) == ("leaf2", []), "of one GPU alone nothing is shown"
    assert (unknown.gpus, unknown.leaf) == (0, "")
    assert len(room.links["h100"]) == 28


def test_a_score_table_that_cannot_be_read_costs_the_scores_alone(
    site: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "scores.csv").write_text("rubbish\n")

    room = command._known(load(site), ["n1"])

    assert (room.nodes[0].leaf, list(room.nodes[0].scores)) == ("leaf1", [])
    assert "the page shows the nodes without it" in capsys.readouterr().err
