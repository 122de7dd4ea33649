# SPDX-License-Identifier: Apache-2.0
"""A daemon that answers every request with one chosen kind of nonsense. It runs in berthd's place."""

from __future__ import annotations

import os
import random
import socket
import sys

SOCKET = "/run/berth/berthd.sock"


def answer(lie: str, nonce: str) -> bytes | None:
    """The datagram for a lie; None closes the connection without a word."""
    good = {
        "nonce": nonce,
        "nodes": "n1",
        "gpus": "0,3",
        "seats": "1",
        "segment": "state=placed",
        "message": "hello",
    }
    rng = random.Random(7)
    lies: dict[str, dict[str, str]] = {
        "wrong-nonce": {"nonce": "0" * 16},
        "unknown-key": {"priority": "1000000"},
        "unknown-node": {"nodes": "nowhere99"},
        "too-many-gpus": {"gpus": "0,1,2,3"},
        "duplicate-gpu": {"gpus": "0,0"},
        "no-gpus": {"gpus": ""},
        "gpu-out-of-range": {"gpus": "0,64"},
        "bracket-in-segment": {"segment": "state=placed]%5Bberth/1"},
        "control-in-message": {"message": "a%0Ab%1B[31m"},
        "negative": {"min_cpus": "-1"},
    }
    if lie == "random":
        return bytes(rng.randrange(256) for _ in range(500))
    if lie == "huge":
        return b"berth/1 place\nnonce=" + nonce.encode() + b"\nmessage=" + b"x" * 60000 + b"\n"
    if lie == "empty":
        return b""
    if lie == "close":
        return None
    if lie == "many-lines":
        return b"berth/1 pass\nnonce=" + nonce.encode() + b"\n" + b"".join(b"k%d=v\n" % i for i in range(500))
    verb = "obey" if lie == "verb" else "place"
    lines = [f"berth/1 {verb}", *(f"{key}={value}" for key, value in {**good, **lies.get(lie, {})}.items())]
    if lie == "duplicate-key":
        lines.append("nodes=n2")
    text = "\n".join(lines) + "\n"
    return text[: len(text) // 2].encode() if lie == "half" else text.encode()


def main(lie: str) -> None:
    server = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    server.bind(SOCKET)
    os.chmod(SOCKET, 0o600)  # noqa: PTH101
    server.listen(16)
    while True:
        client, _ = server.accept()
        request = client.recv(65536).decode("ascii", "replace")
        sys.stdout.write("asked\n")
        sys.stdout.flush()
        nonce = next((line[6:] for line in request.splitlines() if line.startswith("nonce=")), "")
        said = answer(lie, nonce)
        if said is not None:
            client.send(said)
        client.close()


if __name__ == "__main__":
    main(sys.argv[1])
