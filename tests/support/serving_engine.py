"""A small real engine that serves completions with the kernel module it imported: starts in a fraction of a second.

Run as ``python -m serving_engine`` with this folder on PYTHONPATH, in the folder that holds the kernel's package. It is
``stub_engine`` with a kernel: the first config of the kernel's autotune list decides how fast tokens come (a larger
``BLOCK_T`` is faster) and is written into every token, so that each answer tells which code ran. ``--fault`` and
``--skip`` are those of the stub. Beside the stub's routes:

    GET /health    503 until ready     GET /loaded   digest of every module that was named by --module
    GET /config    the kernel's config, and this process's pid
    GET /waiting   how many completions wait for --hold-file to go away
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import importlib
import json
import os
import selectors
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stub_engine import Fault, Server, Truth, choice_event, read_fault

RETRY_S = 0.01


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--module", action="append", required=True, help="dotted name; the first holds the kernel")
    parser.add_argument("--kernel", default="fast_kernel", help="name of the function in the first module")
    parser.add_argument("--ready-file", type=Path, help="ready once this file exists")
    parser.add_argument("--hold-file", type=Path, help="completions wait while this file exists")
    parser.add_argument("--die", action="store_true", help="raise while starting")
    parser.add_argument("--ignore-term", action="store_true")
    parser.add_argument("--skip", type=int, default=0)
    parser.add_argument("--fault", type=read_fault, action="append", default=[])
    return parser.parse_args(argv)


@dataclass
class KernelTruth(Truth):
    """A stub's truth with what was imported."""

    loaded: dict[str, str] | None = None
    config: str = ""
    ready_file: Path | None = None
    hold_file: Path | None = None
    n_waiting: int = 0

    def piece(self, k: int, is_empty: bool) -> bytes:
        """Chunk k, which names the config that ran."""
        return choice_event("" if is_empty else f" {self.config}:{k}")


class KernelServer(Server):
    """One connection."""

    truth: KernelTruth

    def _answer_plain(self, path: str) -> None:
        truth = self.truth
        if path == "/health" and truth.ready_file is not None and not truth.ready_file.exists():
            self._respond(503, b"still loading weights")
            return
        answers: dict[str, Any] = {
            "/loaded": {"modules": truth.loaded},
            "/config": {"config": truth.config, "pid": os.getpid()},
            "/waiting": {"n_waiting": truth.n_waiting},
        }
        if path in answers:
            self._respond(200, json.dumps(answers[path]).encode())
        else:
            super()._answer_plain(path)

    def _complete(self, request: dict[str, Any], now: float) -> None:
        self._admit(request, now, is_waiting=False)

    def _admit(self, request: dict[str, Any], now: float, *, is_waiting: bool) -> None:
        truth = self.truth
        is_held = truth.hold_file is not None and truth.hold_file.exists() and not self.transport.is_closing()
        truth.n_waiting += is_held - is_waiting
        if is_held:
            asyncio.get_running_loop().call_later(RETRY_S, lambda: self._admit(request, now, is_waiting=True))
        elif not self.transport.is_closing():
            super()._complete(request, now)


def load(options: argparse.Namespace) -> KernelTruth:
    """Imports the modules, and takes speed and text from the kernel's first config."""
    modules = {name: importlib.import_module(name) for name in options.module}
    first = getattr(modules[options.module[0]], options.kernel).configs[0]
    faults = dict(options.fault)
    return KernelTruth(
        ttft_s=0.002,
        itl_s=0.032 / first.kwargs["BLOCK_T"],
        every=faults.pop("all", Fault()),
        faults={int(i): one for i, one in faults.items()},
        skip=options.skip,
        loaded={
            name: "sha256:" + hashlib.sha256(Path(str(module.__file__)).read_bytes()).hexdigest()
            for name, module in modules.items()
        },
        config=repr(first),
        ready_file=options.ready_file,
        hold_file=options.hold_file,
    )


async def serve(truth: KernelTruth, host: str, port: int) -> None:
    """Serves until the process is ended."""
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: KernelServer(truth), host, port, backlog=1024)
    await server.serve_forever()


def main() -> None:
    """Does what the options say."""
    options = parse()
    print("serving engine starts", flush=True)
    if options.ignore_term:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if options.die:
        raise RuntimeError("no kernel image is available for execution on the device")
    truth = load(options)
    print(f"loaded {truth.config}", flush=True)
    asyncio.SelectorEventLoop(selectors.SelectSelector()).run_until_complete(serve(truth, options.host, options.port))


if __name__ == "__main__":
    main()
