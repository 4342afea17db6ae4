"""``Line``: one open SSH connection to one host, with the watchdog that notices when it has died.

Opens the hops (fabric), checks the host keys, logs in, and hands out channels on which a shell waits for its script.
"""

from __future__ import annotations

import contextlib
import logging
import shlex
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from typing import IO, Any

import paramiko
from fabric import Config, Connection

from orchestrator.connection.framing import BOOTSTRAP
from orchestrator.connection.known_hosts import known_keys, verify
from orchestrator.connection.login import KeyLogin
from orchestrator.connection.prepared import PreparedShells
from orchestrator.connection.ssh_config import SshSettings
from orchestrator.errors import ConnectionError_, HostUnreachableError, LoginRefusedError

PREFERRED_CIPHERS = ("aes128-gcm@openssh.com", "aes256-gcm@openssh.com")
SILENCE_LIMIT_S = 15.0

# paramiko reports what it also raises; without a handler of the program's own that would land on standard error.
logging.getLogger("paramiko").addHandler(logging.NullHandler())


class ObservedSocket:
    """A socket (or the channel of a hop before) that remembers when it last received anything.

    It reads ahead, for paramiko asks for every packet in two small pieces, each of which would be a system call.
    """

    READ_AHEAD_BYTES = 1 << 17

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self._ahead = b""
        self._at = 0
        self.last_received_s = time.monotonic()

    def recv(self, n_bytes: int) -> bytes:
        """Up to ``n_bytes``, from what was read ahead when there is any."""
        if self._at == len(self._ahead):
            self._ahead, self._at = self._inner.recv(self.READ_AHEAD_BYTES), 0
            self.last_received_s = time.monotonic()
        piece = self._ahead[self._at : self._at + n_bytes]
        self._at += len(piece)
        return piece

    def close(self) -> None:
        """Closes it; the channel of a hop that is gone already cannot say good-bye, which is no error here."""
        with contextlib.suppress(OSError, EOFError, paramiko.SSHException):
            self._inner.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


class _HostKeyPolicy(paramiko.MissingHostKeyPolicy):
    """paramiko is given no known keys, so it asks here about every one; a policy that accepts does not exist."""

    def __init__(self, settings: SshSettings) -> None:
        self._settings = settings

    def missing_host_key(self, client: paramiko.SSHClient, hostname: str, key: paramiko.PKey) -> None:
        verify(self._settings, known_keys(self._settings), key.get_name(), key.asbytes())


class ProxyProcess:
    """A ProxyCommand as a child process whose standard input and output are one end of a socket pair."""

    def __init__(self, command: str) -> None:
        self.socket, theirs = socket.socketpair()
        self._stderr: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the process
        with theirs:
            self._process = subprocess.Popen(
                ["/bin/sh", "-c", f"exec {command}"], stdin=theirs.fileno(), stdout=theirs.fileno(), stderr=self._stderr
            )

    def last_lines(self) -> list[str]:
        """What it said on standard error."""
        self._stderr.seek(0)
        return self._stderr.read()[-4096:].decode("utf-8", "replace").splitlines()[-10:]

    def close(self) -> None:
        """Closes the line, which ends the command; one that goes on is killed."""
        self.socket.close()
        try:
            self._process.wait(1.0)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._stderr.close()


class Line:
    """An open connection. It is dead when ``is_active`` is false, and stays so.

    Args:
        settings: of the host; its hops are opened first.
        timeout_s: for the whole of connect, key exchange and login, hops included.
        silence_limit_s: after that long without a byte from a host that was asked to answer, the line is closed. A
            ServerAliveInterval × ServerAliveCountMax that is shorter counts instead.

    Raises:
        HostUnreachableError, HostKeyError, LoginRefusedError: each says what to do.
    """

    def __init__(self, settings: SshSettings, *, timeout_s: float, silence_limit_s: float = SILENCE_LIMIT_S) -> None:
        self.settings = settings
        self.why_closed: str | None = None
        self._timeout_s = timeout_s
        self._silence_limit_s = _silence_limit_s(settings, silence_limit_s)
        self._connections: list[Connection] = []
        self._clients_to_close: list[Connection] = []
        self._sockets: list[ObservedSocket] = []
        self._proxy: ProxyProcess | None = None
        self._is_closing = threading.Event()
        self._is_late = threading.Event()
        self._transport = self._open()
        self._prepared = PreparedShells(self.open_shell, f"orch-prepare-{settings.alias}")
        for task in (self._ask_for_signs_of_life, self._watch_silence):
            threading.Thread(target=task, name=f"orch-{task.__name__}-{settings.alias}", daemon=True).start()

    @property
    def is_active(self) -> bool:
        """Whether the connection stands, as far as is known."""
        return self._transport.is_active() and not self._is_closing.is_set()

    def waiting_shell(self) -> paramiko.Channel | None:
        """A channel on which the bootstrap line already runs; None when none is ready."""
        return self._prepared.take()

    def open_shell(self, timeout_s: float) -> paramiko.Channel:
        """A new channel with the bootstrap line under way on it.

        It does not wait for the host's word on the exec, as paramiko's ``exec_command`` would: that is a round trip.
        A refusal closes the channel.

        Raises:
            paramiko.SSHException, EOFError, OSError: the line died, no answer came in time, or, while ``is_active``
                stays true, the host refuses another channel.
        """
        channel = self._transport.open_session(timeout=timeout_s)
        request = paramiko.Message()
        request.add_byte(bytes([paramiko.common.MSG_CHANNEL_REQUEST]))
        request.add_int(channel.remote_chanid)
        request.add_string("exec")
        request.add_boolean(True)
        request.add_string(BOOTSTRAP)
        self._transport._send_user_message(request)  # type: ignore[attr-defined]
        return channel

    def close(self, why: str | None = None) -> None:
        """Ends the connection and everything below it; may be called twice and from any thread."""
        if self._is_closing.is_set():
            return
        self.why_closed = why
        self._is_closing.set()
        self._prepared.close()
        self._tear_down()

    # ---- opening

    def _open(self) -> paramiko.Transport:
        abort = threading.Timer(self._timeout_s, self._abort)
        abort.daemon = True
        abort.start()
        try:
            for hop in (*self.settings.proxy_jump, self.settings):
                with self._translated(hop):
                    self._connections.append(self._open_hop(hop))
        except BaseException:
            self._is_closing.set()
            self._tear_down()
            raise
        finally:
            abort.cancel()
        transport = self._connections[-1].transport
        assert isinstance(transport, paramiko.Transport)
        return transport

    def _abort(self) -> None:
        self._is_late.set()
        self._tear_down()

    def _open_hop(self, hop: SshSettings) -> Connection:
        known_types = [key.key_type for key in known_keys(hop) if not key.marker]
        options: dict[str, Any] = {
            "auth_strategy": KeyLogin(hop),
            "transport_factory": self._transport_factory(known_types),
            "banner_timeout": self._timeout_s,
            "auth_timeout": self._timeout_s,
            "channel_timeout": self._timeout_s,
        }
        if hop.proxy_command:
            self._proxy = ProxyProcess(hop.proxy_command)
            options["sock"] = self._proxy.socket
        connection = Connection(
            hop.hostname,
            user=hop.user,
            port=hop.port,
            # lazy and with a configuration of its own: neither ~/.fabric.yaml nor ~/.ssh/config is read
            config=Config(ssh_config=paramiko.SSHConfig(), lazy=True, overrides={"load_ssh_configs": False}),
            gateway=self._connections[-1] if self._connections else None,
            connect_timeout=self._timeout_s,
            connect_kwargs=options,
        )
        connection.client.set_missing_host_key_policy(_HostKeyPolicy(hop))
        self._clients_to_close.append(connection)
        connection.open()
        return connection

    def _transport_factory(self, known_types: list[str]) -> Callable[..., paramiko.Transport]:
        def make(sock: Any, **kwargs: Any) -> paramiko.Transport:
            # a small request must not wait for the acknowledgement of the one before: 48 → 2 ms a warm exec
            with contextlib.suppress(OSError, AttributeError):  # the channel of a hop has no such option
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            observed = ObservedSocket(sock)
            self._sockets.append(observed)
            transport = paramiko.Transport(observed, **kwargs)  # type: ignore[arg-type]
            options = transport.get_security_options()
            options.ciphers = _first(PREFERRED_CIPHERS, options.ciphers)
            options.key_types = _first(_algorithms(known_types), options.key_types)
            return transport

        return make

    @contextlib.contextmanager
    def _translated(self, hop: SshSettings) -> Iterator[None]:
        """Turns what fabric, paramiko and the socket raise into this project's errors, once."""
        try:
            yield
        except ConnectionError_ as exc:
            if isinstance(exc, LoginRefusedError) and self._is_late.is_set():
                raise self._unreachable(hop, f"no answer within {self._timeout_s:g} s") from exc
            raise
        except (OSError, EOFError, paramiko.SSHException) as exc:
            timed_out = self._is_late.is_set() or isinstance(exc, TimeoutError)
            raise self._unreachable(hop, f"no answer within {self._timeout_s:g} s" if timed_out else _why(exc)) from exc

    def _unreachable(self, hop: SshSettings, why: str) -> HostUnreachableError:
        through = f" through {' and '.join(h.address for h in self.settings.proxy_jump)}" if hop.proxy_jump else ""
        if hop.proxy_command:
            through = f" through `{hop.proxy_command}`"
        return HostUnreachableError(
            f"{hop.alias} ({hop.address}) cannot be reached{through}: {why}",
            next_step=f"try `ssh {shlex.quote(hop.alias)}`, then correct the host in inventory.yaml or ssh_config",
            evidence=self._proxy.last_lines() if self._proxy else [],
        )

    # ---- watching and closing

    def _ask_for_signs_of_life(self) -> None:
        """Asks an idle line for an answer. May block for ever in a send: that is why another thread watches."""
        while not self._is_closing.wait(self._silence_limit_s / 3):
            if self._silent_for_s() >= self._silence_limit_s / 3 and self._transport.is_active():
                request = paramiko.Message()
                request.add_byte(bytes([paramiko.common.MSG_GLOBAL_REQUEST]))
                request.add_string("keepalive@openssh.com")
                request.add_boolean(True)
                with contextlib.suppress(OSError, EOFError, paramiko.SSHException):  # dead: the other thread says so
                    self._transport._send_user_message(request)  # type: ignore[attr-defined]

    def _watch_silence(self) -> None:
        """Closes the line after too long a silence. A gap in our own time (a laptop's sleep) starts the count anew."""
        tick_s = self._silence_limit_s / 10
        looked_s = time.monotonic()
        while not self._is_closing.wait(tick_s):
            now_s = time.monotonic()
            if now_s - looked_s > self._silence_limit_s / 2:
                self._sockets[-1].last_received_s = now_s
            looked_s = now_s
            if not self._transport.is_active():
                self.close(self.why_closed or "the host or the network closed it")
            elif self._silent_for_s() > self._silence_limit_s:
                self.close(f"no sign of life for {self._silence_limit_s:g} s")

    def _silent_for_s(self) -> float:
        return time.monotonic() - self._sockets[-1].last_received_s

    def _tear_down(self) -> None:
        """Outermost socket first: it frees every thread that is blocked in a send or a receive."""
        for observed in self._sockets[:1]:
            with contextlib.suppress(OSError):
                observed.shutdown(socket.SHUT_RDWR)
        for connection in reversed(self._clients_to_close):
            with contextlib.suppress(OSError, EOFError, paramiko.SSHException):
                connection.client.close()
        if self._proxy:
            self._proxy.close()


def _silence_limit_s(settings: SshSettings, most_s: float) -> float:
    interval_s = settings.server_alive_interval_s
    return most_s if interval_s is None else min(most_s, interval_s * max(1, settings.server_alive_count_max))


def _first(wanted: tuple[str, ...], available: Any) -> tuple[str, ...]:
    """The available names, those wanted before the others."""
    chosen = tuple(name for name in wanted if name in available)
    return chosen + tuple(name for name in available if name not in chosen)


def _algorithms(key_types: list[str]) -> tuple[str, ...]:
    """Signature algorithms for the key types known of a host, so that it shows the key that we can check."""
    names: list[str] = []
    for key_type in key_types:
        names += ["rsa-sha2-512", "rsa-sha2-256"] if key_type == "ssh-rsa" else [key_type]
    return tuple(dict.fromkeys(names))


def _why(exc: Exception) -> str:
    if isinstance(exc, socket.gaierror):
        return "no such name"
    errors = getattr(exc, "errors", None)
    if isinstance(errors, dict) and errors:  # paramiko's NoValidConnectionsError: one for each address
        return "; ".join(sorted({error.strerror or str(error) for error in errors.values()}))
    if isinstance(exc, OSError) and exc.strerror:
        return exc.strerror
    return str(exc).partition("\n")[0] or "it closed the connection"
