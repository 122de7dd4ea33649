# SPDX-License-Identifier: Apache-2.0
"""What only benchmarks need: drawn clusters and jobs, and models of systems to compare with."""
