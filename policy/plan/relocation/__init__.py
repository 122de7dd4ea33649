# SPDX-License-Identifier: Apache-2.0
"""Relocation of running jobs that their users marked as movable: the choice of jobs, and the steps of a move."""
