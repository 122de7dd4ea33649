# SPDX-License-Identifier: Apache-2.0
"""The seats of a node: each GPU with its owner and its guest, handled ten times a second."""
