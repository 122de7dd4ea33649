# SPDX-License-Identifier: Apache-2.0
"""Compares what two revisions answer to drawn submissions: `python -m tests.bench.same_replies REVISION REVISION`.

Each revision answers the same requests by its own answering process, without sockets: on clusters of several kinds, on
both layouts, with jobs that run and wait, with shares, tiers and guests, and with pictures that are handed over in
between. A reply is compared by its verb and the text of each value. `--count` sets the number of requests.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

from tests.bench.same_answers import unpacked

KINDS = 12
"""Different requests of one cluster; each comes several times, from several users."""
OF_A_CLUSTER = 60

FIELDS: dict[str, tuple[str, ...]] = {
    "tres_per_job": ("gres/gpu:1", "gres/gpu:2", "gres/gpu:3", "gres/gpu:4", "gres/gpu:8", "gres/gpu:16"),
    "tres_per_node": ("gres/gpu", "gres/gpu:2", "gres/gpu:4", "gres/gpu:h100:2"),
    "tres_per_task": ("gres/gpu:1", "cpu:2,gres/gpu:1"),
    "num_tasks": ("1", "2", "4"),
    "min_nodes": ("1", "2", "3"),
    "max_nodes": ("1", "2"),
    "cpus_per_task": ("1", "2", "7"),
    "min_cpus": ("2", "16"),
    "cpus_per_tres": ("gres/gpu:2",),
    "mem_per_node": ("0", "1000", "900000"),
    "mem_per_tres": ("gres/gpu:4096",),
    "time_limit": ("1", "30", "60", "600"),
    "name": ("a", "b", "long" * 20),
    "begin": ("900000", "2000000000", "9" * 19),
    "held": ("1",),
    "dependency": ("1",),
    "array": ("1",),
    "het": ("1",),
    "test": ("1",),
    "exclusive": ("1",),
    "reservation": ("r",),
    "features": ("h100", "v100", "h100&x", "h100|v100"),
    "req_nodes": ("n1", "n1,n2", "n9"),
    "exc_nodes": ("n1", "n[2-3]"),
    "switches": ("1",),
    "account": ("a",),
    "signal": ("B:10",),
    "extra_bytes": ("0", "100", "950", "2000"),
    "preflight": ("run", "41", "x"),
    "slurms_own": ("--spread-job",),
    "flag.locality": ("node", "nvlink", "nvlink@0", "leaf@60", "wrong"),
    "flag.gpu-share": ("10", "30", "100", "101"),
    "flag.gpu-mem": ("8G", "30G", "300G"),
    "flag.gpu-tier": ("guaranteed", "opportunistic", "opportunistic,upgrade", "guaranteed,mps", "exclusive"),
    "flag.retry": ("2", "auto"),
    "flag.movable": ("", "60"),
    "flag.app-class": ("memory", "wrong"),
}
GPUS = ("tres_per_job", "tres_per_job", "tres_per_job", "tres_per_node", "tres_per_node", "flag.gpu-share")
RARELY = 0.1
"""Part of the values that are other than the first three of a key."""


def main() -> int:
    """Prints how many replies there are and how many differ, and the first that does; returns 1 where one differs."""
    parser = argparse.ArgumentParser(description="Whether two revisions answer the same.")
    parser.add_argument("revisions", nargs="*", help="git revisions")
    parser.add_argument("--count", type=int, default=3_000)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    if not args.revisions:
        sys.stdout.writelines(f"{json.dumps(one)}\n" for one in replies(args.seed, args.count))
        return 0
    with tempfile.TemporaryDirectory() as folder:
        words = ["--count", str(args.count), "--seed", str(args.seed)]
        one, other = (answered(rev, Path(folder) / str(number), words) for number, rev in enumerate(args.revisions))
    differing = [(a, b) for a, b in zip(one, other, strict=True) if a != b]
    sys.stdout.write(f"{len(one):,} requests, {len(differing):,} of the replies differ\n")
    for a, b in differing[:1]:
        sys.stdout.write(f"{args.revisions[0]}: {a}\n{args.revisions[1]}: {b}\n")
    return int(bool(differing))


def answered(revision: str, tree: Path, words: list[str]) -> list[str]:
    """Returns a line for each request and its reply, of a revision's own code."""
    command = [sys.executable, "-P", __file__, *words]
    path = f"{unpacked(revision, tree)}"
    done = subprocess.run(command, cwd=path, env={"PYTHONPATH": path}, stdout=subprocess.PIPE, text=True, check=True)
    return done.stdout.splitlines()


def replies(seed: int, count: int) -> Iterator[tuple[dict[str, str], str, dict[str, object]]]:
    """Yields drawn requests, each with the verb of the reply and its values."""
    from policy.formats import segment, wire  # noqa: PLC0415 - of the revision that answers

    for number in range(-(-count // OF_A_CLUSTER)):
        chance = random.Random(f"{seed} {number}")
        now, made, renew = cluster(chance)
        kinds, seen = [drawn(chance) for _ in range(KINDS)], set[str]()
        for of_cluster in range(min(OF_A_CLUSTER, count - number * OF_A_CLUSTER)):
            if of_cluster % 20 == 19:
                renew(now + of_cluster, frozenset(seen))
            asked = {**chance.choice(kinds), "nonce": f"{number:08x}{of_cluster:08x}", "uid": chance.choice("123")}
            seen.add(asked["nonce"])
            reply = made.answer(wire.encode("submit", asked), now + of_cluster / 10)
            message = wire.decode(reply)
            values: dict[str, object] = dict(sorted(message.fields.items()))
            if "segment" in values:
                plan = segment.fields(f"[berth/1 {values['segment']}]") or {}
                values["segment"] = dict(sorted(plan.items()))
            yield asked, message.verb, values


def drawn(chance: random.Random) -> dict[str, str]:
    """Returns the values of a kind of request."""
    fields = {"client": chance.choice(("batch", "batch", "srun"))}
    for key in dict.fromkeys((chance.choice(GPUS), *chance.sample(sorted(FIELDS), chance.choice((0, 0, 1, 1, 2, 5))))):
        fields[key] = chance.choice(FIELDS[key] if chance.random() < RARELY else FIELDS[key][:3])
    return fields


def found_in_plan(name: str) -> Any:
    """Returns a function of the plan, whose file differs between revisions."""
    path = min(path for path in Path("policy/plan").rglob("*.py") if f"\ndef {name}(" in path.read_text())
    return getattr(import_module(".".join(path.with_suffix("").parts)), name)


def cluster(chance: random.Random) -> tuple[float, Any, Callable[[float, frozenset[str]], None]]:
    """Returns the time, an answering process with a drawn cluster, and what hands a new picture to it."""
    from policy.daemon.answer.answerer import Answerer  # noqa: PLC0415
    from policy.daemon.passes.handover import Snapshot  # noqa: PLC0415
    from policy.request.settings import Settings, Sharing  # noqa: PLC0415
    from policy.request.tiers import parse_default  # noqa: PLC0415
    from policy.site.config import Config  # noqa: PLC0415
    from tests.unit.guest_world import host  # noqa: PLC0415
    from tests.unit.policy_world import NOW, reading, running, waiting  # noqa: PLC0415
    from tests.unit.share_world import fleet, node, packed  # noqa: PLC0415

    open_book = found_in_plan("open_book")
    names = [f"n{number}" for number in range(1, chance.choice((1, 2, 4, 4)) + 1)]
    plain = chance.random() < 0.2
    loose = {"gpus": 0, "loose": 8, "seats": 0} if plain else {}
    nodes, jobs = [], []
    for number, name in enumerate(names, 1):
        used = chance.choice((0, 0b1, 0b1111, 0b00111111, 0xFF))
        parts = (30, 60, *[0] * 6) if not (used & 3 or plain) and chance.random() < 0.4 else ()
        nodes.append(node(name, used=used, **loose, **({"shared": parts} if parts else {})))
        if used:
            of = host if chance.random() < 0.3 and not plain else running
            jobs.append(of(number, name, used, chance.choice((60, 900))))
        jobs += [packed(10 * number + gpu, name, gpu, part) for gpu, part in enumerate(parts) if part]
    jobs += [waiting(90 + number, chance.choice(names), 0b11) for number in range(chance.choice((0, 2)))]
    tiers = parse_default("opportunistic,upgrade") if chance.random() < 0.3 else ()
    sharing = Sharing(tier_default=tiers, multi_user=chance.random() < 0.5, way=chance.choice(("mps", "time")))
    settings = Settings(sharing=sharing, pin_ahead=chance.random() < 0.7, exclude_others=chance.choice((0, 1, 32)))
    made = Answerer(replace(Config(), settings=settings, observe=chance.random() < 0.15, plain=plain), "0", 1)
    kinds = {name: chance.choice(("v100", "h100", "a6000", "l40s")) for name in names}

    def renew(at: float, seen: frozenset[str] = frozenset()) -> None:
        look = reading(nodes, jobs, at=at)
        cluster = open_book(fleet(look, sharing, kinds), look).cluster
        made.take(Snapshot(cluster, seen, "24.11.5", "recorded", ""), at)

    renew(NOW)
    return NOW, made, renew


if __name__ == "__main__":
    raise SystemExit(main())
