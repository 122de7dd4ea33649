# SPDX-License-Identifier: Apache-2.0
"""Output formats of a machine's topology."""
