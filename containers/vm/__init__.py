# SPDX-License-Identifier: Apache-2.0
"""The test cluster on a fresh Debian machine."""
