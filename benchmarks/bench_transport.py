"""Times the transport: a large read beside ``scp``, and small operations in round trips behind a slow line.

    python -m benchmarks.bench_transport [--json] [--round-trip-ms 50] [--repeats 7]

A throwaway sshd on this machine is the host; nothing outside is touched. The ratios and the round trips carry over to
other machines, the milliseconds do not. Further operations: ``time_in_round_trips`` takes any callable.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from orchestrator import push
from orchestrator.connection.ssh import SshRemote
from orchestrator.demo.ssh_host import ThrowawaySshHost
from orchestrator.pull import pull
from orchestrator.records import Host, SourceFile, Target, TargetFile, digest_of
from tests.support.tcp_proxy import TcpProxy

LARGE_BYTES = 16 << 20
SMALL_BYTES = 15 << 10


@dataclass(frozen=True)
class Row:
    """One measured operation.

    Attributes:
        seconds: median. n_round_trips: (behind the slow line − without) ÷ its round trip; None where not measured.
        ratio: to the row named in ``against``.
    """

    name: str
    seconds: float
    slow_seconds: float | None = None
    n_round_trips: float | None = None
    ratio: float | None = None
    against: str | None = None


def median_s(operation: Callable[[], object], repeats: int) -> float:
    """Median wall time of an operation, after one run that is not counted."""
    operation()
    times = []
    for _ in range(repeats):
        started = time.perf_counter()
        operation()
        times.append(time.perf_counter() - started)
    return statistics.median(times)


@contextmanager
def slow_line(server: ThrowawaySshHost, round_trip_s: float) -> Iterator[Path]:
    """An ssh configuration that reaches the same server through a proxy with so much more round trip."""
    with TcpProxy(server.port, round_trip_s=round_trip_s) as proxy:
        kind, key = server.known_hosts_path.read_text().split()[1:3]
        known = server.folder / f"known_hosts_{proxy.port}"
        known.write_text(f"[127.0.0.1]:{proxy.port} {kind} {key}\n")
        path = server.folder / f"ssh_config_{proxy.port}"
        first = f"Host {server.alias}\n  Port {proxy.port}\n  UserKnownHostsFile {known}\n"
        path.write_text(first + server.ssh_config_path.read_text())
        yield path


def time_in_round_trips(
    name: str,
    prepare: Callable[[Path], Callable[[], object]],
    server: ThrowawaySshHost,
    *,
    round_trip_s: float,
    repeats: int,
) -> Row:
    """Times one operation without and behind the slow line, both with the same warm connection.

    Args:
        prepare: gets an ssh configuration and returns the operation to time; connections opened by it are warm.
    """
    with slow_line(server, 0.0) as config:
        fast_s = median_s(prepare(config), repeats)
    with slow_line(server, round_trip_s) as config:
        slow_s = median_s(prepare(config), repeats)
    return Row(name, fast_s, slow_s, (slow_s - fast_s) / round_trip_s)


# ---- operations; each gets an ssh configuration and returns what is timed


def orch_read(server: ThrowawaySshHost, remote_path: Path) -> Callable[[Path], Callable[[], object]]:
    """``Remote.read``: bytes and digest in one exec."""

    def prepare(config: Path) -> Callable[[], object]:
        remote = SshRemote(Host(name="bench", ssh=server.alias, ssh_config=str(config)))
        return lambda: remote.read(str(remote_path))

    return prepare


def orch_cat(server: ThrowawaySshHost, remote_path: Path) -> Callable[[Path], Callable[[], object]]:
    """The bytes alone, as scp moves them: what is left of ``Remote.read`` without its digest."""

    def prepare(config: Path) -> Callable[[], object]:
        remote = SshRemote(Host(name="bench", ssh=server.alias, ssh_config=str(config)))
        return lambda: remote.run('cat "$1"', [str(remote_path)])

    return prepare


def orch_true(server: ThrowawaySshHost) -> Callable[[Path], Callable[[], object]]:
    """The smallest possible ``Remote.run``."""

    def prepare(config: Path) -> Callable[[], object]:
        remote = SshRemote(Host(name="bench", ssh=server.alias, ssh_config=str(config)))
        return lambda: remote.run("true")

    return prepare


def fabric_connection(server: ThrowawaySshHost, config: Path) -> Any:
    """A plain fabric connection to the throwaway host."""
    import fabric

    port = int(next(line.split()[1] for line in config.read_text().splitlines() if line.strip().startswith("Port")))
    return fabric.Connection(
        "127.0.0.1",
        user=server.user,
        port=port,
        config=fabric.Config(lazy=True, overrides={"load_ssh_configs": False}),
        connect_kwargs={"key_filename": str(server.identity_path), "look_for_keys": False, "allow_agent": False},
    )


def fabric_read(server: ThrowawaySshHost, remote_path: Path) -> Callable[[Path], Callable[[], object]]:
    """fabric as it comes: ``get`` the file, ``run`` the digest, compare."""

    def prepare(config: Path) -> Callable[[], object]:
        connection = fabric_connection(server, config)
        here = server.folder / "fabric_copy"

        def operation() -> None:
            connection.get(str(remote_path), local=str(here))
            digest = connection.run(f"sha256sum {remote_path}", hide=True).stdout.split()[0]
            assert hashlib.sha256(here.read_bytes()).hexdigest() == digest

        return operation

    return prepare


def scp_read(server: ThrowawaySshHost, remote_path: Path) -> Callable[[Path], Callable[[], object]]:
    """``scp``: a connection of its own each time, and no digest."""

    def prepare(config: Path) -> Callable[[], object]:
        here = server.folder / "scp_copy"
        argv = ["scp", "-q", "-F", str(config), f"{server.alias}:{remote_path}", str(here)]
        return lambda: subprocess.run(argv, check=True)

    return prepare


def scp_shared(server: ThrowawaySshHost, remote_path: Path) -> Callable[[Path], Callable[[], object]]:
    """``scp`` over a master connection that is already open: what a warm ``Remote.read`` must be compared with."""

    def prepare(config: Path) -> Callable[[], object]:
        here = server.folder / "scp_shared_copy"
        # a short path: a socket's may not be longer than about 100 bytes
        shared = ["-o", "ControlMaster=auto", "-o", f"ControlPath={server.folder}/%C", "-o", "ControlPersist=60"]
        argv = ["scp", "-q", "-F", str(config), *shared, f"{server.alias}:{remote_path}", str(here)]
        return lambda: subprocess.run(argv, check=True, stderr=subprocess.DEVNULL)

    return prepare


def orch_read_cold(server: ThrowawaySshHost, remote_path: Path) -> Callable[[Path], Callable[[], object]]:
    """Connect, ``Remote.read``, close: what a connecting ``scp`` must be compared with."""

    def prepare(config: Path) -> Callable[[], object]:
        def operation() -> None:
            with SshRemote(Host(name="bench", ssh=server.alias, ssh_config=str(config))) as remote:
                remote.read(str(remote_path))

        return operation

    return prepare


def target_of(remote_path: Path) -> Target:
    """A target of one file."""
    file = TargetFile(path=str(remote_path), name=remote_path.name)
    return Target(name="bench", host="bench", engine="none", files=(file,), kernel="none")


def orch_pull(server: ThrowawaySshHost, remote_path: Path) -> Callable[[Path], Callable[[], object]]:
    """``orch pull``'s part on the host: state, digest and bytes of a target."""

    def prepare(config: Path) -> Callable[[], object]:
        remote = SshRemote(Host(name="bench", ssh=server.alias, ssh_config=str(config)))
        target = target_of(remote_path)
        return lambda: pull(remote, target)

    return prepare


def orch_push(server: ThrowawaySshHost, remote_path: Path, nonce: str) -> Callable[[Path], Callable[[], object]]:
    """``orch push``'s part on the host: lease, compare-and-swap, verification. Each push puts other bytes live."""

    def prepare(config: Path) -> Callable[[], object]:
        remote = SshRemote(Host(name="bench", ssh=server.alias, ssh_config=str(config)))
        target = target_of(remote_path)
        live = [remote_path.read_bytes()]

        def operation() -> None:
            file = SourceFile.of(remote_path.name, os.urandom(SMALL_BYTES))
            expected = {remote_path.name: digest_of(live[0])}
            push.push(remote, target, [file], expected=expected, nonce=nonce, holder="bench", ttl_s=60)
            live[0] = file.content

        return operation

    return prepare


def fabric_write(server: ThrowawaySshHost, remote_path: Path) -> Callable[[Path], Callable[[], object]]:
    """fabric as it comes: ``put`` the file, ``run`` the digest, compare. Not atomic, no lease."""

    def prepare(config: Path) -> Callable[[], object]:
        connection = fabric_connection(server, config)

        def operation() -> None:
            content = os.urandom(SMALL_BYTES)
            connection.put(io.BytesIO(content), remote=str(remote_path))
            digest = connection.run(f"sha256sum {remote_path}", hide=True).stdout.split()[0]
            assert hashlib.sha256(content).hexdigest() == digest

        return operation

    return prepare


def scp_write(server: ThrowawaySshHost, remote_path: Path) -> Callable[[Path], Callable[[], object]]:
    """``scp`` to the host: a connection of its own each time, not atomic, no digest."""

    def prepare(config: Path) -> Callable[[], object]:
        here = server.folder / "scp_source"
        here.write_bytes(os.urandom(SMALL_BYTES))
        argv = ["scp", "-q", "-F", str(config), str(here), f"{server.alias}:{remote_path}"]
        return lambda: subprocess.run(argv, check=True)

    return prepare


def measure_large(server: ThrowawaySshHost, repeats: int) -> list[Row]:
    """Sixteen megabytes from the host, like against like: cold beside cold, warm beside warm; all interleaved."""
    path = server.folder / "large"
    path.write_bytes(os.urandom(LARGE_BYTES))
    config = server.ssh_config_path
    operations = {
        "scp, connecting": scp_read(server, path)(config),
        "Remote.read, connecting, with digest": orch_read_cold(server, path)(config),
        "scp, shared connection": scp_shared(server, path)(config),
        "Remote.run cat, warm, no digest": orch_cat(server, path)(config),
        "Remote.read, warm, with digest": orch_read(server, path)(config),
    }
    times: dict[str, list[float]] = {name: [] for name in operations}
    for operation in operations.values():
        operation()
    for _ in range(repeats):
        for name, operation in operations.items():
            started = time.perf_counter()
            operation()
            times[name].append(time.perf_counter() - started)
    medians = {name: statistics.median(values) for name, values in times.items()}
    rows, against = [], ""
    for name, seconds in medians.items():
        if name.startswith("scp"):
            against = name
            rows.append(Row(f"16 MB: {name}", seconds))
        else:
            rows.append(Row(f"16 MB: {name}", seconds, ratio=seconds / medians[against], against=against))
    return rows


def measure_small(server: ThrowawaySshHost, round_trip_s: float, repeats: int) -> list[Row]:
    """Fifteen kilobytes, a kernel file, without and with a slow line."""
    path, pushed, written = (server.folder / name for name in ("small", "pushed", "written"))
    for file in (path, pushed, written):
        file.write_bytes(os.urandom(SMALL_BYTES))
    nonce = push.new_nonce()
    operations = [
        ("warm `true`: Remote.run", orch_true(server)),
        ("15 KB + digest: Remote.read", orch_read(server, path)),
        ("15 KB + digest: fabric get + run", fabric_read(server, path)),
        ("15 KB: scp", scp_read(server, path)),
        ("pull of 15 KB: orch", orch_pull(server, path)),
        ("push of 15 KB: orch, compare-and-swap", orch_push(server, pushed, nonce)),
        ("push of 15 KB: fabric put + run", fabric_write(server, written)),
        ("push of 15 KB: scp", scp_write(server, written)),
    ]
    rows = [
        time_in_round_trips(name, prepare, server, round_trip_s=round_trip_s, repeats=repeats)
        for name, prepare in operations
    ]
    with SshRemote(Host(name="bench", ssh=server.alias, ssh_config=str(server.ssh_config_path))) as remote:
        push.revert(remote, target_of(pushed), nonce=nonce)
        push.unlock(remote, target_of(pushed), nonce=nonce)
    return rows


def show(rows: list[Row]) -> None:
    """Prints the table."""
    print(f"{'operation':46} {'ms':>8} {'slow ms':>8} {'trips':>6}  ratio")
    for row in rows:
        slow = "–" if row.slow_seconds is None else f"{row.slow_seconds * 1000:.1f}"
        trips = "–" if row.n_round_trips is None else f"{row.n_round_trips:.1f}"
        ratio = "" if row.ratio is None else f"{row.ratio:.2f} × {row.against}"
        print(f"{row.name:46} {row.seconds * 1000:8.1f} {slow:>8} {trips:>6}  {ratio}")


def main() -> int:
    """Parses the command line, measures, prints."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--round-trip-ms", type=float, default=50.0)
    parser.add_argument("--repeats", type=int, default=7)
    options = parser.parse_args()
    if shutil.which("scp") is None:
        print("needs scp", file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory() as folder, ThrowawaySshHost(Path(folder) / "host") as server:
        rows = measure_large(server, options.repeats)
        rows += measure_small(server, options.round_trip_ms / 1000, options.repeats)
    if options.json:
        print(json.dumps({"round_trip_ms": options.round_trip_ms, "rows": [asdict(row) for row in rows]}, indent=2))
    else:
        show(rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
