# SPDX-License-Identifier: Apache-2.0
"""The past of jobs: how long they ran and how large they were."""
