# SPDX-License-Identifier: Apache-2.0
"""The whole: berthd, slurmctld and the nodes' programs in one script. See docs/develop/world.md."""
