# SPDX-License-Identifier: Apache-2.0
"""The Dockerized Slurm test cluster."""
