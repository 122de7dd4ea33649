# SPDX-License-Identifier: Apache-2.0
"""The programs of a node in the deterministic world: real Prolog, Epilog and guard against a model of their node."""
