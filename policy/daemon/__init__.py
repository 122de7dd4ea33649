# SPDX-License-Identifier: Apache-2.0
"""berthd: one process answers, one plans."""
