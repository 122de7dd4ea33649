"""NVIDIA's own programs and libraries, from Debian's packages, without a GPU."""
