# SPDX-License-Identifier: Apache-2.0
"""Credentials of munge: they prove the user who wrote a text on this cluster, and the time. Needs only libmunge."""

import ctypes
from dataclasses import dataclass

from policy.formats.errors import DaemonError

EXPIRED, REWOUND, REPLAYED = 15, 16, 17
"""Errors of a valid credential that came too late, too early, or twice; its content is known all the same."""
NO_MUNGED = 6
"""Nothing on this host checks credentials of this kind."""

_LIBRARY = "libmunge.so.2"
_ENCODE_TIME, _DECODE_TIME, _SOCKET = 6, 7, 8


@dataclass(frozen=True, slots=True)
class Credential:
    """A credential, as munged decodes it."""

    error: int
    """0 if the credential is valid; else munge's error number."""
    reason: str
    """The error in munge's words."""
    uid: int
    """The user who made it, vouched for by the cluster's key; -1 if unknown."""
    payload: bytes
    skew: int
    """Seconds from its making to its decoding, by the two hosts' clocks."""


class Munge:
    """libmunge, for one thread at a time; a call waits for munged, for seconds if munged hangs."""

    def __init__(self, socket: str = "", library: str = _LIBRARY) -> None:
        try:
            self._library = ctypes.CDLL(library)
            self._declare()
        except (OSError, AttributeError) as problem:
            raise DaemonError(f"libmunge cannot be loaded ({problem}); install it (libmunge2, munge-libs)") from None
        self._free = ctypes.CDLL(None).free
        self._free.argtypes = [ctypes.c_void_p]
        self._free.restype = None
        self._context = self._library.munge_ctx_create()
        if not self._context:
            raise DaemonError("libmunge has no memory for a context")
        if socket and self._library.munge_ctx_set(self._context, _SOCKET, ctypes.c_char_p(socket.encode())):
            raise DaemonError(f"libmunge does not take the socket {socket}")

    def encode(self, payload: bytes) -> bytes:
        """Returns a credential by which every host of this cluster knows the user who wrote a text."""
        made = ctypes.c_char_p()
        error = self._library.munge_encode(ctypes.byref(made), self._context, payload, len(payload))
        if error or made.value is None:
            reason = self._library.munge_strerror(error).decode(errors="replace")
            raise DaemonError(f"munge makes no credential here: {reason}; is munged running on this host?")
        credential = made.value
        self._free(made)
        return credential

    def decode(self, credential: bytes) -> Credential:
        """Asks munged about a credential, which may be any bytes."""
        payload, length = ctypes.c_void_p(), ctypes.c_int()
        uid, gid = ctypes.c_uint32(), ctypes.c_uint32()
        error = self._library.munge_decode(
            credential,
            self._context,
            ctypes.byref(payload),
            ctypes.byref(length),
            ctypes.byref(uid),
            ctypes.byref(gid),
        )
        try:
            content = ctypes.string_at(payload.value, length.value) if payload.value and length.value > 0 else b""
        finally:
            self._free(payload)
        known = error in {0, EXPIRED, REWOUND, REPLAYED}
        return Credential(
            error=error,
            reason=self._library.munge_strerror(error).decode(errors="replace"),
            uid=uid.value if known else -1,
            payload=content if known else b"",
            skew=self._time(_DECODE_TIME) - self._time(_ENCODE_TIME) if known else 0,
        )

    def _time(self, option: int) -> int:
        value = ctypes.c_long()
        self._library.munge_ctx_get(self._context, option, ctypes.byref(value))
        return value.value

    def _declare(self) -> None:
        pointer = ctypes.c_void_p
        functions = {
            "munge_ctx_create": ([], pointer),
            # The last argument is a variadic one: its type depends on the option.
            "munge_ctx_set": ([pointer, ctypes.c_int], ctypes.c_int),
            "munge_ctx_get": ([pointer, ctypes.c_int], ctypes.c_int),
            "munge_encode": ([pointer, pointer, ctypes.c_char_p, ctypes.c_int], ctypes.c_int),
            "munge_decode": ([ctypes.c_char_p, pointer, pointer, pointer, pointer, pointer], ctypes.c_int),
            "munge_strerror": ([ctypes.c_int], ctypes.c_char_p),
        }
        for name, (arguments, result) in functions.items():
            function = getattr(self._library, name)
            function.argtypes = arguments
            function.restype = result
