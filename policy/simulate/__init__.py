"""Trying policies on recorded or drawn workloads, with the very code that berthd runs."""
