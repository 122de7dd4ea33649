# SPDX-License-Identifier: Apache-2.0
"""A campaign of seeded faults on the real test cluster, with invariants after each."""
