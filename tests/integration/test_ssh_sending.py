"""What is sent on a channel: everything, in order, and nothing once the channel is closed."""

from __future__ import annotations

import contextlib
import os
import threading

import paramiko
import pytest

from orchestrator.connection.sending import send_all, send_end
from orchestrator.connection.ssh import SshRemote
from orchestrator.records import Host

pytestmark = pytest.mark.integration


def shell_of(remote: SshRemote) -> paramiko.Channel:
    """A channel of the open line, with a shell that waits for its script."""
    return remote._connected().open_shell(10.0)


def test_nothing_follows_the_close_of_a_channel(host: Host) -> None:
    """A sender that is held up while its channel is closed sends no stray packet: the line lives, every time."""
    with SshRemote(host) as remote:
        line = remote._connected()
        for send in (send_end, lambda channel: send_all(channel, b"more")) * 10:
            channel = shell_of(remote)
            transport = channel.get_transport()
            assert isinstance(transport, paramiko.Transport)
            transport.clear_to_send.clear()  # as in the middle of a key exchange
            acts = [lambda c=channel, s=send: quietly(s, c), channel.close]
            threads = [threading.Thread(target=act) for act in acts]
            for thread in threads:
                thread.start()
                thread.join(0.05)  # both are under way now, in this order
            transport.clear_to_send.set()
            for thread in threads:
                thread.join()
            assert remote.run("echo alive").stdout == b"alive\n"
        assert remote._connected() is line


def quietly(send: object, channel: paramiko.Channel) -> None:
    """Sends; that the channel is closed meanwhile is no failure here."""
    with contextlib.suppress(OSError):
        send(channel)  # type: ignore[operator]


def test_a_script_that_reads_nothing_ends_while_its_input_is_sent(host: Host) -> None:
    """The remote shell is gone long before the last byte: the answer is whole, and so is the line."""
    payload = os.urandom(1 << 20)
    with SshRemote(host) as remote:
        line = remote._connected()
        for _ in range(20):
            assert remote.run("echo enough; exit 3", stdin=payload).exit_code == 3
        assert remote.run("cat", stdin=payload).stdout == payload
        assert remote._connected() is line
