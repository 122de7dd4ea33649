# SPDX-License-Identifier: Apache-2.0
"""Users' questions over TCP: what is told, and the port at which it is told."""
