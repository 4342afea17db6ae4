"""A folder of one run below orch's scratch folder: fresh, and gone with every process of the run when it is over.

A run holds a lock on a file in its folder for as long as it lives. A folder whose lock is free belongs to a run that
was killed; the next run removes it, with what still runs of it.
"""

from __future__ import annotations

import base64
import contextlib
import fcntl
import hashlib
import os
import shutil
import signal
import tempfile
import time
from typing import IO, Dict, Iterator, Mapping, Sequence

from . import engine_state, process_table

PREFIX = "orch-check-"
MARK = "ORCH_CHECK"
"""Variable that every process of a run is started with: the folder of the run."""

LOCK_NAME, NEW_LOCK_NAME = "lock", "lock.new"
UNLOCKED_FOR_S = 3600.0
N_TRIES = 20
PAUSE_S = 0.05


class CannotWrite(Exception):
    """The host could not write; one line says what and why."""


class Folder:
    """The folder of a run. ``files`` holds the variant under its workspace names, and nothing else."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.files = os.path.join(path, "files")

    def write_files(self, files: Sequence[Mapping[str, str]]) -> Dict[str, str]:
        """Writes each file, reads it back, and compares its digest; the path by name.

        Raises:
            CannotWrite: no space, or other bytes lie there than were sent.
        """
        return {file["name"]: self._write_file(file) for file in files}

    def _write_file(self, file: Mapping[str, str]) -> str:
        path = os.path.normpath(os.path.join(self.files, file["name"]))
        if not path.startswith(self.files + "/"):
            raise CannotWrite("%s would lie outside of the run's folder" % file["name"])
        self.write(path, base64.b64decode(file["content"]))
        with open(path, "rb") as written:
            digest = "sha256:" + hashlib.sha256(written.read()).hexdigest()
        if digest != file["digest"]:
            raise CannotWrite("%s is %s, sent was %s" % (path, digest, file["digest"]))
        return path

    def write(self, path: str, content: bytes) -> None:
        """Writes a file of the run.

        Raises:
            CannotWrite: it cannot be written.
        """
        try:
            os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
            with open(path, "wb") as file:
                file.write(content)
        except OSError as exc:
            raise CannotWrite("%s (%d bytes): %s" % (path, len(content), exc.strerror or exc)) from exc

    def environment(self, base: Mapping[str, str]) -> Dict[str, str]:
        """``base`` for a process of the run: what it caches, compiles or leaves for a while stays in the folder.

        Without the mark of an engine: a process that carries it counts as one of the engine's own.
        """
        environment = {name: value for name, value in base.items() if name != engine_state.MARK}
        environment[MARK] = self.path
        environment["PYTHONDONTWRITEBYTECODE"] = "1"
        environment["TRITON_CACHE_DIR"] = os.path.join(self.path, "triton")
        environment["TORCHINDUCTOR_CACHE_DIR"] = os.path.join(self.path, "inductor")
        environment["TMPDIR"] = os.path.join(self.path, "tmp")
        return environment


@contextlib.contextmanager
def fresh(scratch_dir: str) -> Iterator[Folder]:
    """A new folder, mode 700; at the end its processes are killed and it is removed, whatever happened.

    Raises:
        CannotWrite: it cannot be made.
    """
    try:
        remove_leftovers(scratch_dir)
        path = tempfile.mkdtemp(prefix=PREFIX, dir=scratch_dir)
    except OSError as exc:
        raise CannotWrite("%s: %s" % (scratch_dir, exc.strerror or exc)) from exc
    try:
        folder = Folder(path)
        try:
            lock = _locked(path)
            for name in (folder.files, os.path.join(path, "tmp")):
                os.mkdir(name, 0o700)
        except OSError as exc:
            raise CannotWrite("%s: %s" % (path, exc.strerror or exc)) from exc
        with lock:
            yield folder
    finally:
        _remove(path)


def _locked(path: str) -> IO[bytes]:
    """The lock of a folder, held. It gets its name only then: nobody ever finds the lock of a living run free."""
    lock = open(os.path.join(path, NEW_LOCK_NAME), "wb")
    with contextlib.suppress(OSError):  # a file system without locks: then nobody else can take it either
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.rename(lock.name, os.path.join(path, LOCK_NAME))
    return lock


def remove_leftovers(scratch_dir: str) -> None:
    """Removes the folders of runs that died before they could, and kills what still runs of them."""
    for name in os.listdir(scratch_dir):
        path = os.path.join(scratch_dir, name)
        if name.startswith(PREFIX) and _is_dead(path):
            _remove(path)


def _is_dead(path: str) -> bool:
    try:
        with open(os.path.join(path, LOCK_NAME), "r+b") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
    except FileNotFoundError:  # a run that has just begun, or the rest of a removal
        with contextlib.suppress(OSError):
            return time.time() - os.stat(path).st_mtime > UNLOCKED_FOR_S
        return False
    except OSError:
        return False


def _remove(path: str) -> None:
    """Kills what runs in the folder's name, then removes it; what was just killed may still write for a moment."""
    _end_marked(path)
    for _ in range(N_TRIES):
        shutil.rmtree(path, ignore_errors=True)
        if not os.path.lexists(path):
            return
        time.sleep(PAUSE_S)


def _end_marked(path: str) -> None:
    """Kills every process that was started with the folder's mark, whatever session it has made for itself."""
    for _ in range(N_TRIES):
        pids = [one.pid for one in process_table.processes() if _mark_of(one.pid) == path]
        if not pids:
            return
        for pid in pids:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(PAUSE_S)


def _mark_of(pid: int) -> str:
    return (process_table.environment_of(pid) or {}).get(MARK, "")
