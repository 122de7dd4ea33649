# SPDX-License-Identifier: Apache-2.0
"""What step times tell: of one job what made it slow (job.py), of each GPU how fast it is (gpus.py), by votes.py."""
