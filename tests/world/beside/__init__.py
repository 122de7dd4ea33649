# SPDX-License-Identifier: Apache-2.0
"""The world's model of slurmctld beside a real slurmctld: the same scripts on both, compared step by step."""
