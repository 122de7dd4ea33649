# SPDX-License-Identifier: Apache-2.0
"""Sources of a machine's topology."""
