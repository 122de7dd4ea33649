"""Checks the advice for each way of working of a site, and the order of the steps."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from policy.cli.migrate.advice import model_users, notes, steps, steps_back
from policy.cli.migrate.rungs import RUNGS, Rung, Texts
from policy.cli.migrate.site import Files, SlurmSays, file_system, read_files, sharing_jobs
from policy.formats.slurm_facts import Reservation

CONF = "ClusterName=one\nSlurmctldHost=a(10.0.0.1)\nSlurmctldHost=b\nNodeName=n[1-4] Gres=gpu:a100:8\n"
SAYS = SlurmSays("25.11.2", {"n1": "25.11.2", "n2": "24.11.5"}, {}, ("one", "two"), accounting=True)


def files(conf: str = CONF, **more: str) -> Files:
    folder = Path("/etc/slurm")
    paths = (folder / "gres.conf", folder / "plugstack.conf", folder / "berth.conf")
    return Files((folder / "slurm.conf",), *paths, Texts((conf,)), more.get("lua", ""))


def told(conf: str = CONF, kind: str = "ext4", rung: Rung = "exact", says: SlurmSays = SAYS, **more: str) -> str:
    return "\n".join(notes(files(conf, **more), says, kind, rung, ["n1"]))


@pytest.mark.parametrize(
    ("conf", "kind", "part"),
    [
        (
            CONF,
            "ext4",
            "Copied configuration: /etc/slurm is on ext4; copy the changed files to a, b, all compute nodes",
        ),
        (CONF, "nfs4", "Shared configuration: /etc/slurm is on nfs4; the files have to be written once"),
        (CONF + "SlurmctldParameters=enable_configless\n", "ext4", "Configless: write the files on a, b only"),
        (CONF, "ext4", "Backup controllers: a, b each need the plugins, berth.conf and berthd"),
        (CONF, "ext4", "slurmd 24.11 on n2, older than slurmctld 25.11"),
        (CONF, "ext4", "Clusters one, two share slurmdbd: only one changes"),
        (CONF, "ext4", "Login nodes need spank_berth.so and cli_filter_berth.so before"),
        (CONF, "ext4", "Mixed cluster: n2, n3, n4 keep their layout"),
        (CONF + "JobDefaults=DefCpuPerGPU=4\n", "ext4", "DefCpuPerGPU is set"),
    ],
)
def test_each_way_of_working_has_its_line(conf: str, kind: str, part: str) -> None:
    assert part in told(conf, kind)


def test_a_job_submit_lua_that_reads_gres_of_changes_is_named() -> None:
    lua = 'function slurm_job_modify(d, r) if d.gres == "gpu:a100:2" then end end'

    found = told(CONF + "JobSubmitPlugins=lua\n", lua=lua)

    assert "job_submit.lua names gpu:a100" in found
    assert "slurm_job_modify" in found


def test_a_reservation_that_counts_gpus_is_told_how_it_is_written() -> None:
    def found(*gpus: tuple[str, int], nodes: tuple[str, ...] = ("n1", "n3")) -> str:
        return told(says=replace(SAYS, reservations=(Reservation(0, 9, nodes, "r", gpus=gpus),)))

    assert "reservation r counts GPUs of n1: " in found(("", 4))
    assert "reservation r counts GPUs of n1: " in found(("", 4), ("a100", 4))
    assert "reservation" not in found(("", 2), ("g0", 1), ("g1", 1))
    assert "reservation" not in found(("", 4), nodes=("n3",))
    assert "reservation" not in found()


def test_what_slurm_does_not_tell_is_said() -> None:
    assert "Slurm does not answer here" in told(says=SlurmSays())


@pytest.mark.parametrize(("rung", "nodes", "kept"), [("exact", ["n1"], "n[2-4]"), ("sharing", [], "n[1-4]")])
def test_no_job_starts_where_a_slurmd_is_away(rung: Rung, nodes: list[str], kept: str) -> None:
    commands = [step.command for step in steps(rung, nodes, files(), ())]

    place = commands.index("systemctl restart slurmd")
    assert commands[place - 2 : place + 2] == [
        f"berth migrate drain {kept}",
        f"squeue -w {kept} -t CF",
        "systemctl restart slurmd",
        f"berth migrate resume {kept}",
    ]


@pytest.mark.parametrize("back", [False, True])
@pytest.mark.parametrize("rung", ["advise", "exact", "sharing"])
def test_configless_nodes_fetch_the_files_when_all_daemons_have_started(rung: Rung, *, back: bool) -> None:
    site = files(CONF + "SlurmctldParameters=enable_configless\n")
    found = list(steps_back(rung, "observe", ["n1"], site, ()) if back else steps(rung, ["n1"], site, ()))
    commands = [step.command for step in found]

    starts = [place for place, command in enumerate(commands) if re.search(r"(re)?start slurm(ctl)?d$", command)]
    assert commands.index("scontrol reconfigure") > max(starts)
    copied = "Copy berth.conf to all compute and login nodes, and the other changed files to b; remove there"
    assert any(step.text.startswith(copied) for step in found)
    assert "scontrol reconfigure" not in [step.command for step in steps(rung, ["n1"], files(), ())]


@pytest.mark.parametrize("rung", RUNGS)
def test_no_step_changes_a_nodes_state_whatever_it_is(rung: Rung) -> None:
    up = steps(rung, ["n1"], files(), ())
    back = steps_back(rung, "advise", ["n1"], files(), ())

    assert [step.command for step in (*up, *back) if "State=" in step.command] == []


def test_nodes_are_drained_before_and_resumed_after_the_files_are_written() -> None:
    texts = [f"{step.text} {step.command}" for step in steps("exact", ["n1"], files(), ())]
    at = {word: next(place for place, text in enumerate(texts) if word in text) for word in (
        "migrate drain n1", "squeue -w n1", "berth migrate apply n1", "stop slurmd", "restart slurmctld",
        "start slurmd", "on all other nodes", "restart berthd", "migrate jobs", "migrate resume n1", "berth doctor",
    )}  # fmt: skip

    assert list(at.values()) == sorted(at.values())
    assert "first b, then a" in texts[at["restart slurmctld"]]


@pytest.mark.parametrize(("came_from", "gives_back"), [("advise", True), ("exact", False)])
def test_pins_are_given_back_before_their_types_go(came_from: str, *, gives_back: bool) -> None:
    commands = [step.command for step in steps_back("exact", came_from, ["n1"], files(), ["sacctmgr x"])]

    assert ("berth release --all" in commands) == gives_back
    if gives_back:
        assert commands.index("berth release --all") < commands.index("berth migrate undo")
    assert commands.index("berth migrate undo") < commands.index("sacctmgr x")


def line(job: str, allocated: str = "", by_node: str = "", by_job: str = "") -> str:
    return f"{job:20}{allocated:1000}{by_node:1000}{by_job}"


@pytest.mark.parametrize(
    ("told", "shares"),
    [
        (line("7", by_node="gres/gpu:g0:1,gres/seat:g0:1"), False),
        (line("7", by_node="gres/seat:g0:1", by_job="gres/gpu:g0:1"), False),
        (line("7", by_node="gres/shard:g0:30"), True),
        (line("7", "cpu=1,gres/shard:g0=30"), True),
        (line("7", by_node="gres/seat:g0:1"), True),
    ],
)
def test_who_shares_is_seen_on_sites_that_track_no_shards(told: str, *, shares: bool) -> None:
    def printed(*words: str) -> bytes:
        assert words[:8] == ("squeue", "-h", "-a", "-w", "n1,n2", "-t", "all", "-O")
        return told.encode()

    assert sharing_jobs(printed, "all", ["n1", "n2"]) == (["7"] if shares else [])


def test_nodes_lose_their_shards_when_slurm_has_forgotten_who_had_them() -> None:
    commands = [step.command for step in steps_back("exact", "exact", ["n1"], files(), (), forget=True)]

    assert commands.index("squeue -w n1 -t all") < commands.index("berth migrate undo")


def test_users_who_name_a_model_are_counted() -> None:
    lines = [
        "ada|sbatch --gres=gpu:a100:2 x.sh", "ada|srun --gpus=a100:1 y", "bob|sbatch --gpus-per-node a100:4 z",
        "bob|sbatch --gpus=2 a100.sh", "bob|sbatch --gres=gpu:a1000:2 x",
    ]  # fmt: skip

    assert model_users(lines, ["a100"]) == {"a100": ["ada (2)", "bob (1)"]}


def test_included_files_are_read_each_once(tmp_path: Path) -> None:
    (tmp_path / "slurm.conf").write_text("ClusterName=One\nInclude nodes-%c.conf\ninclude slurm.conf\n")
    (tmp_path / "nodes-one.conf").write_text("NodeName=n1 Gres=gpu:2\n")

    found = read_files(tmp_path / "slurm.conf", tmp_path / "berth.conf")

    assert [path.name for path in found.slurm_conf] == ["slurm.conf", "nodes-one.conf"]
    assert list(found.texts.nodes) == ["n1"]


def test_the_file_system_of_a_folder_is_that_of_the_nearest_mount(tmp_path: Path) -> None:
    mounts = tmp_path / "mounts"
    mounts.write_text(f"/dev/sda / ext4 rw 0 0\nhost:/x {tmp_path} nfs4 rw 0 0\n")

    assert file_system(tmp_path / "etc", mounts) == "nfs4"
    assert file_system(Path("/elsewhere"), mounts) == "ext4"
