"""NVIDIA's own programs and Prometheus, from Debian's packages, without a GPU."""
