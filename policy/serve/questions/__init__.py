# SPDX-License-Identifier: Apache-2.0
"""Users' questions: their answers, and the sockets at which they are asked."""
