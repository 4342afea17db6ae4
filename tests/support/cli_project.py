"""A user's project on this machine, and its commands as a user types them.

The host is this machine (``transport: local``); target, engine, scratch folder and project lie below one folder. The
kernel file is a real one with an autotune list of three configs, the engine is ``stub_engine.py``.
"""

from __future__ import annotations

import contextlib
import fcntl
import io
import json
import os
import pty
import signal
import struct
import subprocess
import sys
import termios
import threading
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from orchestrator.cli import run_command as run
from orchestrator.project import Project
from orchestrator.records import Environment
from orchestrator.store import Store
from tests.support import store_records
from tests.support.tiny_host import free_port, is_alive, until

STUB_ENGINE = Path(__file__).with_name("stub_engine.py")

KERNEL = '''\
"""Decode attention over a paged latent cache: one program a sequence and block of heads."""

import triton
import triton.language as tl


@triton.autotune(
    configs=[
        triton.Config({"BLOCK_T": 16}, num_warps=4, num_stages=2),
        triton.Config({"BLOCK_T": 32}, num_warps=4, num_stages=2),  # wins at high concurrency
        triton.Config({"BLOCK_T": 32}, num_warps=8, num_stages=2),
    ],
    key=["n_heads", "n_selected"],
)
@triton.jit
def flash_mla_decode_kernel(q_ptr, kv_ptr, out_ptr, scale, n_heads, n_selected, BLOCK_T: tl.constexpr):
    row = tl.program_id(0)
    lanes = tl.arange(0, 64)
    q = tl.load(q_ptr + row * 64 + lanes)
    total = tl.zeros([64], dtype=tl.float32)
    for start in range(0, n_selected, BLOCK_T):
        tokens = start + tl.arange(0, BLOCK_T)
        kv = tl.load(kv_ptr + tokens[:, None] * 64 + lanes[None, :], mask=tokens[:, None] < n_selected, other=0.0)
        total += tl.sum(kv, axis=0) * scale
    tl.store(out_ptr + row * 64 + lanes, q * total)


def launch(q, kv, out):
    flash_mla_decode_kernel[(q.shape[0],)](q, kv, out, 0.125, q.shape[1], kv.shape[0])
'''

SECOND = '''\
"""Sizes that the launcher and the engine share."""

PAGE_TOKENS = 64


def n_pages(n_tokens):
    return (n_tokens + PAGE_TOKENS - 1) // PAGE_TOKENS
'''

INVENTORY = """\
hosts:
  here:
    transport: local
    scratch_dir: {scratch}

engines:
  stub:
    command: [{python}, {stub}, --port, "{port}", --ttft-ms, "1", --itl-ms, "0.5"]
    python: {python}
    base_url: http://127.0.0.1:{port}
    env: {{PYTHONPATH: {site}}}
    stop_grace_s: 5

targets:
  flash_mla:
    files: {files}
    kernel: flash_mla_decode_kernel

workloads:
  short:
    input_tokens: 8
    output_tokens: 4
    prompts_per_concurrency: 2
    warmup_per_concurrency: 1
"""


@dataclass(frozen=True)
class Ran:
    """How a command ended and what it wrote."""

    code: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        """The JSON document, which must be all of standard output and hold no NaN."""
        return json.loads(self.out, parse_constant=lambda word: pytest.fail(f"{word} is no JSON"))

    @property
    def error(self) -> str:
        """The one line that says why it failed."""
        lines = [line for line in self.err.splitlines() if line.startswith("orch: ")]
        assert len(lines) == 1, self.err
        assert "Traceback" not in self.err
        return lines[0]

    @property
    def evidence(self) -> list[str]:
        """The lines below the error."""
        lines = self.err.splitlines()
        i = next(i for i, line in enumerate(lines) if line.startswith("orch: "))
        return [line.removeprefix("  ") for line in lines[i + 1 :]]


class CliProject:
    """The project; ``orch`` runs one command in it, in this process."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "project"
        self.site = folder / "site"
        self.scratch = folder / "scratch"
        self.live = self.site / "kernels" / "flash_mla.py"
        self.second = self.site / "kernels" / "sizes.py"
        self.port = free_port()

    @property
    def inventory(self) -> Path:
        """The project's inventory."""
        return self.folder / "inventory.yaml"

    @property
    def db(self) -> Path:
        """The record."""
        return self.folder / "results.db"

    @property
    def variants(self) -> Path:
        """The target's working copies."""
        return self.folder / "variants" / "flash_mla"

    def make(self, *, n_files: int = 1) -> None:
        """Writes host and project; the target has one file or two."""
        self.folder.mkdir(parents=True)
        self.scratch.mkdir(mode=0o700)
        self.live.parent.mkdir(parents=True)
        (self.live.parent / "__init__.py").write_text("")
        self.live.write_text(KERNEL)
        self.second.write_text(SECOND)
        files = [
            {"path": str(self.live), "module": "kernels.flash_mla"},
            {"path": str(self.second), "module": "kernels.sizes"},
        ]
        text = INVENTORY.format(
            scratch=json.dumps(str(self.scratch)),
            python=json.dumps(sys.executable),
            stub=json.dumps(str(STUB_ENGINE)),
            port=self.port,
            site=json.dumps(str(self.site)),
            files=json.dumps(files[:n_files]),
        )
        self.inventory.write_text(text)

    def orch(self, *words: str) -> Ran:
        """Runs ``orch WORDS`` in the project's folder; standard output and error are pipes to it."""
        out, err = io.StringIO(), io.StringIO()
        with _inside(self.folder), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = run(list(words))
        return Ran(code, out.getvalue(), err.getvalue())

    def at_terminal(self, *words: str, columns: int = 80) -> Ran:
        """Runs ``orch WORDS`` at a terminal of so many columns; ``out`` is what it shows, of both streams."""
        with _terminal(columns) as shown, _inside(self.folder):
            code = run(list(words))
        return Ran(code, shown.text, "")

    def process(self, *words: str, env: Mapping[str, str] | None = None, **options: Any) -> subprocess.Popen[str]:
        """Starts ``orch WORDS`` as a process of its own."""
        pipe = subprocess.PIPE
        return subprocess.Popen(
            [*options.pop("before", ()), sys.executable, "-m", "orchestrator", *words],
            **{"stdout": pipe, "stderr": pipe, "text": True, "cwd": self.folder, **options},
            env={**os.environ, "PYTHONUNBUFFERED": "", **(env or {})},
        )

    def done(self, *words: str) -> Ran:
        """Runs ``orch WORDS``, which must succeed."""
        ran = self.orch(*words)
        assert ran.code == 0, ran.err
        return ran

    def pulled(self) -> CliProject:
        """Itself, with a baseline."""
        self.done("pull")
        return self

    def with_variant(self, name: str = "V2", *settings: str) -> CliProject:
        """Itself, with a baseline and a variant."""
        if not (self.variants / "baseline").exists():
            self.pulled()
        words = [word for setting in settings or ("num_stages=3",) for word in ("--set", setting)]
        self.done("variant", "new", name, *words)
        return self

    def query(self, sql: str) -> list[dict[str, Any]]:
        """Rows of the record."""
        rows: list[dict[str, Any]] = self.done("query", sql, "--json").document
        return rows

    def record_start(
        self, arm: str, digest: str, values: Mapping[int, float], *, at: str, facts: Environment | None = None
    ) -> None:
        """Puts a good engine start with the output tokens per second at each concurrency on record."""
        workload = Project.open(self.inventory).workload(None)
        with Store.open(self.db) as store:
            trial_id = store.begin_trial(
                host="here", target="flash_mla", variant=arm, digest=digest, workload=workload, started_at=at
            )
            store.record_service(trial_id, store_records.service(digest, facts))
            for concurrency, value in values.items():
                store.record_load(trial_id, store_records.load(concurrency, value))
            store.end_trial(trial_id, "ok", digest_after=digest)

    def close(self) -> None:
        """Ends every process that was started on this host: engine, watcher, load client."""
        for pid in self._pids():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        until(lambda: not self._pids(), "what this host started has ended")

    def _pids(self) -> list[int]:
        """Live processes that name this host's folders in their command line or environment."""
        marks = [os.fsencode(self.scratch), os.fsencode(self.site)]
        found = []
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit() or int(entry.name) == os.getpid():
                continue
            with suppress(OSError):
                text = (entry / "cmdline").read_bytes() + (entry / "environ").read_bytes()
                if any(mark in text for mark in marks) and is_alive(int(entry.name)):
                    found.append(int(entry.name))
        return found


@contextlib.contextmanager
def cli_project(folder: Path, *, n_files: int = 1) -> Iterator[CliProject]:
    """A new project below a folder; at the end nothing of it runs."""
    project = CliProject(folder)
    project.make(n_files=n_files)
    try:
        yield project
    finally:
        project.close()


@contextlib.contextmanager
def _inside(folder: Path) -> Iterator[None]:
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


class Shown:
    """What a terminal was told."""

    def __init__(self) -> None:
        self.text = ""

    def read(self, descriptor: int) -> None:
        """Reads until the terminal is closed at its other end."""
        pieces = []
        with suppress(OSError):
            while piece := os.read(descriptor, 1 << 16):
                pieces.append(piece)
        self.text = b"".join(pieces).decode().replace("\r\n", "\n")


@contextlib.contextmanager
def _terminal(columns: int) -> Iterator[Shown]:
    """A pseudo-terminal as standard output and error; what it was told is there when the block has ended."""
    outside, inside = pty.openpty()
    fcntl.ioctl(inside, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    shown = Shown()
    reader = threading.Thread(target=shown.read, args=(outside,))
    reader.start()
    with pytest.MonkeyPatch.context() as patch, open(inside, "w", encoding="utf-8") as stream:  # noqa: PTH123
        patch.setenv("COLUMNS", str(columns))
        with contextlib.redirect_stdout(stream), contextlib.redirect_stderr(stream):
            yield shown
    reader.join()
    os.close(outside)
