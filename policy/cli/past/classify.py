# SPDX-License-Identifier: Apache-2.0
"""The command `berth classify`, which finds why a job failed, from the end of its log."""

import argparse
import os
import sys
from pathlib import Path

from policy.cli.output import print_json, print_table
from policy.formats.errors import UsageError
from policy.retry.classes import CLASSES
from policy.retry.classify import TAIL_BYTES, Facts, classify, of_last_run
from policy.retry.decision import Limits, Trial, decide
from policy.retry.rules import Rules, read_rules, shipped_rules


def register(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Adds `classify` to the parser of `berth`."""
    classify = subparsers.add_parser("classify", help="why a job failed, by its log, and whether to try again")
    classify.add_argument("log", metavar="LOG", help="the job's output; - for standard input")
    classify.add_argument("--exit-code", type=_exit_code, metavar="N[:SIGNAL]", help="of the job, as sacct writes it")
    classify.add_argument("--state", default="", metavar="STATE", help="of the job, as sacct writes it")
    classify.add_argument("--start", type=float, default=0.0, metavar="T", help="of the run, in seconds since 1970")
    classify.add_argument("--xid", type=int, action="append", default=[], metavar="N", help="that its GPUs reported")
    classify.add_argument("--rules", action="append", default=[], metavar="FILE", help="rules of the site's own")
    classify.add_argument("--json", action="store_true", help="print JSON")
    classify.set_defaults(run=_classify)


def _classify(args: argparse.Namespace) -> int:
    code, signal = args.exit_code or (None, 0)
    facts = Facts(code, signal, args.state, tuple(args.xid))
    found = classify(of_last_run(tail(args.log), args.start), facts, rules(args.rules))
    next_try = decide([Trial(found, (), 0.0, args.state or "FAILED")], Limits())
    what = CLASSES[found.failure].what
    if args.json:
        values = {"class": found.failure, "what": what, "transient": found.transient, "reason": found.reason}
        values["sign"] = found.sign
        print_json({**values, "retry": next_try.again, "retry_reason": next_try.reason})
    else:
        again = f"{'yes' if next_try.again else 'no'}: {next_try.reason}"
        print_table([("class", found.failure), ("meaning", what), ("known by", found.reason), ("try again", again)])
    return 0


def rules(files: list[str]) -> Rules:
    """Returns the site's own rules, which come first and so win over equal ones, and Berth's rules."""
    own = [rule for name in files for rule in read_rules(_text(name), name)]
    return (*own, *shipped_rules())


def tail(name: str) -> bytes:
    """Returns the end of a log, at most TAIL_BYTES."""
    try:
        if name == "-":
            return sys.stdin.buffer.read()[-TAIL_BYTES:]
        with Path(name).open("rb") as log:
            size = log.seek(0, os.SEEK_END)
            log.seek(max(0, size - TAIL_BYTES))
            return log.read(TAIL_BYTES)
    except OSError as problem:
        raise UsageError(f"{name} cannot be read: {problem.strerror}; name a job's output file") from problem


def _text(name: str) -> str:
    try:
        return Path(name).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as problem:
        raise UsageError(
            f"rules {name} cannot be read: {problem}; name a file as in docs/admin/failures.md"
        ) from problem


def _exit_code(text: str) -> tuple[int, int]:
    code, _, signal = text.partition(":")
    try:
        return int(code), int(signal or 0)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no exit code; write it as 1, 139 or 0:9") from None
