# SPDX-License-Identifier: Apache-2.0
"""The ledger: which job holds what, from when to when, and the changes that are planned to that."""
