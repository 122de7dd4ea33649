# SPDX-License-Identifier: Apache-2.0
"""The nodes of the simulated cluster: what is held on them, and where Slurm puts a job."""
