"""The test cluster on a fresh Debian machine."""
