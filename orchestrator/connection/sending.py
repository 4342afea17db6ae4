"""Sends on a channel, and nothing after the channel's close: for one stray packet sshd ends the whole connection.

paramiko's own ``send`` and ``shutdown_write`` make a packet under the channel's lock and hand it over when they have
let the lock go. Between the two the channel may be closed, by this side or because the remote shell has ended, and
then the packet is a stray one. Here the lock is held until the packet is out. Leave to send is taken first, for a
thread that held the lock while it waited for the end of a key exchange would stop the thread that makes it.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

import paramiko

SEND_BYTES = 1 << 15
LOOK_EVERY_S = 0.1


def send_all(channel: paramiko.Channel, content: bytes) -> None:
    """Sends everything, as fast as the other side's window opens.

    Raises:
        OSError: the channel is closed, or its timeout passed. EOFError, SSHException: the line died.
    """
    unsent = memoryview(content)
    while unsent:
        with channel.lock:
            size = channel._wait_for_send_window(min(len(unsent), SEND_BYTES))  # type: ignore[attr-defined]
        packet = paramiko.Message()
        packet.add_byte(bytes([paramiko.common.MSG_CHANNEL_DATA]))
        packet.add_int(channel.remote_chanid)
        packet.add_string(bytes(unsent[:size]))
        with _sending(channel):
            if not size or channel.closed or channel.eof_sent:
                raise OSError("the channel is closed")
            channel.transport._send_message(packet)  # type: ignore[union-attr]
        unsent = unsent[size:]


def send_end(channel: paramiko.Channel) -> None:
    """Says that nothing more will be sent; does nothing on a closed channel.

    Raises:
        EOFError, SSHException, OSError: the line died.
    """
    with _sending(channel):
        packet = None if channel.closed else channel._send_eof()  # type: ignore[attr-defined]
        if packet is not None:
            channel.transport._send_message(packet)  # type: ignore[union-attr]


@contextlib.contextmanager
def _sending(channel: paramiko.Channel) -> Iterator[None]:
    """Leave to send, then the channel's lock."""
    transport = channel.transport
    assert isinstance(transport, paramiko.Transport)
    give_up_s = time.monotonic() + transport.clear_to_send_timeout
    while True:
        transport.clear_to_send.wait(LOOK_EVERY_S)
        if not transport.is_active():
            raise EOFError
        transport.clear_to_send_lock.acquire()
        if transport.clear_to_send.is_set():
            break
        transport.clear_to_send_lock.release()
        if time.monotonic() > give_up_s:
            raise paramiko.SSHException("a key exchange does not end")
    try:
        with channel.lock:
            yield
    finally:
        transport.clear_to_send_lock.release()
