"""Requests drawn from the grammar of GPU jobs: each pair of words once, or at random."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import combinations, product

from .outcome import Request

GRAMMAR: dict[str, tuple[str, ...]] = {
    "command": ("srun", "sbatch"),
    "gpus": (
        *("", "--gpus=1", "--gpus=2", "--gpus=4", "--gpus=9", "--gres=gpu:1", "--gres=gpu:2", "--gres=gpu:8"),
        *("--gpus-per-node=2", "--gpus-per-task=1", "--gpus-per-task=2", "--tres-per-task=gres/gpu:1"),
        *("--gpus-per-socket=1", "--gres=none", "--gres=gpu:0", "--gpus=2 --gres=gpu:2", "--gpus-per-node=1 --gpus=2"),
    ),
    "nodes": ("", "-N1", "-N2", "-N1-2", "-w n2", "-x n1"),
    "tasks": ("", "-n1", "-n2", "-n4", "-n5"),
    "tasks_on_each": ("", "", "--ntasks-per-node=1", "--ntasks-per-node=2"),
    "tasks_per_gpu": ("", "", "", "--ntasks-per-gpu=1", "--ntasks-per-gpu=2"),
    "cpus": ("", "", "-c2", "-c3", "--mincpus=4"),
    "cpus_per_gpu": ("", "", "--cpus-per-gpu=1", "--cpus-per-gpu=2", "--cpus-per-gpu=3"),
    "memory": ("", "", "--mem=500", "--mem-per-cpu=100", "--mem-per-gpu=300", "--mem=0"),
    "bind": ("", "", "", "--gpu-bind=none", "--gpu-bind=closest", "--gpu-bind=single:1", "--gpu-bind=map_gpu:0,1"),
    "where": ("", "", "", "-C h100", "-C v100|h100", "--exclusive", "--exclusive=user"),
    "layout": ("", "", "", "-m cyclic", "-m plane=2", "--hint=nomultithread", "--threads-per-core=1"),
    "size": ("", "", "", "--overcommit", "--contiguous", "--spread-job", "--tmp=1"),
}
"""What one option says in each of its forms; an empty word leaves the option away, and stands more often."""


LEFT_AWAY = 0.55
"""How often an option is left away that also may stand."""


def request(choice: dict[str, str]) -> Request:
    """The request of one word for each option."""
    words = [word for name, value in choice.items() if name != "command" for word in value.split()]
    return Request(choice["command"], tuple(words))


def at_random(seed: int, count: int) -> Iterator[Request]:
    """So many requests, each once."""
    drawn = random.Random(seed)
    seen: set[Request] = set()
    while len(seen) < count:
        # Most requests of many options contradict themselves, and say nothing.
        one = request(
            {
                name: "" if "" in words and drawn.random() < LEFT_AWAY else drawn.choice(words)
                for name, words in GRAMMAR.items()
            }
        )
        if one not in seen:
            seen.add(one)
            yield one


def all_pairs(seed: int = 0) -> Iterator[Request]:
    """Requests in which each two words of different options stand together at least once."""
    drawn = random.Random(seed)
    names = list(GRAMMAR)
    left = {
        ((one, first), (other, second))
        for one, other in combinations(names, 2)
        for first, second in product(GRAMMAR[one], GRAMMAR[other])
    }
    while left:
        tries = [_with(drawn, names, drawn.choice(sorted(left)), left) for _ in range(8)]
        best = max(tries, key=lambda choice: len(_pairs(choice) & left))
        left -= _pairs(best)
        yield request(best)


def _pairs(choice: dict[str, str]) -> set[tuple[tuple[str, str], tuple[str, str]]]:
    return set(combinations(choice.items(), 2))


def _with(
    drawn: random.Random,
    names: list[str],
    pair: tuple[tuple[str, str], tuple[str, str]],
    left: set[tuple[tuple[str, str], tuple[str, str]]],
) -> dict[str, str]:
    """A choice that holds this pair, and each further word with as many new pairs as can be."""
    known = dict(pair)
    for name in sorted(names, key=lambda _: drawn.random()):
        if name in known:
            continue
        words = sorted(set(GRAMMAR[name]), key=lambda _: drawn.random())

        def gain(word: str, name: str = name) -> int:
            found = {tuple(sorted(((name, word), item), key=lambda one: names.index(one[0]))) for item in known.items()}
            return len(found & left)

        known[name] = max(words, key=gain)
    return {name: known[name] for name in names}
