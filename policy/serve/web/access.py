# SPDX-License-Identifier: Apache-2.0
"""Finds out which user views the page: by a trusted proxy's header, or by a token from a file."""

import hmac
import pwd
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from email.message import Message
from http.cookies import CookieError, SimpleCookie
from pathlib import Path

from policy.formats.errors import ConfigError

COOKIE = "berth_token"
_LEAST_TOKEN = 16


class NoAccessError(Exception):
    """The viewer claims to be a user without proof, or must be known and is not."""


@dataclass(frozen=True, slots=True)
class WebAccess:
    """One server's rules of access."""

    proxies: frozenset[str] = frozenset()
    """Addresses whose header is believed."""
    header: str = "X-Remote-User"
    tokens: Mapping[str, str] = field(default_factory=dict)
    """User names by token."""
    must_be_known: bool = False

    def viewer(self, peer: str, headers: "Message[str, str]") -> int | None:
        """Returns the viewer's uid, or None if it is not known; raises NoAccessError for a false claim."""
        kind, _, word = headers.get("Authorization", "").partition(" ")
        token = word.strip() if kind.lower() == "bearer" else _cookie(headers.get("Cookie", ""))
        if token:
            return self.of_token(token)
        # From any other address the viewer may have written the header.
        if peer.removeprefix("::ffff:") in self.proxies and (names := headers.get_all(self.header)):
            if len(names) > 1:
                raise NoAccessError(f"the header {self.header} came more than once; the proxy has to remove users' own")
            return _named(names[0])
        if self.must_be_known:
            raise NoAccessError("this page needs to know its viewer: sign in at the site's portal, or give a token")
        return None

    def of_token(self, token: str) -> int:
        """Returns the uid of a token's user."""
        found = [
            name
            for known, name in self.tokens.items()
            if hmac.compare_digest(known.encode(), token.encode("utf-8", "replace"))
        ]
        if not found:
            raise NoAccessError("this token is not valid here; ask an admin for a new one")
        return _named(found[0])


def _named(name: str) -> int:
    try:
        return pwd.getpwnam(name).pw_uid
    except (KeyError, ValueError):
        raise NoAccessError("this user is not known on the host of berth web") from None


def _cookie(text: str) -> str:
    try:
        found = SimpleCookie(text).get(COOKIE)
    except CookieError:
        return ""
    return found.value if found else ""


def read_tokens(path: Path) -> dict[str, str]:
    """Reads a file of `TOKEN USER` lines, which only its owner may read."""
    try:
        if path.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO):
            raise ConfigError(f"{path} can be read by others than its owner; chmod 600 {path}")
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as problem:
        raise ConfigError(f"cannot read the tokens in {path}: {problem}") from None
    tokens = {}
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.startswith("#"):
            continue
        words = line.split()
        if len(words) != 2 or len(words[0]) < _LEAST_TOKEN:
            raise ConfigError(
                f"{path}, line {number}: write TOKEN USER, the token with {_LEAST_TOKEN} characters or more"
            )
        tokens[words[0]] = words[1]
    return tokens
