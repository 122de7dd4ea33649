"""Reads the tables of berth.conf that nodes use."""
