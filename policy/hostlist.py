"""Host lists and lists of GPUs as Slurm writes them."""

from policy.errors import FormatError
from topology import hostlist
from topology.errors import HostlistError


def expand(text: str) -> tuple[str, ...]:
    """The names in a host list, in its order; a FormatError where it is none.

    >>> expand("a,n[01-03,7]")
    ('a', 'n01', 'n02', 'n03', 'n7')
    """
    try:
        return hostlist.expand(text)
    except HostlistError as problem:
        raise FormatError(str(problem)) from None


def fold_numbers(numbers: tuple[int, ...]) -> str:
    """Ascending numbers with runs of three or more folded: `0-3,5,6`."""
    pieces: list[str] = []
    start = 0
    for place in range(1, len(numbers) + 1):
        if place < len(numbers) and numbers[place] == numbers[place - 1] + 1:
            continue
        run = numbers[start:place]
        pieces += [f"{run[0]}-{run[-1]}"] if len(run) > 2 else [str(number) for number in run]
        start = place
    return ",".join(pieces)
