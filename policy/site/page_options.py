# SPDX-License-Identifier: Apache-2.0
"""The options of the page: on the command line of `berth web`, or as `[web] options` in berth.conf."""

import argparse
import ipaddress
import shlex
from pathlib import Path
from typing import NoReturn

from policy.formats.errors import ConfigError, UsageError

PORT = 8484
_LEAST = 1.0


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError(message)


def read(text: str) -> argparse.Namespace:
    """Returns the checked options from a text in berth.conf; raises ConfigError."""
    parser = _Parser(add_help=False)
    add(parser)
    parser.set_defaults(from_simulation=None)
    try:
        options = parser.parse_args(shlex.split(text))
        check(options)
    except (ValueError, UsageError) as problem:
        raise ConfigError(f"[web] options of berth.conf: {problem}") from None
    return options


def add(parser: argparse.ArgumentParser) -> None:
    """Adds the options that berth.conf may also name."""
    option = parser.add_argument
    option("--bind", default="127.0.0.1", metavar="ADDRESS", help="address to listen on (default: this host alone)")
    option("--port", type=int, default=PORT, metavar="N", help="default: %(default)s; 0: any free one")
    option("--host-name", action="append", default=[], metavar="NAME", help="repeatable: a name of this server")
    option("--every", type=float, default=5.0, metavar="S", help="seconds between readings (default: 5)")
    trusted = "repeatable: whose header names the user"
    option("--trust-proxy", action="append", default=[], metavar="ADDRESS", help=trusted)
    option("--user-header", default="X-Remote-User", metavar="NAME", help="that header (default: %(default)s)")
    option("--tokens", type=Path, metavar="FILE", help="lines of TOKEN USER, readable by its owner alone")
    embedding = "page that may embed this one, such as https://ondemand.site"
    option("--embed-in", default="", metavar="ORIGIN", help=embedding)


def check(options: argparse.Namespace) -> bool:
    """Tells whether viewers have to be known; raises UsageError for wrong options."""
    if options.every < _LEAST:
        raise UsageError(f"--every is at least {_LEAST:g} s, so that the page is no load for the machine")
    if set(options.embed_in) & set(" ;,'\n"):
        raise UsageError("--embed-in is one origin, such as https://ondemand.site")
    try:
        bind, *_ = [ipaddress.ip_address(one) for one in (options.bind, *options.trust_proxy)]
    except ValueError as problem:
        raise UsageError(f"--bind and --trust-proxy take IP addresses: {problem}") from None
    must_be_known = not (bind.is_loopback or options.from_simulation)
    if must_be_known and not (options.trust_proxy or options.tokens):
        ways = "give --trust-proxy or --tokens"
        raise UsageError(f"on other addresses than loopback, viewers have to be known: {ways}")
    return must_be_known
