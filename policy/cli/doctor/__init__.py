# SPDX-License-Identifier: Apache-2.0
"""The command `berth doctor`: checks a controller, a node, a release of Slurm, or a site before an upgrade."""
