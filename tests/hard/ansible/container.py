# SPDX-License-Identifier: Apache-2.0
"""Ansible's connection to a container by `docker exec`, for tests/hard/test_ansible.py; ansible-core has none."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

from ansible.plugins.connection import ConnectionBase  # type: ignore[import-not-found]

DOCUMENTATION = """
name: container
short_description: Runs commands in a container by `docker exec`
options:
  remote_addr:
    description: The container
    vars:
      - name: ansible_host
"""


class Connection(ConnectionBase):  # type: ignore[misc]
    """A container in which root runs commands."""

    transport = "container"
    has_pipelining = True

    def _connect(self) -> Connection:
        self._connected = True
        return self

    def _run(self, *words: str, given: bytes | None = None) -> subprocess.CompletedProcess[bytes]:
        command = ["docker", "exec", "-i", "-u", "root", self.get_option("remote_addr"), *words]
        return subprocess.run(command, check=False, capture_output=True, input=given)

    def exec_command(self, cmd: str, in_data: bytes | None = None, sudoable: bool = True) -> Any:
        """Runs a shell command; returns its status, output and errors."""
        super().exec_command(cmd, in_data=in_data, sudoable=sudoable)
        done = self._run("/bin/sh", "-c", cmd, given=in_data or b"")
        return done.returncode, done.stdout, done.stderr

    def put_file(self, in_path: str, out_path: str) -> None:
        """Writes a file of this computer into the container."""
        super().put_file(in_path, out_path)
        self._run("dd", f"of={out_path}", given=Path(in_path).read_bytes()).check_returncode()

    def fetch_file(self, in_path: str, out_path: str) -> None:
        """Writes a file of the container to this computer."""
        super().fetch_file(in_path, out_path)
        Path(out_path).write_bytes(self._run("cat", in_path).stdout)

    def close(self) -> None:
        """Ends nothing: each command has its own `docker exec`."""
        self._connected = False
