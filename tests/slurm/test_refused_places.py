# SPDX-License-Identifier: Apache-2.0
"""A job that Slurm refuses only because of what Berth wrote into it goes through without."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from .conftest import OWN
from .harness import Slurm, until

MANY_CPUS = 's/(key, getattr/(key, key == "min_cpus" and reply.min_cpus and 40 or getattr/'
"""A change of policy/formats/reply.py: 40 CPUs wherever the reply has some."""
RESTART = """
svc berthd restart
for i in $(seq 300); do berth status 2>/dev/null | grep -q snapshot_age && exit 0; sleep 0.1; done
exit 1
"""


@pytest.fixture
def wrong(slurm: Slurm) -> Iterator[None]:
    """A berthd that asks for more CPUs than there are, wherever GPUs have CPUs."""
    if OWN:
        pytest.skip("it breaks the Berth that is installed")
    file = slurm.target.bash(
        "echo /opt/berth/lib/python3*/site-packages/policy/formats/reply.py", user="root"
    ).out.strip()
    slurm.settle()
    slurm.target.bash(f"cp {file} /tmp/reply.py; sed -i '{MANY_CPUS}' {file}", user="root")
    try:
        assert slurm.target.bash(f"cmp -s {file} /tmp/reply.py", user="root", check=False).rc == 1
        slurm.target.bash(RESTART, user="root")
        yield
    finally:
        slurm.target.bash(f"cp /tmp/reply.py {file}{RESTART}", user="root")


@pytest.mark.usefixtures("wrong")
def test_what_slurm_refuses_for_its_place_goes_through_the_next_time(slurm: Slurm) -> None:
    asked = ["--gpus=2", "-n2", "--cpus-per-gpu=2"]
    first = slurm.sbatch(*asked, body="true", check=False)
    assert "Requested node configuration is not available" in first.err, first.text

    job = until(
        "the same job to go through", lambda: slurm.sbatch(*asked, body="true", check=False).out.strip() or None, 60
    )

    record = slurm.show(int(job.split()[-1]))
    assert "state=passed" in record["AdminComment"]
    assert record.get("ReqNodeList", "(null)") == "(null)"
    # Another job of this user is placed as ever.
    assert "state=placed" in slurm.comment(slurm.submit("--gpus=1", "-H", body="true"))
