# SPDX-License-Identifier: Apache-2.0
"""PAL's model of a cluster, in which every job may move at each round of six minutes."""
