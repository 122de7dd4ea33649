# SPDX-License-Identifier: Apache-2.0
"""berthd: one process answers job_submit, another one plans."""
