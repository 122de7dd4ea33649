"""What comes out of a simulation: tables for people, files for programs, a page with pictures."""
