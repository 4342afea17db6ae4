"""``SshRemote``: a host over SSH. One connection, one channel for each ``run``, bytes as they are.

fabric opens the connection. Its ``run``, ``put`` and ``get`` are not used: they decode, copy quadratically and tear
files.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import paramiko

from orchestrator.connection import framing
from orchestrator.connection.base import DEFAULT_TIMEOUT_S, Completed, Remote
from orchestrator.connection.line import SILENCE_LIMIT_S, Line
from orchestrator.connection.sending import send_all, send_end
from orchestrator.connection.ssh_config import SshSettings, resolve
from orchestrator.errors import LineLostError, RemoteCommandError, RemoteTimeoutError
from orchestrator.interrupts import interruptible
from orchestrator.records import Host

MAX_CHANNELS = 4
"""In flight at once; sshd's MaxSessions is 10 unless set lower, and other programs may share the connection's host."""
REFUSED_CHANNEL_TRIES_S = 10.0
INLINE_BYTES = 1 << 14
RECEIVE_BYTES = 1 << 22
CLOSE_PATIENCE_S = 1.0

_T = TypeVar("_T")


class SshRemote(Remote):
    """A host over SSH. Connects at once, and again by itself on the next ``run`` after a lost line.

    Attributes:
        settings: how the host is reached, as the ssh configuration says.
    """

    def __init__(self, host: Host, *, silence_limit_s: float = SILENCE_LIMIT_S) -> None:
        self.host = host
        self.settings: SshSettings = resolve(host)
        self._silence_limit_s = silence_limit_s
        self._slots = threading.BoundedSemaphore(MAX_CHANNELS)
        self._connecting = threading.Lock()
        self._is_closed = threading.Event()
        self._line: Line | None = None
        interruptible(self._connected, self._is_closed.set)

    def run(
        self,
        script: str,
        args: Sequence[str] = (),
        *,
        stdin: bytes = b"",
        timeout_s: float = DEFAULT_TIMEOUT_S,
    ) -> Completed:
        """See ``Remote.run``. One round trip when a prepared shell waits, three when a channel must be opened first."""
        frame = framing.frame(script, args)
        return self._talk(lambda channel, deadline: _Conversation(channel, frame, stdin).until(deadline), timeout_s)

    def run_fresh(self, script: str, *, timeout_s: float = DEFAULT_TIMEOUT_S) -> Completed:
        """Like ``run``, but never on a shell that was prepared ahead: what an exec costs with all that it starts."""
        frame = framing.frame(script)
        return self._talk(
            lambda channel, deadline: _Conversation(channel, frame, b"").until(deadline), timeout_s, is_fresh=True
        )

    def echo_times_s(self, n: int, *, timeout_s: float = DEFAULT_TIMEOUT_S) -> list[float]:
        """Seconds that a line takes to a shell on an open channel and back, ``n`` times: the round trip itself."""
        frame = framing.frame('while IFS= read -r word; do echo "$word"; done')

        def time_echoes(channel: paramiko.Channel, _: float) -> list[float]:
            channel.settimeout(timeout_s)
            send_all(channel, frame.first_line)
            return [_echo_s(channel, f"orch-echo-{i}\n".encode()) for i in range(n + 1)][1:]  # the first one starts it

        return self._talk(time_echoes, timeout_s)

    def _talk(
        self, conversation: Callable[[paramiko.Channel, float], _T], timeout_s: float, *, is_fresh: bool = False
    ) -> _T:
        """Has a conversation on a channel with a shell, until a deadline. On Ctrl-C the channel is closed."""
        call = _Call()

        def talk() -> _T:
            with self._conversing(call, timeout_s, is_fresh=is_fresh) as (channel, deadline):
                return conversation(channel, deadline)

        return interruptible(talk, call.abandon)

    @contextlib.contextmanager
    def _conversing(self, call: _Call, timeout_s: float, *, is_fresh: bool) -> Iterator[tuple[paramiko.Channel, float]]:
        """A channel with a shell, and the deadline; what goes wrong meanwhile becomes one of this project's errors."""
        deadline = time.monotonic() + timeout_s
        with self._slot(timeout_s):
            line, channel = self._shell(deadline, timeout_s, is_fresh=is_fresh)
            call.hold(channel)
            try:
                yield channel, deadline
            except LineLostError as exc:
                raise self._lost(line, exc) from exc
            except TimeoutError as exc:
                raise self._too_late(timeout_s) from exc
            except (OSError, EOFError, paramiko.SSHException) as exc:
                raise self._lost(line, LineLostError("the line broke")) from exc
            finally:
                _close(channel)

    def close(self) -> None:
        """Ends the connection; what was detached on the host lives on."""
        interruptible(self._close, self._is_closed.set)

    def _close(self) -> None:
        self._is_closed.set()
        if not self._connecting.acquire(timeout=CLOSE_PATIENCE_S):
            return  # a connection that nobody waits for any more is being made: whoever makes it closes it
        try:
            if self._line is not None:
                self._line.close("closed by this program")
        finally:
            self._connecting.release()

    def _connected(self) -> Line:
        """The open line; a new one when there is none any more."""
        with self._connecting:
            if self._is_closed.is_set():
                raise LineLostError(f"{self.host.name}: this connection was closed")
            if self._line is None or not self._line.is_active:
                if self._line is not None:
                    self._line.close()
                self._line = Line(
                    self.settings, timeout_s=self.host.connect_timeout_s, silence_limit_s=self._silence_limit_s
                )
            if self._is_closed.is_set():
                self._line.close("closed by this program")
            return self._line

    @contextlib.contextmanager
    def _slot(self, timeout_s: float) -> Iterator[None]:
        if not self._slots.acquire(timeout=timeout_s):
            raise RemoteTimeoutError(f"{self.host.name}: all {MAX_CHANNELS} channels were busy for {timeout_s:g} s")
        try:
            yield
        finally:
            self._slots.release()

    def _shell(self, deadline: float, timeout_s: float, *, is_fresh: bool) -> tuple[Line, paramiko.Channel]:
        """A shell on a living line. Nothing of the script was sent yet, so a dead line may be replaced unasked."""
        give_up_s = min(deadline, time.monotonic() + REFUSED_CHANNEL_TRIES_S)
        pause_s, reconnected = 0.02, False
        while True:
            line = self._connected()
            remaining_s = deadline - time.monotonic()
            if remaining_s <= 0:
                raise self._too_late(timeout_s)
            try:
                waiting = None if is_fresh else line.waiting_shell()
                return line, waiting or line.open_shell(remaining_s)
            except (OSError, EOFError, paramiko.SSHException) as exc:
                if not line.is_active:
                    if reconnected:
                        raise self._lost(line, LineLostError("the line broke")) from exc
                    reconnected = True
                elif time.monotonic() + pause_s > give_up_s:
                    raise self._refused(exc) from exc
                else:
                    time.sleep(pause_s)  # another program's session may end
                    pause_s = min(2 * pause_s, 1.0)

    def _refused(self, exc: Exception) -> RemoteCommandError:
        # of several refusals at once paramiko gives the reason to one caller only
        reason = f": {exc.text}" if isinstance(exc, paramiko.ChannelException) else ""
        return RemoteCommandError(
            f"{self.host.name} refuses another channel{reason}",
            next_step="look at MaxSessions in the host's sshd_config",
        )

    def _too_late(self, timeout_s: float) -> RemoteTimeoutError:
        return RemoteTimeoutError(
            f"{self.host.name}: a command did not end within {timeout_s:g} s; it may still run there",
            next_step="`orch status` asks the host",
        )

    def _lost(self, line: Line, exc: LineLostError) -> LineLostError:
        why = f" ({line.why_closed})" if line.why_closed else ""
        what = exc.message if line.is_active else "the line was lost before the answer was complete"
        return LineLostError(
            f"{self.host.name}: {what}{why}",
            next_step="whether the host acted must be asked: `orch status`",
            evidence=exc.evidence,
        )


class _Call:
    """The channel of one run, so that a run can be ended for which nobody waits any more."""

    def __init__(self) -> None:
        self._channel: paramiko.Channel | None = None
        self._is_abandoned = False

    def hold(self, channel: paramiko.Channel) -> None:
        """The run has got its channel."""
        self._channel = channel
        if self._is_abandoned:
            _close(channel)

    def abandon(self) -> None:
        """Ends the run at once, or as soon as it has a channel; called from any thread."""
        self._is_abandoned = True
        if self._channel is not None:
            _close(self._channel)


def _echo_s(channel: paramiko.Channel, word: bytes) -> float:
    """Seconds until a line has come back."""
    began_s, received = time.perf_counter(), b""
    send_all(channel, word)
    while word not in received:
        piece = channel.recv(RECEIVE_BYTES)
        if not piece:
            raise LineLostError("the shell ended")
        received += piece
    return time.perf_counter() - began_s


def _close(channel: paramiko.Channel) -> None:
    with contextlib.suppress(OSError, EOFError, paramiko.SSHException):  # a dead line cannot be told
        channel.close()


class _Arrival(threading.Event):
    """Set when anything arrives on either stream or the channel ends; only its reader takes it back.

    Not the channel's ``fileno``: there the feeder of one stream races with the reader of the other, and a set that is
    overtaken by a clear is lost. Sixteen megabytes on both streams hung that way.
    """

    def clear(self) -> None:
        """Ignored: a buffer calls it when it alone is empty."""

    def rearm(self) -> None:
        """Forgets what arrived so far; to be called before looking at the buffers, not after."""
        super().clear()


class _Conversation:
    """One script on one channel: input goes out while both outputs come in."""

    def __init__(self, channel: paramiko.Channel, frame: framing.Frame, payload: bytes) -> None:
        self._channel = channel
        self._out, self._err = framing.StreamParser(frame), framing.StreamParser(frame)
        self._input = (frame.first_line, payload)

    def until(self, deadline: float) -> Completed:
        """The script's answer.

        Raises:
            TimeoutError: the deadline passed.
            LineLostError: the channel ended without the closing lines.
        """
        self._channel.settimeout(max(0.01, deadline - time.monotonic()))
        if sum(map(len, self._input)) <= INLINE_BYTES:
            self._send()
            self._receive(deadline)
        else:
            sender = threading.Thread(target=self._send, name="orch-send", daemon=True)
            sender.start()
            try:
                self._receive(deadline)
            finally:
                _close(self._channel)  # frees a sender whose input nobody wants any more
                sender.join()
        stdout = self._out.content()
        assert self._out.exit_code is not None
        return Completed(self._out.exit_code, stdout, self._err.content())

    def _send(self) -> None:
        """Sends all input and its end. A failure shows on the receiving side, as an answer that never completes."""
        with contextlib.suppress(OSError, EOFError, paramiko.SSHException):
            for content in self._input:
                send_all(self._channel, content)
            send_end(self._channel)

    def _receive(self, deadline: float) -> None:
        """One loop over both streams: they share a window, so an unread one would stop the other."""
        arrival = _Arrival()
        for buffer in (self._channel.in_buffer, self._channel.in_stderr_buffer):
            buffer.set_event(arrival)
        while not (self._out.is_complete and self._err.is_complete):
            remaining_s = deadline - time.monotonic()
            if remaining_s <= 0:
                raise TimeoutError
            arrival.wait(remaining_s)
            arrival.rearm()
            is_over = self._channel.eof_received or self._channel.closed  # asked first: what came before it is there
            while self._take() and is_over:
                pass
            if is_over:
                return

    def _take(self) -> bool:
        """Hands on everything that has arrived; whether there was anything."""
        some = False
        if self._channel.recv_ready():
            self._out.feed(self._channel.recv(RECEIVE_BYTES))
            some = True
        if self._channel.recv_stderr_ready():
            self._err.feed(self._channel.recv_stderr(RECEIVE_BYTES))
            some = True
        return some
