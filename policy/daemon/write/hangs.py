# SPDX-License-Identifier: Apache-2.0
"""Logs each job that hangs once, and requeues it if its user wants that (`--on-hang=requeue`)."""

from collections.abc import Mapping

from policy.daemon.hear.still import Hang
from policy.daemon.write.failures import Failures
from policy.formats.errors import FormatError, NoAnswer, SlurmError
from policy.formats.plan_fields import ON_HANG
from policy.formats.slurm_facts import Reading
from policy.site import log
from policy.site.overview import hang_text


class Hangs:
    """The jobs that hang now."""

    def __init__(self, failures: Failures) -> None:
        self._failures = failures
        self._told: set[tuple[int, int | None]] = set()

    @property
    def counts(self) -> dict[str, int]:
        """Returns the count for `berth status`."""
        return {"hanging": len(self._told)} if self._told else {}

    def step(self, hangs: Mapping[int, Hang], reading: Reading) -> int:
        """Handles jobs that hang; called in each pass. Returns the number of jobs that were requeued."""
        requeued, now = 0, set()
        for job in reading.jobs if hangs else ():
            if hang := hangs.get(job.id):
                now.add((job.id, job.start))
                if (job.id, job.start) in self._told:
                    continue
                text = hang_text(hang._asdict(), reading.at)
                log.info(f"JobId={job.id} hangs: {text}", 665)
                if job.known.get(ON_HANG) == "requeue":
                    try:
                        requeued += self._failures.end_hung(job, text, reading, reading.at)
                    except NoAnswer:
                        raise  # the next pass tries again
                    except (FormatError, SlurmError) as problem:
                        log.error(f"JobId={job.id} hangs and could not be requeued: {problem}", 665)
        self._told = now
        return requeued
