# SPDX-License-Identifier: Apache-2.0
"""Limits by model in slurmdbd, and the commands that move them to licences and back."""

from policy.cli.doctor.model_limits import Limit, commands, limits

QOS = ["normal|||||||||", "big|gres/gpu:h100=8,cpu=64|||gres/gpu:h100=2,gres/gpu:a100=4|||||"]
ASSOCIATIONS = [
    "one|root||||||||",
    "one|lab|||gres/gpu:a100=16|||||",
    "one|lab|ada|gpu|||||gres/gpu:g0=1|",
    "one|lab|bob|gpu||||gres/gpu:a100=1||",
    "two|lab|||gres/gpu:a100=16|||||",
]


def found(what: str, cluster: str = "One") -> list[Limit]:
    lines = {"qos": QOS, "assoc": ASSOCIATIONS}

    def printed(*words: str) -> str:
        assert words[:3] == ("sacctmgr", "-nP", "show")
        return "\n".join(lines[words[3]] if words[3] == what else [])

    return list(limits(printed, cluster))


def test_a_limit_of_a_qos_moves_and_comes_back() -> None:
    assert commands(found("qos")) == [
        (
            "sacctmgr -i modify qos big set GrpTRES=license/berth_h100=8,gres/gpu:h100=-1"
            " MaxTRESPerJob=license/berth_h100=2,gres/gpu:h100=-1,license/berth_a100=4,gres/gpu:a100=-1"
        )
    ]
    assert commands(found("qos"), back=True)[0].endswith(
        "MaxTRESPerJob=gres/gpu:h100=2,license/berth_h100=-1,gres/gpu:a100=4,license/berth_a100=-1"
    )


def test_limits_of_accounts_and_users_name_their_cluster() -> None:
    assert commands(found("assoc")) == [
        "sacctmgr -i modify account set GrpTRES=license/berth_a100=16,gres/gpu:a100=-1 where name=lab cluster=one",
        (
            "sacctmgr -i modify user set MaxTRESPerJob=license/berth_a100=1,gres/gpu:a100=-1"
            " where name=bob account=lab cluster=one partition=gpu"
        ),
    ]
