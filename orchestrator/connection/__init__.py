"""Host → Remote. The only package that knows fabric and paramiko, and they are imported only when used."""

from __future__ import annotations

from orchestrator.connection.base import Completed, Remote, Spawned, command_line
from orchestrator.records import Host

__all__ = ["Completed", "Remote", "Spawned", "command_line", "connect"]


def connect(host: Host) -> Remote:
    """Opens the host by its transport; of a cluster it is the login host.

    Raises:
        HostUnreachableError, HostKeyError, LoginRefusedError: each says what to do.
    """
    if host.transport == "local":
        from orchestrator.connection.local import LocalRemote

        return LocalRemote(host)
    from orchestrator.connection.ssh import SshRemote

    return SshRemote(host)
