# SPDX-License-Identifier: Apache-2.0
"""The planner's data that do not come from slurmctld: topology, scores, profiles and limits."""
