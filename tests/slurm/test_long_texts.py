# SPDX-License-Identifier: Apache-2.0
"""Long texts in jobs: Berth's own part stays short, and reading a long text delays no other job."""

from __future__ import annotations

import statistics

from policy.formats import segment as segments

from .harness import Slurm, until
from .scripted import place, scripted

LONGEST = 1_024


def test_a_long_extra_leaves_the_job_to_slurm_and_stays_as_it_is(slurm: Slurm) -> None:
    slurm.settle()
    own = "x" * 1_000
    done = slurm.sbatch(f"--extra={own}", "--gpus=1", "-H", body="true", check=False)
    assert done.rc == 0, done.text
    job = int(done.out.split()[-1])

    def passed() -> dict[str, str] | None:
        # On a slow machine berthd answers "later", and looks at the job in its next pass.
        segment = segments.fields(slurm.comment(job)) or {}
        return segment if segment.get("state") == "passed" else None

    segment = until(lambda: f"job {job} to be left to Slurm: {slurm.comment(job)}", passed)
    record = slurm.show(job)
    assert (record["Extra"], record.get("ReqNodeList", "(null)")) == (own, "(null)")
    assert "a shorter --extra would do" in segment["why"]


def test_the_plugin_does_not_rely_on_berthd_for_it(slurm: Slurm) -> None:
    with scripted(slurm, place("n1", "3", "tres_per_job:gres/gpu:1")):
        long = [f"--extra={'x' * 1_000}", "--gpus=1", "--gpu-tier=exclusive"]
        done = slurm.sbatch(*long, "-H", body="true", check=False)
        assert (done.rc, "longer than Slurm takes" in done.text) == (0, True), done.text
        short = slurm.submit("--extra=mine", "--gpus=1", "-H", body="true")
    record = slurm.show(short)
    assert record["Extra"] == "mine[berth/1 nodes=n1 gpus=3]"
    assert len(record["Extra"]) <= LONGEST


def test_a_job_whose_extra_is_made_long_later_is_started_all_the_same(slurm: Slurm) -> None:
    """berthd cannot write the place of a task then: Slurm chooses."""
    slurm.settle()
    array = slurm.submit("--gpus=1", "--array=1-2", "-H", body="true")
    slurm.target.run(["scontrol", "update", f"JobId={array}", f"Extra={'x' * 1_010}"], user="root")
    slurm.target.run(["scontrol", "release", str(array)], user="alice")
    slurm.finish(array)


LINES = 524_000
"""Of eight bytes: four megabytes, as long as Slurm takes a script by default."""
WHILE = """
sbatch() { command timeout 100 sbatch -o /dev/null -H "$@" >/dev/null; }
now() { date +%s%N; }
export -f sbatch
setpriv --reuid=alice --regid=alice --init-groups bash -c "sbatch $1 $2" & long=$!
while kill -0 $long 2>/dev/null; do
    begun=$(now)
    setpriv --reuid=bob --regid=bob --init-groups bash -c "sbatch -p plain --wrap true" || exit 1
    echo $(($(now) - begun))
done
wait $long
"""


def test_a_long_script_holds_nobody_up(slurm: Slurm) -> None:
    """Another user's submission waits no longer than beside the same script in a partition that Berth skips."""
    big = f"{slurm.shared}/big.sh"
    slurm.target.bash(f"(echo '#!/bin/bash'; yes '#SBATCH' | head -{LINES}; echo true) >{big}", user="alice")
    slurm.settle()
    longest: dict[str, list[float]] = {"-p plain": [], "--gpus=1 --retry=1": []}
    for _ in range(3):
        for options, waits in longest.items():
            done = slurm.target.run(["bash", "-s", "--", options, big], user="root", stdin=WHILE)
            waits.append(max(map(float, done.out.split())))
            for user in ("alice", "bob"):
                slurm.target.run(["scancel", "-u", user], user="root")
    skipped, berth = (statistics.median(waits) for waits in longest.values())
    assert berth < 4 * skipped, longest
