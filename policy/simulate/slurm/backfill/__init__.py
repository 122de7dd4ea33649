"""Backfill: which later jobs may start now without delaying the planned ones."""
