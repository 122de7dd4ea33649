# SPDX-License-Identifier: Apache-2.0
"""The reply to the submit hook: a place now or later, or why the job is left to Slurm or refused."""
