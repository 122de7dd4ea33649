# SPDX-License-Identifier: Apache-2.0
"""Guests: opportunistic jobs that run on a seat beside the owner of a GPU."""
