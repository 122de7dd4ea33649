# SPDX-License-Identifier: Apache-2.0
"""Reports on a cluster's finished GPU jobs, after Philly's study: waits, places, use, ends and tries."""
