# SPDX-License-Identifier: Apache-2.0
"""Limits and bills by GPU model, on a site without Berth and on the same site with it. `make test-hard`.

Without Berth a model is a GRES type (`gres/gpu:h100`), with it a licence (`license/berth_h100`): each request has to be
counted, billed, held and refused alike.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from containers.cluster import PREFIX
from tests.slurm.harness import Slurm, until
from tests.slurm.target import Container

CLUSTER = Path(__file__).resolve().parents[2] / "containers" / "cluster.py"
VERSIONS = os.environ.get("BERTH_TEST_VERSIONS", "24.11,26.05").split(",")
pytestmark = [pytest.mark.hard, pytest.mark.timeout(900)]

MODELS = {"n1": "v100", "n2": "h100", "n3": "a6000", "n4": "l40s"}

LIMITED = """
sed -i 's/^AccountingStorageTRES=.*/&,{tracked}/; s/^\\(Licenses=.*\\)/\\1{licenses}/' /etc/slurm/slurm.conf
sed -i 's|^PartitionName=gpu .*|& TRESBillingWeights="CPU=1,{h100}=10,{v100}=2"|' /etc/slurm/slurm.conf
echo AccountingStorageEnforce=limits,qos,associations >>/etc/slurm/slurm.conf
echo PriorityCalcPeriod=1 >>/etc/slurm/slurm.conf
"""

TYPED = """
sed -i 's/^NodeName=DEFAULT Gres=.*//' /etc/slurm/slurm.conf
sed -i -E 's/^NodeName=(n[0-9]) Feature=(\\w+)/NodeName=\\1 Feature=\\2 Gres=gpu:\\2:8/' /etc/slurm/slurm.conf
for pair in n1:v100 n2:h100 n3:a6000 n4:l40s; do
    sed -i -E "s/^NodeName=${pair%:*} Name=gpu /&Type=${pair#*:} /" /etc/slurm/gres.conf
done
"""

RESTART = """
svc slurmctld restart
for i in $(seq 300); do scontrol ping | grep -q UP && exit 0; sleep 0.1; done
exit 1
"""

LIMITS = """
sacctmgr -iQ add qos three set GrpTRES={h100}=3
sacctmgr -iQ add qos each set MaxTRESPerJob={h100}=2 Flags=DenyOnLimit
sacctmgr -iQ add qos user set MaxTRESPerUser={h100}=2
sacctmgr -iQ modify account research set GrpTRES={h100}=6
sacctmgr -iQ modify user carol set MaxTRESPerJob={h100}=1
sacctmgr -iQ modify user alice,bob,carol set QosLevel+=three,each,user
"""

CLOCK = "LD_PRELOAD=$(echo /usr/lib/*/faketime/libfaketimeMT.so.1) FAKETIME=+2h"
LATER = f"""
cat >/usr/local/sbin/slurmdbd <<END
#!/bin/sh
exec env {CLOCK} /usr/sbin/slurmdbd "\\$@"
END
chmod 755 /usr/local/sbin/slurmdbd; svc slurmdbd restart
"""
"""slurmdbd sums up an hour when it is over, and at its start all hours that are; sreport asks for no later one."""


class Site(NamedTuple):
    """One of the two, and what it calls a GPU of a model."""

    slurm: Slurm
    tres: str

    def said(self, *options: str, user: str = "alice") -> tuple[str, ...]:
        """What becomes of a job: what it holds and costs, or why it waits, or why it was refused."""
        done = self.slurm.sbatch("-t9", *options, body="exec sleep 600", user=user, check=False)
        if done.rc:
            return "refused", *re.findall(r"Batch job submission failed: (.*)", done.text)
        job = int(done.out.split()[-1])

        def settled() -> tuple[str, ...] | None:
            record = self.slurm.show(job)
            if record["JobState"] == "RUNNING":
                tres = dict(word.split("=", 1) for word in record["AllocTRES"].split(","))
                models = [
                    f"{model}={tres[name]}" for model in MODELS.values() if (name := f"{self.tres}{model}") in tres
                ]
                return "runs", f"gpu={tres.get('gres/gpu', '0')}", *models, f"billing={tres['billing']}"
            reason = record["Reason"]
            waits = reason.startswith(("QOS", "Assoc", "Max"))
            return ("waits", re.sub("GRES|License|Licenses", "MODEL", reason)) if waits else None

        return until(f"{' '.join(options)} to run, or to wait for a limit", settled, 60)

    def used(self) -> dict[str, int]:
        """GPU seconds of each model and user, as sacct lists the jobs."""
        words = ["sacct", "-nPXa", "-S", "now-1hour", "-o", "User,ElapsedRaw,AllocTRES"]
        found: dict[str, int] = defaultdict(int)
        for line in self.slurm.target.run(words, user="root", check=False).out.splitlines():
            user, seconds, text = line.split("|")
            tres = dict(word.split("=", 1) for word in text.split(",") if word)
            for model in MODELS.values():
                found[f"{user} {model}"] += int(seconds) * int(tres.get(f"{self.tres}{model}", 0))
        return {name: seconds for name, seconds in found.items() if seconds}

    def billed(self) -> dict[str, int]:
        """Seconds of each user's jobs, times what they are billed."""
        words = ["sacct", "-nPXa", "-S", "now-1hour", "-o", "User,ElapsedRaw,AllocTRES"]
        found: dict[str, int] = defaultdict(int)
        for line in self.slurm.target.run(words, user="root", check=False).out.splitlines():
            user, seconds, text = line.split("|")
            tres = dict(word.split("=", 1) for word in text.split(",") if word)
            found[user] += int(seconds) * int(tres.get("billing", 0))
        return {user: spent for user, spent in found.items() if spent}

    def shares(self) -> dict[str, tuple[int, float]]:
        """Usage and fair share of each user, by sshare."""
        text = self.slurm.target.run(["sshare", "-nPal", "-o", "User,RawUsage,FairShare"], user="root").out
        lines = (line.split("|") for line in text.splitlines())
        return {user: (int(usage), float(share)) for user, usage, share in lines if user and share}

    @property
    def database(self) -> Container:
        """Where slurmdbd runs."""
        return Container(f"{self.slurm.target.name.removesuffix('ctl')}dbd")

    def reported(self, report: str) -> list[list[str]]:
        """Lines of a report over these hours, in seconds, with the models by their names."""
        tres = ",".join(f"{self.tres}{model}" for model in MODELS.values())
        shell = f"export {CLOCK}; sreport -nP {report} start=$(date -d -4hours +%FT%T) end=now -t seconds -T {tres}"
        text = self.database.bash(shell, user="root", check=False).out
        return [line.split("|") for line in text.replace(self.tres, "").splitlines()]

    def end_all(self) -> None:
        """Cancel what is there."""
        self.slurm.target.bash("scancel -u alice; scancel -u bob; scancel -u carol", user="root")
        until("all to end", lambda: not self.slurm.target.run(["squeue", "-h"], user="root").out.strip() or None, 60)


def started(version: str, *, berth: bool) -> Site:
    """A cluster with accounting and limits by model."""
    words = [] if berth else ["--without-berth"]
    subprocess.run([sys.executable, CLUSTER, "up", "--slurm", version, "--profile", "accounting", *words], check=True)
    name = f"{PREFIX}{version.replace('.', '')}{'' if berth else '-plain'}"
    slurm = Slurm(version, Container(f"{name}-ctl"))
    tres = "license/berth_" if berth else "gres/gpu:"
    names = {model: f"{tres}{model}" for model in MODELS.values()}
    licenses = "".join(f",berth_{model}:8" for model in names) if berth else ""
    tracked = ",".join(names.values()).replace("/", "\\/")
    # A slurmd that still counts GPUs without a type would be drained.
    nodes = [] if berth else [Container(f"{name}-{node}") for node in MODELS]
    for node in nodes:
        node.run(["svc", "slurmd", "stop"], user="root")
    if not berth:
        slurm.target.bash(TYPED, user="root")
    slurm.target.bash(LIMITED.format(tracked=tracked, licenses=licenses, **names) + RESTART, user="root")
    if berth:
        slurm.target.bash("svc berthd restart", user="root")
    for node in nodes:
        node.run(["svc", "slurmd", "start"], user="root")
    idle = ["sinfo", "-h", "-N", "-t", "idle", "-p", "gpu"]
    until("the nodes", lambda: len(slurm.target.run(idle).out.strip().split("\n")) == len(MODELS) or None, 60)
    until("the models in slurmdbd", lambda: "h100" in slurm.target.run(["sacctmgr", "-n", "show", "tres"]).out or None)
    slurm.target.bash(LIMITS.format(**names), user="root")
    return Site(slurm, tres)


@pytest.fixture(scope="module", params=VERSIONS)
def sites(request: pytest.FixtureRequest) -> Iterator[tuple[Site, Site]]:
    version = str(request.param)
    try:
        yield started(version, berth=False), started(version, berth=True)
    finally:
        for words in ([], ["--without-berth"]):
            subprocess.run([sys.executable, CLUSTER, "down", "--slurm", version, *words], check=True)


@pytest.fixture(autouse=True)
def none_left(sites: tuple[Site, Site]) -> Iterator[None]:
    """Ends what a test that fails would leave to the next ones' bills."""
    yield
    for site in sites:
        site.end_all()


CASES = (
    # Counted and billed, whether the model is named or not.
    [("--gpus=h100:2 -n1",)],
    [("--gres=gpu:v100:3",), ("-w n2 --gpus=2",), ("-w n3 --gpus-per-node=2",)],
    [("-n2 -N2 --gpus-per-node=1 -w n1,n2",)],
    [("-n2 --gpus=h100:2 --gpus-per-task=1",)],
    # Held by a limit of the group, of the user, of the account; refused where the QOS denies.
    [("--qos=three --gpus=h100:2",), ("--qos=three --gpus=h100:2", "bob"), ("--qos=three --gpus=h100:1", "bob")],
    [("--qos=each --gpus=h100:3",), ("--qos=each --gpus=h100:2",)],
    [("--qos=user --gpus=h100:2",), ("--qos=user --gpus=h100:1",), ("--qos=user --gpus=h100:1", "bob")],
    [("--gpus=h100:6",), ("--gpus=h100:1", "bob"), ("--gpus=v100:1", "bob")],
    [("--gpus=h100:1", "carol"), ("--gpus=v100:2", "carol")],
)
"""Jobs that are sent one after the other, and are there together."""


def test_a_model_counts_as_on_a_site_without_berth(sites: tuple[Site, Site]) -> None:
    plain, berth = sites
    table = []
    for jobs in CASES:
        for options, *user in jobs:
            said = [site.said(*options.split(), user=(user or ["alice"])[0]) for site in (plain, berth)]
            table.append((f"{(user or ['alice'])[0]}: {options}", *map(" ".join, said)))
        for site in sites:
            site.end_all()

    print("\n".join(" | ".join(row) for row in table))
    # A table in which nothing was held and nothing refused would compare nothing.
    assert {row[1].split()[0] for row in table} == {"runs", "waits", "refused"}
    assert [row for row in table if row[1] != row[2]] == []


def test_the_database_tells_models_apart(sites: tuple[Site, Site]) -> None:
    held = []
    for site in sites:
        job = site.slurm.submit("--gpus=h100:2", body="true")
        site.slurm.finish(job)
        words = ["sacct", "-nPX", "-j", str(job), "-o", "AllocTRES"]
        text = until("the job in sacct", lambda w=words, s=site: s.slurm.target.run(w, user="root").out.strip() or None)  # type: ignore[misc]
        held.append(dict(word.split("=", 1) for word in text.split(",")).get(f"{site.tres}h100"))
    assert held == ["2", "2"]


def test_doctor_knows_which_limits_bite(sites: tuple[Site, Site]) -> None:
    _, berth = sites

    def check() -> str:
        text = berth.slurm.target.run(["berth", "doctor"], user="root", check=False).text
        return next(line for line in text.split("\n") if "limits by model" in line)

    assert check().startswith("ok")
    # As they stood before Berth came; the TRES is one that slurmdbd knows.
    berth.slurm.target.bash(
        "sed -i 's|^AccountingStorageTRES=.*|&,gres/gpu:h100|' /etc/slurm/slurm.conf" + RESTART, user="root"
    )
    assert "replace gres/gpu:h100 by license/berth_h100" in check()


def test_reports_add_models_up_as_on_a_site_without_berth(sites: tuple[Site, Site]) -> None:
    for site in sites:
        for user, options in (("alice", "--gpus=h100:2"), ("bob", "--gpus=h100:1"), ("bob", "--gpus=v100:3")):
            site.slurm.finish(site.slurm.submit(*options.split(), body="sleep 3", user=user))
    for site in sites:
        site.database.bash(LATER, user="root")

        def summed_up(s: Site = site) -> dict[str, int] | None:
            lines = s.reported("user TopUsage")
            told = {f"{user} {model}": int(spent) for _, user, _, _, model, spent in lines if spent != "0"}
            return told if told and told == s.used() else None

        used = until("slurmdbd to have summed up what sacct lists", summed_up)
        assert {line[1]: int(line[2]) for line in site.reported("cluster Utilization")} == {
            model: sum(seconds for who, seconds in used.items() if who.endswith(f" {model}"))
            for model in MODELS.values()
        }


def test_fair_share_weighs_models_as_on_a_site_without_berth(sites: tuple[Site, Site]) -> None:
    orders = []
    jobs = {"alice": "--gpus=h100:1", "bob": "--gpus=v100:1", "carol": "-n1"}
    for site in sites:
        for user, options in jobs.items():
            site.slurm.finish(site.slurm.submit(*options.split(), body="sleep 20", user=user))

        def settled(s: Site = site) -> dict[str, tuple[int, float]] | None:
            found, billed = s.shares(), s.billed()
            # slurmctld adds usage up each minute, to the second of its own clock, and lets it decay.
            same = all(abs(found[user][0] - spent) <= 60 + spent // 20 for user, spent in billed.items())
            # It weighs users by it a moment later.
            used_most = sorted(jobs, key=lambda user: -found[user][0])
            weighed = sorted(jobs, key=lambda user: found[user][1]) == used_most
            return found if same and weighed and set(billed) <= set(found) else None

        found = until("the usage of each user to be what sacct bills, and to be weighed", settled, 150)
        orders.append(sorted(jobs, key=lambda user: found[user][1]))
        print(f"{site.tres}: {found}, billed {site.billed()}")
    assert orders[0] == orders[1]


def test_what_was_asked_is_read_in_scontrol_squeue_and_sacct(sites: tuple[Site, Site]) -> None:
    _, berth = sites
    target = berth.slurm.target
    job = berth.slurm.submit("-n1", "--gpus=2", "--cpus-per-gpu=3", body="sleep 5")
    asked = "asked=tres_per_job:gres/gpu:2;cpus_per_tres:gres/gpu:3"

    assert asked in berth.slurm.show(job)["AdminComment"]
    assert asked in target.run(["squeue", "-h", "-j", str(job), "-O", "admin_comment:400"], user="root").out
    berth.slurm.finish(job)
    words = ["sacct", "-nPX", "-j", str(job), "-o", "AdminComment"]
    text = until("the job in sacct", lambda: target.run(words, user="root").out.strip() or None)
    assert asked in text
