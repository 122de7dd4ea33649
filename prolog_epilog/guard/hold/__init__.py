# SPDX-License-Identifier: Apache-2.0
"""The means by which the guard holds a guest back: its gate, the freezer, its memory, and its end."""
