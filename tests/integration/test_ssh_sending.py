"""What is sent on a channel: everything, in order, and nothing once the channel is closed."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable
from typing import Any

import paramiko
import pytest

from orchestrator.connection.sending import send_all, send_end
from orchestrator.connection.ssh import SshRemote
from orchestrator.records import Host
from tests.support.waiting import wait_until

pytestmark = pytest.mark.integration

DATA, END = paramiko.common.MSG_CHANNEL_DATA, paramiko.common.MSG_CHANNEL_EOF


@pytest.mark.parametrize("send", [send_end, lambda channel: send_all(channel, b"more")], ids=["end", "content"])
def test_nothing_follows_the_close_of_a_channel(host: Host, send: Callable[[paramiko.Channel], None]) -> None:
    """The channel is closed between the making of a packet and its sending: the packet is first, or it is not sent."""
    with SshRemote(host) as remote:
        line = remote._connected()
        channel = line.open_shell(10.0)
        transport: Any = channel.get_transport()
        closers: list[threading.Thread] = []

        def after_a_close(forward: Callable[[paramiko.Message], None]) -> Callable[[paramiko.Message], None]:
            def act(packet: paramiko.Message) -> None:
                is_ours = threading.current_thread() is threading.main_thread()
                if is_ours and packet.asbytes()[0] in (DATA, END):
                    closers.append(threading.Thread(target=channel.close))
                    closers[-1].start()
                    closers[-1].join(0.2)  # as far as it gets
                    if not closers[-1].is_alive():  # closed already: wait until the other side has forgotten it too
                        wait_until(lambda: transport._channels.get(channel.chanid) is None)
                forward(packet)

            return act

        for name in ("_send_message", "_send_user_message"):
            setattr(transport, name, after_a_close(getattr(transport, name)))
        with contextlib.suppress(OSError):
            send(channel)
        assert closers
        for closer in closers:
            closer.join()
        assert remote.run("echo alive").stdout == b"alive\n"
        assert remote._connected() is line


def test_nothing_is_sent_on_a_closed_channel(host: Host) -> None:
    """Content is refused, its end is let go."""
    with SshRemote(host) as remote:
        line = remote._connected()
        channel = line.open_shell(10.0)
        channel.close()
        with pytest.raises(OSError, match="closed"):
            send_all(channel, b"more")
        send_end(channel)
        assert remote.run("echo alive").stdout == b"alive\n"
        assert remote._connected() is line


def test_a_script_that_reads_nothing_ends_while_its_input_is_sent(host: Host) -> None:
    """The remote shell is gone long before the last byte: the answer is whole, and so is the line."""
    payload = os.urandom(1 << 20)
    with SshRemote(host) as remote:
        line = remote._connected()
        for _ in range(20):
            assert remote.run("echo enough; exit 3", stdin=payload).exit_code == 3
        assert remote.run("cat", stdin=payload).stdout == payload
        assert remote._connected() is line
