# SPDX-License-Identifier: Apache-2.0
"""Names and groups of users, as the controller knows them."""

import grp
import os
import pwd
from contextlib import suppress
from functools import lru_cache


@lru_cache(maxsize=4_096)
def names_of(user: int) -> tuple[str, frozenset[str]]:
    """Returns a user's name and groups; an empty name if there is no such user."""
    with suppress(KeyError):
        one, groups = pwd.getpwuid(user), set()
        for group in os.getgrouplist(one.pw_name, one.pw_gid):
            with suppress(KeyError):
                groups.add(grp.getgrgid(group).gr_name)
        return one.pw_name, frozenset(groups)
    return "", frozenset()
