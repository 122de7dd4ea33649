# SPDX-License-Identifier: Apache-2.0
"""The policy engine: request, cluster, placement and plan are pure; slurm, daemon and cli stand on top of them."""
