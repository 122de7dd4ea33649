# SPDX-License-Identifier: Apache-2.0
"""Lists of CPUs as Linux writes them, such as `0-7,16-23`."""

from collections.abc import Iterable


def parse_cpus(text: str) -> list[int]:
    """Returns the CPUs of a list, ascending.

    >>> parse_cpus("0-2,8")
    [0, 1, 2, 8]
    """
    cpus: set[int] = set()
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        cpus.update(range(int(first), int(last or first) + 1))
    return sorted(cpus)


def format_cpus(cpus: Iterable[int]) -> str:
    """Returns the shortest list of these CPUs.

    >>> format_cpus([0, 1, 2, 8])
    '0-2,8'
    """
    runs: list[list[int]] = []
    for cpu in sorted(cpus):
        if runs and cpu == runs[-1][1] + 1:
            runs[-1][1] = cpu
        else:
            runs.append([cpu, cpu])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)


def cpus_of_words(words: Iterable[int]) -> list[int]:
    """Returns the numbers of the set bits in 64-bit words, as NVML gives CPU and NUMA sets."""
    return [index * 64 + bit for index, word in enumerate(words) for bit in range(word.bit_length()) if word >> bit & 1]
