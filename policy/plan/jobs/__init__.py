# SPDX-License-Identifier: Apache-2.0
"""The waiting jobs: the record of each, and the reader that makes it from Slurm's facts."""
