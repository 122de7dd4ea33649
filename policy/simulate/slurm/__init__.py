# SPDX-License-Identifier: Apache-2.0
"""One model of Slurm: queue, main pass, backfill, ends; the policy that chooses places is plugged in."""
