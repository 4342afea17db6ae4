"""``TcpProxy``: a bad network between a client and a server on this machine.

It can delay (every byte arrives half a round trip after it was sent, however many are under way), cut the line after
an exact number of bytes in either direction, and freeze: stay open and forward nothing.
"""

from __future__ import annotations

import contextlib
import queue
import socket
import threading
import time
from dataclasses import dataclass, field

CHUNK_BYTES = 1 << 16


@dataclass
class Traffic:
    """Bytes forwarded since the last reset, by direction."""

    to_server: int = 0
    to_client: int = 0


@dataclass
class _Cut:
    """How many more bytes pass in each direction before the line is cut; None for no limit."""

    to_server: int | None = None
    to_client: int | None = None


@dataclass
class _Pair:
    client: socket.socket
    server: socket.socket
    threads: list[threading.Thread] = field(default_factory=list)

    def close(self) -> None:
        for side in (self.client, self.server):
            with contextlib.suppress(OSError):
                side.shutdown(socket.SHUT_RDWR)

    def release(self) -> None:
        """Closes the sockets once nothing reads them any more."""
        for thread in self.threads:
            thread.join()
        for side in (self.client, self.server):
            side.close()


class TcpProxy:
    """Listens on a free port of 127.0.0.1 and forwards to another port of it. Use as a context manager.

    Args:
        to_port: where the real server listens.
        round_trip_s: added to every round trip, half of it in each direction.
    """

    def __init__(self, to_port: int, *, round_trip_s: float = 0.0) -> None:
        self.to_port = to_port
        self.one_way_s = round_trip_s / 2
        self.traffic = Traffic()
        self.n_connections = 0
        self._cut = _Cut()
        self._freeze_at: int | None = None
        self._lock = threading.Lock()
        self._thawed = threading.Event()
        self._thawed.set()
        self._pairs: list[_Pair] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._accepting = threading.Thread(target=self._accept, name="tcp-proxy", daemon=True)

    def __enter__(self) -> TcpProxy:
        self._accepting.start()
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._accepting.join()
        self._listener.close()
        self.thaw()
        self.cut()
        for pair in self._pairs:
            pair.release()

    # ---- what a test does to the line

    def cut(self) -> None:
        """Ends every connection now."""
        for pair in list(self._pairs):
            pair.close()

    def cut_after(self, *, to_server: int | None = None, to_client: int | None = None) -> None:
        """Ends the line once so many more bytes have passed; the cut happens once, then the line is good again."""
        with self._lock:
            self._cut = _Cut(to_server, to_client)

    def freeze(self) -> None:
        """Forwards nothing more; both sides keep an open connection on which nothing comes."""
        self._thawed.clear()

    def freeze_after(self, *, to_server: int) -> None:
        """Freezes by itself once so many more bytes have passed to the server."""
        with self._lock:
            self._freeze_at = self.traffic.to_server + to_server

    def thaw(self) -> None:
        """Forwards again, what was held back first."""
        self._freeze_at = None
        self._thawed.set()

    def reset_traffic(self) -> None:
        """Counts from 0 again."""
        with self._lock:
            self.traffic = Traffic()

    # ---- forwarding

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            self.n_connections += 1
            try:
                server = socket.create_connection(("127.0.0.1", self.to_port))
            except OSError:
                client.close()
                continue
            for side in (client, server):
                side.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            pair = _Pair(client, server)
            self._pairs.append(pair)
            self._start(pair, client, server, "to_server")
            self._start(pair, server, client, "to_client")

    def _start(self, pair: _Pair, source: socket.socket, sink: socket.socket, direction: str) -> None:
        """A reader that stamps pieces with their time of arrival, and a writer that sends each when it is due.

        Two threads, so that pieces travel together: one that slept for each piece would divide the throughput.
        """
        under_way: queue.SimpleQueue[tuple[float, bytes]] = queue.SimpleQueue()
        for target, args in ((self._read, (source, under_way)), (self._write, (pair, sink, under_way, direction))):
            thread = threading.Thread(target=target, args=args, name=f"tcp-proxy-{direction}", daemon=True)
            pair.threads.append(thread)
            thread.start()

    def _read(self, source: socket.socket, under_way: queue.SimpleQueue[tuple[float, bytes]]) -> None:
        piece = b"-"
        while piece:
            self._thawed.wait()  # unread, so that the sender's buffers fill up as on a real dead line
            try:
                piece = source.recv(CHUNK_BYTES)
            except OSError:
                piece = b""
            under_way.put((time.monotonic() + self.one_way_s, piece))

    def _write(
        self, pair: _Pair, sink: socket.socket, under_way: queue.SimpleQueue[tuple[float, bytes]], direction: str
    ) -> None:
        while True:
            due_s, piece = under_way.get()
            if (wait_s := due_s - time.monotonic()) > 0:
                time.sleep(wait_s)
            self._thawed.wait()
            allowed, is_cut = self._allow(len(piece), direction)
            try:
                sink.sendall(piece[:allowed])
                if not piece:
                    sink.shutdown(socket.SHUT_WR)
            except OSError:
                is_cut = True
            if is_cut:
                pair.close()
            if not piece or is_cut:
                return

    def _allow(self, n_bytes: int, direction: str) -> tuple[int, bool]:
        """How many of these bytes may pass, and whether the line ends after them."""
        with self._lock:
            limit = getattr(self._cut, direction)
            allowed = n_bytes if limit is None else min(n_bytes, limit)
            setattr(self.traffic, direction, getattr(self.traffic, direction) + allowed)
            if self._freeze_at is not None and self.traffic.to_server >= self._freeze_at:
                self._thawed.clear()
            if limit is None:
                return allowed, False
            if limit > n_bytes:
                setattr(self._cut, direction, limit - n_bytes)
                return allowed, False
            self._cut = _Cut()
            return allowed, True
