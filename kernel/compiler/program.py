"""The request, the surroundings of the compiles, and the answers.

Owns standard input and output, the environment and the private folder. Does not compile: ``jobs`` does, in the
children of ``pool``.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

from . import jobs
from .pool import Pool, ReaderGone, Stopped, StopSignals
from .probes import Probes

KEPT_VARIABLES = ("PATH", "HOME", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "TZ")
"""The rest of the environment goes, so that no option of the user's Triton, LLVM or ptxas changes an outcome."""


def main() -> int:
    """Answer the request on standard input.

    Returns:
        0 when every job was answered, however; 2 when the request is no request or triton cannot be imported; 128 and
        the signal's number when a signal ended it; 1 when nobody reads the answers any more.
    """
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        request = json.loads(sys.stdin.readline())
        sources, asked = request["sources"], request["jobs"]
        n_workers, deadline_s = int(request["n_workers"]), float(request["deadline_s"])
    except (ValueError, KeyError, TypeError) as error:
        return _refuse(f"the request is no request of this protocol: {type(error).__name__}: {error}")
    with StopSignals() as signals, _private_folder() as folder, _answers() as answers:
        _set_environment(folder)
        try:
            triton_version = _import_triton()
        except Exception as error:
            return _refuse(f"{sys.executable} cannot import triton: {type(error).__name__}: {error}")
        placed = jobs.place_sources(sources, folder)
        pool = Pool(
            lambda job, log: jobs.perform(job, placed[job["source"]], log),
            n_workers=n_workers,
            deadline_s=deadline_s,
            folder=folder,
            signals=signals,
            reader=answers.fileno(),
        )
        try:
            _say(answers, {"event": "ready", "triton_version": triton_version})
            probes = Probes(asked, n_together=2 * max(1, n_workers))
            with contextlib.closing(pool.run(probes.jobs(), probes.is_wanted)) as results:
                for job, part in results:
                    whole = probes.take(job, part)
                    if whole is not None:
                        _say(answers, {"event": "result", "id": job["of"], **whole})
        except Stopped as stopped:
            return 128 + stopped.signal_number
        except (ReaderGone, BrokenPipeError):
            return 1
    return 0


def _refuse(reason: str) -> int:
    print(reason, file=sys.stderr, flush=True)
    return 2


def _say(answers: TextIO, answer: dict[str, Any]) -> None:
    answers.write(json.dumps(answer) + "\n")
    answers.flush()


@contextlib.contextmanager
def _answers() -> Iterator[TextIO]:
    """Standard output under another number; what writes to number 1 from here on writes to standard error."""
    sys.stdout.flush()
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    try:
        yield answers
    finally:
        with contextlib.suppress(BrokenPipeError):
            answers.close()


@contextlib.contextmanager
def _private_folder() -> Iterator[Path]:
    folder = tempfile.mkdtemp(prefix="orch-compiler-")
    try:
        yield Path(folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _set_environment(folder: Path) -> None:
    for name in [name for name in os.environ if name not in KEPT_VARIABLES]:
        del os.environ[name]
    tempfile.tempdir = str(folder)
    os.environ.update(
        TMPDIR=str(folder),  # ptxas and Triton leave their own temporary files when a child is killed
        TRITON_HOME=str(folder),
        TRITON_CACHE_DIR=str(folder / "cache"),
        TRITON_DISABLE_LINE_INFO="1",  # a kernel that only moved must keep its binary
        TRITON_DUMP_PTXAS_LOG="1",  # it counts the spills (Triton 3.5 and later)
    )


def _import_triton() -> str:
    """Import all that the children need, once, before they are forked."""
    import triton
    import triton.backends.nvidia.compiler
    import triton.compiler.code_generator

    return str(triton.__version__)
