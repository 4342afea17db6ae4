"""A small real engine for tests of starting, proving and stopping: standard library only, run as a program.

It imports a module (the kernel), answers /health and /loaded, and misbehaves on demand. Run with ``-m tiny_engine``
and this folder on PYTHONPATH, or as a script.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import json
import os
import signal
import subprocess
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--module", default="kernels.fast")
    parser.add_argument("--api-key", help="a secret on the command line; not used")
    parser.add_argument("--ready-file", type=Path, help="ready once this file exists")
    parser.add_argument("--never-ready", action="store_true")
    parser.add_argument("--die", action="store_true", help="raise while starting")
    parser.add_argument("--die-silently", action="store_true", help="print many lines, then exit")
    parser.add_argument("--ignore-term", action="store_true")
    parser.add_argument("--fork", type=int, default=0, help="forked workers in the same group")
    parser.add_argument("--own-session", type=int, default=0, help="workers that lead a session of their own")
    parser.add_argument("--daemon", action="store_true", help="a worker whose parent ends at once, in its own session")
    parser.add_argument("--bare-daemon", action="store_true", help="the same with an empty environment")
    parser.add_argument(
        "--supervise", action="store_true", help="a worker, and a front that is started again when it ends"
    )
    parser.add_argument("--hold", action="store_true", help="be a worker: import the module and wait")
    return parser.parse_args(argv)


def ignore_term() -> None:
    """TERM does nothing."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)


def hold() -> None:
    """Waits for ever."""
    while True:
        signal.pause()


def worker_argv(options: argparse.Namespace) -> list[str]:
    """The command of a worker."""
    extra = ["--ignore-term"] if options.ignore_term else []
    return [
        sys.executable,
        "-m",
        "tiny_engine",
        "--port",
        str(options.port),
        "--module",
        options.module,
        "--hold",
        *extra,
    ]


def start_workers(options: argparse.Namespace) -> None:
    """Starts every worker that was asked for."""
    for _ in range(options.fork):
        if os.fork() == 0:
            hold()
    for _ in range(options.own_session):
        subprocess.Popen(worker_argv(options), start_new_session=True)
    for wanted, environment in (
        (options.daemon, None),
        (options.bare_daemon, {"PYTHONPATH": os.environ["PYTHONPATH"]}),
    ):
        if wanted:
            # bare: its parent lives until the engine is ready, so that its ancestry can be seen once
            middle = os.fork()
            if middle == 0:
                subprocess.Popen(worker_argv(options), start_new_session=True, env=environment)
                if environment:
                    hold()
                os._exit(0)
            if not environment:
                os.waitpid(middle, 0)


def serve(options: argparse.Namespace) -> None:
    """Imports the module, then answers requests for ever."""
    module = importlib.import_module(options.module)
    loaded = "sha256:" + hashlib.sha256(Path(module.__file__).read_bytes()).hexdigest()

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            answers = {
                "/health": self.health,
                "/loaded": lambda: (200, {"modules": {options.module: loaded}}),
                "/value": lambda: (200, {"value": module.VALUE, "pid": os.getpid()}),
                "/exit": lambda: os._exit(0),
            }
            status, body = answers[self.path]()
            content = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def health(self) -> tuple[int, object]:
            waits = options.never_ready or (options.ready_file and not options.ready_file.exists())
            return (503, "still loading weights") if waits else (200, "fine")

        def log_message(self, *_: object) -> None:
            pass

    ThreadingHTTPServer.allow_reuse_address = True
    ThreadingHTTPServer(("127.0.0.1", options.port), Answer).serve_forever()


def supervise(options: argparse.Namespace) -> None:
    """Starts a worker once, and a front again and again."""
    subprocess.Popen(worker_argv(options))
    while True:
        front = [sys.executable, "-m", "tiny_engine", "--port", str(options.port), "--module", options.module]
        subprocess.Popen(front).wait()


def main() -> None:
    """Does what the options say."""
    options = parse()
    print("tiny engine starts", flush=True)
    if options.ignore_term:
        ignore_term()
    if options.die:
        raise RuntimeError(f"no kernel image for this device, token {os.environ.get('HF_TOKEN')}")
    if options.die_silently:
        for i in range(100):
            print(f"line {i}", flush=True)
        sys.exit(3)
    if options.supervise:
        supervise(options)
    if options.hold:
        importlib.import_module(options.module)
        hold()
    start_workers(options)
    serve(options)


if __name__ == "__main__":
    main()
