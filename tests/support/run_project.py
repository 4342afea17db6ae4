"""A project for whole experiments: a host on this machine, and variants of which it is known what they do.

The engine is ``stub_engine.py``, the load client that of ``paced_orch.py``. ``slow`` and ``fast`` are 3 % slower and
faster, ``same`` differs from the baseline in its bytes alone, ``odd`` computes other words, ``broken`` does not start.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pty
import signal
import struct
import subprocess
import sys
import termios
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.support.cli_project import STUB_ENGINE, CliProject
from tests.support.ssh_project import CHECKOUT, RunningOrch, command_of, query
from tests.support.waiting import wait_until

STILL_S = 0.3

SETTINGS = {"slow": 3, "fast": 4, "same": 5, "odd": 6, "broken": 7}
"""``num_stages`` of each variant."""


class RunProject(CliProject):
    """The project; ``begin`` starts a command as a process that the test then disturbs.

    Attributes:
        faults: what the test writes there goes wrong with the engine's requests; see ``stub_engine``.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.faults = folder / "faults"
        self.begun: list[RunningOrch] = []

    def make(self, *, n_files: int = 1, **workload: Any) -> None:
        """Writes host and project, with a baseline and every variant.

        Args:
            workload: keys that replace the usual ones.
        """
        super().make(n_files=n_files)
        self.write_inventory(**workload)
        self.pulled()
        for name, stages in SETTINGS.items():
            self.with_variant(name, f"num_stages={stages}")
        self.before = self.identity()

    def write_inventory(self, *, project_folder: Path | None = None, **workload: Any) -> None:
        """Writes inventory.yaml (JSON is YAML), of this project or of somebody else's on the same host."""
        words = ["--port", str(self.port), "--ttft-ms", "1", "--itl-ms", "0.5", "--fault-file", str(self.faults)]
        words += ["--kernel-file", str(self.live), "--pace", "num_stages=3=1.03", "--pace", "num_stages=4=0.97"]
        words += ["--odd", "num_stages=6", "--broken", "num_stages=7"]
        engine = {
            "command": [sys.executable, str(STUB_ENGINE), *words],
            "python": sys.executable,
            "base_url": f"http://127.0.0.1:{self.port}",
            "env": {"PYTHONPATH": str(self.site)},
            "stop_grace_s": 5.0,
        }
        file = {"path": str(self.live), "module": "kernels.flash_mla"}
        usual = {"input_tokens": 8, "output_tokens": 4, "prompts_per_concurrency": 8, "warmup_per_concurrency": 1}
        inventory = {
            "hosts": {"here": {"transport": "local", "scratch_dir": str(self.scratch)}},
            "engines": {"stub": engine},
            "targets": {"flash_mla": {"files": [file], "kernel": "flash_mla_decode_kernel"}},
            "workloads": {"short": {**usual, **workload}},
        }
        (project_folder or self.folder).joinpath("inventory.yaml").write_text(json.dumps(inventory, indent=1))

    # ---- commands

    def begin(self, *words: str) -> RunningOrch:
        """``orch WORDS`` with the paced load client, as a process that runs on."""
        running = RunningOrch([sys.executable, "-m", "tests.support.paced_orch", *words], self.folder)
        self.begun.append(running)
        return running

    def at_keyboard(self, *words: str) -> Keyboard:
        """The same at a terminal of 80 columns, with a keyboard."""
        running = Keyboard([sys.executable, "-m", "tests.support.paced_orch", *words], self.folder)
        self.begun.append(running)
        return running

    def run(self, *words: str) -> list[dict[str, Any]]:
        """``orch WORDS --json`` to its good end: what it printed, line by line."""
        ran = self.begin(*words, "--json").end()
        assert ran.code == 0, ran.err
        return [json.loads(line) for line in ran.out.splitlines()]

    # ---- what is there

    def rows(self, sql: str) -> list[dict[str, Any]]:
        """Rows of the record, read without orch."""
        return query(self.db, sql)

    def events(self, kind: str = "") -> list[dict[str, Any]]:
        """Events on record, of one kind when it is named, with their facts."""
        found = self.rows("select id, kind, text, detail from events order by id") if self.db.exists() else []
        return [{**row, **json.loads(row["detail"])} for row in found if row["kind"] == kind or not kind]

    def identity(self) -> tuple[object, ...]:
        """All of the live file that a revert must bring back."""
        found = self.live.stat()
        return self.live.read_bytes(), found.st_ino, found.st_mode, found.st_mtime_ns

    @property
    def state_dir(self) -> Path:
        """Where the host's agent keeps what it knows of the target."""
        return self.live.parent / ".orch-flash_mla.py"

    def engines(self) -> list[int]:
        """Pids of stub engines."""
        return [pid for pid in self._pids() if os.fsencode(STUB_ENGINE) in command_of(pid)]

    def loads(self) -> list[int]:
        """Pids of load clients."""
        return [pid for pid in self._pids() if b"/loadgen.py" in command_of(pid)]

    def is_restored(self, *, n_engines: int) -> bool:
        """Whether the file is as before, with inode and mtime, without lease, watcher, load; and so many engines."""
        assert self.identity() == self.before, f"live is {self.live.read_text()}"
        assert not self.state_dir.exists()
        wait_until(lambda: self.loads() == [] and len(self.engines()) == n_engines)
        wait_until(lambda: [pid for pid in self._pids() if b"orch-watch" in command_of(pid)] == [])
        return True

    def await_event(self, kind: str, n: int = 1) -> None:
        """Returns once so many events of a kind are on record."""
        wait_until(lambda: len(self.events(kind)) >= n, timeout_s=120.0)

    def hold(self, request: int = 2, fault: str = "stall") -> None:
        """Later starts stand still in a request, counted from 0: until the client's patience is over, or with
        ``wait`` until ``let_go``."""
        self.faults.write_text(f"{request}={fault}:1")

    def await_held(self, arm: str = "") -> None:
        """Returns when a load stands still; of an arm's start when it is named.

        A request that runs has also sent one token and not ended, for half a millisecond: one that is held is so still
        ``STILL_S`` later.
        """
        since: dict[str, float] = {}

        def is_held() -> bool:
            last = self.events("start")[-1:]
            if not self.loads() or (arm and (not last or last[0]["arm"] != arm)):
                return False
            with contextlib.suppress(OSError):
                url = f"http://127.0.0.1:{self.port}/log"
                with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(url, timeout=5) as answer:
                    served = [json.loads(line) for line in answer.read().splitlines()]
                if not served or served[-1]["ended_s"] is not None or len(served[-1]["sent_s"]) != 1:
                    return False
                now_s = time.monotonic()
                return now_s - since.setdefault(json.dumps(served[-1]), now_s) >= STILL_S
            return False

        wait_until(is_held, timeout_s=120.0)

    def let_go(self) -> None:
        """Later loads run through."""
        self.faults.unlink(missing_ok=True)

    def kill_engine(self) -> None:
        """kill -9 of the engine."""
        for pid in self.engines():
            os.kill(pid, signal.SIGKILL)

    def close(self) -> None:
        """Ends everything that was begun."""
        for running in self.begun:
            running.kill()
        super().close()


class Keyboard(RunningOrch):
    """An ``orch`` process whose terminal this is; ``text()`` is what it shows, of both streams."""

    def __init__(self, argv: list[str], cwd: Path) -> None:
        outside, inside = pty.openpty()
        fcntl.ioctl(inside, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        self._outside = outside
        self._pieces = {"stdout": [], "stderr": []}
        self.process = subprocess.Popen(
            argv,
            cwd=cwd,
            env={**os.environ, "PYTHONPATH": str(CHECKOUT), "TERM": "xterm", "COLUMNS": "80"},
            stdin=inside,
            stdout=inside,
            stderr=inside,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),  # Ctrl-C typed there is a signal to it
        )
        os.close(inside)
        self._threads = [threading.Thread(target=self._read, args=("stderr",), daemon=True)]
        self._threads[0].start()

    def _read(self, name: str) -> None:
        with contextlib.suppress(OSError):  # EIO: the other end is closed
            while piece := os.read(self._outside, 1 << 16):
                self._pieces[name].append(piece)

    def type(self, text: str) -> None:
        """Presses keys; ``\\x03`` is Ctrl-C."""
        os.write(self._outside, text.encode())


@contextlib.contextmanager
def run_project(folder: Path, **workload: Any) -> Iterator[RunProject]:
    """A new project below a folder; at the end nothing of it runs."""
    project = RunProject(folder)
    try:
        project.make(**workload)
        yield project
    finally:
        project.close()
