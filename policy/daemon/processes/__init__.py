# SPDX-License-Identifier: Apache-2.0
"""berthd's processes: how one is started beside it, watched, told of and ended."""
