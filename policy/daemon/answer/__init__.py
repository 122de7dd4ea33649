# SPDX-License-Identifier: Apache-2.0
"""The answering process: it answers the hook within milliseconds, from the last snapshot."""
