"""Describes the machine: model, providers, graph, writers. Imports nothing else of Berth."""
