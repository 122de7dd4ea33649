# SPDX-License-Identifier: Apache-2.0
"""Describes the machine: model, providers, graph, writers. Imports nothing else of Berth."""
