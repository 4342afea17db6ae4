"""Station: a ready engine and a workload → ``LoadResult``. One load at one concurrency.

Takes an engine that serves, gives what its load client measured. It touches one folder on the host (``run_dir``) and
the client's own process group, nothing else.

The load lives on the host. It is started detached, writes to files there, and is only looked at from here, with one
small exec a look; nothing is streamed while it runs. So a lost line costs nothing: the next look finds the load
further on, and the result is fetched as a file when it has ended. In ``run_dir``:

    started/      made by the client's wrapper before anything else; a second start sees it and ends at once
    process       pid, start ticks and start time of the wrapper, which leads the client's process group
    exit          the client's exit code; written last
    client.log    its standard output and error
    …             the client's own files
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Literal, TypeVar

from orchestrator.clients import ClientRun, ExitEvidence, LoadClient, detached, load_client
from orchestrator.connection import Remote
from orchestrator.errors import (
    ConnectionError_,
    HostUnreachableError,
    LineLostError,
    LoadError,
    RemoteTimeoutError,
    TargetError,
)
from orchestrator.interrupts import shielded
from orchestrator.records import Engine, LoadProgress, LoadResult, Workload

__all__ = ["LoadProgress", "find_load", "follow_load", "join_load", "remove_load", "run_load", "stop_load"]

POLL_S = 2.0
FIRST_POLL_S = 0.1
LINE_PATIENCE_S = 120.0
"""How long a host that does not answer is asked again, beyond the time for which the load may still run."""
RETRY_S = 2.0
START_PATIENCE_S = 30.0
STOP_GRACE_S = 5.0
READ_TIMEOUT_S = 300.0
N_LOG_LINES = 25

_WAS_STARTED = '[ -d "$1/started" ]'

_T = TypeVar("_T")
_LOST = (LineLostError, HostUnreachableError, RemoteTimeoutError)


def run_load(
    remote: Remote,
    engine: Engine,
    workload: Workload,
    concurrency: int,
    *,
    run_dir: str,
    on_progress: Callable[[LoadProgress], None] | None = None,
    poll_s: float = POLL_S,
    check: Callable[[], None] | None = None,
) -> LoadResult:
    """Makes one load and gives its result; returns only when nothing of the client runs any more.

    What goes wrong with the load is in the result's status and reasons, not an exception. A lost line is retried
    as long as the load may still be running. On Ctrl-C, or when ``check`` raises, the client is stopped first.

    Args:
        run_dir: absolute folder on the host for this load; made. An earlier load that ended in it is kept, renamed.
        on_progress: called after each look.
        poll_s: time between looks; the first ones follow more quickly.
        check: called before each look; what it raises ends the load.

    Raises:
        LoadError: the load cannot be made as asked, or another one still runs in ``run_dir``.
        LineLostError, HostUnreachableError, RemoteTimeoutError: no answer for so long that the load must have ended.
        HostWriteError, RemoteCommandError: the host could not write the files or start the client.
    """
    client = load_client(workload.client)
    run = client.prepare(workload, engine, concurrency, run_dir)
    watch = _Watch(remote, client, run, run_dir, workload, concurrency, on_progress, poll_s, check, joins=False)
    _claim(remote, run_dir)
    try:
        _start(remote, run, run_dir)
        return _follow(watch)
    except BaseException:
        # Out of reach, the client ends by its own deadline; there is nothing else to be done about it here.
        with shielded("stopping the load"), contextlib.suppress(ConnectionError_, RemoteTimeoutError):
            stop_load(remote, run_dir)
        raise


def follow_load(
    remote: Remote,
    engine: Engine,
    workload: Workload,
    concurrency: int,
    *,
    run_dir: str,
    on_progress: Callable[[LoadProgress], None] | None = None,
    poll_s: float = POLL_S,
    check: Callable[[], None] | None = None,
) -> LoadResult:
    """Joins a load that an earlier ``run_load`` started in ``run_dir``, running or ended, and gives its result.

    Unlike ``run_load`` it leaves the load alone when it is interrupted. Arguments and errors are those of ``run_load``.

    Raises:
        LoadError: no load was started in ``run_dir``.
    """
    client = load_client(workload.client)
    run = client.prepare(workload, engine, concurrency, run_dir)
    return _follow(_Watch(remote, client, run, run_dir, workload, concurrency, on_progress, poll_s, check, joins=True))


def join_load(
    remote: Remote,
    engine: Engine,
    workload: Workload,
    concurrency: int,
    *,
    run_dir: str,
    on_progress: Callable[[LoadProgress], None] | None = None,
    check: Callable[[], None] | None = None,
) -> LoadResult:
    """As ``follow_load``, but the load is the caller's from now on: it is stopped when this is interrupted."""
    try:
        return follow_load(remote, engine, workload, concurrency, run_dir=run_dir, on_progress=on_progress, check=check)
    except BaseException:
        with shielded("stopping the load"), contextlib.suppress(ConnectionError_, RemoteTimeoutError):
            stop_load(remote, run_dir)
        raise


def find_load(
    remote: Remote, engine: Engine, workload: Workload, concurrency: int, *, run_dir: str
) -> Literal["none", "same", "other"]:
    """Whether a load was started in ``run_dir``, running or ended, and is the one that ``run_load`` would make there.

    ``same``: client and spec on the host are byte for byte those of this orch.
    """
    if remote.run(_WAS_STARTED, [run_dir]).exit_code:
        return "none"
    run = load_client(workload.client).prepare(workload, engine, concurrency, run_dir)
    is_same = all(_fetch(remote, path) == content for path, content in run.files.items())
    return "same" if is_same else "other"


def stop_load(remote: Remote, run_dir: str) -> None:
    """Ends the load in ``run_dir``, if one runs: TERM to its process group, KILL after a grace. Safe to repeat.

    The process is known by pid and start time, so that a pid that was given to another is left alone. The client
    has the grace to write what it has. A load that was about to start there will not.

    Raises:
        RemoteCommandError: its process group does not end.
    """
    tenths = str(round(10 * STOP_GRACE_S))
    remote.check(detached.STOP, [run_dir, tenths], timeout_s=STOP_GRACE_S + 30, doing=f"stop the load in {run_dir}")


def remove_load(remote: Remote, run_dir: str) -> None:
    """Removes the folder of a load that has ended, once its result is stored elsewhere. Safe to repeat.

    Raises:
        RemoteCommandError: the load still runs, or the folder is not one of a load.
    """
    remote.check(detached.REMOVE, [run_dir], doing=f"remove {run_dir}")


# ---- start


def _claim(remote: Remote, run_dir: str) -> None:
    claimed = _patiently(lambda: remote.run(detached.CLAIM, [run_dir]), time.monotonic() + LINE_PATIENCE_S)
    if claimed.exit_code:
        raise LoadError(
            f"{remote.host.name}: cannot start a load in {run_dir}",
            next_step="look at the folder; a load that still runs there must end first",
            evidence=claimed.stderr.decode("utf-8", "backslashreplace").splitlines()[-N_LOG_LINES:],
        )


def _start(remote: Remote, run: ClientRun, run_dir: str) -> None:
    """Writes the client's files and starts it. Each step may be repeated after a lost line: a second start is none."""
    until_s = time.monotonic() + LINE_PATIENCE_S
    for path, content in run.files.items():
        _patiently(lambda path=path, content=content: remote.write(path, content), until_s)  # type: ignore[misc]
    argv = ["/bin/sh", "-c", detached.WRAPPER, "orch-load", run_dir, *run.argv]
    _patiently(lambda: remote.spawn(argv, log_path=f"{run_dir}/start.log", cwd=run_dir, env=run.env), until_s)


# ---- follow


@dataclass(frozen=True, slots=True)
class _Watch:
    """A load and who watches it.

    Attributes:
        joins: somebody else started it; otherwise a load that is not there yet is one that is about to start.
    """

    remote: Remote
    client: LoadClient
    run: ClientRun
    run_dir: str
    workload: Workload
    concurrency: int
    on_progress: Callable[[LoadProgress], None] | None
    poll_s: float
    check: Callable[[], None] | None
    joins: bool

    def tell(self, progress: LoadProgress | None, otherwise: str) -> None:
        """Hands on how far the load is; without news of the client, in a word why."""
        if self.on_progress is not None:
            self.on_progress(progress or LoadProgress(self.concurrency, otherwise, 0, 0, 0, 0.0))

    def refuse(self) -> None:
        """Lets the caller's own check end the load."""
        if self.check is not None:
            self.check()


@dataclass(frozen=True, slots=True)
class _Look:
    """One look at a load; times in seconds since the epoch by the host's clock.

    Attributes:
        state: ``none``, ``starting``, ``running`` or ``ended``.
    """

    state: str
    started_s: float | None
    now_s: float
    exit_code: int | None
    progress: bytes
    log_tail: tuple[str, ...]


def _follow(watch: _Watch) -> LoadResult:
    how, last = _wait(watch)
    raw = _fetch(watch.remote, watch.run.result_path)
    evidence = ExitEvidence(how, last.exit_code, last.log_tail)
    parsed = watch.client.parse(raw, evidence, watch.workload, watch.concurrency)
    return LoadResult(
        concurrency_cap=watch.concurrency,
        status=parsed.status,
        reasons=parsed.reasons,
        metrics=parsed.metrics,
        requests=parsed.requests,
        client=watch.client.name,
        client_version=parsed.version or watch.run.version,
        argv=parsed.argv or watch.run.argv,
        raw=raw,
        started_at=parsed.started_at or _iso(last.now_s if last.started_s is None else last.started_s),
        ended_at=parsed.ended_at or _iso(last.now_s),
    )


def _wait(watch: _Watch) -> tuple[Literal["exited", "deadline", "vanished"], _Look]:
    """Looks until the client has ended, or ends it at its deadline."""
    began_s = time.monotonic()
    pause_s = min(FIRST_POLL_S, watch.poll_s)
    while True:
        watch.refuse()
        look = _look(watch, began_s + watch.run.deadline_s + LINE_PATIENCE_S)
        elapsed_s = time.monotonic() - began_s
        if look.state == "none" and watch.joins:
            raise LoadError(
                f"{watch.remote.host.name}: no load was started in {watch.run_dir}",
                next_step="measure it again",
            )
        if look.state == "ended":
            return ("vanished" if look.exit_code is None else "exited"), look
        if look.state in ("none", "starting") and elapsed_s > START_PATIENCE_S:
            return "vanished", look
        if elapsed_s > watch.run.deadline_s:
            _patiently(lambda: stop_load(watch.remote, watch.run_dir), time.monotonic() + LINE_PATIENCE_S)
            return "deadline", _look(watch, time.monotonic() + LINE_PATIENCE_S)
        time.sleep(pause_s)
        pause_s = min(1.5 * pause_s, watch.poll_s)


def _look(watch: _Watch, until_s: float) -> _Look:
    args = [watch.run_dir, watch.run.progress_path or "", str(N_LOG_LINES)]

    def line_is_lost() -> None:
        watch.refuse()
        watch.tell(None, "line lost")

    done = _patiently(
        lambda: watch.remote.check(detached.LOOK, args, doing=f"look at the load in {watch.run_dir}"),
        until_s,
        line_is_lost,
    )
    head, progress, *log = done.stdout.split(b"\n")
    state, started, now, code = head.decode().split()
    look = _Look(
        state=state,
        started_s=None if started == "-" else float(started),
        now_s=float(now),
        exit_code=None if code == "-" else int(code),
        progress=progress,
        log_tail=tuple(line.decode("utf-8", "backslashreplace") for line in log if line.strip()),
    )
    watch.tell(watch.client.parse_progress(progress, watch.concurrency), "starting")
    return look


def _fetch(remote: Remote, path: str) -> bytes | None:
    """The result file as it is; None when there is none."""
    try:
        return _patiently(lambda: remote.read(path, timeout_s=READ_TIMEOUT_S), time.monotonic() + LINE_PATIENCE_S)
    except TargetError:
        return None


def _patiently(ask: Callable[[], _T], until_s: float, when_lost: Callable[[], None] | None = None) -> _T:
    """Asks again when the line is lost, until the moment ``until_s`` of the monotonic clock; then that error stands."""
    while True:
        try:
            return ask()
        except _LOST:
            if time.monotonic() > until_s:
                raise
        if when_lost is not None:
            when_lost()
        time.sleep(RETRY_S)


def _iso(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, timezone.utc).isoformat(timespec="milliseconds").replace("+00:00", "Z")
