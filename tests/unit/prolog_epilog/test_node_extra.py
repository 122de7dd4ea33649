# SPDX-License-Identifier: Apache-2.0
"""What the node believes of a job's Extra, and what berth.conf may say."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from policy.formats import segment
from prolog_epilog.errors import ExtraError, NodeConfigError
from prolog_epilog.job import extra
from prolog_epilog.job.escape import escape, unescape
from prolog_epilog.job.extra import NodeBerth
from prolog_epilog.settings import config


@given(st.text(alphabet=st.characters(codec="utf-8")))
def test_what_was_escaped_comes_back(text: str) -> None:
    assert unescape(escape(text)) == text
    # A number of more than 20 digits is refused.
    assume(not (text.isascii() and text.isdigit() and len(text) > 20))
    assert segment.fields(segment.put("", {"key": text})) == {"key": unescape(escape(text))}


@pytest.mark.parametrize("text", ["%", "a%2", "%2g", "%ff", "ä"])
def test_what_nobody_escaped_is_refused(text: str) -> None:
    assert unescape(text) is None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[berth/1 nodes=n1 gpus=0,3]", NodeBerth(("n1",), (0, 3))),
        ("note[berth/1 nodes=n0,n1 gpus=5]", NodeBerth(("n0", "n1"), (5,))),
        ("[berth/1 nodes=n0%2Cn1 gpus=5]", NodeBerth(("n0", "n1"), (5,))),
        ("[berth/1 nodes=a,n%5B0-1,09-10%5D gpus=5]", NodeBerth(("a", "n0", "n1", "n09", "n10"), (5,))),
        ("[berth/1 nodes=n1 gpus=0 share=30 mem=12288 way=mps]", NodeBerth(("n1",), (0,), 30, 12288, "mps")),
        (
            "[berth/1 nodes=n1 gpus=0 share=77 asked_share=2 mem=61440 way=mps]",
            NodeBerth(("n1",), (0,), 77, 61_440, "mps", asked_share=2),
        ),
        ("[berth/1 nodes=n1 gpus=0 share=30 way=time]", NodeBerth(("n1",), (0,), 30, None, "time")),
        ("[berth/1 nodes=n1 gpus=0 colour=blue]", NodeBerth(("n1",), (0,))),
        (
            "[berth/1 nodes=n1 gpus=0 tier=opportunistic mem=900 way=time slope=0.08]",
            NodeBerth(("n1",), (0,), None, 900, "time", "opportunistic", 0.08),
        ),
        ("[berth/1 nodes=n1 gpus=0 tier=guaranteed]", NodeBerth(("n1",), (0,), None, None, "time", "guaranteed")),
        ("", None),
        ("GRES=gpu:g0:1(IDX:0)", None),
    ],
)
def test_a_berth_is_read(text: str, expected: NodeBerth | None) -> None:
    assert extra.read(text, "n1") == expected


@pytest.mark.parametrize(
    "text",
    [
        "[berth/1 nodes=n1 gpus=0][berth/1 nodes=n1 gpus=1]",
        "[berth/2 nodes=n1 gpus=0]",
        "[berth/1 nodes=n1 gpus=0] [berth/9 x]",
        "[berth/1 nodes=n2 gpus=0]",
        "[berth/1 nodes=n1]",
        "[berth/1 gpus=0]",
        "[berth/1 nodes=n1 gpus=]",
        "[berth/1 nodes=n1 gpus=0,0]",
        "[berth/1 nodes=n1 gpus=3,0]",
        "[berth/1 nodes=n1 gpus=64]",
        "[berth/1 nodes=n1 gpus=-1]",
        "[berth/1 nodes=n1 gpus=00]",
        "[berth/1 nodes=n1 gpus=0 gpus=1]",
        "[berth/1 nodes=$(reboot),n1 gpus=0]",
        "[berth/1 nodes=n1,%0A gpus=0]",
        "[berth/1 nodes=n1,n%5B1-2 gpus=0]",
        "[berth/1 nodes=n1,n%5B2-1%5D gpus=0]",
        "[berth/1 nodes=n1,n%5B1-2%5Dx gpus=0]",
        "[berth/1 nodes=n1,n%5B%5D gpus=0]",
        "[berth/1 nodes=n%5B1-1025%5D gpus=0]",
        "[berth/1 nodes=n%5B1-999999999%5D gpus=0]",
        "[berth/1 nodes=n1 gpus=0 share=0 way=mps]",
        "[berth/1 nodes=n1 gpus=0 share=101 way=mps]",
        "[berth/1 nodes=n1 gpus=0 share=30]",
        "[berth/1 nodes=n1 gpus=0 share=30 way=magic]",
        "[berth/1 nodes=n1 gpus=0 mem=12288 way=mps]",
        "[berth/1 nodes=n1 gpus=0 share=30 mem=99999999999999999 way=mps]",
        "[berth/1 nodes=n1 gpus=0 share=30 mem=0 way=mps]",
    ],
)
def test_a_berth_that_berth_does_not_write_is_refused_with_a_sentence(text: str) -> None:
    with pytest.raises(ExtraError, match=r"Extra .*requeue the job$"):
        extra.read(text, "n1")


@given(st.text(alphabet="[]berth/1 nodesgpuharw=0,3-%A5BD\n", max_size=80))
def test_no_text_does_more_than_be_refused(text: str) -> None:
    for words in (text, f"[berth/1 {text}]", f"[berth/1 nodes=n1 gpus=0 {text}]"):
        try:
            found = extra.read(words, "n1")
        except ExtraError:
            continue
        assert found is None or ("n1" in found.nodes and all(0 <= gpu < 64 for gpu in found.gpus))


def load(tmp_path: Path, text: str) -> config.NodeConfig:
    path = tmp_path / "berth.conf"
    path.write_text(text)
    return config.load(str(path))


def test_berth_conf_is_read(tmp_path: Path) -> None:
    found = load(
        tmp_path,
        '[hook]\nfail = "open"\n'
        '[node]\nchain_prolog = ["/etc/slurm/prolog.d/*"]\nmulti_user = true\nviolation = "requeue"\n',
    )

    assert found == config.NodeConfig(chain_prolog=("/etc/slurm/prolog.d/*",), multi_user=True, violation="requeue")
    assert load(tmp_path, "[hook]\n") == config.load(str(tmp_path / "nothing")) == config.NodeConfig()


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("chain_prolg = []", "no key chain_prolg; did you mean chain_prolog?"),
        ('chain_prolog = "/etc/x"', "is a list of paths from / on"),
        ('chain_epilog = ["x"]', "is a list of paths from / on"),
        ("chain_timeout = 0", "is at least 1, not 0"),
        ("chain_timeout = true", "is a whole number, not True"),
        ("multi_user = 1", "is true or false, not 1"),
        ('violation = "kill"', "is one of warn, terminate, requeue"),
        ('mps_control = "mps"', "is a path from / on"),
        ('inject_from = "/opt/a b"', "is a path without blanks and colons"),
        ('inject_from = "/opt/a:b"', "is a path without blanks and colons"),
        ('inject_from = "/opt/ä"', "is a path without blanks and colons"),
        ("zzz = 1", "it has chain_prolog"),
        ("= 1", "Invalid statement"),
    ],
)
def test_a_wrong_berth_conf_is_an_error_that_names_the_key(tmp_path: Path, line: str, says: str) -> None:
    with pytest.raises(NodeConfigError, match=r"berth\.conf: ") as caught:
        load(tmp_path, f"[node]\n{line}\n")
    assert says in str(caught.value)


def test_berth_conf_is_beside_slurms_own(tmp_path: Path) -> None:
    (tmp_path / "berth.conf").touch()

    assert config.find({"SLURM_CONF": f"{tmp_path}/slurm.conf"}) == f"{tmp_path}/berth.conf"
    assert config.find({"SLURM_CONF": f"{tmp_path}/cache/slurm.conf"}) == config.CONFIGLESS
    # A user could have got it into the environment of a slurmd that an admin started by hand.
    assert config.find({"SLURM_CONF": f"{tmp_path}/x/slurm.conf", "BERTH_CONF": "/tmp/x"}) == config.CONFIGLESS
