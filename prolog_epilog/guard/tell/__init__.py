# SPDX-License-Identifier: Apache-2.0
"""The guard's messages to berthd."""
