"""Tests of policy.cli.migrate."""
