"""Runs one load by somebody else's client on the GPU host, and puts all of it into one result file.

This one file runs on the GPU host, by the engine's own python (3.8 or newer), with the standard library alone:
``python driver.py SPEC.json``. It must not import anything of orch, and it knows no client: ``driven.py`` writes the
argument vectors into the spec and reads the files that the client leaves.

In this order: the client is asked for its version (the first of several forms that answers is used), a warm-up by the
same client with other prompts, a flush of the engine's prefix cache, the measured run. A step ends with everything that
it started: its process group is stopped at its deadline, and workers that it left behind are stopped when it has ended.

Spec: ``client``, ``recipe`` (handed through), ``candidates`` [{``version_argv``, ``argv``}], ``env`` (of the client
alone), ``direct`` (host name that it must not ask through a proxy), ``steps`` [{``name``, ``args``, ``files`` {name:
path}, ``deadline_s``}], ``flush_url`` (before the last step), ``request_timeout_s``, ``limit_path`` (of
``request_limit.py`` for a client that has no such limit, else null), ``load_timeout_s`` (for everything), ``folder``,
``result_path``, ``progress_path``.

Exit codes: 0 every step came to its end; 1 a result was written that says why not; 2 the spec is wrong.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

SCHEMA = 1
LOOK_S = 0.5
"""Between two looks at a running client; the progress file is as old as that."""
VERSION_PATIENCE_S = 120.0
FLUSH_PATIENCE_S = 10.0
GRACE_S = 3.0
"""Between TERM and KILL; less than orch gives this program itself."""
N_LOG_LINES = 25
VERSION = re.compile(r"\d+\.\d+[0-9A-Za-z.+_-]*")


class StoppedError(Exception):
    """Why there is no load; its text is ``stopped_by`` of the result."""


class Driver:
    """One load, step by step."""

    def __init__(self, spec: dict[str, Any]) -> None:
        self.spec = spec
        self.folder = Path(spec["folder"])
        self.env = {**os.environ, **spec["env"]}
        for name in ("no_proxy", "NO_PROXY"):
            self.env[name] = ",".join(one for one in (self.env.get(name), spec["direct"]) if one)
        self.until_s = time.monotonic() + spec["load_timeout_s"]
        self.steps: list[dict[str, Any]] = []
        self.version: str | None = None
        self.signal: str | None = None
        self.phase, self.phase_began_s = "starting", time.monotonic()
        # the wrapper that leads the process group, and this program: never stopped from here
        self.own = {pid for pid, _, _ in processes_of_group()} | {os.getpid(), os.getppid()}

    def run(self) -> int:
        """The whole load. What goes wrong ends up in the result file, never as an exception."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._note_signal)
        stopped_by = None
        started_at = utc_now()
        try:
            prefix = self._choose()
            for i, step in enumerate(self.spec["steps"]):
                if i == len(self.spec["steps"]) - 1 and self.spec.get("flush_url"):
                    self._flush(self.spec["flush_url"])
                self._take(step, prefix)
        except StoppedError as exc:
            stopped_by = str(exc)
        result = {
            "schema": SCHEMA,
            "client": self.spec["client"],
            "client_version": self.version,
            "recipe": self.spec["recipe"],
            "stopped_by": stopped_by,
            "started_at": started_at,
            "ended_at": utc_now(),
            "steps": self.steps,
        }
        replace_file(Path(self.spec["result_path"]), json.dumps(result).encode(), True)
        if stopped_by is not None:
            print(f"stopped: {stopped_by}", file=sys.stderr)
        return 0 if stopped_by is None else 1

    def _note_signal(self, number: int, _: object) -> None:
        self.signal = signal.Signals(number).name

    # ---- the client's version

    def _choose(self) -> list[str]:
        """The first form of the client that tells its version.

        Raises:
            StoppedError: none does.
        """
        refusals = []
        for i, candidate in enumerate(self.spec["candidates"]):
            argv = candidate["version_argv"]
            patience_s = min(VERSION_PATIENCE_S, self.until_s - time.monotonic())
            how, code, logs = self._run(argv, f"version-{i}", patience_s, {})
            found = VERSION.findall("".join(last_lines(logs["out"])[-1:]))  # above it, some log what they import
            if how == "exited" and code == 0 and found:
                self.version = found[-1]
                return list(candidate["argv"])
            said = last_lines(logs["err"] or logs["out"])[-1:] or [f"exit code {code}" if how == "exited" else how]
            refusals.append(" ".join(candidate["argv"]) + f": {said[0]}")
            self._refuse_signal()
        raise StoppedError("no client: " + "; ".join(refusals))

    # ---- the steps

    def _take(self, step: dict[str, Any], prefix: list[str]) -> None:
        """Runs a step and notes it.

        Raises:
            StoppedError: it did not come to its end, or not with exit code 0.
        """
        name = step["name"]
        self.phase, self.phase_began_s = name, time.monotonic()
        for path in step["files"].values():
            Path(path).parent.mkdir(parents=True, exist_ok=True)
        argv = [*prefix, *step["args"]]
        started_at, began_s = utc_now(), time.monotonic()
        deadline_s = min(step["deadline_s"], self.until_s - began_s)
        limited_by = self.folder / f"{name}.limit"
        how, code, logs = self._run(argv, name, deadline_s, self._limit(limited_by))
        self.steps.append(
            {
                "name": name,
                "argv": argv,
                "how": how,
                "exit_code": code,
                "started_at": started_at,
                "ended_at": utc_now(),
                "elapsed_s": round(time.monotonic() - began_s, 3),
                "last_lines": last_lines(logs["err"]) or last_lines(logs["out"]),
                "request_limit_by": read_text(limited_by),
                "files": {key: read_text(Path(path)) for key, path in step["files"].items()},
            }
        )
        self._refuse_signal()
        if how == "deadline":
            raise StoppedError(f"{name}: no end within {max(0.0, round(deadline_s, 1)):g} s")
        if how != "exited" or code != 0:
            raise StoppedError(f"{name}: " + (f"exit code {code}" if how == "exited" else how))

    def _limit(self, limited_by: Path) -> dict[str, str]:
        """The environment by which a client that takes no limit of a request has one; who gave it is in the file."""
        if self.spec["limit_path"] is None:
            return {}
        folder = self.folder / "request-limit"
        folder.mkdir(exist_ok=True)
        replace_file(folder / "sitecustomize.py", Path(self.spec["limit_path"]).read_bytes(), False)
        return {
            "PYTHONPATH": os.pathsep.join(one for one in (str(folder), self.env.get("PYTHONPATH")) if one),
            "ORCH_REQUEST_TIMEOUT_S": str(self.spec["request_timeout_s"]),
            "ORCH_REQUEST_LIMIT_NOTE": str(limited_by),
        }

    def _run(
        self, argv: list[str], name: str, deadline_s: float, more_env: dict[str, str]
    ) -> tuple[str, int | None, dict[str, str]]:
        """(``exited``, ``deadline``, ``stopped`` or ``cannot be started: …``, exit code, what it wrote by stream)."""
        paths = {stream: self.folder / f"{name}.{stream}" for stream in ("out", "err")}
        how, code = "exited", None
        with paths["out"].open("wb") as out, paths["err"].open("wb") as err:
            try:
                process = subprocess.Popen(
                    argv,
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=err,
                    env={**self.env, **more_env},
                    cwd=str(self.folder),
                )
            except OSError as exc:
                return f"cannot be started: {exc.strerror}", None, {"out": "", "err": ""}
            how = self._wait(process, time.monotonic() + deadline_s)
            self._end(process)
            code = process.wait() if how == "exited" else None
        return how, code, {stream: read_text(path) or "" for stream, path in paths.items()}

    def _wait(self, process: subprocess.Popen[bytes], until_s: float) -> str:
        while True:
            self._report()
            try:
                process.wait(max(0.01, min(LOOK_S, until_s - time.monotonic())))
                return "exited"
            except subprocess.TimeoutExpired:
                pass
            if self.signal is not None:
                return "stopped"
            if time.monotonic() >= until_s:
                return "deadline"

    def _end(self, process: subprocess.Popen[bytes]) -> None:
        """Stops what is left of a step: TERM, then KILL after a grace."""
        until_s = time.monotonic() + GRACE_S
        told: set[int] = set()
        while True:
            left = self._others() | ({process.pid} if process.poll() is None else set())
            if not left:
                return
            is_late = time.monotonic() >= until_s
            for pid in left if is_late else left - told:
                with contextlib.suppress(OSError):  # it has just ended
                    os.kill(pid, signal.SIGKILL if is_late else signal.SIGTERM)
            told |= left
            time.sleep(0.02)

    def _others(self) -> set[int]:
        """Everything of this process group but the wrapper and this program; what descends from this program, too."""
        return {pid for pid, _, _ in processes_of_group()} - self.own

    def _flush(self, url: str) -> None:
        give_up_s = time.monotonic() + FLUSH_PATIENCE_S
        while True:
            problem, is_final = post_empty(url)
            if problem is None:
                return
            self._refuse_signal()
            if is_final or time.monotonic() > give_up_s:
                raise StoppedError(f"cache flush: {problem}")
            time.sleep(0.2)  # an engine refuses while the last request is still being put away

    def _refuse_signal(self) -> None:
        if self.signal is not None:
            raise StoppedError(self.signal)

    def _report(self) -> None:
        seen = {"phase": self.phase, "elapsed_s": round(time.monotonic() - self.phase_began_s, 2)}
        with contextlib.suppress(OSError):  # a full disk: the load may be over before it matters
            replace_file(Path(self.spec["progress_path"]), json.dumps(seen).encode(), False)


def processes_of_group() -> list[tuple[int, int, int]]:
    """(pid, parent, process group) of each live process of this group or below this one; nothing without a /proc."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            state, parent, group = (folder / "stat").read_bytes().rpartition(b") ")[2].split()[:3]
        except (OSError, ValueError):
            continue  # it has just ended
        if state not in (b"Z", b"X"):
            found.append((int(folder.name), int(parent), int(group)))
    below = {os.getpid()}
    n_before = 0
    while len(below) > n_before:
        n_before = len(below)
        below |= {pid for pid, parent, _ in found if parent in below}
    return [one for one in found if one[2] == os.getpgrp() or one[0] in below]


def last_lines(text: str) -> list[str]:
    """The last lines that are not empty."""
    return [line for line in text.splitlines() if line.strip()][-N_LOG_LINES:]


def read_text(path: Path) -> str | None:
    """A file as text; bytes that are none survive as surrogates. None when it is not there."""
    try:
        return path.read_bytes().decode("utf-8", "surrogateescape")
    except OSError:
        return None


def post_empty(url: str) -> tuple[str | None, bool]:
    """POSTs nothing to an address, past any proxy.

    Returns:
        None when it answers 2xx, else what went wrong; and whether asking again is of no use.
    """
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(urllib.request.Request(url, data=b"", method="POST"), timeout=30):
            return None, True
    except urllib.error.HTTPError as exc:
        return f"{url} answered HTTP {exc.code}", exc.code in (401, 403, 404, 405)
    except (OSError, ValueError) as exc:
        return f"{url}: {exc}", False


def utc_now() -> str:
    """Now, ISO 8601, UTC, with milliseconds."""
    now = time.time()
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(now)) + f".{int(now * 1000) % 1000:03d}Z"


def replace_file(path: Path, content: bytes, is_lasting: bool) -> None:
    """Replaces a file at once, so that no reader sees half of it; ``is_lasting``: through to the disk."""
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    with temporary.open("wb") as file:
        file.write(content)
        if is_lasting:
            file.flush()
            os.fsync(file.fileno())
    temporary.replace(path)


def main(arguments: list[str]) -> int:
    """``driver.py SPEC.json``: runs the load and writes its result."""
    if len(arguments) != 1:
        print("usage: driver.py SPEC.json", file=sys.stderr)
        return 2
    try:
        spec = json.loads(Path(arguments[0]).read_bytes())
        driver = Driver(spec)
    except (OSError, ValueError, KeyError, TypeError) as exc:
        print(f"{arguments[0]}: {type(exc).__name__}: {exc}", file=sys.stderr)
        return 2
    return driver.run()


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
