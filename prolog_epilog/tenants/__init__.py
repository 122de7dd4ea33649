# SPDX-License-Identifier: Apache-2.0
"""The node's records on jobs that share its GPUs: their share files, and the users that are kept apart."""
