# SPDX-License-Identifier: Apache-2.0
"""Findings from step times: what made one job slow (job.py), and how fast each GPU is (gpus.py), by votes.py."""
