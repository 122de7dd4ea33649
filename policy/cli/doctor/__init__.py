# SPDX-License-Identifier: Apache-2.0
"""The command `berth doctor`: what a site lacks, on the controller, on a node, and before an upgrade."""
