# SPDX-License-Identifier: Apache-2.0
"""The commands on jobs that wait or run, for their users."""
