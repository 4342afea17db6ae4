"""One engine on several nodes: ``stub_engine.py`` on the head, and a process with a worker on every other node.

``python rank_engine.py --rank R --nodes N --head HOST:PORT --module kernels.flash_mla -- OPTIONS OF THE STUB``, started
once on each node. Every rank finds the module as Python does, compiles it, and tells the head which bytes it has; ranks
but the head's do so in a worker, a child of what was started. The head waits for all of them, says on ``GET /loaded``
what the last rank has loaded, and paces as the slowest rank's file says (``--pace`` of the stub). Like those of a real
engine that hangs, no rank notices that another has died.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import json
import math
import socket
import subprocess
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

STUB_ENGINE = Path(__file__).with_name("stub_engine.py")
CONNECT_S = 60.0


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rank", type=int, required=True)
    parser.add_argument("--nodes", type=int, required=True)
    parser.add_argument("--head", required=True)
    parser.add_argument("--module", required=True)
    parser.add_argument("--is-worker", action="store_true")
    parser.add_argument("stub", nargs=argparse.REMAINDER)
    given = parser.parse_args()
    stub = given.stub[1:]
    name, _, port = given.head.rpartition(":")
    if given.rank == 0:
        lead(int(port), given.nodes - 1, given.module, stub)
    elif given.is_worker:
        work(name, int(port), told(given.rank, given.module, stub))
    else:
        sys.exit(subprocess.call([sys.executable, __file__, "--is-worker", *sys.argv[1:]]))


def told(rank: int, module: str, stub: list[str]) -> dict[str, Any]:
    """What a rank has loaded, and how slow that makes it."""
    spec = importlib.util.find_spec(module)
    assert spec is not None and spec.origin is not None
    source = Path(spec.origin).read_bytes()
    compile(source, spec.origin, "exec")
    text = source.decode()
    if any(one in text for one in values(stub, "--broken")):
        raise SystemExit(f"RuntimeError: rank {rank}: no kernel image is available for execution on the device")
    paces = [one.rpartition("=") for one in values(stub, "--pace")]
    pace = math.prod(float(value) for wanted, _, value in paces if wanted in text)
    return {"rank": rank, "digest": "sha256:" + hashlib.sha256(source).hexdigest(), "pace": pace}


def values(stub: list[str], option: str) -> list[str]:
    """What an option of the stub was given, each time."""
    return [value for word, value in pairwise(stub) if word == option]


def lead(port: int, n_others: int, module: str, stub: list[str]) -> None:
    """Waits for every other rank, then serves."""
    own = told(0, module, stub)
    with socket.create_server(("0.0.0.0", port)) as server:
        others = [server.accept()[0] for _ in range(n_others)]
        ranks = [own, *(json.loads(one.makefile().readline()) for one in others)]
        print("ranks", json.dumps(ranks), flush=True)
        last = max(ranks, key=lambda one: int(one["rank"]))
        loaded = Path(tempfile.mkdtemp()) / "loaded.json"
        loaded.write_text(json.dumps({"modules": {module: last["digest"]}}))
        words = list(stub)
        for value in values(stub, "--pace"):  # the ranks have judged that
            at = words.index(value)
            del words[at - 1 : at + 1]
        words += ["--loaded-file", str(loaded), "--pace", f"={max(one['pace'] for one in ranks)}"]  # in every text
        sys.exit(subprocess.call([sys.executable, str(STUB_ENGINE), *words]))


def work(name: str, port: int, own: dict[str, Any]) -> None:
    """Tells the head, and lives until it is ended."""
    deadline_s = time.monotonic() + CONNECT_S
    while True:
        try:
            line = socket.create_connection((name, port), timeout=CONNECT_S)
            break
        except OSError:
            if time.monotonic() > deadline_s:
                raise
            time.sleep(0.1)
    line.sendall(json.dumps(own).encode() + b"\n")
    while True:
        time.sleep(3600.0)


if __name__ == "__main__":
    main()
